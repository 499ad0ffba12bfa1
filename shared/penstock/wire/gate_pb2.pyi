from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ("seen_manifest",)
    SEEN_MANIFEST_FIELD_NUMBER: _ClassVar[int]
    seen_manifest: bytes
    def __init__(self, seen_manifest: _Optional[bytes] = ...) -> None: ...

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Document(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: bytes
    def __init__(self, json: _Optional[bytes] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("signed_study",)
    SIGNED_STUDY_FIELD_NUMBER: _ClassVar[int]
    signed_study: bytes
    def __init__(self, signed_study: _Optional[bytes] = ...) -> None: ...

class JobRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("signed_cancel",)
    SIGNED_CANCEL_FIELD_NUMBER: _ClassVar[int]
    signed_cancel: bytes
    def __init__(self, signed_cancel: _Optional[bytes] = ...) -> None: ...

class ApproveRequest(_message.Message):
    __slots__ = ("request_id", "reason", "by")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    reason: str
    by: Decider
    def __init__(self, request_id: _Optional[str] = ..., reason: _Optional[str] = ..., by: _Optional[_Union[Decider, _Mapping]] = ...) -> None: ...

class RejectRequest(_message.Message):
    __slots__ = ("request_id", "reason", "by")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    reason: str
    by: Decider
    def __init__(self, request_id: _Optional[str] = ..., reason: _Optional[str] = ..., by: _Optional[_Union[Decider, _Mapping]] = ...) -> None: ...

class Decider(_message.Message):
    __slots__ = ("uid", "user", "claimed")
    class ClaimedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    UID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    uid: int
    user: str
    claimed: _containers.ScalarMap[str, str]
    def __init__(self, uid: _Optional[int] = ..., user: _Optional[str] = ..., claimed: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("request_id", "state", "code", "step", "steps")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    state: str
    code: str
    step: int
    steps: int
    def __init__(self, request_id: _Optional[str] = ..., state: _Optional[str] = ..., code: _Optional[str] = ..., step: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class CollectRequest(_message.Message):
    __slots__ = ("request_id", "offset", "length")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    offset: int
    length: int
    def __init__(self, request_id: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("manifest", "table", "size")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    table: bytes
    size: int
    def __init__(self, manifest: _Optional[bytes] = ..., table: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("request_id", "round", "introduce", "meeting", "advertise", "open", "asking", "fetch")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    INTRODUCE_FIELD_NUMBER: _ClassVar[int]
    MEETING_FIELD_NUMBER: _ClassVar[int]
    ADVERTISE_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ASKING_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    round: int
    introduce: Nothing
    meeting: bytes
    advertise: Nothing
    open: Opening
    asking: bytes
    fetch: Nothing
    def __init__(self, request_id: _Optional[str] = ..., round: _Optional[int] = ..., introduce: _Optional[_Union[Nothing, _Mapping]] = ..., meeting: _Optional[bytes] = ..., advertise: _Optional[_Union[Nothing, _Mapping]] = ..., open: _Optional[_Union[Opening, _Mapping]] = ..., asking: _Optional[bytes] = ..., fetch: _Optional[_Union[Nothing, _Mapping]] = ...) -> None: ...

class Opening(_message.Message):
    __slots__ = ("opening", "sums", "first")
    OPENING_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    opening: bytes
    sums: _containers.RepeatedScalarFieldContainer[bytes]
    first: int
    def __init__(self, opening: _Optional[bytes] = ..., sums: _Optional[_Iterable[bytes]] = ..., first: _Optional[int] = ...) -> None: ...

class StepReply(_message.Message):
    __slots__ = ("message", "working", "wait")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    WORKING_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    working: bool
    wait: float
    def __init__(self, message: _Optional[bytes] = ..., working: _Optional[bool] = ..., wait: _Optional[float] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[Call]
    def __init__(self, calls: _Optional[_Iterable[_Union[Call, _Mapping]]] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("id", "describe", "submit", "poll", "collect", "cancel", "step")
    ID_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    POLL_FIELD_NUMBER: _ClassVar[int]
    COLLECT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    id: int
    describe: DescribeRequest
    submit: SubmitRequest
    poll: JobRequest
    collect: CollectRequest
    cancel: CancelRequest
    step: StepRequest
    def __init__(self, id: _Optional[int] = ..., describe: _Optional[_Union[DescribeRequest, _Mapping]] = ..., submit: _Optional[_Union[SubmitRequest, _Mapping]] = ..., poll: _Optional[_Union[JobRequest, _Mapping]] = ..., collect: _Optional[_Union[CollectRequest, _Mapping]] = ..., cancel: _Optional[_Union[CancelRequest, _Mapping]] = ..., step: _Optional[_Union[StepRequest, _Mapping]] = ...) -> None: ...

class Answers(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    def __init__(self, answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("id", "described", "job", "piece", "failure", "stepped")
    ID_FIELD_NUMBER: _ClassVar[int]
    DESCRIBED_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STEPPED_FIELD_NUMBER: _ClassVar[int]
    id: int
    described: Document
    job: Job
    piece: Piece
    failure: Failure
    stepped: StepReply
    def __init__(self, id: _Optional[int] = ..., described: _Optional[_Union[Document, _Mapping]] = ..., job: _Optional[_Union[Job, _Mapping]] = ..., piece: _Optional[_Union[Piece, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., stepped: _Optional[_Union[StepReply, _Mapping]] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("manifest", "size", "offset", "table")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    size: int
    offset: int
    table: bytes
    def __init__(self, manifest: _Optional[bytes] = ..., size: _Optional[int] = ..., offset: _Optional[int] = ..., table: _Optional[bytes] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "detail")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    code: str
    detail: str
    def __init__(self, code: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
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

class RejectRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

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

class Part(_message.Message):
    __slots__ = ("manifest", "table")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    table: bytes
    def __init__(self, manifest: _Optional[bytes] = ..., table: _Optional[bytes] = ...) -> None: ...

"""What a site answers: every call of a batch is forwarded to the gate, and nothing is decided here.

This process has a network and no rows. It sees what the coordinator may see, and answers errors
by code only.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

import grpc
from google.protobuf.message import DecodeError, Message

from penstock.base.errors import GateUnavailable, Refused
from penstock.wire import gate_pb2, gate_pb2_grpc
from penstock.wire.calls import connect, explain_failure
from penstock.wire.messages import PIECE_BYTES

log = logging.getLogger("penstock.runner")

CALL_SECONDS = 30.0
COLLECT_SECONDS = 120.0
MAX_CALLS = 256


def answer(data: bytes, socket: Path) -> bytes:
    """Forward a serialized ``Batch`` to the gate at ``socket``; returns serialized ``Answers``.

    Never raises: what cannot be read, or a gate that does not run, is an answer too. A gate that
    is away is said once a call, so that the coordinator asks again later.
    """
    batch = gate_pb2.Batch()
    try:
        batch.ParseFromString(data)
    except DecodeError:
        return b""
    answers = gate_pb2.Answers()
    with contextlib.closing(connect(socket)) as channel:
        stub = gate_pb2_grpc.GateStub(channel)
        for call in batch.calls[:MAX_CALLS]:
            answers.answers.append(_answer_call(stub, call))
    data = answers.SerializeToString()
    return bytes(data)


def _answer_call(stub: gate_pb2_grpc.GateStub, call: gate_pb2.Call) -> gate_pb2.Answer:
    verb = call.WhichOneof("verb")
    forward = _FORWARD.get(verb)
    if forward is None:
        return _make_failure(call.id, "wire-version")
    try:
        return gate_pb2.Answer(id=call.id, **forward(stub, getattr(call, verb)))
    except grpc.RpcError as error:
        problem = explain_failure(error)
        if isinstance(problem, GateUnavailable):
            return _make_failure(call.id, "gate-away")
        return _make_failure(call.id, problem.reason, _read_detail(problem))
    except Exception as error:
        # Whatever it is, its text may quote anything.
        log.error("%s failed: %s", verb, type(error).__name__)
        return _make_failure(call.id, "internal")


def _read_detail(problem: Refused) -> str:
    """The gate's own words, if it had any beyond its code."""
    return problem.message if problem.remedy is None else ""


def _make_failure(number: int, code: str, detail: str = "") -> gate_pb2.Answer:
    return gate_pb2.Answer(id=number, failure=gate_pb2.Failure(code=code, detail=detail))


def _collect(stub: gate_pb2_grpc.GateStub, request: gate_pb2.CollectRequest) -> dict[str, Message]:
    """One piece of a release, no longer than :data:`PIECE_BYTES` whatever was asked."""
    length = min(request.length or PIECE_BYTES, PIECE_BYTES)
    asked = gate_pb2.CollectRequest(
        request_id=request.request_id, offset=request.offset, length=length
    )
    piece, table = gate_pb2.Piece(offset=request.offset), []
    for part in stub.Collect(asked, timeout=COLLECT_SECONDS):
        if part.WhichOneof("body") == "manifest":
            piece.manifest, piece.size = part.manifest, part.size
        else:
            table.append(part.table)
    piece.table = b"".join(table)
    return {"piece": piece}


_FORWARD: dict[str | None, Callable[[gate_pb2_grpc.GateStub, Message], dict[str, Message]]] = {
    "describe": lambda stub, r: {"described": stub.Describe(r, timeout=CALL_SECONDS)},
    "submit": lambda stub, r: {"job": stub.Submit(r, timeout=CALL_SECONDS)},
    "poll": lambda stub, r: {"job": stub.Poll(r, timeout=CALL_SECONDS)},
    "cancel": lambda stub, r: {"job": stub.Cancel(r, timeout=CALL_SECONDS)},
    "collect": _collect,
    "step": lambda stub, r: {"stepped": stub.Step(r, timeout=CALL_SECONDS)},
}

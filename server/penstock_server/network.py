"""How messages reach sites.

:class:`Network` is what the pump needs. :class:`LocalGates` calls gates on this machine through
their Unix sockets: the network of the demo, of tests, and of sites that share the coordinator's
host.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol

import grpc

from penstock.errors import GateUnavailable, Refused, UploadRejected
from penstock.wire import gate_pb2, gate_pb2_grpc
from penstock.wire.calls import connect, failure
from penstock_server.store import Message, Reply

CALL_SECONDS = 30.0
COLLECT_SECONDS = 600.0


class Network(Protocol):
    """Delivers one message and brings its reply."""

    def call(self, message: Message, table: Path, limit: int) -> Reply:
        """Send and wait.

        Args:
            table: where a collected table is to be written.
            limit: the most bytes it may have.

        Raises:
            GateUnavailable: nobody answered; the message may be sent again, it is idempotent.
        """


class LocalGates:
    """Gates on this machine, by the socket named in their join records."""

    def __init__(self, sockets: dict[str, Path]) -> None:
        self._sockets = sockets

    def call(self, message: Message, table: Path, limit: int) -> Reply:
        socket = self._sockets.get(message.site)
        if socket is None or not socket.exists():
            raise GateUnavailable("the gate does not run", value=message.site)
        with closing(connect(socket)) as channel:
            stub = gate_pb2_grpc.GateStub(channel)
            try:
                if message.verb == "collect":
                    return self._collect(stub, message, table, limit)
                return _job(self._short(stub, message))
            except grpc.RpcError as error:
                problem = failure(error)
                if isinstance(problem, Refused):
                    return Reply(ok=False, code=problem.reason, detail=str(problem))
                raise problem from None

    @staticmethod
    def _short(stub: gate_pb2_grpc.GateStub, message: Message) -> Any:
        match message.verb:
            case "submit":
                request = gate_pb2.SubmitRequest(signed_study=message.body)
                return stub.Submit(request, timeout=CALL_SECONDS)
            case "poll":
                request_id = message.body.decode()
                return stub.Poll(gate_pb2.JobRequest(request_id=request_id), timeout=CALL_SECONDS)
            case "cancel":
                request = gate_pb2.CancelRequest(signed_cancel=message.body)
                return stub.Cancel(request, timeout=CALL_SECONDS)
        raise ValueError(message.verb)

    @staticmethod
    def _collect(stub: gate_pb2_grpc.GateStub, message: Message, table: Path, limit: int) -> Reply:
        request = gate_pb2.JobRequest(request_id=message.body.decode())
        parts = stub.Collect(request, timeout=COLLECT_SECONDS)
        try:
            manifest = save_parts(parts, table, limit)
        except UploadRejected as error:
            parts.cancel()
            return Reply(ok=False, code="upload-rejected", detail=str(error))
        return Reply(ok=True, request_id=request.request_id, state="delivered", manifest=manifest)


def _job(job: Any) -> Reply:
    return Reply(
        ok=True,
        code=job.code,
        request_id=job.request_id,
        state=job.state,
        step=job.step,
        steps=job.steps,
    )


def save_parts(parts: Iterator[Any], table: Path, limit: int) -> bytes:
    """Stream a collected table to a file, never beyond ``limit`` bytes; returns the manifest.

    Raises:
        UploadRejected: too large, or no manifest came first.
    """
    manifest, size = b"", 0
    staging = table.with_suffix(".part")
    table.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(staging, "wb") as file:
            for index, part in enumerate(parts):
                if index == 0:
                    manifest = part.manifest
                    continue
                if not part.table:
                    raise UploadRejected("the table came with empty parts")
                size += len(part.table)
                if size > limit:
                    raise UploadRejected(
                        "the table is larger than the study allows",
                        value=f"over {size} bytes",
                        bound=f"at most {limit}",
                    )
                file.write(part.table)
            file.flush()
            os.fsync(file.fileno())
        if not manifest:
            raise UploadRejected("no manifest came with the table")
        os.replace(staging, table)
    finally:
        with suppress(FileNotFoundError):
            staging.unlink()
    return manifest

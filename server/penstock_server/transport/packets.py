"""Between the store's messages and what travels: calls, answers, pieces of tables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from google.protobuf.message import DecodeError

from penstock.base.documents import Json
from penstock.base.errors import UploadRejected
from penstock.wire import gate_pb2
from penstock.wire.messages import PIECE_BYTES
from penstock_server.store.folder import Folder
from penstock_server.store.mailbox import STEPS, Message, Reply

DESCRIBE = 0
"""The id of the call that is no message of the store."""
MAX_DOCUMENT = 1_000_000
MAX_WAIT = 600.0
"""Seconds after which a site is asked again at the latest, whatever it says."""


def write_batch(messages: Sequence[Message], sizes: Mapping[int, int], seen: bytes | None) -> bytes:
    """A serialized ``Batch``.

    Args:
        sizes: bytes that are here already, of the tables that ``collect`` messages fetch.
        seen: the newest manifest of the site, to be shown to it; None for no ``Describe``.
    """
    batch = gate_pb2.Batch()
    if seen is not None:
        # First: a gate that was restored from an old copy must notice before it is asked anything.
        batch.calls.add(id=DESCRIBE, describe=gate_pb2.DescribeRequest(seen_manifest=seen))
    # An answer is no larger for many tables than for one: they share it.
    length = PIECE_BYTES // max(1, sum(m.verb == "collect" for m in messages))
    for message in messages:
        batch.calls.append(_call(message, sizes.get(message.id, 0), length))
    data: bytes = batch.SerializeToString()
    return data


def _call(message: Message, offset: int, length: int) -> gate_pb2.Call:
    match message.verb:
        case "submit":
            request = {"submit": gate_pb2.SubmitRequest(signed_study=message.body)}
        case "poll":
            request = {"poll": gate_pb2.JobRequest(request_id=message.body.decode())}
        case "collect":
            number = message.body.decode()
            asked = gate_pb2.CollectRequest(request_id=number, offset=offset, length=length)
            request = {"collect": asked}
        case "cancel":
            request = {"cancel": gate_pb2.CancelRequest(signed_cancel=message.body)}
        case verb if verb in STEPS:
            request = {"step": gate_pb2.StepRequest.FromString(message.body)}
        case _:
            raise ValueError(message.verb)
    return gate_pb2.Call(id=message.id, **request)


def read_answers(data: bytes) -> dict[int, gate_pb2.Answer]:
    """The answers of a packet by the id of their call; empty if they cannot be read."""
    found = gate_pb2.Answers()
    try:
        found.ParseFromString(data)
    except DecodeError:
        return {}
    return {a.id: a for a in found.answers}


def read_description(answer: gate_pb2.Answer) -> Json:
    """What a site said of itself; empty if it did not, or not as JSON."""
    text = answer.described.json
    if len(text) > MAX_DOCUMENT:
        return {}
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def read_reply(message: Message, answer: gate_pb2.Answer) -> Reply | None:
    """The reply to a message of the store; None for an answer of another kind."""
    match answer.WhichOneof("body"):
        case "stepped" if message.verb in STEPS:
            said, asked = answer.stepped, gate_pb2.StepRequest.FromString(message.body)
            wait = min(max(said.wait, 0.0), MAX_WAIT) if said.working else None
            return Reply(ok=True, step=asked.round, wait=wait, data=bytes(said.message))
        case "job" if message.verb not in STEPS:
            job = answer.job
            return Reply(
                ok=True,
                code=job.code,
                request_id=job.request_id,
                state=job.state,
                step=job.step,
                steps=job.steps,
            )
        case "failure":
            return Reply(ok=False, code=answer.failure.code, detail=answer.failure.detail)
    return None


def partial_path(table: Path) -> Path:
    """Where the pieces of a table that is not whole yet lie."""
    return table.with_suffix(".part")


def count_received(table: Path) -> int:
    """Bytes of a table that have come already."""
    try:
        return partial_path(table).stat().st_size
    except FileNotFoundError:
        return 0


def drop_pieces(folder: Folder) -> None:
    """Forget tables that had come in part when the last pump ended: maybe by a crash."""
    for piece in folder.root.glob("uploads/*/*.part"):
        piece.unlink(missing_ok=True)


def add_piece(table: Path, piece: gate_pb2.Piece, limit: int) -> bool:
    """Append a piece to a table, never beyond ``limit`` bytes; whether it is whole now.

    A piece that does not begin where the last one ended is dropped: it will be asked for again.

    Raises:
        UploadRejected: too large, or pieces that do not fit together.
    """
    if piece.size > limit:
        raise UploadRejected(
            "the table is larger than the study allows",
            value=f"{piece.size} bytes",
            bound=f"at most {limit}",
        )
    if not piece.manifest:
        raise UploadRejected("no manifest came with the table")
    size = count_received(table)
    if piece.offset != size:
        return False
    after = size + len(piece.table)
    if after > piece.size or (not piece.table and after < piece.size):
        raise UploadRejected(
            "the table's pieces do not fit", value=f"{after} bytes", bound=f"{piece.size} bytes"
        )
    staging = partial_path(table)
    staging.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(staging, "ab") as file:
        file.write(piece.table)
        file.flush()
        os.fsync(file.fileno())
    if after < piece.size:
        return False
    os.replace(staging, table)
    return True

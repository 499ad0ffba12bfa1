"""Sites for the network's bench: gates that serve made-up releases, and nodes without a SuperNode.

``python -m tests.benchmarks.network_sites FOLDER...``: one process that holds a node for each site
folder, every node on Flower's own connection through the real api, until SIGTERM.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supernode import fleet_http_connection

from penstock.privacy.accounting import accountant
from penstock.privacy.events import RELATION, Gaussian, to_dict
from penstock.processes.flower import pack, unpack
from penstock.processes.stop_flag import StopFlag
from penstock.schema import Column, Schema, to_arrow
from penstock.wire import gate_pb2, gate_pb2_grpc
from penstock.wire.manifest import Manifest, sign_manifest
from penstock.wire.messages import PART_BYTES, PIECE_BYTES
from penstock.wire.signatures import generate_key, private_from_pem, private_to_pem, public_hex
from penstock.wire.signed import read_signed_study
from penstock_client.operate.flower.supernode import HEARTBEAT_SECONDS, Pace
from penstock_client.site.network_paths import Coordinator, NetworkPaths

FEDERATION, PERSONS, DELTA = "bench", 2000, 1e-5
EVENTS = (Gaussian(9.0),)
COLUMNS = 31
REFUSED = "probe"
"""Studies whose name begins so are rejected at once: the shortest way there and back."""


def schema(columns: int) -> Schema:
    """The first columns of what every site here has."""
    names = (f"x{i}" for i in range(columns))
    return Schema(tuple(Column(n, "continuous", lower=0, upper=999, decimals=0) for n in names))


@cache
def table(columns: int, copies: int) -> bytes:
    """An Arrow stream of ``copies`` of everybody."""
    rng = np.random.default_rng(columns)
    label = np.repeat(np.arange(1, copies + 1, dtype=np.int32), PERSONS)
    one = schema(columns)
    coded = {n: rng.integers(0, 1000, len(label)).astype(float) for n in one.names}
    full = to_arrow(coded, one).add_column(0, "_copy", pa.array(label))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, full.schema) as writer:
        writer.write_table(full)
    return bytes(sink.getvalue())


@cache
def claims() -> dict[str, float]:
    """What the events of every release here cost."""
    return {
        "epsilon_autodp": accountant.epsilon(EVENTS, DELTA),
        "epsilon_pld": accountant.epsilon_pld(EVENTS, DELTA),
        "epsilon_replace_one": accountant.epsilon_pld(EVENTS, DELTA, relation="replace-one"),
    }


@dataclass(frozen=True, slots=True)
class SiteFolder:
    """A site's keys and its network side."""

    root: Path

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def gate_key(self) -> Path:
        return self.root / "gate.key"

    @property
    def gate_socket(self) -> Path:
        return self.root / "gate.sock"

    @property
    def network(self) -> NetworkPaths:
        return NetworkPaths(self.root / "network")

    def make(self) -> dict[str, Any]:
        """Make the keys; returns the join record."""
        self.network.make()
        key = generate_key()
        self.gate_key.touch(mode=0o600)
        self.gate_key.write_bytes(private_to_pem(key))
        return {
            "site": self.name,
            "federation": FEDERATION,
            "gate_key": public_hex(key),
            "persons": PERSONS,
            "dictionary": schema(COLUMNS).to_dict(),
            "node_key": self.network.make_key(),
        }

    def join(self, invite: dict[str, Any]) -> None:
        self.network.ca.write_text(invite["ca"])
        joined = Coordinator(FEDERATION, self.name, invite["address"])
        self.network.coordinator.write_bytes(joined.to_bytes())


@dataclass
class _Job:
    study_id: str
    columns: int
    copies: int
    state: str
    seq: int
    manifest: bytes = b""


@dataclass
class Gate(gate_pb2_grpc.GateServicer):
    """Answers as a gate does, with valid signed releases of random numbers, and trains nothing.

    A job runs until it is polled for the first time.
    """

    folder: SiteFolder
    jobs: dict[str, _Job] = field(default_factory=dict)
    asked: dict[str, float] = field(default_factory=dict)
    """When a study came first."""
    delivered: dict[str, float] = field(default_factory=dict)
    """When its release was ready."""
    calls: int = 0

    @cached_property
    def key(self) -> Any:
        return private_from_pem(self.folder.gate_key.read_bytes())

    def Describe(self, request: Any, context: Any) -> gate_pb2.Document:
        return gate_pb2.Document(json=json.dumps({"software": "bench", "wire": "1.0"}).encode())

    def Submit(self, request: Any, context: Any) -> gate_pb2.Job:
        signed = read_signed_study(request.signed_study)
        self.calls += 1
        number = hashlib.sha256(f"{self.folder.name}{signed.study_id}".encode()).hexdigest()
        if number not in self.jobs:
            self.asked[signed.study_id] = time.time()
            study = signed.study
            state = "rejected" if study.name.startswith(REFUSED) else "running"
            self.jobs[number] = _Job(
                signed.study_id,
                len(study.schema.columns),
                study.mechanism.copies,
                state,
                len(self.jobs) + 1,
            )
            # Made before the clock runs: a release takes hours, its transfer is what is measured.
            self.jobs[number].manifest = self._manifest(number, self.jobs[number])
        return self._job(number)

    def Poll(self, request: Any, context: Any) -> gate_pb2.Job:
        self.calls += 1
        job = self.jobs[request.request_id]
        if job.state == "running":
            job.state = "delivered"
            self.delivered[job.study_id] = time.time()
        return self._job(request.request_id)

    def Collect(self, request: Any, context: Any) -> Iterator[gate_pb2.Part]:
        self.calls += 1
        job = self.jobs[request.request_id]
        data = memoryview(table(job.columns, job.copies))
        yield gate_pb2.Part(manifest=job.manifest, size=len(data))
        end = min(len(data), request.offset + (request.length or len(data)))
        for at in range(request.offset, end, PART_BYTES):
            yield gate_pb2.Part(table=bytes(data[at : min(at + PART_BYTES, end)]))

    def Cancel(self, request: Any, context: Any) -> gate_pb2.Job:
        return gate_pb2.Job(state="cancelled")

    def _job(self, number: str) -> gate_pb2.Job:
        return gate_pb2.Job(request_id=number, state=self.jobs[number].state, step=1, steps=2)

    def _manifest(self, number: str, job: _Job) -> bytes:
        data = table(job.columns, job.copies)
        values: dict[str, Any] = {
            "wire": "1.0",
            "study_id": job.study_id,
            "site": self.folder.name,
            "request_id": number,
            "release": 1,
            "lineage": "main",
            "version": 1,
            "persons": PERSONS,
            "rows": PERSONS,
            "copies": job.copies,
            "refits": 0,
            "guarantee": "formal",
            "mechanism": "maf",
            "events": tuple(to_dict(e) for e in EVENTS),
            "relation": RELATION,
            "delta": DELTA,
            **claims(),
            "injection_epsilon": None,
            "table_sha256": hashlib.sha256(data).hexdigest(),
            "table_bytes": len(data),
            "ledger_seq": job.seq,
            "ledger_head": hashlib.sha256(f"{self.folder.name}{job.seq}".encode()).hexdigest(),
            "released_at": "2026-11-21T08:00:00Z",
            "insecure_seed": False,
            "software": {},
            "gate_key": public_hex(self.key),
        }
        return sign_manifest(Manifest(**values), self.key)

    # -- two ways in ---------------------------------------------------------------------------

    def serve(self) -> grpc.Server:
        """Listen on ``gate.sock``."""
        server = grpc.server(ThreadPoolExecutor(2))
        gate_pb2_grpc.add_GateServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{self.folder.gate_socket}")
        server.start()
        return server

    def answer(self, data: bytes) -> bytes:
        """A serialized ``Batch``, answered in place."""
        batch = gate_pb2.Batch.FromString(data)
        return gate_pb2.Answers(answers=[self._one(c) for c in batch.calls]).SerializeToString()

    def _one(self, call: Any) -> Any:
        verb = call.WhichOneof("verb")
        request = getattr(call, verb)
        if verb == "describe":
            return gate_pb2.Answer(id=call.id, described=self.Describe(request, None))
        if verb != "collect":
            method = {"submit": self.Submit, "poll": self.Poll, "cancel": self.Cancel}[verb]
            return gate_pb2.Answer(id=call.id, job=method(request, None))
        asked = gate_pb2.CollectRequest(
            request_id=request.request_id,
            offset=request.offset,
            length=min(request.length or PIECE_BYTES, PIECE_BYTES),
        )
        head, *parts = self.Collect(asked, None)
        piece = gate_pb2.Piece(
            manifest=head.manifest,
            size=head.size,
            offset=request.offset,
            table=b"".join(p.table for p in parts),
        )
        return gate_pb2.Answer(id=call.id, piece=piece)


# -- nodes without a SuperNode -----------------------------------------------------------------


@contextmanager
def connected(folder: SiteFolder) -> Iterator[tuple[Any, ...]]:
    """Flower's own connection of a site's node to its coordinator: the calls that it offers."""
    paths = folder.network
    key: Any = load_ssh_private_key(paths.node_key.read_bytes(), None)
    with fleet_http_connection.http_request_response(
        paths.read_coordinator().address,
        insecure=False,
        root_certificates=paths.ca.read_bytes(),
        authentication_keys=(key, key.public_key()),
    ) as calls:
        yield calls


def node(folder: SiteFolder, stop: StopFlag, make_gate: Callable[..., Gate] = Gate) -> None:
    """One site on Flower's own connection, at the pace of our SuperNode."""
    gate, pace = make_gate(folder), Pace()
    with connected(folder) as (_, receive, send, _, _, pull, push, confirm):
        while not stop.is_set():
            came = receive()
            if came is None:
                pace.sleep(3)
                continue
            pace.sleep(0.5)
            metadata, tree = came[0].metadata, came[1]
            run = metadata.run_id
            contents = pull_objects(
                [t.object_id for t in iterate_object_tree(tree)],
                lambda i, run=run: pull(run, i),
                initial_backoff=0.05,
                backoff_cap=1.0,
            )
            confirm(run, metadata.message_id)
            message = inflate_object_from_contents(metadata.message_id, contents)
            message.metadata.__dict__["_message_id"] = metadata.message_id
            reply = Message(pack(gate.answer(unpack(message.content))), reply_to=message)
            with no_object_id_recompute():
                reply.metadata.__dict__["_message_id"] = reply.object_id
                objects = get_all_nested_objects(reply)
                wanted, session = send(reply, get_object_tree(reply), 0.0)
                for number in wanted:
                    push(run, session, number, objects[number].deflate())


def main(folders: list[str], make_gate: Callable[..., Gate] = Gate) -> None:
    stop = StopFlag()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT_SECONDS
    claims()
    threads = [
        threading.Thread(target=node, args=(SiteFolder(Path(f)), stop, make_gate), daemon=True)
        for f in folders
    ]
    for thread in threads:
        thread.start()
    while not stop.wait(0.2):
        pass
    for thread in threads:
        thread.join(timeout=5)


if __name__ == "__main__":
    main(sys.argv[1:])

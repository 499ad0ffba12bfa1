"""A coordinator over a scripted network and an injected clock, for tests of a study's life."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from penstock.base.errors import (
    GateUnavailable,
    PenstockError,
)
from penstock.base.times import stamp
from penstock.mechanisms import Maf
from penstock.privacy.accounting import accountant
from penstock.privacy.events import RELATION, Gaussian, to_dict
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Column, Schema, to_arrow
from penstock.study.study import Study
from penstock.wire import gate_pb2
from penstock.wire.manifest import Manifest, sign_manifest
from penstock.wire.signatures import generate_key, public_hex
from penstock.wire.signed import read_signed_cancel, read_signed_study, sign_study
from penstock_server.intake import uploads
from penstock_server.operate.builder import Builder
from penstock_server.results.assembly import End, Outcome, explain_disk
from penstock_server.results.material import Material
from penstock_server.store.database import sqlite_url
from penstock_server.store.folder import Folder
from penstock_server.store.mailbox import Message, Reply
from penstock_server.store.store import Store
from penstock_server.studies.coordinator import Coordinator
from penstock_server.transport.pump import Pump

ANALYST, STRANGER = generate_key(), generate_key()
NODE_KEY = "ecdsa-sha2-nistp384 AAAA"
SCHEMA = Schema(columns=(Column("age", "continuous", lower=18, upper=100, decimals=0),))
PERSONS, COPIES, DELTA = 20, 2, 1e-5
EVENTS = (Gaussian(9.0),)
START = datetime(2026, 11, 21, tzinfo=UTC)
STUDY = Study(
    name="trial",
    title="A trial",
    federation="main",
    sites=("a", "b"),
    schema=SCHEMA,
    estimands=(),
    privacy=PrivacyRequest(3.0, DELTA),
    mechanism=Maf(copies=COPIES, refits=0),
    quorum=1,
    deadline_hours=1.0,
    not_before="2020-01-01T00:00:00Z",
    expires="2027-01-01T00:00:00Z",
)


class Killed(BaseException):
    """kill -9: nothing catches it."""


class Clock:
    def __init__(self):
        self.now = START

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += timedelta(seconds=seconds)


@dataclass
class Gate:
    """A site: the same study gets the same job, and one draw; a collect gets the same bytes."""

    name: str
    key: object = field(default_factory=generate_key)
    polls: int = 1
    """Polls until a job is delivered."""
    changes: dict = field(default_factory=dict)
    """Of the manifest."""
    age: float = 50.0
    head: str = ""
    jobs: dict = field(default_factory=dict)
    cancelled: list = field(default_factory=list)
    draws: int = 0
    seq: int = 0

    def join(self, **changes):
        return {
            "site": self.name,
            "federation": "main",
            "gate_key": public_hex(self.key),
            "persons": PERSONS,
            "dictionary": SCHEMA.to_dict(),
            "node_key": NODE_KEY,
            **changes,
        }

    def __call__(self, message, path):
        if message.verb == "submit":
            return self.submit(read_signed_study(message.body))
        if message.verb == "cancel":
            self.cancelled.append(read_signed_cancel(message.body).study_id)
            return Reply(False, "unknown-request")
        job = self.jobs[message.body.decode()]
        if message.verb == "poll":
            job["polls"] += 1
            state = "delivered" if job["polls"] >= self.polls else "running"
            return self.job(message.body.decode(), state)
        data, manifest = job["release"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return Reply(True, request_id=message.body.decode(), state="delivered", data=manifest)

    def job(self, request_id, state):
        return Reply(True, request_id=request_id, state=state, step=1, steps=12)

    def submit(self, signed):
        request_id = hashlib.sha256(f"{self.name}{signed.study_id}".encode()).hexdigest()
        if request_id not in self.jobs:
            self.draws += 1
            self.seq += 2
            release = self.release(signed, request_id)
            self.jobs[request_id] = {"polls": 0, "release": release}
        return self.job(request_id, "queued")

    def release(self, signed, request_id):
        rng = np.random.default_rng(self.draws)
        label = np.repeat(np.arange(1, COPIES + 1, dtype=np.int32), PERSONS)
        coded = {"age": rng.normal(self.age, 5, len(label))}
        table = to_arrow(coded, SCHEMA).add_column(0, "_copy", pa.array(label))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue().to_pybytes()
        values = {
            "wire": "1.0",
            "study_id": signed.study_id,
            "site": self.name,
            "request_id": request_id,
            "release": signed.study.release,
            "lineage": "main",
            "version": 1,
            "persons": PERSONS,
            "rows": PERSONS,
            "copies": COPIES,
            "refits": 0,
            "guarantee": "formal",
            "mechanism": "maf",
            "events": tuple(to_dict(e) for e in EVENTS),
            "relation": RELATION,
            "delta": DELTA,
            "epsilon_autodp": accountant.epsilon(EVENTS, DELTA),
            "epsilon_pld": uploads.epsilon_pld(EVENTS, DELTA),
            "epsilon_replace_one": uploads.epsilon_pld(EVENTS, DELTA, relation="replace-one"),
            "injection_epsilon": None,
            "table_sha256": hashlib.sha256(data).hexdigest(),
            "table_bytes": len(data),
            "ledger_seq": self.seq,
            "ledger_head": self.head or hashlib.sha256(f"{self.seq}".encode()).hexdigest(),
            "released_at": "2026-11-21T08:00:00Z",
            "insecure_seed": False,
            "software": {},
            "gate_key": public_hex(self.key),
        }
        return data, sign_manifest(Manifest(**{**values, **self.changes}), self.key)


def utf8(text):
    """What can travel: the wire itself refuses half a surrogate."""
    return text.encode("utf-8", "replace").decode()


@dataclass
class Network:
    """Gates, or scripts: a reply for every call, an error to raise, or a function."""

    sites: dict
    folder: object
    calls: list = field(default_factory=list)
    packets: list = field(default_factory=list)
    came: list = field(default_factory=list)
    piece: int = 10**6
    """Bytes of a table in one answer."""

    def ready(self):
        return set(self.sites) - {site for site, _ in self.came}

    def send(self, packets):
        for site, packet in packets.items():
            self.send_one(site, packet)

    def send_one(self, site, packet):
        batch = gate_pb2.Batch.FromString(packet)
        self.packets.append((site, batch))
        try:
            answers = [self.answer(site, call) for call in batch.calls]
            self.came.append((site, gate_pb2.Answers(answers=answers).SerializeToString()))
        except GateUnavailable:
            self.came.append((site, ""))

    def receive(self):
        came, self.came = self.came, []
        return came

    def answer(self, site, call):
        verb = call.WhichOneof("verb")
        if verb == "describe":
            return gate_pb2.Answer(id=call.id, described=gate_pb2.Document(json=b"{}"))
        self.calls.append((site, verb))
        body = {
            "submit": lambda: call.submit.signed_study,
            "poll": lambda: call.poll.request_id.encode(),
            "collect": lambda: call.collect.request_id.encode(),
            "cancel": lambda: call.cancel.signed_cancel,
        }[verb]()
        table = self.folder / f"sent-by-{site}"
        reply = self.asked(site, Message(call.id, "", site, verb, body), table)
        if not reply.ok:
            failure = gate_pb2.Failure(code=utf8(reply.code), detail=utf8(reply.detail))
            return gate_pb2.Answer(id=call.id, failure=failure)
        if verb == "collect":
            data, at = table.read_bytes(), call.collect.offset
            piece = gate_pb2.Piece(
                manifest=reply.data, size=len(data), offset=at, table=data[at : at + self.piece]
            )
            return gate_pb2.Answer(id=call.id, piece=piece)
        job = gate_pb2.Job(
            request_id=utf8(reply.request_id),
            state=utf8(reply.state),
            code=utf8(reply.code),
            step=min(reply.step, 2**32 - 1),
            steps=min(reply.steps, 2**32 - 1),
        )
        return gate_pb2.Answer(id=call.id, job=job)

    def asked(self, site, message, table):
        answer = self.sites[site]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if callable(answer):
            answer = answer(message, table)
        if isinstance(answer, BaseException):
            raise answer
        return answer


UNAVAILABLE = GateUnavailable("the gate does not answer")


class Making:
    """Makes results at once, here: what the world's ``finish`` makes of a study, and its errors."""

    def __init__(self, world, material, folder):
        self.pooled = 0
        self._material = Material.from_bytes(material)
        world.making.append(self)
        (folder / "report.json").write_text("{}")
        self._finish = world.finish

    def poll(self):
        try:
            self._finish(self._material.study_id, self._material.finished)
        except ChildProcessError as error:
            return Outcome(End.BROKE, str(error))
        except OSError as error:
            return Outcome(End.STUCK, explain_disk(error))
        except PenstockError as error:
            return Outcome(End.FAILED, str(error))
        return Outcome(End.MADE)

    def kill(self):
        pass


class World:
    """A coordinator that can be killed and opened again, and its gates."""

    def __init__(self, folder, url=None):
        self.folder = folder
        self.url = url or sqlite_url(folder)
        self.clock = Clock()
        self.finished = []
        self.finish = lambda study_id, moment: self.finished.append(study_id)
        self.making = []
        self.gates = {name: Gate(name) for name in ("a", "b")}
        self.network = Network(dict(self.gates), folder)
        store = Store.create(self.url)
        for gate in self.gates.values():
            store.sites.add(gate.join(), stamp(START))
        store.close()
        self.open()

    def open(self, store=Store):
        self.network.came.clear()
        self.c = Coordinator(
            store(self.url),
            Folder(self.folder),
            clock=self.clock,
        )
        self.pump = Pump(self.c, self.network)
        self.builder = Builder(self.c, launch=lambda *given: Making(self, *given))
        return self.c

    def submit(self, **changes):
        return self.c.submit(sign_study(replace(STUDY, **changes), ANALYST))

    def run(self, pumps=20, seconds=2.0):
        for _ in range(pumps):
            self.pump.turn()
            self.builder.turn()
            self.builder.turn()
            self.clock.wait(seconds)

    def state(self, study_id):
        return self.c.store.studies.find(study_id).state

    def site(self, study_id, name="a"):
        return next(s for s in self.c.status(study_id)["sites"] if s["site"] == name)

    def states(self, study_id):
        return {s["site"]: s["state"] for s in self.c.status(study_id)["sites"]}

    def waiting(self):
        """Messages of any time."""
        return self.c.store.mailbox.due("9")


def signed_bytes(**changes):
    return sign_study(replace(STUDY, **changes), ANALYST).to_bytes()

"""A study's life at the coordinator, over a scripted network and an injected clock."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy as sa

from penstock.base.errors import (
    CoordinatorError,
    GateUnavailable,
    InvalidInput,
    PenstockError,
    SignatureError,
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
from penstock.wire.messages import PIECE_BYTES, SiteState, StudyState
from penstock.wire.signatures import generate_key, public_hex
from penstock.wire.signed import read_signed_cancel, read_signed_study, sign_cancel, sign_study
from penstock_server.access.access_chain import verify_chain
from penstock_server.install.enrolment import read_join
from penstock_server.intake import uploads
from penstock_server.intake.texts import TEXT_LIMIT
from penstock_server.operate.builder import Builder
from penstock_server.results.assembly import End, Outcome, explain_disk
from penstock_server.results.material import Material
from penstock_server.store.database import sqlite_url
from penstock_server.store.folder import Folder
from penstock_server.store.mailbox import Message, Reply
from penstock_server.store.sql_tables import metadata
from penstock_server.store.store import Store
from penstock_server.studies.coordinator import Coordinator, Limits
from penstock_server.studies.site_parts import Parts
from penstock_server.transport import packets
from penstock_server.transport.packets import add_piece
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


@pytest.fixture(autouse=True)
def fast_pld(monkeypatch):
    monkeypatch.setattr(uploads, "epsilon_pld", cache(accountant.epsilon_pld))


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
        return Reply(True, request_id=message.body.decode(), state="delivered", manifest=manifest)

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
                manifest=reply.manifest, size=len(data), offset=at, table=data[at : at + self.piece]
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


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.c.store.close()


# -- submitting --------------------------------------------------------------------------------


def test_the_same_study_again_changes_nothing(world):
    first = world.submit()
    before = world.c.status(first), world.waiting()
    world.clock.wait(100)
    assert world.submit() == first
    assert (world.c.status(first), world.waiting()) == before


def test_the_same_study_again_after_its_end_changes_nothing(world):
    study = world.submit()
    world.run()
    assert world.submit() == study
    assert world.state(study) is StudyState.FINISHED
    assert world.waiting() == []


def signed_bytes(**changes):
    return sign_study(replace(STUDY, **changes), ANALYST).to_bytes()


WIDER = Schema(columns=(replace(SCHEMA.columns[0], upper=120.0),))
BAD = {
    "unknown site": (signed_bytes(sites=("a", "c")), CoordinatorError, "not enrolled"),
    "other federation": (signed_bytes(federation="other"), CoordinatorError, "federation"),
    "schema not carried": (signed_bytes(schema=WIDER), CoordinatorError, "schema"),
    "expired": (signed_bytes(expires="2026-11-21T00:00:00Z"), CoordinatorError, "expired"),
    "wire version": (signed_bytes(wire="2.0"), CoordinatorError, "wire"),
    "unsigned": (b'{"study":{}}', SignatureError, "not signed"),
    "tampered": (signed_bytes().replace(b"A trial", b"A trick"), SignatureError, "signature"),
    "not JSON": (b"\xff", InvalidInput, "signed study"),
    "too large": (b" " * 2_000_000, InvalidInput, "signed study"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_study_that_cannot_be_asked_is_refused_and_leaves_nothing(world, case):
    data, error, said = BAD[case]
    with pytest.raises(error, match=said):
        world.c.submit(read_signed_study(data))
    assert world.c.store.studies.all() == []
    assert world.waiting() == []


# -- the whole life ----------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def any_world(request, tmp_path):
    url = None
    if request.param == "postgresql":
        url = os.environ.get("PENSTOCK_TEST_POSTGRES")
        if not url:
            pytest.skip("PENSTOCK_TEST_POSTGRES holds no URL of an empty database")
        engine = sa.create_engine(url)
        metadata.drop_all(engine)
        engine.dispose()
    made = World(tmp_path, url)
    yield made
    made.c.store.close()


def test_a_study_is_asked_polled_collected_and_finished_once(any_world):
    study = any_world.submit()
    any_world.gates["a"].polls = 4
    any_world.run()
    assert any_world.state(study) is StudyState.FINISHED
    assert any_world.states(study) == {"a": "delivered", "b": "delivered"}
    assert any_world.finished == [study]
    asked = [verb for site, verb in any_world.network.calls if site == "a"]
    assert asked == ["submit", "poll", "poll", "poll", "poll", "collect"]
    assert any_world.waiting() == []


def test_progress_is_shown(world):
    world.gates["a"].polls = 5
    study = world.submit()
    world.run(pumps=2)
    shown = world.site(study)
    assert (shown["state"], shown["step"], shown["steps"]) == ("running", 1, 12)


@pytest.mark.parametrize(("quorum", "end"), [(1, "finished"), (2, "failed")])
def test_the_quorum_decides(world, quorum, end):
    world.network.sites["b"] = [Reply(False, "budget", "too much")]
    study = world.submit(quorum=quorum)
    world.run()
    status = world.c.status(study)
    assert status["state"] == end
    assert ("quorum" in status["note"]) == (end == "failed")
    assert world.finished == ([study] if end == "finished" else [])


def test_the_deadline_says_who_was_silent_and_who_was_never_reached(world):
    world.gates["a"].polls = 10**9
    world.network.sites["b"] = [UNAVAILABLE]
    study = world.submit()
    world.run(pumps=60, seconds=60)
    assert world.state(study) is StudyState.OPEN
    world.run(pumps=1)
    a, b = world.site(study, "a"), world.site(study, "b")
    assert (a["state"], a["code"]) == ("timed-out", "no-answer")
    assert (b["state"], b["code"]) == ("timed-out", "unreachable")
    assert world.state(study) is StudyState.FAILED
    assert world.waiting() == []


def test_a_gate_that_only_ever_failed_was_reached(world):
    world.network.sites["a"] = [Reply(False, "internal")]
    study = world.submit()
    world.clock.wait(10)
    world.run(pumps=1)
    assert world.site(study)["code"] == "internal"
    world.clock.wait(3600)
    world.run(pumps=1)
    assert world.site(study)["code"] == "no-answer"


def test_a_refusals_code_and_detail_reach_the_analyst(world):
    world.network.sites["b"] = [Reply(False, "budget", "ε = 0.5 is left")]
    study = world.submit()
    world.run()
    shown = world.site(study, "b")
    assert (shown["state"], shown["code"]) == ("refused", "budget")
    assert shown["meaning"] == "ε = 0.5 is left"
    assert world.states(study)["a"] == "delivered"


def test_a_stewards_no_reaches_the_analyst(world):
    gate = world.gates["a"]
    waiting = replace(gate.job("r", "awaiting-approval"))
    world.network.sites["a"] = [
        waiting,
        waiting,
        replace(waiting, state="rejected", code="rejected"),
    ]
    study = world.submit()
    world.run(pumps=2)
    assert world.site(study)["state"] == "awaiting-approval"
    world.run()
    shown = world.site(study)
    assert (shown["state"], shown["code"]) == ("refused", "rejected")
    assert "steward" in shown["meaning"]


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_job_that_ended_without_a_release_ends_the_sites_part(world, state):
    world.network.sites["a"] = [Reply(True, state=state, code="interrupted", request_id="r")]
    study = world.submit()
    world.run()
    assert (world.site(study)["state"], world.site(study)["code"]) == (state, "interrupted")


@pytest.mark.parametrize("state", ["", "nonsense", "DELIVERED", "invited"])
def test_a_state_that_does_not_exist_is_a_failure(world, state):
    world.network.sites["a"] = [Reply(True, state=state, request_id="r")]
    study = world.submit()
    world.run()
    assert world.states(study) == {"a": "failed", "b": "delivered"}


# -- trouble that passes -----------------------------------------------------------------------


def test_a_gate_that_is_away_is_asked_ever_more_rarely_and_then_delivers(world):
    asked = []

    def away(message, table):
        asked.append((world.clock.now - START).total_seconds())
        return UNAVAILABLE

    world.network.sites["b"] = away
    study = world.submit(deadline_hours=2.0)
    world.run(pumps=600, seconds=1)
    gaps = np.diff(asked)
    assert gaps[:7].tolist() == [1, 2, 4, 8, 16, 32, 60]
    assert set(gaps[7:]) == {60}
    world.network.sites["b"] = world.gates["b"]
    world.run(pumps=70, seconds=1)
    assert world.states(study) == {"a": "delivered", "b": "delivered"}


@pytest.mark.parametrize("attempts", [1_000, 100_000])
def test_a_gate_that_was_away_for_weeks_does_not_stop_the_coordinator(world, attempts):
    world.network.sites["b"] = [UNAVAILABLE]
    world.submit()
    for message in world.waiting():
        world.c.store.mailbox.postpone(replace(message, attempts=attempts), stamp(START))
    world.pump.turn()
    assert [m.attempts for m in world.waiting() if m.site == "b"] == [attempts + 2]


@pytest.mark.parametrize("code", ["internal", "busy", "ledger", "not-yet-valid"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_gates_own_trouble_is_waited_for(world, code, at):
    """Whichever call it hits: submit, poll or collect."""
    calls = []

    def stumbles(message, table):
        calls.append(message.verb)
        return Reply(False, code) if len(calls) == at + 1 else world.gates["a"](message, table)

    world.network.sites["a"] = stumbles
    study = world.submit()
    world.run(pumps=20)
    assert world.states(study)["a"] == "delivered"
    assert calls[at] == calls[at + 1] == ("submit", "poll", "collect")[at]
    assert world.site(study)["code"] == ""


def test_a_full_disk_postpones_a_collection(world, monkeypatch):
    full = [OSError(28, "No space left on device")]

    def write(*args):
        if full:
            raise full.pop()
        return add_piece(*args)

    monkeypatch.setattr(packets, "add_piece", write)
    study = world.submit()
    world.run()
    assert world.states(study) == {"a": "delivered", "b": "delivered"}


def test_a_table_that_vanished_is_collected_again(world, monkeypatch):
    lost = []

    def write(table, *args):
        whole = add_piece(table, *args)
        if whole and table.stem == "a" and not lost:
            lost.append(table)
            table.unlink()
        return whole

    monkeypatch.setattr(packets, "add_piece", write)
    study = world.submit()
    world.run()
    assert world.states(study)["a"] == "delivered"
    assert [verb for site, verb in world.network.calls if site == "a"].count("collect") == 2


def test_a_table_in_pieces_goes_on_where_it_stopped(world):
    """A lost answer costs a piece, and nothing else."""
    world.network.piece = 100
    gate, offsets = world.gates["a"], []

    def loses(message, table):
        reply = gate(message, table)
        if message.verb == "collect":
            offsets.append(1)
            if len(offsets) in (2, 5):
                raise UNAVAILABLE
        return reply

    world.network.sites["a"] = loses
    study = world.submit()
    world.run(pumps=60)
    assert world.states(study)["a"] == "delivered"
    sent = [
        c.collect.offset
        for site, batch in world.network.packets
        for c in batch.calls
        if site == "a" and c.WhichOneof("verb") == "collect"
    ]
    assert len(sent) > 8
    assert sent == sorted(sent)
    assert len(set(sent)) == len(sent) - 2


def test_the_tables_of_several_studies_share_an_answer(world):
    """One packet asks for as many tables as there are, and for no more bytes than one piece."""
    studies = [world.submit(name=f"trial-{i}") for i in range(5)]
    world.run()
    assert {world.states(study)["a"] for study in studies} == {"delivered"}
    asked = [
        [c.collect.length for c in batch.calls if c.WhichOneof("verb") == "collect"]
        for site, batch in world.network.packets
        if site == "a"
    ]
    lengths = max(asked, key=len)
    assert len(lengths) == len(studies)
    assert 0 < sum(lengths) <= PIECE_BYTES


def test_pieces_that_came_before_a_crash_are_not_trusted(world):
    table = world.c.folder.table("s", "a")
    table.parent.mkdir(parents=True)
    packets.partial_path(table).write_bytes(b"half")
    packets.drop_pieces(world.c.folder)
    assert packets.count_received(table) == 0


# -- replies that come late or twice -----------------------------------------------------------


@pytest.mark.parametrize("end", ["deadline", "cancelled"])
@pytest.mark.parametrize("verb", ["poll", "collect"])
def test_a_reply_after_the_end_changes_nothing(world, end, verb):
    study = world.submit()
    late = []

    def slow(message, table):
        if message.verb == verb and not late:
            late.append(message)
            if end == "deadline":
                world.clock.wait(4000)
                world.c.closing.close_due()
            else:
                # Another process, while the call is under way.
                other = Coordinator(Store(world.url), Folder(world.folder), clock=world.clock)
                other.cancel(sign_cancel(study, ANALYST))
                other.store.close()
        return world.gates["a"](message, table)

    world.network.sites["a"] = slow
    world.run()
    assert late
    ended = ("timed-out", "no-answer") if end == "deadline" else ("cancelled", "cancelled")
    assert (world.site(study)["state"], world.site(study)["code"]) == ended
    assert all(p.manifest is None for p in world.c.store.studies.parts(study) if p.site == "a")
    assert world.waiting() == []


def test_a_reply_that_waits_in_the_inbox_at_the_end_changes_nothing(world):
    study = world.submit()
    (message,) = [m for m in world.waiting() if m.site == "a"]
    world.c.store.mailbox.receive([(message, Reply(True, state="running", request_id="r"))])
    world.c.cancel(sign_cancel(study, ANALYST))
    world.c.progress.handle_inbox()
    assert world.states(study) == {"a": "cancelled", "b": "cancelled"}
    assert {m.verb for m in world.waiting()} == {"cancel"}


def test_a_doubled_reply_is_dropped(world):
    world.submit()
    (message,) = [m for m in world.waiting() if m.site == "a"]
    reply = Reply(True, state="running", request_id="r")
    world.c.store.mailbox.receive([(message, reply)])
    world.c.store.mailbox.receive([(message, reply)])
    world.c.progress.handle_inbox()
    world.c.store.mailbox.receive([(message, reply)])
    world.c.progress.handle_inbox()
    assert [m.verb for m in world.waiting() if m.site == "a"] == ["poll"]


# -- cancelling --------------------------------------------------------------------------------


def test_the_signer_cancels_and_the_gates_are_told(world):
    world.gates["a"].polls = world.gates["b"].polls = 10**9
    study = world.submit()
    world.run(pumps=3)
    world.c.cancel(sign_cancel(study, ANALYST))
    assert world.state(study) is StudyState.CANCELLED
    world.run(pumps=3)
    assert [g.cancelled for g in world.gates.values()] == [[study], [study]]
    assert world.states(study) == {"a": "cancelled", "b": "cancelled"}
    assert world.waiting() == []


def test_a_cancellation_reaches_a_gate_in_trouble_later(world):
    study = world.submit()
    world.c.cancel(sign_cancel(study, ANALYST))
    world.network.sites["a"] = [UNAVAILABLE, Reply(False, "busy"), world.gates["a"]]
    world.run(pumps=10)
    assert world.gates["a"].cancelled == [study]


@pytest.mark.parametrize("case", ["another signer", "a name", "a prefix", "nothing", "unknown"])
def test_only_the_signer_of_exactly_this_study_cancels(world, case):
    study = world.submit()
    named = {"another signer": study, "a name": "trial", "a prefix": study[:12], "nothing": "",
             "unknown": "0" * 64}[case]  # fmt: skip
    key = STRANGER if case == "another signer" else ANALYST
    with pytest.raises(CoordinatorError):
        world.c.cancel(sign_cancel(named, key))
    assert world.state(study) is StudyState.OPEN
    assert {m.verb for m in world.waiting()} == {"submit"}


def test_a_study_that_ended_cannot_be_cancelled(world):
    study = world.submit()
    world.run()
    with pytest.raises(CoordinatorError, match="ended already"):
        world.c.cancel(sign_cancel(study, ANALYST))
    assert world.state(study) is StudyState.FINISHED


def test_a_cancellation_while_results_are_made_stands(world):
    study = world.submit()
    other = Coordinator(Store(world.url), Folder(world.folder), clock=world.clock)
    world.finish = lambda *_: other.cancel(sign_cancel(study, ANALYST))
    world.run()
    assert world.state(study) is StudyState.CANCELLED
    other.store.close()


# -- closing -----------------------------------------------------------------------------------


def test_a_study_waited_for_a_slow_site_though_its_quorum_was_there(world):
    world.gates["b"].polls = 10**9
    study = world.submit()
    world.run(pumps=5)
    assert world.states(study) == {"a": "delivered", "b": "running"}
    world.c.close(sign_cancel(study, ANALYST))
    assert world.state(study) is StudyState.POOLING
    world.run(pumps=5)
    assert world.state(study) is StudyState.FINISHED
    assert world.finished == [study]
    late = world.site(study, "b")
    # It had begun, and been charged: it is not told to stop, and what it makes stays there.
    assert (late["state"], late["code"]) == ("timed-out", "late-run")
    assert "stays charged" in late["meaning"]
    assert world.gates["b"].cancelled == []
    assert world.waiting() == []
    world.c.close(sign_cancel(study, ANALYST))  # the same again changes nothing
    assert [r["kind"] for r in verify_chain(world.c.access.rows())].count("close") == 1


@pytest.mark.parametrize("standing", ["invited", "awaiting-approval", "queued"])
def test_a_site_that_has_not_begun_is_told_that_a_study_was_closed(world, standing):
    found = [Reply(True, state=standing, request_id="r")]
    world.network.sites["b"] = [UNAVAILABLE] if standing == "invited" else found
    study = world.submit()
    world.run(pumps=5)
    world.network.sites["b"] = world.gates["b"]
    world.c.close(sign_cancel(study, ANALYST))
    world.run(pumps=20)
    assert world.state(study) is StudyState.FINISHED
    late = world.site(study, "b")
    assert (late["state"], late["code"]) == ("timed-out", "late")
    assert "nothing is charged" in late["meaning"]
    assert (world.gates["b"].cancelled, world.gates["b"].draws) == ([study], 0)
    assert world.waiting() == []


@pytest.mark.parametrize("verb", ["poll", "collect"])
def test_what_comes_after_a_study_was_closed_changes_nothing(world, verb):
    study = world.submit()
    late = []

    def slow(message, table):
        answer = world.gates["b"](message, table)
        if message.verb == verb and not late:
            while world.states(study)["a"] != "delivered":
                return Reply(False, "busy")
            late.append(message)
            # Another process, while the call is under way.
            other = Coordinator(Store(world.url), Folder(world.folder), clock=world.clock)
            other.close(sign_cancel(study, ANALYST))
            other.store.close()
        return answer

    world.network.sites["b"] = slow
    world.run()
    assert late
    assert world.state(study) is StudyState.FINISHED
    assert world.states(study) == {"a": "delivered", "b": "timed-out"}
    assert world.site(study, "b")["code"] == "late-run"
    assert all(p.manifest is None for p in world.c.store.studies.parts(study) if p.site == "b")
    assert world.waiting() == []


@pytest.mark.parametrize("case", ["another signer", "a name", "unknown", "no quorum", "cancelled"])
def test_a_study_that_cannot_be_closed_goes_on_as_it_was(world, case):
    world.gates["b"].polls = 10**9
    study = world.submit(quorum=2 if case == "no quorum" else 1)
    world.run(pumps=5)
    if case == "cancelled":
        world.c.cancel(sign_cancel(study, ANALYST))
    before = (world.c.status(study), world.waiting())
    named = {"a name": "trial", "unknown": "0" * 64}.get(case, study)
    key = STRANGER if case == "another signer" else ANALYST
    words = {"no quorum": "quorum of 2", "cancelled": "ended already"}.get(case, "study")
    with pytest.raises(CoordinatorError, match=words):
        world.c.close(sign_cancel(named, key))
    assert (world.c.status(study), world.waiting()) == before


def test_a_kill_while_a_study_is_closed_closes_it_whole_or_not_at_all(world, monkeypatch):
    world.gates["b"].polls = 10**9
    study = world.submit()
    world.run(pumps=5)
    before = (world.c.status(study), world.waiting())

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Parts, "turn", killed)
        with pytest.raises(Killed):
            world.c.close(sign_cancel(study, ANALYST))
    assert (world.c.status(study), world.waiting()) == before
    world.c.close(sign_cancel(study, ANALYST))
    world.run(pumps=5)
    assert world.state(study) is StudyState.FINISHED


# -- crashes -----------------------------------------------------------------------------------


class CrashingStore(Store):
    """Killed at the n-th writing transaction, before it or just after its commit."""

    countdown = 10**9
    after = False

    def __init__(self, url):
        super().__init__(url)
        self._begin, self.database.begin = self.database.begin, self._crash

    def _crash(self):
        outer = self._begin()
        type(self).countdown -= 1
        dies = type(self).countdown == 0
        if dies and not self.after:
            raise Killed
        return self._dying(outer) if dies else outer

    def _dying(self, outer):
        class Dying:
            def __enter__(_):
                return outer.__enter__()

            def __exit__(_, *error):
                outer.__exit__(*error)
                raise Killed

        return Dying()


def check_one_draw_each(world, study):
    assert world.state(study) is StudyState.FINISHED
    assert world.states(study) == {"a": "delivered", "b": "delivered"}
    for name, gate in world.gates.items():
        ((data, manifest),) = [job["release"] for job in gate.jobs.values()]
        (part,) = [p for p in world.c.store.studies.parts(study) if p.site == name]
        assert gate.draws == 1
        assert part.manifest == manifest
        assert world.c.folder.table(study, name).read_bytes() == data
    assert set(world.finished) == {study}
    assert world.waiting() == []
    assert world.c.store.mailbox.inbox() == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_transaction_loses_nothing_and_draws_once(tmp_path, monkeypatch, after):
    monkeypatch.setattr(CrashingStore, "after", after)
    killed = 0
    for point in range(1, 100):
        folder = tmp_path / str(point)
        folder.mkdir()
        world = World(folder)
        study = world.submit()
        world.c.store.close()
        world.open(CrashingStore)
        monkeypatch.setattr(CrashingStore, "countdown", point)
        try:
            world.run()
        except Killed:
            killed += 1
        else:
            world.c.store.close()
            break
        world.c.store.close()
        world.open()
        world.run()
        check_one_draw_each(world, study)
        world.c.store.close()
    # Two sites' submit, poll and collect, each received and handled, and what each said of itself;
    # the last answer, the lease of the results, and the end.
    assert killed == 17


@pytest.mark.parametrize("verb", ["submit", "poll", "collect"])
@pytest.mark.parametrize("effect", [False, True])
def test_a_kill_during_a_call_loses_nothing_and_draws_once(world, verb, effect):
    dead = []

    def dying(message, table):
        if message.verb == verb and not dead:
            dead.append(1)
            if effect:
                world.gates["a"](message, table)
            raise Killed
        return world.gates["a"](message, table)

    world.network.sites["a"] = dying
    study = world.submit()
    with pytest.raises(Killed):
        world.run()
    world.c.store.close()
    world.open()
    world.run()
    check_one_draw_each(world, study)


def test_a_kill_while_results_are_made_makes_them_again(world):
    def dying(study_id, moment):
        world.finished.append(study_id)
        if len(world.finished) == 1:
            raise Killed

    world.finish = dying
    study = world.submit()
    with pytest.raises(Killed):
        world.run()
    world.c.store.close()
    world.open()
    world.run()
    assert world.finished == [study, study]
    check_one_draw_each(world, study)


# -- uploads and results -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{"persons": PERSONS + 1}, {"epsilon_autodp": 0.1}, {"table_bytes": 3}, {"request_id": "x"},
     {"ledger_seq": 10**30}, {"epsilon_pld": 10**400}, {"software": {"x": "y" * 999}}],
)  # fmt: skip
def test_a_bad_upload_fails_its_site_and_the_others_go_on(world, changes):
    world.gates["a"].changes = changes
    study = world.submit()
    world.run()
    shown = world.site(study)
    assert (shown["state"], shown["code"]) == ("failed", "upload-rejected")
    assert len(shown["meaning"]) > 10
    assert not world.c.folder.table(study, "a").exists()
    assert world.states(study)["b"] == "delivered"
    assert world.state(study) is StudyState.FINISHED


def test_a_gate_without_a_manifest_fails(world):
    gate = world.gates["a"]
    world.network.sites["a"] = lambda *call: replace(gate(*call), manifest=None)
    study = world.submit()
    world.run()
    assert world.site(study)["code"] == "upload-rejected"


def test_a_forked_ledger_is_seen_in_the_next_study(world):
    world.submit()
    world.run()
    gate = world.gates["a"]
    gate.seq = 0  # a backup was restored: the position comes again, with another record
    gate.head = "f" * 64
    study = world.submit(name="next")
    world.run()
    assert "forked" in world.site(study)["meaning"]


def test_a_ledger_that_went_back_is_seen_in_the_next_study(world):
    world.gates["a"].seq = 10
    world.submit()
    world.run()
    world.gates["a"].seq = 3
    study = world.submit(name="next")
    world.run()
    assert "went back" in world.site(study)["meaning"]
    assert world.states(study)["b"] == "delivered"


def test_studies_that_overlap_may_deliver_in_any_order(world):
    gate = world.gates["a"]
    held = []

    def holds(message, table):
        if message.study_id == first and message.verb == "poll" and not held:
            return gate.job(message.body.decode(), "running")
        return gate(message, table)

    world.network.sites["a"] = holds
    first = world.submit()
    world.run(pumps=2)
    second = world.submit(name="next")
    world.run()
    assert world.states(second)["a"] == "delivered"
    held.append(1)
    world.run()
    assert world.states(first)["a"] == "delivered"


def test_results_that_cannot_be_made_end_that_study_only(world):
    bad = world.submit()

    def finish(study_id, moment):
        if study_id == bad:
            raise PenstockError("no estimate at all")
        world.finished.append(study_id)

    world.finish = finish
    good = world.submit(name="good")
    world.run()
    assert world.state(bad) is StudyState.FAILED
    note = world.c.status(bad)["note"]
    assert "no estimate at all" in note
    assert f"penstock server pool {bad[:12]}" in note
    assert world.finished == [good]
    assert world.state(good) is StudyState.FINISHED


def test_a_full_disk_does_not_fail_a_study(world):
    errors = [OSError(28, "No space left on device")]

    def finish(study_id, moment):
        if errors:
            raise errors.pop()

    world.finish = finish
    study = world.submit()
    world.run(pumps=8)
    assert world.state(study) is StudyState.POOLING
    assert "disk is full" in world.c.status(study)["note"]
    world.run()
    assert world.state(study) is StudyState.FINISHED
    assert world.c.status(study)["note"] == ""


# -- results -----------------------------------------------------------------------------------


class Slow:
    """Results that take for ever, until ``outcome`` is set."""

    def __init__(self):
        self.pooled, self.outcome, self.killed = 0, None, 0

    def poll(self):
        return self.outcome

    def kill(self):
        self.killed += 1


def slowly(world):
    """Let the next results be made slowly; what makes them."""
    made = Slow()

    def launch(material, folder):
        (folder / "report.json").write_text("{}")
        return made

    world.builder = Builder(world.c, launch=launch)
    return made


def test_other_studies_go_on_while_one_studys_results_are_made(world):
    """They stayed invited for minutes, and the one that was made said "open"."""
    made = slowly(world)
    first = world.submit()
    world.run(pumps=8)
    second = world.submit(name="second")
    world.run(pumps=8)
    assert world.states(second) == {"a": "delivered", "b": "delivered"}
    assert {world.state(s) for s in (first, second)} == {StudyState.POOLING}
    made.outcome = Outcome(End.MADE)
    world.run(pumps=4)
    assert world.state(first) is StudyState.FINISHED


def test_a_status_says_how_many_sites_are_pooled(world):
    made = slowly(world)
    study = world.submit()
    world.run(pumps=8)
    assert world.c.status(study)["pooling"] == {"sites": 2, "done": 0}
    made.pooled = 1
    world.run(pumps=1)
    (shown,) = world.c.studies()
    assert (shown["state"], shown["pooling"]) == ("pooling", {"sites": 2, "done": 1})
    made.outcome = Outcome(End.MADE)
    world.run(pumps=2)
    assert world.c.status(study)["pooling"] is None


def test_a_cancellation_ends_a_study_that_is_pooled_and_what_makes_its_results(world):
    made = slowly(world)
    study = world.submit()
    world.run(pumps=8)
    world.c.cancel(sign_cancel(study, ANALYST))
    assert world.state(study) is StudyState.CANCELLED
    made.outcome = None
    world.clock.wait(10)
    world.builder._try.renewed = float("-inf")
    world.builder.turn()
    assert made.killed == 1
    assert world.state(study) is StudyState.CANCELLED
    assert list((world.folder / "studies").iterdir()) == []
    assert world.c.status(study)["pooling"] is None


def test_a_study_that_is_pooled_counts_among_those_that_are_open(world):
    slowly(world)
    world.c._limits = Limits(each=20, all=1)
    world.submit()
    world.run(pumps=8)
    with pytest.raises(CoordinatorError, match="too many studies"):
        world.submit(name="second")


def breaking(world, times):
    left = [ChildProcessError("memory ran out")] * times

    def finish(study_id, moment):
        if left:
            raise left.pop()
        world.finished.append(study_id)

    world.finish = finish


def test_two_crashes_are_tried_again_and_told_of(world):
    breaking(world, 2)
    study = world.submit()
    world.run(pumps=8)
    note = world.c.status(study)["note"]
    assert "memory ran out" in note
    assert "of 3 tries" in note
    world.run(pumps=40)
    assert world.state(study) is StudyState.FINISHED
    assert world.finished == [study]


def test_three_crashes_fail_a_study_and_its_deliveries_can_be_pooled_again(world):
    breaking(world, 3)
    study = world.submit()
    world.run(pumps=60)
    assert world.state(study) is StudyState.FAILED
    note = world.c.status(study)["note"]
    assert "3 tries broke off, the last because memory ran out" in note
    assert f"penstock server pool {study[:12]}" in note
    calls = list(world.network.calls)
    world.c.pool_again(study[:12])
    assert world.c.status(study)["state"] == "pooling"
    assert world.c.status(study)["note"] == ""
    world.run(pumps=4)
    assert world.state(study) is StudyState.FINISHED
    assert world.network.calls == calls  # no site was asked for anything
    assert [r["kind"] for r in verify_chain(world.c.access.rows())] == ["open", "submit", "pool"]


@pytest.mark.parametrize("case", ["open", "pooling", "finished", "cancelled", "no quorum"])
def test_only_a_study_whose_results_could_not_be_made_is_pooled_again(world, case):
    if case == "no quorum":
        world.network.sites["a"] = [Reply(False, "budget")]
    study = world.submit(quorum=2)
    if case == "pooling":
        slowly(world)
    if case == "cancelled":
        world.c.cancel(sign_cancel(study, ANALYST))
    if case != "open":
        world.run()
    before = world.c.status(study)
    assert before["state"] == {"no quorum": "failed"}.get(case, case)
    with pytest.raises(CoordinatorError, match=r"pooled again|nothing to pool"):
        world.c.pool_again(study)
    assert world.c.status(study) == before


def test_a_lease_that_ran_out_goes_to_another_and_the_first_can_end_nothing(world):
    made = slowly(world)
    study = world.submit()
    world.run(pumps=8)
    first = world.builder._try
    world.clock.wait(100)  # the first is held up: it renews nothing
    other = Coordinator(Store(world.url), Folder(world.folder), clock=world.clock)
    second = Builder(other, launch=lambda *given: Making(world, *given))
    second._sweep = lambda *_: None  # else what the first has made is gone already
    second.turn()
    assert second._try.lease.crashes == 1
    assert "was killed" in world.c.status(study)["note"]
    made.outcome = Outcome(End.MADE)
    world.builder.turn()
    assert world.state(study) is StudyState.POOLING
    assert not world.c.folder.results(study).exists()
    assert not first.folder.exists()
    second.turn()
    assert world.state(study) is StudyState.FINISHED
    assert (world.c.folder.results(study) / "report.json").exists()
    other.store.close()


@pytest.mark.parametrize("way", ["crash", "fail", "give_back"])
def test_what_the_holder_of_a_lost_lease_says_changes_nothing(world, way):
    slowly(world)
    study = world.submit()
    world.run(pumps=8)
    lost = world.builder._try.lease
    world.clock.wait(100)
    held = world.c.leases.claim()
    before = world.c.leases.read_pooling(study)
    ways = {"crash": ("why",), "fail": ("why",), "give_back": ()}
    getattr(world.c.leases, way)(lost, *ways[way])
    assert not world.c.leases.renew(lost, 1)
    assert (world.state(study), world.c.leases.read_pooling(study)) == (StudyState.POOLING, before)
    assert world.c.leases.renew(held, 1)


def test_a_lease_that_ran_out_is_renewed_where_nobody_took_it(world):
    slowly(world)
    world.submit()
    world.run(pumps=8)
    world.clock.wait(10_000)
    assert world.c.leases.renew(world.builder._try.lease, 1)
    assert world.c.leases.claim() is None


def test_a_builder_that_is_stopped_gives_its_study_back_without_a_crash(world):
    made = slowly(world)
    study = world.submit()
    world.run(pumps=8)
    world.builder.close()
    assert made.killed
    assert list((world.folder / "studies").iterdir()) == []
    lease = world.c.leases.claim()
    assert (lease.study_id, lease.crashes) == (study, 0)


def test_what_a_killed_builder_left_behind_is_removed(world):
    slowly(world)
    world.submit()
    world.run(pumps=8)
    (left,) = (world.folder / "studies").iterdir()
    world.clock.wait(100)
    world.open()
    world.run(pumps=2)
    assert not left.exists()


def test_results_of_one_study_that_stand_still_are_broken_off(world):
    made = slowly(world)
    study = world.submit()
    world.run(pumps=8)
    world.builder._still = 0.0
    world.builder.turn()
    assert made.killed == 1
    assert "no site was pooled within" in world.c.status(study)["note"]


def test_a_store_that_is_full_at_the_very_end_loses_no_results(world, monkeypatch):
    """The folder is in its place, and the transaction that ends the study fails twice."""
    slowly(world).outcome = Outcome(End.MADE)
    study = world.submit()
    real, failures = world.c.store.studies.end, [1, 1]

    def fails(*given):
        if failures:
            failures.pop()
            raise CoordinatorError("the coordinator's store cannot be used", value="disk is full")
        real(*given)

    monkeypatch.setattr(world.c.store.studies, "end", fails)
    world.run()
    assert failures == []
    assert world.state(study) is StudyState.FINISHED
    assert (world.c.folder.results(study) / "report.json").exists()


# -- hostile texts -----------------------------------------------------------------------------

HOSTILE = ["x" * 100_000, "\x00", "\ud800", "\x1b[2J\r\n", "é\u202e" * 1000]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("kind", ["refusal", "end", "progress", "upload"])
def test_a_sites_text_is_short_and_printable(any_world, text, kind):
    replies = {
        "refusal": Reply(False, text, text, text, text, 2**32 - 1, -5),
        "end": Reply(True, text, text, text, "failed", 2**63, 2**63),
        "progress": Reply(True, text, text, text, "running", 2**63, 2**63),
        "upload": Reply(False, "upload-rejected", text),
    }
    any_world.network.sites["a"] = [replies[kind]]
    study = any_world.submit()
    any_world.run(pumps=6)
    shown = any_world.site(study)
    for value in shown.values():
        assert len(str(value)) <= 600
        assert str(value).isprintable()
    assert any_world.states(study)["b"] == "delivered"


def test_a_rejected_manifests_text_is_short_and_printable(world):
    world.gates["a"].changes = {"relation": "\x1b[2J" * 40_000, "request_id": "y"}
    study = world.submit()
    world.run()
    assert len(world.site(study)["meaning"]) <= TEXT_LIMIT
    assert world.site(study)["meaning"].isprintable()


# -- finding and enrolling ---------------------------------------------------------------------


def test_a_study_is_found_by_its_name_and_by_the_start_of_its_id(world):
    study = world.submit()
    assert world.c.find("trial").id == world.c.find(study[:8]).id == world.c.find(study).id == study


@pytest.mark.parametrize("prefix", ["", "nothing", "tria"])
def test_no_study_is_found_by_anything_else(world, prefix):
    world.submit()
    with pytest.raises(CoordinatorError, match="no such study"):
        world.c.find(prefix)


def test_two_studies_of_a_name_are_told_apart_by_id(world):
    first, second = world.submit(), world.submit(release=2)
    with pytest.raises(CoordinatorError, match="use the id"):
        world.c.find("trial")
    assert [world.c.find(i).id for i in (first, second)] == [first, second]


def test_a_name_that_looks_like_the_start_of_another_id_is_not_guessed(world):
    ids = [world.submit(release=r) for r in range(1, 30)]
    victim = next(i for i in ids if i[0] in "abcdef")
    world.submit(name=victim[:9])
    with pytest.raises(CoordinatorError, match="use the id"):
        world.c.find(victim[:9])
    assert world.c.find(victim).id == victim


def test_a_join_record_is_read(world):
    join = world.gates["a"].join()
    assert read_join(join) == join


@pytest.mark.parametrize(
    ("field_", "value", "error"),
    [
        ("site", "../../x", CoordinatorError),
        ("site", "", CoordinatorError),
        ("site", None, CoordinatorError),
        ("persons", 0, CoordinatorError),
        ("persons", -3, CoordinatorError),
        ("persons", True, CoordinatorError),
        ("persons", 10.0, CoordinatorError),
        ("persons", 10**30, CoordinatorError),
        ("gate_key", "00", SignatureError),
        ("gate_key", "not hex", SignatureError),
        ("dictionary", {}, InvalidInput),
        ("dictionary", [], CoordinatorError),
        ("node_key", 7, CoordinatorError),
    ],
)
def test_a_join_record_that_is_none_is_refused(world, field_, value, error):
    with pytest.raises(error):
        read_join(world.gates["a"].join(**{field_: value}))


def test_every_end_of_a_site_is_final():
    assert [s for s in SiteState if not s.final] == [
        SiteState.INVITED,
        SiteState.AWAITING,
        SiteState.RUNNING,
    ]

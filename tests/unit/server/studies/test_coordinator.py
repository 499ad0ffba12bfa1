"""What people ask of a coordinator: handing in, finding and cancelling a study."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.lifecycle import ANALYST, SCHEMA, STRANGER, UNAVAILABLE, signed_bytes

from penstock.base.errors import (
    CoordinatorError,
    InvalidInput,
    SignatureError,
)
from penstock.schema import Schema
from penstock.study.scope import GLOBAL, Scope
from penstock.wire.messages import StudyState
from penstock.wire.signed import read_signed_study, sign_cancel
from penstock_server.store.folder import Folder
from penstock_server.store.mailbox import Reply
from penstock_server.store.store import Store
from penstock_server.studies.coordinator import Coordinator

# -- submitting ---------------------------------------------------------------------------------


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


WIDER = Schema(columns=(replace(SCHEMA.columns[0], upper=120.0),))
JOINT = signed_bytes(
    wire="1.3",
    aggregation=Scope(GLOBAL, 0, 1, (("a", 20), ("b", 20)), (("a", "1" * 64), ("b", "2" * 64))),
)
BAD = {
    "unknown site": (signed_bytes(sites=("a", "c")), CoordinatorError, "not enrolled"),
    "other federation": (signed_bytes(federation="other"), CoordinatorError, "federation"),
    "schema not carried": (signed_bytes(schema=WIDER), CoordinatorError, "schema"),
    "expired": (signed_bytes(expires="2026-11-21T00:00:00Z"), CoordinatorError, "expired"),
    "wire version": (signed_bytes(wire="2.0"), CoordinatorError, "wire"),
    "newer wire version": (signed_bytes(wire="1.4"), CoordinatorError, "newer than this coord"),
    "another frame or key": (JOINT, CoordinatorError, "is not what a declared"),
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


# -- finding ------------------------------------------------------------------------------------


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


# -- cancelling ---------------------------------------------------------------------------------


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

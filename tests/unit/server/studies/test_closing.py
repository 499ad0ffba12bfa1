"""A study that is closed before every site has delivered."""

from __future__ import annotations

import pytest
from tests.support.lifecycle import ANALYST, STRANGER, UNAVAILABLE, Killed

from penstock.base.errors import (
    CoordinatorError,
)
from penstock.wire.messages import StudyState
from penstock.wire.signed import sign_cancel
from penstock_server.access.access_chain import verify_chain
from penstock_server.store.folder import Folder
from penstock_server.store.mailbox import Reply
from penstock_server.store.store import Store
from penstock_server.studies.coordinator import Coordinator
from penstock_server.studies.site_parts import Parts


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

"""A study's life at the coordinator: what replies, uploads and silence make of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.lifecycle import ANALYST, PERSONS, UNAVAILABLE

from penstock.base.errors import (
    PenstockError,
)
from penstock.wire.messages import SiteState, StudyState
from penstock.wire.signed import sign_cancel
from penstock_server.intake.texts import TEXT_LIMIT
from penstock_server.store.folder import Folder
from penstock_server.store.mailbox import Reply
from penstock_server.store.store import Store
from penstock_server.studies.coordinator import Coordinator

# -- the whole life -----------------------------------------------------------------------------


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


@pytest.mark.parametrize("own", ["ask for less", "ask for ε <= 2, or a larger allowance"])
def test_what_to_do_about_a_refusal_is_said_once(world, own):
    world.network.sites["b"] = [Reply(False, "study-budget", f"ε at most 3: {own}")]
    study = world.submit()
    world.run()
    shown = world.site(study, "b")
    told = ": ".join(filter(None, (shown["meaning"], shown["remedy"])))
    assert told == f"ε at most 3: {own}"


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


# -- replies that come late or twice ------------------------------------------------------------


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


# -- uploads and results ------------------------------------------------------------------------


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
    world.network.sites["a"] = lambda *call: replace(gate(*call), data=None)
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


# -- hostile texts ------------------------------------------------------------------------------

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


def test_every_end_of_a_site_is_final():
    assert [s for s in SiteState if not s.final] == [
        SiteState.INVITED,
        SiteState.AWAITING,
        SiteState.RUNNING,
    ]

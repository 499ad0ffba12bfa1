"""Results of one study are made while others go on: leases, crashes, and what is left behind."""

from __future__ import annotations

import pytest
from tests.support.lifecycle import ANALYST, Making

from penstock.base.errors import (
    CoordinatorError,
)
from penstock.wire.messages import StudyState
from penstock.wire.signed import sign_cancel
from penstock_server.access.access_chain import verify_chain
from penstock_server.operate.builder import Builder
from penstock_server.results.assembly import End, Outcome
from penstock_server.store.folder import Folder
from penstock_server.store.mailbox import Reply
from penstock_server.store.store import Store
from penstock_server.studies.coordinator import Coordinator, Limits


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

"""When a round shows is a function of public numbers: of its opening, the plan and a rehearsal.

Four sites in one process, each with its stores and its clock, which stands still but for the time
that the gate itself waits. So whatever a worker took, its vector is there at a slot and not before.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.conftest import TestSite, World
from tests.support.adding import make_gates, sign_joint

from penstock.aggregation.exchanges import SUM_BITS, SumTerms, find_transcript
from penstock.aggregation.roster import Roster
from penstock.base.errors import Refused
from penstock.base.times import read_stamp, stamp
from penstock.mechanisms import Scoring
from penstock.wire.messages import JobState
from penstock.wire.signed import SignedStudy
from penstock_client.gate.gate import Gate
from penstock_client.gate.stores import Stores
from penstock_client.gate.sum_rounds import RoundRunner
from penstock_client.masking.round_orders import RoundOrders
from penstock_client.site.site_settings import read_settings
from penstock_client.work.launcher import Worker
from penstock_server.sums.arrivals import Arrivals
from penstock_server.sums.collector import Collector

NAMES = ("east", "north", "south", "west")


class Stubborn(Worker):
    """Its process dies before it sees a row."""

    def run(self, rows: int, progress: object, name: str = "") -> Path | None:
        self.kill()
        return super().run(rows, progress, name)  # type: ignore[arg-type]


class Here:
    """One site's gate without its sockets."""

    def __init__(self, site: TestSite, work: type[Worker] = Worker) -> None:
        self.now = datetime.now(UTC) + timedelta(minutes=1)
        paths = site.paths
        self.stores = Stores(paths, read_settings(paths), clock=lambda: stamp(self.now))
        self.runner = RoundRunner(self.stores, work=work, pause=self.wait)
        self.runner.settlement.recover()
        self.gate = Gate(self.stores, self.runner)
        self.waited: list[float] = []

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += timedelta(seconds=seconds)

    def close(self) -> None:
        self.stores.database.close()
        self.stores.decisions.close()


class Four:
    """The sites, met, with a round that is about to be opened."""

    def __init__(self, world: World, signed: SignedStudy, work: type[Worker]) -> None:
        self.sites = [Here(site, work) for site in world.sites]
        self.request = [h.gate.submit(signed.to_bytes()).request_id for h in self.sites]
        self.signed, roster = signed, Roster.of(signed.study, signed.study_id)
        arrivals = Arrivals(roster)
        for name, here, request in zip(NAMES, self.sites, self.request, strict=True):
            assert arrivals.take_introduction(name, here.gate.steps.introduce(request))
        meeting = arrivals.write_meeting()
        terms = SumTerms(0, 3, SUM_BITS, find_transcript(signed.study_id, []))
        collector = Collector(roster, terms)
        for name, here, request in zip(NAMES, self.sites, self.request, strict=True):
            here.gate.steps.meet(request, meeting)
            assert collector.take_posting(name, here.gate.steps.advertise(request, 0))
        collector.open_round()
        self.openings = collector.next_messages()


@pytest.fixture
def make(world: World) -> Iterator[object]:
    made: list[Four] = []

    def build(work: type[Worker] = Worker) -> Four:
        make_gates(world, NAMES)
        made.append(Four(world, sign_joint(world, Scoring()), work))
        return made[-1]

    yield build
    for four in made:
        for here in four.sites:
            here.close()


def test_a_vector_is_there_at_its_slot_and_not_before(make: object) -> None:
    four: Four = make()  # type: ignore[operator]
    here, request = four.sites[0], four.request[0]
    opened = here.now
    assert here.gate.steps.open(request, 0, four.openings["east"], []).vector is None
    assert here.stores.job(request).state is JobState.QUEUED
    assert here.runner.turn() == 0.0
    found = here.gate.steps.open(request, 0, four.openings["east"], [])
    assert found.vector is not None
    assert here.stores.job(request).state is JobState.RUNNING
    order = RoundOrders(here.stores.database, four.signed.study_id).newest()
    assert order is not None
    assert read_stamp(order.opened) == opened
    passed = (here.now - opened).total_seconds()
    # Whole slots of the policy, from the rehearsal's public estimate; nothing of the worker's time.
    estimate = next(iter(here.runner._setup._rehearsed.values()))
    assert passed >= 1.5 * (estimate + 2.0) - 1e-6
    assert abs(passed / 0.1 - round(passed / 0.1)) < 1e-4
    assert passed < 1.5 * (estimate + 2.0) + 0.1 + 1e-6
    assert sum(here.waited) == pytest.approx(passed)


def test_an_end_that_rows_could_have_caused_shows_at_a_slot_too(make: object) -> None:
    four: Four = make(Stubborn)  # type: ignore[operator]
    here, request = four.sites[0], four.request[0]
    opened = here.now
    assert here.gate.steps.open(request, 0, four.openings["east"], []).vector is None
    here.runner.turn()
    assert here.stores.job(request).state is JobState.FAILED
    [charge] = here.stores.ledger.state().charges.values()
    assert charge.status == "burnt"
    passed = (here.now - opened).total_seconds()
    assert passed > 0
    assert abs(passed / 0.1 - round(passed / 0.1)) < 1e-4
    with pytest.raises(Refused) as error:
        here.gate.steps.open(request, 0, four.openings["east"], [])
    assert error.value.reason == "no-round"
    assert here.runner.turn() > 0


def test_no_step_is_answered_before_a_steward_said_yes(world: World) -> None:
    make_gates(world, NAMES)
    site = world.sites[0]
    text = site.paths.policy.read_text()
    site.paths.policy.write_text(text.replace('"automatic"', '"by-hand"'))
    here = Here(site)
    request = here.gate.submit(sign_joint(world, Scoring()).to_bytes()).request_id
    with pytest.raises(Refused) as error:
        here.gate.steps.introduce(request)
    assert error.value.reason == "no-round"
    here.gate.approve(request)
    assert here.gate.steps.introduce(request) == here.gate.steps.introduce(request)
    here.close()

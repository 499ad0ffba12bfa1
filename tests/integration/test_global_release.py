"""One release of many sites through a real coordinator: rounds in its store, gates over sockets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import World
from tests.support.adding import SHORT, make_gates, sign_joint
from tests.support.local import network

from penstock.aggregation.exchanges import read_sum
from penstock.base.errors import CoordinatorError
from penstock.mechanisms import Scoring, Settings
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.joint.rounds import conclude
from penstock.mechanisms.registry import MECHANISMS
from penstock.privacy.noise.sources import SeededNoise
from penstock.schema.encoding import Encoding
from penstock.study.charges import plan_study
from penstock.wire.messages import StudyState
from penstock.wire.signed import SignedStudy
from penstock_server.install.enrolment import enrol_site
from penstock_server.install.founding import make_coordinator, open_coordinator
from penstock_server.store.folder import Folder
from penstock_server.studies.coordinator import Coordinator
from penstock_server.transport.pump import Pump

pytestmark = pytest.mark.thorough

NAMES = ("east", "north", "south", "west")
LIMIT_SECONDS = 240


class Hub:
    """A coordinator over gates, that is begun anew as often as a test likes."""

    def __init__(self, world: World, root: Path, *, patience: int = 300) -> None:
        self.world, self.root = world, root
        make_coordinator(root)
        settings = Folder(root).settings
        settings.write_text(
            settings.read_text().replace('"round_patience": 300', f'"round_patience": {patience}')
        )
        self.begin()
        for site in world.sites:
            enrol_site(self.coordinator, json.loads(site.paths.join.read_text()))

    def begin(self) -> None:
        """As after a kill: nothing is remembered but what is in the store."""
        self.coordinator = open_coordinator(self.root)
        sockets = {site.name: site.paths.gate_socket for site in self.world.sites}
        self.pump = Pump(self.coordinator, network(sockets))

    def pump_until(self, reached: Callable[[Coordinator], bool]) -> None:
        end = time.monotonic() + LIMIT_SECONDS
        while not reached(self.coordinator):
            assert time.monotonic() < end, self.coordinator.studies()
            if not self.pump.turn():
                time.sleep(0.02)

    def count_sums(self, study_id: str) -> int:
        return len(self.coordinator.store.summing.sums(study_id))

    def pump_rounds(self, study_id: str, count: int) -> None:
        self.pump_until(lambda _: self.count_sums(study_id) >= count)

    def pump_to_end(self, study_id: str) -> None:
        def over(found: Coordinator) -> bool:
            row = found.store.studies.find(study_id)
            return row is not None and row.state is not StudyState.OPEN

        self.pump_until(over)

    def state(self, study_id: str) -> StudyState:
        row = self.coordinator.store.studies.find(study_id)
        assert row is not None
        return row.state

    def list_parts(self, study_id: str) -> dict[str, tuple[str, str]]:
        parts = self.coordinator.store.studies.parts(study_id)
        return {part.site: (str(part.state), part.code) for part in parts}


@pytest.fixture
def make(world: World, tmp_path: Path) -> Iterator[Callable[..., tuple[Hub, SignedStudy]]]:
    hubs: list[Hub] = []

    def build(mechanism: Settings = SHORT, **options: int) -> tuple[Hub, SignedStudy]:
        make_gates(world, NAMES)
        for site in world.sites:
            site.start()
        hubs.append(Hub(world, tmp_path / "hub", **options))
        return hubs[0], sign_joint(world, mechanism)

    yield build
    for hub in hubs:
        hub.coordinator.store.close()


def conclude_answer(signed: SignedStudy, hub: Hub) -> dict[str, object]:
    """The release that follows from the sums in the store."""
    planned = plan_study(signed.study, 1)
    assert isinstance(planned, JointPlan)
    sums = [read_sum(each.data) for each in hub.coordinator.store.summing.sums(signed.study_id)]
    assert len(sums) == planned.rounds
    mechanism = MECHANISMS.of(signed.study.mechanism)
    encoding = Encoding(planned.asked.schema)
    [part, *_] = conclude(mechanism, planned, encoding, sums, SeededNoise(1))
    return dict(part.columns)


def test_four_sites_make_one_release_though_the_coordinator_is_begun_anew_at_each_stage(
    make: Callable[..., tuple[Hub, SignedStudy]],
) -> None:
    hub, signed = make(Scoring())
    study_id = hub.coordinator.submit(signed)
    assert hub.coordinator.submit(signed) == study_id
    row = hub.coordinator.store.summing.find(study_id)
    assert row is not None
    seen = set()
    while hub.count_sums(study_id) < 2:
        stage = row.stage

        def turned(found: Coordinator, was: tuple[int, str] = (row.round, stage)) -> bool:
            now = found.store.summing.find(study_id)
            return now is not None and (now.round, now.stage) != was

        hub.pump_until(turned)
        row = hub.coordinator.store.summing.find(study_id)
        assert row is not None
        seen.add(row.stage)
        hub.coordinator.store.close()
        hub.begin()
    assert seen == {"advertise", "open", "reveal"}
    status = hub.coordinator.status(study_id)
    assert status["rounds"]["done"] == 2
    hub.pump_to_end(study_id)
    assert hub.state(study_id) is StudyState.POOLING
    assert set(hub.list_parts(study_id).values()) == {("delivered", "")}
    store = hub.coordinator.store
    assert all(each.survivors == NAMES for each in store.summing.sums(study_id))
    assert store.summing.said(study_id, 0) == {}
    answer = conclude_answer(signed, hub)
    assert answer
    for site in hub.world.sites:
        [charge] = site.ledger().charges.values()
        assert charge.status == "committed"


def test_a_site_may_come_back_and_another_be_gone_for_good(
    make: Callable[..., tuple[Hub, SignedStudy]],
) -> None:
    """Each costs its rows in the sums that it misses, and no more: one charge, whatever happens."""
    hub, signed = make(patience=12)
    study_id = hub.coordinator.submit(signed)
    hub.pump_rounds(study_id, 1)
    away, lost = hub.world.sites[0], hub.world.sites[3]
    away.kill(away.processes[-1])
    hub.pump_rounds(study_id, 2)
    away.start()

    def is_back(found: Coordinator) -> bool:
        return found.store.summing.sums(study_id)[-1].survivors == NAMES

    hub.pump_until(is_back)
    lost.kill(lost.processes[-1])
    hub.pump_to_end(study_id)
    assert hub.state(study_id) is StudyState.POOLING
    parts = hub.list_parts(study_id)
    assert parts.pop("west") == ("timed-out", "sum-left")
    assert set(parts.values()) == {("delivered", "")}
    found = [each.survivors for each in hub.coordinator.store.summing.sums(study_id)]
    assert found[0] == NAMES
    assert found[1] == NAMES[1:]
    assert found[-1] == NAMES[:3]
    assert conclude_answer(signed, hub)
    for site in hub.world.sites[:3]:
        [charge] = site.ledger().charges.values()
        assert charge.status == "committed"


def test_below_the_quorum_nothing_is_unmasked_and_the_study_says_why(
    make: Callable[..., tuple[Hub, SignedStudy]],
) -> None:
    hub, signed = make(patience=1)
    for site in hub.world.sites[:2]:
        site.paths.policy.write_text(site.paths.policy.read_text().replace('"structured", ', ""))
    study_id = hub.coordinator.submit(signed)
    hub.pump_to_end(study_id)
    assert hub.state(study_id) is StudyState.FAILED
    assert hub.count_sums(study_id) == 0
    note = hub.coordinator.status(study_id)["note"]
    assert "2 of 4 sites take part, and 3 must" in note
    assert [p[1] for p in hub.list_parts(study_id).values()] == ["mechanism"] * 2 + [
        "sum-ended"
    ] * 2
    assert not any(site.ledger().charges for site in hub.world.sites)
    with pytest.raises(CoordinatorError, match="nothing to pool"):
        hub.coordinator.pool_again(study_id)

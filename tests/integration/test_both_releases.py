"""A study of both through a real coordinator: each site's own release, and one of all sites."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import TestSite, World
from tests.integration.test_global_release import NAMES, Hub, conclude_answer
from tests.support.adding import SHORT, make_gates, sign_halves_of

from penstock.privacy.accounting.accountant import epsilon
from penstock.wire.messages import StudyState
from penstock.wire.signed import SignedStudy, sign_cancel
from penstock_client.ledger.state import Charge

pytestmark = pytest.mark.thorough

Made = tuple[Hub, SignedStudy, SignedStudy]


@pytest.fixture
def make(world: World, tmp_path: Path) -> Iterator[Callable[..., Made]]:
    hubs: list[Hub] = []

    def build(**options: int) -> Made:
        make_gates(world, NAMES)
        for site in world.sites:
            site.start()
        hubs.append(Hub(world, tmp_path / "hub", **options))
        own, joint = sign_halves_of(world, SHORT)
        return hubs[0], own, joint

    yield build
    for hub in hubs:
        hub.coordinator.store.close()


def list_charges(site: TestSite) -> list[Charge]:
    return list(site.ledger().charges.values())


def test_each_site_makes_its_own_release_and_all_make_one_of_one_budget(
    make: Callable[..., Made],
) -> None:
    hub, own, joint = make()
    ids = [hub.coordinator.submit(each) for each in (own, joint)]
    assert ids == [own.study_id, joint.study_id]
    for study_id in ids:
        hub.pump_to_end(study_id)
        assert hub.state(study_id) is StudyState.POOLING
        assert set(hub.list_parts(study_id).values()) == {("delivered", "")}
    assert conclude_answer(joint, hub)
    whole, delta = own.study.aggregation.whole, own.study.privacy.delta
    assert whole is not None
    for site in hub.world.sites:
        first, second = list_charges(site)
        assert (first.status, second.status) == ("committed", "committed")
        assert (first.study_id, second.study_id) == (own.study_id, joint.study_id)
        assert first.study == second.study
        assert 0.99 * whole < epsilon((*first.events, *second.events), delta) <= whole
        # Only the one release of all sites rests on the others.
        assert not first.alone_epsilon
        assert float(second.alone_epsilon) > joint.study.privacy.epsilon
        # Both were charged before the first run ended.
        assert second.time < first.settled_at


def test_sums_that_end_early_leave_the_sites_own_releases_and_nothing_is_charged_twice(
    make: Callable[..., Made],
) -> None:
    hub, own, joint = make(patience=2)
    for each in (own, joint):
        hub.coordinator.submit(each)
    hub.pump_rounds(joint.study_id, 1)
    # Sums began once sites' own releases were over.
    assert hub.state(own.study_id) is StudyState.POOLING
    for site in hub.world.sites[:2]:
        site.kill(site.processes[-1])
    done = hub.count_sums(joint.study_id)
    hub.coordinator.cancel(sign_cancel(joint.study_id, hub.world.analyst))
    hub.pump_until(
        lambda _: all(list_charges(site)[1].status == "burnt" for site in hub.world.sites[2:])
    )
    assert hub.count_sums(joint.study_id) == done
    assert hub.state(joint.study_id) is StudyState.CANCELLED
    assert hub.state(own.study_id) is StudyState.POOLING
    for site in hub.world.sites:
        first, second = list_charges(site)
        assert first.status == "committed"
        assert second.status != "committed"

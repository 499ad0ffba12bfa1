"""Replay of releases of many sites: an auditor finds every sum, charge and survivor in the records.

Exact, but for the noise itself: that it has the variance that is charged is held with a false-alarm
rate of 1e-7 a release, and has a planted fault on either side.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.kept_sums import NAMES, Kept
from tests.support.replayed import coarsely
from tests.support.replayed_sums import Disagrees, audit_sums, find_noise

from penstock.aggregation.exchanges import read_sum, write_asking, write_sum
from penstock.mechanisms import Gibbs, Scoring, SlicedWasserstein, Structured, Trajectory
from penstock.mechanisms.joint.consortium import LOCAL, SHARED
from penstock.mechanisms.joint.rounds import Contribution
from penstock.privacy.events import DiscreteGaussian, DistributedGaussian

SKETCH = SlicedWasserstein(copies=1, refits=1, steps=4, bases=2, bins=16)
PATHS = Trajectory("t", points=4, copies=1, refits=0, particles=6, paths=5, path_times=4, steps=3)
"""Its rounds take least of all."""
EVERY = pytest.mark.parametrize(
    "settings",
    [Scoring(), Structured(copies=1, refits=0, planted=0), SKETCH, PATHS, Gibbs()],
    ids=lambda s: s.name,
)
LIMIT = 5.4
"""In standard errors: two-sided, 1e-7."""


@pytest.fixture(autouse=True, scope="module")
def coarse() -> Iterator[None]:
    """Sites and the auditor alike look at their own particles as coarsely as can be; the noise is
    that of a release."""
    with coarsely(quick_noise=False):
        yield


@EVERY
@pytest.mark.parametrize("noise", [SHARED, LOCAL])
def test_a_release_is_what_its_records_say(tmp_path: Path, settings: Any, noise: str) -> None:
    """In its rounds sites drop out before, and after, their vectors are masked."""
    kept = Kept(tmp_path, settings, noise=noise)
    chance = random.Random(3)
    while len(kept.rounds) < kept.plan.rounds:
        site = chance.choice(NAMES)
        match chance.randrange(3):
            case 0:
                kept.add_round()
            case 1:
                kept.add_round(absent=[site])
            case _:
                kept.add_round(late=[site])
    audited = audit_sums(kept.signed.data, kept.databases, kept.rounds)
    assert len(audited.questions) == len(kept.rounds) == kept.plan.rounds
    kind = DiscreteGaussian if noise == LOCAL else DistributedGaussian
    assert {type(event) for event in audited.plan.events} == {kind}
    assert len({each.survivors for each in kept.rounds}) > 1
    assert abs(find_noise(audited, kept.rounds, kept.parts)) < LIMIT


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A release that nobody changes."""
    kept = Kept(tmp_path_factory.mktemp("whole"), PATHS)
    kept.add_all()
    return kept


def audit(kept: Kept, rounds: Any = None) -> None:
    audit_sums(kept.signed.data, kept.databases, kept.rounds if rounds is None else rounds)


def test_other_sums_than_sites_said_are_found(whole: Kept) -> None:
    audit(whole)
    rounds, last = whole.rounds, whole.rounds[-1]
    other = write_sum([value + (at == 0) for at, value in enumerate(read_sum(last.data))])
    for planted, found in (
        (rounds[:-1], "sums, where the plan has"),
        ([*rounds[:-1], replace(last, data=other)], "another sum than its sites said"),
        ([*rounds[:-1], replace(last, survivors=NAMES[:3])], "other survivors"),
        ([rounds[0], rounds[1], *rounds[1:-1]], "round 2: another sum than its sites said"),
    ):
        with pytest.raises(Disagrees, match=found):
            audit(whole, planted)


def halve(events: Any) -> Any:
    """Charged as if there were twice the noise."""
    return tuple(replace(e, noise_multiplier=2 * e.noise_multiplier) for e in events)


def count_none(events: Any) -> Any:
    """Charged as if nobody could drop out or collude."""
    return tuple(replace(e, dropouts=0, colluders=0) for e in events)


@pytest.mark.parametrize("charge", [halve, count_none, lambda events: events[1:]])
def test_another_charge_than_the_plans_is_found(
    tmp_path: Path, charge: Callable[[Any], Any]
) -> None:
    kept = Kept(tmp_path, PATHS, charge=lambda site, e: charge(e) if site == NAMES[2] else e)
    kept.add_all()
    with pytest.raises(Disagrees, match=f"{NAMES[2]}: charged with other events"):
        audit(kept)


def test_a_site_that_charged_nothing_is_found(tmp_path: Path) -> None:
    none = Kept(tmp_path, PATHS, charge=lambda site, e: None if site == NAMES[0] else e)
    none.add_all()
    with pytest.raises(Disagrees, match=f"{NAMES[0]}: 0 charges"):
        audit(none)


def test_a_site_that_was_told_another_sum_is_found(tmp_path: Path) -> None:
    """Its masks are of other terms, so that it is not among the survivors; what it was told is."""
    kept = Kept(tmp_path, PATHS)
    kept.add_round()
    told = write_sum([value + 1 for value in read_sum(kept.rounds[0].data)])
    kept.add_round(told={NAMES[1]: [told]}, late=[NAMES[1]])
    while len(kept.rounds) < kept.plan.rounds:
        kept.add_round(absent=[NAMES[1]])
    with pytest.raises(Disagrees, match=f"round 1: {NAMES[1]}: was told other sums"):
        audit(kept)


def test_sites_that_answered_other_survivors_are_found(tmp_path: Path) -> None:
    """One more site's answer, for others than were summed: what a coordinator asks on the side."""
    kept = Kept(tmp_path, PATHS)
    kept.add_round(late=[NAMES[3]])
    kept.members[NAMES[3]].reveal(write_asking(NAMES[1:]), 0)
    while len(kept.rounds) < kept.plan.rounds:
        kept.add_round()
    with pytest.raises(Disagrees, match="round 0: 2 sets of survivors"):
        audit(kept)


def test_a_record_that_was_written_over_is_found(tmp_path: Path) -> None:
    """The masked vector of another round; a share of nobody's secret; an order that is gone."""
    kept = Kept(tmp_path, PATHS)
    kept.add_all()
    database = kept.databases[NAMES[1]]
    [[masked, reveal]] = database.query("SELECT masked, reveal FROM sum_round WHERE round = 1")
    [[other]] = database.query("SELECT masked FROM sum_round WHERE round = 2")
    broken = reveal[:-1] + bytes([reveal[-1] ^ 1])
    for column, value, first in (("masked", other, masked), ("reveal", broken, reveal)):
        for data in (value, first):
            with database.transaction() as connection:
                connection.execute(f"UPDATE sum_round SET {column} = ? WHERE round = 1", (data,))
            if data is value:
                with pytest.raises(Disagrees, match="round 1"):
                    audit(kept)
            else:
                audit(kept)
    with database.transaction() as connection:
        connection.execute("DELETE FROM sum_order WHERE round = 1")
    with pytest.raises(Disagrees, match=f"round 1: {NAMES[1]}: masked what it was not asked"):
        audit(kept)


def quieten(contribution: Contribution) -> Contribution:
    """A share of σ/S instead of σ/√S."""
    return _scale(contribution, 1 / len(NAMES))


def forget(contribution: Contribution) -> Contribution:
    """Next to no noise, from one site."""
    return _scale(contribution, 1e-6)


def shout(contribution: Contribution) -> Contribution:
    """All of the noise at each site, where a share was charged."""
    return _scale(contribution, len(NAMES))


def _scale(contribution: Contribution, factor: float) -> Contribution:
    addends = contribution.addends
    return replace(
        contribution,
        addends=tuple(replace(a, variance=a.variance * type(a.variance)(factor)) for a in addends),
    )


@pytest.mark.parametrize(
    ("fault", "sites", "sign"), [(quieten, NAMES, -1), (forget, NAMES[:1], -1), (shout, NAMES, 1)]
)
def test_other_noise_than_is_charged_is_found(
    tmp_path: Path, fault: Callable[[Contribution], Contribution], sites: Any, sign: int
) -> None:
    """The records agree, and the noise does not."""
    kept = Kept(
        tmp_path,
        replace(SKETCH, bins=64),
        fault=lambda site, own: fault(own) if site in sites else own,
    )
    kept.add_all()
    audited = audit_sums(kept.signed.data, kept.databases, kept.rounds)
    assert sign * find_noise(audited, kept.rounds, kept.parts) > LIMIT

"""An interval of one release of which sites were lost holds the effect of those that are there, and
of everybody, as often as it says; one that is not widened, or twice as much, does not.

Sites' effects are drawn anew each time. What is told lies somewhere between the mean of the present
sites and that of all, and sites that are there are told apart with an error that is known. False
alarms: each share of 4,000 is held to 5.6 of its standard errors, 2e-8 a comparison.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.inference.combine import SiteEstimate
from penstock_server.analysis.lost_parts import find_spread, spread_lost, widen_lost
from penstock_server.analysis.site_effects import SiteEffect

TIMES, TAU, OWN, ERROR = 4000, 0.3, 0.15, 0.03
PERSONS = {f"s{i:02d}": 200 + 40 * i for i in range(20)}
LOST = ("s15", "s17", "s18", "s19")


def count_held(share: float, factor: float = 1.0) -> tuple[float, float]:
    """How often the interval holds the present sites' effect, and everybody's.

    Args:
        share: how far what is told lies from the present sites' towards everybody's.
        factor: by which what is added is multiplied.
    """
    rng, held = np.random.default_rng(18), np.zeros((TIMES, 2))
    sizes = np.array([*PERSONS.values()], dtype=float)
    there = np.array([name not in LOST for name in PERSONS])
    for turn in range(TIMES):
        effects = TAU * rng.standard_normal(len(sizes))
        present = float(effects[there] @ sizes[there] / sizes[there].sum())
        everybody = float(effects @ sizes / sizes.sum())
        told = (1 - share) * present + share * everybody + ERROR * rng.standard_normal()
        seen = effects + OWN * rng.standard_normal(len(sizes))
        each = [
            SiteEffect(name, float(value), OWN**2, OWN**2 / 2)
            for name, value in zip(PERSONS, seen, strict=True)
        ]
        plain = make_estimate(told)
        added = widen_lost(plain, each, PERSONS, LOST).variance - plain.variance
        half = 1.959964 * math.sqrt(plain.variance + factor * added)
        held[turn] = abs(told - present) <= half, abs(told - everybody) <= half
    found = held.mean(axis=0)
    return float(found[0]), float(found[1])


def make_estimate(told: float) -> SiteEstimate:
    return SiteEstimate(told, ERROR**2, ERROR**2, None, None, None, 1, 1)


MARGIN = 5.6 * math.sqrt(0.95 * 0.05 / TIMES)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_intervals_hold_both(share: float) -> None:
    """The further one about as often as it says: τ² is estimated of sixteen sites."""
    present, everybody = count_held(share)
    assert min(present, everybody) > 0.95 - 0.01 - MARGIN
    assert min(present, everybody) < 0.95 + 0.01 + MARGIN


def test_one_that_is_not_widened_misses_and_one_that_is_too_wide_is_seen() -> None:
    assert count_held(0.0, factor=0.0)[1] < 0.95 - 0.01 - MARGIN
    assert count_held(0.0, factor=4.0)[1] > 0.95 + 0.01 + MARGIN


def test_nothing_is_added_where_nobody_is_lost_or_nothing_is_known() -> None:
    plain = make_estimate(0.4)
    each = [SiteEffect(name, 0.1 * i, 0.01, 0.005) for i, name in enumerate(PERSONS)]
    assert widen_lost(plain, each, PERSONS, ()) == plain
    assert widen_lost(plain, (), PERSONS, LOST) == plain
    assert spread_lost(PERSONS, [*PERSONS]) == 0.0
    assert find_spread(each[:1], ()) is None
    # Two of two equal sites: half the persons, times a difference of two effects.
    assert spread_lost({"a": 5, "b": 5}, ("a",)) == pytest.approx(0.25 * 2)
    # What lost sites said does not count.
    wild = [*each[:-1], SiteEffect("s19", 99.0, 0.01, 0.005)]
    assert find_spread(wild, LOST) == find_spread(each, LOST)

"""Intervals of survival curves cover what they are of.

Copies are drawn with replacement from a cohort's rows, which is a model that contains the truth: a
site's estimate then has variance u (1 + 1/m). 400 cohorts, m = 1: coverage's standard error is .011
at .95; an interval that left out the copies' own drawing would cover .834. Bounds of four standard
errors: .906 and .994 (log(−log S) is near normal at these counts, not quite).
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.inference.combine import SiteEstimate
from penstock.inference.pooling import quantile
from penstock.mechanisms.released import EACH
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock_server.analysis.survival_curves import TIMES, list_curves, measure_curves

SCHEMA = Schema(
    (
        Column("time", "duration", upper=6.0, event="dead"),
        Column("dead", "event"),
        Column("x", "continuous", lower=-10, upper=10),
    )
)
ASKED = [Estimand("hr", "cox", "time", "x")]
COHORTS, PERSONS, HAZARD = 400, 300, 0.15
PLACES = (TIMES // 2 - 1, TIMES - 1)
"""At 3 and at 6 years."""


def truth_of(place: int) -> float:
    """log(−log S) of a constant hazard."""
    return math.log(HAZARD * 6.0 * (place + 1) / TIMES)


def estimates(seed: int) -> list[SiteEstimate]:
    rng = np.random.default_rng(seed)
    time = rng.exponential(1 / HAZARD, PERSONS)
    censored = np.minimum(rng.uniform(4, 12, PERSONS), 6.0)
    rows = {"time": np.minimum(time, censored), "dead": (time <= censored).astype(float)}
    drawn = rng.integers(0, PERSONS, PERSONS)
    copy = {name: values[drawn] for name, values in rows.items()} | {"x": np.zeros(PERSONS)}
    found = measure_curves(SCHEMA, ASKED, [copy], [], made=EACH)
    assert found is not None
    (group,) = found.curves[list_curves(SCHEMA, ASKED)[0]]
    return [group[place].plain for place in PLACES]


@pytest.fixture(scope="module")
def found() -> list[list[SiteEstimate]]:
    return [estimates(seed) for seed in range(COHORTS)]


def coverage(found: list[list[SiteEstimate]], place: int, share: float) -> float:
    """Of intervals with so much of the variance."""
    half, truth = quantile(0.95, None), truth_of(PLACES[place])
    errors = [(e[place].estimate - truth) / math.sqrt(share * e[place].variance) for e in found]
    return float(np.mean(np.abs(errors) <= half))


@pytest.mark.parametrize("place", range(len(PLACES)))
def test_intervals_cover(found: list[list[SiteEstimate]], place: int) -> None:
    assert 0.906 <= coverage(found, place, 1.0) <= 0.994


@pytest.mark.parametrize("place", range(len(PLACES)))
def test_without_the_copies_own_drawing_they_would_not(
    found: list[list[SiteEstimate]], place: int
) -> None:
    assert coverage(found, place, 0.5) < 0.906

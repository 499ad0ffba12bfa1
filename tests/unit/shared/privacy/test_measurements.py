"""Charge and noise are one object: what a measurement adds is what its event says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.base.errors import InvalidEvent
from penstock.privacy import measurements
from penstock.privacy.events import (
    DiscreteGaussian,
    FixedSizeGaussian,
    Gaussian,
    NoisyDescent,
    PoissonGaussian,
)
from penstock.privacy.measurements import (
    FixedSample,
    GaussianSum,
    LastIterate,
    LatentNoise,
    PoissonSample,
    Query,
    WholeSum,
    answer,
    drive,
)
from penstock.privacy.noise.sources import SeededNoise

Array = NDArray[np.float64]

COUNTS = WholeSum("counts", 1.5, math.sqrt(8), Fraction(8), 1.0, 12)
MATRIX = WholeSum("moments", 0.7, 9.0, Fraction(81), 2.0**-4, 6, symmetric=True)
SUM = GaussianSum("a sum", 2.0, 0.3, 4)
ROWS = LatentNoise(0.2, 1.5, rows=2, copies=3)


def drawn(measurement: Any, total: Any, *unit: float) -> list[float]:
    """Standard deviations of the noise that is asked for."""
    seen: list[float] = []

    def gaussian(value: Array, sd: float, noise: Any) -> Array:
        seen.append(sd)
        return value

    def discrete(value: Any, variance: Fraction, noise: Any, *, unit: float) -> Array:
        seen.append(math.sqrt(variance))
        return np.asarray(value, dtype=np.float64) * unit

    with (
        patch.object(measurements, "add_gaussian", gaussian),
        patch.object(measurements, "add_discrete_gaussian", discrete),
    ):
        measurement(total, SeededNoise(0), *unit)
    return seen


def test_the_noise_is_that_of_the_event() -> None:
    counted, moved, summed, row = COUNTS.event, MATRIX.event, SUM.event, ROWS.event
    assert isinstance(summed, Gaussian)
    assert drawn(COUNTS, np.zeros(12, int)) == pytest.approx(
        [counted.noise_multiplier * counted.sensitivity]
    )
    whole = moved.noise_multiplier * moved.sensitivity
    assert drawn(MATRIX, np.zeros((3, 3), int)) == pytest.approx([whole, whole / math.sqrt(2)])
    assert drawn(SUM, np.zeros(3)) == [summed.noise_multiplier * summed.sensitivity]
    assert drawn(SUM, np.zeros(3), 5.0) == [2.0 * (0.3 * 5.0)]
    assert drawn(ROWS, np.zeros((4, 2))) == [math.sqrt(0.8)]
    assert row.noise_multiplier * row.sensitivity == pytest.approx(math.sqrt(0.8), rel=1e-11)


def test_what_is_charged_follows_the_fields() -> None:
    grid = COUNTS.event.grid_sd
    assert COUNTS.event == DiscreteGaussian(1.5, 1, "counts", math.sqrt(8), grid, 12)
    assert SUM.event == Gaussian(2.0, 4, "a sum", 0.3)
    assert ROWS.event.count == 6
    sampled = replace(SUM, credit=PoissonSample(0.1))
    assert sampled.event == PoissonGaussian(0.1, 2.0, 4, "a sum", 0.3)
    fixed = replace(SUM, credit=FixedSample(5, 50))
    assert fixed.event == FixedSizeGaussian(5, 50, 2.0, 4, "a sum", 0.3)
    last = replace(SUM, count=1, credit=LastIterate(0.5, 7))
    assert last.event == NoisyDescent(2.0, 0.5, 7, 1, "a sum", 0.3)


def test_a_charge_pays_for_so_many_calls() -> None:
    assert (SUM.calls, ROWS.calls, COUNTS.calls) == (4, 3, 1)
    assert replace(COUNTS, parts=2, count=5).calls == 10
    assert replace(SUM, count=1, credit=LastIterate(0.5, 7)).calls == 7


@pytest.mark.parametrize("off", [0.99, 1.01, 1 + 1e-8])
def test_a_sensitivity_that_is_not_its_squares_root_is_refused(off: float) -> None:
    with pytest.raises(InvalidEvent, match="root of its square"):
        replace(COUNTS, sensitivity=off * COUNTS.sensitivity)


BAD: dict[str, Callable[[float], object]] = {
    "whole, noise": lambda bad: replace(COUNTS, noise_multiplier=bad),
    "whole, sensitivity": lambda bad: replace(COUNTS, sensitivity=bad),
    "sum, noise": lambda bad: replace(SUM, noise_multiplier=bad),
    "sum, sensitivity": lambda bad: replace(SUM, sensitivity=bad),
    "sum, rate": lambda bad: replace(SUM, credit=PoissonSample(bad)),
    "sum, unit": lambda bad: SUM(np.zeros(2), SeededNoise(0), bad),
    "rows, w": lambda bad: replace(ROWS, w=bad),
    "rows, radius": lambda bad: replace(ROWS, radius=bad),
}


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("what", BAD)
def test_what_is_no_parameter_makes_no_measurement(what: str, bad: float) -> None:
    with pytest.raises(InvalidEvent):
        BAD[what](bad)


@pytest.mark.parametrize(
    ("asked", "total"),
    [
        (COUNTS, np.zeros(13, int)),
        (replace(COUNTS, parts=2), np.zeros(7, int)),
        (MATRIX, np.zeros((4, 4), int)),
        (MATRIX, np.zeros((2, 3, 3), int)),
    ],
)
def test_more_numbers_than_were_planned_do_not_leave(asked: WholeSum, total: Any) -> None:
    with pytest.raises(InvalidEvent, match="more numbers"):
        asked(total, SeededNoise(0))


def test_a_symmetric_matrix_stays_one() -> None:
    total = np.array([[1, 2, 3], [0, 4, 5], [0, 0, 6]])
    found = MATRIX(total, SeededNoise(1))
    assert np.array_equal(found, found.T)
    quiet = replace(MATRIX, noise_multiplier=1e-9)(total, SeededNoise(1))
    assert quiet[0, 1] == pytest.approx(2 * 2.0**-4, abs=1e-6)


class Mean:
    """A session: steps towards a mean by noisy sums of clipped distances."""

    def __init__(self, asked: GaussianSum | None, persons: int) -> None:
        self._asked, self._persons, self._left = asked, persons, 5
        self.at = 0.0

    def next_query(self) -> Query[float] | None:
        self._left -= 1
        return Query(self.at, self._asked) if self._left >= 0 else None

    def absorb(self, noisy: Array) -> None:
        self.at += float(noisy[0]) / self._persons


def pull(rows: Array) -> Callable[[float], Array]:
    """What rows contribute at a place, without noise."""
    return lambda at: np.array([np.clip(rows - at, -1.0, 1.0).sum()])


@pytest.mark.parametrize("asked", [None, GaussianSum("a mean", 3.0, 1.0, 5)])
def test_a_coordinator_may_drive_a_session_on_the_sums_of_many_sites(
    asked: GaussianSum | None,
) -> None:
    """The same as on all rows together: contributions and noise are separate."""
    rows = np.arange(24.0) / 8
    whole, parted = Mean(asked, 24), Mean(asked, 24)
    drive(whole, pull(rows), SeededNoise(3))
    noise, sites = SeededNoise(3), [pull(rows[at::3]) for at in range(3)]
    while (query := parted.next_query()) is not None:
        # As secure aggregation would: no site's own sum is seen, and noise is added once.
        total = sum((site(query.about) for site in sites), np.zeros(1))
        parted.absorb(answer(query, total, noise))
    assert parted.at == pytest.approx(whole.at, rel=1e-12)
    assert whole.at > 0.5


def test_whoever_watches_a_session_is_told_after_each_answer() -> None:
    told: list[float] = []
    session = Mean(None, 4)
    drive(session, pull(np.ones(4)), SeededNoise(0), lambda: told.append(session.at))
    assert told == [1.0] * 5

"""Noise of the three variants: as much as is charged, and drawn as often.

False alarms: each test of variance 1e-9, two-sided.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.early import has_unit_variance, scaled_variance
from tests.support.measured import noisy_sketch, presampled, resampled

from penstock.base.errors import InvalidEvent
from penstock.mechanisms.sliced_wasserstein.batches import clipped, measure_all, measure_batches
from penstock.mechanisms.sliced_wasserstein.flow import SlicedFlow
from penstock.mechanisms.sliced_wasserstein.goals import Goal, Schedule
from penstock.mechanisms.sliced_wasserstein.sketch import Directions, measure_sketch
from penstock.privacy import measurements
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.events import FixedSizeGaussian, Gaussian
from penstock.privacy.factorisation import recovery, strategy
from penstock.privacy.noise.sources import NoiseSource, SeededNoise, add_gaussian
from penstock.privacy.sensitivity import orthonormal_stack

Array = NDArray[np.float64]
RNG = np.random.default_rng


def here(rows: Array) -> NDArray[np.bool_]:
    return np.ones(rows.shape[:2], dtype=bool)


# Sketch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (0.5, False), (2.0, False)])
def test_a_sketch_has_the_noise_that_is_charged(factor: float, right: bool) -> None:
    # The other factors are planted faults.
    d, bases, bins, k, sigma = 4, 10, 32, 2, 1.7
    rows = np.zeros((5, k, d))
    where = Directions.within(orthonormal_stack(bases * d, d, RNG(0)), 0.0, 2.0)
    absent = np.zeros((5, k), dtype=bool)
    with scaled_variance(factor):
        found = noisy_sketch(rows, absent, where, bins, sigma, SeededNoise(2))
    # From distribution functions back to what was released: L is half of one column more per row.
    measured = np.linalg.solve(recovery(bins), found.halves[:, 1:].T)
    charged = sigma * measure_sketch(sigma, bases * d, bins, k).sensitivity
    assert has_unit_variance(measured / charged) is right
    # And the covariance that post-processing goes by is that of the distribution functions.
    white = np.linalg.solve(np.linalg.cholesky(found.covariance), found.halves[:, 1:-1].T)
    assert has_unit_variance(white) is right


def test_a_sketchs_noise_is_that_of_its_strategy_alone() -> None:
    rows = RNG(0).standard_normal((2000, 1, 3))
    where = Directions.within(orthonormal_stack(30, 3, RNG(0)), 0.0, 2.0)
    bare = noisy_sketch(rows, here(rows), where, 16, None, SeededNoise(0)).halves
    found = noisy_sketch(rows, here(rows), where, 16, 0.8, SeededNoise(5))
    released = (found.halves - bare)[:, 1:].T
    measured = np.linalg.solve(recovery(16), released) / (0.8 * math.sqrt(30))
    assert has_unit_variance(measured / np.linalg.norm(strategy(16), axis=0).max())


# Rows -----------------------------------------------------------------------------------------


@contextmanager
def noise_times(factor: float) -> Iterator[list[tuple[int, ...]]]:
    """Rows' noise multiplied; yields the shapes that were released."""
    seen: list[tuple[int, ...]] = []

    def wrong(value: Array, sd: float, noise: NoiseSource) -> Array:
        seen.append(value.shape)
        return add_gaussian(value, factor * sd, noise)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurements, "add_gaussian", wrong)
        yield seen


def values(goal: Goal, count: int) -> Array:
    """The noisy projections themselves, (N, count)."""
    return goal.quantiles(np.tile(np.linspace(0, 1, count), (goal.theta.shape[1], 1)))


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (0.7, False), (1.4, False)])
def test_presampled_rows_have_the_noise_that_is_charged(factor: float, right: bool) -> None:
    d, bases, k, radius, sigma = 3, 5, 2, 1.5, 2.2
    rows, schedule = np.zeros((400, k, d)), Schedule(steps=4, bases=bases)
    with noise_times(factor):
        first = next(presampled(rows, here(rows), radius, bases, sigma, schedule, SeededNoise(1)))
    event = measure_all(sigma, radius, bases, d, k)
    assert event.sensitivity == pytest.approx(math.sqrt(k) * radius * math.sqrt(bases))
    assert first.smoothing == pytest.approx(sigma * event.sensitivity)
    assert has_unit_variance(values(first, 800) / first.smoothing) is right


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (0.7, False), (1.4, False)])
@pytest.mark.parametrize("batch", [40, 100])
def test_resampled_rows_have_the_noise_that_is_charged(
    factor: float, right: bool, batch: int
) -> None:
    n, d, bases, radius, sigma = 100, 3, 5, 1.5, 2.2
    rows, schedule = np.zeros((n, 1, d)), Schedule(steps=30)
    with noise_times(factor):
        every = list(
            resampled(rows, here(rows), radius, bases, batch, sigma, schedule, SeededNoise(1))
        )
    sd = sigma * 2 * radius * math.sqrt(bases)
    drawn = np.concatenate([values(goal, batch) for goal in every]) / sd
    assert has_unit_variance(drawn) is right
    assert all(goal.smoothing == pytest.approx(sd) for goal in every)


# How often ------------------------------------------------------------------------------------


def test_presampled_noise_is_drawn_once_and_every_step_uses_the_same() -> None:
    rows, schedule = RNG(0).standard_normal((50, 1, 2)), Schedule(steps=12, bases=2)
    with noise_times(1.0) as seen:
        every = list(presampled(rows, here(rows), 3.0, 4, 1.0, schedule, SeededNoise(1)))
    assert seen == [(50, 8)]
    for at in (0, 1):
        same = [values(goal, 50) for goal in every[at::2]]
        assert len(same) == 6
        assert all(np.array_equal(same[0], other) for other in same)
    assert not np.array_equal(values(every[0], 50), values(every[1], 50))
    # The twin, noise drawn anew at each step, is as many releases, and would cost as many.
    once = measure_all(1.0, 3.0, 4, 2).event
    assert once.count == 1
    redrawn = Gaussian(1.0, schedule.steps, "", once.sensitivity)
    assert epsilon([redrawn], 1e-5) > 3 * epsilon([once], 1e-5)


def test_resampled_steps_have_batches_directions_and_noise_of_their_own() -> None:
    rows = np.arange(60.0).reshape(60, 1, 1)
    schedule = Schedule(steps=200)
    with noise_times(1e-9) as seen:
        every = list(resampled(rows, here(rows), 100.0, 1, 15, 1.0, schedule, SeededNoise(1)))
    assert seen == [(15, 1)] * 200
    picked = [frozenset(np.rint(np.abs(values(goal, 15)[0])).astype(int)) for goal in every]
    assert all(len(batch) == 15 for batch in picked)  # without replacement
    assert len(set(picked)) == 200  # never replayed
    # Everybody a quarter of the time: chi-square of 59, false alarm 1e-9 (correlation lowers it).
    times = np.array([sum(i in batch for batch in picked) for i in range(60)])
    assert ((times - 50) ** 2 / (200 * 0.25 * 0.75)).sum() < 160
    other = list(
        resampled(
            np.ones((60, 1, 3)), np.ones((60, 1), bool), 2.0, 1, 15, 1.0, schedule, SeededNoise(1)
        )
    )
    assert not np.array_equal(other[0].theta, other[1].theta)


def test_events_are_of_the_kind_and_size_that_is_drawn() -> None:
    event = measure_batches(1.5, 2.0, 3, 1000, 250, 40).event
    assert event == FixedSizeGaussian(250, 1000, 1.5, 40, event.label, event.sensitivity)
    assert event.sensitivity == pytest.approx(2 * 2.0 * math.sqrt(3))
    whole = measure_batches(1.5, 2.0, 3, 250, 250, 40).event
    assert isinstance(whole, Gaussian)
    assert whole.noise_multiplier * whole.sensitivity == pytest.approx(1.5 * event.sensitivity)
    assert whole.count == 40


# What a row may be ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_rows_are_clipped_and_null_rows_are_nothing() -> None:
    rows = np.array(
        [
            [[3.0, 4.0]],
            [[0.3, 0.4]],
            [[math.nan, 1.0]],
            [[math.inf, 0.0]],
            [[1e308, -1e308]],
            [[1, 1]],
        ]
    )
    there = here(rows)
    there[-1] = False
    found = clipped(rows, there, 2.0)
    assert np.linalg.norm(found, axis=1).max() <= 2.0
    wanted = [[1.2, 1.6], [0.3, 0.4], [0, 0], [0, 0], [math.sqrt(2), -math.sqrt(2)], [0, 0]]
    np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_null_rows_are_released_as_noise() -> None:
    rows, schedule = np.ones((30, 2, 2)), Schedule(steps=1, bases=9)
    with noise_times(1.0) as seen:
        [goal] = presampled(rows, np.zeros((30, 2), bool), 1.0, 3, 1.0, schedule, SeededNoise(1))
    assert seen == [(60, 6)]
    assert has_unit_variance(values(goal, 60) / goal.smoothing)


def test_batches_are_of_persons_with_one_row() -> None:
    rows = np.ones((30, 2, 2))
    with pytest.raises(InvalidEvent, match="one row each"):
        next(resampled(rows, here(rows), 1.0, 1, 5, 1.0, Schedule(steps=1), SeededNoise(1)))


@pytest.mark.parametrize("rows", [np.full((40, 1, 2), math.nan), np.full((40, 1, 2), 1.0)])
def test_degenerate_rows_still_make_finite_rows(rows: Array) -> None:
    schedule, z = Schedule(steps=10, bases=2), RNG(0).standard_normal((50, 2))
    for steps in (
        presampled(rows, here(rows), 2.0, 2, 3.0, schedule, SeededNoise(1)),
        resampled(rows, here(rows), 2.0, 2, 1, 3.0, schedule, SeededNoise(1)),
    ):
        assert np.isfinite(SlicedFlow(steps, 2, schedule).from_latent(z)).all()


@pytest.mark.parametrize("frame", [1, 2])
def test_without_noise_to_speak_of_the_variants_find_the_rows(frame: int) -> None:
    """In a frame twice the cohort half of what is released is noise around 0: it is taken out."""
    rng = RNG(0)
    rows = (rng.choice([-1.0, 1.0], (3000, 1, 2)) + 0.2 * rng.standard_normal((3000, 1, 2))) / 1.02
    there = here(rows)
    there[3000 // frame :] = False
    absent = 1 - 1 / frame
    schedule = Schedule(steps=60, step=1.0)
    z = RNG(1).standard_normal((3000, 2))
    for steps in (
        presampled(rows, there, 5.0, 8, 1e-4, schedule, SeededNoise(1), absent),
        resampled(rows, there, 5.0, 4, 1500, 1e-4, schedule, SeededNoise(1), absent),
    ):
        x = SlicedFlow(steps, 2, schedule).from_latent(z)
        near = np.abs(np.abs(x * 1.02) - 1) < 0.6
        assert near.all(axis=1).mean() > 0.9  # of Gaussians .43

"""Laws of the sketch: what one person moves, what comes back without noise, hostile rows."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy.stats import norm
from tests.support.early import before_noise, distance, wild
from tests.support.measured import noisy_sketch

from penstock.base.errors import InvalidEvent
from penstock.mechanisms.sliced_wasserstein.distribution import LEVELS, REACH, predicted
from penstock.mechanisms.sliced_wasserstein.sketch import (
    Directions,
    counts,
    measure_sketch,
)
from penstock.privacy import measurements, sensitivity
from penstock.privacy.factorisation import absolute, recovery, strategy
from penstock.privacy.noise.discrete import grid_sd
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.sensitivity import orthonormal_stack

Array = NDArray[np.float64]
QUIET = SeededNoise(0)
SIZES = [2, 3, 8, 32, 65]


def directions(d: int, bases: int = 2, reach: float = 2.0) -> Directions:
    return Directions.within(orthonormal_stack(bases * d, d, np.random.default_rng(1)), 0.0, reach)


def here(rows: Array) -> NDArray[np.bool_]:
    return np.ones(rows.shape[:2], dtype=bool)


def below(bins: int) -> Array:
    """Half the rows below each upper edge less half of those above, restated."""
    return np.array([[0.5 if b <= e else -0.5 for b in range(bins)] for e in range(bins)])


# The strategy ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bins", SIZES)
def test_the_strategy_gives_back_what_is_wanted(bins: int) -> None:
    back = recovery(bins)
    np.testing.assert_allclose(back @ strategy(bins), below(bins), atol=1e-12)
    assert np.array_equal(strategy(bins), strategy(bins).T)
    assert (strategy(bins) * 2**20 % 1 == 0).all()


@pytest.mark.parametrize("bins", SIZES)
def test_no_strategy_has_less_noise(bins: int) -> None:
    # Largest row norm times largest column norm of any factors is at least trace norm / B.
    least = np.linalg.svd(below(bins), compute_uv=False).sum() / bins
    columns = np.linalg.norm(strategy(bins), axis=0).max()
    rows = np.linalg.norm(recovery(bins), axis=1).max()
    assert least * (1 - 1e-9) <= columns * rows <= least * (1 + 1e-5)
    np.testing.assert_allclose(np.diag(absolute(bins)), least, rtol=1e-5)


def test_the_square_root_of_the_triangle_of_ones_has_more_noise() -> None:
    f = np.cumprod([1.0, *(1 - 1 / (2 * np.arange(1, 32)))])
    assert absolute(32)[5, 5] == pytest.approx(0.73 * (f @ f), rel=0.01)


@pytest.mark.parametrize("bins", [1, 0, 5000, 2.5])
def test_bins_out_of_bounds_are_refused(bins: int) -> None:
    with pytest.raises(InvalidEvent):
        measure_sketch(1.0, 2, bins, 1)


# What one person moves ------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2])
def test_every_zeroed_person_moves_at_most_what_is_charged_and_one_as_much(k: int) -> None:
    # One direction, four bins: every person that there can be.
    one, bins = Directions(np.eye(1), np.array([-2.0]), np.array([2.0])), 4
    charged = measure_sketch(1.0, 1, bins, k).sensitivity
    others, worst = np.full((1, k, 1), 0.5), 0.0
    for own in itertools.product([None, -9.0, -1.5, -0.5, 0.5, 1.5, 9.0], repeat=k):
        there = np.array([[True] * k, [v is not None for v in own]])
        person = np.array([[0.0 if v is None else v for v in own]])[..., None]
        rows, gone = np.concatenate([others, person]), np.array([[True] * k, [False] * k])
        with before_noise() as seen:
            noisy_sketch(rows, there, one, bins, 1.0, QUIET)
            noisy_sketch(np.where(gone[..., None], rows, 0.0), gone, one, bins, 1.0, QUIET)
        moved = math.sqrt(distance(*seen))
        assert moved <= charged
        worst = max(worst, moved)
    assert worst == pytest.approx(charged, rel=1e-9)


@settings(max_examples=80, deadline=None)
@given(rows=hnp.arrays(np.float64, (3, 2, 3), elements=wild | st.floats(-4, 4)))
def test_no_person_however_odd_moves_more(rows: Array) -> None:
    gone = here(rows)
    gone[1] = False
    event, where = measure_sketch(0.7, 6, 8, 2), directions(3)
    with before_noise() as seen:
        noisy_sketch(rows, here(rows), where, 8, 0.7, QUIET)
        noisy_sketch(np.where(gone[..., None], rows, 0.0), gone, where, 8, 0.7, QUIET)
    assert distance(*seen) <= Fraction(event.sensitivity) ** 2
    assert len(seen[0][0]) == event.size == 48


def test_the_event_is_what_is_drawn() -> None:
    drawn = []

    def spy(value: Array, variance: Fraction, noise: object, *, unit: float) -> Array:
        drawn.append((variance, unit, np.size(value)))
        return np.asarray(value, dtype=np.float64) * unit

    rows = np.zeros((4, 3, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurements, "add_discrete_gaussian", spy)
        released = noisy_sketch(rows, here(rows), directions(2, 5), 16, 1.3, QUIET)
    [(variance, unit, size)] = drawn
    event = measure_sketch(1.3, 10, 16, 3).event
    assert event.noise_multiplier == 1.3
    assert math.sqrt(variance) == pytest.approx(1.3 * event.sensitivity, rel=1e-9)
    assert event.sensitivity >= math.sqrt(variance / Fraction(1.3) ** 2)
    assert event.sensitivity == sensitivity.projected_cdfs(10, strategy(16), 3)
    assert (event.grid_sd, event.size) == (grid_sd(variance, unit), size)
    assert released.sd == pytest.approx(math.sqrt(variance))


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_noise_is_refused(sigma: float) -> None:
    rows = np.zeros((2, 1, 2))
    with pytest.raises(InvalidEvent):
        noisy_sketch(rows, here(rows), directions(2), 8, sigma, QUIET)
    with pytest.raises(InvalidEvent):
        measure_sketch(sigma, 2, 8, 1)


@pytest.mark.parametrize(
    ("matrix", "low", "high"),
    [
        (np.eye(2), [0.0, 0.0], [1.0, 0.0]),
        (np.eye(2), [0.0, 0.0], [1.0, math.nan]),
        (np.eye(2), [0.0, -math.inf], [1.0, 1.0]),
        (np.zeros((2, 2)), [0.0, 0.0], [1.0, 1.0]),
        (np.full((2, 2), math.nan), [0.0, 0.0], [1.0, 1.0]),
        (np.eye(2), [0.0], [1.0]),
    ],
)
def test_directions_that_cannot_be_are_refused(
    matrix: Array, low: list[float], high: list[float]
) -> None:
    with pytest.raises(InvalidEvent):
        Directions(matrix, np.array(low), np.array(high))


# What comes back ------------------------------------------------------------------------------


def test_without_noise_the_distribution_functions_come_back() -> None:
    rng = np.random.default_rng(0)
    rows, there = rng.standard_normal((300, 2, 3)), rng.random((300, 2)) < 0.8
    where = directions(3)
    found = noisy_sketch(rows, there, where, 16, None, QUIET)
    edges = np.linspace(-2.0, 2.0, 17)
    projected = rows[there] @ where.matrix
    wanted = np.stack([(projected < e).sum(axis=0) for e in edges], axis=1).astype(float)
    wanted[:, 0], wanted[:, -1] = 0, there.sum()  # the outer bins are unbounded
    np.testing.assert_allclose(found.halves + found.rows / 2, wanted, atol=1e-8)
    assert found.rows == pytest.approx(there.sum())


def test_rows_are_counted_whatever_their_order_and_absent_neighbours() -> None:
    rng = np.random.default_rng(0)
    rows, there = rng.standard_normal((40, 2, 3)), rng.random((40, 2)) < 0.5
    order = rng.permutation(40)
    one = counts(rows, there, directions(3), 8)
    other = counts(
        np.where(there[..., None], rows, math.nan)[order], there[order], directions(3), 8
    )
    assert np.array_equal(one, other)
    assert (one.sum(axis=1) == there.sum()).all()


@pytest.mark.parametrize(
    "rows",
    [
        np.full((50, 1, 3), 0.7),
        np.zeros((50, 1, 3)),
        np.full((50, 1, 3), math.nan),
        np.full((50, 1, 3), math.inf),
        np.full((50, 1, 3), -1e308),
    ],
    ids=["equal", "zero", "nan", "infinite", "huge"],
)
@pytest.mark.parametrize("sigma", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("absent", [False, True])
def test_degenerate_rows_have_rising_targets(rows: Array, sigma: float, absent: bool) -> None:
    there = np.zeros(rows.shape[:2], dtype=bool) if absent else here(rows)
    noisy = noisy_sketch(rows, there, directions(3, reach=REACH), 16, sigma, SeededNoise(1))
    targets = predicted(noisy, noisy.rows)
    assert np.isfinite(targets.points).all()
    assert (np.diff(targets.cdf, axis=1) > 0).all()
    assert (targets.cdf[:, 0] == 0).all()
    assert (targets.cdf[:, -1] == 1).all()
    assert np.isfinite(targets.quantiles(np.linspace(0, 1, 9))).all()


# Targets --------------------------------------------------------------------------------------


def test_targets_are_the_rows_own_where_there_is_no_noise() -> None:
    rng = np.random.default_rng(2)
    rows = rng.uniform(-1, 1, (20_000, 1, 2)) * math.sqrt(3)
    rows[:, 0, 1] = 0.6 * rows[:, 0, 0] ** 2 + 0.5 * rows[:, 0, 1] - 0.6
    where = directions(2, 2, REACH)
    targets = predicted(noisy_sketch(rows, here(rows), where, 64, None, QUIET), 20_000)
    levels = np.array([0.1, 0.3, 0.5, 0.8])
    own = np.quantile(rows[:, 0] @ where.matrix, levels, axis=0).T
    np.testing.assert_allclose(targets.quantiles(levels), own, atol=0.02)


def test_prediction_leaves_gaussian_rows_gaussian_under_any_noise() -> None:
    rows = np.random.default_rng(2).standard_normal((2000, 1, 4))
    where = directions(4, 16, REACH)
    levels = np.array([0.05, 0.3, 0.5, 0.7, 0.95])
    noisy = noisy_sketch(rows, here(rows), where, 32, 10.0, SeededNoise(3))
    apart = predicted(noisy, 2000).quantiles(levels) - norm.ppf(levels)
    assert float(np.sqrt((apart**2).mean())) < 0.1
    # The sketch itself says nothing of the kind: its distribution functions are off by this much.
    edges = np.linspace(-REACH, REACH, 33)[1:-1]
    off = noisy.halves[:, 1:-1] / 2000 + 0.5 - norm.cdf(edges)
    assert float(np.sqrt((off**2).mean())) > 0.04


def test_prediction_keeps_what_stands_out_of_the_noise() -> None:
    # Two clusters at ±.95, sd .31: mean 0, sd 1, far from normal.
    rng = np.random.default_rng(2)
    rows = 0.95 * rng.choice([-1, 1], (20_000, 1, 1)) + 0.31 * rng.standard_normal((20_000, 1, 1))
    where = Directions.within(np.eye(1), 0.0, REACH)
    targets = predicted(noisy_sketch(rows, here(rows), where, 32, 5.0, SeededNoise(3)), 20_000)
    assert targets.cdf.shape == (1, LEVELS + 1)
    levels = np.array([0.1, 0.25, 0.4, 0.6, 0.75, 0.9])
    own = np.quantile(rows, levels)
    np.testing.assert_allclose(targets.quantiles(levels)[0], own, atol=0.06)
    assert np.abs(own - np.array([-1.28, -0.67, -0.25, 0.25, 0.67, 1.28])).max() > 0.2

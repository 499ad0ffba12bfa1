"""Noisy second moments: their sensitivity, their noise, and the match of a sample to them."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from tests.support.early import has_unit_variance, scaled_variance, wild
from tests.support.measured import noisy_moments

from penstock.base.errors import InvalidEvent
from penstock.mechanisms.tables.moments import (
    Affine,
    gaussian,
    match_moments,
    whole_moments,
    whole_vectors,
)
from penstock.privacy import sensitivity
from penstock.privacy.noise.sources import SeededNoise
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding, KeptDither

Array = NDArray[np.float64]


def correlated(n: int, k: int = 1, seed: int = 0) -> Array:
    """(n, k, 2): means .5 and -1, sds .6 and .9, correlation .7."""
    root = np.linalg.cholesky([[0.36, 0.378], [0.378, 0.81]])
    z = np.random.default_rng(seed).standard_normal((n, k, 2))
    x: Array = np.array([0.5, -1.0]) + z @ root.T
    return x


# What one person moves ------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("d", [1, 4])
def test_moments_have_the_sensitivity_that_is_charged(d: int, k: int) -> None:
    nobody, somebody = np.zeros((2, k), dtype=bool), np.array([[False] * k, [True] * k])
    worst = 0.0
    for size in (0.1, 1.0, 1e9):
        scores = np.full((2, k, d), size)
        with_, without = (
            noisy_moments(scores, there, 2.0, None, SeededNoise(0)) for there in (somebody, nobody)
        )
        worst = max(worst, float(np.linalg.norm(with_ - without)))
    assert worst == pytest.approx(sensitivity.second_moments(2.0, k))
    assert worst <= sensitivity.second_moments(2.0, k)


@settings(max_examples=150, deadline=None)
@given(
    scores=hnp.arrays(np.float64, (2, 3, 4), elements=wild | st.floats(-9, 9)),
    radius=st.floats(1.0, 9.0),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_persons_moments_are_bounded_in_whole_numbers(scores: Array, radius: float) -> None:
    there = np.ones((2, 3), dtype=bool)
    without = there.copy()
    without[1] = False
    (a, unit), (b, _) = (whole_moments(scores, t, radius) for t in (there, without))
    bound = 3 * Fraction(radius) ** 2
    moved = sum(int(x) ** 2 for x in (a - b).ravel()) * Fraction(unit) ** 2
    assert moved <= bound**2
    assert moved * (1 - 1e-12) <= sensitivity.second_moments(radius, 3) ** 2


@settings(max_examples=150, deadline=None)
@given(
    y=hnp.arrays(np.float64, (3, 4), elements=wild | st.floats(-5, 5)),
    radius=st.floats(0.5, 9.0),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_whole_vectors_keep_their_bound_though_nobody_clipped(y: Array, radius: float) -> None:
    whole, unit = whole_vectors(y, np.array([True, True, False]), radius)
    for vector in whole:
        assert sum(int(v) ** 2 for v in vector) * Fraction(unit) ** 2 <= Fraction(radius) ** 2
    assert not whole[2].any()


def test_a_vector_that_is_too_long_counts_as_nothing() -> None:
    # By a hair: what a clip that errs in its last digits would leave.
    y = np.array([[2.0, 0.0], [np.sqrt(2), np.sqrt(2) * (1 + 1e-6)], [0.0, -2.0]])
    whole, unit = whole_vectors(y, np.ones(3, dtype=bool), 2.0)
    np.testing.assert_array_equal(whole * unit, [[2.0, 0.0], [0.0, 0.0], [0.0, -2.0]])


def test_clipped_rows_come_as_close_to_their_bound_as_whole_numbers_can() -> None:
    # ... so that the bound is the sensitivity, and not a generous multiple of it.
    scores, there = np.full((1, 1, 8), 1e6), np.ones((1, 1), dtype=bool)
    total, unit = whole_moments(scores, there, 3.7)
    norm = float(np.linalg.norm(total.astype(np.float64))) * unit
    assert norm == pytest.approx(3.7**2, rel=1e-5)
    assert norm <= 3.7**2


def test_moments_are_summed_without_rounding_over_many_blocks() -> None:
    n = 40_000
    scores = np.full((n, 1, 1), 5.0)
    one, unit = whole_moments(scores[:1], np.ones((1, 1), dtype=bool), 2.0)
    total, _ = whole_moments(scores, np.ones((n, 1), dtype=bool), 2.0)
    assert (total == n * one).all()
    assert all(isinstance(x, int) for x in total.ravel())
    assert max(one.ravel()) * unit == pytest.approx(4 * 25 / 26, rel=1e-6)


def test_whole_moments_are_the_moments() -> None:
    scores = np.random.default_rng(0).standard_normal((500, 2, 3))
    there = np.random.default_rng(1).random((500, 2)) < 0.7
    total, unit = whole_moments(scores, there, 2.5)
    floats = noisy_moments(scores, there, 2.5, None, SeededNoise(0))
    np.testing.assert_allclose(total.astype(np.float64) * unit, floats, rtol=1e-5, atol=1e-3)


# The noise ------------------------------------------------------------------------------------


def test_noise_hides_the_same_whole_numbers_whatever_the_sigma() -> None:
    # A vanishing noise shows what is released: the grid follows the noise, the sums stay whole.
    rows, there = correlated(300, 2), np.ones((300, 2), dtype=bool)
    total, unit = whole_moments(rows, there, 2.0)
    noisy = noisy_moments(rows, there, 2.0, 1e-9, SeededNoise(0))
    assert 0 < np.abs(noisy - total.astype(np.float64) * unit).max() < 1e-6


@pytest.mark.parametrize(
    ("radius", "sigma"),
    [(2.0, 0.0), (2.0, -1.0), (2.0, math.nan), (2.0, math.inf), (math.inf, 1.0)],
)
def test_what_is_no_noise_is_refused(radius: float, sigma: float) -> None:
    with pytest.raises(InvalidEvent):
        noisy_moments(correlated(4), np.ones((4, 1), dtype=bool), radius, sigma, SeededNoise(0))


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (0.5, False), (2.0, False)])
def test_the_noise_has_the_claimed_variance(factor: float, right: bool) -> None:
    # The other factors are planted faults.
    d, k, sigma = 45, 2, 1.7
    rows, there = np.zeros((5, k, d)), np.zeros((5, k), dtype=bool)
    with scaled_variance(factor):
        released = noisy_moments(rows, there, 3.0, sigma, SeededNoise(2))
    assert np.array_equal(released, released.T)
    upper = released[np.triu_indices(d + 1, 1)] * np.sqrt(2)
    standard = np.concatenate([np.diag(released), upper]) / (sigma * k * 9.0)
    assert has_unit_variance(standard) is right


# The match ------------------------------------------------------------------------------------


def test_match_undoes_what_clipping_does_to_moments() -> None:
    x = correlated(50_000)[:, 0]
    there = np.ones((50_000, 1), dtype=bool)
    released = noisy_moments(x[:, None], there, 1.6, None, SeededNoise(0))
    sample = np.random.default_rng(3).standard_normal((50_000, 2))
    matched = match_moments(released, 50_000, 1.6, sample).apply(sample)
    naive = gaussian(released, 50_000).apply(sample)
    wanted = np.cov(x.T)
    assert np.abs(np.cov(naive.T) - wanted).max() > 0.1
    assert np.abs(np.cov(matched.T) - wanted).max() < 0.03
    assert np.abs(matched.mean(axis=0) - x.mean(axis=0)).max() < 0.03


@pytest.mark.parametrize("seed", range(12))
def test_moments_that_are_pure_noise_still_leave_an_invertible_finite_map(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sample = rng.standard_normal((4096, 4))
    noise = 1e3 * rng.standard_normal((5, 5))

    def thresholds(y: Array) -> Array:
        seen: Array = np.where(y > 0.0, 1.0, -1.0) * np.array([1.0, 0.0, 1e-9, 50.0])
        return seen

    match = match_moments(noise + noise.T, 50.0, 4.0, sample, thresholds)
    assert np.isfinite(match.matrix).all()
    assert np.isfinite(match.shift).all()
    back = match.invert(match.apply(sample))
    np.testing.assert_allclose(back, sample, atol=1e-6)


def test_affine_maps_compose_and_invert() -> None:
    rng = np.random.default_rng(0)
    first, second = (Affine(rng.standard_normal((3, 3)), rng.standard_normal(3)) for _ in range(2))
    y = rng.standard_normal((2, 5, 3))
    both = second.after(first)
    np.testing.assert_allclose(both.apply(y), second.apply(first.apply(y)), atol=1e-12)
    np.testing.assert_allclose(both.invert(both.apply(y)), y, atol=1e-9)
    assert np.array_equal(Affine.identity(3).apply(y), y)


def test_what_nothing_is_known_of_is_not_carried_away_and_carries_nothing() -> None:
    """A threshold that nobody passes: its released moments are noise, and it moves by that alone.

    Two coordinates have a correlation of .6; a third is never seen to vary with them. Without
    ``held``, the noise of its moments mixes it with the others.
    """
    rng = np.random.default_rng(4)
    noise = rng.normal(0, 1, 5000)

    def observe(y: Array) -> Array:
        return np.column_stack([y[:, :2], noise[: len(y)]])

    goal = np.eye(4)
    goal[0, 1] = goal[1, 0] = 0.6
    goal[2, :2] = goal[:2, 2] = 0.2  # noise
    sample = rng.standard_normal((5000, 3))
    free, held = (
        match_moments(5000 * goal, 5000.0, 10.0, sample, observe, 1e-4, who) for who in ((), (2,))
    )
    np.testing.assert_array_equal(held.matrix[2], [0, 0, 1])
    np.testing.assert_array_equal(held.matrix[:2, 2], [0, 0])
    assert held.shift[2] == 0
    assert np.abs(free.matrix[:2, 2]).max() > 0.05
    y = held.apply(sample)
    assert np.cov(y[:, 0], y[:, 1])[0, 1] == pytest.approx(0.6, abs=0.01)
    start = gaussian(5000 * goal, 5000.0, (2,))
    np.testing.assert_array_equal(start.matrix[2], [0, 0, 1])


def test_a_match_of_moments_that_no_map_gives_ends_at_its_nearest_round() -> None:
    """Two columns of 20 levels that mostly follow from each other, and no noise that bounds the
    chase: the last round is 5.9 off, and one before it less than 1.4."""
    rng, n, levels = np.random.default_rng(0), 4000, tuple(f"l{k}" for k in range(20))
    columns = [Column(name, "categorical", levels=levels) for name in ("one", "two")]
    encoding = Encoding(Schema((Column("x", "continuous", 0, 100, 1), *columns)))
    base = rng.integers(0, 20, n)
    table = {"x": (rng.normal(50, 10, n) + 2 * base).clip(0, 100).round(1)}
    for times, name in enumerate(("one", "two"), start=1):
        other = rng.integers(0, 20, n)
        table[name] = np.where(rng.random(n) < 0.8, (times * base) % 20, other).astype(float)
    rows, _ = encoding.encode(table, rng)
    mean, sd = rows.mean(axis=0), rows.std(axis=0)
    dither = KeptDither(np.random.default_rng(0))

    def observe(y: Array) -> Array:
        return (encoding.encode(encoding.decode(y * sd + mean), dither.again())[0] - mean) / sd

    def moments(scores: Array) -> Array:
        whole = np.column_stack([scores, np.ones(len(scores))])
        return whole.T @ whole / len(whole)

    goal, sample = moments((rows - mean) / sd), rng.standard_normal((4096, encoding.d))
    found = match_moments(n * goal, n, 1e3, sample, observe, 1e-6)
    assert ((moments(observe(found.apply(sample))) - goal) ** 2).sum() < 1.4

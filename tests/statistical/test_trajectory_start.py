"""The start's noisy moments: what one person moves, the noise, and what is made of them."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy.integrate import quad
from tests.support.early import before_noise, distance, has_unit_variance, scaled_variance, wild
from tests.support.measured import noisy_sums

from penstock.mechanisms.trajectory.start import (
    ROUNDS,
    Start,
    contributions,
    marginals,
    measure_start,
    released,
    rounded,
    smooth,
)
from penstock.privacy.noise.sources import SeededNoise

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
T, D = 4, 2


def start(rows: int = 1, modes: int = 1, sigma: float = 1.0) -> Start:
    return Start(sigma, modes, math.sqrt(0.5), D, rows, T)


def sums_of(how: Start, z: Array, bins: Whole, there: NDArray[np.bool_]) -> list[tuple]:
    """Before the noise: the diagonal, and √2 times the triangle, of every release."""
    with before_noise() as seen:
        released(how, z, bins, there, SeededNoise(0))
    return list(seen)


def squared_distance(a: list[tuple], b: list[tuple]) -> Fraction:
    """Of the first release: a diagonal, then an upper triangle that counts twice."""
    return distance(a[0], b[0]) + 2 * distance(a[1], b[1])


@settings(max_examples=60, deadline=None)
@given(
    z=hnp.arrays(np.float64, (3, 3, D), elements=wild | st.floats(-1, 1)),
    bins=hnp.arrays(np.int64, (3, 3), elements=st.integers(0, T - 1)),
    there=hnp.arrays(np.bool_, (3, 3)),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nobody_moves_the_sums_by_more_than_is_charged(
    z: Array, bins: Whole, there: NDArray[np.bool_]
) -> None:
    how = start(rows=3)
    gone = there.copy()
    gone[1] = False
    moved = squared_distance(sums_of(how, z, bins, there), sums_of(how, z, bins, gone))
    # Exactly, in whole numbers: √k·R², and the event says no less.
    assert moved <= 3 * Fraction(how.reach) ** 4
    event = measure_start(how).event
    assert moved <= Fraction(event.sensitivity) ** 2


@pytest.mark.parametrize("bins", [[0, 1, 2], [0, 0, 0], [1, 1, 3]])
def test_the_sensitivity_is_reached_wherever_a_persons_rows_are(bins: list[int]) -> None:
    how = start(rows=3)
    z = np.full((1, 3, D), 5.0)  # beyond the corner
    at, there = np.array([bins]), np.ones((1, 3), dtype=bool)
    moved = squared_distance(sums_of(how, z, at, there), sums_of(how, z, at, ~there))
    event = measure_start(how).event
    assert math.sqrt(moved) == pytest.approx(event.sensitivity, rel=1e-5)


def test_later_rounds_have_the_sensitivity_too() -> None:
    how = start(rows=2, modes=3)
    rng = np.random.default_rng(0)
    z, bins = rng.uniform(-0.5, 0.5, (30, 2, D)), rng.integers(0, T, (30, 2))
    there = np.ones((30, 2), dtype=bool)
    assert len(sums_of(how, z, bins, there)) == 2 * ROUNDS
    # Given what the first round released, the second sums disjoint cells again.
    gone = there.copy()
    gone[4] = False
    for cells in rng.integers(0, 3 * T, (20, 30, 2)):
        sums = []
        for present in (there, gone):
            whole, _ = contributions(how, z, bins, present, cells)
            with before_noise() as seen:
                noisy_sums(how, whole, cells.ravel(), 3 * T, SeededNoise(0))
            sums.append(list(seen))
        assert squared_distance(*sums) <= 2 * Fraction(how.reach) ** 4


@pytest.mark.parametrize(("factor", "sound"), [(1.0, True), (0.9, False), (1.1, False)])
def test_the_noise_is_what_is_charged(factor: float, sound: bool) -> None:
    count = 6000
    how = Start(1.5, 1, 0.7, D, 2, count)
    nobody = np.zeros((1, D + 1), dtype=np.int64)
    with scaled_variance(factor):
        noisy = noisy_sums(how, nobody, np.zeros(1, int), count, SeededNoise(2))
    event = measure_start(how).event
    sd = event.noise_multiplier * event.sensitivity
    diagonal = np.einsum("tii->ti", noisy) / sd
    upper = noisy[:, *np.triu_indices(D + 1, 1)] / sd * math.sqrt(2)
    assert has_unit_variance(np.concatenate([diagonal.ravel(), upper.ravel()])) == sound


def test_released_moments_are_the_rows() -> None:
    rng = np.random.default_rng(1)
    n = 40_000
    bins = rng.integers(0, T, (n, 1))
    means = np.array([[-0.3, 0.0], [-0.1, 0.2], [0.1, 0.2], [0.3, -0.1]])
    root = np.linalg.cholesky([[0.004, 0.002], [0.002, 0.003]])
    z = means[bins] + rng.standard_normal((n, 1, D)) @ root.T
    there = rng.random((n, 1)) < 0.9
    found = released(start(sigma=2.0), z, bins, there, SeededNoise(0))
    for t in range(T):
        own = z[(bins == t) & there]
        assert found.counts[t, 0] == pytest.approx(len(own), abs=80)
        np.testing.assert_allclose(found.means[t, 0], own.mean(axis=0), atol=0.005)
        np.testing.assert_allclose(found.covariances[t, 0], np.cov(own.T), atol=0.001)


def test_k_means_finds_three_branches() -> None:
    rng = np.random.default_rng(2)
    n = 24_000
    bins, branch = rng.integers(0, T, (n, 1)), rng.integers(0, 3, n)
    z = rng.standard_normal((n, 1, D)) * 0.03
    z[:, 0, 1] += (branch - 1) * 0.3
    there = np.ones((n, 1), dtype=bool)
    found = released(start(modes=3, sigma=2.0), z, bins, there, SeededNoise(0))
    for t in range(T):
        order = np.argsort(found.means[t, :, 1])
        np.testing.assert_allclose(found.means[t, order, 1], [-0.3, 0, 0.3], atol=0.03)
        np.testing.assert_allclose(found.counts[t], n / T / 3, rtol=0.1)


@pytest.mark.parametrize("case", ["nobody", "one place", "not finite", "one time point"])
@pytest.mark.parametrize("modes", [1, 3])
def test_degenerate_rows_give_finite_moments(case: str, modes: int) -> None:
    n = 50
    rng = np.random.default_rng(0)
    z, bins = rng.uniform(-0.5, 0.5, (n, 1, D)), rng.integers(0, T, (n, 1))
    there = np.full((n, 1), case != "nobody")
    if case == "one place":
        z[:] = 0.2
    if case == "not finite":
        z[::2] = np.nan
        z[1::4] = np.inf
    if case == "one time point":
        bins[:] = 2
    found = released(start(modes=modes), z, bins, there, SeededNoise(3))
    assert np.isfinite(found.means).all()
    assert (found.counts >= 0).all()
    assert np.linalg.eigvalsh(found.covariances).min() > 0
    assert np.linalg.norm(found.means, axis=-1).max() <= math.sqrt(0.5) + 1e-9


def test_smoothing_leaves_what_is_certain_and_fills_what_is_not() -> None:
    walk = np.array([0.0, 1.0, 3.0, 2.0, 5.0])[:, None, None]
    certain = np.full((5, 1), 1e-4)
    np.testing.assert_allclose(smooth(walk, certain)[0], walk, atol=1e-5)
    unsure = certain.copy()
    unsure[2] = 1e3
    wild_value = walk.copy()
    wild_value[2] = 500.0
    assert smooth(wild_value, unsure)[0][2, 0, 0] == pytest.approx(1.5, abs=0.1)


def test_an_empty_time_point_is_filled_from_its_neighbours() -> None:
    rng = np.random.default_rng(4)
    n = 20_000
    bins = rng.choice([0, 1, 3], (n, 1))
    z = np.array([-0.3, -0.1, 0.1, 0.3])[bins][..., None] + 0.05 * rng.standard_normal((n, 1, D))
    found = released(start(), z, bins, np.ones((n, 1), dtype=bool), SeededNoise(5))
    assert found.counts[2, 0] < 20
    assert -0.3 < found.means[2, 0, 0] < 0.5
    assert marginals(start(), np.zeros((T, 1, D + 1, D + 1))).counts.sum() == 0


def test_a_slope_along_time_is_not_smoothed_away() -> None:
    """Noise hides every step of a steady rise, but not the rise."""
    rise = np.arange(8.0)[:, None, None]
    unsure = np.full((8, 1), 10.0)
    kept, left = smooth(rise, unsure, trend=True)
    np.testing.assert_allclose(kept, rise, atol=1e-9)
    assert np.ptp(smooth(rise, unsure)[0]) < 4
    assert (left < 100).all()


def test_noise_alone_makes_no_shape_of_a_covariance() -> None:
    """Correlations of noise alone are drawn to 0; what is certain is left alone."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.3 / np.sqrt(2), (200, 1, 4, 4))
    noise = (noise + np.swapaxes(noise, -1, -2)) / np.sqrt(2) + np.zeros((200, 1, 4, 4))
    noise[..., range(4), range(4)] = rng.normal(0, 0.3, (200, 1, 4))
    plain = np.eye(4) + noise
    found = rounded(plain, np.full((200, 1), 0.09), widest=3.0)
    worst = np.linalg.eigvalsh(plain).min(), np.linalg.eigvalsh(found).min()
    assert worst[0] < 0 < worst[1]
    off = ~np.eye(4, dtype=bool)
    assert np.mean(found[..., off] ** 2) < np.mean(noise[..., off] ** 2) / 3
    assert np.diagonal(found, axis1=-2, axis2=-1).mean() == pytest.approx(1.0, abs=0.1)
    shape = (np.diag([4.0, 1.0, 1.0, 0.5]) + 0.2)[None, None]
    np.testing.assert_allclose(rounded(shape, np.full((1, 1), 1e-9), 3.0), shape, atol=1e-6)


def test_a_spread_that_noise_hides_is_not_what_noise_made_of_it() -> None:
    """E[σ | x] by another quadrature; a variance of .01 under noise of .02 is not doubled."""

    def chance(sd: float, x: float) -> float:
        return math.exp(-(((sd**2 - x) / 0.02) ** 2) / 2)

    for seen in (-0.03, 0.0, 0.01, 0.08):
        above, below = (
            quad(lambda s, x=seen, k=k: s**k * chance(s, x), 0, 1, points=[max(seen, 0) ** 0.5])[0]
            for k in (1, 0)
        )
        found = rounded(np.eye(2)[None, None] * seen, np.full((1, 1), 4e-4), 1.0)
        assert np.sqrt(found[0, 0, 0, 0]) == pytest.approx(above / below, rel=0.01)
    seen = 0.01 + 0.02 * np.random.default_rng(1).standard_normal((2000, 1, 1, 1)) * np.eye(3)
    spreads = np.sqrt(np.diagonal(rounded(seen, np.full((2000, 1), 4e-4), 1.0)[:, 0], 0, 1, 2))
    assert spreads.mean() == pytest.approx(0.1, rel=0.15)
    cut = np.sqrt(np.maximum(np.diagonal(seen[:, 0], 0, 1, 2), 0.0) + 0.02)
    assert cut.mean() > 0.15  # the twin that adds what noise may hide

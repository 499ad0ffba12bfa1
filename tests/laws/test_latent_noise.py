"""Laws of latent noise injection: what one row moves, and what it does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from tests.support.measured import inject

from penstock.base.errors import InvalidEvent
from penstock.mechanisms.tables.latent_noise import clip_latents, likely_present, thinned
from penstock.privacy.events import Gaussian
from penstock.privacy.measurements import LatentNoise
from penstock.privacy.noise import sources as noise
from penstock.privacy.noise.sources import SeededNoise

ALL = np.ones(6, dtype=bool)
LATENTS = arrays(np.float64, (6, 3), elements=st.floats(width=64))


@given(LATENTS, st.floats(1e-3, 1e3), st.floats(0.01, 0.99))
def test_one_row_moves_its_release_by_at_most_r_root_w(
    latents: np.ndarray, radius: float, w: float
) -> None:
    none = np.zeros(6, dtype=bool)
    with_row = inject(latents, ALL, w, radius, SeededNoise(1))
    without = inject(latents, none, w, radius, SeededNoise(1))
    moved = np.linalg.norm(with_row - without, axis=1)
    # Each of the two noisy sums is rounded to a grid of the noise's size: post-processing.
    grid = 2.0**-noise.GRID_BITS * math.sqrt(1 - w)
    assert moved.max() <= radius * math.sqrt(w) + math.sqrt(3) * grid + 1e-12 * (1 + radius)


@given(LATENTS, st.floats(1e-3, 1e3))
def test_clipped_latents_lie_within_the_radius(latents: np.ndarray, radius: float) -> None:
    assert np.linalg.norm(clip_latents(latents, ALL, radius), axis=1).max() <= radius


def test_latents_within_the_radius_are_kept() -> None:
    z = np.array([[0.3, -0.4], [3.0, 4.0]])
    clipped = clip_latents(z, np.ones(2, dtype=bool), 5.0 + 1e-9)
    assert np.array_equal(clipped, z)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_absent_and_unusable_rows_have_latent_zero(bad: float) -> None:
    z = np.array([[1.0, 2.0], [bad, 0.0], [1.0, 1.0]])
    clipped = clip_latents(z, np.array([False, True, True]), 10.0)
    assert np.array_equal(clipped, [[0, 0], [0, 0], [1, 1]])


def test_reaches_the_sensitivity_that_is_charged() -> None:
    w, radius = 0.6, 2.0
    z = np.full((6, 3), 100.0)
    moved = inject(z, ALL, w, radius, SeededNoise(1)) - inject(z, ~ALL, w, radius, SeededNoise(1))
    event = LatentNoise(w, radius).event
    assert isinstance(event, Gaussian)
    assert np.linalg.norm(moved, axis=1) == pytest.approx(radius * math.sqrt(w))
    noise_sd = event.noise_multiplier * radius * math.sqrt(w)
    assert noise_sd == pytest.approx(math.sqrt(1 - w))


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (0.5, False), (2.0, False)])
@pytest.mark.parametrize("w", [0.0, 0.3, 0.9])
def test_noise_has_variance_one_minus_w(w: float, factor: float, right: bool) -> None:
    # Two-sided chi-square test, false alarm 1e-9 a case; the other factors are planted faults.
    z = inject(np.ones((4000, 2)), np.zeros(4000, dtype=bool), w, 3.0, SeededNoise(4))
    statistic = float(((factor * z) ** 2).sum() / (1 - w))
    low, high = stats.chi2.ppf([5e-10, 1 - 5e-10], z.size)
    assert bool(low < statistic < high) is right


def test_w_zero_does_not_look_at_the_rows() -> None:
    a = inject(np.ones((6, 3)), ALL, 0.0, 3.0, SeededNoise(9))
    b = inject(np.full((6, 3), -7.0), ~ALL, 0.0, 3.0, SeededNoise(9))
    assert np.array_equal(a, b)


@pytest.mark.parametrize("w", [-0.1, 1.0, math.nan])
def test_impossible_weights_are_refused(w: float) -> None:
    with pytest.raises(InvalidEvent):
        inject(np.zeros((6, 3)), ALL, w, 3.0, SeededNoise(0))


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf])
def test_impossible_radii_are_refused(radius: float) -> None:
    with pytest.raises(InvalidEvent):
        inject(np.zeros((6, 3)), ALL, 0.5, radius, SeededNoise(0))


# -- null records among the rows -------------------------------------------------------------------


@pytest.mark.parametrize("w", [0.3, 0.7, 0.95])
@pytest.mark.parametrize("radius", [1.5, 100.0])
def test_null_records_of_a_frame_twice_the_cohort_do_not_thin_its_spread(
    w: float, radius: float
) -> None:
    """Half of the latents are null records', of variance 1 - w; those that leave are as if none.

    The mean square of 20,000 rows in 4 dimensions has a relative standard error of .005. Taken
    evenly, the rows' would be too small by half of w's part: a planted fault, at least 7 %.
    """
    n, d, noise = 40_000, 4, SeededNoise(3)
    there = np.arange(n) % 2 == 0
    z = inject(np.random.default_rng(1).standard_normal((n, d)), there, w, radius, noise)
    wanted = float((z[there] ** 2).mean())
    kept = thinned(likely_present(z, 0.5, w, radius), n // 2, noise)
    assert len(set(kept.tolist())) == n // 2
    # Clipped latents lie on a sphere more than a normal's would: the weights know their size only.
    assert (z[kept] ** 2).mean() == pytest.approx(wanted, rel=0.05)
    evenly = thinned(np.ones(n), n // 2, noise)
    assert (z[evenly] ** 2).mean() < 0.94 * wanted
    # In no order that would tell rows apart.
    halves = np.split(z[kept], 2)
    assert (halves[0] ** 2).mean() == pytest.approx((halves[1] ** 2).mean(), rel=0.05)


def test_where_all_are_there_all_are_likely() -> None:
    assert np.array_equal(likely_present(np.zeros((3, 2)), 1.0, 0.5, 2.0), np.ones(3))
    far = likely_present(np.array([[90.0, 0.0], [0.0, 0.0]]), 0.5, 0.99, 5.0)
    assert far[0] == 1.0
    assert 0 <= far[1] < 0.1


def test_thinning_takes_what_is_likely_and_fills_up_with_the_rest() -> None:
    likely = np.array([1.0, 0.0, 1.0, 0.0, 1.0])
    assert sorted(thinned(likely, 3, SeededNoise(0)).tolist()) == [0, 2, 4]
    assert len(set(thinned(likely, 4, SeededNoise(0)).tolist())) == 4
    assert sorted(thinned(np.zeros(3), 3, SeededNoise(0)).tolist()) == [0, 1, 2]

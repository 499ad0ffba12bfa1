"""How rows lie within bins, against distributions whose bins are known exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import expon, gamma, lognorm, norm, uniform

from penstock.mechanisms.copula.bin_curves import Curves

ALONG = np.linspace(0, 1, 51)


def miss(law, edges: np.ndarray) -> float:
    """By how much the distribution function is off, at most, between the edges."""
    risen = law.cdf(edges)
    risen[[0, -1]] = 0, 1
    shares = np.diff(risen)
    curves = Curves.of(edges, shares, False)
    off = 0.0
    for k, share in enumerate(shares):
        places = edges[k] + ALONG * (edges[k + 1] - edges[k])
        found = risen[k] + share * curves.rise(np.full(len(ALONG), k), ALONG)
        off = max(off, float(np.abs(found - law.cdf(places)).max()))
    return off


@pytest.mark.parametrize("width", [0.25, 0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("start", [0.0, 0.3, 0.5])
def test_a_gaussian_is_known_however_wide_its_bins_are(width: float, start: float) -> None:
    """A line of densities is off by .02 at bins of 1 sd, and by .10 at 2 sds."""
    assert miss(norm, (np.arange(33) - 16 + start) * width) < (1e-4 if width <= 1 else 0.006)


@pytest.mark.parametrize(
    ("law", "edges", "most"),
    [
        (uniform, np.linspace(0, 1, 33), 2e-4),
        (expon, np.arange(33) * 0.5, 0.008),
        (gamma(3), np.arange(33) * 0.5, 0.004),
        (lognorm(0.6), np.arange(33) * 0.25, 0.006),
        (norm, np.array([-30.0, -4.0, -1.0, -0.5, 0.7, 1.2, 4.0, 30.0]), 0.04),
    ],
    ids=["uniform", "exponential", "gamma", "log-normal", "uneven bins"],
)
def test_other_distributions_are_near(law, edges: np.ndarray, most: float) -> None:
    assert miss(law, edges) < most


@given(
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=40).filter(lambda s: sum(s) > 0.1),
    seed=st.integers(0, 1000),
    steps=st.booleans(),
)
def test_each_bin_rises_from_none_to_all_and_back(
    shares: list[float], seed: int, steps: bool
) -> None:
    """Piles, gaps and empty ends among them."""
    rng, bins = np.random.default_rng(seed), len(shares)
    edges = np.append(0.0, np.cumsum(rng.uniform(0.1, 1, bins)))
    floored = np.array(shares) + 1e-7
    curves = Curves.of(edges, floored / floored.sum(), steps)
    for k in range(bins):
        at = np.full(len(ALONG), k)
        rise, back = curves.rise(at, ALONG), curves.find(at, ALONG)
        assert rise[0] == pytest.approx(0, abs=1e-7)
        assert rise[-1] == pytest.approx(1, abs=1e-7)
        assert np.diff(rise).min() > -1e-7
        assert back[0] == pytest.approx(0, abs=1e-7)
        assert back[-1] == pytest.approx(1, abs=1e-7)
        assert np.abs(curves.rise(at, back) - ALONG).max() < 1e-6


def test_steps_and_two_bins_have_lines() -> None:
    for edges, steps in ((np.linspace(0, 1, 6), True), (np.array([0.0, 1.0, 2.0]), False)):
        bins = len(edges) - 1
        curves = Curves.of(edges, np.full(bins, 1 / bins), steps)
        assert np.allclose(curves.rise(np.zeros(len(ALONG), dtype=np.intp), ALONG), ALONG)


def test_a_pile_draws_its_neighbours_to_no_side() -> None:
    shares = np.full(33, 0.5 / 32)
    shares[16] = 0.5
    curves = Curves.of(np.linspace(0, 1, 34), shares, False)
    for k in (15, 16, 17):
        assert curves.rise(np.array([k]), np.array([0.5])) == pytest.approx(0.5, abs=0.02)

"""The combining rule's variance against simulated plug-in synthesis.

R = 8000 repeats. Σ(q̄ − truth)²/(R·E[T]) is χ²(R)/R where T is right; it must lie within ±6
standard deviations, ±6·√(2/R) = ±.095: a false-alarm rate below 1e-8 for each of the tests.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock_server.meta.combine import combine
from penstock_server.meta.estimands import Estimate

REPEATS, ROWS, COPIES = 8000, 50, 4
BAND = 6 * math.sqrt(2 / REPEATS)


def ratio(mechanism_sd: float, told: float) -> tuple[float, float]:
    """Mean squared error of q̄ over the mean of T, and over the mean of ū: the mean of a normal."""
    rng = np.random.default_rng(7)
    errors, totals, withins = [], [], []
    for _ in range(REPEATS):
        real = rng.normal(size=ROWS)
        centre = real.mean() + mechanism_sd * rng.normal()
        copies = rng.normal(centre, real.std(ddof=1), size=(COPIES, ROWS))
        site = combine(
            [Estimate(c.mean(), c.var(ddof=1) / ROWS, ROWS, None, True) for c in copies],
            mechanism_variance=told**2,
        )
        errors.append(site.estimate**2)
        totals.append(site.variance)
        withins.append(site.within)
    mse = float(np.mean(errors))
    return mse / float(np.mean(totals)), mse / float(np.mean(withins))


def test_variance_covers_sampling_and_synthesis() -> None:
    total, within = ratio(0.0, 0.0)
    assert total == pytest.approx(1.0, abs=BAND)
    assert within > 1 + BAND  # the twin that forgets the synthesis is caught


@pytest.mark.parametrize(("told", "covers"), [(0.1, True), (0.0, False)])
def test_mechanism_noise_is_covered_only_where_it_is_told(told: float, covers: bool) -> None:
    total, _ = ratio(0.1, told)
    assert (abs(total - 1.0) < BAND) == covers

"""The combining rule's variance against simulated plug-in synthesis.

R = 8000 repeats. Σ(q̄ − truth)²/(R·E[T]) is χ²(R)/R where T is right; it must lie within ±6
standard deviations, ±6·√(2/R) = ±.095: a false-alarm rate below 1e-8 for each of the tests.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from penstock_server.meta.combine import combine, mechanism_variance
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


@pytest.mark.parametrize(("count", "right"), [(ROWS, True), (2 * ROWS, True), (2 * ROWS, False)])
def test_refits_show_the_mechanisms_variance_whatever_their_own_count(
    count: int, right: bool
) -> None:
    """Pseudo-rows are as many as the copies', a refit's table as many as it counted.

    B = 8000 refits of a mean, by a mechanism of sd .1: mean (θ* - q̄)² has a relative standard error
    of √(2/B) = .016, .0008 of .05; six of them are the band. The twin takes both for the table's.
    """
    rng, sd = np.random.default_rng(11), 0.1
    released = combine([Estimate(0.0, 1 / ROWS, ROWS, None, True)] * 4)
    refits = []
    for _ in range(REPEATS):
        pseudo = rng.normal(size=ROWS)
        table = rng.normal(pseudo.mean() + sd * rng.normal(), pseudo.std(ddof=1), count)
        told = count if right else ROWS
        refits.append(Estimate(table.mean(), table.var(ddof=1) / count, told, None, True))
    found = mechanism_variance(released, refits)
    assert found is not None
    assert (abs(found - sd**2) < 6 * 0.05 * math.sqrt(2 / REPEATS)) == right


def test_an_answer_without_a_count_has_no_refits_to_compare() -> None:
    released = replace(combine([Estimate(0.0, 1.0, 9, None, True)]), n=None)
    assert mechanism_variance(released, [Estimate(0.0, 1.0, 9, None, True)]) is None

"""Counts of sites, added up; and a site's own, of copies and refits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from penstock.inference.combine import SiteEstimate, combine
from penstock.inference.refits import Spread, spread, widened
from penstock.inference.totals import add_up
from penstock.mechanisms.released import Refitting
from penstock.questions.estimation import Estimate


def site(estimate: float, variance: float, df: float = math.inf) -> SiteEstimate:
    return SiteEstimate(estimate, variance, variance, None, None, None, 1, 1, df=df, total=True)


def test_a_total_is_a_sum_and_its_variance_one_of_variances() -> None:
    found = add_up([site(120.0, 16.0), site(-3.0, 9.0), site(40.0, 25.0)])
    assert (found.estimate, found.k, found.df) == (157.0, 3, None)
    assert found.se**2 == pytest.approx(50.0)
    half = stats.norm.ppf(0.975) * math.sqrt(50)
    assert (found.ci_low, found.ci_high) == pytest.approx((157 - half, 157 + half))
    assert found.weights == (0.75, 0.0, 0.25)
    assert (found.tau2, found.pi_low, found.i2) == (0.0, None, 0.0)


def test_the_degrees_of_freedom_of_a_total_are_satterthwaites() -> None:
    found = add_up([site(10.0, 4.0, 6.0), site(20.0, 12.0, 18.0)])
    assert found.df == pytest.approx(16**2 / (16 / 6 + 144 / 18))
    assert found.ci_high - 30 == pytest.approx(4 * stats.t.ppf(0.975, found.df))


def test_of_one_site_it_is_the_sites_own() -> None:
    found = add_up([site(7.0, 4.0, 5.0)])
    assert (found.estimate, found.se, found.df) == (7.0, 2.0, 5.0)


def copy(count: float, variance: float = 50.0) -> Estimate:
    return Estimate(count, variance, 400, None, converged=True)


def test_a_sites_own_rows_are_not_drawn() -> None:
    copies = [copy(100.0), copy(110.0)]
    of_rows, of_persons = combine(copies, total=True), combine(copies)
    assert of_rows.variance == pytest.approx(50 / 2)
    assert of_persons.variance == pytest.approx(50 * 1.5)


@pytest.mark.parametrize("square", [20.0, 50.0, 60.0, 500.0])
def test_what_refits_show_is_told_apart_from_what_they_are_drawn_with(square: float) -> None:
    """d given S is that of a normal above 0; where S says nothing of d, d is not taken for 0."""
    plain = combine([copy(100.0), copy(110.0)], total=True)
    found = widened(plain, Spread(square, 50.0, 20.0, 400))
    sd = max(square, 50.0) * math.sqrt(2 / 20)
    cut = stats.truncnorm((50.0 - square) / sd, math.inf, loc=square - 50.0, scale=sd)
    assert found.mechanism_variance == pytest.approx(cut.mean(), rel=1e-6)
    assert found.variance == pytest.approx(25.0 + cut.mean(), rel=1e-6)
    assert found.df == pytest.approx(2 * found.variance**2 / cut.var(), rel=1e-6)
    assert found.df > 4


def test_intervals_of_a_count_hold_it_whatever_the_mechanism_adds() -> None:
    """A site whose copies are drawn from a model that is off by noise of variance d."""
    rng, n, k, m, refits = np.random.default_rng(20261123), 1000, 250, 10, 20
    for added in (0.0, 40.0, 400.0):
        held = []
        for _ in range(1500):
            centre = k + math.sqrt(added) * rng.normal()
            drawn = rng.binomial(n, np.clip(centre / n, 0.001, 1), m)
            off = math.sqrt(added) * rng.normal(size=refits)
            again = rng.binomial(n, np.clip((drawn[np.arange(refits) % m] + off) / n, 0.001, 1))
            fitted, refitted = (
                [replace(copy(float(x), x * (1 - x / n)), n=n) for x in of] for of in (drawn, again)
            )
            plain = combine(fitted, total=True)
            found = widened(plain, spread(plain, refitted, fitted))
            reach = stats.t.ppf(0.975, found.df) * math.sqrt(found.variance)
            held.append(abs(found.estimate - k) <= reach)
        # Without any noise the interval is too wide, as refits cannot tell that there is none.
        assert 0.93 < np.mean(held) <= (0.97 if added > 300 else 1.0), (added, np.mean(held))


def test_without_a_copy_that_has_an_estimate_refits_show_nothing() -> None:
    """Of a small site no copy may hold a curve at a time, and its refits may."""
    none = Estimate(math.nan, math.nan, 28, 0, converged=False, problem="no curve there")
    refit = Estimate(-2.5, 0.4, 30, 20, converged=True)
    released = combine([none, none])
    assert released.problem is not None
    assert spread(released, [refit, refit], (), Refitting(of_copies=False)) is None
    assert spread(released, [refit, refit], [none, none]) is None

"""The outcome's score: what one person moves, its noise, and what it brings to a sample."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy.special import ndtri
from tests.support.early import before_noise, distance, has_unit_variance, scaled_variance, wild
from tests.support.measured import noisy_score

from penstock.base.errors import InvalidEvent
from penstock.mechanisms.tables import outcome
from penstock.mechanisms.tables.margins import BINS, clamp
from penstock.mechanisms.tables.moments import Affine, clip_rows
from penstock.mechanisms.tables.outcome import (
    Hazard,
    match_score,
    measure_scores,
    outcome_clip,
    restore_shares,
)
from penstock.privacy.noise.sources import SeededNoise
from penstock.schema.encoding import Outcome

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
QUIET = SeededNoise(0)
TIME, EVENT, END = OUTCOME = Outcome(0, 1, 2)
LOW, HIGH = np.full(5, -2.0), np.full(5, 2.0)
D = 5


def hazard(d: int = D, whiten: float = 1.0) -> Hazard:
    """Λ rises from 0 to 3 over the box; covariates are whitened already."""
    times, cumulative = np.array([-2.0, 0.0, 2.0]), np.array([0.0, 0.5, 3.0])
    others = list(range(3, d))
    return Hazard(OUTCOME, others, times, cumulative, np.zeros(d - 3), whiten * np.eye(d - 3))


def whole_score(
    values: Array, scores: Array, present: Bools, theta: Array, known: Hazard
) -> tuple[list[int], Fraction]:
    """The sum before its noise, exactly."""
    with before_noise() as seen:
        noisy_score(known, values, scores, present, theta, 1.0, QUIET, 1)
    return seen[0]


def squared_clip(d: int = D) -> Fraction:
    return Fraction(outcome_clip(d)) ** 2


# What one person moves ------------------------------------------------------------------------

thetas = hnp.arrays(np.float64, D - 2, elements=st.floats(-20, 20))


@pytest.mark.parametrize("k", [1, 3])
def test_a_persons_score_is_bounded_in_whole_numbers(k: int) -> None:
    linear = Affine(np.diag([0.5, 1.0, 1.0, 1e-3, 20.0]), np.array([0.1, 0.0, 0.0, 1.0, -1.0]))

    @settings(max_examples=120, deadline=None, database=None)
    @given(
        rows=hnp.arrays(np.float64, (2, k, D), elements=wild | st.floats(-3, 3)),
        there=hnp.arrays(np.bool_, (2, k)),
        theta=thetas,
        whiten=st.sampled_from([1e-3, 1.0, 50.0]),
    )
    def moves_no_more(rows: Array, there: Bools, theta: Array, whiten: float) -> None:
        gone, known = there.copy(), hazard(whiten=whiten)
        gone[1] = False
        worlds = []
        for raw, present in ((rows, there), (np.where(gone[..., None], rows, 0.0), gone)):
            values = clamp(raw, LOW, HIGH)
            worlds.append(whole_score(values, linear.invert(values), present, theta, known))
        assert distance(*worlds) <= squared_clip()

    moves_no_more()


@settings(max_examples=120, deadline=None)
@given(
    rows=hnp.arrays(np.float64, (1, 3, D), elements=wild | st.floats(-3, 3)),
    scores=hnp.arrays(np.float64, (1, 3, D), elements=wild | st.floats(-3, 3)),
    theta=thetas,
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_bound_does_not_rest_on_what_came_before(
    rows: Array, scores: Array, theta: Array
) -> None:
    whole, unit = whole_score(rows, scores, np.ones((1, 3), dtype=bool), theta, hazard())
    assert sum(v**2 for v in whole) * unit**2 <= squared_clip()


def far(k: int = 3, d: int = D) -> tuple[Array, Array]:
    """Values and scores (1, k, d) of one person, each of whose rows alone is beyond C."""
    values = np.zeros((1, k, d))
    values[..., TIME], values[..., EVENT] = 2.0, -1.0
    return values, np.ones((1, k, d))


def moved_by_far() -> float:
    """By how much that person moves the sum, in units of C."""
    whole, unit = whole_score(*far(), np.ones((1, 3), dtype=bool), np.ones(D - 2), hazard())
    return math.sqrt(sum(v**2 for v in whole) * unit**2 / squared_clip())


def test_a_clipped_score_comes_as_close_to_its_bound_as_whole_numbers_can() -> None:
    assert 1 - 1e-5 < moved_by_far() <= 1


def test_a_clip_that_fails_leaves_a_person_out() -> None:
    def by_a_hair(y: Array, radius: float) -> Array:
        return clip_rows(y, radius * (1 + 1e-6))

    for fault in (by_a_hair, lambda y, radius: y):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(outcome, "clip_rows", fault)
            assert moved_by_far() == 0


def test_the_absent_contribute_nothing() -> None:
    values, scores = far(k=3)
    nobody = np.zeros((1, 3), dtype=bool)
    assert not any(whole_score(values, scores, nobody, np.ones(D - 2), hazard())[0])
    # An absent row says nothing, of a person who is there.
    rng = np.random.default_rng(0)
    values, scores = rng.uniform(-2, 2, (2, 20, 3, D))
    present = rng.random((20, 3)) < 0.5
    a, b = (
        whole_score(
            np.where(present[..., None], values, other),
            np.where(present[..., None], scores, other),
            present,
            np.array([0.1, 0.2, -0.3]),
            hazard(),
        )
        for other in (0.0, 1.7)
    )
    assert a == b
    assert any(a[0])


def test_the_sum_is_that_of_the_clipped_scores() -> None:
    rng = np.random.default_rng(1)
    values, scores = rng.uniform(-2, 2, (2, 50, 2, D))
    present = rng.random((50, 2)) < 0.8
    theta, known, wanted = np.array([-0.5, 0.4, 0.1]), hazard(), np.zeros(D - 2)
    for person in range(50):
        score = np.zeros(D - 2)
        for row in np.flatnonzero(present[person]):
            z, (t, event, end) = np.append(1.0, scores[person, row, 3:]), values[person, row, :3]
            rate = 3.0 if end > 0 >= event else np.interp(t, known.times, known.cumulative)
            score += z * ((event > 0) - rate * math.exp(z @ theta))
        wanted += score * min(1.0, outcome_clip(D) / max(float(np.linalg.norm(score)), 1e-9))
    found = noisy_score(known, values, scores, present, theta, None, QUIET, 1)
    np.testing.assert_allclose(found, wanted, atol=50 * outcome_clip(D) * 2**-22)


# The noise ------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcomes", [1, 2])
@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (0.5, False), (2.0, False)])
def test_the_noise_has_the_claimed_variance(factor: float, right: bool, outcomes: int) -> None:
    # The other factors are planted faults.
    d, sigma = 1001, 1.7
    nobody = np.zeros((1, 1), dtype=bool)
    rows, theta = np.zeros((1, 1, d)), np.zeros(d - 2)
    with scaled_variance(factor):
        released = noisy_score(
            hazard(d), rows, rows, nobody, theta, sigma, SeededNoise(3), outcomes
        )
    event = measure_scores(sigma, d, outcomes).event
    assert event.sensitivity == pytest.approx(outcome_clip(d) * math.sqrt(outcomes))
    assert event.size == outcomes * len(released)
    assert event.grid_sd >= 2**40
    assert has_unit_variance(released / (sigma * event.sensitivity)) is right


def test_noise_hides_the_same_whole_numbers_whatever_the_sigma() -> None:
    there = np.ones((1, 3), dtype=bool)
    exact, noisy = (
        noisy_score(hazard(), *far(), there, np.ones(D - 2), sigma, QUIET, 1)
        for sigma in (None, 1e-9)
    )
    assert 0 < np.abs(noisy - exact).max() < 1e-7


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_noise_is_refused(sigma: float) -> None:
    there = np.ones((1, 3), dtype=bool)
    with pytest.raises(InvalidEvent):
        noisy_score(hazard(), *far(), there, np.ones(D - 2), sigma, QUIET, 1)


# The hazard and its coefficients --------------------------------------------------------------


def cohort(n: int, effects: Array, seed: int) -> Array:
    """Values (n, 5) in the box: time, event, end, and two covariates that act on the hazard.

    Who is followed for 3 (to 1 in the box) without an event has reached the end.
    """
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 0.6, (n, 2)).clip(-2, 2)
    failure = rng.exponential(2.0, n) * np.exp(-z @ effects)
    censored = rng.uniform(0.5, 4.0, n)
    ended = np.where(np.minimum(failure, censored) > 3, 1.0, -1.0)
    # Where a time stands for the end, no time is to be read.
    time = np.where(ended > 0, rng.uniform(-0.5, 0.5, n), np.minimum(failure, censored) - 2)
    event = np.where((failure <= censored) & (ended < 0), 1.0, -1.0)
    return np.column_stack([time, event, ended, z])


def histograms(values: Array) -> tuple[Array, float, Array]:
    """Counts (2, BINS) of a cohort's times by event, and at the end; the edges."""
    edges = np.linspace(-2.0, 2.0, BINS + 1)
    happened, early = values[:, EVENT] > 0, values[:, END] < 0
    halves = [np.histogram(values[early & (happened == e), TIME], edges)[0] for e in (0, 1)]
    return np.array(halves, dtype=np.float64), float((~early).sum()), edges


def moments_of(scores: Array) -> Array:
    y = np.column_stack([scores, np.ones(len(scores))])
    moments: Array = y.T @ y / len(y)
    return moments


def estimated(values: Array) -> Hazard:
    """As the mechanism has it; here scores are the values themselves."""
    return Hazard.estimate(OUTCOME, *histograms(values), moments_of(values))


def test_the_cumulative_hazard_is_nelson_and_aalens_up_to_binning() -> None:
    values = cohort(4000, np.zeros(2), 0)
    times = np.where(values[:, END] > 0, 1.0, values[:, TIME])
    happened = values[:, EVENT] > 0
    order = np.argsort(times)
    jumps = happened[order] / np.arange(len(times), 0, -1)
    found = estimated(values)
    at = found.times[1:48]  # a bin before the end
    textbook = np.array([jumps[times[order] <= t].sum() for t in at])
    assert 0.05 < (values[:, END] > 0).mean() < (times > at[-1]).mean() < 0.3
    np.testing.assert_allclose(found.cumulative[1:48], textbook, rtol=2e-3, atol=1e-4)
    # Whoever reached the end lived through all of it, whatever stands for the time.
    reached = found.parts(values, values)[2][values[:, END] > 0]
    np.testing.assert_array_equal(reached, found.cumulative[-1])


def test_the_cumulative_hazard_of_a_few_bins() -> None:
    halves = np.array([[1.0, 0.0, 2.0, 1.0], [2.0, 1.0, 0.0, 3.0]])
    found = Hazard.estimate(OUTCOME, halves, 4.0, np.arange(5.0), moments_of(np.eye(5)))
    # At risk in the middle of a bin: 12.5, 10.5, 9 and 6 of the fourteen.
    expected = np.cumsum([0.0, 2 / 12.5, 1 / 10.5, 0.0, 3 / 6])
    np.testing.assert_allclose(found.cumulative, expected, rtol=1e-12)
    assert found.covariates == [3, 4]


@pytest.mark.parametrize("seed", range(5))
def test_a_hazard_from_pure_noise_is_finite_and_rises(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 50.0, (2, BINS))
    edges = np.linspace(-2, 2, BINS + 1)
    found = Hazard.estimate(OUTCOME, noise, -50.0, edges, np.eye(6))
    assert np.isfinite(found.cumulative).all()
    assert (np.diff(found.cumulative) >= 0).all()
    assert np.isfinite(found.coefficients(*(cohort(200, np.zeros(2), seed),) * 2)).all()


def test_the_coefficients_are_those_of_a_poisson_regression() -> None:
    values = cohort(800, np.array([0.8, -0.4]), 1)
    known = estimated(values)
    z, happened, reached = known.parts(values, values)
    assert reached.min() > 0
    peer = sm.GLM(happened, z, sm.families.Poisson(), offset=np.log(reached)).fit(tol=1e-12)
    # The ridge is on the Newton step alone: it slows the way, and does not move its end.
    np.testing.assert_allclose(known.coefficients(values, values), peer.params, atol=1e-6)


def test_whitened_covariates_are_uncorrelated() -> None:
    values = cohort(2000, np.zeros(2), 2)
    values[:, 4] += 0.8 * values[:, 3]
    z = estimated(values).parts(values, values)[0]
    np.testing.assert_allclose(z.T @ z / len(z), np.eye(3), atol=1e-9)


# The move -------------------------------------------------------------------------------------


def seen(y: Array) -> tuple[Array, Array]:
    """A sample as rows are seen: within the box, events ±1; scores are the values."""
    values = clamp(y, LOW, HIGH)
    values[:, EVENT] = np.where(y[:, EVENT] > 0, 1.0, -1.0)
    values[:, END] = np.where(y[:, END] > 0, 1.0, -1.0)
    return values, values


def mean_score(known: Hazard, theta: Array, y: Array) -> Array:
    mean: Array = clip_rows(known.scores_of(*seen(y), theta), outcome_clip(D)).mean(axis=0)
    return mean


@dataclasses.dataclass(frozen=True)
class Setting:
    """Rows whose hazard depends on covariates; a sample whose does not."""

    rows: Array
    sample: Array
    known: Hazard
    theta: Array
    goal: Array

    def match(self, goal: Array, sd: float) -> Affine:
        return match_score(self.known, self.theta, goal, sd, self.sample, seen)


@pytest.fixture(scope="module")
def setting() -> Setting:
    rows, sample = cohort(6000, np.array([0.5, -0.3]), 3), cohort(6000, np.zeros(2), 4)
    known = estimated(rows)
    theta = known.coefficients(*seen(sample))
    return Setting(rows, sample, known, theta, mean_score(known, theta, rows))


def test_the_match_reaches_its_goal(setting: Setting) -> None:
    known, theta, sample = setting.known, setting.theta, setting.sample
    assert np.abs(mean_score(known, theta, sample) - setting.goal).max() > 0.05
    moved = setting.match(setting.goal, 0.0).apply(sample)
    found = mean_score(known, theta, moved)
    np.testing.assert_allclose(found[1:], setting.goal[1:], atol=1e-3)
    assert np.array_equal(np.delete(moved, TIME, axis=1), np.delete(sample, TIME, axis=1))


def test_the_match_leaves_times_where_the_margins_have_them(setting: Setting) -> None:
    """However far the first entry's goal lies: it once moved all times, and survival with them."""
    far = setting.goal + np.append(0.3, np.zeros(D - 3))
    moved = setting.match(far, 0.0).apply(setting.sample)
    assert np.abs(moved - setting.sample).max() > 0.05
    for who in (setting.sample[:, EVENT] > 0, setting.sample[:, EVENT] <= 0):
        before, after = setting.sample[who, TIME], moved[who, TIME]
        assert abs(after.mean() - before.mean()) < 0.12
        assert after.std() == pytest.approx(before.std(), rel=0.1)


@pytest.mark.parametrize("shares", [(0.2, 0.3, 0.5), (0.7, 0.2, 0.1), (0.05, 0.9, 0.05)])
def test_an_outcomes_states_get_the_shares_that_were_counted(shares: tuple[float, ...]) -> None:
    rng = np.random.default_rng(8)
    sample = rng.normal(size=(20_000, D)) @ np.linalg.cholesky(0.6 * np.eye(D) + 0.4).T + 0.2
    found = restore_shares(OUTCOME, np.array(shares) * 700, sample).apply(sample)
    event = found[:, EVENT] > ndtri(1 - shares[2])
    end = ~event & (found[:, END] > ndtri(shares[0] / (shares[0] + shares[1])))
    np.testing.assert_allclose([end.mean(), event.mean()], shares[1:], atol=2e-4)
    others = [j for j in range(D) if j not in (EVENT, END)]
    np.testing.assert_array_equal(found[:, others], sample[:, others])


@given(counts=hnp.arrays(np.float64, 3, elements=st.floats(1e-7, 1e6)), size=st.integers(1, 40))
def test_shares_of_whatever_was_counted_move_a_sample_little(counts: Array, size: int) -> None:
    found = restore_shares(OUTCOME, counts, cohort(size, np.zeros(2), 5))
    assert np.isfinite(found.shift).all()
    assert np.abs(found.shift).max() <= 1


def test_a_fit_to_the_matched_sample_is_near_that_to_the_rows(setting: Setting) -> None:
    def error(change: Callable[[Array], Array]) -> float:
        moved = change(setting.sample)
        fits = [estimated(y).coefficients(*seen(y))[1:] for y in (moved, setting.rows)]
        return float(np.abs(fits[0] - fits[1]).max())

    match = setting.match(setting.goal, 0.0)
    wrong = Affine(2 * np.eye(D) - match.matrix, -match.shift)
    before = error(lambda y: y)
    assert error(match.apply) < 0.35 * before
    assert error(wrong.apply) > 1.2 * before


def test_noise_shrinks_the_match(setting: Setting) -> None:
    sizes = []
    for sd in (0.0, 0.007, 1e3):
        match = setting.match(setting.goal, sd)
        sizes.append(np.abs(match.apply(setting.sample) - setting.sample).max())
    assert sizes[0] > sizes[1] > 0.2 * sizes[0]
    assert sizes[2] < 1e-6


@settings(max_examples=25, deadline=None)
@given(goal=hnp.arrays(np.float64, D - 2, elements=st.floats(-1e9, 1e9)), sd=st.floats(0, 1e6))
def test_whatever_was_released_the_map_is_finite_and_invertible(goal: Array, sd: float) -> None:
    sample = cohort(200, np.zeros(2), 5)
    match = match_score(hazard(), np.zeros(D - 2), goal, sd, sample, seen)
    assert np.isfinite(match.matrix).all()
    np.testing.assert_allclose(match.invert(match.apply(sample)), sample, atol=1e-9)


def test_durations_without_covariates_stay_where_they_are() -> None:
    values = cohort(500, np.zeros(2), 6)[:, :3]
    known = Hazard.estimate(OUTCOME, *histograms(values), moments_of(values))

    def observe(y: Array) -> tuple[Array, Array]:
        return (clamp(y, LOW[:3], HIGH[:3]),) * 2

    theta = known.coefficients(values, values)
    match = match_score(known, theta, np.full(1, 0.05), 0.0, values, observe)
    np.testing.assert_allclose(match.apply(values), values, atol=1e-12)

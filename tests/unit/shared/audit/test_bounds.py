"""Bounds from attacks: valid at their confidence (exactly, not by simulation), and not idle."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from penstock.audit.bounds import (
    GATE,
    Test,
    clopper_pearson,
    one_run,
    one_run_p_value,
    two_world,
    two_world_gaussian,
    two_world_kind,
)
from penstock.base.errors import InvalidInput
from penstock.privacy.accounting import gaussian, pld

HALF = Test(0.5, above=True)


def responses(ones: int, n: int) -> np.ndarray:
    return (np.arange(n) < ones).astype(float)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_two_world_bounds_exceed_the_truth_no_more_often_than_they_may(
    epsilon: float, confidence: float
) -> None:
    # Randomised response: P(1 | with) = e^ε/(1+e^ε), so that its ε is exact. Sum over all counts.
    n = 30
    share = 1 / (1 + math.exp(-epsilon))
    wrong = 0.0
    for k1 in range(n + 1):
        for k0 in range(n + 1):
            bound = two_world(responses(k0, n), responses(k1, n), 0.0, confidence, test=HALF)
            if bound.epsilon > epsilon:
                wrong += stats.binom.pmf(k1, n, share) * stats.binom.pmf(k0, n, 1 - share)
    assert wrong <= 1 - confidence


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-4])
@pytest.mark.parametrize("confidence", [0.9, 0.95, GATE])
def test_one_run_bounds_exceed_the_truth_no_more_often_than_they_may(
    epsilon: float, delta: float, confidence: float
) -> None:
    # m independent randomised responses are (ε, 0)-DP, hence (ε, δ); all coins are guessed.
    m = 60
    share = 1 / (1 + math.exp(-epsilon))
    wrong = sum(
        stats.binom.pmf(v, m, share)
        for v in range(m + 1)
        if one_run(m, m, v, delta, confidence).epsilon > epsilon
    )
    assert wrong <= 1 - confidence


def p_value_by_mpmath(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    with mpmath.workdps(50):
        share = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        pmf = [mpmath.binomial(r, k) * share**k * (1 - share) ** (r - k) for k in range(r + 1)]
        largest = max(mpmath.fsum(pmf[max(v - i, 0) : v]) / i for i in range(1, m + 1))
        return float(min(mpmath.fsum(pmf[v:]) + 2 * m * mpmath.mpf(delta) * largest, 1))


@pytest.mark.parametrize("delta", [0.0, 1e-9, 1e-3])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 4.0])
@pytest.mark.parametrize(("m", "r"), [(1, 1), (5, 3), (40, 40), (200, 30)])
def test_one_run_p_value_agrees_with_mpmath(m: int, r: int, epsilon: float, delta: float) -> None:
    for v in range(r + 1):
        expected = p_value_by_mpmath(m, r, v, epsilon, delta)
        assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(expected, rel=1e-9)


def test_more_right_guesses_show_more_and_more_confidence_shows_less() -> None:
    by_right = [one_run(100, 80, v, 1e-5, 0.95).epsilon for v in range(81)]
    assert by_right == sorted(by_right)
    assert by_right[40] == 0 < by_right[70]
    by_confidence = [one_run(100, 80, 75, 1e-5, c).epsilon for c in (0.5, 0.9, 0.95, GATE)]
    assert by_confidence == sorted(by_confidence, reverse=True)
    by_delta = [one_run(100, 80, 75, d, 0.95).epsilon for d in (0.0, 1e-5, 1e-3)]
    assert by_delta == sorted(by_delta, reverse=True)


def test_what_one_run_returns_was_itself_refuted() -> None:
    for v in range(50, 81):
        bound = one_run(100, 80, v, 1e-5, 0.95)
        assert bound.epsilon == 0 or one_run_p_value(100, 80, v, bound.epsilon, 1e-5) <= 0.05


def test_clopper_pearson_is_the_binomials_own_tail() -> None:
    low, up = clopper_pearson(np.array([0, 7, 50]), 50, 1e-7)
    assert low[0] == 0
    assert up[2] == 1
    assert stats.binom.sf(6, 50, low[1]) == pytest.approx(1e-7, rel=1e-6)
    assert stats.binom.cdf(7, 50, up[1]) == pytest.approx(1e-7, rel=1e-6)
    assert up[0] == pytest.approx(1 - 1e-7 ** (1 / 50), rel=1e-9)


@pytest.mark.parametrize("flip", [False, True])
def test_both_directions_are_seen(flip: bool) -> None:
    # What happens in one world only, rarely, is seen by one of the two directions alone.
    rare = np.zeros(4000)
    rare[::40] = 1.0
    worlds = (-rare, np.zeros(4000)) if flip else (np.zeros(4000), rare)
    found = two_world(*worlds, 0.0, 0.95)
    assert found.epsilon > 1.3
    assert two_world(*worlds[::-1], 0.0, 0.95).epsilon <= found.epsilon


def test_delta_is_taken_off() -> None:
    leak = np.zeros(4000)
    leak[::40] = 1.0  # 2.5 % are told who it is: (0, 0.025)-DP
    assert two_world(np.zeros(4000), leak, 0.025, 0.95).epsilon == 0


def test_gaussian_runs_come_near_their_claim_and_not_above() -> None:
    rng = np.random.default_rng(1)
    without, with_ = rng.standard_normal(200_000), rng.standard_normal(200_000) + 1.0
    claim = gaussian.epsilon(1.0, 1e-5)
    for confidence in (0.95, GATE):
        found = two_world_gaussian(without, with_, 1e-5, confidence)
        assert 0.9 * claim < found.epsilon < claim
        assert found.mu is not None
        assert 0.95 < found.mu < 1.0
        assert 0.3 * claim < two_world(without, with_, 1e-5, confidence).epsilon < claim


@pytest.mark.parametrize("noise", [0.5, 1.0, 1.5])
def test_a_bound_against_a_claims_own_kind_is_the_gaussian_one_for_gaussians(noise: float) -> None:
    rng = np.random.default_rng(3)
    without, with_ = rng.standard_normal((2, 20_000)) * noise + np.array([[0.0], [1.0]])
    calls: list[float] = []

    def claim(factor: float) -> pld.Whole:
        calls.append(factor)
        return pld.Whole(1 / factor, None, 0.0, 0.0, 0.0)

    found = two_world_kind(without, with_, 1e-5, GATE, claim, test=Test(0.5, above=True))
    fixed = two_world_gaussian(without, with_, 1e-5, GATE, test=Test(0.5, above=True))
    assert fixed.mu is not None
    assert found.factor is not None
    # The noise refuted is the smallest, up to a step of the bisection, on the side of caution.
    assert 1 / fixed.mu <= found.factor <= 1.02 / fixed.mu
    assert 0.95 * fixed.epsilon <= found.epsilon <= fixed.epsilon
    assert max(calls) < 3  # curves are costly: no further than needed
    assert min(calls) > 0.3


def test_against_its_own_kind_noise_alone_refutes_nothing() -> None:
    rng = np.random.default_rng(4)
    found = two_world_kind(
        *rng.standard_normal((2, 5000)),
        1e-5,
        GATE,
        lambda factor: pld.Whole(1 / factor, None, 0.0, 0.0, 0.0),
    )
    assert found.epsilon == 0


def test_equal_worlds_show_nothing() -> None:
    rng = np.random.default_rng(2)
    worlds = rng.standard_normal((2, 5000))
    assert two_world(*worlds, 1e-5, GATE).epsilon == 0
    assert two_world_gaussian(*worlds, 1e-5, GATE).epsilon == 0


@pytest.mark.parametrize(
    ("without", "with_", "delta", "confidence"),
    [
        ([0.0, math.nan], [0.0, 1.0], 0.0, 0.95),
        ([0.0], [0.0, 1.0], 0.0, 0.95),
        ([0.0, 1.0], [0.0, 1.0], -1.0, 0.95),
        ([0.0, 1.0], [0.0, 1.0], math.nan, 0.95),
        ([0.0, 1.0], [0.0, 1.0], 0.0, 1.0),
        ([0.0, 1.0], [0.0, 1.0], 0.0, math.nan),
    ],
)
def test_what_is_no_test_is_refused(
    without: list[float], with_: list[float], delta: float, confidence: float
) -> None:
    with pytest.raises(InvalidInput):
        two_world(np.array(without), np.array(with_), delta, confidence)


@pytest.mark.parametrize(("m", "r", "v"), [(0, 0, 0), (5, 6, 1), (5, 4, 5), (5, 4, -1)])
def test_guesses_that_do_not_add_up_are_refused(m: int, r: int, v: int) -> None:
    with pytest.raises(InvalidInput):
        one_run(m, r, v, 1e-5, 0.95)

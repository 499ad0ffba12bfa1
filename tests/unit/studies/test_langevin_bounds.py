"""What the theorems would ask: values, and that the conditions of their proofs hold just so.

The problem: logistic regression with rows of norm at most 1, λ = .01: κ = (1/4 + λ)/λ = 26, d = 10;
(ζ, δ) = (1, 1e-5). The values are this file's own conditions, solved at 40 digits with mpmath 1.3;
they differ from float64's bisection (1e-6, from below) by its tolerance, hence rel = 3e-6.
"""

from __future__ import annotations

import math

import pytest
from mpmath import findroot, log, mp, mpf, sqrt
from tests.studies import langevin_bounds as bounds

from penstock.base.errors import InvalidEvent

KAPPA, D, ZETA, DELTA = 26.0, 10, 1.0, 1e-5


@pytest.fixture(autouse=True)
def _digits() -> None:
    mp.dps = 40


def alpha_prime(alpha: mpf, epsilon: mpf) -> mpf:
    """12α ln α ln(1/ε)/((α-1)ε) - 2, with ln(1/ε) at least 1, as in Theorem 15's proof."""
    return 12 * alpha * log(alpha) * max(log(1 / epsilon), mpf(1)) / ((alpha - 1) * epsilon) - 2


def steps_15(alpha: mpf, epsilon: mpf, time: mpf) -> mpf:
    inner = alpha_prime(alpha, epsilon)
    factor = 3 * time * inner * (inner - 1) * mpf(KAPPA) ** 4 * 44**2 / 4
    condition = lambda u: log(factor * (D + 2 * log(time) - 2 * u)) + u - log(log(mpf(2)))  # noqa: E731
    return time / mp.e ** findroot(condition, -43)


def test_corollary_11_asks_for_twenty_thousand_million_steps() -> None:
    alpha, epsilon = 1 + 2 * log(1 / mpf("1e-5")), mpf("0.5")
    time = alpha * log(D * log(mpf(KAPPA)) / epsilon)

    def condition(u: mpf) -> mpf:
        step = mp.e**u
        reach = sqrt(mpf(D)) + sqrt(2 * log(4 * time / step / mpf("1e-5")))
        moved = sqrt(2 * step) * reach + step * KAPPA * reach
        return time * alpha * (KAPPA * moved) ** 2 / 4 - epsilon

    asked = bounds.corollary_11(ZETA, DELTA, KAPPA, D)
    assert asked.steps == pytest.approx(float(time / mp.e ** findroot(condition, -19)), rel=3e-6)
    assert asked.steps == pytest.approx(2.2577e10, rel=1e-4)


def test_theorem_12_and_the_corollary() -> None:
    alpha, epsilon = 1 + 2 * log(1 / mpf("1e-5")), mpf("0.5")
    far = log(3 * D * log(mpf(KAPPA)) / epsilon)
    time = alpha * log(3 * D * log(mpf(KAPPA)) / (2 * epsilon))
    asked = bounds.theorem_12(float(alpha), 0.5, KAPPA, D)
    expected = steps_15(2 * alpha, epsilon / 3, time)
    assert asked.steps == pytest.approx(float(expected), rel=3e-6)
    assert asked.steps == pytest.approx(3.1213e20, rel=1e-4)
    whole = bounds.corollary(ZETA, DELTA, KAPPA, D)
    assert whole.time == pytest.approx(float(2 * alpha * far))
    expected = steps_15(2 * alpha, epsilon / 3, 2 * alpha * far)
    assert whole.steps == pytest.approx(float(expected), rel=3e-6)
    assert whole.steps == pytest.approx(1.7087e21, rel=1e-4)
    assert whole.steps == bounds.theorem_1(float(alpha), 0.5, KAPPA, D).steps


def test_the_lipschitz_and_the_underdamped_count() -> None:
    order, divergence = bounds.order_and_divergence(ZETA, DELTA)
    assert (order, divergence) == (pytest.approx(1 + 2 * math.log(1e5)), 0.5)
    lipschitz = bounds.theorem_19(order, divergence, KAPPA, D, 250.0, 3.0)
    # ε = .5 is above 3 ln α/(α-1): the proof's first case.
    inner = 4 * order - 2
    factor = 250 * inner * (inner - 1) * KAPPA**2 * 3.8**2
    held = factor * (9 + D + 2 * math.log(lipschitz.steps)) * lipschitz.step
    assert held == pytest.approx(math.log(2), rel=3e-6)
    assert held <= math.log(2)
    heavy = bounds.theorem_28(order, divergence, KAPPA, D, 250.0)
    # μ = 1/κ: 3τ²dα'(α'-1)·8·η²/4 = ln 2.
    step = math.sqrt(math.log(2) / (6 * 250**2 * D * inner * (inner - 1)))
    assert heavy.step == pytest.approx(step)
    assert heavy.steps == pytest.approx(250 / step)


def test_the_orders_of_growth_are_the_papers() -> None:
    def steps(kappa: float = KAPPA, d: int = 4000, divergence: float = 0.01) -> float:
        return bounds.theorem_15(50.0, divergence, kappa, d, 100.0).steps

    assert steps(kappa=2 * KAPPA) / steps() == pytest.approx(2**4, rel=0.03)
    assert steps(d=8000) / steps() == pytest.approx(2, rel=0.03)
    assert 4 < steps(divergence=0.005) / steps() < 6  # 1/ε², and ln² 1/ε
    heavy = [bounds.theorem_28(50.0, 0.01, KAPPA, d, 100.0).steps for d in (100, 400)]
    assert heavy[1] / heavy[0] == pytest.approx(2)


def test_inner_orders_meet_where_the_proof_changes_course() -> None:
    assert bounds.inner_order(2.0, 100.0) == 14.0
    assert bounds.inner_order(10.0, 100.0) == 38.0
    assert bounds.inner_order(10.0, 0.1) > 38.0


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_nonsense_is_refused(bad: float) -> None:
    for call in (
        lambda: bounds.corollary(bad, DELTA, KAPPA, D),
        lambda: bounds.corollary(ZETA, bad, KAPPA, D),
        lambda: bounds.theorem_15(20.0, 0.5, bad, D, 1.0),
        lambda: bounds.theorem_15(20.0, 0.5, KAPPA, D, bad),
        lambda: bounds.theorem_19(20.0, 0.5, KAPPA, D, 1.0, bad),
        lambda: bounds.theorem_28(20.0, 0.5, KAPPA, D, 1.0, friction=min(bad, 1.0)),
        lambda: bounds.inner_order(bad, 0.5),
    ):
        with pytest.raises(InvalidEvent):
            call()

"""Chains: where their noise ends up, what they cost, and that no step is left uncharged."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2
from tests.studies.denoise import denoised

from penstock.base.errors import InvalidEvent
from penstock.mechanisms.gibbs import langevin
from penstock.mechanisms.gibbs.langevin import Schedule
from penstock.privacy.accounting.accountant import epsilon_pld
from penstock.privacy.events import Gaussian, NoisyDescent
from penstock.privacy.measurements import charge
from penstock.privacy.noise.sources import SeededNoise

Array = NDArray[np.float64]
HESSIAN = np.array([[1.0, 0.3], [0.3, 0.4]])
MINIMUM = np.array([2.0, -1.0])


def quadratic(theta: Array) -> Array:
    found: Array = HESSIAN @ (theta - MINIMUM)
    return found


# Accounting -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "c"), [(0.5, 0.95), (1.0, 0.9), (1.9, 0.9), (2.0, 1.0)])
def test_a_step_contracts_by_the_worse_end_of_the_curvature(step: float, c: float) -> None:
    assert langevin.contraction(step, 0.1, 1.0) == pytest.approx(c)


@pytest.mark.parametrize(("step", "convexity"), [(2.1, 0.1), (0.0, 0.1), (1.0, 0.0), (1.0, 1.5)])
def test_what_does_not_contract_is_refused(step: float, convexity: float) -> None:
    with pytest.raises(InvalidEvent):
        langevin.contraction(step, convexity, 1.0)
    with pytest.raises(InvalidEvent):
        langevin.contraction(float("nan"), 0.1, 1.0)


@pytest.mark.parametrize("steps", [1, 5, 400])
def test_a_last_iterate_costs_no_more_than_its_steps(steps: int) -> None:
    costs = [langevin.last_iterate(c, steps) for c in (1e-9, 0.3, 0.9, 0.999, 1.0)]
    assert costs[0] == pytest.approx(1.0)
    assert costs == sorted(costs)
    assert costs[-1] == pytest.approx(math.sqrt(steps))
    assert langevin.last_iterate(1 - 1e-9, steps) == pytest.approx(math.sqrt(steps), rel=1e-6)


@pytest.mark.parametrize(("c", "steps"), [(0.5, 30), (0.97, 30), (0.97, 2000)])
def test_the_last_iterates_bound_is_attained_by_a_quadratic(c: float, steps: int) -> None:
    # θ ← c·θ + η(g ± Δ) + noise: the gradients of one person add up to η(1-c^T)/(1-c).
    step, sigma = 1 - c, 3.0
    went = langevin.propagate(Schedule((step,) * steps, (sigma,) * steps), np.eye(1))
    moved = step * (1 - c**steps) / (1 - c)
    seen = moved / math.sqrt(went.noise[0, 0])
    assert seen == pytest.approx(langevin.last_iterate(c, steps) / sigma, rel=1e-9)


@pytest.mark.parametrize(("steps", "step"), [(1, 1.0), (10, 0.1), (300, 1.0), (3000, 1.8)])
def test_a_plain_chain_takes_the_cheaper_bound_and_keeps_within_its_budget(
    steps: int, step: float
) -> None:
    schedule = langevin.plain(steps, step, 0.02, 1.0, mu=0.4)
    composed = math.sqrt(steps) / 0.4
    assert schedule.multipliers[0] <= composed * (1 + 1e-9)
    paid = epsilon_pld(charge(schedule.measurements), 1e-5)
    assert paid <= epsilon_pld((Gaussian(1 / 0.4),), 1e-5) * (1 + 1e-6)
    (event,) = charge(schedule.measurements)
    assert isinstance(event, NoisyDescent) == (schedule.multipliers[0] < composed * (1 - 1e-9))


@pytest.mark.parametrize("momentum", [0.0, 0.4])
def test_a_preconditioned_chain_costs_its_budget_by_composition(momentum: float) -> None:
    schedule = langevin.averaging(12, 1.4, 0.7, momentum)
    assert sum(1 / s**2 for s in schedule.multipliers) == pytest.approx(0.49)
    assert sum(e.count for e in charge(schedule.measurements) if isinstance(e, Gaussian)) == 12
    paid = epsilon_pld(charge(schedule.measurements), 1e-5)
    assert paid == pytest.approx(epsilon_pld((Gaussian(1 / 0.7),), 1e-5), rel=1e-6)


def test_every_step_is_charged_for_the_noise_it_has() -> None:
    class Counting(SeededNoise):
        drawn = 0

        def normal(self, shape: int | tuple[int, ...]) -> Array:
            self.drawn += 1
            return super().normal(shape)

    noise = Counting(0)
    schedule = langevin.averaging(9, 1.5, 1.0)
    langevin.descend(quadratic, np.zeros(2), schedule, 0.1, noise)
    assert (
        noise.drawn
        == sum(e.count for e in charge(schedule.measurements) if isinstance(e, Gaussian))
        == 9
    )


def test_last_iterates_are_not_claimed_for_other_chains() -> None:
    last = Schedule((0.5,) * 4, (2.0,) * 4, 0.0, 0.9)
    with pytest.raises(InvalidEvent):
        langevin.descend(quadratic, np.zeros(2), last, 0.1, SeededNoise(0), lambda t: np.eye(2))
    with pytest.raises(InvalidEvent):
        Schedule((0.5, 0.4), (2.0, 2.0), 0.0, 0.9)
    with pytest.raises(InvalidEvent):
        Schedule((0.5, 0.5), (2.0, 2.0), 0.5, 0.9)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_chain_without_noise_is_no_chain(bad: float) -> None:
    with pytest.raises(InvalidEvent):
        Schedule((1.0,), (bad,))
    with pytest.raises(InvalidEvent):
        Schedule((bad,), (1.0,))


# Where noise ends up --------------------------------------------------------------------------


def test_a_long_chain_has_the_stationary_covariance() -> None:
    step, sigma = 0.5, 2.0
    went = langevin.propagate(Schedule((step,) * 500, (sigma,) * 500), HESSIAN)
    values, vectors = np.linalg.eigh(HESSIAN)
    # η²σ²/(1 - (1-ηh)²) for each eigenvalue h.
    spread = (step * sigma) ** 2 / (1 - (1 - step * values) ** 2)
    assert went.noise == pytest.approx((vectors * spread) @ vectors.T, rel=1e-9)
    assert np.abs(went.bias).max() < 1e-12


def test_decreasing_steps_have_the_noise_of_one_gradient_at_the_whole_budget() -> None:
    mu, inverse = 0.8, np.linalg.inv(HESSIAN)
    for steps in (1, 4, 16):
        schedule = langevin.averaging(steps, 1.6, mu)
        went = langevin.propagate(schedule, HESSIAN, [inverse] * steps)
        assert went.noise == pytest.approx(inverse @ inverse / mu**2, rel=1e-9)
        assert np.abs(went.bias).max() < 1e-12


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_chain_without_much_noise_goes_where_it_is_foretold(momentum: float) -> None:
    schedule = Schedule((0.4,) * 7, (1e-9,) * 7, momentum)
    ended = langevin.descend(quadratic, np.zeros(2), schedule, 1.0, SeededNoise(0))
    went = langevin.propagate(schedule, HESSIAN)
    assert ended.theta - MINIMUM == pytest.approx(went.bias @ -MINIMUM, abs=1e-6)


CHAINS = {
    "last iterate": langevin.plain(40, 0.8, 0.26, 1.2, 1.0),
    "composition": Schedule((0.1,) * 20, (4.0,) * 20),
    "heavy ball": langevin.plain(30, 0.3, 0.26, 1.2, 1.0, 0.7),
    "preconditioned": langevin.averaging(10, 1.3, 1.0),
}
RUNS = 500


def spread_of(name: str, factor: float) -> float:
    """Σ eᵀS⁻¹e over runs whose noise is ``factor`` times what it should be, e from the foretold."""
    schedule = CHAINS[name]
    matrix = np.array([[1.1, -0.7], [-0.7, 2.5]]) if name == "preconditioned" else np.eye(2)
    went = langevin.propagate(schedule, HESSIAN, [matrix] * schedule.steps)
    middle = MINIMUM + went.bias @ -MINIMUM
    noise, total, inverse = SeededNoise(7), 0.0, np.linalg.inv(went.noise * 0.1**2)
    how = (lambda t: matrix) if name == "preconditioned" else None
    for _ in range(RUNS):
        ended = langevin.descend(quadratic, np.zeros(2), schedule, 0.1 * factor, noise, how)
        off = ended.theta - middle
        total += float(off @ inverse @ off)
    return total


@pytest.mark.parametrize("name", CHAINS)
def test_noise_is_as_much_as_is_charged_and_no_more(name: str) -> None:
    # Exact law: chi square. False alarms: 2e-9 for each chain.
    low, high = chi2.ppf([1e-9, 1 - 1e-9], 2 * RUNS)
    assert low < spread_of(name, 1.0) < high
    assert spread_of(name, 0.5) < low  # the twin with half the noise
    assert spread_of(name, 2.0) > high  # and with twice as much


def test_whatever_a_gradient_is_a_chain_stays_finite() -> None:
    schedule = langevin.averaging(5, 1.5, 1e-3)
    ended = langevin.descend(lambda t: -1e100 + 0 * t, np.zeros(3), schedule, 1e9, SeededNoise(0))
    assert np.linalg.norm(ended.theta) <= langevin.FAR * (1 + 1e-9)


# Denoising ------------------------------------------------------------------------------------


def test_denoising_shrinks_noise_and_leaves_a_clear_answer() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=40)
    noisy = truth + 2.0 * rng.normal(size=40)
    less = denoised(noisy, 4.0 * np.eye(40), np.eye(40))
    assert np.linalg.norm(less - truth) < 0.75 * np.linalg.norm(noisy - truth)
    clear = denoised(truth, 1e-8 * np.eye(40), np.eye(40))
    assert clear == pytest.approx(truth, abs=1e-6)
    assert np.isfinite(denoised(np.zeros(3), np.eye(3), np.eye(3))).all()

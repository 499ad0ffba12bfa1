"""ε against reference values, mpmath, and dp-accounting.

Reference values at δ = 1e-5 were computed with autodp 0.2.3.1 and dp-accounting 0.6.0 and
agree with each other's integer-order RDP to 1e-9. Tolerance 2e-3: dp-accounting discretises losses
at 1e-4, and autodp's order grid is finite.
"""

import math

import mpmath
import pytest

from penstock.errors import InvalidEvent
from penstock.privacy.accountant import epsilon, epsilon_pld
from penstock.privacy.events import Gaussian, PoissonGaussian, Unbounded
from penstock.privacy.filters import Filter, best_order
from penstock.privacy.renyi import renyi

DELTA = 1e-5

POISSON = [
    (0.01, 1.0, 1000, 2.108, 1.828),
    (0.05, 2.0, 200, 1.723, 1.561),
    (1 / 30, 1.0, 20, 1.974, 1.408),
    (1 / 30, 2.0, 20, 0.409, 0.332),
]


@pytest.mark.parametrize(("q", "sigma", "steps", "autodp", "pld"), POISSON)
def test_poisson_reference_values(q, sigma, steps, autodp, pld):
    events = (PoissonGaussian(q, sigma, steps),)
    assert epsilon(events, DELTA) == pytest.approx(autodp, abs=2e-3)
    assert epsilon_pld(events, DELTA) == pytest.approx(pld, abs=2e-3)


def test_replace_one_of_a_sampled_gaussian_is_the_mixture_not_half_the_noise():
    events = (PoissonGaussian(0.01, 1.0, 1000),)
    assert epsilon_pld(events, DELTA, relation="replace-one") == pytest.approx(2.84, abs=0.01)


def test_replace_one_of_a_plain_gaussian_is_half_the_noise():
    ours = epsilon_pld((Gaussian(5.0),), DELTA, relation="replace-one")
    assert ours == pytest.approx(epsilon_pld((Gaussian(2.5),), DELTA), abs=1e-6)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Exact ε of a μ-GDP mechanism (Balle & Wang 2018, Thm 8), by mpmath bisection."""
    with mpmath.workdps(40):

        def excess(e):
            return (
                mpmath.ncdf(-e / mu + mu / 2)
                - mpmath.exp(e) * mpmath.ncdf(-e / mu - mu / 2)
                - delta
            )

        low, high = mpmath.mpf(0), mpmath.mpf(200)
        for _ in range(120):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(high)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0, 5.0, 20.0])
@pytest.mark.parametrize("count", [1, 30])
def test_gaussian_against_mpmath(sigma, count):
    exact = gaussian_epsilon(math.sqrt(count) / sigma, DELTA)
    events = (Gaussian(sigma, count),)
    assert epsilon_pld(events, DELTA) == pytest.approx(exact, abs=2e-3)
    assert exact - 1e-9 <= epsilon(events, DELTA)


@pytest.mark.parametrize(("q", "sigma", "steps", "_a", "_p"), POISSON)
def test_gating_epsilon_is_never_below_pld(q, sigma, steps, _a, _p):
    events = (PoissonGaussian(q, sigma, steps), Gaussian(8.0, 2))
    assert epsilon(events, DELTA) >= epsilon_pld(events, DELTA) - 2e-3


@pytest.mark.parametrize("order", [2.0, 5.0, 17.0, 64.0])
def test_integer_orders_agree_with_dp_accounting(order):
    import dp_accounting as dpa
    from dp_accounting.rdp import RdpAccountant

    theirs = RdpAccountant([order])
    theirs.compose(dpa.PoissonSampledDpEvent(0.03, dpa.GaussianDpEvent(1.2)))
    ours = renyi(PoissonGaussian(0.03, 1.2), order)
    assert ours == pytest.approx(float(theirs._rdp[0]), rel=1e-9)


def test_nothing_costs_nothing_and_the_unbounded_costs_everything():
    assert epsilon((), DELTA) == 0
    assert epsilon_pld((), DELTA) == 0
    assert math.isinf(epsilon((Gaussian(1.0), Unbounded()), DELTA))
    assert math.isinf(epsilon_pld((Gaussian(1.0), Unbounded()), DELTA))


@pytest.mark.parametrize("delta", [0.0, 1e-13, 1.0, math.nan, -1e-5])
def test_delta_out_of_range_is_refused(delta):
    with pytest.raises(InvalidEvent):
        epsilon((Gaussian(1.0),), delta)


@pytest.mark.parametrize("budget", [0.1, 1.0, 3.0, 10.0, 30.0])
def test_the_fixed_order_loses_nothing_on_one_gaussian_that_uses_the_budget_up(budget):
    from penstock.privacy.calibration import smallest_scale

    sigma = smallest_scale(lambda s: (Gaussian(s),), budget, DELTA)
    kept = Filter(budget, DELTA, best_order(budget, DELTA))
    assert kept.admits((), (Gaussian(sigma),))
    assert not kept.admits((), (Gaussian(sigma * 0.999),))

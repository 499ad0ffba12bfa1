"""ε against reference values, by both accountants.

The values at δ = 1e-5 were computed with autodp 0.2.3.1 and dp-accounting 0.6.0.
Tolerance 2e-3: dp-accounting rounds losses to 1e-4, autodp's best order is searched on a grid, and
the values have four digits. Curves against mpmath are in test_curves.py.
"""

import math

import pytest

from penstock.base.errors import InvalidEvent
from penstock.privacy.accounting import accountant, gaussian
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.events import (
    DistributedGaussian,
    Gaussian,
    NoisyDescent,
    PoissonGaussian,
    Unbounded,
    alone,
)
from penstock.privacy.filters import Filter, best_order

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


@pytest.mark.parametrize(("sigma", "exact"), [(5.0, 0.7255), (1.0, 4.377)])
def test_gaussian_reference_values(sigma, exact):
    """Both libraries' exact Gaussian; what gates is its Rényi bound, which is above."""
    from autodp.mechanism_zoo import ExactGaussianMechanism

    assert epsilon_pld((Gaussian(sigma),), DELTA) == pytest.approx(exact, abs=5e-4)
    assert gaussian.epsilon(1 / sigma, DELTA) == pytest.approx(exact, abs=5e-4)
    theirs = ExactGaussianMechanism(sigma).get_approxDP(DELTA)
    assert theirs == pytest.approx(exact, abs=1e-3)
    assert exact < epsilon((Gaussian(sigma),), DELTA) < 1.15 * exact


def test_replace_one_of_a_sampled_gaussian_is_the_mixture_not_half_the_noise():
    events = (PoissonGaussian(0.01, 1.0, 1000),)
    assert epsilon_pld(events, DELTA, relation="replace-one") == pytest.approx(2.84, abs=0.01)
    halved = (PoissonGaussian(0.01, 0.5, 1000),)
    assert epsilon_pld(halved, DELTA) == pytest.approx(13.36, abs=0.01)


def test_replace_one_of_a_plain_gaussian_is_half_the_noise():
    ours = epsilon_pld((Gaussian(5.0),), DELTA, relation="replace-one")
    assert ours == epsilon_pld((Gaussian(2.5),), DELTA)
    # Also beside a sampled one, where dp-accounting composes both.
    both = (Gaussian(5.0), PoissonGaussian(0.01, 1.0, 50))
    assert epsilon_pld(both, DELTA, relation="replace-one") > ours


@pytest.mark.parametrize("q", [0.01, 0.1])
def test_replace_one_of_a_composition_is_what_dp_accounting_composes(q):
    import dp_accounting as dpa
    from dp_accounting import pld

    theirs = pld.PLDAccountant(dpa.NeighboringRelation.REPLACE_ONE)
    theirs.compose(dpa.GaussianDpEvent(6.0))
    theirs.compose(dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(2.0)), 30)
    ours = epsilon_pld((Gaussian(6.0), PoissonGaussian(q, 2.0, 30)), DELTA, relation="replace-one")
    assert ours == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-6)


@pytest.mark.parametrize(("q", "sigma", "steps", "_a", "_p"), POISSON)
def test_gating_epsilon_is_never_below_pld(q, sigma, steps, _a, _p):
    events = (PoissonGaussian(q, sigma, steps), Gaussian(8.0, 2))
    assert epsilon(events, DELTA) >= epsilon_pld(events, DELTA) - 2e-3


def test_noisy_descent_between_one_step_and_composition():
    one, many = epsilon_pld((Gaussian(4.0),), DELTA), epsilon_pld((Gaussian(4.0, 60),), DELTA)
    costs = [epsilon_pld((NoisyDescent(4.0, c, 60),), DELTA) for c in (1e-9, 0.5, 0.9, 0.999, 1.0)]
    assert costs == sorted(costs)
    assert costs[0] == pytest.approx(one, rel=1e-6)
    assert costs[-1] == pytest.approx(many, rel=1e-9)


def test_a_distributed_sum_if_all_others_collude():
    event = DistributedGaussian(4.0, 5, dropouts=1, colluders=1, grid_sd=2.0**40, size=9)
    together = epsilon_pld((Gaussian(4.0),), DELTA)
    assert together <= epsilon_pld((event,), DELTA) <= together * (1 + 1e-9)
    own = epsilon_pld((Gaussian(4.0 / math.sqrt(3)),), DELTA)
    assert own <= epsilon_pld((alone(event),), DELTA) <= own * (1 + 1e-9)
    coarse = DistributedGaussian(4.0, 5, dropouts=1, colluders=1, grid_sd=1024.0, size=9)
    assert together * (1 + 1e-7) < epsilon_pld((coarse,), DELTA) < together * (1 + 1e-3)


@pytest.mark.parametrize("events", [(Gaussian(3.0, 2),), (PoissonGaussian(0.05, 2.0, 50),)])
@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_delta_is_the_inverse_of_epsilon(events, relation):
    for delta in (1e-3, 1e-5, 1e-8):
        cost = epsilon_pld(events, delta, relation=relation)
        back = accountant.delta(events, cost, relation=relation)
        assert back == pytest.approx(delta, rel=1e-3)
        assert accountant.delta(events, cost * 0.9, relation=relation) > delta


def test_nothing_costs_nothing_and_the_unbounded_costs_everything():
    assert epsilon((), DELTA) == 0
    assert epsilon_pld((), DELTA) == 0
    assert accountant.delta((), 0.0) == 0
    both = (Gaussian(1.0), Unbounded())
    assert math.isinf(epsilon(both, DELTA))
    assert math.isinf(epsilon_pld(both, DELTA))
    assert accountant.delta(both, 100.0) == 1


@pytest.mark.parametrize("delta", [0.0, 1e-13, 1.0, math.nan, -1e-5])
def test_delta_out_of_range_is_refused(delta):
    with pytest.raises(InvalidEvent):
        epsilon((Gaussian(1.0),), delta)
    with pytest.raises(InvalidEvent):
        epsilon_pld((Gaussian(1.0),), delta)


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_an_epsilon_that_is_none_is_refused(bad):
    with pytest.raises(InvalidEvent):
        accountant.delta((Gaussian(1.0),), bad)


@pytest.mark.parametrize("budget", [0.1, 1.0, 3.0, 10.0, 30.0])
def test_the_fixed_order_loses_nothing_on_one_gaussian_that_uses_the_budget_up(budget):
    from penstock.privacy.calibration import smallest_scale

    sigma = smallest_scale(lambda s: (Gaussian(s),), budget, DELTA)
    kept = Filter(budget, DELTA, best_order(budget, DELTA))
    assert kept.admits((), (Gaussian(sigma),))
    assert not kept.admits((), (Gaussian(sigma * 0.999),))

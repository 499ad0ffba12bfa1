"""Laws of entropic transport: right plans beside POT's, and finite numbers whatever comes in."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linear_sum_assignment

from penstock.base.errors import InvalidInput
from penstock.mechanisms.trajectory.sinkhorn import EVERY, sinkhorn

M, D, GAPS = 12, 3, 4


def clouds(seed: int, m: int = M, gaps: int = GAPS, d: int = D) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(seed)
    return tuple(torch.as_tensor(rng.random((gaps, m, d))) for _ in range(2))


def costs(x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    return ((x[:, :, None] - y[:, None]) ** 2).sum(-1).numpy() / 2


@pytest.mark.parametrize("reg", [0.5, 0.05, 0.03])
@pytest.mark.parametrize("m", [6, 12, 60])
def test_plans_are_those_of_pot(reg, m):
    x, y = clouds(m, m)
    plans = sinkhorn(x, y, reg, tolerance=1e-13, iterations=20_000)
    even = np.full(m, 1 / m)
    for ours, cost in zip(plans.joint.numpy(), costs(x, y), strict=True):
        theirs = ot.sinkhorn(
            even, even, cost, reg, method="sinkhorn_log", stopThr=1e-13, numItermax=50_000
        )
        np.testing.assert_allclose(ours, theirs, atol=1e-8 / m, rtol=0)


def test_each_problem_has_its_own_regularisation():
    x, y = clouds(1)
    regs = torch.tensor([0.3, 0.1, 0.03, 0.01], dtype=torch.float64)
    together = sinkhorn(x, y, regs, tolerance=1e-12, iterations=20_000)
    for b, reg in enumerate(regs):
        alone = sinkhorn(x[b : b + 1], y[b : b + 1], float(reg), tolerance=1e-12, iterations=20_000)
        np.testing.assert_allclose(together.joint[b], alone.joint[0], atol=1e-10)


def test_potentials_make_the_plan_and_solve_schroedingers_equations():
    x, y = clouds(2)
    reg, cost = 0.02, torch.as_tensor(costs(*clouds(2)))
    plans = sinkhorn(x, y, reg, tolerance=1e-12, iterations=20_000)
    exponents = (plans.f[:, :, None] + plans.g[:, None, :] - cost) / reg
    np.testing.assert_allclose(plans.joint, exponents.exp() / M**2, atol=1e-12)
    even = math.log(M)
    f = -reg * (torch.logsumexp((plans.g[:, None, :] - cost) / reg, 2) - even)
    g = -reg * (torch.logsumexp((plans.f[:, :, None] - cost) / reg, 1) - even)
    np.testing.assert_allclose(plans.f, f, atol=1e-10)
    np.testing.assert_allclose(plans.g, g, atol=1e-10)


@pytest.mark.parametrize("sweeps", [1, 2, EVERY, 3 * EVERY, 400])
def test_margins_and_the_error_that_is_told(sweeps):
    """Columns are right after any number of sweeps; rows are off by what is told."""
    plans = sinkhorn(*clouds(3), 0.01, iterations=sweeps, tolerance=None)
    joint = plans.joint.numpy()
    np.testing.assert_allclose(joint.sum(1), 1 / M, atol=1e-14)
    np.testing.assert_allclose(abs(joint.sum(2) - 1 / M).sum(1), plans.error, atol=1e-14)
    np.testing.assert_allclose(plans.forward.sum(2), 1, atol=1e-12)
    np.testing.assert_allclose(plans.backward.sum(2), 1, atol=1e-12)
    np.testing.assert_allclose(
        plans.backward.transpose(1, 2) / M, joint / (M * joint.sum(1, keepdims=True)), atol=1e-14
    )


@pytest.mark.parametrize("tolerance", [1e-2, 1e-6, 1e-10])
def test_it_stops_where_it_is_told_to(tolerance):
    plans = sinkhorn(*clouds(4), 0.02, tolerance=tolerance, iterations=20_000)
    assert float(plans.error.max()) <= tolerance
    longer = sinkhorn(*clouds(4), 0.02, tolerance=None, iterations=2000)
    assert float(longer.error.max()) < 1e-13


def test_the_other_way_round_is_the_transpose():
    x, y = clouds(5)
    there = sinkhorn(x, y, 0.02, tolerance=1e-13, iterations=20_000)
    back = sinkhorn(y, x, 0.02, tolerance=1e-13, iterations=20_000)
    np.testing.assert_allclose(there.joint, back.joint.transpose(1, 2), atol=1e-11)
    np.testing.assert_allclose(there.forward, back.backward, atol=1e-9)


def test_a_shift_of_one_cloud_changes_nothing():
    """½‖x - y - s‖² differs from ½‖x - y‖² by terms of x alone and of y alone."""
    x, y = clouds(6)
    near = sinkhorn(x, y, 0.02, tolerance=1e-12, iterations=20_000)
    far = sinkhorn(x, y + 100.0, 0.02, tolerance=1e-12, iterations=20_000)
    np.testing.assert_allclose(near.joint, far.joint, atol=1e-9)


def test_between_the_exact_plan_and_the_independent_one():
    """Its cost exceeds the exact one by reg·log m at most; a large reg leaves x and y unrelated."""
    x, y = clouds(7)
    for reg in (0.1, 0.01, 0.001):
        plans = sinkhorn(x, y, reg, tolerance=1e-9, iterations=50_000).joint.numpy()
        for plan, cost in zip(plans, costs(x, y), strict=True):
            exact = cost[linear_sum_assignment(cost)].mean()
            assert -1e-8 <= float((plan * cost).sum()) - exact <= reg * math.log(M)
    loose = sinkhorn(x, y, 1e9).joint
    np.testing.assert_allclose(loose, 1 / M**2, rtol=1e-7)


def test_a_good_start_is_kept_and_a_bad_one_does_no_harm():
    x, y = clouds(8)
    made = sinkhorn(x, y, 0.005, tolerance=1e-10, iterations=50_000)
    again = sinkhorn(x, y, 0.005, potentials=made.potentials, iterations=1, tolerance=None)
    assert float(again.error.max()) < 1e-9
    cold = sinkhorn(x, y, 0.005, iterations=8, tolerance=None)
    moved = y + 1e-3 * torch.ones_like(y) * torch.arange(M)[:, None] / M
    warm = sinkhorn(x, moved, 0.005, potentials=made.potentials, iterations=8, tolerance=None)
    assert float(warm.error.max()) < 0.1 * float(cold.error.max())
    wild = 1e3 * torch.as_tensor(np.random.default_rng(0).standard_normal((GAPS, M)))
    back = sinkhorn(x, y, 0.005, potentials=(wild, wild), tolerance=1e-10, iterations=50_000)
    np.testing.assert_allclose(back.joint, made.joint, atol=1e-8)


def test_float32_is_close_to_float64():
    x, y = clouds(9)
    double = sinkhorn(x, y, 0.03, tolerance=1e-6)
    single = sinkhorn(x.float(), y.float(), 0.03, tolerance=1e-6)
    assert single.joint.dtype == torch.float32
    assert float(single.error.max()) <= 1e-6
    np.testing.assert_allclose(single.joint, double.joint, atol=2e-4 / M)


POINTS = arrays(np.float64, (2, 1, 7, 2), elements=st.floats(-1e3, 1e3))


@given(POINTS, st.floats(-7, 7), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_everything_stays_finite(points, scale, single, warm):
    """Far, equal and huddled points, any regularisation: finite plans with right columns."""
    x, y = (torch.as_tensor(p).to(torch.float32 if single else torch.float64) for p in points)
    start = (100 * x[:, :, 0], 100 * y[:, :, 0]) if warm else None
    plans = sinkhorn(x, y, 10.0**scale, potentials=start, iterations=60, tolerance=None)
    for part in (plans.joint, plans.f, plans.g, plans.error, plans.forward, plans.backward):
        assert bool(torch.isfinite(part).all())
    np.testing.assert_allclose(plans.joint.sum(1), 1 / 7, rtol=1e-4 if single else 1e-9)


def test_nothing_and_next_to_nothing():
    one = torch.zeros(2, 1, 3, dtype=torch.float64)
    np.testing.assert_allclose(sinkhorn(one, one + 1, 0.1).joint, 1.0)
    same = torch.ones(2, 5, 3, dtype=torch.float64)
    np.testing.assert_allclose(sinkhorn(same, same, 1e-6).joint, 1 / 25)
    none = sinkhorn(torch.zeros(0, 4, 3), torch.zeros(0, 4, 3), 0.1)
    assert none.joint.shape == (0, 4, 4)
    assert none.f.shape == none.g.shape == (0, 4)


GOOD = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
ZERO = GOOD[..., 0] * 0
WRONG = {
    "other shape": lambda: sinkhorn(GOOD, GOOD[:, :3], 0.1),
    "no particles": lambda: sinkhorn(GOOD[:, :0], GOOD[:, :0], 0.1),
    "not a batch": lambda: sinkhorn(GOOD[0], GOOD[0], 0.1),
    "whole numbers": lambda: sinkhorn(GOOD.long(), GOOD.long(), 0.1),
    "two kinds": lambda: sinkhorn(GOOD, GOOD.float(), 0.1),
    "NaN": lambda: sinkhorn(GOOD * math.nan, GOOD, 0.1),
    "infinite": lambda: sinkhorn(GOOD, GOOD / 0, 0.1),
    "reg 0": lambda: sinkhorn(GOOD, GOOD, 0.0),
    "reg NaN": lambda: sinkhorn(GOOD, GOOD, math.nan),
    "a reg negative": lambda: sinkhorn(GOOD, GOOD, torch.tensor([0.1, -0.1])),
    "start of another shape": lambda: sinkhorn(GOOD, GOOD, 0.1, potentials=(GOOD, GOOD)),
    "start NaN": lambda: sinkhorn(GOOD, GOOD, 0.1, potentials=(ZERO, ZERO * math.nan)),
    "no sweeps": lambda: sinkhorn(GOOD, GOOD, 0.1, iterations=0),
    "tolerance NaN": lambda: sinkhorn(GOOD, GOOD, 0.1, tolerance=math.nan),
}


@pytest.mark.parametrize("what", WRONG)
def test_refused(what):
    with pytest.raises(InvalidInput):
        WRONG[what]()

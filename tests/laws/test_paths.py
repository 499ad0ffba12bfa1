"""Laws of couplings and of paths through particles.

Statistical checks: fixed seeds, 20,000 paths, |z| < 5.6 for each figure (false alarm about 2e-8
each, under 1e-5 for the file), and twins with a twentieth too much or too little variance that the
same check catches.
"""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest

from penstock.base.errors import InvalidInput
from penstock.mechanisms.trajectory.paths import couple, sample_paths

T, M, D, PATHS = 4, 6, 2, 20_000
NODES = np.array([0.0, 0.2, 0.5, 1.0])
TAU = 0.3


def particles(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((T, M, D))


def sampled(times, tau: float = TAU, seed: int = 0, paths: int = PATHS, plans=None) -> np.ndarray:
    x = particles()
    plans = couple(x, TAU * np.diff(NODES)) if plans is None else plans
    return sample_paths(x, plans, NODES, times, tau, paths, np.random.default_rng(seed))


# -- couplings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reg", [0.05, [0.05, 0.1, 0.2]])
def test_entropic_couplings_are_pots(reg):
    x = particles()
    even = np.full(M, 1 / M)
    for t, found in enumerate(couple(x, reg)):
        one = reg if isinstance(reg, float) else reg[t]
        cost = ot.dist(x[t], x[t + 1]) / 2
        plan = ot.sinkhorn(even, even, cost, one, stopThr=1e-12, numItermax=50_000)
        np.testing.assert_allclose(found, plan * M, atol=2e-6)
        np.testing.assert_allclose(found.sum(1), 1, atol=1e-12)


def test_exact_couplings_cost_what_pots_do_and_never_split():
    x = particles()
    even = np.full(M, 1 / M)
    for t, found in enumerate(couple(x, 0.1, exact=True)):
        cost = ot.dist(x[t], x[t + 1]) / 2
        assert float((found * cost).sum()) / M == pytest.approx(ot.emd2(even, even, cost))
        np.testing.assert_array_equal(np.sort(found, axis=1)[:, -1], 1.0)
        np.testing.assert_array_equal(found.sum(0), 1.0)
        np.testing.assert_array_equal(found.sum(1), 1.0)


def test_one_particle_and_equal_ones():
    one = np.zeros((3, 1, 2))
    np.testing.assert_array_equal(couple(one, 0.1), 1.0)
    np.testing.assert_array_equal(couple(one, 0.1, exact=True), 1.0)
    same = np.ones((2, 5, 2))
    np.testing.assert_allclose(couple(same, 1e-6), 0.2)
    assert couple(same, 1e-6, exact=True).sum() == 5


# -- chains --------------------------------------------------------------------------------------


def numbers(paths: np.ndarray) -> np.ndarray:
    """(paths, T): which particle each path is at, from its place alone."""
    off = abs(paths[:, :, None] - particles()[None]).sum(-1)
    assert (off.min(2) == 0).all()  # a particle to the last digit, or nowhere
    return off.argmin(2)


def test_at_a_snapshot_a_path_is_at_a_particle_and_goes_on_by_the_coupling():
    at = numbers(sampled(NODES))
    plans = couple(particles(), TAU * np.diff(NODES))
    first = np.bincount(at[:, 0], minlength=M)
    assert abs(first - PATHS / M).max() < 5.6 * math.sqrt(PATHS / M)
    for t, plan in enumerate(plans):
        pairs = np.zeros((M, M))
        np.add.at(pairs, (at[:, t], at[:, t + 1]), 1)
        expected = pairs.sum(1, keepdims=True) * plan
        z = (pairs - expected) / np.sqrt(np.maximum(expected * (1 - plan), 1.0))
        assert abs(z).max() < 5.6
        other = pairs.sum(1, keepdims=True) * plan.T  # the twin: the coupling the wrong way round
        assert abs((pairs - other) / np.sqrt(np.maximum(other * (1 - plan.T), 1.0))).max() > 5.6


@pytest.mark.parametrize("paths", [1, 5, M, 7 * M + 3])
def test_paths_are_spread_as_evenly_as_their_number_allows(paths):
    for seed in range(20):
        at = numbers(sampled(NODES, paths=paths, seed=seed, plans=np.tile(np.eye(M), (3, 1, 1))))
        counts = np.bincount(at[:, 0], minlength=M)
        assert counts.max() - counts.min() <= 2
        np.testing.assert_array_equal(at, at[:, :1].repeat(T, axis=1))


def test_those_at_one_particle_go_on_in_exact_proportions():
    plans = np.tile(np.full((M, M), 1 / M), (3, 1, 1))
    at = numbers(sampled(NODES, paths=M**2 * 10, plans=plans))
    pairs = np.zeros((M, M))
    np.add.at(pairs, (at[:, 0], at[:, 1]), 1)
    np.testing.assert_array_equal(pairs, 10)
    later = np.zeros((M, M))
    np.add.at(later, (at[:, 0], at[:, 2]), 1)  # but two steps on, chance has its part
    assert 5 < later.min() < 10 < later.max() < 20


def test_a_single_path_may_be_anywhere():
    """One path's law is the chain's: over many calls it starts and goes on evenly."""
    plans = np.tile(np.full((M, M), 1 / M), (3, 1, 1))
    rng = np.random.default_rng(3)
    pairs, calls = np.zeros((M, M)), 3600
    for _ in range(calls):
        path = sample_paths(particles(), plans, NODES, NODES, TAU, 1, rng)
        pairs[tuple(numbers(path)[0, :2])] += 1
    expected = calls / M**2
    assert abs(pairs - expected).max() < 5.6 * math.sqrt(expected)


def test_impossible_steps_are_never_taken():
    plans = np.zeros((T - 1, M, M))
    plans[:, :, 0] = plans[:, :, 3] = 0.5
    plans[1, 2] = np.eye(M)[M - 1]
    at = numbers(sampled(NODES, plans=plans))
    assert set(np.unique(at[:, 1])) == {0, 3} == set(np.unique(at[:, 3]))
    exact = couple(particles(), 0.1, exact=True)
    at = numbers(sampled(NODES, plans=exact))
    for t, plan in enumerate(exact):
        np.testing.assert_array_equal(at[:, t + 1], plan.argmax(1)[at[:, t]])


# -- bridges -------------------------------------------------------------------------------------

SEEN = np.array([0.05, 0.1, 0.15, 0.3, 0.6, 0.9])


def standardised(tau: float) -> np.ndarray:
    """(paths, times, D): paths less their bridges' means, over the standard deviations for TAU."""
    both = sampled(np.concatenate([NODES, SEEN]), tau)
    at, between = both[:, :T], both[:, T:]
    gap = np.searchsorted(NODES, SEEN, side="right") - 1
    a, b = NODES[gap], NODES[gap + 1]
    share = ((SEEN - a) / (b - a))[:, None]
    mean = (1 - share) * at[:, gap] + share * at[:, gap + 1]
    return (between - mean) / np.sqrt(TAU * (SEEN - a) * (b - SEEN) / (b - a))[:, None]


def deviations(z: np.ndarray) -> float:
    """The largest |z| of means, variances and covariances of what should be a bridge's."""
    n = len(z)
    means = abs(z.mean(0)).max() * math.sqrt(n)
    flat = z.reshape(n, -1)
    expected = np.zeros((len(SEEN), len(SEEN)))
    gap = np.searchsorted(NODES, SEEN, side="right") - 1
    for i, s in enumerate(SEEN):
        for j, t in enumerate(SEEN):
            if gap[i] == gap[j]:
                a, b, low, high = NODES[gap[i]], NODES[gap[i] + 1], min(s, t), max(s, t)
                cover = (low - a) * (b - high)
                expected[i, j] = cover / math.sqrt((s - a) * (b - s) * (t - a) * (b - t))
    expected = np.kron(expected, np.eye(D))
    found = flat.T @ flat / n
    return max(means, float((abs(found - expected) / np.sqrt(1 + expected**2)).max()) * n**0.5)


def test_bridges_have_their_mean_variance_and_covariance():
    assert deviations(standardised(TAU)) < 5.6
    assert deviations(standardised(0.95 * TAU)) > 5.6
    assert deviations(standardised(1.05 * TAU)) > 5.6


def test_without_temperature_paths_are_straight():
    middle = (NODES[:-1] + NODES[1:]) / 2
    both = sampled(np.concatenate([NODES, middle]), tau=0.0, paths=50)
    at, between = both[:, :T], both[:, T:]
    np.testing.assert_allclose(between, (at[:, :-1] + at[:, 1:]) / 2, atol=1e-14)


def test_any_order_and_the_same_time_twice():
    times = np.array([0.7, 0.1, 1.0, 0.7, 0.0, 0.2])
    mixed = sampled(times, paths=100)
    ordered = sampled(np.unique(times), paths=100)
    np.testing.assert_array_equal(mixed, ordered[:, np.searchsorted(np.unique(times), times)])
    np.testing.assert_array_equal(mixed[:, 0], mixed[:, 3])


def test_a_seed_fixes_the_paths_and_another_changes_them():
    times = np.linspace(0, 1, 11)
    np.testing.assert_array_equal(sampled(times, paths=9), sampled(times, paths=9))
    assert not np.array_equal(sampled(times, paths=9), sampled(times, paths=9, seed=1))


def test_no_times_and_a_single_one():
    assert sampled([], paths=3).shape == (3, 0, D)
    assert sampled([0.4], paths=1).shape == (1, 1, D)


# -- refused -------------------------------------------------------------------------------------

PLANS = np.full((T - 1, M, M), 1 / M)
RNG = np.random.default_rng(0)
WRONG = {
    "one time point": lambda: couple(np.zeros((1, 3, 2)), 0.1),
    "no particle": lambda: couple(np.zeros((3, 0, 2)), 0.1),
    "not finite": lambda: couple(np.full((3, 3, 2), np.nan), 0.1, exact=True),
    "reg 0": lambda: couple(particles(), 0.0),
    "too few regs": lambda: couple(particles(), [0.1, 0.1]),
    "before the first": lambda: sampled([-0.01]),
    "after the last": lambda: sampled([1.01]),
    "no time": lambda: sampled([math.nan]),
    "no list": lambda: sampled(0.5),
    "temperature negative": lambda: sampled([0.5], tau=-1.0),
    "temperature NaN": lambda: sampled([0.5], tau=math.nan),
    "no paths": lambda: sampled([0.5], paths=0),
    "rows that sum to 2": lambda: sampled([0.5], plans=2 * PLANS),
    "negative rows": lambda: sampled([0.5], plans=PLANS + np.eye(M) - np.eye(M)[::-1]),
    "NaN rows": lambda: sampled([0.5], plans=PLANS * math.nan),
    "too few couplings": lambda: sampled([0.5], plans=PLANS[1:]),
    "nodes that do not ascend": lambda: sample_paths(
        particles(), PLANS, NODES[::-1], [0.5], TAU, 3, RNG
    ),
    "too few nodes": lambda: sample_paths(particles(), PLANS, NODES[1:], [0.5], TAU, 3, RNG),
}


@pytest.mark.parametrize("what", WRONG)
def test_refused(what):
    with pytest.raises(InvalidInput):
        WRONG[what]()

"""Laws of the flow: the published step, symmetry, precision, convergence, rows one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from tests.studies.quantiles import sample_quantiles
from tests.studies.rank_particles import (
    Particles,
    _place_by_numpy,
    _place_by_torch,
)

from penstock.base.errors import InvalidInput
from penstock.mechanisms.sliced_wasserstein.distribution import Targets
from penstock.mechanisms.sliced_wasserstein.flow import SlicedFlow
from penstock.mechanisms.sliced_wasserstein.goals import Goal, Schedule, goals, least_squares
from penstock.privacy.sensitivity import orthonormal_stack

Array = NDArray[np.float64]
RNG = np.random.default_rng


def published_step(x: Array, y: Array, theta: Array, size: float) -> Array:
    """The authors' arithmetic: both distribution functions interpolated between percentiles."""
    levels = np.linspace(0, 1, len(x))
    total = np.zeros_like(x)
    for direction in theta.T:
        own, goal = x @ direction, y @ direction
        rank = np.interp(own, np.quantile(own, levels), levels)
        total += np.outer(own - np.interp(rank, levels, np.quantile(goal, levels)), direction)
    return x - size * total / theta.shape[1]


def our_step(x: Array, y: Array, theta: Array, size: float, **how: object) -> Array:
    p = Particles(x, **how)  # type: ignore[arg-type]
    quantiles = sample_quantiles(np.sort((y @ theta).T, axis=1), len(x))
    p.step(p.tensor(theta), p.tensor(size * theta / theta.shape[1]), p.tensor(quantiles))
    return p.values


@pytest.mark.parametrize("batch", [40, 150, 151, 700])
@pytest.mark.parametrize(("precision", "close"), [("double", 1e-9), ("single", 2e-5)])
def test_a_step_is_the_published_one(batch: int, precision: str, close: float) -> None:
    rng = RNG(0)
    x, y = rng.standard_normal((150, 4)), 0.5 + rng.standard_normal((batch, 4)) ** 2
    theta = orthonormal_stack(12, 4, rng)
    ours = our_step(x, y, theta, 1.5, precision=precision)
    np.testing.assert_allclose(ours, published_step(x, y, theta, 1.5), atol=close)


def test_a_step_is_the_same_whatever_the_threads_and_whoever_sorts() -> None:
    rng = RNG(1)
    x, y = rng.standard_normal((30_000, 3)), rng.standard_normal((500, 3)) + 1
    theta = orthonormal_stack(12, 3, rng)
    one = our_step(x, y, theta, 2.0)
    assert np.array_equal(one, our_step(x, y, theta, 2.0, threads=2))
    for dtype in (torch.float32, torch.float64):
        projected = torch.tensor(theta.T @ x.T, dtype=dtype)
        quantiles = torch.tensor(sample_quantiles(np.sort((y @ theta).T, axis=1), 30_000)).to(dtype)
        by_numpy = _place_by_numpy(projected.contiguous(), quantiles)
        assert torch.equal(by_numpy, _place_by_torch(projected, quantiles))


def test_bits_sort_as_their_floats_do() -> None:
    odd = [0.0, -1.0, 1e-45, -1e-45, 3e38, -3e38, 1.0, -1e-30, math.inf, -math.inf, 1e-38]
    projected = torch.tensor([odd], dtype=torch.float32)
    ranks = torch.arange(float(len(odd)))[None]
    placed = _place_by_numpy(projected, ranks)[0]
    assert placed.tolist() == np.argsort(np.argsort(np.array(odd))).tolist()


def test_particles_have_no_names() -> None:
    rng = RNG(2)
    x, y, order = rng.standard_normal((200, 3)), rng.standard_normal((80, 3)), rng.permutation(200)
    theta = orthonormal_stack(9, 3, rng)
    moved = our_step(x, y, theta, 1.0, precision="double")
    np.testing.assert_allclose(
        our_step(x[order], y, theta, 1.0, precision="double"), moved[order], atol=1e-12
    )


def test_a_least_squares_step_of_one_basis_matches_every_direction() -> None:
    rng = RNG(3)
    x, y = rng.standard_normal((100, 3)), rng.gamma(1.0, size=(100, 3))
    theta = orthonormal_stack(3, 3, rng)
    p = Particles(x, precision="double")
    quantiles = np.sort((y @ theta).T, axis=1)
    p.step(p.tensor(theta), p.tensor(least_squares(theta)), p.tensor(quantiles))
    np.testing.assert_allclose(np.sort((p.values @ theta).T, axis=1), quantiles, atol=1e-10)


def test_least_squares_of_stacked_bases_is_the_bases_themselves() -> None:
    theta = orthonormal_stack(20, 5, RNG(0))
    np.testing.assert_allclose(least_squares(theta), theta / 4, atol=1e-12)
    # Any directions: the move that comes nearest to what all of them ask.
    any_, asked = RNG(1).standard_normal((3, 7)), RNG(2).standard_normal(7)
    nearest = np.linalg.lstsq(any_.T, asked, rcond=None)[0]
    np.testing.assert_allclose(least_squares(any_) @ asked, nearest, atol=1e-10)


@pytest.mark.parametrize(
    "start", [np.full((4, 2), math.nan), np.full((4, 2), math.inf), np.zeros((0, 2)), np.zeros(3)]
)
def test_a_start_that_is_none_is_refused(start: Array) -> None:
    with pytest.raises(InvalidInput):
        Particles(start)


def test_diffusion_is_added_and_the_ball_kept() -> None:
    x = np.zeros((5, 2))
    p = Particles(x, precision="double")
    theta, jump = np.eye(2), np.array([[3.0, 4.0]] * 5)
    p.step(p.tensor(theta), p.tensor(theta), p.tensor(x.T), diffusion=p.tensor(jump))
    np.testing.assert_allclose(p.values, jump)
    p.keep_in_ball(1.0)
    np.testing.assert_allclose(p.values, jump / 5)
    p.keep_in_ball(1.0)
    np.testing.assert_allclose(p.values, jump / 5)


# The flow as a map ----------------------------------------------------------------------------


def two_moons(n: int, rng: np.random.Generator) -> Array:
    """(n, 2): far from Gaussian, of mean 0 and sd 1 in each coordinate, nearly."""
    angle, upper = math.pi * rng.random(n), rng.random(n) < 0.5
    x = np.where(upper, np.cos(angle), 1 - np.cos(angle)) - 0.5
    y = np.where(upper, np.sin(angle), 0.5 - np.sin(angle)) - 0.25
    moons: Array = np.stack([x / 0.87, y / 0.5], axis=1) + 0.05 * rng.standard_normal((n, 2))
    return moons


def of_sample(y: Array, theta: Array) -> Targets:
    points = np.sort((y @ theta).T, axis=1)
    cdf = np.tile(np.linspace(0, 1, len(y)), (len(points), 1))
    return Targets(theta, points, cdf)


def sliced_distance(x: Array, y: Array) -> float:
    """SW2 over 200 fixed directions."""
    theta = RNG(99).standard_normal((x.shape[1], 200))
    theta /= np.linalg.norm(theta, axis=0)
    levels = (np.arange(500) + 0.5) / 500
    apart = np.quantile(x @ theta, levels, axis=0) - np.quantile(y @ theta, levels, axis=0)
    return float(np.sqrt((apart**2).mean()))


@pytest.fixture(scope="module")
def moons() -> tuple[Array, Targets, SlicedFlow]:
    y = two_moons(20_000, RNG(0))
    targets = of_sample(y, orthonormal_stack(32, 2, RNG(1)))
    schedule = Schedule(steps=80, step=1.0)
    return y, targets, SlicedFlow(goals(targets, schedule), 2, schedule)


def test_the_flow_converges(moons: tuple[Array, Targets, SlicedFlow]) -> None:
    # As near to the rows that it was shown as a fresh sample of as many is (.011), or nearer.
    y, targets, flow = moons
    z = RNG(5).standard_normal((20_000, 2))
    assert sliced_distance(z, y) > 0.15
    assert sliced_distance(flow.from_latent(z), y) < 0.015
    p = Particles(z[:4000])
    quantiles = p.tensor(targets.quantiles((np.arange(4000) + 0.5) / 4000))
    theta, back = p.tensor(targets.matrix), p.tensor(0.5 * least_squares(targets.matrix))
    for _ in range(100):
        p.step(theta, back, quantiles)
    assert sliced_distance(p.values, y) < 0.01


def test_rows_are_made_one_by_one(moons: tuple[Array, Targets, SlicedFlow]) -> None:
    flow, z = moons[2], RNG(5).standard_normal((9000, 2))
    rows, order = flow.from_latent(z), RNG(6).permutation(9000)
    assert np.array_equal(rows, flow.from_latent(z))
    np.testing.assert_allclose(flow.from_latent(z[:7]), rows[:7], atol=1e-5)
    np.testing.assert_allclose(flow.from_latent(z[order]), rows[order], atol=1e-5)
    assert flow.from_latent(z[:0]).shape == (0, 2)


def test_single_and_double_precision_agree(moons: tuple[Array, Targets, SlicedFlow]) -> None:
    targets, schedule = moons[1], Schedule(steps=80, step=1.0)
    double = SlicedFlow(goals(targets, schedule), 2, schedule, precision="double")
    z = RNG(5).standard_normal((2000, 2))
    apart = np.abs(double.from_latent(z) - moons[2].from_latent(z))
    # A row between two cells may take another way; hardly any does.
    assert np.quantile(apart, 0.99) < 5e-3


def test_gaussian_targets_leave_gaussians_where_they_are() -> None:
    theta, points = orthonormal_stack(24, 3, RNG(0)), np.linspace(-5, 5, 1001)
    cdf = norm.cdf(points)
    cdf[0], cdf[-1] = 0, 1
    schedule = Schedule(steps=40)
    targets = Targets(theta, np.tile(points, (24, 1)), np.tile(cdf, (24, 1)))
    flow, z = SlicedFlow(goals(targets, schedule), 3, schedule), RNG(1).standard_normal((4000, 3))
    assert float(np.sqrt(((flow.from_latent(z) - z) ** 2).mean())) < 0.03


def test_a_start_and_a_ball_are_kept_to() -> None:
    y = two_moons(5000, RNG(0)) * [3.0, 0.2] + [7.0, 0.0]
    targets, schedule = of_sample(y, orthonormal_stack(32, 2, RNG(1))), Schedule(60, 1.0)
    start = np.diag([3.0, 0.2]), np.array([7.0, 0.0])
    z = RNG(2).standard_normal((5000, 2))
    plain = SlicedFlow(goals(targets, schedule), 2, schedule, start=start)
    assert sliced_distance(plain.from_latent(z), y) < 0.08 < sliced_distance(z, y)
    balled = SlicedFlow(goals(targets, schedule), 2, schedule, start=start, radius=8.0)
    assert np.linalg.norm(balled.from_latent(z), axis=1).max() <= 8.0 * (1 + 1e-6)


def test_diffusion_spreads_as_much_as_it_says_and_repeats_itself() -> None:
    def nowhere(schedule: Schedule) -> Iterator[Goal]:
        for _ in range(schedule.steps):
            yield Goal(np.eye(2), np.zeros((2, 2)), lambda levels: np.zeros_like(levels))

    schedule = Schedule(steps=30, step=0.5, last=0.5, diffusion=0.02)
    flow = SlicedFlow(nowhere(schedule), 2, schedule)
    z = RNG(0).standard_normal((20_000, 2))
    moved = flow.from_latent(z)
    assert np.array_equal(moved, flow.from_latent(z))
    # √(2λh) a step: variance 2·.02·.5 thirty times; the sd of this estimate is .005 of it.
    assert (moved - z).var() == pytest.approx(0.6, rel=0.03)


def test_copies_do_not_share_what_diffuses() -> None:
    """Drawn rows would else move together, and copies look alike."""
    schedule = Schedule(steps=1, step=0.5, last=0.5, diffusion=0.5)
    still = Goal(np.eye(2), np.eye(2), lambda u: norm.ppf(np.clip(u, 1e-9, 1 - 1e-9)))
    flow = SlicedFlow([still], 2, schedule, precision="double")
    z, other = RNG(1).standard_normal((2, 5000, 2))
    jumps = [(flow.from_latent(x) - x).ravel() for x in (z, other)]
    assert abs(np.corrcoef(*jumps)[0, 1]) < 0.06
    assert np.array_equal(flow.from_latent(z), flow.from_latent(z))


@pytest.mark.parametrize("smoothing", [0.5, 20.0])
def test_smoothed_targets_are_met_by_what_they_are_the_smoothing_of(smoothing: float) -> None:
    # The quantiles of N(1, .5² + s²): the flow must find N(1, .5²), or near it where s is large.
    def goal(schedule: Schedule) -> Iterator[Goal]:
        quantiles: Callable[[Array], Array] = lambda u: norm.ppf(  # noqa: E731
            np.clip(u, 1e-9, 1 - 1e-9), 1.0, math.hypot(0.5, smoothing)
        )
        for _ in range(schedule.steps):
            yield Goal(np.eye(1), np.eye(1), quantiles, smoothing)

    schedule = Schedule(steps=60, step=1.0, last=1.0)
    flow = SlicedFlow(goal(schedule), 1, schedule, precision="double")
    x = flow.from_latent(RNG(0).standard_normal((20_000, 1)))
    assert x.mean() == pytest.approx(1.0, abs=0.05)
    if smoothing < 1:
        assert x.std() == pytest.approx(0.5, abs=0.05)


def test_a_schedule_takes_all_directions_in_turn_and_shrinks() -> None:
    schedule = Schedule(steps=6, step=0.8, last=0.1, bases=2)
    turns = list(schedule.turns(9, 3))
    assert [t.tolist() for t in turns[:2]] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 0, 1, 2]]
    assert [len(t) for t in Schedule(steps=3, bases=99).turns(9, 3)] == [9, 9, 9]
    sizes = schedule.sizes()
    assert (len(sizes), sizes[0], sizes[-1]) == (6, pytest.approx(0.8), pytest.approx(0.1))
    assert (np.diff(sizes) < 0).all()

"""What `make bench NAME=particles` gives every contender, and both sides of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import ot
import torch
from numpy.typing import NDArray
from ot.batch import solve_batch
from tests.studies.quantiles import sample_quantiles
from tests.studies.rank_particles import Particles

from penstock.mechanisms.trajectory.sinkhorn import sinkhorn

Array = NDArray[np.float64]
Works = dict[str, Callable[[], object]]

PARTICLES, BATCH, D, SD, STEP = 10_000, 250, 8, 1.0, 0.5
PERCENTILES = 30_000
"""The published configurations' number."""

TIMES, STOP = 10, 1e-7


# -- a step of the sliced-Wasserstein flow --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a step is given: particles (n, d), rows (b, d), directions (N, d), and the noise."""

    particles: torch.Tensor
    rows: torch.Tensor
    theta: torch.Tensor
    of_rows: torch.Tensor
    of_particles: torch.Tensor


def setting(n: int, d: int, directions: int, dtype: torch.dtype, seed: int = 0) -> Drawn:
    """Particles and rows in a ball of about 1, unit directions."""
    made = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=made, dtype=torch.float64)

    rows = torch.nn.functional.normalize(normal(BATCH, d)) * 0.8
    theta = torch.nn.functional.normalize(normal(directions, d))
    noise = SD * normal(directions, BATCH), SD * normal(directions, n)
    given = (0.4 * normal(n, d), rows, theta, *noise)
    return Drawn(*(tensor.to(dtype) for tensor in given))


def published(x: Drawn, percentiles: torch.Tensor) -> torch.Tensor:
    """The published arithmetic: quantiles, a distribution function, its inverse, a mean."""
    goals = torch.quantile(x.theta @ x.rows.T + x.of_rows, percentiles, dim=1).T
    own = x.theta @ x.particles.T + x.of_particles
    levels = torch.quantile(own, percentiles, dim=1).T
    even = percentiles.expand(len(own), -1)
    rank = _interpolated(levels.contiguous(), even, own)
    moved = own - _interpolated(even, goals.contiguous(), rank)
    drift = (moved[:, None, :] * x.theta[:, :, None]).mean(0).T
    return x.particles - STEP * drift


def _interpolated(knots: torch.Tensor, values: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Row by row: the piecewise linear function through (knots, values) at ``at``."""
    left = torch.searchsorted(knots.contiguous(), at).clamp(1, knots.shape[1] - 1) - 1
    rise = values[:, 1:] - values[:, :-1]
    slopes = rise / (torch.finfo(at.dtype).eps + knots[:, 1:] - knots[:, :-1])
    return values.gather(1, left) + slopes.gather(1, left) * (at - knots.gather(1, left))


def ours(x: Drawn, particles: Particles) -> None:
    """The same step, by rank."""
    goals = (x.theta @ x.rows.T + x.of_rows).sort(1).values
    quantiles = sample_quantiles(goals.numpy(), x.particles.shape[0])
    back = (STEP / len(x.theta)) * x.theta.T
    particles.step(x.theta.T, back, particles.tensor(quantiles), x.of_particles)


def fresh(x: Drawn) -> Drawn:
    """The same with new noise: drawn within the time that is measured."""
    noise = SD * torch.randn_like(x.of_rows), SD * torch.randn_like(x.of_particles)
    return Drawn(x.particles, x.rows, x.theta, *noise)


def apart(directions: int, dtype: torch.dtype, percentiles: int) -> float:
    """The largest difference of the two updates, as a share of the largest move."""
    x = setting(PARTICLES, D, directions, dtype)
    particles = moving(x)
    ours(x, particles)
    theirs = published(x, torch.linspace(0, 1, percentiles, dtype=dtype)).double().numpy()
    start = x.particles.double().numpy()
    return float(abs(particles.values - theirs).max() / abs(theirs - start).max())


def moving(x: Drawn) -> Particles:
    double = x.particles.dtype == torch.float64
    start = x.particles.double().numpy()
    return Particles(start, precision="double" if double else "single")


# -- Sinkhorn --------------------------------------------------------------------------------------


def clouds(m: int, times: int = TIMES, d: int = 2, seed: int = 0) -> torch.Tensor:
    """(T, m, d) points, uniform in a box of 1 by .5."""
    drawn = np.random.default_rng(seed).random((times, m, d))
    drawn[..., 0] *= 0.5
    return torch.as_tensor(drawn)


def margins_off(plans: Array) -> float:
    """The worst problem's L1 error, rows and columns together."""
    even = 1 / plans.shape[1]
    off = abs(plans.sum(1) - even).sum(1) + abs(plans.sum(2) - even).sum(1)
    return float(off.max())


def looped(costs: Array, reg: float, most: int = 10_000) -> Array:
    even = np.full(costs.shape[1], 1 / costs.shape[1])
    return np.stack(
        [
            ot.sinkhorn(even, even, cost, reg, stopThr=STOP, numItermax=most, warn=False)
            for cost in costs
        ]
    )


def solved(costs: Array) -> Array:
    """Exact plans, each point weighing 1/m."""
    return np.stack([ot.emd([], [], cost, numItermax=1_000_000) for cost in costs])


def costs_of(points: torch.Tensor) -> torch.Tensor:
    return torch.cdist(points[:-1], points[1:]) ** 2 / 2


def transports(m: int, reg: float, times: int = TIMES) -> tuple[Works, float]:
    """All contenders for T - 1 problems, costs included, float64, and the error asked for."""
    points = clouds(m, times)
    error = margins_off(looped(costs_of(points).numpy(), reg))
    noise = torch.randn(
        points.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    before = points + 0.1 * math.sqrt(reg) * noise
    start = sinkhorn(before[:-1], before[1:], reg, tolerance=error).potentials

    def solve(potentials: tuple[torch.Tensor, torch.Tensor] | None) -> Array:
        plans = sinkhorn(points[:-1], points[1:], reg, potentials=potentials, tolerance=error)
        return plans.joint.numpy()

    def batch() -> Array:
        # Its tolerance is of another norm; as strict as the loop's.
        solved = solve_batch(costs_of(points), reg, max_iter=10_000, tol=STOP, method="sinkhorn")
        return np.asarray(solved.plan)

    works: Works = {
        "ours, cold": lambda: solve(None),
        "ours, warm": lambda: solve(start),
        "loop of ot.sinkhorn": lambda: looped(costs_of(points).numpy(), reg),
        "ot.solve_batch": batch,
    }
    return works, error


def dynamics_step(m: int, reg: float) -> Callable[[], object]:
    """What a step of the dynamics computes: float32, warm, eight sweeps."""
    points = clouds(m).float()
    start = sinkhorn(points[:-1], points[1:], reg).potentials
    moved = points + 0.1 * math.sqrt(reg) * torch.randn(
        points.shape, generator=torch.Generator().manual_seed(1)
    )
    return lambda: sinkhorn(
        moved[:-1], moved[1:], reg, potentials=start, iterations=8, tolerance=None
    )

r"""Mean-field Langevin dynamics: particles that rows, neighbours in time and noise move.

One step on particles X (T, m, d), with the clipped and noisy data-fit sum V of
:mod:`penstock.mechanisms.trajectory.drift` over a Poisson sample of the persons:

.. math:: X ← X - a \frac{m h V}{q N} - b\,[(X_t - P X_{t+1}) + (X_t - Q X_{t-1})] + \sqrt{2c}\, ξ

N: rows per time point, public or as released, never as sampled; so that for a = 1 and without the
rest a particle goes to the mean of the rows it answers for. P, Q: barycentric maps of the entropic
transport to the neighbours in time. a, b and c fall along the run (annealing).

After Gu, Chien & Greenewald 2025, Algorithm 1, and Chizat et al. 2022. Only V reads rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.trajectory.drift import Rows
from penstock.mechanisms.trajectory.plan import Dynamics
from penstock.mechanisms.trajectory.sinkhorn import sinkhorn
from penstock.privacy.noise.sources import NoiseSource, add_gaussian, poisson_batch

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_SWEEPS, _FIRST_SWEEPS = 8, 50
"""Sinkhorn's iterations per step, from the last step's potentials; and at the first step."""

_BEYOND = 2.5
"""A particle's distance from the mean, in sds of the rows, is at most this more than √d."""


def descend(
    how: Dynamics,
    rows: Rows,
    particles: Array,
    spread: Array,
    sizes: Array,
    positions: Array,
    box: Array,
    noise: NoiseSource,
    tick: Callable[[], None] | None = None,
    moments: tuple[Array, Array] | None = None,
) -> Array:
    """The particles after all steps.

    Args:
        particles: (T, m, d), where they start; spread: (T,), of the rows of each time point.
        sizes: (T,) rows per time point, public or released; never counted here.
        positions: (T,), times in shares of the whole duration, increasing.
        box: (d,) half widths of the unit space, which particles never leave.
        moments: means (T, d) and covariances (T, d, d) of the rows, if they are known: particles
            stay where these make rows likely. One that has lost all rows would wander off, moved
            by nothing but noise.

    Privacy: ``how.event()``; start, spread, sizes and moments must be public or paid for.
    """
    import torch

    count, m, d = particles.shape
    x = rows.tensor(particles)
    edge = rows.tensor(box)
    width = how.bandwidth * spread
    n = np.maximum(sizes, how.least_rows(m))
    pull = how.step * m / (how.rate * n)
    gaps = np.diff(positions)
    reg = rows.tensor(how.temperature * gaps)
    springs = rows.tensor(_springs(how, width, gaps))[:, None, None]
    held = None if moments is None else _Held(rows, *moments)
    potentials, mean, averaged = None, torch.zeros_like(x), 0
    for k in range(how.steps):
        done = k / max(how.steps - 1, 1)
        left = 1 - (1 - how.cool) * done
        h = width * how.wide ** max(1 - 2 * done, 0.0)
        who = poisson_batch(rows.persons, how.rate, noise) if how.rate < 1 else None
        total = rows.clipped_sum(x, rows.tensor(h), how.clip, who)
        noisy = add_gaussian(total, how.sigma * how.clip, noise)
        heat = math.sqrt(left) * how.heat * noise.normal((count, m, d))
        move = h[:, None, None] * (heat - left * pull[:, None, None] * noisy)
        drift = rows.tensor(move)
        if count > 1:
            sweeps = _FIRST_SWEEPS if potentials is None else _SWEEPS
            plans = sinkhorn(
                x[:-1], x[1:], reg, potentials=potentials, iterations=sweeps, tolerance=None
            )
            potentials = plans.potentials
            drift[:-1] -= left * springs * (x[:-1] - plans.forward @ x[1:])
            drift[1:] -= left * springs * (x[1:] - plans.backward @ x[:-1])
        x = x + drift if held is None else held.within(x + drift)
        x = torch.minimum(torch.maximum(x, -edge), edge)
        if k >= how.steps * (1 - how.average) - 1:
            averaged += 1
            mean += (x - mean) / averaged
        if tick is not None:
            tick()
    found: Array = (mean if averaged else x).double().cpu().numpy()
    return found


class _Held:
    """The ellipsoids of each time point in which nearly all its rows are, by their moments."""

    def __init__(self, rows: Rows, means: Array, covariances: Array) -> None:
        values, vectors = np.linalg.eigh(covariances)
        self._mean = rows.tensor(means)[:, None, :]
        self._whiten = rows.tensor(vectors / np.sqrt(values)[:, None, :])
        self._reach = math.sqrt(means.shape[1]) + _BEYOND

    def within(self, x: torch.Tensor) -> torch.Tensor:
        """(T, m, d), those outside moved straight towards the mean."""
        apart = x - self._mean
        far: torch.Tensor = (apart @ self._whiten).norm(dim=2, keepdim=True)
        inside: torch.Tensor = self._mean + apart * (self._reach / far.clamp(min=self._reach))
        return inside


def _springs(how: Dynamics, width: Array, gaps: Array) -> Array:
    """(T - 1,): b of each gap; stronger the closer in time, and bounded: two pull a particle."""
    middle = (width[1:] + width[:-1]) / 2
    bounded: Array = np.minimum(how.smoothing * how.step * (middle / gaps) ** 2, 0.2)
    return bounded

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
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.trajectory.drift import Rows
from penstock.mechanisms.trajectory.plan import Dynamics
from penstock.mechanisms.trajectory.sinkhorn import sinkhorn
from penstock.privacy.measurements import Query, drive, is_known
from penstock.privacy.noise.sources import NoiseSource, poisson_batch

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Whole = NDArray[np.int64]

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
    public: NoiseSource | None = None,
    tick: Callable[[], None] | None = None,
    moments: tuple[Array, Array] | None = None,
) -> Array:
    """The particles after all steps.

    Args:
        particles: (T, m, d), where they start; spread: (T,), of the rows of each time point.
        sizes: (T,) rows per time point, public or released; never counted here.
        positions: (T,), times in shares of the whole duration, increasing.
        box: (d,) half widths of the unit space, which particles never leave.
        public: of the diffusion, on which no guarantee rests; ``noise`` if not given.
        moments: means (T, d) and covariances (T, d, d) of the rows, if they are known: particles
            stay where these make rows likely. One that has lost all rows would wander off, moved
            by nothing but noise.

    Privacy: ``how.measurement``; start, spread, sizes and moments must be public or paid for.
    """
    given = (particles, spread, sizes, positions, box, noise, public or noise, moments)
    session = Descent(how, rows, *given)

    def contribute(at: At) -> Array | Whole:
        if how.numbers is not None:
            if is_known(noise):
                return np.zeros(particles.shape, dtype=np.int64)
            return rows.whole_sum(at.particles, at.widths, how.clip)
        return rows.clipped_sum(at.particles, at.widths, how.clip, at.who)

    drive(session, contribute, noise, tick)
    return session.result()


@dataclass(frozen=True, slots=True)
class At:
    """Where a step's pulls are asked for: particles (T, m, d) and kernel widths h (T,).

    ``who``: whose, as :func:`penstock.privacy.noise.sources.poisson_batch` draws; None: everyone's.
    """

    particles: torch.Tensor
    widths: torch.Tensor
    who: Indices | None


class Descent:
    """The particles between their looks at rows: a session, with the arguments of :func:`descend`.

    Of ``rows`` it looks at their number, device and precision alone; from ``noise`` come batches,
    and from ``public`` the diffusion, on which no guarantee rests.
    """

    def __init__(
        self,
        how: Dynamics,
        rows: Rows,
        particles: Array,
        spread: Array,
        sizes: Array,
        positions: Array,
        box: Array,
        noise: NoiseSource,
        public: NoiseSource,
        moments: tuple[Array, Array] | None,
    ) -> None:
        import torch

        self._how, self._persons = how, rows.persons
        self._noise, self._public = noise, public
        self._tensor, self._measurement = rows.tensor, how.measurement
        self._x, self._edge = rows.tensor(particles), rows.tensor(box)
        self._width = how.bandwidth * spread
        m = particles.shape[1]
        self._pull = how.step * m / (how.rate * np.maximum(sizes, how.least_rows(m)))
        gaps = np.diff(positions)
        self._reg = rows.tensor(how.temperature * gaps)
        self._springs = rows.tensor(_springs(how, self._width, gaps))[:, None, None]
        self._held = None if moments is None else _Held(rows, *moments)
        self._potentials: tuple[torch.Tensor, torch.Tensor] | None = None
        self._mean, self._averaged, self._step = torch.zeros_like(self._x), 0, 0

    @property
    def _done(self) -> float:
        """Of the steps, as a share."""
        return self._step / max(self._how.steps - 1, 1)

    @property
    def _h(self) -> Array:
        """The kernel's widths (T,): they narrow evenly over the first half."""
        h: Array = self._width * self._how.wide ** max(1 - 2 * self._done, 0.0)
        return h

    def next_query(self) -> Query[At] | None:
        how = self._how
        if self._step >= how.steps:
            return None
        who = poisson_batch(self._persons, how.rate, self._noise) if how.rate < 1 else None
        return Query(At(self._x, self._tensor(self._h), who), self._measurement)

    def absorb(self, noisy: Array) -> None:
        """One step on the noisy pulls (T, m, d)."""
        import torch

        how, x = self._how, self._x
        left = 1 - (1 - how.cool) * self._done
        heat = math.sqrt(left) * how.heat * self._public.normal(noisy.shape)
        move = self._h[:, None, None] * (heat - left * self._pull[:, None, None] * noisy)
        drift = self._tensor(move)
        if len(noisy) > 1:
            sweeps = _FIRST_SWEEPS if self._potentials is None else _SWEEPS
            plans = sinkhorn(
                x[:-1],
                x[1:],
                self._reg,
                potentials=self._potentials,
                iterations=sweeps,
                tolerance=None,
            )
            self._potentials = plans.potentials
            drift[:-1] -= left * self._springs * (x[:-1] - plans.forward @ x[1:])
            drift[1:] -= left * self._springs * (x[1:] - plans.backward @ x[:-1])
        x = x + drift if self._held is None else self._held.within(x + drift)
        self._x = torch.minimum(torch.maximum(x, -self._edge), self._edge)
        if self._step >= how.steps * (1 - how.average) - 1:
            self._averaged += 1
            self._mean += (self._x - self._mean) / self._averaged
        self._step += 1

    def result(self) -> Array:
        """The mean of the last iterates, or the last one."""
        found: Array = (self._mean if self._averaged else self._x).double().cpu().numpy()
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

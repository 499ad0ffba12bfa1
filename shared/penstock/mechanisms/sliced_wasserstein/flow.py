r"""The flow as a fixed map from standard Gaussians to rows.

Reference particles, quasi-random Gaussians and public, flow towards the targets. At each step and
for each direction the displacement Q_θ(F_θ(p)) - p, F_θ the reference particles' own distribution
function, is kept on a grid over their range; any other point is then moved by the same
displacements. So rows are made one by one: how many are asked for, and in what batches, changes
none of them; copies are independent draws from one released distribution, as the rules that
combine copies assume; and a release larger than memory streams. (Particles that are matched rank
by rank repel each other: a copy of them varies less than a sample does.)
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from penstock.mechanisms.sliced_wasserstein.arithmetic import HELD, Numbers, Stage, arithmetic
from penstock.mechanisms.sliced_wasserstein.goals import Goal, Schedule
from penstock.mechanisms.sobol import draw_sobol

Array = NDArray[np.float64]

_CELLS = 256
"""Of the grid on which displacements are kept."""

_REFERENCE_POWER = 13
"""Reference particles: 2¹³."""

_REACH = 4.0
"""Where targets are smoothed, how many sds of it the grid goes further than the particles."""

_AT_ONCE = 1 << 12
_AT_ONCE_ELSEWHERE = 1 << 18


class SlicedFlow:
    """A map from standard Gaussians to rows.

    Args:
        steps: goals, as many as the schedule's steps.
        d: dimension; schedule: sizes of the steps, and diffusion.
        device, precision: as for particles.
        seed: of the reference particles and of diffusion; public.
        start: (d, d) matrix A and shift b (d,): the flow starts at A z + b, where A is not given
            at z itself.
        radius: of a ball around 0 into which every step's points are brought back, or None.
    """

    def __init__(
        self,
        steps: Iterable[Goal],
        d: int,
        schedule: Schedule,
        device: str = "cpu",
        precision: str = "single",
        seed: int = 0,
        start: tuple[Array, Array] | None = None,
        radius: float | None = None,
    ) -> None:
        self._arithmetic = arithmetic(device, precision)
        self._at_once = _AT_ONCE if device == "cpu" else _AT_ONCE_ELSEWHERE
        self._seed, self.d = seed, d
        matrix, shift = (np.eye(d), np.zeros(d)) if start is None else start
        numbers = self._arithmetic.numbers
        self._matrix, self._shift = numbers(matrix), numbers(shift[:, None])
        self._radius, self._stages = radius, list[Stage]()
        quasi = draw_sobol(d, _REFERENCE_POWER, seed)
        x, drawn = self._begin(ndtri(quasi)), np.random.default_rng(self._seed)
        for goal, size in zip(steps, schedule.sizes().tolist(), strict=True):
            spread = math.sqrt(2 * schedule.diffusion * size)
            stage = self._stage(goal, size, spread, x)
            x = self._moved(stage, x, drawn)
            self._stages.append(stage)

    def from_latent(self, z: Array) -> Array:
        """(m, d) standard Gaussians to rows; each row by itself, but for diffusion.

        What diffuses is drawn anew for other Gaussians, and the same for the same ones.
        """
        found = np.empty_like(z)
        drawn = np.random.default_rng([self._seed, zlib.crc32(z.tobytes())])
        for at in range(0, len(z), self._at_once):
            x = self._begin(z[at : at + self._at_once])
            for stage in self._stages:
                x = self._moved(stage, x, drawn)
            found[at : at + self._at_once] = self._arithmetic.values(x)
        return found

    def _begin(self, z: Array) -> Any:
        return self._kept(self._arithmetic.begin(self._matrix, self._shift, z))

    def _moved(self, stage: Stage, x: Any, drawn: np.random.Generator) -> Any:
        x = self._arithmetic.move(stage, x)
        if stage.spread:
            x = self._arithmetic.add(x, stage.spread * drawn.standard_normal(tuple(x.shape)))
        return self._kept(x)

    def _kept(self, x: Any) -> Any:
        return x if self._radius is None else self._arithmetic.into_ball(x, self._radius)

    def _stage(self, goal: Goal, size: float, spread: float, x: Any) -> Stage:
        """The displacements of one step, from where the reference particles x are."""
        numbers = self._arithmetic.numbers
        theta = numbers(goal.theta.T)
        projected = self._arithmetic.projected(theta, x)
        margin = _REACH * goal.smoothing
        low, high = float(projected.min()) - margin, float(projected.max()) + margin
        width = max(high - low, 1e-6) / _CELLS
        shares = _shares(projected, low, width)
        edges = low + width * np.arange(_CELLS + 1)
        if goal.smoothing:
            levels = shares @ ndtr((edges - edges[:-1, None] - width / 2) / goal.smoothing)
        else:
            levels = np.concatenate([np.zeros((len(shares), 1)), shares.cumsum(axis=1)], axis=1)
        # At half a particle from either end: quantiles there are not those of the very last.
        half = 0.5 / projected.shape[1]
        goals_ = goal.quantiles(np.clip(levels, half, 1 - half))
        if goal.smoothing:
            kernel = np.exp(-0.5 * ((edges - edges[:, None]) / goal.smoothing) ** 2)
            goals_ = goals_ @ (kernel / kernel.sum(axis=0))
        shift = size * (goals_ - edges)
        slope = np.diff(shift, axis=1)
        return Stage(
            theta,
            numbers(goal.back),
            low,
            1 / width,
            numbers(shift[:, :-1]),
            numbers(slope),
            spread,
        )


def _shares(projected: Numbers, low: float, width: float) -> Array:
    """(N, cells): the share of each direction's particles (N, m) that is in each cell."""
    directions, particles = projected.shape
    found, at_once = np.empty((directions, _CELLS)), max(1, HELD // particles)
    for start in range(0, directions, at_once):
        at = projected[start : start + at_once].astype(np.float64)
        at -= low
        at /= width
        cells = np.clip(at, 0, _CELLS - 1, out=at).astype(np.intp)
        cells += np.arange(len(cells))[:, None] * _CELLS
        counts = np.bincount(cells.ravel(), minlength=len(cells) * _CELLS)
        found[start : start + at_once] = counts.reshape(len(cells), _CELLS) / particles
    return found

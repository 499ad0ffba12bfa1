r"""The flow as a fixed map from standard Gaussians to rows.

Reference particles, quasi-random Gaussians and public, flow towards the targets. At each step and
for each direction the displacement Q_θ(F_θ(p)) - p, F_θ the reference particles' own distribution
function, is kept on a grid over their range; any other point is then moved by the same
displacements. So rows are made one by one: how many are asked for, and in what batches, changes
none of them; copies are independent draws from one released distribution, as the rules that
combine copies assume; and a release larger than memory streams. (Particles that are matched rank
by rank, as in :mod:`penstock.models.sliced_wasserstein.particles`, repel each other: a copy of
them varies less than a sample does.)
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

from penstock.models.sliced_wasserstein.goals import Goal, Schedule
from penstock.models.sliced_wasserstein.particles import into_ball

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]

_CELLS = 256
"""Of the grid on which displacements are kept."""

_REFERENCE_POWER = 13
"""Reference particles: 2¹³."""

_REACH = 4.0
"""Where targets are smoothed, how many sds of it the grid goes further than the particles."""

_AT_ONCE = 1 << 12
_AT_ONCE_ELSEWHERE = 1 << 18


@dataclass(frozen=True, slots=True)
class _Stage:
    theta: torch.Tensor
    back: torch.Tensor
    low: float
    scale: float
    shift: torch.Tensor
    slope: torch.Tensor
    spread: float

    def move(self, x: torch.Tensor) -> torch.Tensor:
        """(d, m) points, moved."""
        at = ((self.theta @ x - self.low) * self.scale).clamp_(0, self.shift.shape[1] - 1e-3)
        cell = at.long()
        by = self.shift.gather(1, cell) + self.slope.gather(1, cell) * (at - cell)
        return x + self.back @ by


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
        import torch

        self._dtype = torch.float32 if precision == "single" else torch.float64
        self._device, self._seed, self.d = device, seed, d
        matrix, shift = (np.eye(d), np.zeros(d)) if start is None else start
        self._matrix, self._shift = self._tensor(matrix), self._tensor(shift[:, None])
        self._radius, self._stages = radius, list[_Stage]()
        quasi = qmc.Sobol(d, seed=seed).random_base2(_REFERENCE_POWER)
        x, drawn = self._begin(ndtri(quasi)), np.random.default_rng(self._seed)
        for goal, size in zip(steps, schedule.sizes().tolist(), strict=True):
            spread = math.sqrt(2 * schedule.diffusion * size)
            stage = self._stage(goal, size, spread, x)
            x = self._settled(stage.move(x), spread, drawn)
            self._stages.append(stage)

    def from_latent(self, z: Array) -> Array:
        """(m, d) standard Gaussians to rows; each row by itself, but for diffusion.

        What diffuses is drawn anew for other Gaussians, and the same for the same ones.
        """
        found = np.empty_like(z)
        drawn = np.random.default_rng([self._seed, zlib.crc32(z.tobytes())])
        size = _AT_ONCE if self._device == "cpu" else _AT_ONCE_ELSEWHERE
        for at in range(0, len(z), size):
            x = self._begin(z[at : at + size])
            for stage in self._stages:
                x = self._settled(stage.move(x), stage.spread, drawn)
            found[at : at + size] = x.T.cpu().numpy()
        return found

    def _tensor(self, values: ArrayLike) -> torch.Tensor:
        import torch

        array = np.ascontiguousarray(values)
        return torch.as_tensor(array, dtype=self._dtype, device=self._device)

    def _begin(self, z: Array) -> torch.Tensor:
        return self._kept(self._matrix @ self._tensor(z.T) + self._shift)

    def _settled(self, x: torch.Tensor, spread: float, drawn: np.random.Generator) -> torch.Tensor:
        if spread:
            x = x + self._tensor(spread * drawn.standard_normal(tuple(x.shape)))
        return self._kept(x)

    def _kept(self, x: torch.Tensor) -> torch.Tensor:
        return x if self._radius is None else into_ball(x, self._radius)

    def _stage(self, goal: Goal, size: float, spread: float, x: torch.Tensor) -> _Stage:
        """The displacements of one step, from where the reference particles x are."""
        theta = self._tensor(goal.theta.T)
        projected = (theta @ x).cpu().numpy().astype(np.float64)
        margin = _REACH * goal.smoothing
        low, high = float(projected.min()) - margin, float(projected.max()) + margin
        width = max(high - low, 1e-6) / _CELLS
        cells = np.clip(((projected - low) / width).astype(np.intp), 0, _CELLS - 1)
        first = np.arange(len(cells))[:, None] * _CELLS
        counts = np.bincount((cells + first).ravel(), minlength=first.size * _CELLS)
        shares = counts.reshape(len(cells), _CELLS) / projected.shape[1]
        edges = low + width * np.arange(_CELLS + 1)
        if goal.smoothing:
            levels = shares @ ndtr((edges - edges[:-1, None] - width / 2) / goal.smoothing)
        else:
            levels = np.concatenate([np.zeros((len(cells), 1)), shares.cumsum(axis=1)], axis=1)
        # At half a particle from either end: quantiles there are not those of the very last.
        half = 0.5 / projected.shape[1]
        goals_ = goal.quantiles(np.clip(levels, half, 1 - half))
        if goal.smoothing:
            kernel = np.exp(-0.5 * ((edges - edges[:, None]) / goal.smoothing) ** 2)
            goals_ = goals_ @ (kernel / kernel.sum(axis=0))
        shift = size * (goals_ - edges)
        slope = np.diff(shift, axis=1)
        return _Stage(
            theta,
            self._tensor(goal.back),
            low,
            1 / width,
            self._tensor(shift[:, :-1]),
            self._tensor(slope),
            spread,
        )

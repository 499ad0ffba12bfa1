r"""The paper's own flow, to compare ours with: particles matched to targets rank by rank.

Of m particles x_i and N directions θ, each with m target quantiles Q_θ in rising order,

.. math:: x_i ← x_i - \sum_θ η_θ \bigl(⟨x_i, θ⟩ - Q_θ[\mathrm{rank}_θ(i)]\bigr).

With η_θ = h θ/N it is the step of the paper (its Algorithm 1, whose last line lacks the ``x +``);
:func:`~penstock.mechanisms.sliced_wasserstein.goals.least_squares` gives the η for which a step of
size 1 moves each particle as its N one-dimensional matchings ask, in the least-squares sense: (d/N)
θ for stacked orthonormal bases.

The sorts dominate. On a CPU numpy sorts by radix, several times as fast as torch; elsewhere torch
sorts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.sliced_wasserstein.arithmetic import into_ball

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]
Numbers = NDArray[np.float32] | NDArray[np.float64]

_AT_ONCE = 1 << 17
_AT_ONCE_ELSEWHERE = 1 << 26
"""Projections that are held at a time: on a CPU, what stays in its cache."""


class Particles:
    """m particles on a device, and their steps.

    Args:
        start: (m, d), finite.
        device: ``cpu``, or what torch calls another.
        precision: ``single`` or ``double``.
        threads: on a CPU; the result does not depend on it.
    """

    def __init__(
        self, start: Array, device: str = "cpu", precision: str = "single", threads: int = 1
    ) -> None:
        import torch

        problems = []
        if start.ndim != 2 or not start.size or not np.isfinite(start).all():
            problems.append(Problem("start", "must be finite, (m, d)", value=str(start.shape)))
        if precision not in ("single", "double"):
            problems.append(Problem("precision", "unknown", value=precision))
        if problems:
            raise InvalidInput("particles", problems)
        self._dtype = torch.float32 if precision == "single" else torch.float64
        self._device, self._threads = device, max(1, threads)
        # Coordinates first: a projection is then a sum of d long, contiguous vectors.
        self._x = self.tensor(np.ascontiguousarray(start.T))
        where = device == "cpu"
        self._chunk = max(1, (_AT_ONCE if where else _AT_ONCE_ELSEWHERE) // len(start))
        self._place: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = (
            _place_by_numpy if where else _place_by_torch
        )

    def tensor(self, values: ArrayLike) -> torch.Tensor:
        """On the device, in the precision that was asked for."""
        import torch

        return torch.as_tensor(np.asarray(values), dtype=self._dtype, device=self._device)

    @property
    def values(self) -> Array:
        """(m, d)."""
        moved: Array = self._x.T.cpu().numpy().astype(np.float64)
        return moved

    def step(
        self,
        theta: torch.Tensor,
        back: torch.Tensor,
        quantiles: torch.Tensor,
        smoothing: torch.Tensor | None = None,
        diffusion: torch.Tensor | None = None,
    ) -> None:
        """One step; see the formula above.

        Args:
            theta, back: (d, N), θ and η.
            quantiles: (N, m), rising along each row.
            smoothing: (N, m), added to the particles' projections: where targets are smoothed by
                noise, the particles' are to be as well (the Gaussian-smoothed distance).
            diffusion: (m, d), added at the end.
        """
        starts = range(0, theta.shape[1], self._chunk)

        def part(at: int) -> torch.Tensor:
            some = slice(at, at + self._chunk)
            projected = theta[:, some].T @ self._x
            if smoothing is not None:
                projected += smoothing[some]
            projected -= self._place(projected, quantiles[some])
            return back[:, some] @ projected

        if self._threads == 1 or len(starts) == 1:
            moves = map(part, starts)
            total = next(moves)
            for move in moves:
                total += move
        else:
            with ThreadPoolExecutor(self._threads) as pool:
                parts = pool.map(part, starts)
                total = next(parts)
                for move in parts:
                    total += move
        self._x -= total
        if diffusion is not None:
            self._x += diffusion.T

    def keep_in_ball(self, radius: float) -> None:
        """Project every particle onto the ball of this radius."""
        self._x = into_ball(self._x, radius)


def _place_by_numpy(projected: torch.Tensor, quantiles: torch.Tensor) -> torch.Tensor:
    """To each particle the quantile of its rank, (N, m)."""
    import torch

    values, goals = projected.numpy(), quantiles.numpy()
    placed = np.empty_like(values)
    for row, order, goal in zip(placed, _orders(values), goals, strict=True):
        row[order] = goal
    return torch.from_numpy(placed)


def _orders(values: Numbers) -> Iterator[NDArray[np.intp]]:
    """Each row's order, equal values in the order of their places.

    A float32 is two 16-bit halves, by which numpy sorts in linear time: the lower first, then the
    upper, each keeping what is equal in order.
    """
    if values.dtype == np.float64:
        yield from np.argsort(values, axis=1, kind="stable")
        return
    # Bits of floats rise with them, but for the negative ones' order.
    bits = values.view(np.int32)
    keys = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    for low, high in zip(keys.astype(np.uint16), (keys >> 16).astype(np.int16), strict=True):
        first = low.argsort(kind="stable")
        yield first[high[first].argsort(kind="stable")]


def _place_by_torch(projected: torch.Tensor, quantiles: torch.Tensor) -> torch.Tensor:
    import torch

    order = projected.sort(dim=1, stable=True).indices
    return torch.empty_like(projected).scatter_(1, order, quantiles)

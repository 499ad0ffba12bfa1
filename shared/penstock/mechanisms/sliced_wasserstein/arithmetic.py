"""Where a flow's arithmetic is done: by numpy in buffers of its own on a CPU, else by torch.

A step's displacements are kept on a grid (:class:`Stage`); both ways move points by them alike, up
to the rounding of a product of matrices. On a CPU points are moved a block at a time, so that what
is computed with stays in the cache, and memory holds no more than the points and
:data:`HELD` numbers, however many directions there are; and torch, which takes 0.2 GB before it has
done anything, is not loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]
Numbers = NDArray[np.floating[Any]]

HELD = 1 << 16
"""Projections of points that are computed at a time: what a cache holds."""

_TYPES = {"single": np.float32, "double": np.float64}


@dataclass(frozen=True, slots=True)
class Stage:
    """One step's displacements of N directions, on a grid of C cells.

    Args:
        theta, back: (N, d) directions; (d, N), what one unit of displacement along each moves.
        low, scale: the grid's lower end, and one over a cell's width.
        shift, slope: (N, C): displacements at the cells' lower edges, and their rises to the next.
        spread: sd of the diffusion.
    """

    theta: Any
    back: Any
    low: float
    scale: float
    shift: Any
    slope: Any
    spread: float


class Arithmetic(Protocol):
    """Points (d, m) in single or double precision, and what a flow does with them."""

    def numbers(self, values: ArrayLike) -> Any:
        """As they are computed with: on the device, in the precision."""

    def begin(self, matrix: Any, shift: Any, z: Array) -> Any:
        """Points (d, m) of latents (m, d): the matrix times each, and the shift (d, 1)."""

    def projected(self, theta: Any, x: Any) -> Numbers:
        """(N, m) in numpy."""

    def move(self, stage: Stage, x: Any) -> Any:
        """The points, moved; may be the same ones."""

    def add(self, x: Any, values: Array) -> Any:
        """The points, (d, m) added; may be the same ones."""

    def into_ball(self, x: Any, radius: float) -> Any:
        """Each point brought back to the ball of this radius, along its own line."""

    def values(self, x: Any) -> Numbers:
        """(m, d) in numpy."""


def arithmetic(device: str, precision: str) -> Arithmetic:
    """numpy's on a ``cpu``; torch's on what it calls another device."""
    return OnCpu(precision) if device == "cpu" else OnDevice(device, precision)


class OnCpu:
    """By numpy; what it needs beside the points, it holds in blocks of :data:`HELD` numbers."""

    def __init__(self, precision: str) -> None:
        self._type = _TYPES[precision]
        self._room: dict[str, NDArray[Any]] = {}

    def numbers(self, values: ArrayLike) -> Numbers:
        return np.ascontiguousarray(values, dtype=self._type)

    def begin(self, matrix: Numbers, shift: Numbers, z: Array) -> Numbers:
        started: Numbers = matrix @ self.numbers(z.T)
        started += shift
        return started

    def projected(self, theta: Numbers, x: Numbers) -> Numbers:
        found: Numbers = theta @ x
        return found

    def move(self, stage: Stage, x: Numbers) -> Numbers:
        directions, cells = stage.shift.shape
        first = np.arange(directions)[:, None] * cells
        shift, slope = stage.shift.ravel(), stage.slope.ravel()
        size = max(1, HELD // directions)
        for start in range(0, x.shape[1], size):
            part = x[:, start : start + size]
            shape = directions, part.shape[1]
            at, by, rise = (self._buffer(name, shape) for name in ("at", "by", "rise"))
            cell = self._buffer("cell", shape, np.int64)
            np.matmul(stage.theta, part, out=at)
            at -= stage.low
            at *= stage.scale
            np.clip(at, 0, cells - 1e-3, out=at)
            np.floor(at, out=by)
            at -= by
            np.copyto(cell, by, casting="unsafe")
            cell += first
            np.take(shift, cell, out=by, mode="clip")
            np.take(slope, cell, out=rise, mode="clip")
            rise *= at
            by += rise
            part += stage.back @ by
        return x

    def add(self, x: Numbers, values: Array) -> Numbers:
        x += self.numbers(values)
        return x

    def into_ball(self, x: Numbers, radius: float) -> Numbers:
        norm = np.sqrt(np.einsum("ij,ij->j", x, x))
        x *= np.minimum(radius / np.maximum(norm, 1e-30), 1.0).astype(self._type)
        return x

    def values(self, x: Numbers) -> Numbers:
        return x.T

    def _buffer(self, name: str, shape: tuple[int, int], kind: type | None = None) -> NDArray[Any]:
        """Contiguous room of a shape, in memory that the next block has again."""
        wanted, size = self._type if kind is None else kind, shape[0] * shape[1]
        room = self._room.get(name)
        if room is None or room.size < size:
            room = self._room[name] = np.empty(size, dtype=wanted)
        return room[:size].reshape(shape)


class OnDevice:
    """By torch, on a device that is asked for by its name for it."""

    def __init__(self, device: str, precision: str) -> None:
        import torch

        self._device = device
        self._type = torch.float32 if precision == "single" else torch.float64

    def numbers(self, values: ArrayLike) -> torch.Tensor:
        import torch

        array = np.ascontiguousarray(values)
        return torch.as_tensor(array, dtype=self._type, device=self._device)

    def begin(self, matrix: torch.Tensor, shift: torch.Tensor, z: Array) -> torch.Tensor:
        return matrix @ self.numbers(z.T) + shift

    def projected(self, theta: torch.Tensor, x: torch.Tensor) -> Numbers:
        found: Numbers = (theta @ x).cpu().numpy()
        return found

    def move(self, stage: Stage, x: torch.Tensor) -> torch.Tensor:
        at = ((stage.theta @ x - stage.low) * stage.scale).clamp_(0, stage.shift.shape[1] - 1e-3)
        cell = at.long()
        by = stage.shift.gather(1, cell) + stage.slope.gather(1, cell) * (at - cell)
        moved: torch.Tensor = x + stage.back @ by
        return moved

    def add(self, x: torch.Tensor, values: Array) -> torch.Tensor:
        return x + self.numbers(values)

    def into_ball(self, x: torch.Tensor, radius: float) -> torch.Tensor:
        return into_ball(x, radius)

    def values(self, x: torch.Tensor) -> Numbers:
        found: Numbers = x.T.cpu().numpy()
        return found


def into_ball(x: torch.Tensor, radius: float) -> torch.Tensor:
    """Each column of (d, m) brought back to the ball of this radius, along its own line."""
    norm = x.norm(dim=0, keepdim=True).clamp_(min=1e-30)
    kept: torch.Tensor = x * (radius / norm).clamp_(max=1.0)
    return kept

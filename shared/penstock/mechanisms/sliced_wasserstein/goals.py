"""What each step of a flow moves towards, and how far: public, or from what was released."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.mechanisms.sliced_wasserstein.distribution import Targets

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which directions a step uses, and how far it goes; all public.

    Args:
        steps: T.
        step: of the first, in (0, 1]; 1 is what the directions of a step ask for.
        last: of the last; in between geometric.
        bases: how many bases of d directions a step uses, in turn; all where there are fewer.
        diffusion: λ >= 0; a step of size h adds √(2λh) of Gaussian noise.
    """

    steps: int = 120
    step: float = 0.75
    last: float = 0.1
    bases: int = 4
    diffusion: float = 0.0

    def sizes(self) -> Array:
        """(T,)."""
        return np.geomspace(self.step, min(self.last, self.step), self.steps)

    def turns(self, directions: int, d: int) -> Iterator[NDArray[np.intp]]:
        """The directions of each step."""
        most, at = max(min(self.bases * d, directions), 1), 0
        for _ in range(self.steps):
            yield np.arange(at, at + most) % directions
            at += most


@dataclass(frozen=True, slots=True)
class Goal:
    """What one step moves towards.

    Args:
        theta: (d, N), directions; back: (d, N), what one unit of displacement along each moves.
        quantiles: levels (N, m) in [0, 1] to target quantiles (N, m).
        smoothing: sd of Gaussian noise that the targets contain; the particles' distributions are
            smoothed alike (the Gaussian-smoothed distance), without noise being drawn.
    """

    theta: Array
    back: Array
    quantiles: Callable[[Array], Array]
    smoothing: float = 0.0


def goals(targets: Targets, schedule: Schedule) -> Iterator[Goal]:
    """The steps of a schedule towards the same targets, directions in turn."""
    d, n = targets.matrix.shape
    for which in schedule.turns(n, d):
        theta = targets.matrix[:, which]

        def quantiles(levels: Array, which: NDArray[np.intp] = which) -> Array:
            return targets.quantiles(levels, which)

        yield Goal(theta, least_squares(theta), quantiles)


def least_squares(theta: ArrayLike) -> Array:
    """(ΘΘᵀ)⁻¹Θ, (d, N): for d directions or more that span the space; else its pseudo-inverse."""
    matrix = np.asarray(theta, dtype=np.float64)
    return np.asarray(np.linalg.pinv(matrix).T)

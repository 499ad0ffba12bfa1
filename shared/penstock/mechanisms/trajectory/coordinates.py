"""Where the numbers of a person's vector are: how they attend, what does not vary, and each column
at each time point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.copula.grids import Grid
from penstock.mechanisms.trajectory.attendance import LATENTS
from penstock.mechanisms.trajectory.follow_up import ENDS, FollowUp

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]
Numbers = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Places:
    """Where the numbers of a person's vector are.

    Attributes:
        constants, varying: grids; count: T; follow_up: what ends it, if anything does;
            once: everybody is at one time point.
    """

    constants: Sequence[Grid]
    varying: Sequence[Grid]
    count: int
    follow_up: FollowUp | None = None
    once: bool = False

    @property
    def ahead(self) -> int:
        """How many numbers say how a person attends, and how follow-up ends."""
        return LATENTS + (0 if self.follow_up is None else ENDS)

    @property
    def width(self) -> int:
        """Of the columns that vary, at one time point."""
        return sum(grid.latents for grid in self.varying)

    @property
    def start(self) -> int:
        """Where time points begin."""
        return self.ahead + sum(grid.latents for grid in self.constants)

    @property
    def size(self) -> int:
        return self.start + self.count * self.width

    def fixed(self) -> Iterator[tuple[int, Grid, Numbers]]:
        """Constants, by number, with their places."""
        return self._laid(self.constants, self.ahead)

    def at(self, t: int) -> Iterator[tuple[int, Grid, Numbers]]:
        """Columns that vary, by number, with their places at a time point."""
        return self._laid(self.varying, self.start + t * self.width)

    def _laid(self, grids: Sequence[Grid], at: int) -> Iterator[tuple[int, Grid, Numbers]]:
        for number, grid in enumerate(grids):
            yield number, grid, np.arange(at, at + grid.latents)
            at += grid.latents

    def times(self) -> Whole:
        """(size,): the time point of each number, or -1."""
        visits = np.repeat(np.arange(self.count), self.width)
        return np.concatenate([np.full(self.start, -1), visits])

    def attended(self, there: Bools) -> Array:
        """(N, size): 1 where a number is seen."""
        always = np.ones((len(there), self.start))
        return np.concatenate([always, np.repeat(there, self.width, axis=1)], axis=1)

    def offset(self, column: int) -> int:
        """Where a column begins among those of a time point."""
        return sum(grid.latents for grid in self.varying[:column])

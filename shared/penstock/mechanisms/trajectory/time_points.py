"""Public time points: which bin of the time column a row is in, and what a bin says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.schema import Column, Schema

if TYPE_CHECKING:
    from penstock.mechanisms.trajectory.settings import Trajectory

Array = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Times:
    """T even bins of one column, in its coded values; public.

    Attributes:
        column: the time column's schema.
        first: lower edge of the first bin; width: of every bin.
        count: T.
        used: which of them have particles, in order; both ends among them.
    """

    column: Column
    first: float
    width: float
    count: int
    used: tuple[int, ...]

    @property
    def positions(self) -> Array:
        """(U,) of the bins in use, in shares of the way from the first to the last bin."""
        return np.asarray(self.used) / (self.count - 1)

    @property
    def spread(self) -> bool:
        """Whether a time point has more than one value of the column."""
        grid = self.column.grid
        if self.column.kind == "ordered":
            return False
        return grid is None or grid[1] - grid[0] + 1 > self.count

    def bins(self, values: Array) -> Whole:
        """Which bin each value is in; what lies outside is in the nearest."""
        at = np.floor((np.nan_to_num(values) - self.first) / self.width)
        return np.clip(at, 0, self.count - 1).astype(np.int64)

    def at(self, positions: Array) -> Array:
        """Values of the column at shares of the way, snapped to the schema."""
        return self._snap(self.first + self.width * (0.5 + positions * (self.count - 1)))

    def starts(self) -> Array:
        """(T,) the least value of the column in each bin."""
        edges = np.asarray(self.first + self.width * np.arange(self.count), dtype=np.float64)
        if self.column.grid is None:
            return edges
        step = 10.0 ** -(self.column.decimals or 0)
        nearest = self._snap(edges)
        # An edge halfway between two values may be rounded down, into the bin before.
        return self._snap(
            np.where(self.bins(nearest) < np.arange(self.count), nearest + step, nearest)
        )

    def within(self, bins: Whole, rng: np.random.Generator, before: Array | None = None) -> Array:
        """A value of the column in each bin, uniform but for the column's own grid.

        Args:
            before: what no value is to exceed, at least the bin's least value.
        """
        low, share = self.first + self.width * bins, rng.random(bins.shape)
        width = self.width if before is None else np.clip(before - low, 0.0, self.width)
        drawn = self._snap(low + width * share)
        middle = self._snap(self.first + self.width * (bins + 0.5))
        if before is not None:
            middle = np.where(middle > before, self.starts()[bins], middle)
        # Rounding to the grid may cross an edge; the bin's middle does not.
        inside = self.bins(drawn) == bins
        if before is not None:
            inside &= drawn <= before
        return np.where(inside, drawn, middle)

    def _snap(self, values: NDArray[np.floating[Any]]) -> Array:
        """Snapped; between two levels, to the nearer one."""
        return self.column.snap(np.rint(values) if self.column.kind == "ordered" else values)


def unit_temperature(mechanism: Trajectory) -> float:
    """τ in the unit space of particles, which is half as wide as the encoded one."""
    return mechanism.temperature / 4


def times_of(mechanism: Trajectory, schema: Schema) -> Times:
    """The time points of a study that has no problems."""
    column = schema[mechanism.time]
    if column.kind == "ordered":
        first, count, width = -0.5, len(column.levels), 1.0
    else:
        (first, upper), grid = column.bounds, column.grid
        if grid is not None:  # a bin for a value would else be half a bin at either end
            step = 10.0 ** -(column.decimals or 0)
            first, upper = (grid[0] - 0.5) * step, (grid[1] + 0.5) * step
        count = mechanism.points or round(upper - first)
        width = (upper - first) / count
    used = np.rint(np.linspace(0, count - 1, mechanism.subsample or count)).astype(int)
    return Times(column, first, width, count, tuple(used.tolist()))


def find_point(times: Times, time: float | str) -> int:
    """The number of the time point that a study's time is in, from 0: a value of the column, or of
    an ordered one a level."""
    value = times.column.levels.index(time) if isinstance(time, str) else time
    return int(times.bins(np.array([float(value)]))[0])

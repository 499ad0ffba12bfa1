"""Noisy counts of every pair of columns, in one release.

A level is a cell of its own; a number's bins are joined to a few groups by its released margin, of
about as many rows each but for finer ends, on which a regression rests. What is missing, and a
spike, are groups of their own. A row is in one cell of each pair's table. Exact discrete Gaussian
noise on whole numbers, under zero-out with public n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from penstock.mechanisms.copula.grids import Grid, place_of
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource
from penstock.privacy.sensitivity import histogram
from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Places = NDArray[np.intp]
Whole = NDArray[np.int64]

GROUPS = 12
"""Of a number's bins, at most; its spike parts one of them, and is one, as is what is missing."""

_FINER = ((1e-3, 24), (2e-3, 16))
"""Error of a pair's count, as a share of the rows, and how many groups there are below it: finer
groups are then nearer to the rows, although each count has as much noise. Frozen on tables that the
study of whole tables (`private-utility`) names."""

_IN_A_CELL = 10
"""Rows in each cell of a table of two numbers, on average, that so many groups leave: of 1,600 rows
24 groups lose a fourth more of what columns have in common than 12, however exact counts are."""

_APART = 3

_FEWEST = 1.0
"""Rows by which a count is off at least: those without noise are of some rows, too."""

_STRETCHED = 1.3
"""Sds of normal scores that are cut into even groups: the last one has .036 of the rows."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A column's cells, joined.

    Attributes:
        grid: of the column; of: (cells,) the group of each; count: of groups.
        within: (cells,) the share of each in its group, as released.
    """

    grid: Grid
    of: Places
    count: int
    within: Array

    @classmethod
    def make(cls, grid: Grid, shares: Array, most: int = GROUPS) -> Groups:
        """
        Args:
            shares: (cells,) of the column's released margin; most: groups of a number's bins.
        """
        every = np.arange(grid.count)
        if not grid.numeric:
            return cls(grid, every, grid.count, np.ones(grid.count))
        bins = shares[grid.bins]
        middle = (np.cumsum(bins) - bins / 2) / max(float(bins.sum()), 1e-300)
        middle = ndtr(ndtri(middle) / _STRETCHED)
        names = np.full(grid.count, -1)
        names[grid.bins] = np.clip((middle * most).astype(np.intp), 0, most - 1)
        for at, cell in enumerate((grid.spike, grid.missing)):
            if cell >= 0:
                names[cell] = most + at
        of = np.append(0, np.cumsum(names[1:] != names[:-1]))
        count = int(of[-1]) + 1
        total = np.bincount(of, shares, count)[of]
        return cls(grid, of, count, shares / np.maximum(total, 1e-300))

    def add_up(self, cells: Array) -> Array:
        """(groups,) of what cells have."""
        return np.asarray(np.bincount(self.of, cells, self.count), dtype=np.float64)

    def average(self, points: Array) -> Array:
        """(groups,) the mean of what cells stand for."""
        return self.add_up(self.within * points)


def share_error(sd: float, rows: float) -> float:
    """Of a count with noise of this sd, as a share of the rows."""
    return math.hypot(sd, _FEWEST) / rows


def choose_groups(sd: float, rows: float) -> int:
    """How many groups of a number's bins there are, at most, if bins are divided where rows are.

    Args:
        sd: of a pair's count; rows: as there may be, publicly.
    """
    error = share_error(sd, rows)
    enough = (g for below, g in _FINER if error < below and rows >= _IN_A_CELL * g**2)
    return next(enough, GROUPS)


def most_groups(grid: Grid, most: int, fine: bool) -> int:
    """As many as there can be, whatever is released.

    Args:
        most: of a number's bins; fine: these are divided where values are counted, too.
    """
    cells = grid.most_cells(fine)
    return min(cells, most + _APART) if grid.numeric else cells


def measure_pairs(
    sigma: float,
    grids: Sequence[Grid],
    rows_per_person: int,
    most: int = GROUPS,
    fine: bool = False,
) -> WholeSum:
    """Counts of the cells of every pair of columns.

    Sensitivity: :func:`penstock.privacy.sensitivity.histogram` of one histogram for each pair,
    zero-out of one person: k·√(d(d - 1)/2).
    """
    pairs = len(grids) * (len(grids) - 1) // 2
    groups = [most_groups(grid, most, fine) for grid in grids]
    return WholeSum(
        label="pairs",
        noise_multiplier=sigma,
        sensitivity=histogram(pairs, rows_per_person),
        squared=Fraction(rows_per_person**2 * pairs),
        unit=1.0,
        size=sum(one * other for one, other in combinations(groups, 2)),
    )


def release_pairs(
    groups: Sequence[Groups],
    coded: Coded,
    present: Bools,
    measurement: WholeSum | None,
    noise: NoiseSource,
) -> Array:
    """(G, G), symmetric, of all columns' groups one after the other; 0 of a column with itself.

    Args:
        coded: columns of length n·k; present: the same.
        measurement: of :func:`measure_pairs`, or None for no noise.
    """
    counts = count_pairs(groups, coded, present)
    whole = np.concatenate([table.ravel() for table in counts])
    noisy = whole.astype(np.float64) if measurement is None else measurement(whole, noise)
    starts = np.append(0, np.cumsum([one.count for one in groups]))
    found = np.zeros((starts[-1], starts[-1]))
    tables = np.split(noisy, np.cumsum([table.size for table in counts])[:-1])
    for (a, b), table in zip(combinations(range(len(groups)), 2), tables, strict=True):
        rows, columns = slice(starts[a], starts[a + 1]), slice(starts[b], starts[b + 1])
        found[rows, columns] = table.reshape(groups[a].count, groups[b].count)
        found[columns, rows] = found[rows, columns].T
    return found


def count_pairs(groups: Sequence[Groups], coded: Coded, present: Bools) -> list[Whole]:
    """How many rows are in each cell of each pair's table; absent ones are in one of their own."""
    places = [
        one.of[place_of(one.grid, coded[one.grid.column.name])].astype(np.int32) for one in groups
    ]
    found = []
    for (a, first), (b, second) in combinations(enumerate(places), 2):
        rows, columns = groups[a].count, groups[b].count
        both = np.where(present, first * columns + second, rows * columns)
        counts = np.bincount(both, minlength=rows * columns + 1)[:-1]
        found.append(counts.reshape(rows, columns))
    return found

"""A column's distribution at each time point: by noisy counts, and by moments that tell more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from penstock.mechanisms.copula.column_shares import read_shares
from penstock.mechanisms.copula.densities import Known
from penstock.mechanisms.copula.grids import Grid
from penstock.mechanisms.trajectory.coordinates import Places
from penstock.mechanisms.trajectory.headcounts import Counted

Array = NDArray[np.float64]

_SPREADS_DIFFER, _LEAST_VARIANCE, _LEAST_KNOWN, _MOVES = 0.1, 0.05, 0.01, 12
"""How far spreads at different times differ, a priori; the least of one, and of its error; and how
often shares are moved."""

_CERTAIN, _FALL = 2.0, 0.5
"""By how many sds of their noise counts from the bounds inwards stand out together; and how much of
a cell's share the next one further out has at most."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Of the cells of each constant, and of each column at each time point.

    Attributes:
        pooled: of each column, over all time points.
    """

    fixed: list[Array]
    moving: list[list[Array]]
    pooled: list[Array]

    @classmethod
    def read(cls, places: Places, counted: Counted) -> Shares:
        """Numbers at all time points as they are over all of them, to begin with; levels as they
        are counted."""
        sd = counted.sd
        fixed = [
            read_shares(grid, counts, sd, counted.persons)
            for grid, counts in zip(places.constants, counted.fixed, strict=True)
        ]
        pooled = []
        for j, grid in enumerate(places.varying):
            pooled.append(read_pooled(grid, counted, j))
        moving = [
            [
                pooled[j] if grid.numeric else read_shares(grid, counts, sd, rows)
                for j, (grid, counts) in enumerate(zip(places.varying, each, strict=True))
            ]
            for each, rows in zip(counted.moving, counted.present, strict=True)
        ]
        return cls(fixed, moving, pooled)


def read_pooled(grid: Grid, counted: Counted, column: int, known: Sequence[Known] = ()) -> Array:
    """Shares of a column's cells over all time points.

    Args:
        known: at each of them, by moments: without them what noise puts into empty cells is taken
            for values that are far from all others.
    """
    whole = sum((each[column] for each in counted.moving), np.zeros(grid.count))
    sd, rows = counted.sd * math.sqrt(len(counted.moving)), float(counted.present.sum())
    told = []
    if known:
        weigh = counted.present / rows
        mean = float(weigh @ [one.mean for one in known])
        square = float(weigh @ [one.square for one in known])
        mean_sd = math.sqrt(float(weigh**2 @ [one.mean_sd**2 for one in known]))
        square_sd = math.sqrt(float(weigh**2 @ [one.square_sd**2 for one in known]))
        told = [Known(known[0].points, mean, mean_sd, square, square_sd)]
    return _let_fall(grid, read_shares(grid, whole, sd, rows, told), whole, sd)


def _let_fall(grid: Grid, shares: Array, counts: Array, sd: float) -> Array:
    """The same shares with tails that fall off, from where counts further out do not stand out of
    their noise together: moments of clipped scores say little of who is how far out there."""
    if not grid.numeric:
        return shares
    found = shares.copy()
    for bins in (grid.bins, grid.bins[::-1]):
        sums = np.cumsum(counts[bins])
        certain = sums > _CERTAIN * sd * np.sqrt(np.arange(1, len(bins) + 1))
        for k in reversed(range(int(certain.argmax()))):
            found[bins[k]] = min(found[bins[k]], _FALL * found[bins[k + 1]])
    return np.asarray(found / found.sum())


def even_spreads(known: Sequence[Known]) -> list[Known]:
    """Squares of a column that noise makes differ in time are drawn to those that all have.

    By how far noise reaches beyond :data:`_SPREADS_DIFFER`. Means are left as they are: how they
    move is what is asked.
    """
    variances = np.array([max(one.square - one.mean**2, _LEAST_VARIANCE) for one in known])
    noise = np.array([one.square_sd for one in known]) ** 2
    tells = 1 / (noise + _SPREADS_DIFFER**2)
    common = float(tells @ variances / tells.sum())
    kept = _SPREADS_DIFFER**2 / (_SPREADS_DIFFER**2 + noise)
    even = common + kept * (variances - common)
    spread = np.sqrt(kept) * np.sqrt(noise)
    return [
        replace(one, square=float(v) + one.mean**2, square_sd=max(float(s), _LEAST_KNOWN))
        for one, v, s in zip(known, even, spread, strict=True)
    ]


def move_shares(grid: Grid, pooled: Array, known: Known) -> Array:
    """Shares of a number's bins: those over all time, moved and stretched as normal scores are,
    until mean and square are as known."""
    bins = grid.bins
    apart = [cell for cell in (grid.spike, grid.missing) if cell >= 0]
    inner = float(pooled[bins].sum())
    beside = known.without(pooled, apart, bins, inner) if apart else known
    points = beside.points if apart else known.points[bins]
    shares = pooled[bins] / inner
    edges = ndtri(np.clip(np.cumsum(shares)[:-1], 1e-12, 1 - 1e-12))
    goal = math.sqrt(max(beside.square - beside.mean**2, _LEAST_VARIANCE))
    slope = max(math.sqrt(float(shares @ points**2) - float(shares @ points) ** 2), 1e-3)
    middle, spread, moved = 0.0, 1.0, shares
    for _ in range(_MOVES):
        mean = float(moved @ points)
        found = math.sqrt(max(float(moved @ points**2) - mean**2, 1e-6))
        middle = min(max(middle + (beside.mean - mean) / slope, -3.0), 3.0)
        spread = min(max(spread * goal / found, 0.2), 5.0)
        risen = np.concatenate([[0.0], ndtr((edges - middle) / spread), [1.0]])
        moved = np.maximum(np.diff(risen), 1e-9)
        moved = moved / moved.sum()
    return moved

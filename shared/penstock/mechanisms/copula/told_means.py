r"""Means of single columns, which a study declares or needs, from one noisy sum of rows.

Counts of a column's cells say what lies where, and of its mean little where rows are few: the noise
of every cell moves it, and of cells at the ends most. A sum of the values themselves errs by far
less. Of each mean a row has how far its value lies from a middle, over how far values are to reach;
or, of a share, whether it is among those asked about, counted alike. The vector of these is clipped
to norm 1. What a cell's rows have of a clipped entry is known without looking at rows, so shares of
the cells are found at which the clipped mean is the released one. How far values reach is where the
noise, and the error of what lies beyond, of which counts alone tell, are least together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.copula.densities import Known
from penstock.mechanisms.copula.grids import Grid, middle_of, place_of, share_of
from penstock.mechanisms.tables.moments import clip_rows
from penstock.schema import Coded

Array = NDArray[np.float64]
Of: TypeAlias = Literal["value", "level", "above", "below"]

_MIDDLE, _ACROSS = (0.1, 0.5, 0.9), 2.563
"""Quantiles of what was counted, of which the outer ones are so many sds apart where it is normal:
noise of cells far from all rows moves them little."""

_LEAST_REACH, _SMOOTHED, _TYPICAL = 1.5, 0.5, 0.16
"""Sds within which no number is clipped; the noise of what counts say of a tail, which are read as
a smooth density, over that of counts; and the mean square of a clipped number, over how far it may
be."""

_LEAST_SHARE = 0.02
"""Of rows that are counted among those asked about, or among the others, as far as the middle
between them goes: a level of which noise hides everybody is no rare one."""

_GUESSED = 0.02
"""By how much of its reach, over the root of the rows, a mean is off beside the noise: by where in
its cell a value lies, and by what other columns have."""


@dataclass(frozen=True, slots=True)
class Meant:
    """What the mean is of: of a number its value; or 1 of who has a level, or lies strictly above
    or below a threshold, and 0 of all others.

    Attributes:
        column: its name; at: the threshold, or the level's place among the column's.
    """

    column: str
    of: Of = "value"
    at: float = 0.0

    def __call__(self, values: Array) -> Array:
        """(N,) of coded values; NaN where these are missing."""
        if self.of == "value":
            return values
        if self.of == "level":
            found = values == self.at
        else:
            found = values > self.at if self.of == "above" else values < self.at
        return np.where(np.isnan(values), np.nan, found)

    def points(self, grid: Grid) -> Array:
        """(count,) on average of who is in each cell; NaN of the missing one."""
        found = self(middle_of(grid))
        if self.of == "value" or not grid.numeric or grid.steps:
            return found
        column, bins = grid.column, len(grid.edges) - 1
        if grid.valued:
            values = column.bounds[0] + 10.0 ** -(column.decimals or 0) * np.arange(len(grid.homes))
            inside = values != column.spike
            each = np.bincount(grid.homes, inside, bins)
            among = np.bincount(grid.homes, inside * self(column.snap(values)), bins)
            found[grid.bins] = among / np.maximum(each, 1.0)
            return found
        cut = float(share_of(column, np.clip([self.at], *column.bounds))[0])
        low, high = grid.edges[:-1], grid.edges[1:]
        below = np.clip((cut - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)
        found[grid.bins] = 1 - below if self.of == "above" else below
        return found


@dataclass(frozen=True, slots=True)
class MeanScores:
    """What of rows is added up: of each mean :math:`ρ (f - m) / c`, the whole clipped to norm 1.

    Attributes:
        meant: q of them; middles: (q,) m; weights: (q,) ρ/c.
    """

    meant: Sequence[Meant]
    middles: Array
    weights: Array

    @classmethod
    def of(
        cls,
        meant: Sequence[Meant],
        columns: Mapping[str, tuple[Grid, Array]],
        counted: float,
        told: float,
    ) -> MeanScores:
        """By what was counted.

        Args:
            columns: by name, their cells and the shares of these.
            counted, told: sds of the noise on a cell's share, and on the mean of vectors.
        """
        middles, reach, typical = np.zeros((3, len(meant)))
        told *= math.sqrt(1 + _TYPICAL * (len(meant) - 1))
        for j, one in enumerate(meant):
            grid, share = columns[one.column]
            points = one.points(grid)
            there = ~np.isnan(points)
            p, x = share[there] / share[there].sum(), points[there]
            if one.of == "value":
                low, middles[j], high = x[
                    np.searchsorted(np.cumsum(p), _MIDDLE).clip(max=len(x) - 1)
                ]
                away, least = np.abs(x - middles[j]), _LEAST_REACH * (high - low) / _ACROSS
                reach[j], typical[j] = _choose_reach(away, least, counted, told), _TYPICAL
            else:
                middles[j] = np.clip(p @ x, _LEAST_SHARE, 1 - _LEAST_SHARE)
                reach[j] = max(middles[j], 1 - middles[j])
                typical[j] = min(middles[j], 1 - middles[j]) / reach[j]
        # One entry at its end, and all others as they usually are.
        size = 1 + typical.sum() - typical.min()
        return cls(meant, middles, 1 / (math.sqrt(size) * reach))

    def __call__(self, columns: Coded) -> Array:
        """(N, q) weighted, of coded rows, not clipped; 0 where missing."""
        plain = np.stack([one(columns[one.column]) for one in self.meant], axis=1)
        return _fill((plain - self.middles) * self.weights)

    def points(self, j: int, grid: Grid) -> Array:
        """(cells,) the same of what each cell stands for."""
        return _fill((self.meant[j].points(grid) - self.middles[j]) * self.weights[j])


def _choose_reach(away: Array, least: float, counted: float, told: float) -> float:
    """At which noise and what is clipped, of which counts alone tell, err least together.

    Args:
        away: (cells,) how far each is from the middle; least: as far, if some are.
    """
    ends = np.unique(np.maximum(away, min(least, float(away.max()))))
    ends = ends[ends > 0]
    if not len(ends):
        return 1.0
    beyond = np.maximum(away - ends[:, None], 0.0)
    tails = (_SMOOTHED * counted) ** 2 * (beyond**2).sum(axis=1)
    return float(ends[np.argmin((told * ends) ** 2 + tails)])


def _fill(entries: Array) -> Array:
    """Who is missing is in the middle."""
    return np.asarray(np.where(np.isnan(entries), 0.0, entries))


@dataclass(frozen=True, slots=True)
class ToldMeans:
    """What was released.

    Attributes:
        scores: of what; means: (q,) of clipped entries, over the rows; error: sd of the noise on
            each; rows: as released.
        persons: drawn by all that is known so far.
    """

    scores: MeanScores
    means: Array
    error: float
    rows: float
    persons: Coded

    def recall(self, grid: Grid) -> list[Known]:
        """Of one column, as the shares of its cells are to have them: of clipped entries, as they
        are on average beside other columns like persons'."""
        own = [j for j, one in enumerate(self.scores.meant) if one.column == grid.column.name]
        if not own:
            return []
        scored = self.scores(self.persons)
        beside = (np.delete(scored, own, axis=1) ** 2).sum(axis=1)
        points = np.stack([self.scores.points(j, grid) for j in own], axis=1)
        lengths = np.sqrt((points**2).sum(axis=1)[:, None] + beside)
        points = points * (1 / np.maximum(lengths, 1.0)).mean(axis=1)[:, None]
        # Values are not all in the middle of their cells.
        there = points[place_of(grid, self.persons[grid.column.name])].mean(axis=0)
        within = clip_rows(scored, 1.0)[:, own].mean(axis=0) - there
        means = self.means[own] - within
        error = math.hypot(self.error, _GUESSED / math.sqrt(self.rows))
        return [Known(x, mean, error) for x, mean in zip(points.T, means.tolist(), strict=True)]


def recall_means(told: ToldMeans | None, grid: Grid) -> list[Known]:
    """As :meth:`ToldMeans.recall`; nothing, where nothing was released."""
    return [] if told is None else told.recall(grid)

"""The values of a column as counted, in a few parts of its distribution; of levels, each is one.

The counted distribution is cut where normal scores are even, so that tails are cut finely however
skewed a column is; but never within what is held exactly: a step, a level, or a spike. A value is
drawn from its part as the counts say.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from penstock.mechanisms.copula.densities import estimate_density
from penstock.mechanisms.copula.grids import Grid, draw_values, middle_of, read_within
from penstock.mechanisms.copula.population import TWICE

Array = NDArray[np.float64]

PARTS = 32
"""At most; the outermost are beyond so many sds of normal scores."""

_FAR = 3.4
_WITHIN = 8
"""Values at which a part is looked at for its mean."""

_SIGHT, _TAIL = 3.0, 0.5
"""A tail is seen where it holds so many sds of the noise on its cells together; what holds a larger
share than this is none."""

_BACK, _SLOWEST = 4, 0.9
"""Cells from which one sees how it falls off: by so much from each to the next, at least."""

_LEVELS = ("ordered", "categorical")
"""Kinds of column whose cells are told apart however thin they are."""

_FLOOR, _THINNEST = 1e-7, 1e-9


@dataclass(frozen=True, slots=True)
class Support:
    """A column's counted distribution.

    Args:
        grid: of the column; cells: shares of its cells, of rows in which it is not missing; within:
            what is in them, as :class:`~penstock.mechanisms.copula.grids.Cells` has it.
        cuts: (c + 1,) from 0 to 1, where its distribution function is cut.
        values: (c,) what the parts stand for.
        hidden: (2, c) how far a part is above, and below, the values of which counts tell; there
            the distribution is a guess.
        error: sd of the noise on one cell, as a share of the rows.
    """

    grid: Grid
    cells: Array
    within: Array | None
    cuts: Array
    values: Array
    hidden: Array
    error: float

    @classmethod
    def read(cls, grid: Grid, counts: Array, sd: float, told: Array | None = None) -> Support:
        """From noisy counts of the grid's cells, (count,).

        Args:
            told: (values,) counts of values, with twice the noise; none, or None: not counted.
        """
        cells, seen = _read_shares(grid, counts, sd)
        error = sd / max(float(counts.sum()), 1.0)
        if grid.column.kind in _LEVELS:
            values = np.arange(len(grid.column.levels), dtype=np.float64)
            cuts = np.append(0.0, np.cumsum(cells[grid.count - len(values) :]))
            cuts[-1] = 1.0
            return cls(grid, cells, None, cuts, values, np.zeros((2, len(values))), error)
        cuts, within = _cut(grid, cells), None
        if told is not None:
            within = read_within(grid, cells, told, TWICE * sd, max(float(counts.sum()), 1.0))
        inside = cuts[:-1, None] + np.diff(cuts)[:, None] * (np.arange(_WITHIN) + 0.5) / _WITHIN
        values = _draw(grid, cells, inside.ravel(), within).reshape(inside.shape).mean(axis=1)
        hidden = np.maximum([values - seen[1], seen[0] - values], 0.0)
        hidden[:, values == grid.column.spike] = 0.0
        return cls(grid, cells, within, cuts, values, hidden, error)

    @property
    def shares(self) -> Array:
        """(c,) of the parts."""
        return np.diff(self.cuts)

    def draw(self, place: NDArray[np.intp], inside: Array) -> Array:
        """A value of each one's part; inside: (N,) uniforms, in (0, 1)."""
        if self.grid.column.kind in _LEVELS:
            return self.values[place]
        at = self.cuts[place] + inside * self.shares[place]
        return _draw(self.grid, self.cells, at, self.within)


def _draw(grid: Grid, cells: Array, at: Array, within: Array | None) -> Array:
    return draw_values(grid, cells, ndtri(at)[:, None], within)


def _read_shares(grid: Grid, counts: Array, sd: float) -> tuple[Array, tuple[float, float]]:
    """Of the cells, the missing one aside: a number's bins as a smooth density; and what of it
    counts tell of."""
    share, there = np.zeros(grid.count), np.arange(grid.count) != grid.missing
    rows = max(float(counts[there].sum()), 1.0)
    share[there] = np.maximum(counts[there] / rows, 0.0)
    low, high = -np.inf, np.inf
    if grid.numeric:
        middles, bins = middle_of(grid), grid.bins
        inner = max(float(counts[bins].sum()), 1.0)
        dense = estimate_density(counts[bins], sd, inner)
        dense, above = _end(dense, sd / inner)
        dense, below = _end(dense[::-1], sd / inner)
        share[bins] = dense[::-1] * inner / rows
        low = float(middles[bins[::-1][below]]) if below < len(bins) - 1 else low
        high = float(middles[bins[above]]) if above < len(bins) - 1 else high
    share[there] += _FLOOR
    return share / share.sum(), (low, high)


def _end(dense: Array, error: float) -> tuple[Array, int]:
    """A density with an upper tail that falls off as steadily as it begins to, where its cells
    hold less together than their noise; and the last cell before that."""
    beyond = np.arange(len(dense))[::-1]
    left = np.append(np.cumsum(dense[::-1])[::-1][1:], 0.0)
    hidden = (left < _SIGHT * error * np.sqrt(beyond)) & (left <= _TAIL)
    at = int(np.argmax(hidden)) if hidden.any() else len(dense) - 1
    if at == len(dense) - 1 or not dense[: at + 1].any():
        return dense, len(dense) - 1
    back = max(min(_BACK, at), 1)
    # Where there was nothing before, or is nothing at it, there is no fall to go on with.
    fall = dense[at] / dense[at - back] if dense[at - back] > 0 else 1.0
    ratio = min(fall ** (1 / back), _SLOWEST)
    tail = dense[at] * ratio ** np.arange(1, len(dense) - at)
    if (summed := float(tail.sum())) > 0:
        tail = tail * min(1.0, float(left[at]) / summed)
    ended = np.append(dense[: at + 1], tail)
    return ended / ended.sum(), at


def _cut(grid: Grid, cells: Array) -> Array:
    risen = np.append(0.0, np.cumsum(cells))
    risen[-1] = 1.0
    cuts = ndtr(np.linspace(-_FAR, _FAR, PARTS - 1))
    cell = np.clip(np.searchsorted(risen, cuts, side="right") - 1, 0, grid.count - 1)
    whole = (cell == grid.spike) | grid.steps | (not grid.numeric)
    low, high = risen[cell], risen[cell + 1]
    cuts = np.where(whole, np.where(cuts - low < high - cuts, low, high), cuts)
    cuts = np.unique(np.concatenate([[0.0], cuts]))
    return np.append(cuts[cuts < 1 - _THINNEST], 1.0)

"""The values of a number or of a 0/1 column as counted, in a few parts of its distribution.

The counted distribution is cut where normal scores are even, so that tails are cut finely however
skewed a column is; but never within what is held exactly: a step, a level, or a spike. A value is
drawn from its part as the counts say.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from penstock.mechanisms.structured.densities import estimate_density
from penstock.mechanisms.structured.grids import Grid, draw_values

Array = NDArray[np.float64]

PARTS = 32
"""At most; the outermost are beyond so many sds of normal scores."""

_FAR = 3.4
_WITHIN = 8
"""Values at which a part is looked at for its mean."""

_FLOOR, _THINNEST = 1e-7, 1e-9


@dataclass(frozen=True, slots=True)
class Support:
    """A column's counted distribution.

    Args:
        grid: of the column; cells: shares of its cells, of rows in which it is not missing.
        cuts: (c + 1,) from 0 to 1, where its distribution function is cut.
        values: (c,) what the parts stand for.
        error: sd of the noise on one cell, as a share of the rows.
    """

    grid: Grid
    cells: Array
    cuts: Array
    values: Array
    error: float

    @classmethod
    def read(cls, grid: Grid, counts: Array, sd: float) -> Support:
        """From noisy counts of the grid's cells, (count,)."""
        cells = _read_shares(grid, counts, sd)
        cuts = _cut(grid, cells)
        inside = cuts[:-1, None] + np.diff(cuts)[:, None] * (np.arange(_WITHIN) + 0.5) / _WITHIN
        values = _draw(grid, cells, inside.ravel()).reshape(inside.shape).mean(axis=1)
        return cls(grid, cells, cuts, values, sd / max(float(counts.sum()), 1.0))

    @property
    def shares(self) -> Array:
        """(c,) of the parts."""
        return np.diff(self.cuts)

    def draw(self, place: NDArray[np.intp], inside: Array) -> Array:
        """A value of each one's part; inside: (N,) uniforms, in (0, 1)."""
        at = self.cuts[place] + inside * self.shares[place]
        return _draw(self.grid, self.cells, at)


def _draw(grid: Grid, cells: Array, at: Array) -> Array:
    return draw_values(grid, cells, ndtri(at)[:, None])


def _read_shares(grid: Grid, counts: Array, sd: float) -> Array:
    """Of the cells, the missing one aside: a number's bins as a smooth density."""
    share, there = np.zeros(grid.count), np.arange(grid.count) != grid.missing
    rows = max(float(counts[there].sum()), 1.0)
    share[there] = np.maximum(counts[there] / rows, 0.0)
    if grid.numeric:
        inner = max(float(counts[grid.bins].sum()), 1.0)
        share[grid.bins] = estimate_density(counts[grid.bins], sd, inner) * inner / rows
    share[there] += _FLOOR
    return np.asarray(share / share.sum())


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

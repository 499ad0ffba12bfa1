"""The values of a column as counted, in a few parts of its distribution; of levels, each is one.

The counted distribution is cut where normal scores are even, so that tails are cut finely however
skewed a column is; but never within what is held exactly: a step, a level, or a spike. A value is
drawn from its part as the counts say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from penstock.mechanisms.copula.column_shares import TWICE
from penstock.mechanisms.copula.densities import Known, estimate_density
from penstock.mechanisms.copula.grids import Grid, draw_values, middle_of, read_within

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

_OF_SHARE = 2
"""A share is the average of so many different values: in it, and not in it. A mean is of more, and
says how much a tail weighs."""

_MOVED = 0.5
"""By how much of its error a known mean may be moved by what rows' scores say of a tail. Frozen on
`randhie`, `adult-hours` and simulated counts; of these the study of coverage shows the second."""

_MOST_BENT, _HALVINGS = 2.0, 40
"""By how much more or less a tail falls off from each cell to the next, in logarithms, at most."""


@dataclass(frozen=True, slots=True)
class Support:
    """A column's counted distribution.

    Args:
        grid: of the column; cells: shares of its cells, of rows in which it is not missing; within:
            what is in them, as :class:`~penstock.mechanisms.copula.grids.Cells` has it.
        cuts: (c + 1,) from 0 to 1, where its distribution function is cut.
        values: (c,) what the parts stand for.
        hidden: (2, c) how far a part is above, and below, the values of which counts tell; there
            the distribution is a guess. Where a mean holds how a tail falls off, at most a spread.
        loose: (2,) sds of how far, per spread, the guess may be off, in logarithms of shares: 1, or
            as far as a known mean allows.
        error: sd of the noise on one cell, as a share of the rows.
    """

    grid: Grid
    cells: Array
    within: Array | None
    cuts: Array
    values: Array
    hidden: Array
    loose: Array
    error: float

    @classmethod
    def read(
        cls,
        grid: Grid,
        counts: Array,
        sd: float,
        told: Array | None = None,
        known: Sequence[Known] = (),
    ) -> Support:
        """From noisy counts of the grid's cells, (count,).

        Args:
            told: (values,) counts of values, with twice the noise; none, or None: not counted.
            known: of a number, means that were released beside the counts, over all rows.
        """
        cells, seen, loose = _read_shares(grid, counts, sd, known)
        error = sd / max(float(counts.sum()), 1.0)
        if grid.column.kind in _LEVELS:
            values = np.arange(len(grid.column.levels), dtype=np.float64)
            cuts = np.append(0.0, np.cumsum(cells[grid.count - len(values) :]))
            cuts[-1] = 1.0
            hidden = np.zeros((2, len(values)))
            return cls(grid, cells, None, cuts, values, hidden, loose, error)
        cuts, within = _cut(grid, cells), None
        if told is not None:
            within = read_within(grid, cells, told, TWICE * sd, max(float(counts.sum()), 1.0))
        inside = cuts[:-1, None] + np.diff(cuts)[:, None] * (np.arange(_WITHIN) + 0.5) / _WITHIN
        values = _draw(grid, cells, inside.ravel(), within).reshape(inside.shape).mean(axis=1)
        hidden = np.maximum([values - seen[1], seen[0] - values], 0.0)
        if (loose < 1).any():
            hidden = _saturate(hidden, values, np.diff(cuts))
        hidden[:, values == grid.column.spike] = 0.0
        return cls(grid, cells, within, cuts, values, hidden, loose, error)

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


def _read_shares(
    grid: Grid, counts: Array, sd: float, known: Sequence[Known]
) -> tuple[Array, tuple[float, float], Array]:
    """Of the cells, the missing one aside: a number's bins as a smooth density; what of it counts
    tell of; and :attr:`Support.loose`."""
    share, there = np.zeros(grid.count), np.arange(grid.count) != grid.missing
    rows = max(float(counts[there].sum()), 1.0)
    share[there] = np.maximum(counts[there] / rows, 0.0)
    low, high, loose = -np.inf, np.inf, np.ones(2)
    if grid.numeric:
        middles, bins = middle_of(grid), grid.bins
        inner = max(float(counts[bins].sum()), 1.0)
        whole = max(float(counts.sum()), 1.0)
        apart = [cell for cell in (grid.spike, grid.missing) if cell >= 0]
        others = np.clip(counts / whole, 0.0, 1.0)
        beside = [one.without(others, apart, bins, inner / whole) for one in known]
        dense = estimate_density(counts[bins], sd, inner, beside)
        dense, above = _end(dense, sd / inner)
        dense, below = _end(dense[::-1], sd / inner)
        dense, below = dense[::-1], len(bins) - 1 - below
        low = float(middles[bins[below]]) if below > 0 else low
        high = float(middles[bins[above]]) if above < len(bins) - 1 else high
        if means := [one for one in beside if len(np.unique(one.points)) > _OF_SHARE]:
            dense = _hold_mean(dense, below, above, means[0])
            loose = _see_looseness(dense, middles[bins], (low, high), means[0])
        share[bins] = dense * inner / rows
    share[there] += _FLOOR
    return share / share.sum(), (low, high), loose


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


def _hold_mean(dense: Array, low: int, high: int, known: Known) -> Array:
    """The density whose tails, below and above the cells that are seen, fall off so fast that it
    has the known mean."""
    at = np.arange(len(dense))
    beyond = np.minimum(at - low, 0) + np.maximum(at - high, 0)
    if not beyond.any():
        return dense

    def bend(by: float) -> Array:
        bent = dense * np.exp(by * beyond)
        return np.asarray(bent / bent.sum())

    least, most = -_MOST_BENT, _MOST_BENT
    for _ in range(_HALVINGS):
        by = (least + most) / 2
        least, most = (by, most) if known.points @ bend(by) < known.mean else (least, by)
    return bend((least + most) / 2)


def _see_looseness(dense: Array, middles: Array, seen: tuple[float, float], known: Known) -> Array:
    """:attr:`Support.loose` where a mean is known: how far a tail may be off if the other is not,
    so that the mean moves by a share of its error."""
    hidden = np.maximum([middles - seen[1], seen[0] - middles], 0.0)
    spread = _see_spread(middles, dense)
    hidden = _saturate(hidden, middles, dense) / spread
    moved = np.abs((hidden - (hidden @ dense)[:, None]) * known.points @ dense)
    return np.asarray(np.minimum(_MOVED * known.mean_sd / np.maximum(moved, 1e-9), 1.0))


def _saturate(hidden: Array, values: Array, shares: Array) -> Array:
    """How far each is out of sight, (2, c), at most about a spread: who is further out is not told
    apart, since rows are clipped, and a tail that is raised by how far it is has no end."""
    spread = _see_spread(values, shares)
    return np.asarray(spread * np.tanh(hidden / spread))


def _see_spread(values: Array, shares: Array) -> float:
    return max(float(np.sqrt(shares @ (values - shares @ values) ** 2)), 1e-9)


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

"""A number's bins, divided where its rows are.

Even bins between public bounds say little of a number of which most lies in a few of them: of
diamonds between 0 and 59 mm long nine in ten are in three. What their values, or parts, were
counted as, with more noise, divides them: into as many cells as stand out of the noise, so that a
thin bin stays one. A part with a pile of rows, as whole years are in a number with decimals, is a
cell of its own in any bin. The cells' density is bent as little from what the bins alone say as
all counts allow (:mod:`~penstock.mechanisms.copula.densities`). Post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.copula.column_shares import TWICE, read_shares
from penstock.mechanisms.copula.densities import (
    STIFFNESS,
    Blocks,
    Known,
    Reference,
    estimate_density,
)
from penstock.mechanisms.copula.grids import (
    FEWER_DIVIDED,
    MOST_DIVIDED,
    Grid,
    divide,
    read_within,
    shape_bins,
)

Array = NDArray[np.float64]
Places = NDArray[np.intp]

_STANDS, _STIFFNESSES = 3.0, (1000.0, 100.0, 10.0)
"""How many sds of noise a cell's rows are, at least; and λ of bends away from what bins say, the
last one where parts are narrow. Frozen on tables that the study of whole tables (`private-utility`)
names; the first ones on heights, nafld1, nwtco and rotterdam."""

_PILES = 64
"""Parts that are cells of their own, at most."""

_LEAST = 1e-9
"""Share of every cell, at least: one without any would make sums of shares exceed 1 by rounding."""


@dataclass(frozen=True, slots=True)
class Margin:
    """What was counted of one column, and the cells in which it is read.

    Attributes:
        grid: the cells; whole: as they were counted, whose bins the grid's are parts of.
        counts: (whole cells,) noisy; values: of the whole grid's values or parts, with twice the
            noise, or none; sd: of the counts' noise; rows: in all.
        stiffnesses: as :func:`~penstock.mechanisms.copula.column_shares.read_shares` has them.
        homes: (bins,) of the grid's, which of the whole one's each is a part of, and within: what
            share of that one's rows it has; None: the grid is the whole one.
    """

    grid: Grid
    whole: Grid
    counts: Array
    values: Array
    sd: float
    rows: float
    stiffnesses: Sequence[float] = (STIFFNESS,)
    homes: Places | None = None
    within: Array | None = None

    def read(self, known: Sequence[Known] = ()) -> Array:
        """Shares of the grid's cells.

        Args:
            known: of the grid's cells, beside their counts.
        """
        whole = read_shares(
            self.whole,
            self.counts,
            self.sd,
            self.rows,
            [self._widen(one) for one in known],
            stiffnesses=self.stiffnesses,
        )
        if self.homes is None or self.within is None:
            return whole
        share = np.zeros(self.grid.count)
        share[self.grid.bins] = whole[self.whole.bins][self.homes] * self.within + _LEAST
        for to, of in self._list_apart():
            share[to] = whole[of]
        return np.asarray(share / share.sum())

    def read_within(self, shares: Array) -> Array | None:
        """What is in the grid's bins, as :class:`~penstock.mechanisms.copula.grids.Cells` has it.

        Args:
            shares: of the grid's cells.
        """
        return read_within(self.grid, shares, self.values, TWICE * self.sd, self.rows)

    def _list_apart(self) -> list[tuple[int, int]]:
        """Cells of the grid that are in no bin, and of the whole one."""
        pairs = ((self.grid.spike, self.whole.spike), (self.grid.missing, self.whole.missing))
        return [(own, of) for own, of in pairs if own >= 0]

    def _widen(self, known: Known) -> Known:
        """The same of the whole grid's cells: on average of who is in each."""
        if self.homes is None or self.within is None:
            return known
        homes, within, bins = self.homes, self.within, self.whole.bins

        def average(points: Array) -> Array:
            found = np.zeros(self.whole.count)
            found[bins] = np.bincount(homes, within * points[self.grid.bins], len(bins))
            for own, of in self._list_apart():
                found[of] = points[own]
            return found

        return replace(known, points=average(known.points), squares=average(known.squared_points))


def divide_bins(plain: Margin, fine: bool) -> Margin:
    r"""A column in cells as fine as its counts say.

    A bin of B rows, of which K values are counted with noise of s each, is divided into m cells of
    as many values each, :math:`B / m ≥ 3 s \sqrt{K / m}`. How many rows it has in all its own
    count says best.

    Args:
        plain: as it was counted.
        fine: bins whose values are counted are divided, too, and all into :data:`MOST_DIVIDED`
            cells, about; else only those that have parts, and into fewer.
    """
    grid, values, sd, rows = plain.grid, plain.values, plain.sd, plain.rows
    if not len(values) or not grid.is_divided(fine):
        return plain
    shares = plain.read()
    bins, noise = shares[grid.bins], TWICE * sd
    within, piled = shape_bins(grid, shares, values, noise, rows)
    # A pile of one value is drawn as one in whatever cell it is (``read_within``).
    piles = _list_piles(values * piled) if len(grid.parts) else np.zeros(0, dtype=np.intp)
    ends = np.append(piles, piles + 1)
    others = rows * bins - np.bincount(grid.homes[piles], values[piles], len(bins))
    most = MOST_DIVIDED if fine else FEWER_DIVIDED
    starts = _choose_starts(grid.homes, np.maximum(others, 0), noise, most - len(ends))
    starts = np.union1d(starts, ends[ends < len(values)])
    if len(starts) <= len(bins):
        return plain
    homes, inner = grid.homes[starts], float(bins.sum())
    before = bins[homes] * np.add.reduceat(within, starts)
    found = estimate_density(
        np.add.reduceat(values, starts),
        noise,
        rows * inner,
        [Blocks(plain.counts[grid.bins], homes, sd, rows * inner)],
        Reference(before / before.sum(), _STIFFNESSES[-1:] if fine else _STIFFNESSES),
        np.diff(np.append(starts, len(values))),
    )
    found = found + _LEAST
    return replace(
        plain,
        grid=divide(grid, starts),
        homes=homes,
        within=found / np.bincount(homes, found, len(bins))[homes],
    )


def _list_piles(counts: Array) -> Places:
    """Places of the largest, at most :data:`_PILES`, that are above 0."""
    largest = np.argsort(-counts, kind="stable")[:_PILES]
    return np.asarray(largest[counts[largest] > 0])


def _choose_starts(homes: Places, rows: Array, noise: float, most: int) -> Places:
    """Of the values, in order, those with which cells begin.

    Args:
        homes: (values,) the bin of each; rows: (bins,) in each; noise: sd of a value's count; most:
            cells, about.
    """
    each = np.bincount(homes, minlength=len(rows))
    full = np.maximum(each, 1)
    into = np.clip((rows / (_STANDS * max(noise, 1e-9))) ** 2 / full, 1, full)
    into = np.floor(np.clip(into * min(1.0, most / into.sum()), 1, full))
    first = np.cumsum(each) - each
    within = np.floor((np.arange(len(homes)) - first[homes]) * into[homes] / each[homes])
    return np.flatnonzero(np.append(True, (np.diff(homes) > 0) | (np.diff(within) > 0)))

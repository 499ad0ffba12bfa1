"""A column's cells: where a value is counted, what a cell stands for, and its score.

A column is counted on a fixed grid: numbers in even bins on their scale, or step by step where
there are few; a ``spike``, a level and a missing value each in a cell of their own. Cells are in
the order of their values, a missing one first, so that one number between 0 and 1 says where a
person lies. Levels without an order take one such number each but the last: whether it is this
one, given that it is none before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from penstock.mechanisms.copula.bin_curves import Curves
from penstock.schema import NUMBER_KINDS, Coded, Column, Schema

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Places = NDArray[np.intp]

BINS, STEPS = 32, 64
"""Cells of a number, at most, besides its spike's and that of what is missing: more of them are
more noise where a column is thin. And steps, where each is a cell."""

VALUES = 4096
"""Values of a number, at most, that are counted one by one beside wider bins, with more noise: of
many rows that have the same value a bin does not say which."""

PARTS, FEWER_PARTS = 32, 8
"""Of each even bin: narrow ones, of a number that has more than :data:`VALUES` values, and wide
ones, of one that has more values than there are of these. They are counted in place of values."""

MOST_DIVIDED, FEWER_DIVIDED = 384, 128
"""Cells into which all bins of a number are divided, about, by narrow parts and by wide ones: the
density of how rows lie in them takes their cube."""

_STRAYS, _LEAST_WITHIN = 0.05, 1e-9
"""Values of a column that are taken for piles by chance, on average: their count stands out of the
bin by noise, and by who is there."""

MOST_ALIKE = 0.95
"""Of a column's values in one even bin, above which nearly all that it tells is within the bin."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of one column.

    Attributes:
        column: as the schema has it.
        count: of cells; latents: how many numbers say where a person lies.
        spike, missing: their cells' places, or -1.
        edges: of a number's bins on its scale's share [0, 1]; steps: each bin is one step of the
            column's own grid.
        homes: (values,) the bin of each value that there can be, where bins have several and these
            are few enough to be counted, or of each of the parts; else empty.
        parts: (values + 1,) edges of the bins' parts, where these are counted instead of values;
            else empty.
    """

    column: Column
    count: int
    latents: int
    spike: int
    missing: int
    edges: Array
    steps: bool
    homes: Places = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    parts: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def numeric(self) -> bool:
        return self.column.kind in NUMBER_KINDS

    @property
    def ordered(self) -> bool:
        """One number says where a person lies."""
        return self.latents == 1

    @property
    def bins(self) -> Places:
        """Cells of a number that are neither its spike nor missing, in order."""
        every = np.arange(self.count)
        return np.asarray(every[(every != self.spike) & (every != self.missing)])

    @property
    def valued(self) -> bool:
        """The values in the bins, and not parts of these, are few enough to be counted."""
        return len(self.homes) > 0 and not len(self.parts)

    def is_divided(self, fine: bool) -> bool:
        """Whether bins may be divided: those that have parts; and, if ``fine``, values that are
        counted."""
        return len(self.parts) > 0 or (fine and len(self.homes) > 0)

    def most_cells(self, fine: bool) -> int:
        """That there can be once bins are divided."""
        if not self.is_divided(fine):
            return self.count
        most = MOST_DIVIDED if fine else FEWER_DIVIDED
        return self.count + min(len(self.homes) - len(self.edges) + 1, most)


@lru_cache(maxsize=1024)
def make_grid(column: Column) -> Grid:
    """The cells of a covariate: any column but a duration or its event. They are made once: a plan
    looks at them for every scale of noise that it tries."""
    first = int(column.nullable)
    if column.kind not in NUMBER_KINDS:
        levels = len(column.levels)
        unordered = column.kind == "categorical" and levels > 2
        latents = levels - 1 + first if unordered else 1
        return Grid(column, levels + first, latents, -1, first - 1, np.zeros(0), False)
    every = _count_values(column)
    if 0 < every <= (STEPS if column.scale != "log" else BINS):
        return _lay_out(column, _end_values(column, every), True)
    return _lay_out(column, _even_edges(column, BINS), False)


def part(grid: Grid, fine: bool = True) -> Grid:
    """The same grid, with :attr:`~Grid.parts` of its bins, if these have more values than are
    counted.

    Args:
        fine: values are counted wherever they can be, and parts are narrow; else there are few of
            either, so that noise does not hide in which of them rows are.
    """
    most = VALUES if fine else FEWER_PARTS * BINS
    if not grid.numeric or grid.steps or 0 < len(grid.homes) <= most:
        return grid
    parts = _even_edges(grid.column, (PARTS if fine else FEWER_PARTS) * BINS)
    homes = np.searchsorted(grid.edges[1:-1], (parts[1:] + parts[:-1]) / 2)
    return replace(grid, homes=homes.astype(np.intp), parts=parts)


def divide(grid: Grid, starts: Places) -> Grid:
    """The same column in cells of which each begins with another of the values, or parts, that are
    counted."""
    edges = list_ends(grid)[np.append(starts, len(grid.homes))]
    divided = _lay_out(grid.column, edges, False)
    # Parts were counted, and no values.
    return replace(divided, homes=divided.homes[:0]) if len(grid.parts) else divided


def _lay_out(column: Column, edges: Array, steps: bool) -> Grid:
    first, every = int(column.nullable), _count_values(column)
    spike, bins = -1, len(edges) - 1
    if column.spike is not None and not steps:
        below = int(np.searchsorted(edges, share_of(column, np.array([column.spike]))[0]))
        spike = min(max(below, 0), bins) + first
    count, homes = bins + (spike >= 0) + first, np.zeros(0, dtype=np.intp)
    if not steps and every <= VALUES:
        step = 10.0 ** -(column.decimals or 0)
        values = column.bounds[0] + step * np.arange(every, dtype=np.float64)
        within = share_of(column, values)
        homes = np.searchsorted(edges[1:-1], within, side="right").astype(np.intp)
    return Grid(column, count, 1, spike, first - 1, edges, steps, homes)


def list_coarse(schema: Schema, table: Coded) -> tuple[str, ...]:
    """Numbers of which nearly all values lie in one even bin, by a released table: of what lies
    within a bin it has little, or nothing."""
    found = []
    for column in schema.columns:
        if column.kind not in NUMBER_KINDS or (grid := make_grid(column)).steps:
            continue
        known = table[column.name][~np.isnan(table[column.name])]
        inner = known if column.spike is None else known[known != column.spike]
        if not len(inner):
            continue
        places = np.searchsorted(grid.edges, share_of(column, inner), side="right")
        most = int(np.bincount(np.clip(places, 1, len(grid.edges) - 1)).max())
        if most > MOST_ALIKE * len(known):
            found.append(column.name)
    return tuple(found)


def _count_values(column: Column) -> int:
    """That a number can have; 0 where there is no grid."""
    return 0 if column.grid is None else column.grid[1] - column.grid[0] + 1


def list_ends(grid: Grid) -> Array:
    """(values + 1,) where values, or parts, that are counted begin and end, as shares of the
    scale."""
    return grid.parts if len(grid.parts) else _end_values(grid.column, len(grid.homes))


def _end_values(column: Column, every: int) -> Array:
    """(every + 1,) shares of the scale between values."""
    step = 10.0 ** -(column.decimals or 0)
    ends = column.bounds[0] + step * (np.arange(every + 1) - 0.5)
    return share_of(column, np.asarray(ends, dtype=np.float64))


def _even_edges(column: Column, bins: int) -> Array:
    """Of so many even bins, but of none between two values that the column can have."""
    even: Array = np.linspace(0.0, 1.0, bins + 1)
    if column.grid is None:
        return even
    low, step = column.bounds[0], 10.0 ** -(column.decimals or 0)
    steps = np.rint((_unsnapped(column, even) - low) / step + 0.5)
    return np.unique(np.clip(share_of(column, low + step * (steps - 0.5)), 0.0, 1.0))


def share_of(column: Column, values: Array) -> Array:
    """How far values are on the way from the lower to the upper bound, on the column's scale."""
    low, high = column.bounds
    half = 0.0 if column.grid is None else 0.5 * 10.0 ** -(column.decimals or 0)
    low, high = low - half, high + half
    if column.scale != "log":
        return np.asarray((values - low) / (high - low))
    origin = _origin(column)
    return np.asarray(
        np.log1p(np.maximum(values - low, 0.0) / origin) / np.log1p((high - low) / origin)
    )


def value_at(column: Column, share: Array) -> Array:
    """The inverse of :func:`share_of`, snapped to the column's grid and bounds."""
    return column.snap(_unsnapped(column, share))


def _unsnapped(column: Column, share: Array) -> Array:
    low, high = column.bounds
    half = 0.0 if column.grid is None else 0.5 * 10.0 ** -(column.decimals or 0)
    low, high = low - half, high + half
    if column.scale == "log":
        origin = _origin(column)
        values = low + origin * np.expm1(share * np.log1p((high - low) / origin))
    else:
        values = low + share * (high - low)
    return np.asarray(values)


def _origin(column: Column) -> float:
    """What a logarithm starts from: the lower bound, or one step where that is 0."""
    step = 0.0 if column.grid is None else 10.0 ** -(column.decimals or 0)
    low, high = column.bounds
    return max(low + step, step, 1e-6 * (high - low))


def place_of(grid: Grid, values: Array) -> Places:
    """Each value's cell; of work that does not depend on the values."""
    first, column = int(grid.column.nullable), grid.column
    gone = np.isnan(values)
    if not grid.numeric:
        place = np.where(gone, 0.0, values).astype(np.intp) + first
        return np.asarray(np.where(gone, 0, place))
    share = share_of(column, np.where(gone, column.bounds[0], values))
    bins = len(grid.edges) - 1
    if grid.steps:
        step = 10.0 ** -(column.decimals or 0)
        found = np.rint((np.where(gone, column.bounds[0], values) - column.bounds[0]) / step)
    else:
        found = _count_reached(grid.edges[1:-1], share)
    place = np.clip(found, 0, bins - 1).astype(np.intp) + first
    if grid.spike >= 0:
        place = place + (place >= grid.spike)
        place = np.where(values == column.spike, grid.spike, place)
    return np.asarray(np.where(gone, 0, place))


def value_of(grid: Grid, values: Array) -> Places:
    """Which of a grid's :attr:`~Grid.homes` each value is, or is in; one past the last, of who is
    in none of the bins. Of work that does not depend on the values."""
    column, last = grid.column, len(grid.homes)
    gone = np.isnan(values) | (values == column.spike)
    if len(grid.parts):
        share = share_of(column, np.where(gone, column.bounds[0], values))
        return np.asarray(np.where(gone, last, _count_reached(grid.parts[1:-1], share)))
    step = 10.0 ** -(column.decimals or 0)
    found = np.rint((np.where(gone, column.bounds[0], values) - column.bounds[0]) / step)
    return np.asarray(np.where(gone, last, np.clip(found, 0, last - 1)).astype(np.intp))


def _count_reached(edges: Array, values: Array) -> Places:
    """(N,) how many of the rising edges are no larger than each value: a binary search of as many
    steps for all."""
    rounds = len(edges).bit_length()
    padded = np.append(edges, np.full((1 << rounds) - len(edges), np.inf))
    found = np.zeros(len(values), dtype=np.intp)
    for step in (1 << np.arange(rounds)[::-1]).tolist():
        found += step * (values >= padded[found + (step - 1)])
    return found


def middle_of(grid: Grid) -> Array:
    """What each cell stands for, (count,): values, or levels from 0; NaN: missing."""
    first = int(grid.column.nullable)
    middles = np.full(grid.count, np.nan)
    if not grid.numeric:
        middles[first:] = np.arange(grid.count - first)
        return middles
    middles[grid.bins] = value_at(grid.column, (grid.edges[1:] + grid.edges[:-1]) / 2)
    if grid.spike >= 0:
        middles[grid.spike] = grid.column.spike
    return middles


def draw_values(grid: Grid, shares: Array, latents: Array, within: Array | None = None) -> Array:
    """Coded values of latents (N, latents), standard Gaussians, by the cells' shares (count,).

    Args:
        within: as :class:`Cells` has it.
    """
    return Cells.of(grid, shares, within).draw_values(latents)


def draw_cells(grid: Grid, shares: Array, latents: Array) -> Places:
    """The cells of :func:`draw_values`, without the values where these say no more."""
    return Cells.of(grid, shares).draw_places(latents)


@dataclass(frozen=True, slots=True)
class Cells:
    """A column's cells and their shares, for who draws of them more than once.

    Attributes:
        risen: (count + 1,) share of the cells before each.
        starts: (count - 1,) of an ordered column, the Gaussian at which each cell but the first
            begins; of others the one below which a person has a level, who has none before it.
        curves: of a number, how its rows lie within each bin.
        within: (values,) of a number whose values were counted, the share of each in its bin; None:
            as the curves say.
    """

    grid: Grid
    risen: Array
    starts: Array
    curves: Curves | None
    within: Array | None

    @classmethod
    def of(cls, grid: Grid, shares: Array, within: Array | None = None) -> Cells:
        risen = np.append(0.0, np.cumsum(shares))
        risen[-1] = 1.0 + 1e-12
        if grid.ordered:
            chances = risen[1:-1]
        else:
            left = np.append(1.0, 1.0 - np.cumsum(shares))[: grid.latents]
            chances = shares[: grid.latents] / np.maximum(left, 1e-12)
        curves = curve_bins(grid, shares) if grid.numeric and within is None else None
        return cls(grid, risen, ndtri(np.clip(chances, 0.0, 1.0)), curves, within)

    def draw_places(self, latents: Array) -> Places:
        """As :func:`draw_cells`."""
        return self.draw_both(latents)[0] if self._spiked else self._place(latents)

    def draw_values(self, latents: Array) -> Array:
        """As :func:`draw_values`."""
        return self._draw_in(self._place(latents), latents)

    def draw_both(self, latents: Array) -> tuple[Places, Array]:
        """Cells and values."""
        place = self._place(latents)
        values = self._draw_in(place, latents)
        # A value that is drawn in a bin may be the spike.
        return place_of(self.grid, values) if self._spiked else place, values

    @property
    def _spiked(self) -> bool:
        return self.grid.numeric and self.grid.spike >= 0

    def _draw_in(self, place: Places, latents: Array) -> Array:
        """Values in these cells."""
        if not self.grid.numeric:
            return self.fill(place, latents[:, 0])
        at, start = ndtr(latents[:, 0]), self.risen[place]
        return self.fill(place, (at - start) / np.maximum(self.risen[place + 1] - start, 1e-300))

    def fill(self, place: Places, inside: Array) -> Array:
        """Values in these cells, of who is past such a share of those who are there."""
        grid = self.grid
        first = int(grid.column.nullable)
        if not grid.numeric:
            return np.where(place < first, np.nan, place - float(first))
        behind = place - first - ((grid.spike >= 0) & (place > grid.spike))
        behind = np.minimum(np.maximum(behind, 0), len(grid.edges) - 2)
        inside = np.minimum(np.maximum(inside, 0.0), 1.0)
        if self.curves is not None:
            inside, edges = self.curves.find(behind, inside), grid.edges
            share = edges[behind] + inside * (edges[behind + 1] - edges[behind])
            values = value_at(grid.column, share)
        else:
            values = self._choose(behind, inside)
        if grid.column.spike is not None and grid.spike >= 0:
            values = np.where(place == grid.spike, grid.column.spike, values)
        return np.where(place < first, np.nan, values)

    def _choose(self, behind: Places, inside: Array) -> Array:
        """Values of these bins, who is past these shares of them."""
        assert self.within is not None
        # Bins have shares of 1 each, one after the other.
        risen, homes = np.cumsum(self.within), self.grid.homes
        at = np.searchsorted(risen, behind + inside, side="right")
        first = np.searchsorted(homes, behind, side="left")
        last = np.searchsorted(homes, behind, side="right") - 1
        column = self.grid.column
        step = 10.0 ** -(column.decimals or 0)
        values = column.bounds[0] + step * np.minimum(np.maximum(at, first), last)
        return np.asarray(column.snap(values))

    def _place(self, latents: Array) -> Places:
        if self.grid.ordered:
            return np.searchsorted(self.starts, latents[:, 0], side="right")
        place = np.full(len(latents), self.grid.count - 1)
        open_ = np.ones(len(latents), dtype=np.bool_)
        for k, start in enumerate(self.starts):
            # A higher latent makes this level likelier, as it makes an ordered column's higher.
            chosen = open_ & (-latents[:, k] < start)
            place[chosen] = k
            open_ &= ~chosen
        return place


def read_within(grid: Grid, shares: Array, counts: Array, sd: float, rows: float) -> Array | None:
    """(values,) the share of each value in its bin, as :func:`shape_bins` has it. None where values
    were not counted, but parts or nothing."""
    if not len(counts) or not grid.valued:
        return None
    return shape_bins(grid, shares, counts, sd, rows)[0]


def shape_bins(
    grid: Grid, shares: Array, counts: Array, sd: float, rows: float
) -> tuple[Array, Bools]:
    """(values,) the share of each value, or part, in its bin: of piles, as noisy counts of them
    say; of all else, as the bins' density does. And which are piles.

    Of piles S in one bin, of which the counts are f and the density would be d, each as a share of
    the bin's rows, the others have :math:`q = (1 - Σ_S f) / (1 - Σ_S d)` of what it says.

    Args:
        shares: (count,) of the cells; counts: (values,), and sd: of their noise; rows: in all.
    """
    homes, dense = grid.homes, spread_within(grid, shares)
    there = np.maximum(rows * shares[grid.bins][homes], 1.0)
    expected = there * dense
    found = np.clip(counts / there, 0.0, 1.0)
    apart = float(ndtri(1 - _STRAYS / len(homes)))
    piled = counts - expected > apart * np.sqrt(sd**2 + expected)

    def add(each: Array) -> Array:
        """(values,) in all, of a value's bin."""
        return np.asarray(np.bincount(homes, each, len(grid.edges) - 1)[homes], dtype=np.float64)

    left = np.maximum(1 - add(found * piled), 0.0) / np.maximum(1 - add(dense * piled), 1e-9)
    within = np.where(piled, found, dense * left) + _LEAST_WITHIN
    return np.asarray(within / add(within)), np.asarray(piled)


def spread_within(grid: Grid, shares: Array) -> Array:
    """(values,) the share in its bin of each value, or part, as the bins' density says."""
    homes, risen = grid.homes, list_ends(grid)
    first, width = grid.edges[homes], np.diff(grid.edges)[homes]
    low, high = (np.clip((at - first) / width, 0.0, 1.0) for at in (risen[:-1], risen[1:]))
    curves = curve_bins(grid, shares)
    return np.asarray(curves.rise(homes, high) - curves.rise(homes, low))


def curve_bins(grid: Grid, shares: Array) -> Curves:
    """How a number's rows lie within its bins, by the shares of its cells, (count,)."""
    return Curves.of(grid.edges, shares[grid.bins], grid.steps)

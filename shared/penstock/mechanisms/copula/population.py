r"""What is known of all covariates together: noisy counts, noisy moments, and a Gaussian copula.

Counts are of each column's cells (:mod:`~penstock.mechanisms.copula.grids`), read as
:mod:`~penstock.mechanisms.copula.densities` does. Moments are of normal scores of the cells,
which reach but a few spreads however skewed a column is, each divided by the root of how far. A
person's vector (w∘s, 1) has norm at most R; w is made of what the counts released. Correlations of
the copula are those at which persons drawn from it have the released covariances. Means and squares
tell of tails what noise hides in counts: margins are read once more with them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from penstock.mechanisms.copula.correlations import Couplings, match_correlation, take_root
from penstock.mechanisms.copula.densities import Known
from penstock.mechanisms.copula.divided_bins import Margin
from penstock.mechanisms.copula.grids import (
    Cells,
    Grid,
    middle_of,
    place_of,
)
from penstock.mechanisms.copula.told_means import ToldMeans, recall_means
from penstock.mechanisms.sobol import draw_sobol
from penstock.mechanisms.tables.moments import clip_rows, release_moments
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource
from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Places = NDArray[np.intp]

_SEED = 0
"""Of the quasi-random persons, on whom matches look; public."""

_FAR, _ROOM = 0.9995, 1.3
"""A score reaches as far as this quantile, and so much further."""

_LEAST_REACH = 2.0
_TYPICAL = 0.6
"""Mean square of a weighted score, roughly: of one that reaches 1.7 sds."""

_LAST = 1e-3

SAMPLING, _MISSED = 0.3, 0.02
"""Errors of a mean and of a square that are no noise: of who is there, and of the cells' width."""


@dataclass(frozen=True, slots=True)
class Population:
    """Covariates as released: latents to coded columns.

    Args:
        grids, shares: of each column, its cells and their shares; within: what is in its bins, as
            :class:`~penstock.mechanisms.copula.grids.Cells` has it.
        root: (D, D) of the correlation; rows: how many were present, as released.
    """

    grids: Sequence[Grid]
    shares: Sequence[Array]
    within: Sequence[Array | None]
    root: Array
    rows: float

    @property
    def latents(self) -> int:
        return len(self.root)

    def draw(self, latents: Array) -> Coded:
        """(N, D) standard Gaussians to coded columns."""
        cells = map(Cells.of, self.grids, self.shares, self.within)
        return _decode(cells, latents @ self.root)

    def draw_table(self, points: Array, rng: np.random.Generator) -> Coded:
        """(N, D) in (0, 1) to coded columns; ``rng`` is not needed."""
        return self.draw(ndtri(points))


@cache
def quasi_random(columns: int, power: int) -> Array:
    """(2^power, columns) standard Gaussians that fill space evenly; public."""
    return np.asarray(ndtri(draw_sobol(columns, power, _SEED)))


def count_cells(grids: Sequence[Grid], coded: Coded, present: Bools) -> list[NDArray[np.int64]]:
    """How many rows are in each cell of each column; absent ones are in one of their own."""
    counts = []
    for grid in grids:
        place = np.where(present, place_of(grid, coded[grid.column.name]), grid.count)
        counts.append(np.bincount(place, minlength=grid.count + 1)[: grid.count])
    return counts


def fit_population(
    margins: Sequence[Margin],
    count: float,
    coded: Coded,
    present: Bools,
    per_person: int,
    moments: WholeSum | None,
    radius: float,
    power: int,
    asked: Collection[str],
    means: ToldMeans | None,
    noise: NoiseSource,
) -> Population:
    """Release the moments of rows whose counts are released, and make persons like them.

    Args:
        margins: of each column; count: number of rows, noisy.
        coded: columns of length n·k; present: the same.
        radius: R; power: 2^power quasi-random persons are looked at.
        asked: numbers of which mean and square are released as they are, beside their scores.
        means: declared ones, which were released.
    """
    grids = [margin.grid for margin in margins]
    shares = [margin.read(recall_means(means, margin.grid)) for margin in margins]
    score = Scores.of(grids, shares, asked, radius)
    scale, raw, weights = score.scale, score.raw, score.weights
    scores = score(coded)
    released = release_moments(
        scores.reshape(-1, per_person, len(weights)),
        present.reshape(-1, per_person),
        radius,
        moments,
        noise,
    )
    told = released / count
    error = 0.0 if moments is None else moments.sd / math.sqrt(2) / count
    latents = quasi_random(len(weights) - len(raw), power)
    starts = np.cumsum([grid.latents for grid in grids])[:-1]
    numbers = {r.grid.column.name: r for r in raw}

    def look(root: Array) -> Array:
        """Second moments of persons, seen as rows were."""
        persons = np.split(latents @ root, starts, axis=1)
        parts: list[Array] = []
        themselves: list[Array] = []
        for one, own, mine in zip(scale, cells, persons, strict=True):
            if (asked_for := numbers.get(own.grid.column.name)) is None:
                place = own.draw_places(mine)
            else:
                place, values = own.draw_both(mine)
                themselves.append(asked_for(values))
            parts.append(one.place(own.grid, place))
        scored = np.concatenate([*parts, *themselves], axis=1) * weights
        seen = clip_rows(np.column_stack([scored, np.ones(len(latents))]), radius)
        return np.asarray(seen.T @ seen / len(seen))

    def read_cells(j: int) -> Cells:
        return Cells.of(grids[j], shares[j], margins[j].read_within(shares[j]))

    cells = [read_cells(j) for j in range(len(grids))]
    plain = score(_decode(cells, latents))
    own = Couplings.of(grids, [r.grid for r in raw], latents, plain)
    correlation = match_correlation(told, error, np.eye(latents.shape[1]), own, look)
    root, at = take_root(correlation), 0
    gap = told - look(root)
    if means is not None:
        # Outcomes are not in the cells: theirs stay as they were drawn by their counts.
        means = replace(means, persons={**means.persons, **_decode(cells, latents @ root)})
    for j, (grid, one) in enumerate(zip(grids, scale, strict=True)):
        if grid.numeric:
            known = [recall(one.points, shares[j], weights[at], gap[at, [-1, at]], error, count)]
            for k, r in enumerate(raw, latents.shape[1]):
                if r.grid is grid:
                    mine = gap[k, [-1, k]]
                    known.append(recall(r.points, shares[j], weights[k], mine, error, count))
            known += recall_means(means, grid)
            shares[j] = margins[j].read(known)
            cells[j] = read_cells(j)
        at += grid.latents
    correlation = match_correlation(told, error, correlation, own, look)
    within = [own.within for own in cells]
    return Population(tuple(grids), tuple(shares), within, take_root(correlation), count)


def recall(
    points: Array, shares: Array, weight: float, gap: Array, error: float, rows: float
) -> Known:
    """What the moments say of a number's cells: its mean and square, where counts are mostly noise.

    Args:
        points: (count,) scores of the cells; gap: by how much the released mean and square of the
            weighted score differ from those of persons who are drawn by the shares and clipped as
            rows were.
        error: sd of the noise on a mean of two different entries.
    """
    return Known(
        points,
        float(shares @ points + gap[0] / weight),
        error / weight + SAMPLING / math.sqrt(rows),
        float(shares @ points**2 + gap[1] / weight**2),
        math.sqrt(2) * error / weight**2 + _MISSED,
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a column's scores have their middle, spread and end, as counted."""

    middle: Array
    spread: Array
    reach: Array
    points: Array

    @classmethod
    def of(cls, grid: Grid, shares: Array) -> Scale:
        if not grid.ordered:
            p = shares[: grid.latents]
            each = np.sqrt(np.maximum(p * (1 - p), 1e-4))
            return cls(p, each, np.maximum((1 - p) / each, p / each), p)
        there = ~np.isnan(middle_of(grid))
        p = shares[there] / shares[there].sum()
        x = ndtri(np.clip(np.cumsum(p) - p / 2, _LAST, 1 - _LAST))
        middle = float(p @ x)
        # All rows in one cell have a scale all the same.
        least = 0.05
        spread = math.sqrt(float(p @ (x - middle) ** 2) + least**2)
        risen = np.cumsum(p)
        ends = x[np.searchsorted(risen, [1 - _FAR, _FAR])]
        most = max(abs(x[-1] - middle), abs(x[0] - middle)) / spread
        far = _ROOM * float(np.abs(ends - middle).max()) / spread
        reach = min(max(far, _LEAST_REACH), max(most, 1.0))
        points = np.zeros(grid.count)
        points[there] = (x - middle) / spread
        return cls(np.array([middle]), np.array([spread]), np.array([reach]), points)

    def score(self, grid: Grid, values: Array) -> Array:
        """(N, latents), 0 where missing."""
        return self.place(grid, place_of(grid, values))

    def place(self, grid: Grid, place: Places) -> Array:
        """(N, latents) of cells."""
        if not grid.ordered:
            chosen = place[:, None] == np.arange(grid.latents)
            return np.asarray((chosen - self.middle) / self.spread)
        return self.points[place][:, None]


@dataclass(frozen=True, slots=True)
class Raw:
    """A number as it is, in spreads from its mean, as counted; missing ones are 0."""

    grid: Grid
    mean: float
    spread: float
    reach: float
    points: Array

    @classmethod
    def of(cls, grid: Grid, shares: Array) -> Raw:
        middles = middle_of(grid)
        there = ~np.isnan(middles)
        p, x = shares[there] / shares[there].sum(), middles[there]
        mean = float(p @ x)
        spread = max(float(np.sqrt(p @ (x - mean) ** 2)), 1e-6 * (1 + abs(mean)))
        away = np.abs(x - mean) / spread
        order = np.argsort(away)
        far = float(away[order][np.searchsorted(np.cumsum(p[order]), _FAR).clip(max=len(x) - 1)])
        points = np.zeros(grid.count)
        points[there] = (x - mean) / spread
        return cls(grid, mean, spread, max(_ROOM * far, _LEAST_REACH), points)

    def __call__(self, values: Array) -> Array:
        """(N, 1)."""
        found = (np.where(np.isnan(values), self.mean, values) - self.mean) / self.spread
        return np.asarray(found[:, None])


@dataclass(frozen=True, slots=True)
class Scores:
    """What of rows moments are made of: scores of columns, and numbers as they are, weighted.

    Attributes:
        grids: of the columns; scale: of each; raw: the numbers that are asked for as they are.
        weights: (q,) of the scores, and then of those.
    """

    grids: Sequence[Grid]
    scale: Sequence[Scale]
    raw: Sequence[Raw]
    weights: Array

    @classmethod
    def of(
        cls, grids: Sequence[Grid], shares: Sequence[Array], asked: Collection[str], radius: float
    ) -> Scores:
        """Weighted so that few rows (w∘s, 1) are longer than the radius."""
        scale = [Scale.of(grid, share) for grid, share in zip(grids, shares, strict=True)]
        raw = [Raw.of(g, s) for g, s in zip(grids, shares, strict=True) if g.column.name in asked]
        reach = np.concatenate([*(s.reach for s in scale), [r.reach for r in raw]])
        size = float(reach.max(initial=1.0)) + _TYPICAL * (len(reach) - 1)
        # One score at its end, and all others as they usually are.
        return cls(grids, scale, raw, math.sqrt((radius**2 - 1) / size) / np.sqrt(reach))

    def __call__(self, columns: Coded) -> Array:
        """(N, q) of coded rows."""
        each = zip(self.grids, self.scale, strict=True)
        parts = [scale.score(grid, columns[grid.column.name]) for grid, scale in each]
        parts += [raw(columns[raw.grid.column.name]) for raw in self.raw]
        return np.asarray(np.concatenate(parts, axis=1) * self.weights)


def _decode(cells: Iterable[Cells], latents: Array) -> Coded:
    coded, at = {}, 0
    for own in cells:
        mine = latents[:, at : at + own.grid.latents]
        coded[own.grid.column.name] = own.draw_values(mine)
        at += own.grid.latents
    return coded

r"""How far tables are from each other: the sliced Wasserstein distance, by POT.

Tables become points: a number is counted in standard deviations of the site's first copy (a quarter
of its declared range where it does not vary), a level is a corner of a simplex of side 1, and where
a value is missing it is the mean and a coordinate of its own says so. With D coordinates and
directions θ that are uniform on the sphere,

.. math:: d(P, Q)^2 = D \cdot \mathrm{E}_\theta W_2^2(\theta^\top P, \theta^\top Q).

Two tables that differ by a shift alone are as far apart as the shift is long. Between two tables of
one law d is not 0 but what chance makes of it, so that every number here stands beside another that
is made of as many rows: two copies of a site differ by drawing alone; a copy and its refit by what
the whole private procedure does, too; a site and the others by who their persons are.

What stands in a single column is W₁ between its values, in the same units; of levels, half the sum
of what their shares differ by (which is W₁ where levels are 1 apart).

Directions and rows are chosen by a fixed seed: the same tables give the same numbers.

Sources: Rabin, Peyré, Delon & Bernot 2011, SSVM, LNCS 6667, 435–446; Bonneel et al. 2015, J. Math.
Imaging Vision 51, 22–45; Flamary et al. 2021, JMLR 22(78) (POT).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.released import refit_copy
from penstock.schema import Coded, Column, Schema

Array = NDArray[np.float64]

MOST_ROWS = 500
"""Of a table, that are compared."""
MOST_PAIRS = 2
"""Of copies with each other, and of copies with refits."""

_DIRECTIONS, _SEED = 50, 20261123
_UNORDERED = ("binary", "categorical", "event")


@dataclass(frozen=True, slots=True)
class Moved:
    """How far one site's tables are from each other, and some rows to compare with other sites'.

    Attributes:
        rows: of its first copy; size: how many that has.
        copies: the root of the mean squared distance between copies; None of one copy.
        refits: the same between refits and the copies that they were made from; None without.
    """

    rows: Coded
    size: int
    copies: float | None
    refits: float | None


@dataclass(frozen=True, slots=True)
class Apart:
    """How far a site is from the others together.

    Attributes:
        distance: d; columns: the distance in each column, the largest first.
    """

    distance: float
    columns: Mapping[str, float]


def measure_moved(
    schema: Schema, copies: Sequence[Coded], refits: Sequence[Coded], *, of_copies: bool
) -> Moved | None:
    """Of one site's tables; None where there are no rows.

    Args:
        of_copies: whether refit b was made from the rows of a copy, by
            :func:`penstock.mechanisms.released.refit_copy`.
    """
    chosen = [_choose(table) for table in copies]
    if any(not _count(table) for table in chosen):
        return None
    points = _Points.of(schema, chosen[0])
    clouds = [points.place(table) for table in chosen[: MOST_PAIRS + 1]]
    drawn = [(clouds[i], clouds[i + 1]) for i in range(len(clouds) - 1)]
    again = []
    for number, table in enumerate(refits[:MOST_PAIRS] if of_copies else (), start=1):
        if _count(table):
            start = points.place(chosen[refit_copy(number, len(copies)) - 1])
            again.append((start, points.place(_choose(table))))
    return Moved(chosen[0], _count(copies[0]), _root(drawn), _root(again))


def compare_site(schema: Schema, site: str, all_sites: Mapping[str, Moved]) -> Apart | None:
    """A site beside all others, each with as many rows as its share; None of a single site."""
    own = all_sites[site]
    others = [one for name, one in all_sites.items() if name != site]
    if not others:
        return None
    total = sum(one.size for one in others)
    parts = [
        _choose(one.rows, max(1, round(_count(own.rows) * one.size / total))) for one in others
    ]
    rest = {name: np.concatenate([part[name] for part in parts]) for name in schema.names}
    points = _Points.of(schema, own.rows)
    columns = {c.name: points.compare_column(c, own.rows, rest) for c in schema.columns}
    ordered = dict(sorted(columns.items(), key=lambda item: -item[1]))
    return Apart(measure_distance(points.place(own.rows), points.place(rest)), ordered)


def measure_distance(one: Array, other: Array) -> float:
    """d between points (n, D) and (m, D)."""
    # Slow to load where torch is installed, which it then loads.
    from ot import sliced_wasserstein_distance

    found = sliced_wasserstein_distance(one, other, n_projections=_DIRECTIONS, p=2, seed=_SEED)
    return math.sqrt(one.shape[1]) * float(found)


def _root(pairs: Sequence[tuple[Array, Array]]) -> float | None:
    squares = [measure_distance(one, other) ** 2 for one, other in pairs]
    return math.sqrt(float(np.mean(squares))) if squares else None


def _count(table: Coded) -> int:
    return len(next(iter(table.values())))


def _choose(table: Coded, most: int = MOST_ROWS) -> Coded:
    """At most so many rows, whichever order they are in."""
    count = _count(table)
    if count <= most:
        return table
    kept = np.random.default_rng(_SEED).choice(count, most, replace=False)
    return {name: values[kept] for name, values in table.items()}


@dataclass(frozen=True, slots=True)
class _Points:
    """Where rows lie: of each column of numbers what is taken away, and what it is divided by."""

    schema: Schema
    scales: Mapping[str, tuple[float, float]]

    @classmethod
    def of(cls, schema: Schema, table: Coded) -> _Points:
        numbers = [c for c in schema.columns if c.kind not in _UNORDERED]
        return cls(schema, {c.name: _scale(c, table[c.name]) for c in numbers})

    def place(self, table: Coded) -> Array:
        """(n, D)"""
        return np.column_stack(
            [part for c in self.schema.columns for part in self._place(c, table)]
        )

    def _place(self, column: Column, table: Coded) -> list[Array]:
        values = table[column.name]
        unknown = np.isnan(values)
        if column.name in self.scales:
            found = [np.where(unknown, 0.0, self._scaled(column, values))]
        else:  # two corners of it are 1 apart
            corners = range(len(column.levels))
            found = [np.where(values == level, math.sqrt(0.5), 0.0) for level in corners]
        return [*found, unknown.astype(np.float64)] if column.nullable else found

    def _scaled(self, column: Column, values: Array) -> Array:
        middle, scale = self.scales[column.name]
        return np.asarray((values - middle) / scale, dtype=np.float64)

    def compare_column(self, column: Column, own: Coded, rest: Coded) -> float:
        """W₁ of the values that are there; of nothing, 0."""
        from ot import wasserstein_1d

        one, other = (t[column.name][~np.isnan(t[column.name])] for t in (own, rest))
        if not len(one) or not len(other):
            return 0.0
        if column.name in self.scales:
            scaled = [self._scaled(column, values) for values in (one, other)]
            return float(wasserstein_1d(*scaled, p=1))
        levels = range(len(column.levels))
        return 0.5 * sum(abs(float((one == x).mean() - (other == x).mean())) for x in levels)


def _scale(column: Column, values: Array) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    middle, spread = (float(known.mean()), float(known.std())) if len(known) else (0.0, 0.0)
    if spread > 0:
        return middle, spread
    if column.levels:
        return middle, 1.0
    lower, upper = column.bounds
    return middle, (upper - lower) / 4

r"""How far tables are from each other: Wasserstein distances of order 2, by POT and scipy.

Tables become points: a number is counted in standard deviations of the site's first copy (a quarter
of its declared range where it does not vary), a level is a corner of a simplex of side 1, and where
a value is missing it is the mean and a coordinate of its own says so. With D coordinates there are
two distances, the exact one and one along directions θ that are uniform on the sphere,

.. math:: W_2^2(P, Q) = \min_{X \sim P,\, Y \sim Q} \mathrm{E}\|X - Y\|^2,\qquad
    d(P, Q)^2 = D \cdot \mathrm{E}_\theta W_2^2(\theta^\top P, \theta^\top Q).

By both, tables that differ by a shift alone are as far apart as the shift is long. The exact one
sees whatever two tables do not have in common; of few rows and many columns it sees chance most of
all. d is small by chance, and sees a difference in how many columns go together the less the more
columns there are. Between two tables of one law neither is 0, so that every number here stands
beside another that is made of as many rows: two copies of a site differ by drawing alone; a copy
and its refit by what the whole private procedure does, too; a site and the others by who their
persons are.

The exact distance has a yardstick of its own: between two halves of one copy. If P and Q have the
same law but for a shift δ, :math:`\mathrm{E}W_2^2(\hat P, \hat Q)` is that of the halves plus
:math:`\|δ\|^2`, so that the root of what is above it says how long a shift would do the same.

What stands in a single column is W₁ between its values, in the same units; of levels, half the sum
of what their shares differ by (which is W₁ where levels are 1 apart).

Directions and rows are chosen by a fixed seed: the same tables give the same numbers.

Sources: Rabin, Peyré, Delon & Bernot 2011, SSVM, LNCS 6667, 435–446; Bonneel et al. 2015, J. Math.
Imaging Vision 51, 22–45; exactly, by the network simplex: Bonneel, van de Panne, Paris & Heidrich
2011, ACM Trans. Graphics 30(6), 158; Flamary et al. 2021, JMLR 22(78) (POT). Between equally many
rows a best plan is an assignment (Birkhoff 1946): Crouse 2016, IEEE Trans. AES 52(4), 1679–1696.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from penstock.base.documents import Json
from penstock.mechanisms.released import Refitting
from penstock.processes.crew import count_processes, gather_documents
from penstock.schema import Coded, Column, Schema

Array = NDArray[np.float64]
Measure = Callable[[Array, Array], float]

MOST_ROWS, MOST_MATCHED = 500, 300
"""Of a table, that are compared; exactly, which takes the cube of their number: 400 take twice the
time of 300, and see a shift of a column by .3 standard deviations by 1.3 sds of chance, and not by
1.0 (tables of ten columns)."""
MOST_PAIRS = 2
"""Of copies with each other, and of copies with refits."""
HALVINGS = 9
"""Of copies in turn, for the yardstick: a tenth of distances that are chance alone exceed all."""

_DIRECTIONS, _SEED = 50, 20261123
_MOST_PIVOTS = 1_000_000
"""Of the network simplex; tables of :data:`MOST_MATCHED` rows need some ten thousand."""
_MANY = 100
"""Sites from which on processes share them."""
_UNORDERED = ("binary", "categorical", "event")


@dataclass(frozen=True, slots=True)
class Matched:
    """The exact distance between one site's tables, of as many rows each.

    Attributes:
        rows: of each table, half of the first copy's at most.
        halves: the root of the mean squared W₂ between two halves of a copy, of
            :data:`HALVINGS`: what chance does; largest: the largest of these.
        copies, refits: as in :class:`Moved`.
    """

    rows: int
    halves: float
    largest: float
    copies: float | None
    refits: float | None


@dataclass(frozen=True, slots=True)
class Moved:
    """How far one site's tables are from each other, and some rows to compare with other sites'.

    Attributes:
        rows: of its first copy; size: how many the site has, by it.
        copies: the root of the mean squared distance between copies; None of one copy.
        refits: the same between refits and the copies that they were made from; None without.
        exact: the same by the exact distance; None of a copy without two rows.
    """

    rows: Coded
    size: int
    copies: float | None
    refits: float | None
    exact: Matched | None


@dataclass(frozen=True, slots=True)
class Apart:
    """How far a site is from the others together.

    Attributes:
        distance: d; exact: W₂, of :attr:`Matched.rows` rows, None without these.
        columns: the distance in each column, the largest first.
    """

    distance: float
    exact: float | None
    columns: Mapping[str, float]


def measure_moved(
    schema: Schema, copies: Sequence[Coded], refits: Sequence[Coded], *, made: Refitting
) -> Moved | None:
    """Of one site's tables; None where there are no rows.

    Args:
        made: how tables were made, and refits of the copies; one of each fit is read.
    """
    if any(not _count(table) for table in copies):
        return None
    points = _Points.of(schema, _choose(copies[0]))
    drawn = [(copies[i], copies[i + 1]) for i in range(min(MOST_PAIRS, len(copies) - 1))]
    firsts = range(1, len(refits) + 1, made.per_fit)[:MOST_PAIRS] if made.of_copies else ()
    again = [
        (copies[made.find_copy(number, len(copies)) - 1], refits[number - 1])
        for number in firsts
        if _count(refits[number - 1])
    ]

    def each(between: Measure, pairs: Sequence[tuple[Coded, Coded]], most: int) -> list[float]:
        clouds = [[points.place(_choose(table, most)) for table in pair] for pair in pairs]
        return [between(one, other) for one, other in clouds]

    exact, rows = None, min(MOST_MATCHED, min(map(_count, copies)) // 2)
    if rows:
        halves = [_halve(copies[i % len(copies)], rows, i) for i in range(HALVINGS)]
        chance = each(measure_exact, halves, rows)
        moved = [_root(each(measure_exact, pairs, rows)) for pairs in (drawn, again)]
        exact = Matched(rows, _mean_root(chance), max(chance), moved[0], moved[1])
    moved = [_root(each(measure_sliced, pairs, MOST_ROWS)) for pairs in (drawn, again)]
    size = round(_count(copies[0]) / made.share)
    return Moved(_choose(copies[0]), size, moved[0], moved[1], exact)


class Comparison:
    """Every site beside all others, each with as many rows as its share.

    Of each site the rows that are compared are chosen once for all that it stands beside: what is
    left to do for a site grows with the others by little more than the rows that they add up to.
    """

    def __init__(self, schema: Schema, sites: Mapping[str, Moved]) -> None:
        self._schema, self._sites = schema, sites
        self._chosen: dict[tuple[str, int], Array] = {}

    def compare_all(self) -> dict[str, Apart | None]:
        """All of them, in their order; of many sites by a process for each core."""
        names = list(self._sites)
        processes = count_processes(len(names), fewest=_MANY)
        if processes > 1:
            import_module("ot")  # once for all of them

        def work(number: int) -> Json:
            apart = self.compare_site(names[number])
            return {} if apart is None else asdict(apart)

        told = gather_documents(len(names), work, processes)
        apart = [Apart(**one) if one else None for one in told]
        return dict(zip(names, apart, strict=True))

    def compare_site(self, site: str) -> Apart | None:
        """One of them; None of a single site."""
        schema, own = self._schema, self._sites[site]
        if len(self._sites) < 2:
            return None
        rest, points = self._gather(site, _count(own.rows)), _Points.of(schema, own.rows)
        columns = {c.name: points.compare_column(c, own.rows, rest) for c in schema.columns}
        ordered = dict(sorted(columns.items(), key=lambda item: -item[1]))
        exact = None
        if own.exact is not None:
            rows = own.exact.rows
            others = points.place(self._gather(site, rows))
            exact = measure_exact(points.place(_choose(own.rows, rows)), others)
        return Apart(measure_sliced(points.place(own.rows), points.place(rest)), exact, ordered)

    def _gather(self, site: str, rows: int) -> Coded:
        """So many of all other sites' rows, of each as its share; of more sites than rows every so
        many-th."""
        others = [name for name in self._sites if name != site]
        risen = np.cumsum([self._sites[name].size for name in others])
        places = (np.arange(rows) + 0.5) * (risen[-1] / rows)
        counts = np.diff(np.searchsorted(places, risen), prepend=0).tolist()
        each = zip(others, counts, strict=True)
        parts = [self._choose(name, count) for name, count in each if count]
        return dict(zip(self._schema.names, np.concatenate(parts).T.copy(), strict=True))

    def _choose(self, site: str, most: int) -> Array:
        """(n, columns)"""
        if (site, most) not in self._chosen:
            part = _choose(self._sites[site].rows, most)
            columns = [part[name] for name in self._schema.names]
            self._chosen[site, most] = np.column_stack(columns)
        return self._chosen[site, most]


def measure_exact(one: Array, other: Array) -> float:
    """W₂ between points (n, D) and (m, D), each of equal weight."""
    from ot import dist, emd2

    costs = dist(one, other)
    if len(one) == len(other):
        found = _assign(costs)
    else:
        found = float(emd2([], [], costs, numItermax=_MOST_PIVOTS))
    return math.sqrt(max(found, 0.0))


def _assign(costs: Array) -> float:
    """The least mean of n of these (n, n), one in each row and column.

    A third of the network simplex' time. What is taken from a whole row or column changes no
    choice, and saves half of the search.
    """
    from scipy.optimize import linear_sum_assignment

    left = costs - costs.min(axis=1, keepdims=True)
    left -= left.min(axis=0)
    return float(costs[linear_sum_assignment(left)].mean())


def measure_sliced(one: Array, other: Array) -> float:
    """d between points (n, D) and (m, D)."""
    # Slow to load where torch is installed, which it then loads.
    from ot import sliced_wasserstein_distance

    found = sliced_wasserstein_distance(one, other, n_projections=_DIRECTIONS, p=2, seed=_SEED)
    return math.sqrt(one.shape[1]) * float(found)


def _root(distances: Sequence[float]) -> float | None:
    return _mean_root(distances) if distances else None


def _mean_root(distances: Sequence[float]) -> float:
    return math.sqrt(float(np.mean(np.square(distances))))


def _count(table: Coded) -> int:
    return len(next(iter(table.values())))


def _choose(table: Coded, most: int = MOST_ROWS) -> Coded:
    """At most so many rows, whichever order they are in."""
    count = _count(table)
    if count <= most:
        return table
    kept = np.random.default_rng(_SEED).choice(count, most, replace=False)
    return {name: values[kept] for name, values in table.items()}


def _halve(table: Coded, rows: int, number: int) -> tuple[Coded, Coded]:
    """Two tables of so many rows, none of them in both; each number has another choice."""
    kept = np.random.default_rng([_SEED, number]).permutation(_count(table))
    first, second = kept[:rows], kept[rows : 2 * rows]
    return (
        {name: values[first] for name, values in table.items()},
        {name: values[second] for name, values in table.items()},
    )


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

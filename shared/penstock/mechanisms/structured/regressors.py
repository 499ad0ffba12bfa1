"""The design of an outcome's model: one column for each term, and bends of skewed ones.

Columns are standardised by the released population, so that coefficients are of a like size and
what a person adds to a score is bounded alike. A skewed number has a second column, the part of
its normal score that is not linear: a straight line in the declared regression stays what the
study asks, and the table's outcome need not be straight in order to have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from penstock.mechanisms.structured.grids import Grid
from penstock.mechanisms.structured.outcomes.protocol import World
from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_SKEWED, _FAR = 3.3, 0.99
"""A column whose 0.99 quantile is more sds from its mean than this is bent; one further out would
bend columns for tails that noise made."""

_TAILED = 2.8
"""The same, of columns of which rows are asked how much they tell: by their curvatures."""

_MOST_CURVED = 5

_MOST_BENT = 15.0

_IMPORTANCE, _BENT_IMPORTANCE = (1.0, 0.6, 0.3), 0.7
"""Of what is asked, what is adjusted for, what is neither; and of its bend."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A 0/1 or numeric column of the design."""

    name: str
    level: int | None


@dataclass(frozen=True, slots=True)
class _Bend:
    """The normal score of a number, less its linear part."""

    name: str
    points: Array
    normal: Array
    line: Array
    spread: float

    def __call__(self, values: Array, linear: Array) -> Array:
        at = _look_up(values, self.points, self.normal)
        rest = (at - self.line[0] - linear * self.line[1]) / self.spread
        return np.asarray(np.clip(rest, -_MOST_BENT, _MOST_BENT))


@dataclass(frozen=True, slots=True)
class Design:
    """Standardised columns of the covariates.

    Attributes:
        linear: how many columns are of the declared and other terms; the rest are bends.
        declared: (linear,) which of them an estimand names, as its term or to adjust for.
        importance: (width,) of each beside the others: 1 for what is asked itself.
        curved: declared columns with tails: what they tell hangs on few persons.
    """

    columns: tuple[_Column, ...]
    declared: Bools
    mean: Array
    spread: Array
    bends: tuple[tuple[int, _Bend], ...]
    importance: Array
    curved: tuple[int, ...]

    @property
    def linear(self) -> int:
        return len(self.columns)

    @property
    def width(self) -> int:
        return self.linear + len(self.bends)

    def see(self, persons: Coded) -> World:
        """The quasi-random persons, as an outcome's model sees them."""
        design, complete = self.of(persons)
        pairs = list(combinations_with_replacement(self.curved, 2))
        declared = self.declared if self.declared.any() else ~self.declared
        there = complete.astype(np.float64)
        return World(design, self.linear, self.importance, declared, pairs, there)

    def of(self, coded: Coded) -> tuple[Array, Bools]:
        """(N, width) and who has all declared covariates; what is missing counts as the mean."""
        z = np.empty((len(next(iter(coded.values()))), self.width))
        complete = np.ones(len(z), dtype=np.bool_)
        for j, column in enumerate(self.columns):
            values = coded[column.name]
            gone = np.isnan(values)
            if self.declared[j]:
                complete &= ~gone
            found = values if column.level is None else (values == column.level).astype(float)
            z[:, j] = np.where(gone, 0.0, (found - self.mean[j]) / self.spread[j])
        for k, (j, bend) in enumerate(self.bends):
            values = coded[self.columns[j].name]
            z[:, self.linear + k] = np.where(np.isnan(values), 0.0, bend(values, z[:, j]))
        return z, complete


def most_columns(grids: Sequence[Grid]) -> int:
    """The most columns that a design of these covariates can have, whatever is released."""
    return most_linear(grids) + sum(grid.numeric for grid in grids)


def most_pairs(grids: Sequence[Grid]) -> int:
    """The most pairs of columns of which curvatures are asked."""
    most = min(sum(grid.numeric for grid in grids), _MOST_CURVED)
    return most * (most + 1) // 2


def most_linear(grids: Sequence[Grid]) -> int:
    """How many of these are no bends."""
    return sum(max(len(grid.column.levels) - 1, 1) for grid in grids)


def make_design(
    grids: Sequence[Grid], persons: Coded, terms: Sequence[str], adjusted: Sequence[str] = ()
) -> Design:
    """The design of these columns, on persons drawn from the population.

    Args:
        terms, adjusted: names of the columns that estimands of the outcome ask for, and that they
            adjust for.
    """
    columns, named, mean, spread, bends, weights, curved = [], [], [], [], [], [], []
    declared = {*terms, *adjusted}
    for grid in grids:
        column = grid.column
        several = column.kind == "categorical"
        for level in range(1, len(column.levels)) if several else (None,):
            columns.append(_Column(column.name, level))
            named.append(column.name in declared)
            rank = 0 if column.name in terms else 1 if column.name in declared else 2
            weights.append(_IMPORTANCE[rank])
            values = persons[column.name]
            known = values[~np.isnan(values)]
            x = known if level is None else (known == level).astype(float)
            mean.append(float(x.mean()))
            spread.append(max(float(x.std()), 1e-3 * (1 + abs(mean[-1]))))
            if not grid.numeric or column.name not in declared:
                continue
            far = np.abs(np.quantile(x, [1 - _FAR, _FAR]) - mean[-1]).max() / spread[-1]
            linear = (known - mean[-1]) / spread[-1]
            if far > _TAILED:
                # What is asked first, then what reaches furthest.
                curved.append(((rank, -far), len(columns) - 1))
            if far > _SKEWED:
                bends.append((len(columns) - 1, _bend(column.name, known, linear)))
    importance = np.array([*weights, *(_BENT_IMPORTANCE * weights[j] for j, _ in bends)])
    return Design(
        tuple(columns),
        np.array(named, dtype=np.bool_),
        np.array(mean),
        np.array(spread),
        tuple(bends),
        importance,
        tuple(sorted(j for _, j in sorted(curved)[:_MOST_CURVED])),
    )


def _bend(name: str, values: Array, linear: Array) -> _Bend:
    at = np.linspace(0.0, 1.0, 129)
    points, where = np.unique(np.quantile(values, at), return_index=True)
    last = np.append(where[1:] - 1, len(at) - 1)
    normal = ndtri(np.clip((at[where] + at[last]) / 2, 0.002, 0.998))
    if len(points) < 2:
        points, normal = np.array([points[0], points[0] + 1]), np.array([0.0, 1.0])
    seen = _look_up(values, points, normal)
    line = np.asarray(np.polynomial.polynomial.polyfit(linear, seen, 1), dtype=np.float64)
    rest = seen - line[0] - linear * line[1]
    return _Bend(name, points, normal, line, max(float(rest.std()), 1e-2))


def _look_up(values: Array, points: Array, found: Array) -> Array:
    """Linear between uneven points; the work does not depend on the values."""
    result = np.full(values.shape, found[0])
    for left, right, a, b in zip(points[:-1], points[1:], found[:-1], found[1:], strict=True):
        result += (b - a) * np.clip((values - left) / (right - left), 0.0, 1.0)
    return result

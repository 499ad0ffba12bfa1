"""The one order of a design's columns: of fits to tables, of chains, and of answers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import PenstockError
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Comparison, Factor, Product, Regressor, Spline
from penstock.schema import NUMBER_KINDS, Column, Schema

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

INTERCEPT = "(intercept)"

_COMPARE: Mapping[str, Callable[[Array, float], Bools]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Term:
    """One column of the design.

    Attributes:
        name: as the answer calls it; ``column=level`` for a level against the first one.
        column: of the schema.
        level: index of the level that a 0/1 column stands for, or None.
    """

    name: str
    column: str
    level: int | None = None

    def of(self, coded: Mapping[str, Array]) -> Array:
        """(n,), of complete rows."""
        values = coded[self.column]
        return values if self.level is None else (values == self.level).astype(np.float64)


@dataclass(frozen=True, slots=True)
class ProductTerm:
    """The product of two columns, each less its mean: beside the columns themselves, which every
    design has, its coefficient is that of the product of the columns as they are."""

    left: Term
    right: Term

    @property
    def name(self) -> str:
        return f"{self.left.name}:{self.right.name}"

    def of(self, coded: Mapping[str, Array]) -> Array:
        """(n,), of complete rows."""
        left, right = self.left.of(coded), self.right.of(coded)
        return np.asarray((left - left.mean()) * (right - right.mean()))


@dataclass(frozen=True, slots=True)
class SplineTerm:
    """One bend of a natural cubic spline.

    Attributes:
        number: from 1; there are two fewer than knots.
    """

    column: str
    knots: tuple[float, ...]
    number: int

    @property
    def name(self) -> str:
        return f"spline({self.column}){self.number}"

    def of(self, coded: Mapping[str, Array]) -> Array:
        """(n,), of complete rows."""
        return bend_column(coded[self.column], self.knots, self.number)


DesignTerm = Term | ProductTerm | SplineTerm


def design_terms(schema: Schema, estimand: Estimand) -> tuple[DesignTerm, ...]:
    """Columns of the design beside the intercept: adjustment columns, then the term, last.

    Numbers as they are, binary columns as 0/1, ordered ones as their level's index, categorical
    ones as 0/1 columns against the first level; the term's own level comes last. Products of all of
    these, whichever level the term names; a spline's column, then its bends. None for a mean.

    Raises:
        PenstockError: the term has no such level, or it is the first (a study has checked that).
    """
    if not estimand.regressors:
        return ()
    *adjusted, target = estimand.regressors
    before = [term for regressor in adjusted for term in expand_regressor(schema, regressor)]
    return (*before, *_expand_target(schema, target, estimand.level))


def count_terms(schema: Schema, estimand: Estimand) -> int:
    """How many columns the design has beside the intercept, whatever the term's level is."""
    return sum(len(expand_regressor(schema, r)) for r in estimand.regressors)


def expand_regressor(schema: Schema, regressor: Regressor) -> list[DesignTerm]:
    """The columns that a regressor comes to, all levels that are not the first."""
    if isinstance(regressor, Factor):
        return [*_factor_terms(schema[regressor.column])]
    if isinstance(regressor, Product):
        left, right = (_factor_terms(schema[f.column]) for f in regressor.factors)
        return [ProductTerm(a, b) for a in left for b in right]
    column, knots = schema[regressor.column], place_knots(schema[regressor.column], regressor)
    bends = [SplineTerm(column.name, knots, i + 1) for i in range(regressor.bends)]
    return [Term(column.name, column.name), *bends]


def place_knots(column: Column, spline: Spline) -> tuple[float, ...]:
    r"""The knots of a spline: as written, or evenly within the public bounds.

    With k = df + 1 knots the i-th lies at (i - ½)/k of the way, on the column's own scale: where
    public bounds are wide, few rows lie near them.
    """
    if spline.df is None:
        return spline.knots
    (low, high), count = column.bounds, spline.df + 1
    share = (np.arange(count) + 0.5) / count
    if column.scale != "log":
        return tuple(float(knot) for knot in low + share * (high - low))
    # As encoding has it: of the value plus one step on a grid, of the value without one.
    step = 0.0 if column.grid is None else 10.0 ** -(column.decimals or 0)
    start, end = np.log(low + step), np.log(high + step)
    return tuple(float(knot) for knot in np.exp(start + share * (end - start)) - step)


def bend_column(values: Array, knots: Sequence[float], number: int) -> Array:
    r"""One bend of the natural cubic spline with knots t₁ < … < t_k, linear beyond the outer two.

    .. math:: \frac{(x - t_j)_+^3
              - (x - t_{k-1})_+^3 \frac{t_k - t_j}{t_k - t_{k-1}}
              + (x - t_k)_+^3 \frac{t_{k-1} - t_j}{t_k - t_{k-1}}}{(t_k - t_1)^2}

    Args:
        number: j, 1 to k - 2.

    Source: Harrell 2015, "Regression Modeling Strategies", 2nd ed., equation 2.25.
    """
    first, own, before, last = knots[0], knots[number - 1], knots[-2], knots[-1]

    def cube(knot: float) -> Array:
        return np.asarray(np.maximum(values - knot, 0.0) ** 3)

    wide = last - before
    found = cube(own) - cube(before) * (last - own) / wide + cube(last) * (before - own) / wide
    return np.asarray(found / (last - first) ** 2)


def find_subgroup(
    columns: Mapping[str, Column], subgroup: Sequence[Comparison], coded: Mapping[str, Array]
) -> Bools:
    """(n,) which rows meet all comparisons, of which there is one at least; a row of which a column
    is missing does not.

    Args:
        columns: those that are compared, by name.
    """
    met = [_meet(columns[c.column], c, coded[c.column]) for c in subgroup]
    return np.asarray(np.logical_and.reduce(met))


def _meet(column: Column, comparison: Comparison, values: Array) -> Bools:
    numeric = column.kind in NUMBER_KINDS
    bound = float(comparison.value) if numeric else float(column.levels.index(comparison.value))
    met: Bools = _COMPARE[comparison.operator](values, bound) & ~np.isnan(values)
    return met


def _factor_terms(column: Column) -> list[Term]:
    if column.kind != "categorical":
        return [Term(column.name, column.name)]
    return [Term(f"{column.name}={column.levels[i]}", column.name, i) for i in _levels(column)]


def _levels(column: Column) -> range:
    return range(1, len(column.levels))


def _expand_target(schema: Schema, target: Regressor, level: str | None) -> list[DesignTerm]:
    """The same, with the column that is asked about last."""
    found = expand_regressor(schema, target)
    factors = target.factors if isinstance(target, Product) else ()
    asked = [_index_level(schema[f.column], f.level) for f in factors]
    if isinstance(target, Factor):
        asked = [_index_level(schema[target.column], level)]
    of = [
        [term.left.level, term.right.level] if isinstance(term, ProductTerm) else [term.level]
        for term in found
        if not isinstance(term, SplineTerm)
    ]
    found.append(found.pop(of.index(asked)))
    return found


def _index_level(column: Column, level: str | None) -> int | None:
    if column.kind != "categorical":
        return None
    if level is None or level not in column.levels[1:]:
        raise PenstockError(
            "not a level that can be compared with the first one",
            value=level,
            bound=", ".join(column.levels[1:]),
        )
    return column.levels.index(level)

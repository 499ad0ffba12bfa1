"""The design matrix of a regression: complete rows, standardised, independent columns only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from penstock.questions.estimands import Estimand
from penstock.questions.fits.table_model import Array, Degenerate
from penstock.questions.terms import DesignTerm
from penstock.schema import Schema


def number_strata(used: Mapping[str, Array], schema: Schema, estimand: Estimand) -> Array:
    """(n,) a number for each combination of levels."""
    number: Array = np.zeros(len(used[estimand.outcome]))
    for name in estimand.strata:
        number = number * len(schema[name].levels) + used[name]
    return number


def make_design(
    used: Mapping[str, Array],
    terms: tuple[DesignTerm, ...],
    n: int,
    strata: Array | None = None,
    *,
    intercept: bool = True,
) -> tuple[Array, float]:
    """The design matrix, shape (n, p), standardised, the target last; and the target's sd.

    Without terms the target is the intercept, which is not scaled.

    Args:
        used: columns of complete rows, (n,) each; terms: of the design beside the intercept.
        strata: (n,) a number for each row's stratum.

    Raises:
        Degenerate: the target is constant, or a linear combination of columns before it.
    """
    [design], scale = make_designs(used, terms, n, strata, intercept=intercept)
    return design, scale


def make_designs(
    used: Mapping[str, Array],
    terms: tuple[DesignTerm, ...],
    n: int,
    strata: Array | None = None,
    others: Sequence[Mapping[str, Array]] = (),
    *,
    intercept: bool = True,
) -> tuple[list[Array], float]:
    """The same, and the same columns of other rows, on the scale of the first ones.

    Args:
        others: the columns of the same rows, as they would be with another term.

    Raises:
        Degenerate: the target is constant, or a linear combination of columns before it.
    """
    tables = (used, *others)
    with np.errstate(all="ignore"):  # of a hostile table; what is not finite is left out below
        columns = [[term.of(table) for table in tables] for term in terms]
    kept: list[list[Array]] = [[np.ones(n)] * len(tables)] if intercept else []
    basis: list[Array] = [np.full(n, 1.0 / math.sqrt(n))]
    for indicator in () if strata is None else _indicators(strata):
        scale = _independent(indicator, basis)
        if scale is not None and intercept:
            kept.append([(indicator - indicator.mean()) / scale] * len(tables))
    for position, (column, *changed) in enumerate(columns, start=1):
        scale = _independent(column, basis)
        if scale is not None:
            middle = column.mean()
            kept.append([(each - middle) / scale for each in (column, *changed)])
        elif position == len(columns):
            raise Degenerate("the term is constant or a linear combination of other columns")
    designs = [np.column_stack(each) for each in zip(*kept, strict=True)]
    return designs, float(np.std(columns[-1][0])) if columns else 1.0


def _indicators(strata: Array) -> list[Array]:
    """A 0/1 column for each stratum that there is but the first."""
    return [(strata == number).astype(np.float64) for number in np.unique(strata)[1:]]


def _independent(column: Array, basis: list[Array]) -> float | None:
    """The column's sd and one more basis vector if it is independent of the basis, else None.

    Gram–Schmidt, twice, on the centred and scaled column; the basis holds the constant and all
    strata, so that a cox model, too, drops columns that are constant in each of its risk sets.
    """
    with np.errstate(all="ignore"):
        scale = float(np.std(column))
        if not (math.isfinite(scale) and scale > 1e-10 * float(np.abs(column).max())):
            return None
        rest = (column - column.mean()) / (scale * math.sqrt(len(column)))
        for _ in range(2):
            for direction in basis:
                rest = rest - (direction @ rest) * direction
        norm = float(np.linalg.norm(rest))
        if not norm > 1e-7:
            return None
        basis.append(rest / norm)
    return scale

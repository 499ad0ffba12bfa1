"""The design of an outcome's model: one column for each term, products and splines that the study
names (:mod:`~penstock.mechanisms.structured.interactions`), and bends of skewed columns.

Columns are standardised by the released population, so that coefficients are of a like size and
what a person adds to a score is bounded alike. A skewed number has a second column, the part of
its normal score that is not linear: a straight line in the declared regression stays what the
study asks, and the table's outcome need not be straight in order to have it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from penstock.mechanisms.copula.grids import Grid
from penstock.mechanisms.structured.extras import Extra
from penstock.mechanisms.structured.interactions import (
    Further,
    Main,
    count_columns,
    make_further,
)
from penstock.mechanisms.structured.outcomes.protocol import Regression, World
from penstock.mechanisms.structured.strata import Strata, make_strata
from penstock.questions.grammar import Spline
from penstock.schema import Coded, Column

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_SKEWED, _FAR = 3.3, 0.99
"""A column whose 0.99 quantile is more sds from its mean than this is bent; one further out would
bend columns for tails that noise made."""

_TAILED = 2.8
"""The same, of columns of which rows are asked how much they tell: by their curvatures."""

_MOST_CURVED, _MOST_CROSSED = 4, 8

_MOST_BENT = 15.0

_IMPORTANCE, _BENT_IMPORTANCE = (1.0, 0.9, 0.8), 0.7
"""Of what is asked, what is adjusted for, what is neither; and of its bend. The last rounds ask for
the first two alone: what is neither has but the first ones."""


_MANY_LEVELS, _ALIKE = 9, 0.5
"""Of so many levels each has so few persons that its standardised column is all noise, and those
who are of it reach so far out that noise on all else is larger. Where no table is drawn no round
asks for them, unless an estimand does, and that levels are alike is believed: a level's effect on
who is of it has so much of a coefficient's sd. The last rounds' scores are blind to it. As many
sites are a column of levels."""


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
        columns: of the covariates themselves; further: what is made of them.
        linear: how many columns are of the declared and other terms; the rest are bends.
        declared: (columns,) which of them an estimand names, as its term or to adjust for.
        importance: (width,) of each beside the others: 1 for what is asked itself.
        curved: declared columns with tails: what they tell hangs on few persons.
        fixed: (columns,) coefficients that the declared regression has without estimating them: of
            an exposure's logarithm, 1 in its own units.
        wide: (columns,) how wide a coefficient is believed where levels are spared, beside others.
        plain: (columns,) which of them are asked for, or adjusted for, in a regression without what
            is made of others; none where there is no such regression.
        strata: that have baselines of their own, so that their columns are not in the regression.
    """

    columns: tuple[Main, ...]
    declared: Bools
    mean: Array
    spread: Array
    further: tuple[Further, ...]
    bends: tuple[tuple[int, _Bend], ...]
    importance: Array
    curved: tuple[int, ...]
    fixed: Array
    wide: Array
    plain: Bools
    strata: Strata | None = None

    @property
    def linear(self) -> int:
        return len(self.columns) + len(self.further)

    @property
    def width(self) -> int:
        return self.linear + len(self.bends)

    def see(self, persons: Coded) -> World:
        """The quasi-random persons, as an outcome's model sees them."""
        design, complete = self.of(persons)
        pairs = [*combinations_with_replacement(self.curved, 2), *self._list_crossed()]
        mains = self.declared.copy()
        mains[[] if self.strata is None else self.strata.places] = False
        named = np.append(mains, np.ones(len(self.further), dtype=np.bool_))
        declared = named if named.any() else ~named
        there = complete.astype(np.float64)
        fixed = np.append(self.fixed, np.zeros(len(self.further)))
        wide = np.append(self.wide, np.ones(len(self.further)))
        apart = self._part(declared)
        return World(
            design, self.linear, self.importance, declared, pairs, there, fixed, wide, apart
        )

    def _list_crossed(self) -> list[tuple[int, int]]:
        """What is made of a column that is asked in another regression, and that column: rows'
        product goes with it where they bend, and the population's does not."""
        crossed = [
            (j, at)
            for at, further in enumerate(self.further, start=len(self.columns))
            for j in further.parents
            if j < len(self.columns) and self.plain[j]
        ]
        return crossed[:_MOST_CROSSED]

    def _part(self, declared: Bools) -> tuple[Regression, ...]:
        """That of the main effects, and that of all declared columns, where both are asked for."""
        plain = declared & np.append(self.plain, np.zeros(len(self.further), dtype=np.bool_))
        if not plain.any() or not self.further:
            return ()
        mains = declared & (np.arange(self.linear) < len(self.columns))
        parents = [j for further in self.further for j in further.parents]
        beside = plain & np.isin(np.arange(self.linear), parents)
        return (
            Regression(mains, plain, np.zeros_like(plain)),
            Regression(declared, declared & ~plain, beside),
        )

    def of(self, coded: Coded) -> tuple[Array, Bools]:
        """(N, width) and who has all declared covariates, and the exposure; what is missing counts
        as the mean."""
        z = np.empty((len(next(iter(coded.values()))), self.width))
        complete = np.ones(len(z), dtype=np.bool_)
        for j, column in enumerate(self.columns):
            values = coded[column.name]
            gone = np.isnan(values)
            if self.declared[j] or column.exposure:
                complete &= ~gone
            found = _read_main(column, values)
            z[:, j] = np.where(gone, 0.0, (found - self.mean[j]) / self.spread[j])
        for at, further in enumerate(self.further, start=len(self.columns)):
            z[:, at] = further.of(coded, z[:, :at])
        for k, (j, bend) in enumerate(self.bends):
            values = coded[self.columns[j].name]
            z[:, self.linear + k] = np.where(np.isnan(values), 0.0, bend(values, z[:, j]))
        return z, complete


def _read_main(column: Main, values: Array) -> Array:
    """(N,) of the column's values, NaN where they are missing."""
    if column.exposure:
        return np.log(values)
    return values if column.level is None else (values == column.level).astype(float)


def most_columns(grids: Sequence[Grid], extras: Sequence[Extra] = (), twice: int = 0) -> int:
    """The most columns that a design of these covariates can have, whatever is released."""
    return most_linear(grids, extras, twice) + sum(grid.numeric for grid in grids)


def most_pairs(
    grids: Sequence[Grid],
    declared: Collection[str],
    extras: Sequence[Extra],
    plain: Collection[str],
) -> int:
    """The most pairs of columns of which curvatures are asked."""
    numbers = sum(grid.numeric and grid.column.name in declared for grid in grids)
    most = min(numbers, _MOST_CURVED)
    crossed = _MOST_CROSSED if extras and plain else 0
    return most * (most + 1) // 2 + crossed


def most_linear(grids: Sequence[Grid], extras: Sequence[Extra] = (), twice: int = 0) -> int:
    """How many of these are no bends.

    Args:
        twice: columns that stand beside their own logarithm: an exposure that is declared, too.
    """
    mains = sum(max(len(grid.column.levels) - 1, 1) for grid in grids)
    return mains + count_columns(grids, extras) + twice


def make_design(
    grids: Sequence[Grid],
    persons: Coded,
    terms: Sequence[str],
    adjusted: Sequence[str] = (),
    extras: Sequence[Extra] = (),
    exposure: str = "",
    strata: Sequence[str] = (),
    plain: Collection[str] = (),
) -> Design:
    """The design of these columns, on persons drawn from the population.

    Args:
        terms, adjusted: names of the columns that estimands of the outcome ask for, and that they
            adjust for; extras: what else stands in their regressions.
        exposure: the column whose logarithm the declared regression has with coefficient 1.
        strata: names of the columns whose levels have baselines of their own.
        plain: names of terms that are asked for in a regression without extras.
    """
    columns, named, mean, spread, bends, weights, curved, wide = [], [], [], [], [], [], [], []
    declared = {*terms, *adjusted}
    # A spline says already what a bend would.
    bent = {extra.regressor.column for extra in extras if isinstance(extra.regressor, Spline)}
    for grid in grids:
        column = grid.column
        for main in _list_mains(column, column.name in declared, column.name == exposure):
            columns.append(main)
            named.append(column.name in declared and not main.exposure)
            rank = 0 if column.name in terms else 1 if column.name in {*declared, exposure} else 2
            weights.append(_IMPORTANCE[rank])
            values = persons[column.name]
            known = values[~np.isnan(values)]
            if not len(known):  # nobody is known: a column without spread, as one value has
                known = np.array([0.0 if column.levels else column.bounds[0]])
            x = _read_main(main, known)
            mean.append(float(x.mean()))
            spread.append(max(float(x.std()), 1e-3 * (1 + abs(mean[-1]))))
            many = len(column.levels) >= _MANY_LEVELS and rank > 0
            wide.append(_ALIKE * spread[-1] if many else 1.0)
            if not grid.numeric or not named[-1] or column.name in bent:
                continue
            far = np.abs(np.quantile(x, [1 - _FAR, _FAR]) - mean[-1]).max() / spread[-1]
            linear = (known - mean[-1]) / spread[-1]
            if far > _TAILED:
                # What is asked first, then what reaches furthest.
                curved.append(((rank, -far), len(columns) - 1))
            if far > _SKEWED:
                bends.append((len(columns) - 1, _bend(column.name, known, linear)))
    alone = Design(
        tuple(columns),
        np.array(named, dtype=np.bool_),
        np.array(mean),
        np.array(spread),
        (),
        (),
        np.array(weights),
        tuple(sorted(j for _, j in sorted(curved)[:_MOST_CURVED])),
        np.where([main.exposure for main in columns], spread, 0.0),
        np.array(wide),
        np.array([column.name in plain for column in columns], dtype=np.bool_),
        make_strata(strata, grids, columns, np.array(mean), np.array(spread)),
    )
    further = make_further(grids, columns, extras, persons, alone.of(persons)[0])
    more = [_IMPORTANCE[0] if one.asked else _IMPORTANCE[1] for one in further]
    last = [_BENT_IMPORTANCE * weights[j] for j, _ in bends]
    return replace(
        alone,
        further=tuple(further),
        bends=tuple(bends),
        importance=np.array([*weights, *more, *last]),
    )


def _list_mains(column: Column, declared: bool, exposure: bool) -> list[Main]:
    """A column's own: each level but the first, or the column as it is. An exposure is there by its
    logarithm, and as it is only where that is declared, too."""
    if column.kind == "categorical":
        return [Main(column.name, level) for level in range(1, len(column.levels))]
    whole = [Main(column.name, None)]
    return [*(whole if declared else ()), Main(column.name, None, True)] if exposure else whole


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
    share = np.empty(values.shape)
    for left, right, a, b in zip(points[:-1], points[1:], found[:-1], found[1:], strict=True):
        # In place: there are many points, and maybe many values.
        np.subtract(values, left, out=share)
        share /= right - left
        np.minimum(np.maximum(share, 0.0, out=share), 1.0, out=share)
        share *= b - a
        result += share
    return result

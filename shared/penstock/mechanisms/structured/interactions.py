"""What a study's regressions have beside columns: products, splines, and members of subgroups.

An effect in a subgroup is an interaction: the term times who is in it. So the design gets that
product, and the 0/1 column of the subgroup itself. Each further column is made of standardised
ones, less what the columns that it is made of say of it in a straight line, and standardised: the
regression is the same, and coefficients are of a like size, whatever the columns' middles are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.copula.grids import Grid
from penstock.mechanisms.structured.extras import Extra
from penstock.questions.grammar import Comparison, Spline
from penstock.questions.terms import bend_column, find_subgroup, place_knots
from penstock.schema import Coded, Column

Array = NDArray[np.float64]

_LEAST_APART = 1e-3
"""Of a column's spread, what no other column says, below which it is left out."""


@dataclass(frozen=True, slots=True)
class Main:
    """A 0/1 or numeric column of the design; ``exposure``: its logarithm, which the declared
    regression has with coefficient 1."""

    name: str
    level: int | None
    exposure: bool = False


@dataclass(frozen=True, slots=True)
class Further:
    """One column that is made of others.

    Attributes:
        needed: names of the columns without which it is 0.
        factors: places of the design's columns that it is a product of.
        subgroup: whose members it is a product with; share: of the population.
        bend: of a spline, its column, knots and number.
        parents: places of the columns by which a straight line (1 + parents,) is taken off.
        asked: an estimand asks for it.
    """

    needed: tuple[str, ...]
    factors: tuple[int, ...]
    subgroup: tuple[Comparison, ...]
    columns: Mapping[str, Column]
    bend: tuple[str, tuple[float, ...], int] | None
    parents: tuple[int, ...]
    asked: bool
    share: float = 0.0
    line: Array | None = None
    spread: float = 1.0

    def of(self, coded: Coded, z: Array) -> Array:
        """(N,), by the columns of the design that stand before it."""
        gone = np.logical_or.reduce([np.isnan(coded[name]) for name in self.needed])
        found = self._rest(self._raw(coded, z), z) / self.spread
        return np.asarray(np.where(gone, 0.0, found))

    def _raw(self, coded: Coded, z: Array) -> Array:
        found = np.prod(z[:, self.factors], axis=1)
        if self.subgroup:
            found = found * (find_subgroup(self.columns, self.subgroup, coded) - self.share)
        if self.bend is not None:
            name, knots, number = self.bend
            found = found * bend_column(np.nan_to_num(coded[name]), knots, number)
        return np.asarray(found)

    def _rest(self, raw: Array, z: Array) -> Array:
        if self.line is None:
            return raw
        return np.asarray(raw - self.line[0] - z[:, self.parents] @ self.line[1:])

    def fitted(self, coded: Coded, z: Array) -> Further | None:
        """The same, standardised on these persons; None where other columns say all of it."""
        members = find_subgroup(self.columns, self.subgroup, coded) if self.subgroup else None
        made = self if members is None else replace(self, share=float(members.mean()))
        gone = np.logical_or.reduce([np.isnan(coded[name]) for name in self.needed])
        raw, own = made._raw(coded, z)[~gone], z[~gone]
        design = np.column_stack([np.ones(len(raw)), own[:, self.parents]])
        line = np.linalg.lstsq(design, raw, rcond=None)[0]
        made = replace(made, line=np.asarray(line))
        spread = float(made._rest(raw, own).std())
        return replace(made, spread=spread) if spread > _LEAST_APART * raw.std() else None


def count_columns(grids: Sequence[Grid], extras: Sequence[Extra]) -> int:
    """The most columns that these come to, whatever is released."""
    several = [grid.column for grid in grids if grid.column.kind == "categorical"]
    levels = {column.name: len(column.levels) - 1 for column in several}
    count = 0
    for extra in extras:
        if isinstance(extra.regressor, Spline):
            count += extra.regressor.bends
        else:
            names = () if extra.regressor is None else extra.regressor.columns
            count += int(np.prod([levels.get(name, 1) for name in names], dtype=np.int64))
    return count


def make_further(
    grids: Sequence[Grid],
    mains: Sequence[Main],
    extras: Sequence[Extra],
    persons: Coded,
    z: Array,
) -> list[Further]:
    """The further columns, on persons drawn from the population.

    Args:
        mains: the design's first columns; z: (N, mains), standardised, of those persons.
    """
    columns = {grid.column.name: grid.column for grid in grids}
    # What each column of the design is made of: its parents are made of no more.
    made_of: list[frozenset[object]] = [frozenset([main]) for main in mains]
    found: list[Further] = []
    for extra in extras:
        compared = {comparison.column for comparison in extra.subgroup}
        plain = [main for main in mains if not main.exposure]
        choosing = [*extra.subgroup, *(main for main in plain if main.name in compared)]
        for factors, bend in _list_made(columns, mains, extra):
            own = frozenset([*(mains[j] for j in factors), *choosing])
            if bend is not None:
                own = frozenset([Main(bend[0], None)])
            named = () if extra.regressor is None else extra.regressor.columns
            needed = dict.fromkeys([*named, *(c.column for c in extra.subgroup)])
            raw = Further(
                needed=tuple(needed),
                factors=factors,
                subgroup=extra.subgroup,
                columns=columns,
                bend=bend,
                parents=tuple(j for j, other in enumerate(made_of) if other <= own),
                asked=extra.asked,
            )
            made = raw.fitted(persons, z)
            if made is None:
                continue
            found.append(made)
            made_of.append(own)
            z = np.column_stack([z, made.of(persons, z)])
    return found


def _list_made(
    columns: Mapping[str, Column], mains: Sequence[Main], extra: Extra
) -> list[tuple[tuple[int, ...], tuple[str, tuple[float, ...], int] | None]]:
    """What each of an extra's columns is the product of, and the bend that it is."""
    regressor = extra.regressor
    if isinstance(regressor, Spline):
        knots = place_knots(columns[regressor.column], regressor)
        return [((), (regressor.column, knots, j + 1)) for j in range(regressor.bends)]
    names = () if regressor is None else regressor.columns
    plain = [(j, main.name) for j, main in enumerate(mains) if not main.exposure]
    places = [[j for j, of in plain if of == name] for name in names]
    return [(chosen, None) for chosen in product(*places)]

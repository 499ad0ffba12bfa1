"""Which stratum a person is of, read back from the columns of a design.

Strata are combinations of columns' levels, as an estimand names them. The released population has
these columns, and so has every outcome's design: where persons are a design, strata are known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.copula.grids import Grid
from penstock.mechanisms.structured.interactions import Main

Array = NDArray[np.float64]
Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Coded:
    """One column of levels.

    Args:
        places: of the design's columns; mean, spread: by which these were standardised.
        levels: how many there are; numbered: one column has the level's place, and else each level
            but the first has a 0/1 column.
    """

    places: Sequence[int]
    mean: Array
    spread: Array
    levels: int
    numbered: bool

    def of(self, design: Array) -> tuple[Array, NDArray[np.bool_]]:
        """(N,) levels' places, and of whom it is missing: these count as the mean everywhere."""
        z = design[:, self.places]
        values = np.rint(np.clip(z * self.spread + self.mean, 0, self.levels - 1))
        if not self.numbered:
            values = (values > 0) * np.arange(1, self.levels)
        return np.asarray(values.max(axis=1)), np.asarray((z == 0).all(axis=1))


@dataclass(frozen=True, slots=True)
class Strata:
    """The strata of a regression; ``count`` of them, a public number."""

    columns: tuple[_Coded, ...]

    @property
    def count(self) -> int:
        return math.prod(column.levels for column in self.columns)

    @property
    def places(self) -> list[int]:
        """Of the design's columns that say nothing beside them."""
        return [place for column in self.columns for place in column.places]

    def of(self, design: Array) -> Places:
        """(N,) each person's stratum, and ``count`` where that is missing."""
        number, missing = np.zeros(len(design)), np.zeros(len(design), dtype=np.bool_)
        for column in self.columns:
            level, gone = column.of(design)
            number, missing = number * column.levels + level, missing | gone
        return np.where(missing, self.count, number).astype(np.intp)


def make_strata(
    names: Sequence[str], grids: Sequence[Grid], columns: Sequence[Main], mean: Array, spread: Array
) -> Strata | None:
    """The strata that columns of these names make; None where there are none.

    Args:
        columns: of the design, with their ``mean`` and ``spread``.
    """
    levels = {grid.column.name: len(grid.column.levels) for grid in grids}
    found = []
    for name in names:
        places = [j for j, main in enumerate(columns) if main.name == name]
        numbered = columns[places[0]].level is None
        found.append(_Coded(places, mean[places], spread[places], levels[name], numbered))
    return Strata(tuple(found)) if found else None


def count_strata(grids: Iterable[Grid], names: Sequence[str]) -> int:
    """How many there are, by the schema; 1 of no column."""
    return math.prod(len(grid.column.levels) for grid in grids if grid.column.name in names)

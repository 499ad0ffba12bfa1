"""Persons laid out by time point: a place for every visit that there can be, one a time point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Followed:
    """n persons at T time points.

    Attributes:
        there: (n, T), who was seen when.
        varying: of each column that varies (n, T), coded; what is not there is anything.
        constants: of each that does not (n,), coded.
    """

    there: Bools
    varying: Coded
    constants: Coded

    @property
    def seen(self) -> Bools:
        """(n,), who was seen at all."""
        return np.asarray(self.there.any(axis=1))

    def at(self, t: int) -> Iterator[tuple[str, Array]]:
        """The columns that vary, at one time point."""
        return ((name, values[:, t]) for name, values in self.varying.items())


def follow(
    rows: Mapping[str, Array],
    present: Bools,
    bins: Whole,
    count: int,
    varying: Sequence[str],
    constants: Sequence[str],
) -> Followed:
    """Rows of persons by time point: of several at one the first, of constants the first known.

    Of work that is a function of shapes alone.

    Args:
        rows: of each column (n, k), coded; present, bins: (n, k), bins below ``count``.
    """
    n, k = present.shape
    who = np.arange(n)
    # What is absent goes to a time point of its own, which nobody looks at.
    place = np.where(present, bins, count)
    there = np.zeros((n, count + 1), dtype=np.bool_)
    laid = {name: np.full((n, count + 1), np.nan) for name in varying}
    fixed = {name: np.full(n, np.nan) for name in constants}
    for r in reversed(range(k)):
        there[who, place[:, r]] = True
        for name in varying:
            laid[name][who, place[:, r]] = rows[name][:, r]
        for name in constants:
            value = rows[name][:, r]
            fixed[name] = np.where(present[:, r] & ~np.isnan(value), value, fixed[name])
    return Followed(there[:, :-1], {name: laid[name][:, :-1] for name in varying}, fixed)

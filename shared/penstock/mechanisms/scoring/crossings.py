"""Contingency tables, of one noisy histogram of all combinations of levels."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.scoring.tallies import COUNTED, Tally, Told, tell_cells
from penstock.questions.contingency import list_cells
from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]


class TableTally(Tally):
    """Rows of each cell: a row is in one. All counts are told, and then all shares."""

    @property
    def size(self) -> int:
        return len(list_cells(self.description.columns))

    @property
    def squared(self) -> Fraction:
        return Fraction(1)

    def add_up(self, coded: Coded, members: Bools) -> Whole:
        place = np.zeros(len(members), dtype=np.intp)
        for column in self.description.columns:
            level = np.where(members, coded[column.name], 0.0).astype(np.intp)
            place = place * len(column.levels) + level
        place = np.where(members, place, self.size)
        return np.bincount(place, minlength=self.size + 1)[:-1]

    def tell(self, noisy: Array, sd: float) -> Told:
        cells = np.tile(np.arange(self.size), 2)
        return tell_cells(noisy, sd, cells, [COUNTED] * self.size + ["logit"] * self.size)

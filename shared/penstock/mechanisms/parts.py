"""One table of a release, as a mechanism makes it: whatever the mechanism, a release is parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.released import COPY, PATH

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]
"""Called with steps done and steps in all; public."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows under one label.

    Args:
        copy: 1, 2, … are synthetic copies; -1, -2, … refits, tables of the whole private procedure
            repeated on rows of the released model; 0 is what is neither.
        columns: name → values, all of one length: coded, by the study's schema, or of an answer.
        path: (rows,) of a trajectory: the path's number from 1; -1 for a particle; 0 elsewhere.
    """

    copy: int
    columns: Mapping[str, NDArray[np.generic]]
    path: NDArray[np.int32] | None = None

    def labels(self) -> dict[str, NDArray[np.int32]]:
        """What stands before the columns, by :mod:`penstock.mechanisms.released`."""
        rows = len(next(iter(self.columns.values())))
        found = {COPY: np.full(rows, self.copy, dtype=np.int32)}
        if self.path is not None:
            found[PATH] = self.path
        return found

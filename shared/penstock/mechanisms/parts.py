"""One part of a release, as a mechanism makes it: whatever the mechanism, a release is parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]
"""Called with steps done and steps in all; public."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one part; a part that is made piece by piece comes as several, one after the other.

    Args:
        name: as the release's :class:`~penstock.mechanisms.released.Shape` has it.
        columns: name → values, all of one length: coded, by the part's schema.
    """

    name: str
    columns: Mapping[str, NDArray[np.generic]]

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))

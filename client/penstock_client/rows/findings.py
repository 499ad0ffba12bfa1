"""What a check finds in rows, and where: for the steward's eyes only, and never a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 5
"""Places that are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the rows.

    ``fatal`` findings must be corrected in the file, its recoding or the dictionary. A ``note``
    changes no value, and is only to be known. The others are clamped or mapped in the way said,
    once the steward accepts it.

    Attributes:
        lines: where the first few of ``count`` cells lie, in ``unit`` of the file.
        without: persons of whom no value is known in this column, out of ``counted``: they
            contribute nothing to a study that uses it.
    """

    column: str
    message: str
    lines: tuple[int, ...] = ()
    count: int = 0
    fatal: bool = False
    remedy: str = ""
    unit: str = "line"
    without: int = 0
    counted: int = 0
    note: bool = False

    def __str__(self) -> str:
        text = f"{self.column}: {self.message}" if self.column else self.message
        if self.lines:
            text += f" ({self.unit}{'s' if self.count != 1 else ''} "
            text += ", ".join(map(str, self.lines))
            more = self.count - len(self.lines)
            text += f" and {more} more)" if more > 0 else ")"
        if self.without:
            text += f": {self.without} of {self.counted} persons have no known value, and would "
            text += "contribute nothing to a study that uses it"
        return f"{text}. {self.remedy}" if self.remedy else text


class Spots:
    """Where something was seen: the first few places, and how many there are."""

    def __init__(self) -> None:
        self.count, self.unit = 0, "line"
        self.lines: list[int] = []

    def add(self, index: pd.Index, where: NDArray[np.bool_]) -> None:
        found = index[where]
        self.count += len(found)
        self.lines += [int(n) for n in found[: SHOWN - len(self.lines)]]
        self.unit = str(index.name or "line")

    def finding(
        self,
        column: str,
        message: str,
        *,
        fatal: bool = False,
        remedy: str = "",
        lost: tuple[int, int] = (0, 0),
        note: bool = False,
    ) -> Finding:
        where = (tuple(self.lines), self.count)
        return Finding(column, message, *where, fatal, remedy, self.unit, *lost, note)

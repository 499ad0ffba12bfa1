"""Settings of ``column-mean``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.base.checks import Checks, nearest, shown
from penstock.base.errors import Problem
from penstock.questions.estimands import Estimand
from penstock.schema import NUMBER_KINDS, Schema


@dataclass(frozen=True, slots=True)
class ColumnMean:
    """The column whose mean is released."""

    name: ClassVar[str] = "column-mean"
    copies: ClassVar[int] = 1
    refits: ClassVar[int] = 0
    column: str

    def problems(self, schema: Schema, estimands: Sequence[Estimand]) -> list[Problem]:
        check = Checks("mechanism")
        if self.column not in schema.names:
            remedy = nearest(self.column, schema.names)
            check.add("column", "is not a column", value=shown(self.column), remedy=remedy)
        elif schema[self.column].kind not in NUMBER_KINDS:
            check.add("column", "holds no numbers", value=shown(self.column))
        return check.problems

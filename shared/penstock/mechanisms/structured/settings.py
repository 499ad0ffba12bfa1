"""Settings of ``structured``: margins, dependence, and a model of each declared outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.base.checks import Checks
from penstock.base.errors import Problem
from penstock.questions.estimands import Estimand
from penstock.schema import Schema


@dataclass(frozen=True, slots=True)
class Structured:
    """Synthetic tables whose outcomes are drawn from models of what the study declares.

    Attributes:
        copies: synthetic data sets per site, 1 to 100.
        refits: how often a site repeats its whole private procedure on the rows of its copies, in
            turn, 0 to 100, to show the mechanism's own noise; free of budget. 0: intervals lack it.

    Raises:
        InvalidInput: with every problem.
    """

    name: ClassVar[str] = "structured"
    copies: int = 10
    refits: int = 40

    def __post_init__(self) -> None:
        check = Checks("mechanism")
        check.whole("copies", self.copies, 1, 100)
        check.whole("refits", self.refits, 0, 100)
        check.done()

    def problems(self, schema: Schema, estimands: Sequence[Estimand]) -> list[Problem]:
        """What this study and schema ask that the mechanism cannot do."""
        check = Checks("mechanism")
        durations = [c for c in schema.columns if c.event is not None]
        if len(schema.columns) == 2 * len(durations):
            check.add(
                "name",
                "draws each duration given other columns, and the study has none",
                bound="at least one column besides durations and their events",
                remedy="Add one, or choose another mechanism",
            )
        return check.problems

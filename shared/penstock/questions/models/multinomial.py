"""The baseline-category logit of levels without an order: each against the first."""

from __future__ import annotations

from penstock.base.checks import Checks
from penstock.questions.models.model import Measure, Model
from penstock.schema import Column

MOST_LEVELS = 12
"""Of an outcome: each level but the first has coefficients of its own for all columns."""


class _LevelModel(Model):
    """A model of which the estimate is of one level of the outcome."""

    __slots__ = ()

    def check_outcome(self, check: Checks, outcome: Column) -> None:
        if len(outcome.levels) > MOST_LEVELS:
            check.add(
                "outcome",
                "has too many levels to have coefficients for each",
                value=str(len(outcome.levels)),
                bound=f"at most {MOST_LEVELS}",
                remedy="Join rare levels in the dictionary",
            )

    @property
    def names_level(self) -> bool:
        return True


MULTINOMIAL = _LevelModel(
    name="multinomial",
    title="Multinomial logistic model",
    outcomes=("categorical",),
    measure=Measure("relative risk ratio", "RRR", "lower relative risk", "higher relative risk"),
    ratio=True,
)

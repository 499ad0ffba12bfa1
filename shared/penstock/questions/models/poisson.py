"""The log-linear model of a count."""

from __future__ import annotations

from penstock.base.checks import Checks
from penstock.questions.models.model import Measure, Model
from penstock.schema import Column


class _CountModel(Model):
    __slots__ = ()

    def check_outcome(self, check: Checks, outcome: Column) -> None:
        """A count cannot lie below 0."""
        if outcome.bounds[0] < 0:
            lower = f"{outcome.bounds[0]:g}"
            check.add("outcome", "is a count, and cannot lie below 0", value=f"lower = {lower}")


POISSON = _CountModel(
    name="poisson",
    title="Poisson model",
    outcomes=("integer",),
    measure=Measure("rate ratio", "RR", "lower rate", "higher rate"),
    share=None,
    ratio=True,
    compares=True,
    intercept=True,
    needs_event=False,
    in_outcome_units=False,
    draft=None,
)

"""What models of a count have in common."""

from __future__ import annotations

from penstock.base.checks import Checks
from penstock.questions.models.model import Model
from penstock.schema import Column


class CountModel(Model):
    """A log-linear model of a count, or, with an exposure, of a rate."""

    __slots__ = ()

    def check_outcome(self, check: Checks, outcome: Column) -> None:
        """A count cannot lie below 0."""
        if outcome.bounds[0] < 0:
            lower = f"{outcome.bounds[0]:g}"
            check.add("outcome", "is a count, and cannot lie below 0", value=f"lower = {lower}")

    @property
    def takes_exposure(self) -> bool:
        return True

"""What a study may cost: the privacy that it asks for, and the δ that is advised."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.base.checks import Checks

GUARANTEES = ("formal", "public-flow", "empirical")

DELTA = 1e-5
"""What δ is of where nothing else is said, and where n allows it."""
DELTA_TIMES_PERSONS = 0.1
"""The most that δ·n should be: δ bounds the chance that a person's row is simply given away, and
a mechanism that does so to each of n persons by chance δ meets any such bound."""


@dataclass(frozen=True, slots=True)
class PrivacyRequest:
    """What the study may cost at each site, per person.

    Attributes:
        epsilon: > 0 and finite. With the guarantee ``empirical`` it is infinity, whatever was
            given: such a release is charged as ε = ∞ (null in the JSON form).
        delta: 1e-12 <= delta < 1.
        guarantee: ``formal``, ``public-flow`` or ``empirical``.

    Raises:
        InvalidInput: with every problem.
    """

    epsilon: float
    delta: float
    guarantee: str = "formal"

    def __post_init__(self) -> None:
        check = Checks("privacy")
        check.choice("guarantee", self.guarantee, GUARANTEES)
        if self.guarantee == "empirical" and self.epsilon in (None, math.inf):
            check.keep(self, epsilon=math.inf)
        elif check.number("epsilon", self.epsilon, "above 0 and finite", above=0) is not None:
            empirical = self.guarantee == "empirical"
            check.keep(self, epsilon=math.inf if empirical else float(self.epsilon))
        delta = check.number("delta", self.delta, "1e-12 <= delta < 1", least=1e-12, below=1)
        check.keep(self, delta=delta)
        check.done()


def advised_delta(persons: int) -> float:
    """min(1e-5, 1/(10 n)): the δ to ask of sites, the largest of which has ``persons`` persons."""
    return min(DELTA, DELTA_TIMES_PERSONS / persons)

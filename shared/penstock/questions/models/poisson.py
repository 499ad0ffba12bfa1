"""The log-linear model of a count."""

from __future__ import annotations

from penstock.questions.models.count import CountModel
from penstock.questions.models.model import Measure

POISSON = CountModel(
    name="poisson",
    title="Poisson model",
    outcomes=("integer",),
    measure=Measure("rate ratio", "RR", "lower rate", "higher rate"),
    ratio=True,
)

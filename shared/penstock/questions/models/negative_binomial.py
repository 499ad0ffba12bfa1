"""The log-linear model of a count that varies more than its mean: NB2, variance μ + α μ²."""

from __future__ import annotations

from penstock.questions.models.count import CountModel
from penstock.questions.models.model import Measure

NEGATIVE_BINOMIAL = CountModel(
    name="negative-binomial",
    title="Negative binomial model",
    outcomes=("integer",),
    measure=Measure("rate ratio", "RR", "lower rate", "higher rate"),
    ratio=True,
)

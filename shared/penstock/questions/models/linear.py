"""The linear model of a number."""

from __future__ import annotations

from penstock.questions.models.model import Measure, Model

LINEAR = Model(
    name="ols",
    title="Linear model",
    outcomes=("continuous", "integer"),
    measure=Measure("mean difference", "Difference", "lower", "higher"),
    ratio=False,
    in_outcome_units=True,
    draft=3,
)

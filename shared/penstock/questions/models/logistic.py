"""The logistic model of a 0/1 column."""

from __future__ import annotations

from penstock.questions.models.model import Measure, Model

LOGISTIC = Model(
    name="logistic",
    title="Logistic model",
    outcomes=("binary", "event"),
    measure=Measure("odds ratio", "OR", "lower odds", "higher odds"),
    ratio=True,
    draft=2,
)

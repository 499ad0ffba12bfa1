"""The proportional odds model of levels in order: a cumulative logit with a cutpoint for each."""

from __future__ import annotations

from penstock.questions.models.model import Measure, Model

ORDINAL = Model(
    name="ordinal",
    title="Proportional odds model",
    outcomes=("ordered",),
    measure=Measure("common odds ratio", "cOR", "lower levels", "higher levels"),
    ratio=True,
)

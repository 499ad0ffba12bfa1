"""Cox's proportional hazards model of a duration: its baseline hazard is no coefficient."""

from __future__ import annotations

from penstock.questions.models.model import Measure, Model

COX = Model(
    name="cox",
    title="Cox model, Efron ties",
    outcomes=("duration",),
    measure=Measure("hazard ratio", "HR", "lower hazard", "higher hazard"),
    share=None,
    ratio=True,
    compares=True,
    intercept=False,
    needs_event=True,
    in_outcome_units=False,
    draft=1,
)

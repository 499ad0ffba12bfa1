"""Cox's proportional hazards model of a duration: its baseline hazard is no coefficient."""

from __future__ import annotations

from penstock.questions.models.model import Measure, Model

COX = Model(
    name="cox",
    title="Cox model, Efron ties",
    outcomes=("duration",),
    measure=Measure("hazard ratio", "HR", "lower hazard", "higher hazard"),
    ratio=True,
    intercept=False,
    needs_event=True,
    robust=True,
    draft=1,
)

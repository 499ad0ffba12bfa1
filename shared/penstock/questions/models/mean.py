"""The mean of a column: an intercept alone, so that nothing is compared."""

from __future__ import annotations

from penstock.questions.models.model import Measure, Model

MEAN = Model(
    name="mean",
    title="Mean",
    outcomes=("continuous", "integer", "binary"),
    measure=Measure("mean", "Mean", "lower", "higher"),
    share=Measure("share", "Share", "lower", "higher"),
    ratio=False,
    compares=False,
    in_outcome_units=True,
    averages=True,
    draft=4,
)

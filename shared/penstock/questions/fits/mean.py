"""The mean of a table's column: its variance is s²/n, with s² the sample variance."""

from __future__ import annotations

import math

from penstock.questions.estimands import Estimand
from penstock.questions.fits.table_model import (
    Array,
    Degenerate,
    Fit,
    TableModel,
    require_spread,
    rounding_variance,
)
from penstock.questions.models.mean import MEAN
from penstock.schema import Schema


class MeanTable(TableModel):
    model = MEAN

    def count_events(self, outcome: Array, event: Array | None) -> int | None:
        return None

    def fit(self, outcome: Array, event: Array | None, design: Array) -> Fit:
        """Mean and s²/n: the design is an intercept alone."""
        value, spread = float(outcome.mean()), float(outcome.std(ddof=1))
        require_spread(outcome, spread)
        variance = spread * spread / len(outcome)
        if not (math.isfinite(value) and 0 < variance < math.inf):
            raise Degenerate("the estimate overflows")
        return Fit(value, variance, True, None)

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """Of whole numbers that are not all equal s² is at least 1/n (one row beside n − 1 equal
        ones), so the variance at least 1/n². Of other numbers on a grid s² is taken to be at least
        step²/12, as for a linear model; without a grid there is no floor."""
        outcome = schema[estimand.outcome]
        if outcome.kind != "continuous":
            return 1.0 / rows**2
        return rounding_variance(outcome) / rows

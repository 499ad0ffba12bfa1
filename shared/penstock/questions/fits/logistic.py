"""The logistic model of a table, by maximum likelihood."""

from __future__ import annotations

import numpy as np

from penstock.questions.estimands import Estimand
from penstock.questions.fits.newton import Maximum, maximise
from penstock.questions.fits.table_model import (
    Array,
    Fit,
    TableModel,
    count_ones,
    event_share,
    largest_spread,
)
from penstock.questions.models.logistic import LOGISTIC
from penstock.schema import Schema


class LogisticTable(TableModel):
    model = LOGISTIC
    family = "Binomial"

    def count_events(self, outcome: Array, event: Array | None) -> int | None:
        return count_ones(outcome)

    def fit(self, outcome: Array, event: Array | None, design: Array) -> Fit:
        share = event_share(outcome, design.shape[1] - 1)
        found = maximise_logistic(outcome, design)
        return Fit(
            float(found.coefficients[-1]),
            float(found.covariance[-1, -1]),
            found.reached,
            1.0 / (len(outcome) * share * (1.0 - share)),
        )

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """I = Σ p(1−p)·(x − x̄)² ≤ n·r²/16, because p(1−p) ≤ 1/4."""
        return 4 / largest_spread(schema, estimand, rows)


def maximise_logistic(outcome: Array, design: Array) -> Maximum:
    """Coefficients (p,) of an outcome of 0 and 1 (n,), by a design (n, p)."""

    def derivatives(beta: Array) -> tuple[float, Array, Array]:
        eta = design @ beta
        odds = np.exp(-np.abs(eta))
        mean = np.where(eta > 0, 1.0, odds) / (1.0 + odds)
        value = float(outcome @ eta - np.logaddexp(0.0, eta).sum())
        weighted = design * (odds / (1.0 + odds) ** 2)[:, None]
        return value, design.T @ (outcome - mean), weighted.T @ design

    return maximise(derivatives, np.zeros(design.shape[1]))

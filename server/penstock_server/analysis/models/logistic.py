"""The logistic model of a table, by maximum likelihood."""

from __future__ import annotations

import numpy as np

from penstock.questions.estimands import Estimand
from penstock.questions.models.logistic import LOGISTIC
from penstock.schema import Schema
from penstock_server.analysis.models.table_model import (
    Array,
    Fit,
    TableModel,
    count_ones,
    event_share,
    largest_spread,
)


class LogisticTable(TableModel):
    model = LOGISTIC

    def count_events(self, outcome: Array, event: Array | None) -> int | None:
        return count_ones(outcome)

    def fit(self, outcome: Array, event: Array | None, design: Array) -> Fit:
        from statsmodels.discrete.discrete_model import Logit

        share = event_share(outcome, design.shape[1] - 1)
        result = Logit(outcome, design).fit(method="newton", maxiter=50, tol=1e-10, disp=0)
        covariance = np.asarray(result.cov_params())
        return Fit(
            float(result.params[-1]),
            float(covariance[-1, -1]),
            bool(result.mle_retvals["converged"]),
            1.0 / (len(outcome) * share * (1.0 - share)),
        )

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """I = Σ p(1−p)·(x − x̄)² ≤ n·r²/16, because p(1−p) ≤ 1/4."""
        return 4 / largest_spread(schema, estimand, rows)

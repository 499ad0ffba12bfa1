"""The log-linear model of a table of counts, by maximum likelihood."""

from __future__ import annotations

import numpy as np

from penstock.questions.estimands import Estimand
from penstock.questions.models.poisson import POISSON
from penstock.schema import Schema
from penstock_server.analysis.models.table_model import (
    Array,
    Degenerate,
    Fit,
    TableModel,
    largest_spread,
)


class PoissonTable(TableModel):
    """Variance = mean (McCullagh & Nelder 1989, chapter 6)."""

    model = POISSON

    def count_events(self, outcome: Array, event: Array | None) -> int | None:
        """The sum of counts; None where they are none."""
        whole = (outcome >= 0).all() and (outcome == np.floor(outcome)).all()
        return int(outcome.sum()) if whole and outcome.sum() < 1e15 else None

    def fit(self, outcome: Array, event: Array | None, design: Array) -> Fit:
        from statsmodels.genmod.families import Poisson
        from statsmodels.genmod.generalized_linear_model import GLM

        counted = self.count_events(outcome, None)
        if counted is None:
            raise Degenerate("the outcome is not a count")
        columns = design.shape[1] - 1
        if counted < max(1, columns):
            raise Degenerate(f"too few events: {counted} for {columns} columns")
        model = GLM(outcome, design, family=Poisson())
        result = model.fit(maxiter=100, tol=1e-12)
        covariance = np.asarray(result.cov_params())
        score = np.asarray(model.score(result.params))
        # Half the Newton decrement, as for cox: the fit's own criterion looks at the deviance only.
        to_gain = 0.5 * float(score @ covariance @ score)
        return Fit(
            float(result.params[-1]), float(covariance[-1, -1]), to_gain < 1e-9, 1.0 / counted
        )

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """I = Σ μ·(x − x̄)² with weights μ that add up to the events, Σ y ≤ n·upper (the likelihood
        equation of the intercept), so I ≤ n·upper·r²/4."""
        spread = largest_spread(schema, estimand, rows)
        return 1 / (spread * schema[estimand.outcome].bounds[1])

"""The linear model of a table, by least squares."""

from __future__ import annotations

import numpy as np

from penstock.questions.estimands import Estimand
from penstock.questions.models.linear import LINEAR
from penstock.schema import Schema
from penstock_server.analysis.models.table_model import (
    Array,
    Degenerate,
    Fit,
    TableModel,
    largest_spread,
    require_spread,
    rounding_variance,
)

MIN_RESIDUAL = 1e-8
"""Share of the outcome's variance that must be left over by a linear model: a table that is an
exact linear function would otherwise buy unlimited weight."""


class LinearTable(TableModel):
    model = LINEAR

    def count_events(self, outcome: Array, event: Array | None) -> int | None:
        return None

    def fit(self, outcome: Array, event: Array | None, design: Array) -> Fit:
        # statsmodels takes a second to load, which other models need not wait for.
        from statsmodels.regression.linear_model import OLS

        spread = float(np.std(outcome))
        require_spread(outcome, spread)
        result = OLS((outcome - outcome.mean()) / spread, design).fit()
        if not float(result.ssr) > MIN_RESIDUAL * len(outcome):
            raise Degenerate("the outcome is a linear function of the columns")
        covariance = np.asarray(result.cov_params())
        return Fit(
            float(result.params[-1]) * spread, float(covariance[-1, -1]) * spread**2, True, None
        )

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """variance = s² / Σ(x − x̄)² ≥ s² / (n·r²/4), and s² is taken to be at least step²/12.

        An outcome that is kept to a grid of that step carries rounding of that variance (Sheppard
        1898), however well the columns explain it. That is what honest data have, not a theorem: a
        table may be made to lie on a plane through the grid, and is floored. An outcome without a
        grid has no floor here (:data:`MIN_RESIDUAL` bounds it).
        """
        spread = largest_spread(schema, estimand, rows)
        return rounding_variance(schema[estimand.outcome]) / spread

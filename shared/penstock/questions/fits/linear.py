"""The linear model of a table, by least squares."""

from __future__ import annotations

import numpy as np

from penstock.questions.estimands import Estimand
from penstock.questions.fits.table_model import (
    Array,
    Degenerate,
    Fit,
    TableModel,
    largest_spread,
    require_spread,
    rounding_variance,
)
from penstock.questions.models.linear import LINEAR
from penstock.schema import Schema

MIN_RESIDUAL = 1e-8
"""Share of the outcome's variance that must be left over by a linear model: a table that is an
exact linear function would otherwise buy unlimited weight."""


class LinearTable(TableModel):
    model = LINEAR
    family = "Gaussian"

    def count_events(self, outcome: Array, event: Array | None) -> int | None:
        return None

    def fit(self, outcome: Array, event: Array | None, design: Array) -> Fit:
        spread = float(np.std(outcome))
        require_spread(outcome, spread)
        basis, upper = np.linalg.qr(design)
        shares = basis.T @ (outcome / spread)
        rest = outcome / spread - basis @ shares
        squares = float(rest @ rest)
        if not squares > MIN_RESIDUAL * len(outcome):
            raise Degenerate("the outcome is a linear function of the columns")
        variance = squares / (len(outcome) - design.shape[1])
        last = float(upper[-1, -1])
        return Fit(float(shares[-1]) / last * spread, variance / last**2 * spread**2, True, None)

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """variance = s² / Σ(x − x̄)² ≥ s² / (n·r²/4), and s² is taken to be at least step²/12.

        An outcome that is kept to a grid of that step carries rounding of that variance (Sheppard
        1898), however well the columns explain it. That is what honest data have, not a theorem: a
        table may be made to lie on a plane through the grid, and is floored. An outcome without a
        grid has no floor here (:data:`MIN_RESIDUAL` bounds it).
        """
        spread = largest_spread(schema, estimand, rows)
        return rounding_variance(schema[estimand.outcome]) / spread

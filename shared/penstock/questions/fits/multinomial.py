"""The multinomial logistic model of a table, by maximum likelihood."""

from __future__ import annotations

import numpy as np

from penstock.questions.estimands import Estimand
from penstock.questions.fits.baseline import Baseline
from penstock.questions.fits.newton import maximise
from penstock.questions.fits.table_model import (
    Array,
    Degenerate,
    Fit,
    TableModel,
    largest_spread,
    number_levels,
)
from penstock.questions.models.multinomial import MOST_LEVELS, MULTINOMIAL
from penstock.schema import Schema


class MultinomialTable(TableModel):
    """The outcome's second level is the one that is asked about. Others that no row has are left
    out: the likelihood is the same."""

    model = MULTINOMIAL

    def count_events(self, outcome: Array, event: Array | None) -> int | None:
        return None

    def fit(self, outcome: Array, event: Array | None, design: Array) -> Fit:
        columns = design.shape[1] - 1
        level, shares = number_levels(outcome, columns)
        counts = [int((outcome == k).sum()) for k in (0, 1)]
        if min(counts) < max(1, columns):
            few = f"{min(counts)} for {columns} columns"
            raise Degenerate(f"too few rows of the level or of the first one: {few}")
        if len(shares) > MOST_LEVELS:
            raise Degenerate("the outcome has other values than levels")
        there = (level[:, None] == np.arange(1, len(shares))).astype(np.float64)
        start = np.zeros((len(shares) - 1, design.shape[1]))
        start[:, 0] = np.log(shares[1:] / shares[0])
        likelihood = Baseline(there, design, np.ones(len(outcome)))
        found = maximise(likelihood, start.ravel())
        return Fit(
            float(found.coefficients[columns]),
            float(found.covariance[columns, columns]),
            found.reached,
            1 / counts[0] + 1 / counts[1],
        )

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """I ≤ Σ p(1−p)·(x − x̄)² ≤ n·r²/16, p that of the level: other levels' coefficients only
        take information away."""
        return 4 / largest_spread(schema, estimand, rows)

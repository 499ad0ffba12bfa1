"""The log-linear model of a table of counts, by maximum likelihood."""

from __future__ import annotations

import numpy as np

from penstock.questions.estimands import Estimand
from penstock.questions.fits.newton import maximise
from penstock.questions.fits.table_model import (
    Array,
    Degenerate,
    Fit,
    TableModel,
    largest_spread,
)
from penstock.questions.models.poisson import POISSON
from penstock.schema import Schema


class PoissonTable(TableModel):
    """Variance = mean (McCullagh & Nelder 1989, chapter 6)."""

    model = POISSON
    family = "Poisson"
    counts = True

    def count_events(self, outcome: Array, event: Array | None) -> int | None:
        """The sum of counts; None where they are none."""
        whole = (outcome >= 0).all() and (outcome == np.floor(outcome)).all()
        return int(outcome.sum()) if whole and outcome.sum() < 1e15 else None

    def fit(self, outcome: Array, event: Array | None, design: Array) -> Fit:
        counted = self.count_events(outcome, None)
        if counted is None:
            raise Degenerate("the outcome is not a count")
        columns = design.shape[1] - 1
        if counted < max(1, columns):
            raise Degenerate(f"too few events: {counted} for {columns} columns")

        def derivatives(beta: Array) -> tuple[float, Array, Array]:
            eta = design @ beta
            mean = np.exp(eta)
            value = float(outcome @ eta - mean.sum())
            return value, design.T @ (outcome - mean), (design * mean[:, None]).T @ design

        start = np.zeros(design.shape[1])
        start[0] = np.log(outcome.mean())
        found = maximise(derivatives, start)
        return Fit(
            float(found.coefficients[-1]),
            float(found.covariance[-1, -1]),
            found.reached,
            1.0 / counted,
        )

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """I = Σ μ·(x − x̄)² with weights μ that add up to the events, Σ y ≤ n·upper (the likelihood
        equation of the intercept), so I ≤ n·upper·r²/4."""
        spread = largest_spread(schema, estimand, rows)
        return 1 / (spread * schema[estimand.outcome].bounds[1])

"""What fits of counts to a table have in common: a log-linear mean, and as much to learn of it."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from penstock.questions.estimands import Estimand
from penstock.questions.fits.table_model import (
    Array,
    Degenerate,
    Fit,
    TableModel,
    largest_spread,
)
from penstock.schema import Schema


class CountTable(TableModel):
    """A mean e^(xᵀβ + offset)."""

    counts = True

    def count_events(self, outcome: Array, event: Array | None) -> int | None:
        """The sum of counts; None where they are none."""
        whole = (outcome >= 0).all() and (outcome == np.floor(outcome)).all()
        return int(outcome.sum()) if whole and outcome.sum() < 1e15 else None

    def fit(self, outcome: Array, event: Array | None, design: Array) -> Fit:
        return self.fit_offset(outcome, event, design, np.zeros(len(outcome)))

    @abstractmethod
    def fit_offset(
        self, outcome: Array, event: Array | None, design: Array, offset: Array
    ) -> Fit: ...

    def require_counts(self, outcome: Array, design: Array) -> int:
        """Their sum.

        Raises:
            Degenerate: they are no counts, or too few.
        """
        counted, columns = self.count_events(outcome, None), design.shape[1] - 1
        if counted is None:
            raise Degenerate("the outcome is not a count")
        if counted < max(1, columns):
            raise Degenerate(f"too few events: {counted} for {columns} columns")
        return counted

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """I = Σ w·(x − x̄)² with weights that add up to at most Σ y ≤ n·upper, so I ≤ n·upper·r²/4,
        with an offset or without.

        Of a Poisson model w = μ, and the likelihood equation of the intercept is Σ μ = Σ y. Of a
        negative binomial one, with m = α μ, w = (μ + m y)/(1 + m)², and that equation
        Σ μ/(1 + m) = Σ y/(1 + m): so Σ w ≤ Σ y (1 + 2m)/(1 + m)² ≤ Σ y. That α is estimated, too,
        only takes information away.
        """
        spread = largest_spread(schema, estimand, rows)
        return 1 / (spread * schema[estimand.outcome].bounds[1])


def start_level(outcome: Array, design: Array, offset: Array) -> Array:
    """(p,) coefficients of a mean that is in proportion to e^offset."""
    start = np.zeros(design.shape[1])
    start[0] = np.log(outcome.sum() / np.exp(offset).sum())
    return start

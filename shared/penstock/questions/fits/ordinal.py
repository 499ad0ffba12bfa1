"""The proportional odds model of a table, by maximum likelihood."""

from __future__ import annotations

from penstock.questions.estimands import Estimand
from penstock.questions.fits.cutpoints import Cumulative
from penstock.questions.fits.newton import maximise
from penstock.questions.fits.table_model import (
    Array,
    Fit,
    TableModel,
    largest_spread,
    number_levels,
)
from penstock.questions.models.ordinal import ORDINAL
from penstock.schema import Schema


class OrdinalTable(TableModel):
    """Levels that no row has are as if there were none: the likelihood is the same."""

    model = ORDINAL

    def count_events(self, outcome: Array, event: Array | None) -> int | None:
        return None

    def fit(self, outcome: Array, event: Array | None, design: Array) -> Fit:
        level, shares = number_levels(outcome, design.shape[1] - 1)
        likelihood = Cumulative(level, design[:, 1:])
        found = maximise(likelihood, likelihood.start())
        # Of an unrelated term: Whitehead 1993, Statistics in Medicine 12, 2257–2271.
        told = len(outcome) * (1 - float((shares**3).sum())) / 3
        return Fit(
            float(found.coefficients[-1]),
            float(found.covariance[-1, -1]),
            found.reached,
            1.0 / told,
        )

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """I ≤ Σ (f(a) + f(b))·(x − x̄)², what is left of it beside a shift of all cutpoints; with
        f ≤ 1/4 either of which is 0 at the ends, at most n·r²/8, of two levels n·r²/16."""
        most = 0.25 if len(schema[estimand.outcome].levels) == 2 else 0.5
        return 1 / (most * largest_spread(schema, estimand, rows))

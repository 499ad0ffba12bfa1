"""Cox's model of a table, by Efron's partial likelihood, as R's survival fits it."""

from __future__ import annotations

from penstock.questions.estimands import Estimand
from penstock.questions.fits.newton import KnownMaxima
from penstock.questions.fits.partial_likelihood import find_sandwich, fit_cox
from penstock.questions.fits.table_model import (
    Array,
    Degenerate,
    Fit,
    TableModel,
    count_ones,
    event_share,
    largest_spread,
)
from penstock.questions.models.cox import COX
from penstock.schema import Schema


class CoxTable(TableModel):
    """How it is fitted.

    Args:
        known: what was fitted before; None: nothing is remembered.
    """

    model = COX

    def __init__(self, known: KnownMaxima | None = None) -> None:
        self._known = known

    def count_events(self, outcome: Array, event: Array | None) -> int | None:
        return None if event is None else count_ones(event)

    def fit(self, outcome: Array, event: Array | None, design: Array) -> Fit:
        return self._fit(outcome, event, design, None, robust=False)

    def fit_strata(self, outcome: Array, event: Array | None, design: Array, strata: Array) -> Fit:
        return self._fit(outcome, event, design, strata, robust=False)

    def fit_robust(
        self, outcome: Array, event: Array | None, design: Array, strata: Array | None
    ) -> Fit:
        return self._fit(outcome, event, design, strata, robust=True)

    def _fit(
        self,
        outcome: Array,
        event: Array | None,
        design: Array,
        strata: Array | None,
        *,
        robust: bool,
    ) -> Fit:
        if event is None:  # only the type checker can get here
            raise Degenerate("no event column")
        if not (outcome >= 0).all():
            raise Degenerate("a duration is negative")
        share = event_share(event, design.shape[1], censored=False)
        found = fit_cox(outcome, event, design, strata, self._known)
        return Fit(
            float(found.coefficients[-1]),
            float(found.covariance[-1, -1]),
            found.reached,
            1.0 / (len(outcome) * share),
            float(find_sandwich(outcome, event, design, strata, found)[-1, -1]) if robust else None,
        )

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """The information is a sum over events of the term's weighted variance in the risk set
        (with Efron's weights for ties), at most one event a row: I ≤ n·r²/4.

        A robust variance may be less where hazards are not in proportion; it counts as no less.

        Source: Cox 1975, Biometrika 62, 269–276 (partial likelihood's information).
        """
        return 1 / largest_spread(schema, estimand, rows)

"""The log-linear model of a table of counts, by maximum likelihood."""

from __future__ import annotations

import numpy as np

from penstock.questions.fits.counts import CountTable, start_level
from penstock.questions.fits.newton import Maximum, maximise
from penstock.questions.fits.table_model import Array, Fit
from penstock.questions.models.poisson import POISSON


class PoissonTable(CountTable):
    """Variance = mean (McCullagh & Nelder 1989, chapter 6)."""

    model = POISSON
    family = "Poisson"

    def fit_offset(self, outcome: Array, event: Array | None, design: Array, offset: Array) -> Fit:
        counted = self.require_counts(outcome, design)
        found = fit_poisson(outcome, design, offset)
        return Fit(
            float(found.coefficients[-1]),
            float(found.covariance[-1, -1]),
            found.reached,
            1.0 / counted,
        )


def fit_poisson(outcome: Array, design: Array, offset: Array) -> Maximum:
    """The maximum of the likelihood, as near as steps get to it.

    Args:
        outcome: (n,) counts, not all 0; design: (n, p), an intercept first; offset: (n,).

    Raises:
        LinAlgError: the information is singular.
    """

    def derivatives(beta: Array) -> tuple[float, Array, Array]:
        eta = design @ beta + offset
        mean = np.exp(eta)
        value = float(outcome @ eta - mean.sum())
        return value, design.T @ (outcome - mean), (design * mean[:, None]).T @ design

    return maximise(derivatives, start_level(outcome, design, offset))

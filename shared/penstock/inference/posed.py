"""Regressions of a site's copies, posed and fitted once for all who look at them a second time.

The fits are statsmodels'; the answers' own are those of :mod:`penstock.questions.fits`, which
sites make, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock.questions.estimands import Estimand
from penstock.questions.estimation import Regression, pose_regression
from penstock.questions.fits import TABLE_MODELS
from penstock.questions.fits.newton import KnownMaxima
from penstock.questions.fits.table_model import TableModel
from penstock.schema import Coded, Schema

Array = NDArray[np.float64]
Choose = Callable[[Estimand, Coded], tuple[Estimand, Coded]]

MOST_COPIES, LEAST_COPIES, ENOUGH_ROWS = 5, 3, 20_000
"""That are looked at, of large tables fewer: a ratio is known well from few copies, and one row in
two hundred of so many is persons enough to show a tail."""


@dataclass(frozen=True, slots=True)
class Generalised:
    """A generalised linear model's fit: means (n,), what each row tells of the linear predictor
    (n,), the ratio of the term's variances, Pearson's dispersion, α, and whether it is at its end.
    """

    mean: Array
    weight: Array
    ratio: float
    dispersion: float
    alpha: float
    converged: bool


@dataclass(frozen=True)
class Posed:
    """One copy's regression.

    Attributes:
        estimand: what is fitted; rows: that it is fitted to; regression: as it is fitted, None
            where the rows do not hold it.
        known: what was fitted before.
    """

    estimand: Estimand
    rows: Coded
    regression: Regression | None
    known: KnownMaxima | None = None

    @cached_property
    def generalised(self) -> Generalised | None:
        """Its fit, of a model with an exponential family; None without one."""
        model = TABLE_MODELS.of(self.estimand.model)
        if self.regression is None or model.family is None:
            return None
        try:
            return _fit_generalised(model, self.regression)
        except Exception:  # any numerical library may raise anything on a hostile table
            return None


def pose_copies(
    schema: Schema,
    estimands: Sequence[Estimand],
    copies: Sequence[Coded],
    choose: Choose = lambda estimand, table: (estimand, table),
    known: KnownMaxima | None = None,
) -> dict[str, list[Posed]]:
    """Of each estimand that is a regression's coefficient, by its name: the first copies of one
    site, until they have :data:`ENOUGH_ROWS` together, or are :data:`MOST_COPIES`.

    Args:
        choose: what is fitted, and the rows of a table that it is fitted to; all of them.
        known: what was fitted before.
    """

    def pose(estimand: Estimand, table: Coded) -> Posed:
        asked, rows = choose(estimand, table)
        return Posed(asked, rows, pose_regression(rows, schema, asked), known)

    compared = [e for e in estimands if e.regression.compares]
    rows = len(next(iter(copies[0].values()))) if copies else 0
    enough = max(LEAST_COPIES, -(-ENOUGH_ROWS // max(rows, 1)))
    chosen = copies[: min(MOST_COPIES, enough)]
    return {e.name: [pose(e, table) for table in chosen] for e in compared}


def _fit_generalised(model: TableModel, posed: Regression) -> Generalised:
    """statsmodels' fit of a model with an exponential family.

    Raises:
        Exception: any, of a hostile table.
    """
    # A second to load, which a report without such a regression need not wait for.
    from statsmodels.genmod import families
    from statsmodels.genmod.generalized_linear_model import GLM
    from statsmodels.regression.linear_model import OLS

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        alpha = model.dispersion(posed.outcome, posed.design, posed.offset)
        # Without a dispersion the fit is a Poisson one.
        name = "Poisson" if model.disperses and not alpha else model.family
        family = getattr(families, name or "")(**({"alpha": alpha} if alpha else {}))
        given = (posed.outcome, posed.design)
        if name == "Gaussian":  # the same, in one step
            found = OLS(*given).fit(cov_type="HC0")
            converged, squares = True, found.ssr
        else:
            found = GLM(*given, family=family, offset=posed.offset).fit(cov_type="HC0")
            converged, squares = bool(found.converged), found.pearson_chi2
        own = float(found.scale * found.normalized_cov_params[-1, -1])
        robust = float(np.asarray(found.cov_params())[-1, -1])
        mean = np.asarray(found.fittedvalues)
        return Generalised(
            mean,
            np.asarray(family.weights(mean)),
            robust / own,
            float(squares / found.df_resid),
            alpha,
            converged,
        )

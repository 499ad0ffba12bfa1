r"""Whether a regression's standard error rests on a variance that the tables do not have.

Estimates have the variance that their model gives them: one spread of a linear model's residuals
everywhere, p(1 − p), or a count's mean. Beside it the sandwich, which takes none of that for
granted,

.. math:: \hat V = A^{-1} \Big(\sum_i s_i s_i^\top\Big) A^{-1},

with A the information and s_i the score of row i (HC0). The square root of the two variances' ratio
says how many times as large the standard error should be. Of counts also Pearson's dispersion, 1 by
the model: Σ (y − μ)²/V over n − p, with V the variance of the model, μ or μ + α μ². α is taken as
known, as its own fit has it.

The fits are statsmodels'; the answers' own are those of :mod:`penstock.questions.fits`, which
sites make, too. A table shows only what its mechanism's model holds: a ratio of 1 is no proof.

Sources: Huber 1967, Proc. 5th Berkeley Symposium 1, 221–233; White 1980, Econometrica 48, 817–838.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.questions.estimands import Estimand
from penstock.questions.estimation import Regression, pose_regression
from penstock.questions.fits import TABLE_MODELS
from penstock.questions.fits.table_model import TableModel
from penstock.schema import Coded, Schema

Array = NDArray[np.float64]
Choose = Callable[[Estimand, Coded], tuple[Estimand, Coded]]

LARGE = 1.2
"""The ratio from which a reader is warned."""

MOST_COPIES = 5
"""That are fitted: a ratio is known well from few."""


@dataclass(frozen=True, slots=True)
class Robust:
    """How a regression's variances compare.

    Attributes:
        ratio: of the sandwich's standard error to the model's, of the term.
        dispersion: Pearson's, of a count; else None.
        alpha: of a model whose variance is μ + α μ², the copies' mean; 0: none varies more than a
            Poisson model has it. None of others.
    """

    ratio: float
    dispersion: float | None
    alpha: float | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """One site's, by the estimand's name; estimands without one are not in it."""

    estimands: Mapping[str, Robust]


def check_variances(
    schema: Schema,
    estimands: Sequence[Estimand],
    copies: Sequence[Coded],
    choose: Choose = lambda estimand, table: (estimand, table),
) -> Checked | None:
    """Every regression's, over copies of one site; None where no estimand has one.

    Args:
        choose: what is fitted, and the rows of a table that it is fitted to; all of them.
    """
    posed = {e.name: [choose(e, table) for table in copies[:MOST_COPIES]] for e in estimands}
    found = {
        name: _check(schema, fitted[0][0], [rows for _, rows in fitted])
        for name, fitted in posed.items()
        if fitted
    }
    known = {name: one for name, one in found.items() if one is not None}
    return Checked(known) if known else None


def _check(schema: Schema, estimand: Estimand, copies: Sequence[Coded]) -> Robust | None:
    """The root of the mean ratio of variances, and the mean dispersion, of copies with a fit."""
    if not estimand.regression.compares:
        return None
    model = TABLE_MODELS.of(estimand.model)
    if model.family is None:
        return None
    posed = [pose_regression(copy, schema, estimand) for copy in copies]
    fits = [_fit(model, one) for one in posed if one is not None]
    good = [fit for fit in fits if fit is not None]
    if 2 * len(good) < len(copies) or not good:
        return None
    squares, dispersions, alphas = zip(*good, strict=True)
    dispersion = float(np.mean(dispersions)) if model.counts else None
    alpha = float(np.mean(alphas)) if model.disperses else None
    return Robust(math.sqrt(float(np.mean(squares))), dispersion, alpha)


def _fit(model: TableModel, posed: Regression) -> tuple[float, float, float] | None:
    """The ratio of the term's variances, Pearson's dispersion, and α; None without a fit."""
    try:
        found = fit_generalised(model, posed)
    except Exception:  # any numerical library may raise anything on a hostile table
        return None
    ratio, dispersion = found.ratio, found.dispersion
    known = found.converged and 0 < ratio < math.inf and 0 <= dispersion < math.inf
    return (ratio, dispersion, found.alpha) if known else None


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


def fit_generalised(model: TableModel, posed: Regression) -> Generalised:
    """statsmodels' fit of a model with an exponential family.

    Raises:
        Exception: any, of a hostile table.
    """
    # A second to load, which a report without such a regression need not wait for.
    from statsmodels.genmod import families
    from statsmodels.genmod.generalized_linear_model import GLM

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        alpha = model.dispersion(posed.outcome, posed.design, posed.offset)
        # Without a dispersion the fit is a Poisson one.
        name = "Poisson" if model.disperses and not alpha else model.family
        family = getattr(families, name or "")(**({"alpha": alpha} if alpha else {}))
        given = (posed.outcome, posed.design)
        found = GLM(*given, family=family, offset=posed.offset).fit(cov_type="HC0")
        own = float(found.scale * found.normalized_cov_params[-1, -1])
        robust = float(np.asarray(found.cov_params())[-1, -1])
        mean = np.asarray(found.fittedvalues)
        return Generalised(
            mean,
            np.asarray(family.weights(mean)),
            robust / own,
            float(found.pearson_chi2 / found.df_resid),
            alpha,
            bool(found.converged),
        )

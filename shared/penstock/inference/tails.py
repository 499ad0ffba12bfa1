r"""Whether what is asked of tables hangs on few persons.

A regression on a number with a long tail is decided by those who are far out: in creatinine, or
light chains, one person in two hundred has half of all its variance. Privacy hides just these, and
a model of them errs by more than its refits show, since a refit's rows have the model's own tail.

Of row i the influence on the asked coefficient is, but for a factor that all share,

.. math:: h_i = \tilde x_i r_i

with r the residual (what the row adds to the score of the linear predictor) and x̃ the asked column
less what the others explain of it, weighed by what rows tell (:math:`A^{-1} s_i`, by Frisch, Waugh
and Lovell). Residuals of models without an exponential family are taken as equally large: those of
choices are bounded. How much few rows have of all h² is a doubt
(:mod:`penstock.questions.outliers`), as `scoring` tells it of its answers; all copies count
together, as one table of few persons may not show a tail. At twelve sites of 450 to 6 000 persons
it was .41 and more where coefficients of long tails were off, and below .35 of all others but two
(seventeen tables of ``tests/studies/foreign_real.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.inference.doubts import Doubts
from penstock.inference.posed import Posed
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import Regression
from penstock.questions.fits import TABLE_MODELS
from penstock.questions.fits.partial_likelihood import find_residuals, fit_cox
from penstock.questions.grammar import Factor, read_regressor
from penstock.questions.outliers import join_doubts, share_few
from penstock.schema import NUMBER_KINDS, Coded, Schema

Array = NDArray[np.float64]

_FEWEST = 200
"""Rows of all copies, below which one in two hundred is nobody."""


def doubt_estimates(schema: Schema, posed: Mapping[str, Sequence[Posed]]) -> Doubts:
    """Those of one site's regressions; without what too few rows, or none that can be fitted,
    tell of.

    Args:
        posed: by the estimand's name, of :func:`penstock.inference.posed.pose_copies`.
    """
    found = {name: _doubt(schema, copies) for name, copies in posed.items() if copies}
    return Doubts({name: doubt for name, doubt in found.items() if doubt is not None})


def _doubt(schema: Schema, copies: Sequence[Posed]) -> float | None:
    told = [_influence(one) for one in copies]
    good = [one for one in told if one is not None]
    if not good or sum(len(h) for h, _ in good) < _FEWEST:
        return None
    # Each by its own fit, so that their scales differ by little.
    influences = np.concatenate([h for h, _ in good])
    own = share_few(influences, float(np.mean([telling for _, telling in good])))
    return join_doubts(own, _list_tails(schema, copies[0].estimand, [one.rows for one in copies]))


def _list_tails(schema: Schema, estimand: Estimand, copies: Sequence[Coded]) -> list[float]:
    """Of each number that stands in the regression as it is, what few have of its variance."""
    numbers = {column.name for column in schema.columns if column.kind in NUMBER_KINDS}
    standing = (estimand.target, *map(read_regressor, estimand.adjust))
    plain = {r.column for r in standing if isinstance(r, Factor) and r.column in numbers}
    found = []
    for name in sorted(plain):
        values = np.concatenate([copy[name] for copy in copies])
        known = values[~np.isnan(values)]
        if len(known) >= _FEWEST:
            found.append(share_few(known - known.mean()))
    return found


def _influence(posed: Posed) -> tuple[Array, float] | None:
    """(n,) of each row, and what a row tells on average of the linear predictor; None without a
    fit."""
    regression = posed.regression
    if regression is None:
        return None
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            weighed = _weigh_rows(posed, regression)
            if weighed is None:
                return None
            residual, weight, telling = weighed
            design, strata = regression.design, regression.strata
            if not posed.estimand.regression.intercept:
                design = _centre(design, weight, strata)
            rooted = np.sqrt(weight)
            slopes = np.linalg.lstsq(
                design[:, :-1] * rooted[:, None], design[:, -1] * rooted, rcond=None
            )[0]
            influence = (design[:, -1] - design[:, :-1] @ slopes) * residual
    except Exception:  # any numerical library may raise anything on a hostile table
        return None
    known = np.isfinite(influence).all() and influence.any() and np.isfinite(telling)
    return (influence, telling) if known else None


def _weigh_rows(posed: Posed, one: Regression) -> tuple[Array, Array, float] | None:
    """(n,) residuals, (n,) what each tells of the linear predictor, and that on average, of
    residuals of variance 1 where their scale is estimated; None without a fit."""
    if one.event is not None:
        given = (one.outcome, one.event, one.design, one.strata)
        residual, met = find_residuals(*given, fit_cox(*given, posed.known).coefficients)
        return residual, met, float(one.event.mean())
    if TABLE_MODELS.of(posed.estimand.model).family is None:
        flat = np.ones(len(one.outcome))
        return flat, flat, 1.0
    found = posed.generalised
    if found is None:
        return None
    residual = (one.outcome - found.mean) / (1 + found.alpha * found.mean)
    return residual, found.weight, float(found.weight.mean())


def _centre(design: Array, weight: Array, strata: Array | None) -> Array:
    """Columns less their weighted means in each stratum, in place of an intercept."""
    number = np.zeros(len(design), dtype=np.intp)
    if strata is not None:
        number = np.unique(strata, return_inverse=True)[1]
    whole = np.maximum(np.bincount(number, weight), 1e-300)
    sums = [np.bincount(number, weight * column) / whole for column in design.T]
    return np.asarray(design - np.column_stack(sums)[number])

r"""Whether a regression's standard error rests on a variance that the tables do not have.

Estimates have the variance that their model gives them: one spread of a linear model's residuals
everywhere, p(1 − p), or a count's mean. Beside it the sandwich, which takes none of that for
granted,

.. math:: \hat V = A^{-1} \Big(\sum_i s_i s_i^\top\Big) A^{-1},

with A the information and s_i the score of row i (HC0). The square root of the two variances' ratio
says how many times as large the standard error should be. Of counts also Pearson's dispersion, 1 by
the model: Σ (y − μ)²/V over n − p, with V the variance of the model, μ or μ + α μ². α is taken as
known, as its own fit has it.

The fits are those of :mod:`penstock.inference.posed`. A table shows only what its mechanism's model
holds: a ratio of 1 is no proof.

Sources: Huber 1967, Proc. 5th Berkeley Symposium 1, 221–233; White 1980, Econometrica 48, 817–838.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.inference.posed import Generalised, Posed
from penstock.questions.fits import TABLE_MODELS

LARGE = 1.2
"""The ratio from which a reader is warned."""


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


def check_variances(posed: Mapping[str, Sequence[Posed]]) -> Checked | None:
    """Every regression's, over copies of one site; None where no estimand has one.

    Args:
        posed: by the estimand's name, of :func:`penstock.inference.posed.pose_copies`.
    """
    found = {name: _check(copies) for name, copies in posed.items() if copies}
    known = {name: one for name, one in found.items() if one is not None}
    return Checked(known) if known else None


def _check(copies: Sequence[Posed]) -> Robust | None:
    """The root of the mean ratio of variances, and the mean dispersion, of copies with a fit."""
    model = TABLE_MODELS.of(copies[0].estimand.model)
    if model.family is None:
        return None
    fits = [_compare(one.generalised) for one in copies]
    good = [fit for fit in fits if fit is not None]
    if 2 * len(good) < len(copies) or not good:
        return None
    squares, dispersions, alphas = zip(*good, strict=True)
    dispersion = float(np.mean(dispersions)) if model.counts else None
    alpha = float(np.mean(alphas)) if model.disperses else None
    return Robust(math.sqrt(float(np.mean(squares))), dispersion, alpha)


def _compare(found: Generalised | None) -> tuple[float, float, float] | None:
    """The ratio of the term's variances, Pearson's dispersion, and α; None without a fit."""
    if found is None:
        return None
    ratio, dispersion = found.ratio, found.dispersion
    known = found.converged and 0 < ratio < math.inf and 0 <= dispersion < math.inf
    return (ratio, dispersion, found.alpha) if known else None

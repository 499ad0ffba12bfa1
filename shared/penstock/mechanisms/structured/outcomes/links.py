"""How the mean of a declared regression follows from its linear predictor, by the regression; and
which regressions are of no mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

Array = NDArray[np.float64]

_MOST, _LEAST = 20.0, 1e-9


@dataclass(frozen=True, slots=True)
class Link:
    """
    Args:
        mean: by the linear predictor; slope: of that; predictor: the inverse of the mean.
        standardised: the outcome is taken on its spread, from its mean: a coefficient is then of
            a like size whatever the unit is; a logarithm of a ratio is so by itself.
        own: how many parameters correct the counted shares: their mean's, and a number's spread's.
        dispersed: the variance is μ + α μ², and a residual weighs 1/(1 + α μ) in the score.
    """

    mean: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    predictor: Callable[[Array], Array]
    standardised: bool
    own: int
    dispersed: bool = False


def _exp(predicted: Array) -> Array:
    return np.exp(np.clip(predicted, -_MOST, _MOST))


def _log(mean: Array) -> Array:
    return np.log(np.maximum(mean, _LEAST))


def _bend(predicted: Array) -> Array:
    one = expit(predicted)
    return np.asarray(one * (1 - one))


LINKS: Mapping[str, Link] = {
    "ols": Link(np.asarray, np.ones_like, np.asarray, True, 2),
    "logistic": Link(expit, _bend, lambda m: logit(np.clip(m, _LEAST, 1 - _LEAST)), False, 1),
    "poisson": Link(_exp, _exp, _log, False, 2),
    "negative-binomial": Link(_exp, _exp, _log, False, 2, dispersed=True),
}
"""By the name of a model of :data:`penstock.questions.models.MODELS`."""

PLACED = ("ordinal",)
"""Of levels by their places (:mod:`.proportional`), each within cutpoints: there is no mean."""

CONTRASTED = ("multinomial",)
"""Of each level against the first (:mod:`.contrasts`): there are several."""


def count_own(regression: str) -> int:
    """How many parameters a model of such a regression has beside the design's coefficients."""
    if regression in CONTRASTED:
        return 0
    return 1 if regression in PLACED else LINKS[regression].own

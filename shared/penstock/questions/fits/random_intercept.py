r"""The slope of a number over time, by a linear model with an intercept of each person's own.

.. math:: y_{ij} = α + γ^T x_{ij} + β t_{ij} + b_i + e_{ij},\qquad b_i \sim N(0, λσ²),\
    e_{ij} \sim N(0, σ²)

with x what is adjusted for, which may vary within persons or not, by restricted maximum likelihood.
With one variance ratio λ everything else has a closed form from sums over persons, since
:math:`(I + λ 11')^{-1} = I - \frac{λ}{1 + n_i λ} 11'`: a table of 4 000 persons takes milliseconds,
which as many refits as a report has need. The variance of β̂ is the sandwich over persons, which
holds where persons differ in their slopes, too.

Sources: Patterson & Thompson 1971, Biometrika 58, 545–554; Laird & Ware 1982, Biometrics 38,
963–974; Liang & Zeger 1986, Biometrika 73, 13–22.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.questions.estimands import Estimand
from penstock.questions.fits.course_model import CourseModel
from penstock.questions.fits.table_model import (
    Array,
    Degenerate,
    Fit,
    largest_spread,
    require_spread,
    rounding_variance,
)
from penstock.questions.models.longitudinal import MIXED
from penstock.schema import Schema

MOST_RATIO = 1e8
"""Of λ: beyond it, persons are as good as straight lines."""


@dataclass(frozen=True, slots=True)
class RandomIntercept:
    """A fit.

    Attributes:
        coefficients: (p,); covariance: (p, p), by the model; sandwich: (p, p), over persons.
        residual: σ²; ratio: λ.
    """

    coefficients: Array
    covariance: Array
    sandwich: Array
    residual: float
    ratio: float


def fit_random_intercept(
    outcome: Array, design: Array, person: NDArray[np.intp]
) -> RandomIntercept:
    """The fit to rows (n,), by design columns (n, p) of full rank.

    Args:
        person: (n,) from 0, whose row it is; everybody has one at least.

    Raises:
        Degenerate: nobody has two rows, or nothing is left to vary within persons.
    """
    from scipy.optimize import brentq

    rows = np.bincount(person).astype(np.float64)
    if not rows.max() > 1:
        raise Degenerate("nobody has two rows")
    sums = _by_person(person, design)
    squares, whole = design.T @ design, _by_person(person, outcome[:, None])[:, 0]
    free = len(outcome) - design.shape[1]

    def solve(ratio: float) -> tuple[Array, Array, Array, float]:
        """The information, β̂, persons' summed residuals, and the residual sum of squares."""
        pull = ratio / (1 + rows * ratio)
        information = squares - (sums * pull[:, None]).T @ sums
        known = design.T @ outcome - sums.T @ (pull * whole)
        found = np.linalg.solve(information, known).astype(np.float64)
        rest = outcome - design @ found
        own = _by_person(person, rest[:, None])[:, 0]
        return information, found, own, float(rest @ rest - pull @ own**2)

    def score(ratio: float) -> float:
        """Of −2 log likelihood, by λ."""
        information, _, own, left = solve(ratio)
        bend = 1 / (1 + rows * ratio) ** 2
        trace = float(np.trace(np.linalg.solve(information, (sums * bend[:, None]).T @ sums)))
        drawn = float((rows / (1 + rows * ratio)).sum())
        pulled = float(np.sum(bend * own**2))
        return float(drawn - trace - free * pulled / left)

    ratio, top = 0.0, 1.0
    if score(0.0) < 0:
        while score(top) < 0:
            top *= 10
            if top > MOST_RATIO:
                raise Degenerate("nothing varies within persons beside the slope")
        ratio = float(brentq(score, 0.0, top, xtol=1e-14, rtol=1e-14))
    information, found, own, left = solve(ratio)
    if not left > 0:
        raise Degenerate("nothing varies within persons beside the slope")
    inverse = np.linalg.inv(information)
    rest, pull = outcome - design @ found, ratio / (1 + rows * ratio)
    scores = _by_person(person, design * rest[:, None]) - sums * (pull * own)[:, None]
    residual = left / free
    return RandomIntercept(
        found, residual * inverse, inverse @ (scores.T @ scores) @ inverse, residual, ratio
    )


def _by_person(person: NDArray[np.intp], columns: Array) -> Array:
    """(m, p) the sums of each person's rows."""
    sums = [np.bincount(person, each) for each in columns.T]
    return np.stack(sums, axis=1).astype(np.float64)


class MixedCourse(CourseModel):
    model = MIXED

    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        outcome, time, design, person = values
        spread, scale = float(outcome.std()), float(time.std())
        require_spread(outcome, spread)
        require_spread(time, scale)
        _, place = np.unique(person, return_inverse=True)
        found = fit_random_intercept(outcome / spread, design, place)
        factor = spread * estimand.per / scale
        variance = float(found.sandwich[-1, -1])
        return Fit(float(found.coefficients[-1]) * factor, variance * factor**2, True, None)

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """As of a linear model, whose slope sees differences between persons, too."""
        spread = largest_spread(schema, estimand, rows)
        return rounding_variance(schema[estimand.outcome]) / spread

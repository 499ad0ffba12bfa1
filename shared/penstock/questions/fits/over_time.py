r"""Numbers of persons at a time, and between two: quantiles, shares, changes, transitions.

Shares and transitions are on the scale of the empirical logit, which small cells leave finite,

.. math:: \log\frac{k + ½}{n - k + ½},\qquad
          \mathrm{var} = \frac{1}{k + ½} + \frac{1}{n - k + ½}

(Gart & Zweifel 1967, Biometrika 54, 181–187); correlations on Fisher's z, with the variance that
holds whatever the distribution: with u, v standardised, of

.. math:: \psi = \frac{uv - r (u^2 + v^2)/2}{1 - r^2},\qquad \mathrm{var}\ z = \frac{1}{n - 3}\
          \overline{\psi^2}

(Steiger & Hakstian 1982, British Journal of Mathematical and Statistical Psychology 35, 208–215),
which is Fisher's 1/(n − 3) where both are normal.
"""

from __future__ import annotations

import math

import numpy as np

from penstock.questions.estimands import Estimand
from penstock.questions.fits.course_model import CourseModel
from penstock.questions.fits.mean import MeanTable
from penstock.questions.fits.table_model import (
    Array,
    Degenerate,
    Fit,
    require_spread,
    rounding_variance,
)
from penstock.questions.models.longitudinal import (
    CHANGE,
    CHANGE_SD,
    CORRELATION,
    QUANTILE,
    SHARE,
    TRANSITION,
)
from penstock.schema import Schema

NORMAL = 1.959964
"""Of a 95 % interval."""

_LEAST_SHAPE = 0.01
"""Of the variances of log sd and of z, times persons: those of normal numbers are ½ and 1, and real
ones are not a fiftieth of that. What honest data have, not a theorem."""


class QuantileCourse(CourseModel):
    model = QUANTILE

    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        r"""The sample quantile, linear between order statistics, and Woodruff's standard error:

        .. math:: \frac{\hat Q(p + h) - \hat Q(p - h)}{2 × 1.96},\qquad
                  h = 1.96 \sqrt{p (1 - p)/n}.

        On a grid the quantile often stands at one end of that interval, and half of its length does
        not reach the other: there the standard error is the longer side's, over 1.96, so that what
        is symmetric about the quantile holds all of the interval. Where all of that is one value,
        it is the step's own, step/√12. (With halves, intervals of ages, counts of nodes and
        creatinine of real tables held the quantile in as few as .60; so in .97 and more.)

        Source: Woodruff 1952, JASA 47, 635–646.
        """
        (y,), p = values, estimand.probability or 0.5
        reach = NORMAL * math.sqrt(p * (1 - p) / len(y))
        if not reach < min(p, 1 - p):
            raise Degenerate(f"too few persons for so small a share: {len(y)}")
        value, step = float(np.quantile(y, p)), rounding_variance(schema[estimand.outcome])
        low, high = (float(end) for end in np.quantile(y, [p - reach, p + reach]))
        half = max(high - value, value - low) if step > 0 else (high - low) / 2
        variance = max((half / NORMAL) ** 2, step)
        if not variance > 0:
            raise Degenerate("many values are equal around the quantile")
        return Fit(value, variance, True, None)

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """A quantile on a grid is not known better than its step."""
        return rounding_variance(schema[estimand.outcome])


class ShareCourse(CourseModel):
    model = SHARE

    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        y, outcome = values[0], schema[estimand.outcome]
        if estimand.outcome_level is not None:
            there = y == outcome.levels.index(estimand.outcome_level)
            return fit_logit(int(there.sum()), len(y))
        threshold = estimand.threshold or 0.0
        beyond = y > threshold if estimand.direction == "above" else y < threshold
        return fit_logit(int(beyond.sum()), len(y))

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        return logit_floor(rows)


class ChangeCourse(CourseModel):
    model = CHANGE

    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        """The mean of persons' later value less their earlier one, and s²/n."""
        return MeanTable().fit(values[1] - values[0], None, np.ones((len(values[0]), 1)))

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """As of a mean: both values are on the outcome's grid."""
        outcome = schema[estimand.outcome]
        if outcome.kind != "continuous":
            return 1.0 / rows**2
        return 2 * rounding_variance(outcome) / rows


class ChangeSdCourse(CourseModel):
    model = CHANGE_SD

    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        r"""log s of persons' changes, whose variance is (κ − (n − 3)/(n − 1))/(4n) with κ the
        fourth moment of the standardised changes (Cramér 1946, section 27.4)."""
        change = values[1] - values[0]
        n, spread = len(change), float((values[1] - values[0]).std(ddof=1))
        require_spread(change, spread)
        shape = float(np.mean(((change - change.mean()) / spread) ** 4))
        variance = max((shape - (n - 3) / (n - 1)) / (4 * n), _LEAST_SHAPE / n)
        return Fit(math.log(spread), variance, True, None)

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        return _LEAST_SHAPE / rows


class CorrelationCourse(CourseModel):
    model = CORRELATION

    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        u, v = (_standardised(each) for each in values)
        r, n = float(np.mean(u * v)), len(u)
        if not abs(r) < 1 - 1e-12:
            raise Degenerate("the one is a linear function of the other")
        moved = (u * v - r * (u * u + v * v) / 2) / (1 - r * r)
        variance = max(float(np.mean(moved**2)), _LEAST_SHAPE) / (n - 3)
        return Fit(math.atanh(r), variance, True, None)

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        return _LEAST_SHAPE / rows


class TransitionCourse(CourseModel):
    model = TRANSITION

    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        """Of those at ``level`` before, who alone are given, how many are at ``outcome_level``."""
        after = values[1] == schema[estimand.outcome].levels.index(estimand.outcome_level or "")
        return fit_logit(int(after.sum()), len(after))

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        return logit_floor(rows)


def fit_logit(reached: int, of: int) -> Fit:
    """The empirical logit of a share, and its variance; finite for 0 and for all."""
    yes, no = reached + 0.5, of - reached + 0.5
    return Fit(math.log(yes / no), 1 / yes + 1 / no, True, None)


def logit_floor(rows: int) -> float:
    """The least variance of :func:`fit_logit` of so many: where half of them have it."""
    return 4.0 / (rows + 1)


def _standardised(values: Array) -> Array:
    spread = float(values.std())
    require_spread(values, spread)
    return np.asarray((values - values.mean()) / spread)

r"""Accelerated failure times: the logarithm of a duration is linear in columns, with censoring.

.. math:: \log T = x^T β + σ ε,

with ε Gumbel's of the least (T is Weibull's: its hazard ratio is e^{−β/σ}) or standard normal (T is
log-normal). e^β is by how much a time is stretched per unit. The likelihood of a row is f^d S^{1−d}
at z = (log t − xᵀβ)/σ. In γ = β/σ and τ = 1/σ, where z = τ log t − xᵀγ, its logarithm is concave
for both laws, so that Newton's steps end at the one maximum; the variance of β = γ/τ is the delta
method's, which at a maximum is that of the inverse observed information in (β, log σ), too.

A time of 0 on a grid stands for less than half a step, and is taken to be a quarter of one.

Source: Kalbfleisch & Prentice 2002, "The Statistical Analysis of Failure Time Data", 2nd ed.,
sections 2.3 and 3.6; Burridge 1981, JRSS B 43, 41–45 (concavity).
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np
from scipy.special import log_ndtr

from penstock.questions.estimands import Estimand
from penstock.questions.fits.course_model import CourseModel
from penstock.questions.fits.newton import Derivatives, maximise
from penstock.questions.fits.table_model import (
    Array,
    Degenerate,
    Fit,
    event_share,
    largest_spread,
    require_spread,
)
from penstock.questions.models.comparisons import LOG_NORMAL, WEIBULL
from penstock.schema import Column, Schema

_ZERO = 0.25
"""Of a step: where a time stands that was rounded to 0, the middle of its half."""


class _FailureCourse(CourseModel):
    """Values are the duration, its event, and the design (n, p), the term last."""

    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        time, event, design = values
        event_share(event, design.shape[1], censored=False)
        y = np.log(_require_positive(time, schema[estimand.outcome]))
        require_spread(y - y.mean() + 1.0, float(y.std()))
        found = maximise(self._derive(y, event, design), self._start(y, design))
        if not found.reached:
            raise Degenerate("the fit did not converge")
        gamma, tau = float(found.coefficients[-2]), float(found.coefficients[-1])
        slope = np.zeros(len(found.coefficients))
        slope[-2:] = 1 / tau, -gamma / tau**2
        variance = float(slope @ found.covariance @ slope)
        return Fit(gamma / tau, variance, True, 1 / (tau**2 * float(event.sum())))

    def _derive(self, y: Array, event: Array, design: Array) -> Derivatives:
        stacked = np.column_stack([-design, y])
        events = float(event.sum())

        def derivatives(theta: Array) -> tuple[float, Array, Array]:
            tau = float(theta[-1])
            if not tau > 0:
                return -math.inf, np.zeros(len(theta)), np.eye(len(theta))
            value, slope, bend = self.law(stacked @ theta, event)
            score = stacked.T @ slope
            score[-1] += events / tau
            information = (stacked * bend[:, None]).T @ stacked
            information[-1, -1] += events / tau**2
            return value + events * math.log(tau), score, information

        return derivatives

    def _start(self, y: Array, design: Array) -> Array:
        start = np.zeros(design.shape[1] + 1)
        start[-1] = 1 / float(y.std())
        start[0] = float(y.mean()) * start[-1]
        return start

    @abstractmethod
    def law(self, z: Array, event: Array) -> tuple[float, Array, Array]:
        """Of log f at events and log S at others, at z (n,): the sum, the slopes (n,), and the
        negative second derivatives (n,)."""

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """σ² is taken to be at least what a step of the grid is of the longest duration, squared,
        over 12; then as of a linear model. Without a grid there is no floor."""
        outcome = schema[estimand.outcome]
        if outcome.grid is None:
            return 0.0
        step = _find_step(outcome) / outcome.bounds[1]
        return step**2 / 12 / largest_spread(schema, estimand, rows)


class WeibullCourse(_FailureCourse):
    model = WEIBULL

    def law(self, z: Array, event: Array) -> tuple[float, Array, Array]:
        hazard = np.exp(z)
        return float(event @ z - hazard.sum()), event - hazard, hazard


class LogNormalCourse(_FailureCourse):
    model = LOG_NORMAL

    def law(self, z: Array, event: Array) -> tuple[float, Array, Array]:
        left = log_ndtr(-z)
        mills = np.exp(-0.5 * z * z - 0.5 * math.log(2 * math.pi) - left)
        value = np.where(event > 0, -0.5 * z * z, left)
        slope = np.where(event > 0, -z, -mills)
        bend = np.where(event > 0, 1.0, mills * (mills - z))
        return float(value.sum()), slope, bend


def _require_positive(time: Array, outcome: Column) -> Array:
    """(n,) durations above 0."""
    if not (time >= 0).all():
        raise Degenerate("a duration is negative")
    if (time > 0).all():
        return time
    if outcome.grid is None:
        raise Degenerate("a duration is 0, which has no logarithm")
    return np.where(time > 0, time, _ZERO * _find_step(outcome))


def _find_step(outcome: Column) -> float:
    return 10.0 ** -(outcome.decimals or 0)

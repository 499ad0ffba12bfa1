r"""Risks of everybody having one level of a column, against its first: g-computation.

.. math:: \hat p_a = \frac1n \sum_i \operatorname{expit}(x_i(a)^T \hat β),\qquad
          \hat p_1 - \hat p_0 \ \text{or}\ \log \hat p_1 - \log \hat p_0

with β̂ of a logistic model by maximum likelihood and x_i(a) row i's design with the term at a. The
variance is the delta method's, gᵀ V g with V the inverse information and g the gradient by β: of
the rows as they are, whose covariates are not taken to vary. Without covariates it is that of two
shares, p(1 − p)/n of each arm.

Source: Robins 1986, Mathematical Modelling 7, 1393–1512; Flanders & Rhodes 1987, Journal of Chronic
Diseases 40, 697–704.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np

from penstock.questions.estimands import Estimand
from penstock.questions.fits.course_model import CourseModel
from penstock.questions.fits.logistic import maximise_logistic
from penstock.questions.fits.table_model import Array, Degenerate, Fit, event_share
from penstock.questions.models.comparisons import RISK_DIFFERENCE, RISK_RATIO
from penstock.schema import Schema

_RARE = 1e-7
"""A risk that is nearer to 0 or 1 than this: of an arm without an event, or without another row."""


class _RiskCourse(CourseModel):
    """Values are the outcome (n,), the design (n, p), and the design with the term at its first
    level and at the one that is asked for."""

    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        outcome, design, *arms = values
        event_share(outcome, design.shape[1] - 1)
        found = maximise_logistic(outcome, design)
        if not found.reached:
            raise Degenerate("the fit did not converge (separation?)")
        risks, slopes = [], []
        for arm in arms:
            risk = 1 / (1 + np.exp(-(arm @ found.coefficients)))
            risks.append(float(risk.mean()))
            slopes.append((arm * (risk * (1 - risk))[:, None]).mean(axis=0))
        if not _RARE < min(risks) <= max(risks) < 1 - _RARE:
            raise Degenerate("nobody has the event at a level of the term, or everybody")
        value, gradient = self.contrast(risks, slopes)
        return Fit(value, float(gradient @ found.covariance @ gradient), True, None)

    @abstractmethod
    def contrast(self, risks: list[float], slopes: list[Array]) -> tuple[float, Array]:
        """The estimate and its gradient (p,), of the risks at both levels and theirs (p,)."""

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """2/n². Of two shares k/m with 0 < k < m, m of n rows, k(m − k)/m³ and (m − k)/(k m) are
        each at least 1/n². Adjusted risks are taken to be known no better."""
        return 2.0 / rows**2


class RiskDifferenceCourse(_RiskCourse):
    model = RISK_DIFFERENCE

    def contrast(self, risks: list[float], slopes: list[Array]) -> tuple[float, Array]:
        return risks[1] - risks[0], slopes[1] - slopes[0]


class RiskRatioCourse(_RiskCourse):
    model = RISK_RATIO

    def contrast(self, risks: list[float], slopes: list[Array]) -> tuple[float, Array]:
        gradient = slopes[1] / risks[1] - slopes[0] / risks[0]
        return math.log(risks[1] / risks[0]), gradient

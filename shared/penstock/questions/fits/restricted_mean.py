r"""The mean time without the event until a bound: the area under Kaplan and Meier's curve.

.. math:: \hat μ(τ) = \int_0^τ \hat S(t)\,dt,\qquad
          \mathrm{var} = \sum_{t_j \le τ} \frac{d_j\, A_j^2}{n_j (n_j - d_j)},\quad
          A_j = \int_{t_j}^τ \hat S(t)\,dt

with n_j at risk at the time t_j of d_j events; who leaves at it is at risk. It carries the
duration's unit. The variance is Greenwood's, without the factor D/(D − 1) that some give it; R's
``survfit`` has the same.

Source: Klein & Moeschberger 2003, "Survival Analysis", 2nd ed., equations 4.5.1 and 4.5.2; Irwin
1949, Journal of Hygiene 47, 188–189.
"""

from __future__ import annotations

import numpy as np

from penstock.questions.estimands import Estimand
from penstock.questions.fits.course_model import CourseModel
from penstock.questions.fits.kaplan_meier import count_events
from penstock.questions.fits.table_model import Array, Degenerate, Fit, rounding_variance
from penstock.questions.models.longitudinal import RMST
from penstock.schema import Schema


class RestrictedMeanCourse(CourseModel):
    """Values are the duration and its event."""

    model = RMST

    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        time, event = values
        return Fit(*restrict_mean(time, event, float(estimand.until or 0)), True, None)

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """As of a mean of numbers on the duration's grid; without a grid there is no floor."""
        return rounding_variance(schema[estimand.outcome]) / rows


def restrict_mean(time: Array, event: Array, bound: float) -> tuple[float, float]:
    """The mean until a bound, and its variance.

    Args:
        time, event: (n,) each, complete; bound: τ, above 0.

    Raises:
        Degenerate: nobody is followed until the bound, past the last time the curve is unknown; or
            nobody has the event before it.
    """
    if not (time >= 0).all():
        raise Degenerate("a duration is negative")
    happened = (event > 0) & (time < bound)
    times, events, risk = count_events(time, happened)
    if not len(times):
        raise Degenerate("nobody has the event before the bound")
    survived = np.cumprod(1 - events / risk)
    if time.max() < bound and survived[-1] > 0:
        raise Degenerate("nobody is followed until the bound")
    widths = np.diff(np.append(times, bound))
    after = np.cumsum((survived * widths)[::-1])[::-1]
    mean = float(times[0] + after[0])
    left = risk > events  # nothing is left to err once all have had it
    hazard = events[left] / (risk[left] * (risk[left] - events[left]))
    return mean, float(hazard @ after[left] ** 2)

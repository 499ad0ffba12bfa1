r"""Kaplan and Meier's share without the event at a time, on the scale of the logit.

.. math:: \hat S(t) = \prod_{t_j \le t} \Big(1 - \frac{d_j}{n_j}\Big), \qquad
          \mathrm{var}\,\mathrm{logit}\,\hat S = \frac{1}{(1 - \hat S)^2}
          \sum_{t_j \le t} \frac{d_j}{n_j (n_j - d_j)}

with n_j at risk at the time t_j of d_j events; who leaves at it is at risk. The variance is
Greenwood's.

Source: Kaplan & Meier 1958, JASA 53, 457–481; Kalbfleisch & Prentice 1980, section 1.4.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from penstock.questions.estimands import Estimand
from penstock.questions.fits.course_model import CourseModel
from penstock.questions.fits.over_time import logit_floor
from penstock.questions.fits.table_model import Array, Degenerate, Fit
from penstock.questions.models.longitudinal import SURVIVAL
from penstock.schema import Schema

Bools = NDArray[np.bool_]
Counts = NDArray[np.intp]


class SurvivalCourse(CourseModel):
    """Values are the duration and its event."""

    model = SURVIVAL

    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        (time, event), at = values, float(estimand.at or 0)
        if not (time >= 0).all():
            raise Degenerate("a duration is negative")
        happened = (event > 0) & (time <= at)
        _, events, risk = count_events(time, happened)
        if not len(events):
            raise Degenerate("nobody has the event until then")
        if risk[-1] == events[-1]:
            raise Degenerate("everybody who was followed has the event by then")
        survived = float(np.exp(np.log1p(-events / risk).sum()))
        greenwood = float((events / (risk * (risk - events))).sum())
        variance = greenwood / (1 - survived) ** 2
        return Fit(math.log(survived / (1 - survived)), variance, True, None)

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """As of a share: who leaves only takes information away."""
        return logit_floor(rows)


def count_events(time: Array, event: Array | Bools) -> tuple[Array, Counts, Counts]:
    """The times at which somebody has an event, in order, how many have it then, and how many are
    at risk: whoever leaves at such a time is.

    Args:
        time: (n,), ≥ 0; event: (n,), 0 or 1.
    """
    moments, events = np.unique(time[event > 0], return_counts=True)
    return moments, events, len(time) - np.searchsorted(np.sort(time), moments, side="left")

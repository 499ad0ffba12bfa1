r"""Events per time that rows were followed, on the scale of the logarithm.

.. math:: \hat λ = \frac{\sum d_i}{\sum t_i},\qquad
          \mathrm{var} \log \hat λ = \frac{\sum (d_i - \hat λ t_i)^2}{(\sum d_i)^2}

with d_i 1 where row i has the event and t_i its time; until a time, both are those until then. The
variance is the delta method's, which holds whatever events and times have to do with each other: it
is the sandwich of a Poisson model with the offset log t_i (Huber 1967). Where the hazard is
constant it is about 1/Σ d_i.
"""

from __future__ import annotations

import math

import numpy as np

from penstock.questions.estimands import Estimand
from penstock.questions.fits.course_model import CourseModel
from penstock.questions.fits.table_model import Array, Degenerate, Fit
from penstock.questions.models.longitudinal import RATE
from penstock.schema import Schema

_LEAST_SHAPE = 0.01
"""Of the variance, times rows: a rate of which all rows have the event is the inverse of a mean
time, and times that vary by less than a tenth of it are not those of events. What honest data have,
not a theorem."""


class RateCourse(CourseModel):
    """Values are the duration and its event."""

    model = RATE

    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        time, event = values
        if not (time >= 0).all():
            raise Degenerate("a duration is negative")
        happened = event > 0
        if estimand.until is not None:
            happened = happened & (time <= float(estimand.until))
            time = np.minimum(time, float(estimand.until))
        events, followed = float(happened.sum()), float(time.sum())
        if not events:
            raise Degenerate("nobody has the event")
        if not followed > 0:
            raise Degenerate("nobody is followed")
        rest = happened - events / followed * time
        variance = float(rest @ rest) / events**2
        return Fit(math.log(events / followed * estimand.per), variance, True, None)

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        return _LEAST_SHAPE / rows

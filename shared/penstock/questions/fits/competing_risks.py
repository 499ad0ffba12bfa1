r"""Aalen and Johansen's share with the event by a time, where another event may end the follow-up.

.. math:: \hat F(t) = \sum_{t_j \le t} \hat S(t_j^-) \frac{d_{1j}}{n_j}, \qquad
          \hat S(t) = \prod_{t_j \le t} \Big(1 - \frac{d_{1j} + d_{2j}}{n_j}\Big),

with n_j at risk at the time t_j of d_1j events and d_2j competing ones; who leaves at it is at
risk. With p_j = (F̂(t) − F̂(t_j))/Ŝ(t_j), the share that still has the event by t of those who are
left after t_j, and each time's numbers multinomial,

.. math:: \mathrm{var}\, \hat F(t) = \sum_{t_j \le t} \frac{\hat S(t_j^-)^2}{n_j^3} \big[
          (1 - p_j)^2 d_{1j} (n_j - d_{1j}) + p_j^2 d_{2j} (n_j - d_{2j})
          + 2 p_j (1 - p_j) d_{1j} d_{2j} \big],

which is Greenwood's where nothing competes, and F(1 − F)/n where everybody is followed. lifelines'
``AalenJohansenFitter`` has the same formula (Collett's), and jitters times at which both kinds of
event lie; here ties are exact, as R's multistate ``survfit`` has them, with this error.

Source: Aalen & Johansen 1978, Scandinavian Journal of Statistics 5, 141–150; Andersen, Borgan, Gill
& Keiding 1993, "Statistical Models Based on Counting Processes", equation 4.4.20; Gaynor et al.
1993, JASA 88, 400–409.
"""

from __future__ import annotations

import math

import numpy as np

from penstock.questions.estimands import Estimand
from penstock.questions.fits.course_model import CourseModel
from penstock.questions.fits.over_time import logit_floor
from penstock.questions.fits.table_model import Array, Degenerate, Fit
from penstock.questions.models.longitudinal import CUMULATIVE_INCIDENCE
from penstock.schema import Schema


class IncidenceCourse(CourseModel):
    """Values are the duration, its event, and whether a competing event ended it; on the scale of
    the logit. A row with both events has had the event."""

    model = CUMULATIVE_INCIDENCE

    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        (time, event, competing), at = values, float(estimand.at or 0)
        share, variance = find_incidence(time, event, competing, at)
        scale = share * (1 - share)
        return Fit(math.log(share / (1 - share)), variance / scale**2, True, None)

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """As of a share: who leaves only takes information away."""
        return logit_floor(rows)


def find_incidence(time: Array, event: Array, competing: Array, at: float) -> tuple[float, float]:
    """The share with the event by a time, between 0 and 1, and its variance.

    Args:
        time, event, competing: (n,) each, complete; who has both has had the event.

    Raises:
        Degenerate: nobody has the event until then, or everybody; or nobody is followed until then,
            past the last time the share is unknown.
    """
    if not (time >= 0).all():
        raise Degenerate("a duration is negative")
    had = (event > 0) & (time <= at)
    ended = (competing > 0) & ~(event > 0) & (time <= at)
    if not had.any():
        raise Degenerate("nobody has the event until then")
    times = np.unique(time[had | ended])
    events, others = (
        np.diff(np.searchsorted(np.sort(time[kind]), np.append(times, np.inf)))
        for kind in (had, ended)
    )
    risk = len(time) - np.searchsorted(np.sort(time), times, side="left")
    survived = np.cumprod(1 - (events + others) / risk)
    if time.max() < at and survived[-1] > 0:
        raise Degenerate("nobody is followed until the time")
    before = np.append(1.0, survived[:-1])
    risen = np.cumsum(before * events / risk)
    share = float(risen[-1])
    if not share < 1 - 1e-12:
        raise Degenerate("everybody who was followed has the event by then")
    # After a time at which nobody is left nothing depends on p.
    later = (share - risen) / np.where(survived > 0, survived, 1.0)
    own = (1 - later) ** 2 * events * (risk - events) + later**2 * others * (risk - others)
    both = 2 * later * (1 - later) * events * others
    return share, float((before**2 * (own + both) / risk.astype(np.float64) ** 3).sum())

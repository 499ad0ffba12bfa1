r"""Events per time, of one release of four sums; u is a row's time over the last one, d its event.

.. math:: \sum d,\qquad ½ \sum u,\qquad ¼ \sum d u,\qquad ¼ \sum u^2

The first two are the rate; the others say how events and times go together, of which the sampling
error is,

.. math:: \mathrm{var} \log \hat λ = \frac{r}{\sum d},\qquad
          r = 1 - 2 \frac{\sum d u}{\sum u} + \frac{\sum d \sum u^2}{(\sum u)^2},

the delta method's (:mod:`penstock.questions.fits.person_time`). Of a constant hazard r is 1, and
what noise hides of it is taken to be: r is drawn to 1 as far as its noise is above what it usually
differs from it. Half the time, and no more, is nearly the best weight where a fifth of the rows
have the event: events are few, and their noise is what counts.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.scoring.descriptions import Description
from penstock.mechanisms.scoring.tallies import LEAST_SEEN, NORMAL, Tally, Told
from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]

_WEIGHTS = (1.0, 0.5, 0.25, 0.25)
_USUAL = 0.3
"""By about how much r differs from 1."""
_LEAST_SHAPE, _MOST_SHAPE = 0.1, 4.0


class RateTally(Tally):
    """Sums of events and times until the end that is asked for."""

    unit = 2.0**-16

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        until = description.estimands[0].until
        self._end = description.outcome.bounds[1] if until is None else float(until)

    @property
    def size(self) -> int:
        return len(_WEIGHTS)

    @property
    def squared(self) -> Fraction:
        """Of an event at the end, where all four are largest."""
        whole = [round(weight / self.unit) for weight in _WEIGHTS]
        return Fraction(sum(part**2 for part in whole)) * Fraction(self.unit) ** 2

    def add_up(self, coded: Coded, members: Bools) -> Whole:
        if self.description.event is None:
            raise TypeError("a rate is of a duration with its event")
        time = np.where(members, coded[self.description.outcome.name], 0.0) / self._end
        event = np.where(members, coded[self.description.event.name], 0.0) > 0
        happened = (event & (time <= 1.0)).astype(np.float64)
        time = np.clip(time, 0.0, 1.0)
        parts = np.array([happened, time, happened * time, time**2])
        whole = np.rint(parts * np.array(_WEIGHTS)[:, None] / self.unit).astype(np.int64)
        return np.asarray((whole * members).sum(axis=1))

    def tell(self, noisy: Array, sd: float) -> Told:
        weights = np.array(_WEIGHTS)
        events = max(float(noisy[0]), LEAST_SEEN * sd, 1.0)
        followed = max(float(noisy[1]) / weights[1], LEAST_SEEN * sd / weights[1])
        both, squares = (float(part) for part in noisy[2:] / weights[2:])
        # As of a share near 0: noise reaches further down than up.
        end = max(events - NORMAL * sd, min(0.2, events / 2))
        down = math.log(events / end) / NORMAL
        noise = down**2 + (sd / weights[1] / followed) ** 2
        shape = 1 - 2 * both / followed + events * squares / followed**2
        slopes = np.array(
            [
                squares / followed**2,
                (2 * both - 2 * events * squares / followed) / followed**2,
                -2 / followed,
                events / followed**2,
            ]
        )
        hidden = (sd * float(np.linalg.norm(slopes / weights)) / _USUAL) ** 2
        shape = float(np.clip(1 + (shape - 1) / (1 + hidden), _LEAST_SHAPE, _MOST_SHAPE))
        rate = math.log(events / (followed * self._end))
        told = np.array([rate + math.log(e.per) for e in self.description.estimands])
        ones = np.ones((len(told),) * 2)
        return told, ones * noise, ones * shape / events

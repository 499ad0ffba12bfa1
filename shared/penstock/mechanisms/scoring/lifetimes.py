r"""Survival at times, from noisy counts of who has the event and who leaves in each interval; and
how many have the event until times.

With d_j events and c_j rows that leave without one in interval j, r_j who come to it, and half of
those who leave taken to be at risk,

.. math:: \hat S(t) = \prod_{j: t_j \le t} (1 - q_j),\qquad q_j = \frac{d_j}{r_j - c_j/2},\qquad
          \mathrm{var} \log \hat S = \sum_j \frac{q_j}{(r_j - c_j/2)(1 - q_j)},

the actuarial estimate and Greenwood's variance, on the scale of the logit; the noise on all counts
is carried on to first order. The times that are asked for end intervals, and events at them count:
of times within an interval nothing is known.

Sources: Cutler & Ederer 1958, Journal of Chronic Diseases 8, 699–712; Greenwood 1926.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.scoring.descriptions import Description
from penstock.mechanisms.scoring.tallies import LEAST_SEEN, Tally, Told, keep_inside, rescale
from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]

INTERVALS_ASKED = 5
"""Of the time until the last one that is asked for, nearly; more between times that are many. Each
has its noise: few are enough where rows leave evenly within them."""

_MOST_HAZARD = 0.95
"""Of those who come to an interval, who have the event in it."""


class SurvivalTally(Tally):
    """Events, then rows that leave, in each interval; last, who is left at the end of them."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        asked = sorted({float(e.at or 0) for e in description.estimands})
        ends = list[float]()
        for begin, end in zip([0.0, *asked], asked, strict=False):
            parts = max(1, round(INTERVALS_ASKED * (end - begin) / asked[-1]))
            ends += [begin + (end - begin) * (i + 1) / parts for i in range(parts - 1)] + [end]
        self._ends = np.array(ends)

    @property
    def size(self) -> int:
        return 2 * len(self._ends) + 1

    @property
    def squared(self) -> Fraction:
        return Fraction(1)

    def add_up(self, coded: Coded, members: Bools) -> Whole:
        event, j = self.description.event, len(self._ends)
        if event is None:
            raise TypeError("survival is of a duration with its event")
        time = np.where(members, coded[self.description.outcome.name], 0.0)
        happened = np.where(members, coded[event.name], 0.0) > 0
        # An event at the end of an interval is in it, and who leaves at it in the next.
        before = np.zeros(len(time), dtype=np.intp)
        for end in self._ends:
            before += np.where(happened, time > end, time >= end)
        place = np.where(before == j, 2 * j, before + j * ~happened)
        place = np.where(members, place, self.size)
        return np.bincount(place, minlength=self.size + 1)[:-1]

    def tell(self, noisy: Array, sd: float) -> Told:
        estimands, j = self.description.estimands, len(self._ends)
        events, left = noisy[:j], noisy[j : 2 * j]
        came = (events + left)[::-1].cumsum()[::-1] + noisy[-1]
        least = max(LEAST_SEEN * sd, 1.0)
        risk = np.maximum(came - left / 2, least)
        hazard = np.clip(events / risk, -_MOST_HAZARD, _MOST_HAZARD)
        # d(log(1 - q_j))/d(count): of own events, and of all who make up the risk set.
        own = -1 / ((1 - hazard) * risk)
        shared = hazard / ((1 - hazard) * risk)
        later = np.triu(np.ones((j, j)))
        slopes = np.hstack(
            [
                np.diag(own) + shared[:, None] * later,
                shared[:, None] * (later - np.eye(j) / 2),
                shared[:, None],
            ]
        )
        positive = np.maximum(hazard, 0.0)
        greenwood = np.cumsum(positive / (risk * (1 - positive)))
        logs, summed = np.cumsum(np.log1p(-hazard)), np.cumsum(slopes, axis=0)
        at = np.searchsorted(self._ends, [float(e.at or 0) for e in estimands])
        survived = np.exp(np.minimum(logs[at], 0.0))
        noise = sd**2 * (summed[at] @ summed[at].T) * np.outer(survived, survived)
        rows = max(float(came[0]), least)
        kept = keep_inside(survived, rows, noise)
        # Greenwood's is no less than if nobody left. Two times have in common all until the first.
        order = np.argsort(at, kind="stable")
        known = np.maximum(greenwood[at], (1 - kept) / (rows * kept))
        known[order] = np.maximum.accumulate(known[order])
        sampling = np.minimum.outer(known, known) * np.outer(kept, kept)
        return rescale([e.regression.scale for e in estimands], kept, rows, noise, sampling)


class EventTally(Tally):
    """Rows with the event, each in the first of the times asked for that it does not exceed."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        last = description.outcome.bounds[1]
        asked = [last if e.until is None else float(e.until) for e in description.estimands]
        self._ends = np.unique(asked)
        self._at = np.searchsorted(self._ends, asked)

    @property
    def size(self) -> int:
        return len(self._ends)

    @property
    def squared(self) -> Fraction:
        return Fraction(1)

    def add_up(self, coded: Coded, members: Bools) -> Whole:
        if self.description.event is None:
            raise TypeError("events are of a duration with its event")
        time = np.where(members, coded[self.description.outcome.name], 0.0)
        happened = np.where(members, coded[self.description.event.name], 0.0) > 0
        place = np.zeros(len(time), dtype=np.intp)
        for end in self._ends:
            place += time > end
        place = np.where(members & happened, place, self.size)
        return np.bincount(place, minlength=self.size + 1)[: self.size]

    def tell(self, noisy: Array, sd: float) -> Told:
        until = np.tri(self.size)[self._at]
        return until @ noisy, sd**2 * until @ until.T, np.zeros((len(until),) * 2)

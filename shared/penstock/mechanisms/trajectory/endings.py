r"""When follow-up ends, and how: two hazards, read from noisy counts.

A person has a time of the event and a time at which they are censored, each by a standard Gaussian
of its own, and what comes first is seen. With p_j and q_j the shares of persons with the event, and
censored, in cell j, and n_j the share that is still followed when it begins, events first,

.. math:: h_j = p_j / n_j, \qquad c_j = q_j / (n_j - p_j)

so that persons who are drawn have the counted shares, whatever their other numbers go with
(Kaplan & Meier 1958): those two times are independent given nothing, which no data can tell.

A person's scores are what they had of each hazard less whether it came to them,

.. math:: \sum_{i \le j} h_i - 1[\text{event}], \qquad \sum_{i \le j} c_i - 1[\text{censored}]

(martingale residuals: Therneau, Grambsch & Fleming 1990, Biometrika 77, 147–160), with the hazard
of the last cell by half; they are high where the time is late. All of it is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from penstock.mechanisms.copula.densities import estimate_density
from penstock.mechanisms.copula.population import quasi_random
from penstock.mechanisms.trajectory.attendance import Stops, onto_simplex
from penstock.mechanisms.trajectory.follow_up import ENDS, WEIGHT, FollowUp

Array = NDArray[np.float64]
Whole = NDArray[np.int64]

_POWER, _ROUNDS = 11, 20
"""2^11 imagined persons, and rounds, by which last visits are fitted to how many there are."""

_LEAST = 1e-6
"""Of a share of persons."""

_UNSEEN = 0.002
"""Share of persons that are taken for seen last at any time before the end, where none were."""

_LEAST_SPREAD = 0.05
"""Of a residual, whose variance is the share of persons to whom it came."""


@dataclass(frozen=True, slots=True)
class Endings:
    """As released.

    Attributes:
        follow_up: public.
        hazards: (2, m) of the event and of being censored, by cell of the duration.
        lasts: (2, T, T) shares of the last visit, by how it ends and the last time point reached.
        points: (2m + 1, 2) scores of each cell.
    """

    follow_up: FollowUp
    hazards: Array
    lasts: Array
    points: Array

    @classmethod
    def read(
        cls,
        follow_up: FollowUp,
        ends: Array,
        lasts: Array,
        spans: Array,
        persons: float,
        sd: float,
    ) -> Endings:
        """From the counts of :meth:`~penstock.mechanisms.trajectory.follow_up.FollowUp.count`.

        Args:
            spans: persons by first and last visit; sd: of the noise on each of these, of which
                those of ends have less by their weight.
        """
        sd /= WEIGHT
        cells, pairs = follow_up.cells, lasts.reshape(2, -1)
        totals = _share_out(ends, pairs, persons)
        halves = np.split(ends[: 2 * cells], 2)
        shares = np.concatenate(
            [t * estimate_density(c, sd, t * persons) for t, c in zip(totals, halves, strict=False)]
            + [totals[2:]]
        )
        events, censored = shares[:cells], shares[cells : 2 * cells]
        followed = 1.0 - np.concatenate([[0.0], np.cumsum(events + censored)[:-1]])
        followed = np.maximum(followed, _LEAST)
        left = np.maximum(followed - events, _LEAST)
        hazards = np.clip(np.stack([events / followed, censored / left]), 0.0, 1.0)
        found = _read_lasts(pairs, np.array([1 - totals[0], totals[0]]) * persons, sd)
        points = _score_cells(hazards, shares)
        made = cls(follow_up, hazards, found, points)
        return replace(made, lasts=made._meet(onto_simplex(spans, persons) / persons))

    def _meet(self, spans: Array) -> Array:
        """(2, T, T) lasts by which as many are seen last at each visit as both histograms say, each
        as far as its noise lets it, whatever time points are reached."""
        count = len(self.follow_up.starts)
        high, low = np.tril_indices(count)
        square = np.zeros((count, count))
        square[high, low] = spans
        stops = self.draw(quasi_random(ENDS, _POWER))
        reached = np.zeros((2, count))
        np.add.at(reached, (stops.event.astype(np.int64), stops.point), 1 / len(stops.time))
        lasts, at = self.lasts, np.arange(count)
        mine = 2 * (count - at) / WEIGHT**2
        trusted = mine / (mine + at + 1)
        goal = np.einsum("he,hel->l", reached, lasts)
        goal = goal + trusted * (square.sum(axis=1) - goal)
        for _ in range(_ROUNDS):
            now = np.einsum("he,hel->l", reached, lasts)
            lasts = lasts * (goal / np.maximum(now, _LEAST)).clip(0.1, 10.0)
            lasts = lasts / np.maximum(lasts.sum(axis=2, keepdims=True), 1e-300)
        return lasts

    @property
    def reach(self) -> Array:
        """(2,) how far the scores go."""
        return np.asarray(np.abs(self.points).max(axis=0))

    def draw(self, latents: Array) -> Stops:
        """Of standard Gaussians (N, 2)."""
        cells, upper = self.follow_up.cells, self.follow_up.duration.bounds[1]
        chances = ndtr(latents)
        places, times = [], []
        for hazard, chance in zip(self.hazards, chances.T, strict=True):
            risen = 1.0 - np.cumprod(1.0 - hazard)
            place = np.searchsorted(risen, chance, side="right")
            low = np.concatenate([[0.0], risen])[np.minimum(place, cells - 1)]
            room = np.maximum(risen[np.minimum(place, cells - 1)] - low, 1e-300)
            within = np.clip((chance - low) / room, 0.0, 1.0)
            places.append(place)
            times.append(self.follow_up.time_in(np.minimum(place, cells - 1), within))
        event = (places[0] < cells) & (places[0] <= places[1])
        time = np.where(event, times[0], np.where(places[1] < cells, times[1], upper))
        return Stops(time, event, self.follow_up.last_point(time))

    def score(self, stops: Stops) -> Array:
        """(n, 2)."""
        return np.asarray(self.points[self.follow_up.place(stops)])

    def draw_last(self, stops: Stops, chances: Array) -> Whole:
        """(N,) last visits, by chances (N,)."""
        risen = np.cumsum(self.lasts[stops.event.astype(np.int64), stops.point], axis=1)
        risen = risen / risen[:, -1:]
        found = (chances[:, None] >= risen[:, :-1]).sum(axis=1)
        return np.asarray(np.minimum(found, stops.point))


def _share_out(ends: Array, pairs: Array, persons: float) -> Array:
    """(3,) shares of persons with the event, censored before the end, and event-free at it.

    Events are counted in both histograms: their mean, by precision. What sums lack of all persons
    is shared out by their variance.
    """
    cells, q = len(ends) // 2, pairs.shape[1]
    events = (ends[:cells].sum() / cells + pairs[1].sum() / q) / (1 / cells + 1 / q)
    counted = np.array([events, ends[cells : 2 * cells].sum(), ends[-1]])
    variance = np.array([1 / (1 / cells + 1 / q), cells, 1.0])
    counted += (persons - counted.sum()) * variance / variance.sum()
    shares = np.maximum(counted / persons, 1e-3)
    return np.asarray(shares / shares.sum())


def _read_lasts(pairs: Array, totals: Array, sd: float) -> Array:
    """(2, T, T) of noisy counts: each last time point's, with as many persons more as the noise is
    large, whose last visit is as far before it as everybody's.

    Args:
        totals: (2,) persons without and with the event.
    """
    count = round((math.sqrt(8 * pairs.shape[1] + 1) - 1) / 2)
    high, low = np.tril_indices(count)
    found = np.zeros((2, count, count))
    for how, (counted, total) in enumerate(zip(pairs, totals, strict=True)):
        square, common = np.zeros((count, count)), np.zeros((count, count))
        square[high, low] = onto_simplex(counted, float(total))
        before = np.array([square.diagonal(-lag).sum() for lag in range(count)])
        common[high, low] = before[high - low] + _UNSEEN * total
        shares = square + sd * common / common.sum(axis=1, keepdims=True)
        found[how] = shares / shares.sum(axis=1, keepdims=True)
    return found


def _score_cells(hazards: Array, shares: Array) -> Array:
    """(2m + 1, 2) of mean 0 and spread 1 among persons."""
    sums = np.cumsum(hazards, axis=1)
    event, censored = sums - hazards / 2
    points = np.concatenate(
        [
            np.column_stack([event - 1.0, sums[1] - hazards[1]]),
            np.column_stack([sums[0], censored - 1.0]),
            sums[:, -1:].T,
        ]
    )
    mean = shares @ points
    spread = np.sqrt(np.maximum(shares @ (points - mean) ** 2, _LEAST_SPREAD**2))
    return np.asarray((points - mean) / spread)

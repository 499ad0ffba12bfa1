r"""Proportional hazards of a duration, with a piecewise constant baseline, and censoring.

The hazard of a person with design z in interval k of time is :math:`h_k e^{z·β + a_{b(k)}}`; the
baseline h follows from the released counts of times by event and the persons at risk, a corrects
it by blocks. Censoring before the end has a hazard of its own, the same for all; who reaches the
end of follow-up is event-free.

*Scores* are those of the declared regression with coefficients b and baseline g:

.. math:: u = \sum_k (z - \bar z_k)(dN_k - Y_k g_k e^{z·b}),\qquad v_b = \sum_{k∈b} (dN_k - …)

with z̄ₖ the mean of those at risk in the reference's world: u is then, to first order, blind to
errors of the baseline. A person is followed until the cumulative hazard is L, so that nobody's
part is without bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.cells import share_of, value_at
from penstock.mechanisms.structured.densities import estimate_density
from penstock.mechanisms.structured.outcomes.protocol import OutcomeModel
from penstock.schema import Coded, Column

Array = NDArray[np.float64]

INTERVALS, BLOCKS = 16, 4
"""Intervals of the baseline, with about as many events each; blocks of them that scores correct."""

_MOST_HAZARD = 2.0
"""L."""

_BLOCK_WEIGHT = 0.35
"""Of a block's residual beside the scores: the baseline is known from the counts already."""

_LEAST_AT_RISK = 0.01
_NEWTON_ROUNDS = 12
_MOST = 8.0


@dataclass(frozen=True, slots=True)
class Times:
    """A duration's counts as shares of the rows.

    Args:
        column: the duration; edges: (c + 1,) of even cells on its scale's share.
        events, censored: (c,); ended: event-free at the end.
    """

    column: Column
    event: str
    events: Array
    censored: Array
    ended: float

    @classmethod
    def read(cls, column: Column, counts: Array, sd: float) -> Times:
        """From noisy counts (2c + 1,): censored, events, and who is event-free at the end."""
        cells = (len(counts) - 1) // 2
        total = [max(float(half.sum()), 1.0) for half in (counts[:cells], counts[cells:-1])]
        halves = [
            estimate_density(half, sd, whole) * whole
            for half, whole in zip((counts[:cells], counts[cells:-1]), total, strict=True)
        ]
        ended = max(float(counts[-1]), 1.0)
        rows = sum(total) + ended
        return cls(column, column.event or "", halves[1] / rows, halves[0] / rows, ended / rows)


@dataclass(frozen=True, slots=True)
class Reference:
    """b (linear,) with zeros for bends, g (k,), and z̄ (k, width) of those at risk."""

    coefficients: Array
    hazard: Array
    means: Array


class Survival(OutcomeModel[Reference]):
    """The model of one duration on quasi-random persons.

    Args:
        times: the duration's counts; design: (N, width) of the persons; linear: how many of its
            columns the declared regression has.
        uniforms: (N, 2) of the persons.
    """

    own = BLOCKS

    def __init__(self, times: Times, design: Array, linear: int, uniforms: Array) -> None:
        self._times, self._design, self._linear = times, design, linear
        self._uniforms, self.coefficients = uniforms, design.shape[1]
        cells = len(times.events)
        edges = np.linspace(0.0, 1.0, cells + 1)
        risen = np.append(0.0, np.cumsum(times.events)) + 1e-9 * np.arange(cells + 1)
        cuts = np.interp(np.linspace(risen[0], risen[-1], INTERVALS + 1), risen, edges)
        # Each interval is at least a sliver wide.
        cuts = np.maximum.accumulate(cuts + 1e-6 * np.arange(INTERVALS + 1))
        self._cuts = cuts / cuts[-1]
        self._width = np.diff(self._cuts)
        self._events = np.diff(np.interp(self._cuts, edges, risen))
        lost = np.diff(np.interp(self._cuts, edges, np.append(0.0, np.cumsum(times.censored))))
        gone = self._events + lost
        at_risk = 1.0 - np.append(0.0, np.cumsum(gone))[:-1] - gone / 2
        self._at_risk = np.maximum(at_risk, _LEAST_AT_RISK)
        self._lost = np.append(0.0, np.cumsum(lost / self._at_risk))
        self._block = np.arange(INTERVALS) * BLOCKS // INTERVALS
        self._blocks = np.eye(BLOCKS)[self._block]

    def start(self) -> Array:
        return np.zeros(self.size)

    def prior(self) -> Array:
        bends = self.coefficients - self._linear
        return np.concatenate(
            [np.full(self._linear, 0.1), np.full(bends, 1 / 0.3**2), np.full(BLOCKS, 1 / 0.3**2)]
        )

    def world(self, theta: Array) -> Coded:
        share, event = self._times_of(theta, self._design, self._uniforms)
        return self._coded(share, event)

    def draw(self, theta: Array, design: Array, uniforms: Array) -> Coded:
        return self._coded(*self._times_of(theta, design, uniforms))

    def _coded(self, share: Array, event: Array) -> Coded:
        column = self._times.column
        values = value_at(column, share)
        end = column.bounds[1]
        # Who has no event before the end reaches it, or is censored before it.
        free, whole = event == 0, share >= 1.0
        step = 0.0 if column.grid is None else 10.0 ** -(column.decimals or 0)
        before = np.minimum(values, column.snap(end - step)) if step else values
        values = np.where(free, np.where(whole, end, before), values)
        return {column.name: values, self._times.event: event}

    def _times_of(self, theta: Array, design: Array, uniforms: Array) -> tuple[Array, Array]:
        """Shares of the follow-up, 1 at its end, and events 0 or 1."""
        hazard = self._baseline(theta)
        risen = np.append(0.0, np.cumsum(hazard * self._width))
        left = -np.log(uniforms)
        needed = left[:, 0] * np.exp(-np.clip(design @ theta[: self.coefficients], -_MOST, _MOST))
        strictly = 1e-12 * np.arange(INTERVALS + 1)
        happens = np.interp(needed, risen + strictly, self._cuts)
        happens = np.where(needed >= risen[-1], np.inf, happens)
        censors = np.interp(left[:, 1], self._lost + strictly, self._cuts)
        censors = np.where(left[:, 1] >= self._lost[-1], 1.0, censors)
        event = (happens <= censors).astype(np.float64)
        return np.minimum(happens, censors), event

    def _baseline(self, theta: Array) -> Array:
        """h: as many events as were counted, of the persons at risk in the world of θ."""
        risk = np.exp(np.clip(self._design @ theta[: self.coefficients], -_MOST, _MOST))
        own = np.exp(np.clip(theta[self.coefficients :], -2.0, 2.0))[self._block]
        hazard, survived = np.zeros(INTERVALS), np.zeros(len(risk))
        for k in range(INTERVALS):
            rate = self._events[k] / self._at_risk[k] / self._width[k] * own[k]
            hazard[k] = rate / max(float(risk @ np.exp(-survived) / np.exp(-survived).sum()), 1e-9)
            for _ in range(2):
                there = np.exp(-survived - 0.5 * hazard[k] * self._width[k] * risk)
                hazard[k] = rate / max(float(risk @ there / there.sum()), 1e-9)
            survived = survived + hazard[k] * self._width[k] * risk
        return hazard

    def refer(self, theta: Array) -> Reference:
        share, event = self._times_of(theta, self._design, self._uniforms)
        exposed, happened = self._follow(share, event)
        z = self._design[:, : self._linear]
        found, events = theta[: self._linear].copy(), happened.sum(axis=0)
        if not theta[: self.coefficients].any():
            found = np.zeros(self._linear)
        hazard = np.zeros(INTERVALS)
        for _ in range(_NEWTON_ROUNDS):
            expected = np.exp(np.clip(z @ found, -_MOST, _MOST))[:, None] * exposed
            at_risk = np.maximum(expected.sum(axis=0), 1e-9)
            hazard, means = events / at_risk, expected.T @ z / at_risk[:, None]
            score = z.T @ event - events @ means
            weight = expected @ hazard
            information = (z * weight[:, None]).T @ z - (means * events[:, None]).T @ means
            information += 1e-6 * len(z) * np.eye(self._linear)
            if not theta[: self.coefficients].any():
                break  # the first reference is that of no effect
            found = found + np.clip(np.linalg.solve(information, score), -1.0, 1.0)
        full = np.append(found, np.zeros(self.coefficients - self._linear))
        return Reference(full, hazard, self._means(full, hazard, exposed))

    def _means(self, coefficients: Array, hazard: Array, exposed: Array) -> Array:
        expected = self._expected(coefficients, hazard, self._design, exposed)
        total = np.maximum(expected.sum(axis=0), 1e-9)
        means: Array = expected.T @ self._design / total[:, None]
        return means

    def _follow(self, share: Array, event: Array) -> tuple[Array, Array]:
        """Time in each interval, and the event in it, (N, k): work does not depend on the times."""
        exposed = np.clip(share[:, None] - self._cuts[:-1], 0.0, self._width)
        inside = (share[:, None] > self._cuts[:-1]) & (share[:, None] <= self._cuts[1:])
        inside[:, 0] |= share <= 0
        return exposed, inside * event[:, None]

    def _expected(
        self, coefficients: Array, hazard: Array, design: Array, exposed: Array
    ) -> Array:
        """Cumulative hazard in each interval, up to L in all."""
        risk = np.exp(np.clip(design @ coefficients, -_MOST, _MOST))
        expected = risk[:, None] * (hazard * exposed)
        risen = np.cumsum(expected, axis=1)
        over = np.maximum(risen - _MOST_HAZARD, 0.0)
        before = np.maximum(risen - expected - _MOST_HAZARD, 0.0)
        kept: Array = expected - (over - before)
        return kept

    def scores(self, reference: Reference, design: Array, coded: Coded) -> Array:
        time, event = coded[self._times.column.name], coded[self._times.event]
        known = ~(np.isnan(time) | np.isnan(event))
        share = np.where(known, share_of(self._times.column, np.where(known, time, 0.0)), 0.0)
        share = np.where(time >= self._times.column.bounds[1], 1.0, share)
        exposed, happened = self._follow(share, np.where(known, event, 0.0))
        risk = np.exp(np.clip(design @ reference.coefficients, -_MOST, _MOST))
        whole = (risk[:, None] * (reference.hazard * exposed)).sum(axis=1)
        expected = self._expected(reference.coefficients, reference.hazard, design, exposed)
        counted = happened * (whole <= _MOST_HAZARD)[:, None]
        residual = (counted - expected) * known[:, None]
        score = design * residual.sum(axis=1)[:, None] - residual @ reference.means
        return np.column_stack([score, residual @ self._blocks * _BLOCK_WEIGHT])

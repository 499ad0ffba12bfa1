r"""Proportional hazards of a duration, with a piecewise constant baseline, and censoring.

The hazard of a person with design z in interval k of time is :math:`h_k e^{z·β}`, and that of
being censored before the end :math:`c_k e^{z·γ}`. h and c follow from the released counts of
times: as many events and censored times in each interval of the world as were counted; a corrects
the counts of events by blocks. Who reaches the end of follow-up is event-free.

*Scores* are those of the declared regression with coefficients b and baseline g:

.. math:: u = \sum_k (z - \bar z_k)(dN_k - Y_k g_k e^{z·b}),\qquad v_b = \sum_{k∈b} (dN_k - …)

with z̄ₖ the mean of those at risk in the reference's world: u is then, to first order, blind to
errors of the baseline. A person is followed until the cumulative hazard is L, so that nobody's
part is without bound. Censoring is scored alike, once: who is followed for how long matters to a
hazard ratio only where the model bends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.densities import estimate_density
from penstock.mechanisms.structured.grids import share_of, value_at
from penstock.mechanisms.structured.outcomes.protocol import LEAST_INFORMATION, OutcomeModel, World
from penstock.schema import Coded, Column

Array = NDArray[np.float64]
Places = NDArray[np.intp]

INTERVALS, BLOCKS = 16, 4
"""Intervals of the baseline, with about as many events each; blocks of them that scores correct."""

_MOST_HAZARD, _UNBOUNDED = 4.0, 1e3
"""L, and none."""

_BLOCK_IMPORTANCE, _CENSORING_IMPORTANCE = 0.2, 0.1
"""Beside the declared coefficients: baseline and censoring are known from the counts already."""

_PRIOR, _BEND_PRIOR, _CENSORING_PRIOR = 1.0, 0.3, 0.5
"""Sds of coefficients, of standardised columns."""

_LEAST_ADJUSTED, _MOST_ADJUSTED, _LEAST_WHOLE = 0.02, 0.5, 0.005
"""Sd of a block's correction: what the noise of its counts is, within these."""

_LEAST_AT_RISK = 0.01
_NEWTON_ROUNDS, _BASELINE_ROUNDS, _SETTLED = 10, 3, 1e-4
_MOST, _MOST_IN_INTERVAL = 8.0, 3.0


@dataclass(frozen=True, slots=True)
class Times:
    """A duration's counts as shares of the rows.

    Args:
        column: the duration; edges: (c + 1,) of even cells on its scale's share.
        events, censored: (c,); ended: event-free at the end.
        error: sd of the noise on one cell, as a share of the rows.
    """

    column: Column
    event: str
    events: Array
    censored: Array
    ended: float
    error: float

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
        events, censored = halves[1] / rows, halves[0] / rows
        return cls(column, column.event or "", events, censored, ended / rows, sd / rows)


@dataclass(frozen=True, slots=True)
class Reference:
    """b and censoring's γ (width,) with zeros for bends, hazards (k,), and means of those at risk,
    (k, width); spent: (N, k) how long who leaves in an interval was in it."""

    coefficients: Array
    information: Array
    hazard: Array
    means: Array
    leaving: Array
    lost: Array
    lost_means: Array
    spent: Array


@dataclass(frozen=True, slots=True)
class _Course:
    """Of each person and interval, (N, k): those left, cumulative hazards within, of both kinds;
    and their baselines (k,)."""

    left: Array
    events: Array
    losses: Array
    hazard: Array
    lost: Array

    @property
    def both(self) -> Array:
        return self.events + self.losses

    @property
    def lasting(self) -> Array:
        """Share of an interval that who enters it spends in it."""
        return _lasting(self.both)


class Survival(OutcomeModel[Reference]):
    """The model of one duration on quasi-random persons.

    Args:
        times: the duration's counts; world: the persons.
    """

    def __init__(self, times: Times, world: World) -> None:
        super().__init__(world, BLOCKS + world.linear)
        self._times, self._design, self._importance = times, world.design, world.importance
        cells = len(times.events)
        edges = np.linspace(0.0, 1.0, cells + 1)
        risen = np.append(0.0, np.cumsum(times.events)) + 1e-9 * np.arange(cells + 1)
        cuts = np.interp(np.linspace(risen[0], risen[-1], INTERVALS + 1), risen, edges)
        # From the start to the end, and each interval at least a sliver wide.
        cuts[0], cuts[-1] = 0.0, 1.0
        cuts = np.maximum.accumulate(cuts) + 1e-6 * np.arange(INTERVALS + 1)
        self._cuts = cuts / cuts[-1]
        self._width = np.diff(self._cuts)
        self._events = np.diff(np.interp(self._cuts, edges, risen))
        self._lost = np.diff(np.interp(self._cuts, edges, np.append(0, np.cumsum(times.censored))))
        self._blocks = np.eye(BLOCKS)[np.arange(INTERVALS) * BLOCKS // INTERVALS]

    def start(self) -> Array:
        return np.zeros(self.size)

    def prior(self) -> Array:
        counted = self._events @ self._blocks
        noise = self._times.error * np.sqrt(len(self._times.events) / BLOCKS)
        adjusted = np.clip(noise / np.maximum(counted, 1e-9), _LEAST_ADJUSTED, _MOST_ADJUSTED)
        sds = [
            np.full(self.linear, _PRIOR),
            np.full(self.coefficients - self.linear, _BEND_PRIOR),
            adjusted,
            np.full(self.linear, _CENSORING_PRIOR),
        ]
        found = np.diag(np.concatenate(sds) ** -2)
        # All events together are known better than each block's.
        blocks = slice(self.coefficients, self.coefficients + BLOCKS)
        share = counted / max(float(counted.sum()), 1e-9)
        whole = max(self._times.error / max(float(counted.sum()), 1e-9), _LEAST_WHOLE)
        found[blocks, blocks] += np.outer(share, share) / whole**2
        return found

    def importance(self, again: bool) -> Array:
        censoring = self._importance[: self.linear] * (0.0 if again else _CENSORING_IMPORTANCE)
        return np.concatenate([self._importance, np.full(BLOCKS, _BLOCK_IMPORTANCE), censoring])

    # -- the world ---------------------------------------------------------------------------------

    def _of(self, theta: Array) -> tuple[Array, Array, Array]:
        """β, a by interval, and γ with zeros for bends."""
        width, linear = self.coefficients, self.linear
        own = np.clip(theta[width : width + BLOCKS], -2.0, 2.0) @ self._blocks.T
        gamma = np.append(theta[width + BLOCKS :], np.zeros(width - linear))
        return theta[:width], own, gamma

    def _make_world(self, theta: Array) -> _Course:
        """Baselines that give as many events and losses in each interval as were counted."""
        beta, own, gamma = self._of(theta)
        risk, loss = _exp(self._design @ beta), _exp(self._design @ gamma)
        goal = np.stack([self._events * np.exp(own), self._lost])
        left, n = np.ones(len(risk)), len(risk)
        kept = np.empty((3, INTERVALS, n))
        base = np.zeros((2, INTERVALS))
        for k in range(INTERVALS):
            there = max(float(left.mean()), _LEAST_AT_RISK)
            means = np.stack([risk @ left, loss @ left]) / n
            most = _MOST_IN_INTERVAL * there / np.maximum(means, 1e-12) / there
            found = np.minimum(goal[:, k] / np.maximum(means, 1e-12), most)
            for _ in range(_BASELINE_ROUNDS):
                stays = left * _lasting(found[0] * risk + found[1] * loss)
                got = np.stack([risk @ stays, loss @ stays]) / n
                found = np.minimum(goal[:, k] / np.maximum(got, 1e-12), most)
            kept[:, k] = left, found[0] * risk, found[1] * loss
            base[:, k] = found / self._width[k]
            left = left * np.exp(-kept[1, k] - kept[2, k])
        return _Course(kept[0].T, kept[1].T, kept[2].T, base[0], base[1])

    def chances(self, theta: Array) -> Array:
        """Of an event in each interval, of a loss in each, and of the end."""
        return _chances(self._make_world(theta))

    def slopes(self, theta: Array, found: Array) -> Array:
        world, count = self._make_world(theta), INTERVALS
        n, q, width = len(found), found.shape[2], self.coefficients
        chances, bend = _chances(world), world.left * _lasting_slope(world.both)
        stays = world.left * world.lasting
        later = np.arange(count)[:, None] < np.append(np.tile(np.arange(count), 2), count)
        k, flat = np.arange(count), found.reshape(-1, q)
        result = np.zeros((q, self.size))
        parts = (
            (world.events, world.losses, 0, slice(0, width)),
            (world.losses, world.events, count, slice(width + BLOCKS, self.size)),
        )
        for own, other, at, here in parts:
            design = self._design[:, : here.stop - here.start]
            # Of chances by the logarithm of the hazard in each interval: later ones fall, and
            # those of the interval itself share.
            turned = -own.T[:, :, None] * chances * later[:, None, :]
            turned[k, :, at + k] += (own * (stays + bend * own)).T
            turned[k, :, (count if at == 0 else 0) + k] += (other * bend * own).T
            by_time = turned.reshape(count, -1) @ flat
            by_person = np.matmul(turned.sum(axis=0)[:, None, :], found)[:, 0]
            # Baselines follow the coefficients, so that the counts stay.
            result[:, here] = by_person.T @ design - by_time.T @ _means(stays * own, design)
            if at == 0:
                result[:, width : width + BLOCKS] = by_time.T @ self._blocks
        return result / n

    def inform(self, theta: Array) -> float:
        """The share with an event: who has none tells of hazards, not of what they go with."""
        return float(self.chances(theta)[:, :INTERVALS].sum(axis=1).mean())

    def draw(
        self, theta: Array, design: Array, uniforms: Array, added: Array | None = None
    ) -> Coded:
        world, (beta, _, gamma) = self._make_world(theta), self._of(theta)
        waits, linear = -np.log(uniforms), design @ beta
        risk = _exp(linear if added is None else linear + added)
        happens = self._reach(waits[:, 0] / risk, world.hazard)
        loses = self._reach(waits[:, 1] / _exp(design @ gamma), world.lost)
        event = (happens <= loses) & (happens < np.inf)
        return self._coded(np.minimum(np.minimum(happens, loses), 1.0), event.astype(np.float64))

    def _reach(self, needed: Array, hazard: Array) -> Array:
        """When a cumulative hazard is reached; infinite where it is not."""
        risen = np.append(0.0, np.cumsum(hazard * self._width))
        at = np.interp(needed, risen + 1e-12 * np.arange(INTERVALS + 1), self._cuts)
        return np.where(needed >= risen[-1], np.inf, at)

    def _coded(self, share: Array, event: Array) -> Coded:
        column = self._times.column
        values = value_at(column, share)
        end = column.bounds[1]
        # Who has no event before the end reaches it, or is censored before it.
        free, whole = event == 0, share >= 1.0
        step = 0.0 if column.grid is None else 10.0 ** -(column.decimals or 0)
        before = np.minimum(values, column.snap(np.array([end - step]))[0]) if step else values
        values = np.where(free, np.where(whole, end, before), values)
        return {column.name: values, self._times.event: event}

    # -- the declared regression -------------------------------------------------------------------

    def refer(self, theta: Array, at: Array | None = None, narrow: bool = False) -> Reference:
        world, (_, _, gamma) = self._make_world(theta), self._of(theta)
        exposed = world.left * world.lasting
        exposed = exposed * self.world.complete[:, None]
        happened, exposed = exposed * world.events, exposed * self._width
        linear, taken = self.linear, self.world.taken(narrow)
        z, events = self._design[:, :linear] * taken, happened.sum(axis=0)
        found = (theta[:linear] if at is None else at) * taken
        ridge = 1e-4 * events.sum() * np.eye(linear)
        # The first reference is that of no effect.
        for _ in range(_NEWTON_ROUNDS if at is None and theta[: self.coefficients].any() else 0):
            score, information = _newton(z, found, exposed, happened, events)
            step = np.clip(np.linalg.solve(information + ridge, score), -1.0, 1.0)
            found = found + step
            if np.abs(step).max() < _SETTLED:
                break
        _, information = _newton(z, found, exposed, happened, events)
        full = np.append(found, np.zeros(self.coefficients - linear))
        expected = _exp(z @ found)[:, None] * exposed
        hazard = events / np.maximum(expected.sum(axis=0), 1e-12)
        return Reference(
            full,
            information / len(z) + np.diag(1 - taken + LEAST_INFORMATION),
            hazard,
            _means(expected, self._design),
            gamma,
            world.lost,
            _means(exposed * _exp(self._design @ gamma)[:, None], self._design),
            self._width * _spent(world.both),
        )

    def scores(self, reference: Reference, design: Array, coded: Coded) -> Array:
        time, event = coded[self._times.column.name], coded[self._times.event]
        known = ~(np.isnan(time) | np.isnan(event))
        share = np.where(known, share_of(self._times.column, np.where(known, time, 0.0)), 0.0)
        share = np.where(time >= self._times.column.bounds[1], 1.0, share)[:, None]
        exposed = np.clip(share - self._cuts[:-1], 0.0, self._width)
        inside = (share > self._cuts[:-1]) & (share <= self._cuts[1:])
        inside[:, :1] |= share <= 0
        happened = inside * np.where(known, event, 0.0)[:, None]
        lost = inside * np.where(known & (share[:, 0] < 1.0), 1 - event, 0.0)[:, None]
        exposed = exposed * known[:, None]
        residual, kept = _residual(
            happened, _exp(design @ reference.coefficients), reference.hazard, exposed
        )
        curvature = [(kept * _products(design, reference, pair)).sum(axis=1) for pair in self.pairs]
        score = design * residual.sum(axis=1)[:, None] - residual @ reference.means
        left, _ = _residual(lost, _exp(design @ reference.leaving), reference.lost, exposed)
        leaving = design * left.sum(axis=1)[:, None] - left @ reference.lost_means
        return np.column_stack(
            [score, residual @ self._blocks, leaving[:, : self.linear], *curvature]
        )

    def imagine(self, reference: Reference, bounded: bool = True) -> Array:
        most = _MOST_HAZARD if bounded else _UNBOUNDED
        z, linear = self._design, self.linear
        residual, passed = self._imagined(
            _exp(z @ reference.coefficients), reference.hazard, reference.spent, most
        )
        left, gone = self._imagined(
            _exp(z @ reference.leaving), reference.lost, reference.spent, most
        )
        n, count, width = len(z), INTERVALS, self.coefficients
        found = np.zeros((n, 2 * count + 1, self.entries))
        for at, (part, whole) in enumerate(((residual, passed), (left, gone))):
            means = (reference.means, reference.lost_means[:, :linear])[at]
            columns = z if at == 0 else z[:, :linear]
            here = slice(0, width) if at == 0 else slice(width + BLOCKS, self.size)
            # Without what happens: minus what was expected until then.
            since = np.cumsum(whole[:, :, None] * means, axis=1)
            before = np.concatenate([np.zeros_like(since[:, :1]), since], axis=1)
            risen = np.concatenate([np.zeros((n, 1)), np.cumsum(whole, axis=1)], axis=1)
            until = risen[:, :-1] + part
            nothing = (
                before[:, :-1] + part[:, :, None] * means - columns[:, None, :] * until[:, :, None]
            )
            ended = before[:, -1] - columns * risen[:, -1:]
            counted = (until < most - 1e-9)[:, :, None]
            what = nothing + counted * (columns[:, None, :] - means)
            found[:, :count, here] = what if at == 0 else nothing
            found[:, count:-1, here] = nothing if at == 0 else what
            found[:, -1, here] = ended
            if at == 0:
                own = slice(width, width + BLOCKS)
                by = np.cumsum(whole[:, :, None] * self._blocks, axis=1)
                by = np.concatenate([np.zeros_like(by[:, :1]), by], axis=1)
                none = -by[:, :-1] - part[:, :, None] * self._blocks
                found[:, :count, own] = none + counted * self._blocks
                found[:, count:-1, own] = none
                found[:, -1, own] = -by[:, -1]
        for at, pair in enumerate(self.pairs, self.size):
            squares = _products(z, reference, pair)
            since = np.cumsum(passed * squares, axis=1)
            curvature = since - (passed - residual) * squares
            found[:, :count, at] = found[:, count:-1, at] = curvature
            found[:, -1, at] = since[:, -1]
        found *= self.world.complete[:, None, None]
        return found

    def _imagined(
        self, risk: Array, hazard: Array, spent: Array, most: float
    ) -> tuple[Array, Array]:
        """What was expected, up to so much in all, within an interval left, or passed; (N, k)."""
        passed = risk[:, None] * (hazard * self._width)
        start = np.cumsum(passed, axis=1) - passed
        until = np.minimum(start + risk[:, None] * hazard * spent, most)
        begun = np.minimum(start, most)
        return until - begun, np.minimum(start + passed, most) - begun


def _chances(world: _Course) -> Array:
    stays = world.left * world.lasting
    end = world.left[:, -1] * np.exp(-world.both[:, -1])
    return np.column_stack([stays * world.events, stays * world.losses, end])


def _products(design: Array, reference: Reference, pair: tuple[int, int]) -> Array:
    """(N, k) of two columns' distances from the means of those at risk."""
    i, j = pair
    means = reference.means
    return np.asarray((design[:, [i]] - means[:, i]) * (design[:, [j]] - means[:, j]))


def _newton(
    z: Array, at: Array, exposed: Array, happened: Array, events: Array
) -> tuple[Array, Array]:
    """Score (q,) and information (q, q) of a proportional hazards regression at a coefficient."""
    expected = _exp(z @ at)[:, None] * exposed
    at_risk = np.maximum(expected.sum(axis=0), 1e-12)
    means = expected.T @ z / at_risk[:, None]
    score = z.T @ happened.sum(axis=1) - events @ means
    weight = expected @ (events / at_risk)
    return score, (z * weight[:, None]).T @ z - (means * events[:, None]).T @ means


def _residual(happened: Array, risk: Array, hazard: Array, exposed: Array) -> tuple[Array, Array]:
    """What happened less what was expected, up to L in all, and the latter; (N, k)."""
    expected = risk[:, None] * (hazard * exposed)
    risen = np.cumsum(expected, axis=1)
    kept = np.minimum(risen, _MOST_HAZARD) - np.minimum(risen - expected, _MOST_HAZARD)
    counted = (risen[:, -1] < _MOST_HAZARD - 1e-9)[:, None]
    return happened * counted - kept, kept


def _means(weights: Array, design: Array) -> Array:
    """(k, width) of the design by weights (N, k)."""
    total = np.maximum(weights.sum(axis=0), 1e-12)
    return np.asarray(weights.T @ design / total[:, None])


def _exp(values: Array) -> Array:
    return np.exp(np.clip(values, -_MOST, _MOST))


def _lasting(hazard: Array) -> Array:
    """∫₀¹ e^{-Λs} ds."""
    large = np.maximum(hazard, 1e-5)
    return np.where(hazard > 1e-5, -np.expm1(-large) / large, 1 - hazard / 2)


def _lasting_slope(hazard: Array) -> Array:
    large = np.maximum(hazard, 1e-3)
    exact = (np.exp(-large) * (1 + large) - 1) / large**2
    return np.where(hazard > 1e-3, exact, -0.5 + hazard / 3)


def _spent(hazard: Array) -> Array:
    """How far into an interval who leaves it is, on average."""
    large = np.clip(hazard, 1e-2, 500.0)
    return np.where(hazard > 1e-2, 1 / large - 1 / np.expm1(large), 0.5 - hazard / 12)

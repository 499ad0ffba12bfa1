r"""Proportional hazards of a duration, with a piecewise constant baseline, and censoring.

The hazard of a person with design z in interval k of time is :math:`h_k e^{z·β}`, and that of
being censored before the end :math:`c_k e^{z·γ}`. h and c follow from the released counts of
times: as many events and censored times in each interval of the world as were counted; a moves
events from one block to others, as scores say, and leaves how many there are. Who reaches the end
of follow-up is event-free.

*Scores* are those of the declared regression with coefficients b and baseline g:

.. math:: u = \sum_k (z - \bar z_k)(dN_k - Y_k g_k e^{z·b}),\qquad v_b = \sum_{k∈b} (dN_k - …)

with z̄ₖ the mean of those at risk in the reference's world: u is then, to first order, blind to
errors of the baseline. A person is followed until the cumulative hazard is L, so that nobody's
part is without bound. Censoring is scored alike, once: who is followed for how long matters to a
hazard ratio only where the model bends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.copula.densities import Blocks, estimate_density
from penstock.mechanisms.copula.grids import share_of, value_at
from penstock.mechanisms.structured.counting import TimeCounts
from penstock.mechanisms.structured.outcomes.courses import (
    Bend,
    Change,
    Courses,
    Divided,
    Kind,
    Some,
    Ways,
    sum_before,
)
from penstock.mechanisms.structured.outcomes.protocol import LEAST_INFORMATION, OutcomeModel, World
from penstock.schema import Coded, Column

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

INTERVALS, BLOCKS = 16, 4
"""Intervals of the baseline; blocks of them that scores correct."""

_LOSSES = 0.3
"""What share of the intervals is where rows are lost, and not where events are."""

_MOST_HAZARD, _UNBOUNDED = 4.0, 1e3
"""L, and none."""

_BLOCK_NOISE = 1.5
"""Error of a block's counted events, in sds of the noise on one count."""

_BLOCK_IMPORTANCE, _CENSORING_IMPORTANCE = 0.2, 0.1
"""Beside the declared coefficients: baseline and censoring are known from the counts already."""

_PRIOR, _BEND_PRIOR, _CENSORING_PRIOR = 1.0, 0.3, 0.5
"""Sds of coefficients, of standardised columns."""

_LEAST_ADJUSTED, _MOST_ADJUSTED = 0.02, 0.5
"""Sd of a block's correction: what the noise of its counts is, within these."""

_LEAST_AT_RISK, _LEAST_HAZARD = 0.01, 1e-12
_NEWTON_ROUNDS, _SETTLED = 10, 1e-4
_BASELINE_ROUNDS, _EVEN, _SLOW, _MOST_STEP, _SHARED = 60, 1e-6, 0.3, 1.0, 0.95
_MOST, _MOST_CORRECTED, _MOST_LEAVING = 8.0, 2.0, 0.95

_ROWS_AT_ONCE = 1 << 12
"""Scored together: their numbers by interval stay in the processor's cache."""


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
    def read(cls, column: Column, counts: TimeCounts, sd: float) -> Times:
        """From noisy counts."""
        censored, events = (_read_times(levels, sd) for levels in (counts.censored, counts.events))
        ended = max(counts.ended, 1.0)
        rows = float(censored.sum() + events.sum()) + ended
        event = column.event or ""
        return cls(column, event, events / rows, censored / rows, ended / rows, sd / rows)


def _read_times(levels: Sequence[Array], sd: float) -> Array:
    """(c,) counts of the narrowest cells, positive and smooth, by those of all widths."""
    *wide, counts = levels
    weights = np.array([1 / len(level) for level in levels])
    total = float(weights @ [level.sum() for level in levels] / weights.sum())
    rows = max(total, 1.0)
    places = np.arange(len(counts))
    known = [
        Blocks(level, places * len(level) // len(counts), sd, rows)
        for level in wide
        if len(level) > 1
    ]
    return np.asarray(estimate_density(counts, sd, rows, known) * rows)


def _part_evenly(events: Array, censored: Array) -> Array:
    """(c + 1,) rising from 0 to 1: by how many events there are until each edge, and how many
    losses: where persons go on to be lost after the last events, hazards of that are no constant.
    """
    parts = [counts / max(float(counts.sum()), 1e-12) for counts in (events, censored)]
    even = np.full(len(events), 1e-6)
    risen = np.cumsum((1 - _LOSSES) * parts[0] + _LOSSES * parts[1] + even)
    return np.append(0.0, risen / risen[-1])


@dataclass(frozen=True, slots=True)
class Reference:
    """b and censoring's γ (width,) with zeros for bends, hazards (k,), and means of those at risk,
    (k, width); spent: (k, N) how long who leaves in an interval was in it; each: of every stratum,
    where there are some."""

    coefficients: Array
    information: Array
    hazard: Array
    means: Array
    leaving: Array
    lost: Array
    lost_means: Array
    spent: Array
    each: tuple[Reference, ...] = ()


@dataclass(frozen=True)
class _World:
    """Of each person: who is left at each cut, (k + 1, N); of each interval cumulative hazards
    within, of both kinds, and how much of it those left spend in it, (k, N); and baselines (k,)."""

    left: Array
    events: Array
    losses: Array
    stays: Array
    hazard: Array
    lost: Array

    @cached_property
    def both(self) -> Array:
        return self.events + self.losses

    @cached_property
    def chances(self) -> Ways:
        return Ways(self.stays * self.events, self.stays * self.losses, self.left[-1])


class Survival(OutcomeModel[Reference, Courses | Divided]):
    """The model of one duration on quasi-random persons.

    Args:
        times: the duration's counts; world: the persons.
    """

    def __init__(self, times: Times, world: World) -> None:
        super().__init__(world, BLOCKS + world.linear)
        self._times, self._design = times, world.design
        cells = len(times.events)
        edges = np.linspace(0.0, 1.0, cells + 1)
        risen = np.append(0.0, np.cumsum(times.events)) + 1e-9 * np.arange(cells + 1)
        parted = _part_evenly(times.events, times.censored)
        cuts = np.interp(np.linspace(0.0, 1.0, INTERVALS + 1), parted, edges)
        # From the start to the end, and each interval at least a sliver wide.
        cuts[0], cuts[-1] = 0.0, 1.0
        cuts = np.maximum.accumulate(cuts) + 1e-6 * np.arange(INTERVALS + 1)
        self._cuts = cuts / cuts[-1]
        self._width = np.diff(self._cuts)
        self._events = np.diff(np.interp(self._cuts, edges, risen))
        self._lost = np.diff(np.interp(self._cuts, edges, np.append(0, np.cumsum(times.censored))))
        self._blocks = np.eye(BLOCKS)[np.arange(INTERVALS) * BLOCKS // INTERVALS]
        counted = self._events @ self._blocks
        self._counted = counted / max(float(counted.sum()), 1e-9)
        self._last: tuple[bytes, _World] | None = None
        self._bend: Array | None = None

    def start(self) -> Array:
        self._last, self._bend = None, None
        return np.zeros(self.size)

    def prior(self) -> Array:
        counted = self._events @ self._blocks
        noise = self._times.error * _BLOCK_NOISE
        adjusted = np.clip(noise / np.maximum(counted, 1e-9), _LEAST_ADJUSTED, _MOST_ADJUSTED)
        sds = [
            _PRIOR * self.wide,
            np.full(self.coefficients - self.linear, _BEND_PRIOR),
            adjusted,
            _CENSORING_PRIOR * self.wide,
        ]
        return np.diag(np.concatenate(sds) ** -2)

    def importance(self, again: bool) -> Array:
        censoring = self.asked[: self.linear] * (0.0 if again else _CENSORING_IMPORTANCE)
        return np.concatenate([self.asked, np.full(BLOCKS, _BLOCK_IMPORTANCE), censoring])

    # -- the world ---------------------------------------------------------------------------------

    def _of(self, theta: Array) -> tuple[Array, Array, Array]:
        """β, a by interval, and γ with zeros for bends."""
        width, linear = self.coefficients, self.linear
        each = np.clip(theta[width : width + BLOCKS], -_MOST_CORRECTED, _MOST_CORRECTED)
        # All events together are those that were counted: blocks exchange some.
        risen = np.log(max(float(self._counted @ np.exp(each)), 1e-12))
        own = (each - risen) @ self._blocks.T
        gamma = np.append(theta[width + BLOCKS :][:linear], np.zeros(width - linear))
        return theta[:width], own, gamma

    def _exchange(self, theta: Array) -> Array:
        """(blocks,) by how much all fall as one of them rises."""
        each = theta[self.coefficients : self.coefficients + BLOCKS]
        weights = self._counted * np.exp(np.clip(each, -_MOST_CORRECTED, _MOST_CORRECTED))
        return np.asarray(weights / max(float(weights.sum()), 1e-12))

    def _weigh(self, theta: Array) -> Array:
        """How much larger hazards of both kinds are of each person, (2, N), or (2, k, N)."""
        beta, _, gamma = self._of(theta)
        return _exp(np.stack([beta, gamma]) @ self._design.T)

    def _make_world(self, theta: Array) -> _World:
        """Baselines that give as many events and losses in each interval as were counted: by
        Newton's steps from the last ones, with slopes that are kept while they do."""
        if self._last is not None and self._last[0] == theta.tobytes():
            return self._last[1]
        _, own, _ = self._of(theta)
        risks = self._weigh(theta)
        goal = _leave_some(np.stack([self._events * np.exp(own), self._lost]))
        count = risks.shape[-1]
        if self._last is None:
            there = np.maximum(1 - sum_before(goal.sum(axis=0)), _LEAST_AT_RISK)
            there = there * risks.mean(axis=-1).reshape(2, -1)
        else:
            there = np.maximum(_add_risks(risks, self._last[1].stays) / count, 1e-12)
        base, off = np.maximum(goal / there, _LEAST_HAZARD), np.inf
        for _ in range(_BASELINE_ROUNDS):
            left, stays = _leave(_add_hazards(-base, risks))
            got = np.maximum(_add_risks(risks, stays) / count, 1e-12)
            found = np.maximum(goal / got, _LEAST_HAZARD)
            step = np.log(found / base)
            before, off = off, float(np.abs(step).max())
            if off < _EVEN:
                break
            if self._bend is None or off > _SLOW * before:
                self._bend = _bend_baseline(risks, _raise_by(base, risks), left, stays)
            step = (self._bend @ step.ravel()).reshape(base.shape)
            base = base * np.exp(np.minimum(np.maximum(step, -_MOST_STEP), _MOST_STEP))
        (hazard, lost), (events, losses) = base / self._width, _raise_by(base, risks)
        world = _World(left, events, losses, stays, hazard, lost)
        self._last = theta.tobytes(), world
        return world

    def chances(self, theta: Array) -> Array:
        """Of an event in each interval, of a loss in each, and of the end."""
        return self._make_world(theta).chances.lay_out().T

    def look(self, theta: Array, found: Courses | Divided) -> Array:
        return found.look(self._make_world(theta).chances) / len(self._design)

    def slopes(self, theta: Array, found: Courses | Divided) -> Array:
        world, width = self._make_world(theta), self.coefficients
        chances, parts = world.chances, []
        changes = self._list_changes(world)
        for by, by_time, first in zip(changes, found.change(changes), (True, False), strict=True):
            design = self._design[:, : width if first else self.linear]
            risen = sum_before(by.own)
            falling = Ways(
                by.event - chances.event * risen,
                by.loss - chances.loss * risen,
                -chances.end * (risen[-1] + by.own[-1]),
            )
            by_person = found.sum_ways(falling)
            # Baselines follow the coefficients, so that the counts stay.
            leaving = chances.event if first else chances.loss
            at_risk = np.maximum(leaving.sum(axis=1), 1e-12)
            by_person -= (by_time / at_risk[:, None]).T @ leaving
            parts.append(by_person @ design)
            if first:
                by_block, moved = by_time.T @ self._blocks, self._exchange(theta)
                parts.append(by_block - by_block.sum(axis=1)[:, None] * moved)
        return np.column_stack(parts) / len(self._design)

    def _list_changes(self, world: _World) -> tuple[Change, Change]:
        """Of chances by the logarithm of the hazard, of events and of losses, in each interval:
        later ones fall, and those of the interval itself share."""
        chances, events, losses = world.chances, world.events, world.losses
        bend = _bend_stays(world.left, world.stays, world.both)
        shared = events * bend * losses
        turned, lost = (
            there + bend * own**2
            for there, own in ((chances.event, events), (chances.loss, losses))
        )
        return Change(events, turned, shared, chances), Change(losses, shared, lost, chances)

    def inform(self, theta: Array) -> float:
        """The share with an event: who has none tells of hazards, not of what they go with."""
        return float(self._make_world(theta).chances.event.sum(axis=0).mean())

    def draw(
        self, theta: Array, design: Array, uniforms: Array, added: Array | None = None
    ) -> Coded:
        world, (beta, _, gamma) = self._make_world(theta), self._of(theta)
        waits, linear = -np.log(uniforms), design @ beta
        risk = _exp(linear if added is None else linear + added)
        happens = self._happen(theta, design, waits[:, 0] / risk, world.hazard)
        loses = self._reach(waits[:, 1] / _exp(design @ gamma), world.lost)
        event = (happens <= loses) & (happens < np.inf)
        return self._coded(np.minimum(np.minimum(happens, loses), 1.0), event.astype(np.float64))

    def _happen(self, theta: Array, design: Array, needed: Array, hazard: Array) -> Array:
        """When each person's event would be, by the cumulative baseline that it needs."""
        return self._reach(needed, hazard)

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

    def _newton(
        self, z: Array, at: Array, exposed: Array, happened: Array, narrow: Bools | None
    ) -> tuple[Array, Array]:
        """Score (q,) and information (q, q) of the regression of all persons."""
        return _newton(z, at, exposed, happened, happened.sum(axis=1))

    def _rise(self, coefficients: Array) -> Array:
        """(N,) how much larger hazards are."""
        return _exp(self._design @ coefficients)

    def _expect(self, theta: Array) -> tuple[Array, Array]:
        """Events, and time at risk, of those who have a part; (k, N)."""
        world = self._make_world(theta)
        exposed = world.stays * self.world.complete
        return exposed * world.events, exposed * self._width[:, None]

    def refer(
        self, theta: Array, at: Array | None = None, narrow: Bools | None = None
    ) -> Reference:
        world, (_, _, gamma) = self._make_world(theta), self._of(theta)
        happened, exposed = self._expect(theta)
        linear, taken = self.linear, self.world.taken(narrow)
        z, events = self._design[:, :linear] * taken, happened.sum(axis=1)
        found = (theta[:linear] if at is None else at) * taken
        ridge = 1e-4 * events.sum() * np.eye(linear)
        # The first reference is that of no effect.
        for _ in range(_NEWTON_ROUNDS if at is None and theta[: self.coefficients].any() else 0):
            score, information = self._newton(z, found, exposed, happened, narrow)
            step = np.clip(np.linalg.solve(information + ridge, score), -1.0, 1.0)
            found = found + step
            if np.abs(step).max() < _SETTLED:
                break
        _, information = self._newton(z, found, exposed, happened, narrow)
        full = np.append(found, np.zeros(self.coefficients - linear))
        expected = _exp(z @ found) * exposed
        hazard = events / np.maximum(expected.sum(axis=1), 1e-12)
        return Reference(
            full,
            information / len(z) + np.diag(1 - taken + LEAST_INFORMATION),
            hazard,
            _means(expected, self._design),
            gamma,
            world.lost,
            _means(exposed * self._rise(gamma), self._design),
            self._width[:, None] * _spent(world.both),
        )

    def scores(self, reference: Reference, design: Array, coded: Coded) -> Array:
        found = np.empty((len(design), self.entries))
        for at in range(0, len(design), _ROWS_AT_ONCE):
            some = slice(at, at + _ROWS_AT_ONCE)
            rows = {
                name: coded[name][some] for name in (self._times.column.name, self._times.event)
            }
            found[some] = self._score(reference, design[some], rows)
        return found

    def _follow(self, coded: Coded) -> tuple[Array, Array, Array]:
        """Of each interval and row, (k, N): an event, a loss, and time at risk."""
        time, event = coded[self._times.column.name], coded[self._times.event]
        known = ~(np.isnan(time) | np.isnan(event))
        share = np.where(known, share_of(self._times.column, np.where(known, time, 0.0)), 0.0)
        share = np.where(time >= self._times.column.bounds[1], 1.0, share)
        start, end, width = (x[:, None] for x in (self._cuts[:-1], self._cuts[1:], self._width))
        exposed = np.clip(share - start, 0.0, width)
        inside = (share > start) & (share <= end)
        inside[0] |= share <= 0
        happened = inside * np.where(known, event, 0.0)
        lost = inside * np.where(known & (share < 1.0), 1 - event, 0.0)
        return happened, lost, exposed * known

    def _score(self, reference: Reference, design: Array, coded: Coded) -> Array:
        happened, lost, exposed = self._follow(coded)
        hazard, means, mine = self._look_up(reference, design)
        residual, kept = _residual(happened, _exp(design @ reference.coefficients), hazard, exposed)
        curvature = _curve(kept, design, means, self.pairs, mine)
        score = design * residual.sum(axis=0)[:, None] - _sum_means(residual, means, mine)
        left, _ = _residual(
            lost, _exp(design @ reference.leaving), reference.lost[:, None], exposed
        )
        leaving = design * left.sum(axis=0)[:, None] - left.T @ reference.lost_means
        return np.column_stack(
            [score, residual.T @ self._blocks, leaving[:, : self.linear], curvature]
        )

    def _look_up(self, reference: Reference, design: Array) -> tuple[Array, Array, Some]:
        """Rows' baselines (k, N), or (k, 1) of everybody; means of those at risk, (strata, k,
        width), and of which stratum each row is."""
        return reference.hazard[:, None], reference.means[None], slice(None)

    def imagine(self, reference: Reference, turn: Array, bounded: bool = True) -> Courses | Divided:
        return self._imagine_some(reference, turn, bounded, slice(None))

    def _imagine_some(
        self, reference: Reference, turn: Array, bounded: bool, some: Some
    ) -> Courses:
        """Of some persons."""
        most, width = _MOST_HAZARD if bounded else _UNBOUNDED, self.coefficients
        z, spent, blocks = self._design[some], reference.spent[:, some], width + BLOCKS
        scores, own, leaving, curved = np.split(turn, [width, blocks, blocks + self.linear])
        risk = _exp(z @ reference.coefficients)
        whole, part, counted = self._imagine(risk, reference.hazard, spent, most)
        means = reference.means @ scores - self._blocks @ own
        events, losses = Kind(z @ scores, means, whole, part, counted), None
        if leaving.any():
            lost = self._imagine(_exp(z @ reference.leaving), reference.lost, spent, most)
            means = reference.lost_means[:, : self.linear] @ leaving
            losses = Kind(z[:, : self.linear] @ leaving, means, *lost)
        bends = []
        for pair, entries in zip(self.pairs, curved, strict=True):
            if entries.any():
                squares = _products(z, reference.means[None], pair, slice(None))
                bends.append(Bend(whole * squares, part * squares, entries))
        kinds = [np.concatenate([scores, own]), leaving, curved]
        if np.any(np.sum([kind.any(axis=0) for kind in kinds], axis=0) > 1):
            raise ValueError("a sum of entries is of one kind")
        there = self.world.complete[some]
        each = np.broadcast_to(there, whole.shape)
        return Courses(events, losses, bends, Ways(each, each, there))

    def _imagine(
        self, risk: Array, hazard: Array, spent: Array, most: float
    ) -> tuple[Array, Array, Array]:
        """What was expected, up to so much in all, within an interval passed, or left, and whether
        who leaves it is followed until then; (k, N)."""
        passed = risk * (hazard * self._width)[:, None]
        start = sum_before(passed)
        until = start + risk * hazard[:, None] * spent
        begun = np.minimum(start, most)
        whole, part = np.minimum(start + passed, most) - begun, np.minimum(until, most) - begun
        return whole, part, (until < most - 1e-9).astype(np.float64)


def _leave_some(goal: Array) -> Array:
    """Goals (2, k) of which none takes nearly all who are at risk: no hazard does."""
    kept, there = [], 1.0
    for leaving in goal.sum(axis=0).tolist():
        kept.append(min(1.0, _MOST_LEAVING * there / max(leaving, 1e-12)))
        there -= kept[-1] * leaving
    return np.asarray(goal * kept)


def _bend_baseline(risks: Array, parts: Array, left: Array, stays: Array) -> Array:
    """(2 k, 2 k) by how much baselines are to move, where all else stays as it is, for each number
    of events and losses to move by so much; of logarithms.

    Whoever leaves in an interval is not at risk in later ones. Where all leave at once more hazard
    is no more events; of what an interval's own hazards share a little less is taken than there is,
    so that there is always an answer.
    """
    bend = _bend_stays(left, stays, parts[0] + parts[1])
    size, flat = stays.shape[0], parts.reshape(-1, stays.shape[1])
    later = np.tile(np.tri(size, k=-1), 2)
    rows = []
    for risk in risks:
        moved = -((risk * stays) @ flat.T) * later
        itself = _SHARED * (risk * bend * parts).sum(axis=2)
        moved += np.concatenate([np.diag(itself[0]), np.diag(itself[1])], axis=1)
        rows.append(moved / np.maximum((risk * stays).sum(axis=1), 1e-12)[:, None])
    return np.asarray(np.linalg.inv(np.eye(2 * size) + np.concatenate(rows)))


def _raise_by(base: Array, risks: Array) -> Array:
    """(2, k, N) hazards of both kinds: baselines (2, k) times risks."""
    return np.asarray(base[:, :, None] * (risks if risks.ndim > 2 else risks[:, None]))


def _add_hazards(base: Array, risks: Array) -> Array:
    """(k, N) of both kinds together."""
    return base.T @ risks if risks.ndim == 2 else np.asarray(_raise_by(base, risks).sum(axis=0))


def _add_risks(risks: Array, there: Array) -> Array:
    """(2, k) Σ over persons of those there, (k, N), each times their risks."""
    return risks @ there.T if risks.ndim == 2 else np.asarray((risks * there).sum(axis=2))


def _products(design: Array, means: Array, pair: tuple[int, int], mine: Some) -> Array:
    """(k, N) of two columns' distances from the means of those at risk, (strata, k, width)."""
    one, other = ((design[:, j] - means[mine, :, j].T) for j in pair)
    return np.asarray(one * other)


def _curve(
    weights: Array, design: Array, means: Array, pairs: Sequence[tuple[int, int]], mine: Some
) -> Array:
    """(N, pairs) Σ over intervals of weights (k, N) times :func:`_products`, which need not be laid
    out: a product of distances is a sum of products."""
    if not pairs:
        return np.zeros((len(design), 0))
    one, other = (list(each) for each in zip(*pairs, strict=True))
    among = means[..., one] * means[..., other]
    meant, squared = (_sum_means(weights, each, mine) for each in (means, among))
    apart = design[:, one] * meant[:, other] + design[:, other] * meant[:, one]
    whole = design[:, one] * design[:, other] * weights.sum(axis=0)[:, None]
    return np.asarray(whole - apart + squared)


def _sum_means(residual: Array, means: Array, mine: Some) -> Array:
    """(N, width) of residuals (k, N) times means (strata, k, width)."""
    if len(means) == 1:
        return np.asarray(residual.T @ means[0])
    found = np.zeros((residual.shape[1], means.shape[2]))
    for number, each in enumerate(residual):
        found += each[:, None] * means[mine, number]
    return found


def _newton(
    z: Array, at: Array, exposed: Array, happened: Array, events: Array
) -> tuple[Array, Array]:
    """Score (q,) and information (q, q) of a proportional hazards regression at a coefficient."""
    expected = _exp(z @ at) * exposed
    at_risk = np.maximum(expected.sum(axis=1), 1e-12)
    means = expected @ z / at_risk[:, None]
    score = happened.sum(axis=0) @ z - events @ means
    weight = (events / at_risk) @ expected
    return score, (z * weight[:, None]).T @ z - (means * events[:, None]).T @ means


def _residual(happened: Array, risk: Array, hazard: Array, exposed: Array) -> tuple[Array, Array]:
    """What happened less what was expected, up to L in all, and the latter; (k, N)."""
    expected = risk * (hazard * exposed)
    before = sum_before(expected)
    risen = before + expected
    kept = np.minimum(risen, _MOST_HAZARD) - np.minimum(before, _MOST_HAZARD)
    counted = risen[-1] < _MOST_HAZARD - 1e-9
    return happened * counted - kept, kept


def _means(weights: Array, design: Array) -> Array:
    """(k, width) of the design by weights (k, N)."""
    total = np.maximum(weights.sum(axis=1), 1e-12)
    return np.asarray(weights @ design / total[:, None])


def _exp(values: Array) -> Array:
    return np.asarray(np.exp(np.minimum(np.maximum(values, -_MOST), _MOST)))


def _leave(falls: Array) -> tuple[Array, Array]:
    """Who is left at each cut, (k + 1, N), and how much of each interval they spend in it on
    average, (k, N); by cumulative hazards Λ > 0 within intervals, of which these are the negatives.

    One exponential for them all: :math:`∫_0^1 e^{-Λs} ds = (e^{-Λ} - 1) / (-Λ)`.
    """
    lost = np.expm1(falls)
    kept, left = 1 + lost, np.empty((len(falls) + 1, *falls.shape[1:]))
    left[0] = 1.0
    for at, share in enumerate(kept):
        np.multiply(left[at], share, out=left[at + 1])
    stays = np.divide(lost, falls, out=lost)
    stays *= left[:-1]
    return left, stays


def _bend_stays(left: Array, stays: Array, hazard: Array) -> Array:
    """(k, N) by how much what :func:`_leave` says of an interval changes with its Λ."""
    exact = (left[1:] - stays) / hazard
    return np.where(hazard > 1e-3, exact, left[:-1] * (hazard / 3 - 0.5))


def _spent(hazard: Array) -> Array:
    """How far into an interval who leaves it is, on average."""
    large = np.clip(hazard, 1e-2, 500.0)
    return np.where(hazard > 1e-2, 1 / large - 1 / np.expm1(large), 0.5 - hazard / 12)

r"""Who is seen when: the first and the last visit, how many there are, and which between.

Three histograms say it, in each of which a person is one cell: of (first, last); of how many of the
visits between the two, both among them, by how many there could be; and, a cell a visit, of whom
is there. Whoever has dropped out never returns, whatever noise does to the counts.

A person is drawn by three standard Gaussians, which may go with what is measured of them (the last
visit, the first given the last, how many given both), and by T uniforms, which decide which visits
between are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]

LATENTS = 3
"""Numbers that say how a person attends: last, first, and how many visits."""

_ROUNDS = 12
"""Of fitting which visits between the first and the last are attended to what was counted."""

_LEAST_SPREAD = 0.25


def cells_of(count: int) -> int:
    """Cells of a histogram of pairs a ≤ b below T."""
    return count * (count + 1) // 2


def pair_cell(low: Whole, high: Whole) -> Whole:
    """The cell of a pair 0 ≤ low ≤ high."""
    return np.asarray(high * (high + 1) // 2 + low)


def spans_of(there: Bools) -> tuple[Whole, Whole, Whole]:
    """First and last visit, and their number, (n,) each; of whom is never there 0, 0 and 0."""
    count = there.shape[1]
    seen = there.any(axis=1)
    first = np.where(seen, there.argmax(axis=1), 0)
    last = np.where(seen, count - 1 - there[:, ::-1].argmax(axis=1), 0)
    return first.astype(np.int64), last.astype(np.int64), there.sum(axis=1).astype(np.int64)


def count_attendance(there: Bools) -> list[Whole]:
    """Persons by (first, last); by (visits, the most there could be); visits by time point; and
    how many persons there are."""
    count, seen = there.shape[1], there.any(axis=1)
    first, last, visits = spans_of(there)
    cells = cells_of(count)
    found = []
    for low, high in ((first, last), (np.maximum(visits - 1, 0), last - first)):
        place = np.where(seen, pair_cell(low, high), cells)
        found.append(np.bincount(place, minlength=cells + 1)[:cells])
    return [*found, there.sum(axis=0).astype(np.int64), np.array([np.count_nonzero(seen)])]


def spans_once(present: Array) -> Array:
    """Persons by (first, last), where everybody is at one time point."""
    at = np.arange(len(present))
    spans = np.zeros(cells_of(len(present)))
    spans[pair_cell(at, at)] = present
    return spans


@dataclass(frozen=True, slots=True)
class Stops:
    """When follow-up ends, (n,): the time; whether by the event; the last time point reached."""

    time: Array
    event: Bools
    point: Whole


class Ending(Protocol):
    """What says when persons' follow-up ends, and their last visit then."""

    def draw(self, latents: Array) -> Stops: ...
    def draw_last(self, stops: Stops, chances: Array) -> Whole: ...


@dataclass(frozen=True, slots=True)
class Attendance:
    """As released.

    Attributes:
        spans: (T, T) shares by [last, first]; visits: (T, T) shares by [width, visits - 1].
        odds: (T,), by which a visit between the first and the last is kept.
        ending: of follow-up, which says which visit is the last; None: ``spans`` does.
    """

    spans: Array
    visits: Array
    odds: Array
    ending: Ending | None = None

    @classmethod
    def read(
        cls,
        spans: Array,
        visits: Array,
        present: Array,
        persons: float,
        most: int,
        latents: Array,
        uniforms: Array,
        ending: Ending | None = None,
    ) -> Attendance:
        """From noisy counts.

        Args:
            spans, visits: cells of :func:`pair_cell`; present: (T,), at each time point.
            most: visits that a person can have.
            latents, uniforms: as of :meth:`draw`, evenly spread, of persons on whom odds are
                fitted.
        """
        count = len(present)
        high, low = np.tril_indices(count)
        both = []
        once = low == high if most == 1 else low <= high
        if most == 1:
            visits = spans_once(np.append(persons, np.zeros(count - 1)))
        for counted, possible in ((spans, once), (visits, low < most)):
            square = np.zeros((count, count))
            kept = onto_simplex(np.where(possible, counted, -np.inf), persons)
            square[high, low] = kept
            both.append(square)
        shares = _smoothed(both[0]), _smoothed(both[1])
        goal = np.clip(present / persons, 1e-4, 1.0)
        odds = np.ones(count)
        for _ in range(_ROUNDS):
            there = cls(*shares, odds, ending).draw(latents, uniforms)
            odds = np.clip(odds * (goal / np.maximum(there.mean(axis=0), 1e-4)), 1e-3, 1e3)
        return cls(*shares, odds, ending)

    def draw(self, latents: Array, uniforms: Array) -> Bools:
        """(N, T) who is there; uniforms (N, T), latents (N, 3) standard Gaussians, and behind them
        those of the ending."""
        count, chances = len(self.odds), ndtr(latents[:, :LATENTS])
        if self.ending is None:
            last = _invert(self.spans.sum(axis=1)[None, :], chances[:, 0])
        else:
            last = self.ending.draw_last(self.ending.draw(latents[:, LATENTS:]), chances[:, 0])
        first = _invert(self.spans[last], chances[:, 1])
        width = last - first
        visits = 1 + np.minimum(_invert(self.visits[width], chances[:, 2]), width)
        at = np.arange(count)
        ends = (at == first[:, None]) | (at == last[:, None])
        between = (at > first[:, None]) & (at < last[:, None])
        # Without replacement, by odds (Efraimidis & Spirakis 2006).
        keys = np.log(np.maximum(uniforms, 1e-300)) / self.odds
        rank = np.argsort(np.argsort(np.where(between, -keys, np.inf), axis=1), axis=1)
        kept: Bools = ends | (between & (rank < (visits - 2)[:, None]))
        return kept


@dataclass(frozen=True, slots=True)
class AttendanceScores:
    """Last and first visit and their number as numbers of mean 0 and spread 1, roughly.

    Where follow-up ends, the last visit counts from the last time point that it reaches."""

    middle: Array
    spread: Array

    @classmethod
    def of(cls, there: Bools, stops: Stops | None = None) -> AttendanceScores:
        """Of imagined persons, all of whom are seen."""
        raw = _raw_scores(there, stops)
        return cls(raw.mean(axis=0), np.maximum(raw.std(axis=0), _LEAST_SPREAD))

    def __call__(self, there: Bools, stops: Stops | None = None) -> Array:
        """(n, 3)."""
        return np.asarray((_raw_scores(there, stops) - self.middle) / self.spread)

    @property
    def reach(self) -> float:
        """In spreads, however far somebody is."""
        return 3.0


def _raw_scores(there: Bools, stops: Stops | None) -> Array:
    first, last, visits = spans_of(there)
    late = last if stops is None else last - stops.point
    return np.column_stack([late, first, visits]).astype(np.float64)


def onto_simplex(counts: Array, total: float) -> Array:
    """The nearest counts ≥ 0 that add up to the total (Duchi et al. 2008).

    Of noisy counts that are cut off at 0 the sum would be too large, by noise alone.
    """
    falling = np.sort(counts)[::-1]
    usable = np.isfinite(falling)
    risen = np.cumsum(np.where(usable, falling, 0.0))
    level = (risen - total) / np.arange(1, len(falling) + 1)
    last = int(np.flatnonzero(usable & (falling > level))[-1])
    return np.asarray(np.maximum(counts - level[last], 0.0))


def _smoothed(square: Array) -> Array:
    """Shares, none of them 0 where it is possible: everybody has some number of visits."""
    lower = np.tril(np.full(square.shape, 1e-9))
    shares = square + lower * max(float(square.sum()), 1.0)
    return np.asarray(shares / shares.sum())


def _invert(shares: Array, chances: Array) -> Whole:
    """(N,) places by chances (N,), of shares (N, T), or (1, T) for all."""
    risen = np.cumsum(shares, axis=1)
    risen = risen / risen[:, -1:]
    place: Whole = (chances[:, None] >= risen[:, :-1]).sum(axis=1)
    return place

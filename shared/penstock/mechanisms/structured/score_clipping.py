"""How far out rows' scores are clipped, and their noisy sum.

A person is one vector of weighed scores, of all their rows, clipped to norm 1. The weights follow
from how far the entries of the released population's scores reach: in the first rounds few exceed
the norm; in the last ones noise and what clipping may hide of rows further out are least together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.outcomes.protocol import LEAST_INFORMATION
from penstock.mechanisms.structured.score_questions import Question
from penstock.mechanisms.tables.moments import clip_rows, row_unit, whole_vectors
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Places = NDArray[np.intp]
Whole = NDArray[np.int64]

_ROWS_AT_ONCE = 1 << 12
"""Persons summed together: their numbers stay in the processor's cache."""

_LEAST_REACH, _CELLS, _SPARSE = 0.3, 256, 4

LAST_TAILS = 0.998
"""Quantile that the last rounds do not clip where declared columns have tails."""

_REACHES = (
    *((reach, 1.0) for reach in (0.95, 0.98, 0.99, 0.998, 0.9995, 1.0)),
    *((1.0, further) for further in (1.5, 2.0, 3.0)),
)
"""Quantiles of the world that the last rounds try, and so many times what lies there."""

_FURTHER_OUT = 1.5
"""By how much further out rows may lie than the world, where what clipping takes is guessed."""

UNIT = row_unit(1.0)
"""Of the whole numbers that a sum is made of."""


class _Laid(Protocol):
    """Scores of persons, of one reference or of several."""

    def lay_out(self, every: int = 1) -> Array:
        """(outcomes, N / every, q) of some persons."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the entries of some persons' scores are.

    Attributes:
        entries: (q, o) of each entry, of each way; chances: (o,) of these.
    """

    entries: Array
    chances: Array

    @classmethod
    def of(cls, imagined: _Laid, chances: Array) -> Sizes:
        sparse = chances[::_SPARSE].T.ravel()
        laid = np.moveaxis(imagined.lay_out(_SPARSE), 2, 0)
        return cls(np.abs(laid, out=laid).reshape(-1, len(sparse)), sparse)

    def drop(self, gone: Sequence[int]) -> Sizes:
        """The same without some entries."""
        return Sizes(np.delete(self.entries, gone, axis=0), self.chances)

    def lengths(self, weights: Array) -> Array:
        """(o,) of the vectors, each entry times its weight."""
        return np.asarray(np.sqrt(weights**2 @ self.entries**2))

    def quantiles(self, reach: float) -> Array:
        """(q,) of each entry."""
        return np.array([_quantile(each, self.chances, reach) for each in self.entries])

    def choose_weights(self, importance: Array, reach: float) -> Array:
        """(q,) by which entries are multiplied before they are clipped to norm 1: so that few are,
        and the noise of each is in proportion to what it reaches."""
        weights = importance / np.sqrt(np.maximum(self.quantiles(reach), _LEAST_REACH))
        length = _quantile(self.lengths(weights), self.chances, reach)
        return np.asarray(weights / max(length, 1e-9))


def weigh_reach(sizes: Sizes, question: Question, sd: float, unseen: float) -> tuple[Array, Array]:
    """Weights for which noise and what clipping may hide are least together; and the latter, an sd
    of each entry's mean: so much of what it takes of persons of the world as may be otherwise of
    rows, whose tails nobody has seen."""
    asked, least, chances = len(question.terms), np.inf, sizes.chances
    scale = np.sqrt(np.maximum(np.diag(question.information), LEAST_INFORMATION))
    best = np.zeros(len(sizes.entries)), np.zeros(len(sizes.entries))
    for reach, further in _REACHES:
        ends = sizes.quantiles(min(reach, LAST_TAILS))
        weights = question.importance / np.sqrt(np.maximum(ends, _LEAST_REACH))
        lengths = sizes.lengths(weights)
        longest = max(further * _quantile(lengths, chances, reach), 1e-9)
        weights = weights / longest
        taken = 1 - 1 / np.maximum(_FURTHER_OUT * lengths / longest, 1.0)
        missed = unseen * (sizes.entries @ (chances * taken)) / chances.sum()
        error = np.hypot(sd / weights, missed)[:asked] / scale
        if (total := float(np.sum(error**2))) < least:
            least, best = total, (weights, missed)
    return best


def _quantile(values: Array, chances: Array, reach: float) -> float:
    """Of values (o,), at least 0, each with its chance: beyond it is at most 1 - reach of these."""
    beyond, most = (1 - reach) * float(chances.sum()), float(values.max())
    # Only those of the cell in which it lies are sorted.
    cells = (values * (_CELLS / max(most, 1e-300))).astype(np.intp)
    risen = np.cumsum(np.bincount(cells, chances, _CELLS + 1)[::-1])
    first = min(int(np.searchsorted(risen, beyond, side="right")), _CELLS)
    mine = np.flatnonzero(cells == _CELLS - first)
    mine = mine[np.argsort(-values[mine])]
    further = np.cumsum(chances[mine]) > beyond - (risen[first - 1] if first else 0.0)
    return float(values[mine[np.argmax(further) if further.any() else -1]])


def release_scores(
    scores: Array,
    present: Bools,
    per_person: int,
    measurement: WholeSum | None,
    noise: NoiseSource,
) -> Array:
    """Σ over persons of their rows' summed scores, clipped to norm 1, with noise."""
    total = np.zeros(scores.shape[1], dtype=np.int64)
    for whole, _ in _bound_persons(scores, present, per_person):
        total += whole.sum(axis=0)
    if measurement is None:
        return np.asarray(total * UNIT)
    return measurement(total, noise)


def sum_levels(scores: Array, present: Bools, per_person: int, level: Places, levels: int) -> Whole:
    """(levels · q,) the same for each level apart, in whole multiples of :data:`UNIT`, and without
    noise.

    Sensitivity: 1 in L2, zero-out of one person: whatever a person's rows say, all of the person is
    one vector of norm at most 1, and in the block of one level.

    Args:
        level: (n·k,) of each row. A person's is the last one of those of the rows that are there.
    """
    total = np.zeros((levels, scores.shape[1]), dtype=np.int64)
    for whole, at in _bound_persons(scores, present, per_person):
        some = slice(at, at + len(whole) * per_person)
        own = np.where(present[some], level[some], 0).reshape(-1, per_person).max(axis=1)
        total += (own[:, None] == np.arange(levels)).astype(np.int64).T @ whole
    return total.ravel()


def _bound_persons(scores: Array, present: Bools, per_person: int) -> Iterator[tuple[Whole, int]]:
    """Whole vectors of norm at most 1, of some persons after the others; and their first row."""
    for at in range(0, len(scores), _ROWS_AT_ONCE * per_person):
        some = slice(at, at + _ROWS_AT_ONCE * per_person)
        there = np.where(present[some][:, None], scores[some], 0.0)
        each = there.reshape(-1, per_person, scores.shape[1]).sum(axis=1)
        someone = np.asarray(present[some].reshape(-1, per_person).any(axis=1))
        yield whole_vectors(clip_rows(each, 1.0), someone, 1.0)[0], at

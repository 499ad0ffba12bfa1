r"""Levels without an order that a multinomial regression is asked of.

.. math:: P(y = k \mid z) ∝ e^{α_k + z·β_k},\qquad β_0 = 0

with α such that the released population has, as a whole, the shares that were counted
(:mod:`.counted`): each level's coefficients are against the first. θ has those of the linear
columns, level by level, and then those of bends. *Scores* are those of the declared regression,
with residuals :math:`r_k = 1\{y = k\} - p_k(z·b)` of the m levels beside the first,

.. math:: u_{kj} = z_j r_k - \sum_l M_{kj,l} r_l

M such that u is blind to all intercepts, to first order. Counts alone say how many have a level.
Tails of columns are not asked for: rows' curvatures would be of each pair of levels.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.outcomes.counted import (
    LEAST_SHARE,
    Counted,
    tilt_chances,
    turn_tilt,
)
from penstock.mechanisms.structured.outcomes.protocol import LEAST_INFORMATION, World
from penstock.mechanisms.structured.outcomes.support import Support
from penstock.questions.fits.baseline import Baseline, inform_levels, level_chances
from penstock.questions.fits.newton import maximise
from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Places = NDArray[np.intp]

_PRIOR, _BEND_PRIOR = 1.0, 0.3
"""Sds of coefficients, of standardised columns."""

_UNASKED = 0.9
"""Importance of a level that no estimand names, beside that of one."""

_RIDGE = 1e-6
_MOST_LEANING = 400.0


@dataclass(frozen=True, slots=True)
class Lines:
    """The declared regression: coefficients as θ has them, zeros for bends; a person's information
    (m linear, m linear) beside all intercepts; intercepts (m,); and M (m width, m)."""

    coefficients: Array
    information: Array
    levels: Array
    shared: Array


@dataclass(frozen=True, slots=True)
class Crossed:
    """Sums of entries of the scores of all persons, for each level that they may have: with r its
    residuals, Σ r_k A_k.

    Args:
        by_level: A of the levels beside the first, (m, N, q); expected: Σ p_k A_k, (N, q), which
            is taken off whatever the level is.
        kept: (N, c) by how much each is shortened; 0 of who has no part.
    """

    by_level: Array
    expected: Array
    kept: Array

    def weigh(self, weights: Array) -> Crossed:
        """Each entry times its weight."""
        return replace(self, by_level=self.by_level * weights, expected=self.expected * weights)

    def square(self) -> list[Array]:
        """Squared lengths, (N, c)."""
        a, e = self.by_level, self.expected
        own = np.einsum("nq,nq->n", e, e)
        beside = np.einsum("knq,knq->nk", a, a) - 2 * np.einsum("knq,nq->nk", a, e)
        return [own[:, None] + np.column_stack([np.zeros(len(own)), beside])]

    def shorten(self, squares: Sequence[Array]) -> Crossed:
        """Vectors of which these are the squared lengths at most of length 1."""
        return replace(self, kept=self.kept / np.sqrt(np.maximum(squares[0], 1.0)))

    def sum_persons(self, weights: Array) -> Array:
        """(N, q) Σ over levels, weighted."""
        each = weights * self.kept
        found = np.einsum("nk,knq->nq", each[:, 1:], self.by_level)
        return np.asarray(found - each.sum(axis=1)[:, None] * self.expected)

    def sum_values(self, weights: Array) -> Array:
        """(c, q) Σ over persons, weighted."""
        each = weights * self.kept
        found = -(each.T @ self.expected)
        found[1:] += np.einsum("nk,knq->kq", each[:, 1:], self.by_level)
        return np.asarray(found)

    def lay_out(self, every: int = 1) -> Array:
        """(c, N / every, q) of some persons."""
        a, e = self.by_level[:, ::every], self.expected[::every]
        whole = np.concatenate([np.zeros((1, *e.shape)), a]) - e
        return np.asarray(self.kept[::every].T[:, :, None] * whole)


class Contrasts(Counted[Lines, Crossed]):
    """The model of one column.

    Args:
        support: its levels, as counted; world: the persons.
        asked: places of the levels that estimands name.
    """

    def __init__(self, support: Support, world: World, asked: Collection[int]) -> None:
        self._levels = len(support.values) - 1
        m, linear, width = self._levels, world.linear, world.design.shape[1]
        each = np.array([1.0 if k + 1 in asked else _UNASKED for k in range(m)])
        wide = replace(
            world,
            linear=m * linear,
            importance=_in_order(each[:, None] * world.importance, linear),
            declared=np.tile(world.declared, m),
            pairs=(),
            fixed=np.tile(world.fixed, m),
            wide=np.tile(world.wide, m),
            regressions=tuple(one.repeat(m) for one in world.regressions),
        )
        super().__init__(support, wide, np.zeros((0, m + 1)))
        self.coefficients = m * width
        self._each = linear
        # Where θ has each level's coefficients, (m, width).
        self._places = np.empty((m, width), dtype=np.intp)
        within = np.arange(m)[:, None]
        self._places[:, :linear] = within * linear + np.arange(linear)
        self._places[:, linear:] = (
            m * linear + within * (width - linear) + np.arange(width - linear)
        )
        self._asked = sorted(asked)

    def prior(self) -> Array:
        sds = np.full(self.size, _PRIOR)
        sds[: self.linear] *= self.wide
        sds[self.linear :] = _BEND_PRIOR
        return np.diag(sds**-2)

    def importance(self, again: bool) -> Array:
        return self.asked

    # -- the world ---------------------------------------------------------------------------------

    def _lean(self, theta: Array, design: Array) -> Array:
        leaning = np.clip(design @ theta[self._places].T, -_MOST_LEANING, _MOST_LEANING)
        return np.column_stack([np.zeros(len(design)), leaning])

    def look(self, theta: Array, found: Crossed) -> Array:
        return np.asarray(found.sum_persons(self.chances(theta)).mean(axis=0))

    def slopes(self, theta: Array, found: Crossed) -> Array:
        chances, n, z = self.chances(theta), len(self._design), self._design
        there = np.maximum(chances.mean(axis=0), LEAST_SHARE)
        mean = found.sum_persons(chances)
        # By α, which follows θ so that the shares stay.
        by_tilt = (found.sum_values(chances) - chances.T @ mean) / n
        result, moved = np.empty((mean.shape[1], self.size)), np.empty((len(there), self.size))
        for k, places in enumerate(self._places):
            own = chances[:, k + 1]
            each = (found.by_level[k] - found.expected) * found.kept[:, k + 1, None] - mean
            result[:, places] = (each * own[:, None]).T @ z / n
            moved[:, places] = (chances * own[:, None]).T @ z / n
            moved[k + 1, places] -= own @ z / n
        return np.asarray(result + by_tilt.T @ turn_tilt(chances, there, moved))

    def inform(self, theta: Array) -> float:
        """Of the contrast that is asked about and tells least, whatever others are."""
        chances = self.chances(theta)
        first, others = chances[:, :1], chances[:, self._asked]
        return float((first * others / np.maximum(first + others, LEAST_SHARE)).mean(axis=0).min())

    def _move(self, theta: Array, tilt: Array, design: Array, added: Array) -> Array:
        """To the logit of every level against the first."""
        logs = tilt + self._lean(theta, design)
        logs[:, 1:] += added[:, None]
        return tilt_chances(logs)

    # -- the declared regression -------------------------------------------------------------------

    def refer(self, theta: Array, at: Array | None = None, narrow: Bools | None = None) -> Lines:
        chances, m, n = self.chances(theta), self._levels, len(self._design)
        whole = float(self.world.complete.sum())
        # Of nobody there are levels all the same.
        weights = (self.world.complete if whole else np.ones(n)) / (whole or n)
        taken = self.world.taken(narrow).reshape(m, -1)
        z = self._design[:, : self._each]
        line = np.zeros((m, self._each))
        # The first reference is that of no effect.
        moved = taken[0] > 0
        if at is not None or not theta[: self.coefficients].any():
            moved = np.zeros(self._each, dtype=np.bool_)
        if at is not None:
            line = at.reshape(m, -1) * taken
        x, fixed = np.column_stack([np.ones(n), z[:, moved]]), z[:, ~moved] @ line[:, ~moved].T
        shares = np.maximum(weights @ chances, LEAST_SHARE)
        start = np.zeros((m, x.shape[1]))
        start[:, 0] = np.log(shares[1:] / shares[0])
        likelihood = Baseline(chances[:, 1:], x, weights, _RIDGE, fixed)
        found = maximise(likelihood, start.ravel()).coefficients.reshape(m, -1)
        line[:, moved] = found[:, 1:]
        predicted = level_chances(found[:, 0] + z @ line.T)
        return self._finish(found[:, 0], line, predicted, weights, taken[0], whole / n)

    def _finish(
        self,
        levels: Array,
        line: Array,
        predicted: Array,
        weights: Array,
        taken: Array,
        part: float,
    ) -> Lines:
        """The reference, with how much it tells; ``part``: of the persons, who has one."""
        m, width = self._levels, self._design.shape[1]
        every = np.column_stack([np.ones(len(weights)), self._design])
        whole = inform_levels(predicted, every, weights).reshape(m, 1 + width, m, 1 + width)
        among = whole[:, 0, :, 0] + LEAST_INFORMATION * np.eye(m)
        mixed = whole[:, 1:, :, 0]
        shared = np.zeros((self.coefficients, m))
        shared[self._places] = np.linalg.solve(among, mixed.reshape(-1, m).T).T.reshape(m, width, m)
        at = self._places[:, : self._each].ravel()
        own = whole[:, 1 : 1 + self._each, :, 1 : 1 + self._each].reshape(len(at), len(at))
        left = own - shared[at] @ mixed[:, : self._each].reshape(len(at), m).T
        there = np.tile(taken, m)
        left = left * there[:, None] * there * part
        coefficients = np.zeros(self.coefficients)
        coefficients[self._places[:, : self._each]] = line
        information = left + np.diag(1 - there + LEAST_INFORMATION)
        return Lines(coefficients, information, levels, shared)

    def scores(self, reference: Lines, design: Array, coded: Coded) -> Array:
        level = coded[self._support.grid.column.name]
        known = ~np.isnan(level)
        there = level[:, None] == np.arange(1, self._levels + 1)
        residual = np.where(known[:, None], there - self._expect(reference, design), 0.0)
        found = -(residual @ reference.shared.T)
        for k, places in enumerate(self._places):
            found[:, places] += design * residual[:, k, None]
        return np.asarray(found)

    def imagine(self, reference: Lines, turn: Array, bounded: bool = True) -> Crossed:
        """A row's part has no bound of its own."""
        design, there = self._design, self.world.complete
        among = reference.shared.T @ turn
        by_level = np.stack([design @ turn[at] for at in self._places]) - among[:, None]
        expected = np.einsum("nk,knq->nq", self._expect(reference, design), by_level)
        return Crossed(
            by_level,
            np.asarray(expected),
            np.broadcast_to(there[:, None], (len(there), self._levels + 1)),
        )

    def _expect(self, reference: Lines, design: Array) -> Array:
        """(N, m) p of the levels beside the first."""
        return level_chances(reference.levels + design @ reference.coefficients[self._places].T)


def _in_order(each: Array, linear: int) -> Array:
    """(m width,) of (m, width): all levels' linear columns, then bends."""
    return np.concatenate([each[:, :linear].ravel(), each[:, linear:].ravel()])

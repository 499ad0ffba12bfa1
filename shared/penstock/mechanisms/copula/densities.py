r"""A column's distribution from noisy counts, smooth as far as they do not speak.

Counts of a fine grid are mostly noise where a column is thin: in its tails, which weigh most in a
regression. What noise hides is not empty, and is not flat either. So the logarithm of the density
is bent as little as the counts allow:

.. math:: \min_p \sum_b (c_b - n p_b)^2 / 2v + \sum_k (p·x^k - m_k)^2 / 2v_k
          + λ h² \sum_b (\sqrt{1 + (Δ² \log p_b / h)²} - 1)

The penalty on second differences lets a tail that no count shows fall off exponentially (Silverman
1982, of penalised likelihoods); beyond h it grows linearly, so that piles and gaps which counts do
show stay sharp. Means and squares, released elsewhere, hold the tail's weight. Post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Places = NDArray[np.intp]

STIFFNESS, _BEND = 2.0, 0.3
"""λ and h; frozen on simulated columns and on tables that the studies do not show."""

STIFFNESSES, _CLEARLY = (18.0, 6.0, 2.0, 0.7), 2.0
"""λ of which the counts choose, where nobody asks of an outcome, and by how many sds of chance a
looser one has to be better. Frozen on tables that the study of whole tables (`private-utility`)
names."""

_ROUNDS, _SETTLED = 40, 1e-3


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a column beside its counts.

    Args:
        points: (b,) what each cell stands for; mean, square: as released, of the same numbers;
            their sds, of a square that was not released infinite.
        squares: (b,) of who is in each cell, on average; None: all are what it stands for.
    """

    points: Array
    mean: float
    mean_sd: float
    square: float = 0.0
    square_sd: float = math.inf
    squares: Array | None = None

    @property
    def squared_points(self) -> Array:
        """(b,) of each cell."""
        return np.asarray(self.points**2) if self.squares is None else self.squares

    def without(self, share: Array, apart: Sequence[int], bins: Places, inner: float) -> Known:
        """The same of a column's bins alone, of which ``inner`` of the rows are in one."""
        gone, squares = share[apart], self.squared_points
        return Known(
            self.points[bins],
            (self.mean - float(gone @ self.points[apart])) / inner,
            self.mean_sd / inner,
            (self.square - float(gone @ squares[apart])) / inner,
            self.square_sd / inner,
            squares[bins],
        )

    def powers(self) -> list[tuple[Array, float, float]]:
        """As :class:`Told` has it."""
        told = [(self.points, self.mean, self.mean_sd)]
        if math.isfinite(self.square_sd):
            told.append((self.squared_points, self.square, self.square_sd))
        return told


@dataclass(frozen=True, slots=True)
class Blocks:
    """Counts of wider cells, each of some of the narrow ones.

    Args:
        counts: (w,) noisy; of: (b,) which of them each narrow one is in; sd, rows: as of these.
    """

    counts: Array
    of: Places
    sd: float
    rows: float

    def powers(self) -> list[tuple[Array, float, float]]:
        """As :class:`Told` has it: of who is in one of them."""
        members = np.eye(len(self.counts))[:, self.of]
        error = float(np.sqrt(self.sd**2 + 1)) / self.rows
        return [(m, float(c) / self.rows, error) for m, c in zip(members, self.counts, strict=True)]


class Told(Protocol):
    """What is known of a column beside its counts."""

    def powers(self) -> list[tuple[Array, float, float]]:
        """What is averaged over the cells, (b,), its mean, and that one's error."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What a density is like unless counts show that it is not.

    Args:
        shares: (b,) of it, positive; stiffnesses: λ of bends away from it, from the stiffest on.
    """

    shares: Array
    stiffnesses: Sequence[float]


def estimate_density(
    counts: Array,
    sd: float,
    rows: float,
    known: Sequence[Told] = (),
    reference: Reference | None = None,
    joined: Array | None = None,
    stiffnesses: Sequence[float] = (STIFFNESS,),
) -> Array:
    r"""Shares of the cells, (b,), positive, adding up to 1.

    Of several λ a later one is taken where counts would clearly be missed less by it if they were
    made again, by Stein's unbiased estimate of risk (1981, Annals of Statistics 9, 1135-1151):
    :math:`\sum_b (c_b - n p_b)^2 + 2 v \sum_b ∂ n p_b / ∂ c_b`, of which two differ by chance by
    :math:`2 \sqrt{v} |n p - n p'|`.

    Args:
        counts: (b,) noisy; sd: of the noise on each; rows: how many they would add up to.
        reference: of whose logarithm log p is bent as little as can be, instead of a line.
        joined: (b,) of how many counts each is the sum, with their noise; None: of one.
        stiffnesses: λ, from the stiffest on, where there is no reference.
    """
    if reference is not None:
        stiffnesses = reference.stiffnesses
    weights = np.ones(len(counts)) if joined is None else 1 / joined
    fits = [_fit(counts, sd, rows, known, reference, weights, each) for each in stiffnesses]
    best, variance = fits[0], sd * sd + 1.0
    for fit in fits[1:]:
        apart = rows * (fit.shares - best.shares)
        chance = 2 * np.sqrt(variance * float(apart @ (weights * apart)))
        if best.risk(counts, rows, weights, variance) - _CLEARLY * chance > fit.risk(
            counts, rows, weights, variance
        ):
            best = fit
    return best.shares


@dataclass(frozen=True, slots=True)
class _Fit:
    """Shares, and the curvature where they were found, (b, b): all of it, and that by counts."""

    shares: Array
    curvature: Array
    counted: Array

    def risk(self, counts: Array, rows: float, weights: Array, variance: float) -> float:
        """As Stein has it, but for what no λ changes."""
        away = counts - rows * self.shares
        free = float(np.trace(np.linalg.solve(self.curvature, self.counted)))
        return float(away @ (weights * away)) + 2 * variance * free


def _fit(
    counts: Array,
    sd: float,
    rows: float,
    known: Sequence[Told],
    reference: Reference | None,
    weights: Array,
    stiffness: float,
) -> _Fit:
    """As of :func:`estimate_density`, with one λ; ``weights``: (b,) of the counts."""
    cells, variance = len(counts), sd * sd + 1.0
    start = np.maximum(counts, 0.3 + 0.3 * sd / np.sqrt(cells))
    if sd > 1 and cells > 8:
        start = np.convolve(np.pad(start, 2, mode="edge"), np.ones(5) / 5, "valid")

    second, away_from = _bend(cells), np.zeros(cells)
    if reference is not None:
        start = rows * reference.shares
        away_from = np.log(reference.shares)
    told = [power for one in known for power in one.powers()]
    points = np.array([x for x, _, _ in told]).reshape(-1, cells)
    goals, errors = (np.array([one[at] for one in told]) for at in (1, 2))

    def look(logs: Array) -> tuple[Array, Array, Array, Array, Array, float]:
        """Shares, by how much they are off what is known and counted, bends, how steep the penalty
        on these is, and the value."""
        share, bent = _softmax(logs), second @ (logs - away_from)
        missed, away = (goals - points @ share) / errors, counts - rows * share
        root = np.sqrt(1 + (bent / _BEND) ** 2)
        found = float(away @ (weights * away)) / (2 * variance) + float(missed @ missed) / 2
        now = found + stiffness * _BEND**2 * float((root - 1).sum())
        return share, missed, away, bent, stiffness / root, now

    logs = np.log(start / start.sum())
    share, missed, away, bent, weight, now = look(logs)
    damping, pull, moved = 1.0, np.zeros(cells), True
    curvature, counted = np.zeros((cells, cells)), np.zeros((cells, cells))
    for _ in range(_ROUNDS):
        if moved:
            # Gauss and Newton's curvature of what is squared; weights of a bend for the penalty.
            turn = -share[:, None] * share
            _see_diagonal(turn)[:] += share
            along = (points @ turn) / errors[:, None]
            pull = (
                turn @ (weights * away) * (rows / variance)
                + missed @ along
                - (weight * bent) @ second
            )
            counted = (turn * weights) @ turn * (rows**2 / variance)
            curvature = counted + along.T @ along
            curvature += (second.T * weight) @ second
            diagonal = _see_diagonal(curvature)
            diagonal += 1e-9 * float(diagonal.sum()) + 1e-9
        damped = curvature.copy()
        _see_diagonal(damped)[:] *= 1 + damping
        there = logs + np.minimum(np.maximum(np.linalg.solve(damped, pull), -2.0), 2.0)
        *found, then = look(there)
        moved = then < now
        if moved:
            settled = now - then < _SETTLED
            share, missed, away, bent, weight = found
            logs, now, damping = there - there.max(), then, max(damping * 0.1, 1e-6)
            if settled:
                break
        else:
            damping *= 10.0
    return _Fit(share, curvature, counted)


@cache
def _bend(cells: int) -> Array:
    """(cells - 2, cells) second differences."""
    return np.diff(np.eye(cells), 2, axis=0)


def _see_diagonal(matrix: Array) -> Array:
    """A view of it: what is written there is written in the matrix, (b, b)."""
    return np.asarray(np.einsum("ii->i", matrix))


def _softmax(logs: Array) -> Array:
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())

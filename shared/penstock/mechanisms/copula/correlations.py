"""Correlations of latents at which persons have the covariances that were released.

A covariance is of scores, weighted and clipped as rows' were, so that a match compares like with
like: persons are drawn by a correlation, seen as rows were, and the correlation is moved by what
they lack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.copula.grids import Grid

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_MATCH_ROUNDS, _WHOLE_ROUNDS, _STEP = 9, 4, 0.8
"""Later steps are shorter and shorter: who is in which cell jumps, and a match never settles."""

_MOST_CORRELATED, _LEAST_SPREAD = 0.97, 0.02
_CORRELATED, _MISFIT, _NUMBERS_MISFIT = 0.3, 0.15, 0.02
"""How far correlations go, a priori; and how far those of scores, and of numbers themselves with
each other and with levels, may be off: a regression knows nothing of scores."""


@dataclass(frozen=True, slots=True)
class Side:
    """Latents, and the moments by which they are seen."""

    latents: Sequence[int]
    moments: Sequence[int]


@dataclass(frozen=True, slots=True)
class Couplings:
    """Where the moments of two latents are.

    Attributes:
        within: (D, D) pairs of levels of one column: nobody chooses twice.
        numbers: latents of the numbers whose own moments were asked for, which come last.
        levels: latents of columns that are no numbers: scores are all that is known of these.
        follows: (moments,) how far each goes with its own latent: a rare level hardly does.
    """

    within: Bools
    numbers: Sequence[int]
    levels: Sequence[int]
    follows: Array

    @classmethod
    def of(
        cls, grids: Sequence[Grid], raw: Sequence[Grid], latents: Array, scores: Array
    ) -> Couplings:
        """
        Args:
            scores: (N, moments) of persons whose latents (N, D) are independent.
        """
        own = np.concatenate([np.full(g.latents, j) for j, g in enumerate(grids)])
        numbers = [next(i for i, j in enumerate(own) if grids[j] is grid) for grid in raw]
        levels = [i for i, j in enumerate(own) if not grids[j].numeric]
        away = scores - scores.mean(axis=0)
        spread = np.sqrt(np.maximum((away**2).mean(axis=0), _LEAST_SPREAD**2))
        with_own = (away * latents[:, [*range(len(own)), *numbers]]).mean(axis=0) / spread
        within = (own[:, None] == own) & ~np.eye(len(own), dtype=np.bool_)
        return cls(within, numbers, levels, np.maximum(np.abs(with_own), _LEAST_SPREAD))

    def views(self) -> list[tuple[Side, Side, float]]:
        """Pairs of latents, the moments of both, and how little these may say of a regression."""
        size = len(self.within)
        scores = Side(range(size), range(size))
        numbers = Side(self.numbers, range(size, len(self.follows)))
        levels = Side(self.levels, self.levels)
        return [
            (scores, scores, _MISFIT),
            (numbers, numbers, _NUMBERS_MISFIT),
            (numbers, levels, _NUMBERS_MISFIT),
            (levels, numbers, _NUMBERS_MISFIT),
        ]


def match_correlation(
    told: Array, error: float, start: Array, couplings: Couplings, look: Callable[[Array], Array]
) -> Array:
    """The correlation at which persons, seen as rows were, have the released covariances.

    Of two numbers that are asked for these are their own, beside those of their scores, and of such
    a number and a level alike: a regression rests on them. What is mostly noise is drawn to 0, else
    it would bend the rest: a correlation is positive definite.
    """
    goal, correlation = _covariance(told), start.copy()
    for number in range(_MATCH_ROUNDS):
        found = _covariance(look(take_root(correlation)))
        spread = np.sqrt(np.maximum(np.diag(found), _LEAST_SPREAD**2))
        off, weight, noise = (np.zeros_like(start) for _ in range(3))
        each = spread * couplings.follows
        for one, other, misfit in couplings.views():
            here = np.ix_(one.latents, other.latents)
            there = np.ix_(one.moments, other.moments)
            size = np.outer(each[one.moments], each[other.moments])
            precision = 1 / ((error / size) ** 2 + misfit**2)
            off[here] += precision * (goal - found)[there] / size
            weight[here] += precision
            noise[here] += (precision * error / size) ** 2
        # By its noise alone: how far views disagree says which to follow, and not what is there.
        kept = _CORRELATED**2 / (_CORRELATED**2 + noise / weight**2)
        step = _STEP / max(1, number + 2 - _WHOLE_ROUNDS)
        correlation = correlation + step * (kept * off / weight - (1 - kept) * correlation)
        correlation = np.clip(correlation, -_MOST_CORRELATED, _MOST_CORRELATED)
        correlation[couplings.within] = 0.0
        np.fill_diagonal(correlation, 1.0)
        correlation = make_definite(correlation)
    return correlation


def make_definite(correlation: Array) -> Array:
    """A matrix near by with positive eigenvalues and unit diagonal."""
    values, vectors = np.linalg.eigh(correlation)
    definite = (vectors * np.maximum(values, _LEAST_SPREAD)) @ vectors.T
    scale = 1 / np.sqrt(np.diag(definite))
    return np.asarray(definite * np.outer(scale, scale))


def take_root(correlation: Array) -> Array:
    """(D, D), symmetric, of a matrix near by that is a correlation."""
    values, vectors = np.linalg.eigh(make_definite(correlation))
    root: Array = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return root


def _covariance(moments: Array) -> Array:
    mean = moments[:-1, -1]
    centred: Array = moments[:-1, :-1] - np.outer(mean, mean)
    return centred

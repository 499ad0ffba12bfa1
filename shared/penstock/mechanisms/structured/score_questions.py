"""What rows are asked in a round: some entries of an outcome's score, or sums of them.

The first rounds ask for all of θ, the last ones for the declared coefficients alone: for that part
of each score which is blind to all other coefficients, to first order (Neyman 1959), and, of
columns with tails, for a row's part of the curvature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.outcomes.protocol import Imagined, OutcomeModel, Referred
from penstock.privacy.measurements import WholeSum

Array = NDArray[np.float64]
Places = NDArray[np.intp]
Bools = NDArray[np.bool_]
R = TypeVar("R", bound=Referred)
F = TypeVar("F", bound=Imagined)

_CURVATURE_IMPORTANCE = 0.3
"""Of a curvature, of which a tenth is near enough."""

_USELESS, _COUPLED = 0.4, 0.5


@dataclass(frozen=True, slots=True)
class Question:
    """What rows are asked in a round: some entries of a score, or sums of them.

    Attributes:
        turn: (entries, q); importance: (q,) of each beside the others.
        terms: linear columns that the first entries are scores of.
        pairs: of linear columns, that the last entries are curvatures of.
        information: (terms, terms) a person's.
    """

    turn: Array
    importance: Array
    terms: Places
    pairs: Sequence[tuple[int, int]]
    information: Array

    def list_useless(self, error: Array) -> list[int]:
        """Pairs whose curvatures would be mostly noise: they cost the others theirs.

        Args:
            error: (q,) sd of the noise on each entry.
        """
        size = dict(zip(self.terms.tolist(), np.sqrt(np.diag(self.information)), strict=True))
        noise = error[len(error) - len(self.pairs) :]
        most = [_USELESS * size[i] * size[j] for i, j in self.pairs]
        return [at for at, (e, m) in enumerate(zip(noise, most, strict=True)) if e > m]

    def places(self, pairs: Sequence[int]) -> list[int]:
        """Of their curvatures among the entries."""
        first = self.turn.shape[1] - len(self.pairs)
        return [first + at for at in pairs]

    def drop(self, useless: Sequence[int]) -> Question:
        """The same without some pairs."""
        gone = self.places(useless)
        return replace(
            self,
            turn=np.delete(self.turn, gone, axis=1),
            importance=np.delete(self.importance, gone),
            pairs=[pair for at, pair in enumerate(self.pairs) if at not in useless],
        )


def ask_all(model: OutcomeModel[R, F], information: Array, again: bool) -> Question:
    """Of all that θ has; curvatures are for later."""
    importance = np.append(model.importance(again), np.zeros(len(model.pairs)))
    asked = importance > 0
    turn = np.eye(model.entries)[:, asked]
    return Question(turn, importance[asked], np.arange(model.linear), (), information)


def ask_asked(model: OutcomeModel[R, F], information: Array) -> Question:
    """Of nothing but the coefficients that are asked for, and those that hang together with them:
    of their scores that part which is blind to all other coefficients, to first order (Neyman
    1959); and of curvatures."""
    linear, declared = model.linear, model.world.declared
    mine = _list_coupled(information, model.importance(True)[:linear] >= 1, declared)
    plain, each = ask_some(model, information, mine), np.eye(model.entries)
    shown = np.array([mine[i] and mine[j] for i, j in model.pairs], dtype=np.bool_)
    return replace(
        plain,
        turn=np.column_stack([plain.turn, each[:, model.size :][:, shown]]),
        importance=np.append(plain.importance, np.full(shown.sum(), _CURVATURE_IMPORTANCE)),
        pairs=[pair for pair, there in zip(model.pairs, shown, strict=True) if there],
    )


def ask_some(model: OutcomeModel[R, F], information: Array, mine: Bools) -> Question:
    """Of nothing but these coefficients, (linear,), and of no curvature: of their scores that part
    which is blind to all other declared ones, to first order."""
    linear, each, other = model.linear, np.eye(model.entries), model.world.declared & ~mine
    ridge = 1e-6 * np.eye(int(other.sum()))
    shared = np.linalg.solve(information[np.ix_(other, other)] + ridge, information[other][:, mine])
    blind = each[:, :linear][:, mine].copy()
    blind[:linear][other] = -shared
    left = information[np.ix_(mine, mine)] - information[mine][:, other] @ shared
    return Question(blind, np.ones(mine.sum()), np.flatnonzero(mine), (), left)


def ask_curvatures(model: OutcomeModel[R, F], information: Array) -> Question:
    """Of nothing else."""
    turn = np.eye(model.entries)[:, model.size :]
    return Question(
        turn, np.ones(len(model.pairs)), np.zeros(0, dtype=np.intp), model.pairs, information
    )


def list_pairs(model: OutcomeModel[R, F], measurement: WholeSum | None) -> list[tuple[int, int]]:
    """All of declared columns, of as many as there is room for in one sum; what is asked first."""
    declared = np.flatnonzero(model.world.declared)
    order = declared[np.argsort(-model.world.importance[declared], kind="stable")]
    most = len(order)
    while measurement is not None and most * (most + 1) // 2 > measurement.size:
        most -= 1
    return list(combinations_with_replacement(sorted(order[:most].tolist()), 2))


def _list_coupled(information: Array, asked: Bools, declared: Bools) -> Bools:
    """What is asked, and what one must know for it."""
    if not asked.any():
        return declared
    found = np.linalg.inv(information + 1e-6 * np.eye(len(asked)))
    size = np.sqrt(np.diag(found))
    tied = np.abs(found / np.outer(size, size))[:, asked] > _COUPLED
    return np.asarray(asked | tied.any(axis=1))

"""What rows are asked in a round: some entries of an outcome's score, or sums of them.

The first rounds ask for all of θ, the last ones for the declared coefficients alone: for that part
of each score which is blind to all other coefficients, to first order (Neyman 1959), and, of
columns with tails, for a row's part of the curvature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

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
        turns: (entries, q) of each reference; an entry of one is 0 of all others.
        importance: (q,) of each entry beside the others.
        terms: linear columns that the first entries are scores of.
        pairs: of linear columns, that the last entries are curvatures of.
        information: (terms, terms) a person's.
    """

    turns: tuple[Array, ...]
    importance: Array
    terms: Places
    pairs: Sequence[tuple[int, int]]
    information: Array

    @property
    def turn(self) -> Array:
        """(entries, q) where there is one reference."""
        [turn] = self.turns
        return turn

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
        first = len(self.importance) - len(self.pairs)
        return [first + at for at in pairs]

    def drop(self, useless: Sequence[int]) -> Question:
        """The same without some pairs."""
        gone = self.places(useless)
        return replace(
            self,
            turns=tuple(np.delete(turn, gone, axis=1) for turn in self.turns),
            importance=np.delete(self.importance, gone),
            pairs=[pair for at, pair in enumerate(self.pairs) if at not in useless],
        )


@dataclass(frozen=True, slots=True)
class Joined(Generic[F]):
    """What is imagined of several references: of each vector the sum of its parts, each of which is
    0 where another one is not."""

    parts: Sequence[F]

    def shorten(self, weights: Array) -> Joined[F]:
        """Each entry times its weight, and then all vectors at most of length 1."""
        parts = [part.weigh(weights) for part in self.parts]
        squares = [sum(each) for each in zip(*(part.square() for part in parts), strict=True)]
        return Joined([part.shorten([np.asarray(each) for each in squares]) for part in parts])

    def lay_out(self, every: int = 1) -> Array:
        """(outcomes, N / every, q) of some persons."""
        return np.asarray(sum(part.lay_out(every) for part in self.parts))

    def look(self, model: OutcomeModel[R, F], theta: Array) -> Array:
        """(q,) the world's mean."""
        return np.asarray(sum(model.look(theta, part) for part in self.parts))

    def slopes(self, model: OutcomeModel[R, F], theta: Array) -> Array:
        """(q, size) of that, by θ."""
        return np.asarray(sum(model.slopes(theta, part) for part in self.parts))


def imagine(
    model: OutcomeModel[R, F], references: Sequence[R], question: Question, bounded: bool = True
) -> Joined[F]:
    """What the question asks, of the quasi-random persons."""
    pairs = zip(references, question.turns, strict=True)
    return Joined([model.imagine(reference, turn, bounded) for reference, turn in pairs])


def ask_all(model: OutcomeModel[R, F], information: Array, again: bool) -> Question:
    """Of all that θ has; curvatures are for later."""
    importance = np.append(model.importance(again), np.zeros(len(model.pairs)))
    asked = importance > 0
    turn = np.eye(model.entries)[:, asked]
    return Question((turn,), importance[asked], np.arange(model.linear), (), information)


def ask_asked(model: OutcomeModel[R, F], informations: Sequence[Array]) -> Question:
    """Of nothing but the coefficients that are asked for, and those that hang together with them,
    each in its own regression: of their scores that part which is blind to all other coefficients,
    to first order (Neyman 1959); and of curvatures.

    Args:
        informations: (linear, linear) of each regression.
    """
    important, each = model.importance(True)[: model.linear] >= 1, np.eye(model.entries)
    parts = []
    for one, information in zip(model.world.list_regressions(), informations, strict=True):
        mine = _list_coupled(information, important & one.asks, one.asks)
        plain = ask_some(model, information, mine, one.has)
        near = mine | one.beside
        shown = np.array(
            [near[i] and near[j] and (mine[i] or mine[j]) for i, j in model.pairs], dtype=np.bool_
        )
        part = replace(
            plain,
            turns=(np.column_stack([plain.turn, each[:, model.size :][:, shown]]),),
            importance=np.append(plain.importance, np.full(shown.sum(), _CURVATURE_IMPORTANCE)),
            pairs=[pair for pair, there in zip(model.pairs, shown, strict=True) if there],
        )
        parts.append(part)
    return join_questions(parts)


def join_questions(parts: Sequence[Question]) -> Question:
    """Of one reference each: all scores first, then all curvatures."""
    terms = [len(part.terms) for part in parts]
    order = np.concatenate(
        [np.arange(len(part.importance)) >= of for part, of in zip(parts, terms, strict=True)]
    )
    order = np.argsort(order, kind="stable")
    own = [np.full(len(part.importance), at) for at, part in enumerate(parts)]
    whole, of = np.column_stack([part.turn for part in parts])[:, order], np.concatenate(own)[order]
    return Question(
        tuple(np.where(of == at, whole, 0.0) for at in range(len(parts))),
        np.concatenate([part.importance for part in parts])[order],
        np.concatenate([part.terms for part in parts]),
        [pair for part in parts for pair in part.pairs],
        np.asarray(block_diag(*(part.information for part in parts))),
    )


def ask_some(
    model: OutcomeModel[R, F], information: Array, mine: Bools, has: Bools | None = None
) -> Question:
    """Of nothing but these coefficients, (linear,), and of no curvature: of their scores that part
    which is blind to all others of a regression, to first order.

    Args:
        has: (linear,) its columns; None: all that are declared.
    """
    has = model.world.declared if has is None else has
    linear, each, other = model.linear, np.eye(model.entries), has & ~mine
    ridge = 1e-6 * np.eye(int(other.sum()))
    shared = np.linalg.solve(information[np.ix_(other, other)] + ridge, information[other][:, mine])
    blind = each[:, :linear][:, mine].copy()
    blind[:linear][other] = -shared
    left = information[np.ix_(mine, mine)] - information[mine][:, other] @ shared
    return Question((blind,), np.ones(mine.sum()), np.flatnonzero(mine), (), left)


def ask_curvatures(model: OutcomeModel[R, F], information: Array) -> Question:
    """Of nothing else."""
    turn = np.eye(model.entries)[:, model.size :]
    return Question(
        (turn,), np.ones(len(model.pairs)), np.zeros(0, dtype=np.intp), model.pairs, information
    )


def list_pairs(model: OutcomeModel[R, F], measurement: WholeSum | None) -> list[tuple[int, int]]:
    """All of declared columns, of as many as there is room for in one sum; what is asked first."""
    declared = np.flatnonzero(model.world.declared)
    order = declared[np.argsort(-model.world.importance[declared], kind="stable")]
    most = len(order)
    while measurement is not None and most * (most + 1) // 2 > measurement.size:
        most -= 1
    return list(combinations_with_replacement(sorted(order[:most].tolist()), 2))


def _list_coupled(information: Array, asked: Bools, asks: Bools) -> Bools:
    """What is asked, and what of the same regression one must know for it; all that is asked in it
    where nothing is."""
    if not asked.any():
        return asks
    found = np.linalg.inv(information + 1e-6 * np.eye(len(asked)))
    size = np.sqrt(np.diag(found))
    tied = np.abs(found / np.outer(size, size))[:, asked] > _COUPLED
    return np.asarray(asked | (asks & tied.any(axis=1)))

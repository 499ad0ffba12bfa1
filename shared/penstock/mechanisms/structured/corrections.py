"""From what rows told of the declared coefficients to these: one step from those of the world.

The information of the step is the rows' own, as far as their curvatures show it: a world whose
tails are a little off has too much or too little, and Newton's step would be too short or too long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.beliefs import Belief, gather
from penstock.mechanisms.structured.outcomes.protocol import Imagined, OutcomeModel, Referred
from penstock.mechanisms.structured.score_questions import Question

Array = NDArray[np.float64]
R = TypeVar("R", bound=Referred)
F = TypeVar("F", bound=Imagined)

_LEAST_CURVED, _LEAST_SEEN = 0.2, 1e-9
_MOST_TIED, _LEAST_TIED = 0.95, 0.05
_LONGEST = 1.5

_BENT = 0.3
"""How much a straight line misses, of a step's square: a score is no straight line, and Newton's
error is of second order. By a share of the step itself, a long way that was found would hardly
count beside what the first rounds, whose model is wider, had said too firmly."""

_BENT_ALONG = 0.15
"""The same of a step that follows the information along its way, of the step itself."""

SIMPSON = ((0.0, 1 / 6), (0.5, 4 / 6), (1.0, 1 / 6))
"""Shares of a way, and how each counts in the mean along it."""

_TURNS = 6


@dataclass(frozen=True, slots=True)
class Tails:
    """How the rows' information differs from the world's, in columns with tails.

    Attributes:
        ratio: (linear,) of the diagonal; correlation: (linear, linear), NaN: as the world's.
    """

    ratio: Array
    correlation: Array

    def learn(
        self,
        information: Array,
        question: Question,
        told: Array,
        seen: Array,
        error: Array,
        trusted: float,
    ) -> Tails:
        """From rows' curvatures and the world's, clipped alike; a noisy one counts for little.

        Args:
            trusted: the sd of noise, as a share, of one that counts half.
        """
        ratio, correlation = self.ratio.copy(), self.correlation.copy()
        first = len(told) - len(question.pairs)
        size, tied = np.sqrt(np.diag(information)), dict[tuple[int, int], float]()
        for at, (i, j) in enumerate(question.pairs, first):
            # Where nothing happens in the world, there is no curvature at all.
            scale = max(float(seen[at]), _LEAST_SEEN) if i == j else size[i] * size[j]
            off = (told[at] - seen[at]) / scale / (1 + (error[at] / scale / trusted) ** 2)
            if i == j:
                ratio[i] = np.clip(1 + off, _LEAST_CURVED, 1 / _LEAST_CURVED)
            else:
                tied[i, j] = information[i, j] / scale + off
        root = np.sqrt(ratio)
        # What was learned before is a correlation already.
        for (i, j), found in tied.items():
            each = np.clip(found / (root[i] * root[j]), -_MOST_TIED, _MOST_TIED)
            correlation[i, j] = correlation[j, i] = each
        return Tails(ratio, correlation)

    def turn(self, information: Array) -> Array:
        """The rows' information, from the world's."""
        size = np.sqrt(np.diag(information))
        world = information / np.outer(size, size)
        found = np.where(np.isnan(self.correlation), world, self.correlation)
        values, vectors = np.linalg.eigh(found)
        found = (vectors * np.maximum(values, _LEAST_TIED)) @ vectors.T
        size = size * np.sqrt(self.ratio)
        return np.asarray(found * np.outer(size, size))


Step = tuple[Array, Array, Array]
"""(terms,), (terms, terms) that which it is of the score, and (terms,) by how much it may miss."""


def correct(
    model: OutcomeModel[R, F],
    references: Sequence[R],
    tails: Tails,
    go: Callable[[Tails, Question, Array], Step],
    question: Question,
    told: Array,
    seen: Array,
    error: Array,
) -> Belief:
    """The declared coefficients of the rows, one step from those of the world.

    What clipping takes is what it takes of the world.

    Args:
        told, seen: (q,) mean scores of rows and of the world, clipped; error: sds.
    """
    terms, of = question.terms, len(question.terms)
    step, turned, missed = go(tails, question, (told - seen)[:of])
    covariance = (turned * error[:of] ** 2) @ turned.T + np.diag(missed**2)
    mean, precision = gather(model, references).coefficients, np.zeros((model.linear,) * 2)
    mean[terms] += step
    precision[np.ix_(terms, terms)] = np.linalg.inv(covariance)
    return Belief(mean, precision)


def take_step(
    model: OutcomeModel[R, F], references: Sequence[R], tails: Tails, question: Question, off: Array
) -> Step:
    """Newton's, from the score (terms,)."""
    each = [tails.turn(reference.information) for reference in references]
    turned = _turn_over(model, question, each)
    step = np.clip(turned @ off, -_LONGEST, _LONGEST)
    return step, turned, _BENT * step**2


def take_step_along(
    theta: Array,
    model: OutcomeModel[R, F],
    references: Sequence[R],
    tails: Tails,
    question: Question,
    off: Array,
) -> Step:
    r"""b with :math:`\int I = u`, along the line from the reference: where risks rise with a
    column's tail, so does the information, and Newton's step down is far too short."""
    step, turned, _ = take_step(model, references, tails, question, off)
    means = [reference.coefficients[: model.linear] for reference in references]
    terms = question.terms
    for _ in range(_TURNS):
        passed = [np.zeros_like(reference.information) for reference in references]
        for share, weight in SIMPSON:
            for one, total, mean in zip(model.world.list_regressions(), passed, means, strict=True):
                at = mean.copy()
                at[terms] += share * np.where(one.asks[terms], step, 0.0)
                total += weight * model.refer(theta, at, narrow=one.has).information
        turned = _turn_over(model, question, [tails.turn(each) for each in passed])
        step = (step + np.clip(turned @ off, -_LONGEST, _LONGEST)) / 2
    return step, turned, _BENT_ALONG * np.abs(step)


def _turn_over(
    model: OutcomeModel[R, F], question: Question, informations: Sequence[Array]
) -> Array:
    """(terms, terms) what a step is of the score, by the information along it."""
    terms, of = question.terms, len(question.terms)
    own = np.zeros((of, of))
    regressions = model.world.list_regressions()
    for one, turn, information in zip(regressions, question.turns, informations, strict=True):
        own += (turn[: model.linear, :of].T @ information)[:, terms] * one.asks[terms]
    return np.asarray(np.linalg.inv(own + 1e-3 * np.diag(np.diag(own))))

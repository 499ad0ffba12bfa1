"""What is believed of an outcome's parameters, what rows add to it, and where both are met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.outcomes.protocol import Imagined, OutcomeModel, Referred
from penstock.mechanisms.structured.score_questions import (
    Joined,
    Question,
    ask_some,
    imagine,
    join_questions,
)

Array = NDArray[np.float64]
R = TypeVar("R", bound=Referred)
F = TypeVar("F", bound=Imagined)

_STEPS, _FRESH, _FIRST_DAMPING = 14, 2, 1e-3
_EASED, _STIFFENED, _SMALL = 0.2, 8.0, 1e-3
_EXACT = 0.03

DOUBT = 2.0
"""How much worse what the first rounds say is of a column with tails."""

_LEAST_PRIOR = 1e-3
"""Share of a prior that stays where rows alone are to speak: of what they say nothing of."""

_MISFIT = 0.06
"""By how much a wide model may be off in a declared coefficient, of a standardised column."""


@dataclass(frozen=True, slots=True)
class Belief:
    """Gaussian, of parameters: a mean and a precision."""

    mean: Array
    precision: Array

    def value(self, theta: Array) -> float:
        off = theta - self.mean
        return 0.5 * float(off @ self.precision @ off)

    def slope(self, theta: Array) -> Array:
        return np.asarray(self.precision @ (theta - self.mean))

    def yield_to(self, other: Belief) -> Belief:
        """With a covariance that is larger by Birge's ratio, χ²/k of their difference in the k
        coefficients that the other tells, where that is above 1: what is contradicted by more than
        both allow was believed too firmly (Birge 1932, Physical Review 40, 207–227)."""
        told = np.flatnonzero(np.diag(other.precision) > 0)
        if not len(told):
            return self
        within = np.ix_(told, told)
        spread = np.linalg.inv(self.precision)[within] + np.linalg.inv(other.precision[within])
        off = (other.mean - self.mean)[told]
        ratio = float(off @ np.linalg.solve(spread, off)) / len(told)
        return Belief(self.mean, self.precision / max(1.0, ratio))

    def join(self, other: Belief) -> Belief:
        """What both say."""
        total = self.precision + other.precision
        weighed = self.precision @ self.mean + other.precision @ other.mean
        return Belief(np.asarray(np.linalg.solve(total, weighed)), total)


def drop_prior(model: OutcomeModel[R, F], belief: Belief) -> Belief:
    """What rows alone have said of the linear coefficients: a prior of no effect would shrink them
    by little at each site, and by as much when many are pooled."""
    prior = np.diag(model.prior()).copy()
    prior[model.linear :] = 0.0
    # What no row is asked for stays believed, or it would unsettle all else.
    prior[: model.linear][model.wide < 1] = 0.0
    precision = belief.precision - np.diag(prior * (1 - _LEAST_PRIOR))
    return Belief(np.asarray(np.linalg.solve(precision, belief.precision @ belief.mean)), precision)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The declared coefficients, each of the regression that it is asked in: (linear,), and a
    person's information, (linear, linear)."""

    coefficients: Array
    information: Array


def gather(model: OutcomeModel[R, F], references: Sequence[R]) -> Gathered:
    """From a reference of each regression."""
    last = references[-1]
    mean, information = last.coefficients[: model.linear].copy(), last.information.copy()
    for regression, reference in zip(model.world.list_regressions(), references, strict=True):
        mean[regression.asks] = reference.coefficients[: model.linear][regression.asks]
        own = np.ix_(regression.asks, regression.asks)
        information[own] = reference.information[own]
    return Gathered(mean, information)


def recall(
    model: OutcomeModel[R, F],
    reference: Gathered,
    belief: Belief,
    informed: float,
    moved: Array | None = None,
) -> Belief:
    """The declared coefficients as far as θ tells them: of a world that may have other tails.

    Args:
        moved: (size,) how far θ is to be from that of the reference.
    """
    linear = model.linear
    doubt = np.ones(linear)
    doubt[model.tailed] = DOUBT
    covariance = np.linalg.inv(belief.precision)[:linear, :linear] * np.outer(doubt, doubt)
    covariance = covariance + _MISFIT**2 * informed * np.linalg.inv(reference.information)
    mean = reference.coefficients
    mean = mean if moved is None else mean + np.where(model.world.declared, moved[:linear], 0.0)
    return Belief(mean, np.asarray(np.linalg.inv(covariance)))


def meet(
    model: OutcomeModel[R, F],
    estimate: Array,
    theta: Array,
    belief: Belief,
    count: float,
    meetings: int,
) -> Array:
    """θ near by whose world has the declared coefficients of the rows."""
    for _ in range(meetings):
        references, questions = list[R](), list[Question]()
        for one in model.world.list_regressions():
            at = estimate
            if (one.has & ~one.asks).any():
                # What is asked elsewhere is as the world has it beside these.
                fitted = model.refer(theta, narrow=one.has).coefficients[: model.linear]
                at = np.where(one.asks, estimate, fitted)
            references.append(model.refer(theta, at, narrow=one.has))
            questions.append(ask_some(model, references[-1].information, one.asks, one.has))
        question = join_questions(questions)
        found = imagine(model, references, question, bounded=False)
        sd = _EXACT * np.sqrt(np.diag(question.information) / count)
        theta, _ = solve(model, found, np.zeros(len(sd)), sd, theta, belief)
    return theta


def solve(
    model: OutcomeModel[R, F],
    found: Joined[F],
    goal: Array,
    sd: Array,
    theta: Array,
    belief: Belief,
) -> tuple[Array, Array]:
    """θ where noise and belief have their mode, by Levenberg and Marquardt's damped steps; and
    the precision that the goal adds."""

    def value(mean: Array, at: Array) -> float:
        off = (goal - mean) / sd
        return 0.5 * float(off @ off) + belief.value(at)

    mean, slopes = found.look(model, theta), found.slopes(model, theta)
    now, damping, accepted = value(mean, theta), _FIRST_DAMPING, 0
    for _ in range(_STEPS):
        weighed = slopes / sd[:, None] ** 2
        curvature = slopes.T @ weighed + belief.precision
        pull = weighed.T @ (goal - mean) - belief.slope(theta)
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), pull)
        there = theta + step
        seen = found.look(model, there)
        if (then := value(seen, there)) < now:
            small = now - then < _SMALL
            theta, mean, now, damping = there, seen, then, damping * _EASED
            if small:
                break
            if accepted % _FRESH == 0:
                slopes = found.slopes(model, theta)
            accepted += 1
        else:
            damping *= _STIFFENED
    return theta, slopes.T @ (slopes / sd[:, None] ** 2)

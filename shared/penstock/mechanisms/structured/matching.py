r"""From rows' released scores to an outcome's model: indirect inference, a few rounds.

Each round takes a regression at a reference, sums rows' scores u, weighted by column and clipped to
norm 1,

.. math:: S = \sum_i \min(1, 1/‖w∘u_i‖)\, w∘u_i + N(0, σ²),

and moves θ until persons of the released population, drawn at θ and *clipped alike*, have the mean
score S / n (Gourieroux, Monfort & Renault 1993). Clipping therefore does not bias what it bounds,
as far as the model holds; and where the reference is near the rows' own regression, hardly at all.

That is how the first rounds learn all of θ. The *last* rounds ask for the declared coefficients
alone. Their reference is the declared regression as the tables drawn so far have it; u is that part
of each asked score which is blind to all other coefficients, to first order (Neyman 1959), and, of
columns with tails, a row's part of the curvature: a world whose tails are a little off has too much
or too little information, and Newton's step from it would be too short or too long. The step, with
known noise, is an estimate; estimates are weighed by their precision, and θ is moved until tables
drawn from it have exactly these coefficients.

w is :math:`1/C√c_j`, c_j how far entry j reaches among those persons and C a norm: in the first
rounds one that few exceed, in the last ones that for which noise and what clipping may hide of rows
further out are least together. All of it was released before. The sum is of whole numbers with
exact noise (:class:`~penstock.privacy.measurements.WholeSum`); a person is one vector, of all their
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.beliefs import (
    DOUBT,
    Belief,
    drop_prior,
    gather,
    meet,
    recall,
    solve,
)
from penstock.mechanisms.structured.corrections import Tails, correct, take_step, take_step_along
from penstock.mechanisms.structured.outcomes.protocol import Imagined, OutcomeModel, Referred, World
from penstock.mechanisms.structured.score_clipping import (
    LAST_TAILS,
    Sizes,
    release_scores,
    weigh_reach,
)
from penstock.mechanisms.structured.score_questions import (
    Question,
    ask_all,
    ask_asked,
    ask_curvatures,
    imagine,
    list_pairs,
)
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource
from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
R = TypeVar("R", bound=Referred)
F = TypeVar("F", bound=Imagined)

_REACH = 0.95
"""Quantile of the released population's scores that is not clipped. Noise is as large as who
reaches furthest, and few reach far; who is clipped is clipped alike in the world."""

_FIRST_TAILS = 0.99
"""The same where declared columns have tails: what they tell is there, and worlds know it badly."""

_TELLING = 6.0
"""Where the event is rare, fewer may be clipped: this times the share of persons who have it, where
that is below 1. Else every event would lie beyond the clip."""

_MODEL_ERROR = 2e-4
"""Sd of a mean score that is no noise: what the quasi-random persons miss."""

EXPLORED = 2
"""Rounds that ask for all of θ; the last ones ask for the declared coefficients alone."""

_CURVED, _CURVED_APART = 0.7, 0.35
"""Noise, as a share, of a curvature that counts half; and where curvatures are asked apart, of all
declared columns."""

_UNSEEN, _UNSEEN_TOLD = 0.3, (0.4, 1.0)
"""What share of that which is clipped may be otherwise than in the world: an sd, of tables, whose
refits show what else there is; and at least and at most where it is part of a covariance that is
released: the latter of columns of whose tails the counts know little."""

_LONG_TAILED = 10.0
"""Kurtosis of a column of whose tail the world knows nothing; of a normal one it is 3. This and the
shares above are frozen on generators and tables that no study shows: between them answers are off
by as much as their mechanism's standard errors say."""

_MEETINGS = 2


@dataclass(frozen=True, slots=True)
class Matched:
    """θ, and what rows told of the declared coefficients.

    Attributes:
        theta: whose world has them, as far as its prior lets it.
        coefficients: (linear,) of the declared regression, and covariance: (linear, linear) of
            what noise and the model's errors make of them, both without a prior; None where rows
            were not asked for them alone.
        tails: how much the rows tell, beside the world.
    """

    theta: Array
    coefficients: Array | None
    covariance: Array | None
    tails: Tails


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What is asked of the rows about an outcome.

    Attributes:
        design: (n·k, width) of rows, and ``present`` (n·k,), false too where an outcome's own
            covariate is missing; coded: their columns; per_person: k.
        rounds: the measurement of each, of sensitivity 1; None: without noise.
        count: number of rows whose outcome is known, as released.
    """

    design: Array
    coded: Coded
    present: Bools
    per_person: int
    rounds: Sequence[WholeSum | None]
    count: float


class Matching(Protocol):
    """Finds θ of an outcome, as :func:`match_outcome` does."""

    def __call__(
        self, model: OutcomeModel[R, F], inquiry: Inquiry, noise: NoiseSource, /
    ) -> Array: ...


def match_outcome(model: OutcomeModel[R, F], inquiry: Inquiry, noise: NoiseSource) -> Array:
    """θ of the outcome, as :func:`ask_outcome` finds it."""
    return ask_outcome(model, inquiry, noise).theta


def ask_outcome(
    model: OutcomeModel[R, F], inquiry: Inquiry, noise: NoiseSource, *, bent: bool = False
) -> Matched:
    """θ of the outcome and its coefficients, after as many releases as there are rounds.

    Args:
        bent: whether a step of the last rounds follows the information along its way; else it is
            Newton's, which a world drawn near by forgives.
    """
    design, coded, present = inquiry.design, inquiry.coded, inquiry.present
    per_person, rounds, count = inquiry.per_person, inquiry.rounds, inquiry.count
    if bent:
        model = copy(model)
        # No table is drawn, which would lack what these levels have to do with the outcome.
        model.sparing = True
        # Answers are turned from one regression of all declared columns to their own afterwards.
        model.world = replace(model.world, regressions=())
        model.pairs = list_pairs(model, rounds[EXPLORED])
    belief = Belief(model.start(), model.prior())
    theta = belief.mean
    tails = Tails(np.ones(model.linear), np.full((model.linear,) * 2, np.nan))
    regressions = model.world.list_regressions()
    estimate: Belief | None = None
    plain: Belief | None = None
    for number, measurement in enumerate(rounds):
        last, curved = number >= EXPLORED, bent and number == EXPLORED
        if last:
            references = [model.refer(theta, narrow=one.has) for one in regressions]
            gathered = gather(model, references)
        else:
            references = [model.refer(theta)]
        sd = _MODEL_ERROR if measurement is None else measurement.sd / count
        sd = float(np.hypot(sd, _MODEL_ERROR))
        if curved:
            question = ask_curvatures(model, gathered.information)
        elif last:
            question = ask_asked(model, [tails.turn(one.information) for one in references])
            # Who asks for curvatures apart needs no more of them.
            question = question.drop(range(len(question.pairs))) if bent else question
        else:
            question = ask_all(model, references[0].information, number > 0)
        chances, found = model.chances(theta), imagine(model, references, question)
        reach = _REACH if not model.tailed else LAST_TAILS if last else _FIRST_TAILS
        # Who has a rare event tells most, and lies furthest out.
        reach = 1 - (1 - reach) * min(1.0, _TELLING * model.inform(theta))
        sizes = Sizes.of(found, chances)
        weights = sizes.choose_weights(question.importance, reach)
        if not curved and len(useless := question.list_useless(sd / weights)):
            gone = question.places(useless)
            question, sizes = question.drop(useless), sizes.drop(gone)
            found = imagine(model, references, question)
            weights = sizes.choose_weights(question.importance, reach)
        missed = np.zeros(weights.shape)
        if last and not curved:
            unseen = doubt_tails(model.world, question) if bent else _UNSEEN
            weights, missed = weigh_reach(sizes, question, sd, unseen)
        scores = np.zeros((len(design), len(weights)))
        for reference, turn in zip(references, question.turns, strict=True):
            scores += model.scores(reference, design, coded) @ turn
        scores *= weights
        told = release_scores(scores, present, per_person, measurement, noise) / count
        found = found.shorten(weights)
        if last:
            seen, errors = found.look(model, theta), np.hypot(sd / weights, missed)
            given = (question, told / weights, seen / weights, errors)
            tails = tails.learn(gathered.information, *given, _CURVED_APART if bent else _CURVED)
            if curved:
                continue
            if estimate is None or plain is None:
                informed = model.inform(theta)
                estimate = recall(model, gathered, belief, informed)
                free = drop_prior(model, belief)
                plain = recall(model, gathered, free, informed, free.mean - belief.mean)
                plain = Belief(plain.mean, plain.precision / DOUBT**2)
            go = partial(take_step_along, theta) if bent else take_step
            found_by = correct(model, references, tails, partial(go, model, references), *given)
            estimate = estimate.yield_to(found_by).join(found_by)
            plain = plain.yield_to(found_by).join(found_by)
            meetings = _MEETINGS if number + 1 == len(rounds) else 1
            theta = meet(model, estimate.mean, theta, belief, count, meetings)
        else:
            theta, known = solve(model, found, told, np.full(len(told), sd), theta, belief)
            belief = Belief(theta, belief.precision + known)
    if plain is None:
        return Matched(theta, None, None, tails)
    return Matched(theta, plain.mean, np.asarray(np.linalg.inv(plain.precision)), tails)


def doubt_tails(world: World, question: Question) -> float:
    r"""What share of what clipping takes may be otherwise of rows than of the world: an sd,
    √(κ / 10) with κ the largest kurtosis of a column that is asked for, among the released
    population; within :data:`_UNSEEN_TOLD`."""
    there = world.complete / max(float(world.complete.sum()), 1.0)
    columns = world.design[:, question.terms]
    apart = columns - there @ columns
    spread = np.maximum(there @ apart**2, 1e-12)
    largest = float((there @ apart**4 / spread**2).max(initial=0.0))
    return float(np.clip(np.sqrt(largest / _LONG_TAILED), *_UNSEEN_TOLD))

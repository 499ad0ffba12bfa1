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

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations_with_replacement
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.outcomes.protocol import (
    LEAST_INFORMATION,
    Imagined,
    OutcomeModel,
    Referred,
)
from penstock.mechanisms.tables.moments import clip_rows, row_unit, whole_vectors
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource
from penstock.schema import Coded

Array = NDArray[np.float64]
Places = NDArray[np.intp]
Bools = NDArray[np.bool_]
R = TypeVar("R", bound=Referred)
F = TypeVar("F", bound=Imagined)

_REACH = 0.95
"""Quantile of the released population's scores that is not clipped. Noise is as large as who
reaches furthest, and few reach far; who is clipped is clipped alike in the world."""

_FIRST_TAILS, _LAST_TAILS = 0.99, 0.998
"""The same where declared columns have tails: what they tell is there, and worlds know it badly."""

_TELLING = 6.0
"""Where the event is rare, fewer may be clipped: this times the share of persons who have it, where
that is below 1. Else every event would lie beyond the clip."""

_ROWS_AT_ONCE = 1 << 12
"""Persons summed together: their numbers stay in the processor's cache."""

_LEAST_REACH = 0.3
_CELLS = 256
_STEPS, _FRESH, _FIRST_DAMPING = 14, 2, 1e-3
_EASED, _STIFFENED = 0.2, 8.0
_SMALL, _SPARSE = 1e-3, 4
_MODEL_ERROR = 2e-4
"""Sd of a mean score that is no noise: what the quasi-random persons miss."""

EXPLORED = 2
"""Rounds that ask for all of θ; the last ones ask for the declared coefficients alone."""

_DOUBT = 2.0
"""How much worse what the first rounds say is of a column with tails."""

_LEAST_PRIOR = 1e-3
"""Share of a prior that stays where rows alone are to speak: of what they say nothing of."""

_MISFIT = 0.06
"""By how much a wide model may be off in a declared coefficient, of a standardised column."""

_CURVATURE_IMPORTANCE = 0.3
"""Of a curvature, of which a tenth is near enough."""

_CURVED, _LEAST_CURVED, _LONGEST, _USELESS = 0.7, 0.2, 1.5, 0.4
_LEAST_SEEN = 1e-9
_CURVED_APART = 0.35
"""The same of curvatures that are asked apart, of all declared columns."""

_BENT = 0.3
"""How much a straight line misses, of a step's square: a score is no straight line, and Newton's
error is of second order. By a share of the step itself, a long way that was found would hardly
count beside what the first rounds, whose model is wider, had said too firmly."""

_BENT_ALONG = 0.15
"""The same of a step that follows the information along its way, of the step itself."""

_REACHES = (
    *((reach, 1.0) for reach in (0.95, 0.98, 0.99, 0.998, 0.9995, 1.0)),
    *((1.0, further) for further in (1.5, 2.0, 3.0)),
)
"""Quantiles of the world that the last rounds try, and so many times what lies there."""

_UNSEEN, _UNSEEN_TOLD = 0.3, 1.0
"""What share of that which is clipped may be otherwise than in the world: an sd, of tables, whose
refits show what else there is; and where it is part of a covariance that is released."""


_FURTHER_OUT = 1.5
"""By how much further out rows may lie than the world, where what clipping takes is guessed."""

_TURNS, _SIMPSON = 6, ((0.0, 1 / 6), (0.5, 4 / 6), (1.0, 1 / 6))
_COUPLED, _MOST_TIED, _LEAST_TIED = 0.5, 0.95, 0.05
_MEETINGS, _EXACT = 2, 0.03


@dataclass(frozen=True, slots=True)
class _Belief:
    """Gaussian, of parameters: a mean and a precision."""

    mean: Array
    precision: Array

    def value(self, theta: Array) -> float:
        off = theta - self.mean
        return 0.5 * float(off @ self.precision @ off)

    def slope(self, theta: Array) -> Array:
        return np.asarray(self.precision @ (theta - self.mean))

    def yield_to(self, other: _Belief) -> _Belief:
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
        return _Belief(self.mean, self.precision / max(1.0, ratio))

    def join(self, other: _Belief) -> _Belief:
        """What both say."""
        total = self.precision + other.precision
        weighed = self.precision @ self.mean + other.precision @ other.mean
        return _Belief(np.asarray(np.linalg.solve(total, weighed)), total)


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
        question: _Question,
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
        size = np.sqrt(np.diag(information))
        for at, (i, j) in enumerate(question.pairs, first):
            # Where nothing happens in the world, there is no curvature at all.
            scale = max(float(seen[at]), _LEAST_SEEN) if i == j else size[i] * size[j]
            off = (told[at] - seen[at]) / scale / (1 + (error[at] / scale / trusted) ** 2)
            if i == j:
                ratio[i] = np.clip(1 + off, _LEAST_CURVED, 1 / _LEAST_CURVED)
            else:
                correlation[i, j] = correlation[j, i] = information[i, j] / scale + off
        root = np.sqrt(ratio)
        correlation = np.clip(correlation / np.outer(root, root), -_MOST_TIED, _MOST_TIED)
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
        model.pairs = _list_pairs(model, rounds[EXPLORED])
    belief = _Belief(model.start(), model.prior())
    theta = belief.mean
    tails = Tails(np.ones(model.linear), np.full((model.linear,) * 2, np.nan))
    estimate: _Belief | None = None
    plain: _Belief | None = None
    for number, measurement in enumerate(rounds):
        last, curved = number >= EXPLORED, bent and number == EXPLORED
        reference = model.refer(theta, narrow=last)
        sd = _MODEL_ERROR if measurement is None else measurement.sd / count
        sd = float(np.hypot(sd, _MODEL_ERROR))
        if curved:
            question = _ask_curvatures(model, reference.information)
        elif last:
            question = _ask_asked(model, tails.turn(reference.information))
            # Who asks for curvatures apart needs no more of them.
            question = question.drop(range(len(question.pairs))) if bent else question
        else:
            question = _ask_all(model, reference.information, number > 0)
        chances, found = model.chances(theta), model.imagine(reference, question.turn)
        reach = _REACH if not model.pairs else _LAST_TAILS if last else _FIRST_TAILS
        # Who has a rare event tells most, and lies furthest out.
        reach = 1 - (1 - reach) * min(1.0, _TELLING * model.inform(theta))
        sizes = _Sizes.of(found, chances)
        weights = sizes.choose_weights(question.importance, reach)
        if not curved and len(useless := question.list_useless(sd / weights)):
            gone = question.places(useless)
            question, sizes = question.drop(useless), sizes.drop(gone)
            found = model.imagine(reference, question.turn)
            weights = sizes.choose_weights(question.importance, reach)
        missed = np.zeros(weights.shape)
        if last and not curved:
            unseen = _UNSEEN_TOLD if bent else _UNSEEN
            weights, missed = _weigh_reach(sizes, question, sd, unseen)
        scores = (model.scores(reference, design, coded) @ question.turn) * weights
        told = release_scores(scores, present, per_person, measurement, noise) / count
        found = found.shorten(weights)
        if last:
            seen, error = model.look(theta, found), np.hypot(sd / weights, missed)
            given = (question, told / weights, seen / weights, error)
            tails = tails.learn(reference.information, *given, _CURVED_APART if bent else _CURVED)
            if curved:
                continue
            if estimate is None or plain is None:
                informed = model.inform(theta)
                estimate = _recall(model, reference, belief, informed)
                free = _free(model, belief)
                plain = _recall(model, reference, free, informed, free.mean - belief.mean)
                plain = _Belief(plain.mean, plain.precision / _DOUBT**2)
            go = partial(_step_along, theta) if bent else _step
            found_by = _correct(model, reference, tails, partial(go, model, reference), *given)
            estimate = estimate.yield_to(found_by).join(found_by)
            plain = plain.yield_to(found_by).join(found_by)
            meetings = _MEETINGS if number + 1 == len(rounds) else 1
            theta = _meet(model, estimate.mean, theta, belief, count, meetings)
        else:
            theta, known = _solve(model, found, told, np.full(len(told), sd), theta, belief)
            belief = _Belief(theta, belief.precision + known)
    if plain is None:
        return Matched(theta, None, None, tails)
    return Matched(theta, plain.mean, np.asarray(np.linalg.inv(plain.precision)), tails)


@dataclass(frozen=True, slots=True)
class _Question:
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

    def drop(self, useless: Sequence[int]) -> _Question:
        """The same without some pairs."""
        gone = self.places(useless)
        return replace(
            self,
            turn=np.delete(self.turn, gone, axis=1),
            importance=np.delete(self.importance, gone),
            pairs=[pair for at, pair in enumerate(self.pairs) if at not in useless],
        )


def _ask_all(model: OutcomeModel[R, F], information: Array, again: bool) -> _Question:
    """Of all that θ has; curvatures are for later."""
    importance = np.append(model.importance(again), np.zeros(len(model.pairs)))
    asked = importance > 0
    turn = np.eye(model.entries)[:, asked]
    return _Question(turn, importance[asked], np.arange(model.linear), (), information)


def _ask_asked(model: OutcomeModel[R, F], information: Array) -> _Question:
    """Of nothing but the coefficients that are asked for, and those that hang together with them:
    of their scores that part which is blind to all other coefficients, to first order (Neyman
    1959); and of curvatures."""
    linear, each = model.linear, np.eye(model.entries)
    declared = model.world.declared
    mine = _list_coupled(information, model.importance(True)[:linear] >= 1, declared)
    other = declared & ~mine
    ridge = 1e-6 * np.eye(int(other.sum()))
    shared = np.linalg.solve(information[np.ix_(other, other)] + ridge, information[other][:, mine])
    blind = each[:, :linear][:, mine].copy()
    blind[:linear][other] = -shared
    shown = np.array([mine[i] and mine[j] for i, j in model.pairs], dtype=np.bool_)
    turn = np.column_stack([blind, each[:, model.size :][:, shown]])
    importance = np.append(np.ones(mine.sum()), np.full(shown.sum(), _CURVATURE_IMPORTANCE))
    pairs = [pair for pair, there in zip(model.pairs, shown, strict=True) if there]
    left = information[np.ix_(mine, mine)] - information[mine][:, other] @ shared
    return _Question(turn, importance, np.flatnonzero(mine), pairs, left)


def _free(model: OutcomeModel[R, F], belief: _Belief) -> _Belief:
    """What rows alone have said of the linear coefficients: a prior of no effect would shrink them
    by little at each site, and by as much when many are pooled."""
    prior = np.diag(model.prior()).copy()
    prior[model.linear :] = 0.0
    precision = belief.precision - np.diag(prior * (1 - _LEAST_PRIOR))
    return _Belief(
        np.asarray(np.linalg.solve(precision, belief.precision @ belief.mean)), precision
    )


def _list_pairs(model: OutcomeModel[R, F], measurement: WholeSum | None) -> list[tuple[int, int]]:
    """All of declared columns, of as many as there is room for in one sum; what is asked first."""
    declared = np.flatnonzero(model.world.declared)
    order = declared[np.argsort(-model.world.importance[declared], kind="stable")]
    most = len(order)
    while measurement is not None and most * (most + 1) // 2 > measurement.size:
        most -= 1
    return list(combinations_with_replacement(sorted(order[:most].tolist()), 2))


def _ask_curvatures(model: OutcomeModel[R, F], information: Array) -> _Question:
    """Of nothing else."""
    turn = np.eye(model.entries)[:, model.size :]
    return _Question(
        turn, np.ones(len(model.pairs)), np.zeros(0, dtype=np.intp), model.pairs, information
    )


def _recall(
    model: OutcomeModel[R, F],
    reference: R,
    belief: _Belief,
    informed: float,
    moved: Array | None = None,
) -> _Belief:
    """The declared coefficients as far as θ tells them: of a world that may have other tails.

    Args:
        moved: (size,) how far θ is to be from that of the reference.
    """
    linear = model.linear
    doubt = np.ones(linear)
    doubt[[j for pair in model.pairs for j in pair]] = _DOUBT
    covariance = np.linalg.inv(belief.precision)[:linear, :linear] * np.outer(doubt, doubt)
    covariance = covariance + _MISFIT**2 * informed * np.linalg.inv(reference.information)
    mean = reference.coefficients[:linear]
    mean = mean if moved is None else mean + np.where(model.world.declared, moved[:linear], 0.0)
    return _Belief(mean, np.asarray(np.linalg.inv(covariance)))


def _list_coupled(information: Array, asked: Bools, declared: Bools) -> Bools:
    """What is asked, and what one must know for it."""
    if not asked.any():
        return declared
    found = np.linalg.inv(information + 1e-6 * np.eye(len(asked)))
    size = np.sqrt(np.diag(found))
    tied = np.abs(found / np.outer(size, size))[:, asked] > _COUPLED
    return np.asarray(asked | tied.any(axis=1))


def _correct(
    model: OutcomeModel[R, F],
    reference: R,
    tails: Tails,
    go: Callable[[Tails, _Question, Array], _Step],
    question: _Question,
    told: Array,
    seen: Array,
    error: Array,
) -> _Belief:
    """The declared coefficients of the rows, one step from those of the world.

    What clipping takes is what it takes of the world.

    Args:
        told, seen: (q,) mean scores of rows and of the world, clipped; error: sds.
    """
    terms, of = question.terms, len(question.terms)
    step, turned, missed = go(tails, question, (told - seen)[:of])
    covariance = (turned * error[:of] ** 2) @ turned.T + np.diag(missed**2)
    mean, precision = reference.coefficients[: model.linear].copy(), np.zeros((model.linear,) * 2)
    mean[terms] += step
    precision[np.ix_(terms, terms)] = np.linalg.inv(covariance)
    return _Belief(mean, precision)


_Step = tuple[Array, Array, Array]
"""(terms,), (terms, terms) that which it is of the score, and (terms,) by how much it may miss."""


def _step(
    model: OutcomeModel[R, F], reference: R, tails: Tails, question: _Question, off: Array
) -> _Step:
    """Newton's, from the score (terms,)."""
    turned = _turn_over(model, question, tails.turn(reference.information))
    step = np.clip(turned @ off, -_LONGEST, _LONGEST)
    return step, turned, _BENT * step**2


def _step_along(
    theta: Array,
    model: OutcomeModel[R, F],
    reference: R,
    tails: Tails,
    question: _Question,
    off: Array,
) -> _Step:
    r"""b with :math:`\int I = u`, along the line from the reference: where risks rise with a
    column's tail, so does the information, and Newton's step down is far too short."""
    step, turned, _ = _step(model, reference, tails, question, off)
    mean, terms = reference.coefficients[: model.linear], question.terms
    for _ in range(_TURNS):
        passed = np.zeros_like(reference.information)
        for share, weight in _SIMPSON:
            at = mean.copy()
            at[terms] += share * step
            passed += weight * model.refer(theta, at, narrow=True).information
        turned = _turn_over(model, question, tails.turn(passed))
        step = (step + np.clip(turned @ off, -_LONGEST, _LONGEST)) / 2
    return step, turned, _BENT_ALONG * np.abs(step)


def _turn_over(model: OutcomeModel[R, F], question: _Question, information: Array) -> Array:
    """(terms, terms) what a step is of the score, by the information along it."""
    terms, of = question.terms, len(question.terms)
    slopes = question.turn[: model.linear, :of].T @ information
    own = slopes[:, terms]
    return np.asarray(np.linalg.inv(own + 1e-3 * np.diag(np.diag(own))))


def _meet(
    model: OutcomeModel[R, F],
    estimate: Array,
    theta: Array,
    belief: _Belief,
    count: float,
    meetings: int,
) -> Array:
    """θ near by whose world has the declared coefficients of the rows."""
    for _ in range(meetings):
        reference = model.refer(theta, estimate, narrow=True)
        turn = np.eye(model.entries)[:, : model.linear][:, model.world.declared]
        found = model.imagine(reference, turn, bounded=False)
        sd = _EXACT * np.sqrt(np.diag(reference.information)[model.world.declared] / count)
        theta, _ = _solve(model, found, np.zeros(len(sd)), sd, theta, belief)
    return theta


@dataclass(frozen=True, slots=True)
class _Sizes:
    """How large the entries of some persons' scores are.

    Attributes:
        entries: (q, o) of each entry, of each way; chances: (o,) of these.
    """

    entries: Array
    chances: Array

    @classmethod
    def of(cls, imagined: Imagined, chances: Array) -> _Sizes:
        sparse = chances[::_SPARSE].T.ravel()
        laid = np.moveaxis(imagined.lay_out(_SPARSE), 2, 0)
        return cls(np.abs(laid, out=laid).reshape(-1, len(sparse)), sparse)

    def drop(self, gone: Sequence[int]) -> _Sizes:
        """The same without some entries."""
        return _Sizes(np.delete(self.entries, gone, axis=0), self.chances)

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


def _weigh_reach(
    sizes: _Sizes, question: _Question, sd: float, unseen: float
) -> tuple[Array, Array]:
    """Weights for which noise and what clipping may hide are least together; and the latter, an sd
    of each entry's mean: so much of what it takes of persons of the world as may be otherwise of
    rows, whose tails nobody has seen."""
    asked, least, chances = len(question.terms), np.inf, sizes.chances
    scale = np.sqrt(np.maximum(np.diag(question.information), LEAST_INFORMATION))
    best = np.zeros(len(sizes.entries)), np.zeros(len(sizes.entries))
    for reach, further in _REACHES:
        ends = sizes.quantiles(min(reach, _LAST_TAILS))
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
    some = _ROWS_AT_ONCE * per_person
    for at in range(0, len(scores), some):
        here = present[at : at + some]
        there = np.where(here[:, None], scores[at : at + some], 0.0)
        each = there.reshape(-1, per_person, scores.shape[1]).sum(axis=1)
        someone = np.asarray(here.reshape(-1, per_person).any(axis=1))
        whole, _ = whole_vectors(clip_rows(each, 1.0), someone, 1.0)
        total += whole.sum(axis=0)
    if measurement is None:
        return np.asarray(total * UNIT)
    return measurement(total, noise)


def _solve(
    model: OutcomeModel[R, F],
    found: F,
    goal: Array,
    sd: Array,
    theta: Array,
    belief: _Belief,
) -> tuple[Array, Array]:
    """θ where noise and belief have their mode, by Levenberg and Marquardt's damped steps; and
    the precision that the goal adds."""

    def value(mean: Array, at: Array) -> float:
        off = (goal - mean) / sd
        return 0.5 * float(off @ off) + belief.value(at)

    mean, slopes = model.look(theta, found), model.slopes(theta, found)
    now, damping, accepted = value(mean, theta), _FIRST_DAMPING, 0
    for _ in range(_STEPS):
        weighed = slopes / sd[:, None] ** 2
        curvature = slopes.T @ weighed + belief.precision
        pull = weighed.T @ (goal - mean) - belief.slope(theta)
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), pull)
        there = theta + step
        seen = model.look(there, found)
        if (then := value(seen, there)) < now:
            small = now - then < _SMALL
            theta, mean, now, damping = there, seen, then, damping * _EASED
            if small:
                break
            if accepted % _FRESH == 0:
                slopes = model.slopes(theta, found)
            accepted += 1
        else:
            damping *= _STIFFENED
    return theta, slopes.T @ (slopes / sd[:, None] ** 2)


UNIT = row_unit(1.0)
"""Of the whole numbers that a sum is made of."""

"""The ``gibbs`` mechanism's plan: from one estimand and the public n to noise and charges.

Pure and public: no row is read, and no torch is imported.
:mod:`penstock.mechanisms.gibbs.run` carries the plan out.

============  ================================================  =====================
stage         what is released                                  event
============  ================================================  =====================
summaries     counts, means and mean squares of columns;        DiscreteGaussian
              events and time at risk in public intervals
curvature     the Hessian at the start: the preconditioner      DiscreteGaussian
chain         one iterate                                       Gaussian, or
                                                                NoisyDescent
information   the Hessian at that iterate; of a survival        DiscreteGaussian
              model, on the way there, for the steps that
              remain; of a linear model, its mean squared
              residual; of counts, that beside the Hessian
============  ================================================  =====================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.gibbs import langevin, sums
from penstock.mechanisms.gibbs.design import question
from penstock.mechanisms.gibbs.langevin import Schedule
from penstock.mechanisms.gibbs.posing import SHARE, Question
from penstock.mechanisms.gibbs.settings import Gibbs
from penstock.mechanisms.refusals import list_informal
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Event
from penstock.privacy.measurements import Measurement, WholeSum, charge
from penstock.privacy.request import PrivacyRequest
from penstock.privacy.sensitivity import float_room
from penstock.questions.estimands import Estimand
from penstock.schema import Schema

STEPS, MOMENTUM = 16, 0.3
"""Of the preconditioned chain; and its momentum, where it is to have some."""

APPROACH, APPROACH_SHARE = 10, 0.25
"""Steps of it that lead to where the curvature is released again, where it changes; and their share
of the chain's budget."""

NOISE_ALLOWED = 0.5
"""The chain's noise, in sampling errors of a standardised column, up to which persons of a high
hazard are followed on."""

FARTHEST = 1.7
"""How many times its least the bound X may be: where rows count for less, a model that does not
quite hold, such as a straight line for an effect that bends, is another line."""
CHAIN_BORNE, CURVATURE_BORNE = 0.8, 0.1
"""The noise up to which X grows: the chain's in sampling errors of a standardised column, and the
last released curvature's (its norm) in curvatures."""

LEVEL_SIGNAL = 700.0
"""n·μ for each level of a baseline that θ may correct; in the summaries it has all intervals."""
PLAIN_MOMENTUM = 0.9

EXTRA = 0.5
"""What is released beside a curvature, in units of its norm: a Weibull model's weighted events at
the start, a Poisson model's squared residuals at the end."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All public parameters of one answer.

    Args:
        persons: public n; rows: k, rows per person at most.
        asked: the question.
        dimension: p of θ, the baseline's parameters among them.
        levels: of the baseline that θ corrects, each over several of its intervals.
        bound: X, norm beyond which standardised covariates lose weight.
        reach: c, in standard deviations, within which residuals (in persons, within which
            cumulative hazards) count in full.
        preconditioned: by the released curvature; else a plain chain.
        approach: steps by the curvature at the start; those that follow go by that where these
            ended, and forget these. 0: all go by the first.
        summaries, curvature, information: sums of rows; None where nothing is released.
        schedule: of the chain, and the noise on its gradients.
        epsilon: of the events at the requested δ.
    """

    guarantee: str
    persons: int
    rows: int
    copies: int
    refits: int
    asked: Question
    dimension: int
    levels: int
    bound: float
    reach: float
    preconditioned: bool
    approach: int
    summaries: WholeSum
    curvature: WholeSum | None
    schedule: Schedule
    information: WholeSum
    epsilon: float

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """All that is asked of rows, and the noise with which it leaves."""
        sums_ = (self.summaries, self.curvature, self.information)
        return (*(each for each in sums_ if each is not None), *self.schedule.measurements)

    @property
    def events(self) -> tuple[Event, ...]:
        """What the run is charged as."""
        return charge(self.measurements)

    @property
    def scale(self) -> float:
        """Noise multiplier of the one Gaussian that all releases together are as."""
        share = self.asked.posing.shares[0]
        return self.summaries.noise_multiplier * math.sqrt(share)

    @property
    def settling(self) -> Schedule:
        """The steps that the answer rests on."""
        whole = self.schedule
        return whole.part(self.approach, whole.steps) if self.approach else whole

    @property
    def allowed(self) -> float:
        """Bound on a gradient, over the root of the information, at :data:`NOISE_ALLOWED`."""
        budget = sum(1 / s**2 for s in self.settling.multipliers)
        return NOISE_ALLOWED * math.sqrt(budget) / self.rows

    @property
    def summary_size(self) -> int:
        """Numbers of the summaries."""
        return _summary_size(self.asked)

    @property
    def curvature_size(self) -> int:
        return _curvature_size(self.asked, self.dimension)

    @property
    def information_size(self) -> int:
        return _information_size(self.asked, self.dimension)


@dataclass(frozen=True, slots=True)
class WholePlan(Plan):
    """A plan that asks rows for sums of whole numbers, and for nothing else: those of many sites.

    A step's sum is of rows' own gradients, each rounded to whole multiples of a power of two of the
    bound on it, as those of the other stages are. All sums are seen by all sites, so that a chain
    is charged by composition, whatever its steps.
    """

    @property
    def steps(self) -> tuple[WholeSum, ...]:
        """Of each step of the chain its sum, in order."""
        return tuple(
            sums.measure_sum(sigma, self.dimension, self.rows, f"{langevin.LABEL}, step {step}")
            for step, sigma in enumerate(self.schedule.multipliers, start=1)
        )

    @property
    def measurements(self) -> tuple[WholeSum, ...]:
        """All that is asked of rows, and the noise with which it leaves."""
        sums_ = (self.summaries, self.curvature, self.information)
        return (*(each for each in sums_ if each is not None), *self.steps)

    def with_noise(self, factor: float) -> WholePlan:
        """The same with so many times the noise."""
        bent, multipliers = self.curvature, self.schedule.multipliers
        return replace(
            self,
            summaries=self.summaries.with_noise(factor),
            curvature=None if bent is None else bent.with_noise(factor),
            schedule=replace(self.schedule, multipliers=tuple(s * factor for s in multipliers)),
            information=self.information.with_noise(factor),
        )


P = TypeVar("P", bound=Plan)


def _summary_size(asked: Question) -> int:
    """A count, means, mean squares, and what the outcome adds."""
    outcome = asked.posing.outcome_numbers(asked.pieces)
    return 1 + asked.columns + sum(asked.numeric) + outcome


def _curvature_size(asked: Question, dimension: int) -> int:
    return dimension * (dimension + 1) // 2 + asked.posing.counts_events


def _information_size(asked: Question, dimension: int) -> int:
    """Two numbers where the curvature is known: squared residuals, and weights."""
    if asked.posing.quadratic:
        return 2
    return dimension * (dimension + 1) // 2 + asked.posing.disperses


def curvature_norm(*, beside: bool) -> float:
    """Bound on the norm of a row's curvature and, where there is, of what is released beside it."""
    return math.sqrt(1 + EXTRA**2) if beside else 1.0


def summary_norm(asked: Question) -> float:
    """Bound on the L2 norm of one row's summaries."""
    outcome = asked.posing.outcome_norm(asked.pieces)
    return math.sqrt(1 + asked.columns + sum(asked.numeric) + outcome)


def plan(
    mechanism: Gibbs,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    estimands: Sequence[Estimand],
) -> Plan:
    """Noise multipliers and charges for a study at a site of ``persons`` persons; reads no row.

    Raises:
        InvalidInput: the study asks for what this mechanism does not do.
        BudgetExceeded: no amount of noise meets ε.
    """
    _check(mechanism, schema, persons, privacy, estimands)

    def planned(scale: float) -> Plan:
        return at_scale(mechanism, schema, persons, estimands, scale)

    scale = smallest_scale(lambda s: planned(s).events, privacy.epsilon, privacy.delta)
    found = planned(scale)
    return replace(found, epsilon=epsilon(found.events, privacy.delta))


def plan_whole(
    mechanism: Gibbs,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    estimands: Sequence[Estimand],
) -> WholePlan:
    """The same in sums of whole numbers alone, of all sites' persons.

    A discrete Gaussian costs what a Gaussian of its multiplier does.

    Raises:
        InvalidInput: the study asks for what this mechanism does not do.
        BudgetExceeded: no amount of noise meets ε.
    """
    _check(mechanism, schema, persons, privacy, estimands)

    asked, rows = question(mechanism, schema, estimands[0]), schema.max_rows_per_person

    def planned(scale: float) -> WholePlan:
        found = _planned(WholePlan, mechanism, asked, persons, rows, scale)
        # Of a mean over persons, what a sum of rows' rounded gradients moves by.
        moved = sums.reach(found.dimension, rows) / persons
        return replace(found, schedule=replace(found.schedule, sensitivity=moved))

    scale = smallest_scale(lambda s: planned(s).events, privacy.epsilon, privacy.delta)
    found = planned(scale)
    return replace(found, epsilon=epsilon(found.events, privacy.delta))


def at_scale(
    mechanism: Gibbs, schema: Schema, persons: int, estimands: Sequence[Estimand], scale: float
) -> Plan:
    """The plan whose releases together are as one Gaussian of noise multiplier ``scale``; its ε is
    left open."""
    asked = question(mechanism, schema, estimands[0])
    return _planned(Plan, mechanism, asked, persons, schema.max_rows_per_person, scale)


def _planned(
    kind: type[P], mechanism: Gibbs, asked: Question, persons: int, rows: int, scale: float
) -> P:
    summary_share, curvature_share, chain_share, information_share = asked.posing.shares
    mu = math.sqrt(chain_share) / scale
    reach = asked.posing.reach(persons / scale)
    # What few persons or a small ε cannot tell apart is left as the summaries have it.
    levels = min(asked.pieces, max(1, round(persons / (LEVEL_SIGNAL * scale))))
    dimension = asked.posing.dimension(asked.columns, levels)
    bound = mechanism.bound
    if bound is None:
        bound = _choose_bound(asked, persons, rows, scale, dimension)

    def sum_of(size: int, share: float, label: str) -> WholeSum:
        return sums.measure_sum(scale / math.sqrt(share), size, rows, label)

    schedule = _schedule(mechanism, asked, rows, bound, persons / scale, mu)
    size, bent = _summary_size(asked), _curvature_size(asked, dimension)
    return kind(
        guarantee="formal",
        persons=persons,
        rows=rows,
        copies=1,
        refits=0,
        asked=asked,
        dimension=dimension,
        levels=levels,
        bound=bound,
        reach=reach,
        preconditioned=mechanism.steps is None,
        approach=APPROACH if mechanism.steps is None and asked.posing.settles else 0,
        summaries=sum_of(size, summary_share, "summaries"),
        curvature=sum_of(bent, curvature_share, "curvature") if curvature_share else None,
        schedule=replace(schedule, sensitivity=_gradient_sensitivity(persons, rows, dimension)),
        information=sum_of(_information_size(asked, dimension), information_share, "information"),
        epsilon=math.inf,
    )


def _choose_bound(asked: Question, persons: int, rows: int, scale: float, dimension: int) -> float:
    """X: √q + .4, within which most rows of normal columns lie, or as much more as noise bears.

    By planning values, as in :mod:`penstock.mechanisms.gibbs.worth`: with R² = f₀ + X² the chain's
    noise grows with R, and that of a curvature with R². A survival model's persons are followed on
    instead (:data:`NOISE_ALLOWED`): its baseline is slow to settle, and every noise grows by that.
    """
    least = math.sqrt(max(asked.columns, 1)) + 0.4
    if not asked.columns or asked.posing.settles:
        return least
    posing, squared = asked.posing, asked.posing.fixed + least**2
    expected = posing.expected(SHARE, squared, posing.reach(persons / scale))
    _, start, chain, later = posing.shares
    share, cap = (start, expected.cap) if posing.quadratic else (later, expected.cap_later)
    v = expected.curvature
    of_chain = (expected.gradient * scale) ** 2 * rows / (squared * chain * persons * v)
    of_curvature = scale * cap * math.sqrt(2 * dimension) / (math.sqrt(share) * persons * v)
    borne = min(CHAIN_BORNE**2 / of_chain, CURVATURE_BORNE / of_curvature)
    return min(max(least, math.sqrt(max(borne - posing.fixed, 0.0))), FARTHEST * least)


def narrowed(found: P, count: float) -> P:
    """The plan for as many rows as were counted, with noise: a frame may hold far more persons.

    A baseline has no more levels than they can tell apart. What is charged stays: sums of fewer
    numbers move by less, and have the same noise.
    """
    levels = max(1, round(found.levels * min(1.0, count / found.persons)))
    asked = found.asked
    dimension = asked.posing.dimension(asked.columns, levels)

    def resized(asks: WholeSum, size: int) -> WholeSum:
        return sums.measure_sum(asks.noise_multiplier, size, found.rows, asks.label)

    bent = found.curvature
    return replace(
        found,
        levels=levels,
        dimension=dimension,
        curvature=None if bent is None else resized(bent, _curvature_size(asked, dimension)),
        information=resized(found.information, _information_size(asked, dimension)),
    )


def _gradient_sensitivity(persons: int, rows: int, dimension: int) -> float:
    """k/n and room: what a person moves a gradient by, in units of the bound on a row's own.

    The room is for what one person moves in the rounding of everybody's sum, in whatever order the
    product of a matrix adds up: all rows of a person count, and none of them is clipped.
    """
    size = persons * rows
    room = float_room(size, size, 8 * dimension + 64)
    return rows / persons * (1 + room)


def _schedule(
    mechanism: Gibbs, asked: Question, rows: int, bound: float, signal: float, mu: float
) -> Schedule:
    """A preconditioned chain with decreasing steps, or as many plain steps as the study asks."""
    heavy = mechanism.dynamics == "underdamped"
    if mechanism.steps is None:
        growth, momentum = asked.posing.growth(signal), MOMENTUM if heavy else 0.0
        if not asked.posing.settles:
            return langevin.averaging(STEPS, growth, mu, momentum)
        first, last = (mu * math.sqrt(share) for share in (APPROACH_SHARE, 1 - APPROACH_SHARE))
        return langevin.joined(
            langevin.averaging(APPROACH, growth, first, momentum),
            langevin.averaging(STEPS - APPROACH, growth, last, momentum),
        )
    smoothness = rows * largest_bend(asked, bound, asked.posing.reach(signal)) + mechanism.ridge
    momentum = PLAIN_MOMENTUM if heavy else 0.0
    return langevin.plain(
        mechanism.steps, 1 / smoothness, mechanism.ridge, smoothness, mu, momentum
    )


def squared_bound(asked: Question, bound: float) -> float:
    """R² = f₀ + X²: 1 for an intercept, more with a Weibull model's log time."""
    return asked.posing.fixed + (bound**2 if asked.columns else 0.0)


def largest_bend(asked: Question, bound: float, reach: float) -> float:
    """Bound on a row's Hessian, whatever will be released: what public numbers alone can say."""
    return asked.posing.largest_bend(asked.most, squared_bound(asked, bound), reach)


def _check(
    mechanism: Gibbs,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    estimands: Sequence[Estimand],
) -> None:
    problems = list(mechanism.problems(schema, estimands))
    if not persons >= 1:
        problems.append(Problem("persons", "too few", value=str(persons), bound="at least 1"))
    problems += list_informal(privacy)
    if problems:
        raise InvalidInput("mechanism", problems)

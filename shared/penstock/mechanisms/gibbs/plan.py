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
information   the Hessian at that iterate; or, of a linear      DiscreteGaussian
              model, its mean squared residual
============  ================================================  =====================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.gibbs import chain, sums
from penstock.mechanisms.gibbs.chain import Schedule
from penstock.mechanisms.gibbs.design import question
from penstock.mechanisms.gibbs.posing import Question
from penstock.mechanisms.gibbs.settings import Gibbs
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Event
from penstock.privacy.request import PrivacyRequest
from penstock.privacy.sensitivity import float_room
from penstock.questions.estimands import Estimand
from penstock.schema import Schema

STEPS, MOMENTUM = 16, 0.3
"""Of the preconditioned chain; and its momentum, where it is to have some."""

LEVEL_SIGNAL = 700.0
"""n·μ for each level of a baseline that θ may correct; in the summaries it has all intervals."""
PLAIN_MOMENTUM = 0.9

EXTRA = 0.5
"""A Weibull model's weighted event count, in units of the other curvatures' norm."""


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
        summaries, curvature, information: noise multipliers; None where nothing is released.
        schedule: of the chain, in which Δ is the gradient's sensitivity.
        events: what the run is charged as; epsilon: their ε at the requested δ.
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
    summaries: float
    curvature: float | None
    schedule: Schedule
    information: float
    events: tuple[Event, ...]
    epsilon: float

    @property
    def scale(self) -> float:
        """Noise multiplier of the one Gaussian that all releases together are as."""
        return self.summaries * math.sqrt(self.asked.posing.shares[0])

    @property
    def summary_size(self) -> int:
        """Numbers of the summaries: a count, means, mean squares, and what the outcome adds."""
        return 1 + self.asked.columns + sum(self.asked.numeric) + self.outcome_numbers

    @property
    def outcome_numbers(self) -> int:
        """What the summaries hold of the outcome; each is at most 1 in size."""
        return self.asked.posing.outcome_numbers(self.asked.pieces)

    @property
    def curvature_size(self) -> int:
        return self.dimension * (self.dimension + 1) // 2 + self.asked.posing.counts_events

    @property
    def information_size(self) -> int:
        """Two numbers where the curvature is known: squared residuals, and weights."""
        if self.asked.posing.quadratic:
            return 2
        return self.dimension * (self.dimension + 1) // 2


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


def at_scale(
    mechanism: Gibbs, schema: Schema, persons: int, estimands: Sequence[Estimand], scale: float
) -> Plan:
    """The plan whose releases together are as one Gaussian of noise multiplier ``scale``; its ε is
    left open."""
    asked = question(mechanism, schema, estimands[0])
    rows, q = schema.max_rows_per_person, asked.columns
    bound = mechanism.bound if mechanism.bound is not None else math.sqrt(max(q, 1)) + 0.4
    return _planned(mechanism, asked, persons, rows, bound, scale)


def _planned(
    mechanism: Gibbs,
    asked: Question,
    persons: int,
    rows: int,
    bound: float,
    scale: float,
) -> Plan:
    summary_share, curvature_share, chain_share, information_share = asked.posing.shares
    mu = math.sqrt(chain_share) / scale
    reach = asked.posing.reach(persons / scale)
    # What few persons or a small ε cannot tell apart is left as the summaries have it.
    levels = min(asked.pieces, max(1, round(persons / (LEVEL_SIGNAL * scale))))
    found = Plan(
        guarantee="formal",
        persons=persons,
        rows=rows,
        copies=1,
        refits=0,
        asked=asked,
        dimension=asked.posing.dimension(asked.columns, levels),
        levels=levels,
        bound=bound,
        reach=reach,
        preconditioned=mechanism.steps is None,
        summaries=scale / math.sqrt(summary_share),
        curvature=scale / math.sqrt(curvature_share) if curvature_share else None,
        schedule=_schedule(mechanism, asked, rows, bound, persons / scale, mu),
        information=scale / math.sqrt(information_share),
        events=(),
        epsilon=math.inf,
    )
    return replace(found, events=_events(found))


def narrowed(found: Plan, count: float) -> Plan:
    """The plan for as many rows as were counted, with noise: a frame may hold far more persons.

    A baseline has no more levels than they can tell apart. What is charged stays: sums of fewer
    numbers move by less, and have the same noise.
    """
    levels = max(1, round(found.levels * min(1.0, count / found.persons)))
    dimension = found.asked.posing.dimension(found.asked.columns, levels)
    return replace(found, levels=levels, dimension=dimension)


def _events(found: Plan) -> tuple[Event, ...]:
    sizes = (
        (found.summaries, found.summary_size, "summaries"),
        (found.curvature, found.curvature_size, "curvature"),
        (found.information, found.information_size, "information"),
    )
    sums_ = (sums.event(s, size, found.rows, what) for s, size, what in sizes if s is not None)
    return (*sums_, *found.schedule.events(gradient_sensitivity(found)))


def gradient_sensitivity(plan: Plan) -> float:
    """k/n and room: what a person moves a gradient by, in units of the bound on a row's own.

    The room is for what one person moves in the rounding of everybody's sum, in whatever order the
    product of a matrix adds up: all rows of a person count, and none of them is clipped.
    """
    size = plan.persons * plan.rows
    room = float_room(size, size, 8 * plan.dimension + 64)
    return plan.rows / plan.persons * (1 + room)


def _schedule(
    mechanism: Gibbs, asked: Question, rows: int, bound: float, signal: float, mu: float
) -> Schedule:
    """A preconditioned chain with decreasing steps, or as many plain steps as the study asks."""
    heavy = mechanism.dynamics == "underdamped"
    if mechanism.steps is None:
        return chain.averaging(STEPS, asked.posing.growth(signal), mu, MOMENTUM if heavy else 0.0)
    smoothness = rows * largest_bend(asked, bound, asked.posing.reach(signal)) + mechanism.ridge
    momentum = PLAIN_MOMENTUM if heavy else 0.0
    return chain.plain(mechanism.steps, 1 / smoothness, mechanism.ridge, smoothness, mu, momentum)


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
    if privacy.guarantee != "formal":
        problems.append(
            Problem(
                "privacy.guarantee",
                "is not one that a chain can give",
                value=privacy.guarantee,
                bound="formal",
            )
        )
    if problems:
        raise InvalidInput("mechanism", problems)

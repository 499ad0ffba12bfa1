"""The plan of ``structured``: from a study and the public n to noise multipliers and charges.

Pure and public: no row is read, and no torch is imported, so that the gate can price a study before
it starts a worker. :mod:`~penstock.mechanisms.structured.run` carries the plan out.

=======================  ===============================================  =================
measurement              what is released                                 event
=======================  ===============================================  =================
margins                  counts of each column's cells, each duration's   DiscreteGaussian
                         times by event, and the number of rows
moments                  second moments of weighted, clipped scores       DiscreteGaussian
outcome, round 1, 2, …   a sum of clipped scores for each outcome         DiscreteGaussian
=======================  ===============================================  =================

One scale of noise for all, divided by the root of each one's share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.structured.counting import measure_margins
from penstock.mechanisms.structured.grids import Grid, make_grid
from penstock.mechanisms.structured.interactions import Extra, list_extras
from penstock.mechanisms.structured.matching import UNIT
from penstock.mechanisms.structured.outcomes.hazards import BLOCKS
from penstock.mechanisms.structured.regressors import most_columns, most_linear
from penstock.mechanisms.structured.settings import Structured, has_model
from penstock.mechanisms.tables.moments import measure_moments
from penstock.mechanisms.tables.plan import size_problems
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Event
from penstock.privacy.measurements import WholeSum, charge
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Factor
from penstock.schema import Column, Schema

_ROOM = 1.0
"""By how much a row (scores, 1) may be longer than the root of how many entries it has."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What part of the budget (1/σ² summed over releases) each measurement has; together 1."""

    margins: float
    moments: float
    rounds: tuple[float, ...]


WITH_OUTCOMES = Shares(0.18, 0.15, (0.10, 0.22, 0.35))
"""Most goes to what is drawn from a model of its own. Frozen on simulated cohorts."""

ALONE = Shares(0.4, 0.6, ())
"""Without an outcome there is nothing but margins and dependence."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """An outcome that is drawn from a model of its own.

    Args:
        column: its name; of survival, the duration's.
        terms, adjusted: columns that estimands of it ask for, and adjust for, those of products,
            strata and subgroups among them; none where no estimand does.
        extras: products, splines and subgroups themselves.
    """

    column: str
    terms: tuple[str, ...]
    adjusted: tuple[str, ...]
    extras: tuple[Extra, ...] = ()


@dataclass(frozen=True, slots=True)
class StructuredPlan:
    """All public parameters of one run.

    Args:
        persons: public n; rows: k, rows per person at most.
        covariates: names of the columns that the population holds.
        outcomes: what is drawn from models of their own, given the covariates, in order.
        radius: to which rows (scores, 1) are clipped before their moments are summed.
        rounds: each is one release for each outcome.
        epsilon: of the events at the requested δ.
    """

    persons: int
    rows: int
    copies: int
    refits: int
    covariates: tuple[str, ...]
    outcomes: tuple[Drawn, ...]
    radius: float
    margins: WholeSum
    moments: WholeSum
    rounds: tuple[WholeSum, ...]
    epsilon: float = math.inf

    @property
    def guarantee(self) -> str:
        """There is no other."""
        return "formal"

    @property
    def measurements(self) -> tuple[WholeSum, ...]:
        """All that is asked of rows, and the noise with which it leaves, in order."""
        return (self.margins, self.moments, *self.rounds)

    @property
    def events(self) -> tuple[Event, ...]:
        """What the run is charged as."""
        return charge(self.measurements)


def plan(
    mechanism: Structured,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    estimands: Sequence[Estimand] = (),
) -> StructuredPlan:
    """Noise multipliers and charges for a study at a site of ``persons`` persons; reads no row.

    Raises:
        InvalidInput: the study asks for what this mechanism does not do.
        BudgetExceeded: no amount of noise meets ε.
    """
    _check(mechanism, schema, persons, privacy, estimands)
    outcomes = tuple(_declare(column, estimands) for column in list_durations(schema))
    grids = make_grids(schema)
    shares = WITH_OUTCOMES if outcomes else ALONE

    def made(scale: float) -> StructuredPlan:
        return _at(mechanism, grids, outcomes, schema.max_rows_per_person, persons, shares, scale)

    scale = smallest_scale(lambda s: made(s).events, privacy.epsilon, privacy.delta)
    found = made(scale)
    return replace(found, epsilon=epsilon(found.events, privacy.delta))


def list_durations(schema: Schema) -> list[Column]:
    """The durations, in order."""
    return [column for column in schema.columns if column.event is not None]


def make_grids(schema: Schema) -> list[Grid]:
    """The cells of each covariate: of every column but durations and their events."""
    drawn = {name for c in list_durations(schema) for name in (c.name, c.event)}
    return [make_grid(column) for column in schema.columns if column.name not in drawn]


def most_score(grids: Sequence[Grid], outcomes: Sequence[Drawn] = ()) -> int:
    """The most entries of a duration's score: of events, of the baseline, and of censoring."""
    extras = [outcome.extras for outcome in outcomes] or [()]
    return max(most_columns(grids, e) + BLOCKS + most_linear(grids, e) for e in extras)


def measure_outcome(sigma: float, number: int, outcomes: int, size: int) -> WholeSum:
    """One round's sum of scores for each outcome, each a release of its own.

    Sensitivity: 1 in L2 each, zero-out of one person, exactly: the sum is of whole vectors of norm
    at most 1, one of each person (:func:`~penstock.mechanisms.tables.moments.whole_vectors`).
    """
    return WholeSum(
        label=f"outcome, round {number}",
        noise_multiplier=sigma,
        sensitivity=1.0,
        squared=Fraction(1),
        unit=UNIT,
        size=size,
        count=outcomes,
    )


def _at(
    mechanism: Structured,
    grids: Sequence[Grid],
    outcomes: tuple[Drawn, ...],
    rows: int,
    persons: int,
    shares: Shares,
    scale: float,
) -> StructuredPlan:
    latents = sum(grid.latents for grid in grids)
    radius = math.sqrt(latents + 1) + _ROOM
    size = most_score(grids, outcomes)
    return StructuredPlan(
        persons=persons,
        rows=rows,
        copies=mechanism.copies,
        refits=mechanism.refits,
        covariates=tuple(grid.column.name for grid in grids),
        outcomes=outcomes,
        radius=radius,
        margins=measure_margins(scale / math.sqrt(shares.margins), grids, len(outcomes), rows),
        moments=measure_moments(scale / math.sqrt(shares.moments), radius, latents, rows),
        rounds=tuple(
            measure_outcome(scale * math.sqrt(len(outcomes) / share), i + 1, len(outcomes), size)
            for i, share in enumerate(shares.rounds)
        ),
    )


def _declare(column: Column, estimands: Sequence[Estimand]) -> Drawn:
    """An outcome with what its estimands name, each once."""
    asked = [e for e in estimands if e.outcome == column.name and has_model(e)]
    terms = [e.term for e in asked if isinstance(e.target, Factor)]
    adjusted = [name for e in asked for name in (*e.covariates, *_compared(e)) if name != e.term]
    extras = list_extras(asked)
    return Drawn(column.name, tuple(dict.fromkeys(terms)), tuple(dict.fromkeys(adjusted)), extras)


def _compared(estimand: Estimand) -> list[str]:
    return [comparison.column for comparison in estimand.subgroup]


def _check(
    mechanism: Structured,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    estimands: Sequence[Estimand],
) -> None:
    """What a valid study may still ask and this mechanism cannot do."""
    problems = size_problems(len(schema.columns), schema.max_rows_per_person, persons)
    problems += mechanism.problems(schema, estimands)
    if privacy.guarantee != "formal":
        asked = privacy.guarantee
        problems.append(
            Problem("privacy.guarantee", "is not on offer here", value=asked, bound="formal")
        )
    if problems:
        raise InvalidInput("mechanism", problems)

"""The plan of ``scoring``: the sums of the ``structured`` tables, of the columns that are named.

Pure and public: no row is read, and no torch is imported. What is released is what
:mod:`penstock.mechanisms.structured.plan` lists, and charged alike: margins and moments of the
declared columns, and rounds of clipped score sums. The division of the budget is another: nobody
draws a table, so that more goes to the last rounds, and there are more of these. The first of them
asks how much rows tell (:class:`~penstock.mechanisms.structured.corrections.Tails`), the others for
the coefficients alone, each from nearer to the rows' own.

What no regression answers has a release of its own for each description
(:mod:`penstock.mechanisms.scoring.tallies`), and the budget is divided among all of them by
:mod:`penstock.mechanisms.scoring.division`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.refusals import list_informal
from penstock.mechanisms.scoring.descriptions import Description, list_descriptions
from penstock.mechanisms.scoring.divisible import list_divisible, measure_levels
from penstock.mechanisms.scoring.division import divide_budget, weigh_outcomes
from penstock.mechanisms.scoring.regressions import Regression, list_regressions
from penstock.mechanisms.scoring.settings import MOST_VALUE, Scoring, narrow_schema
from penstock.mechanisms.scoring.ways import make_tally
from penstock.mechanisms.structured.declared import Drawn, list_outcomes
from penstock.mechanisms.structured.plan import Shares, StructuredPlan, at_scale, make_grids
from penstock.mechanisms.tables.plan import size_problems
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Event
from penstock.privacy.measurements import WholeSum, charge
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Schema

SHARES = Shares(0.22, 0.13, (0.07, 0.09, 0.10, 0.11, 0.13, 0.15))
"""Of the budget. Frozen on generators and tables that no study shows."""

SHARES_LARGE = Shares(0.11, 0.07, (0.05, 0.06, 0.07, 0.18, 0.21, 0.25))
"""The same of many persons: what worlds are made of is known well enough with less."""

SHARE_SITES = 0.1
"""Of a joint release's budget, for sites' own scores. Other noise grows by √(1/.9): an interval by
5.4 % at most, where it is all noise. What a site's part is worth is decided by sites' sizes first:
at a tenth twelve sites of real trials' sizes are told at ε = 3. Frozen."""

_FEW, _MANY = 5000.0, 15000.0
"""Persons for each unit of the scale of all noise, between which shares pass from the one to the
other."""


@dataclass(frozen=True, slots=True)
class ScoringPlan:
    """All public parameters of one run.

    Args:
        persons: public n; rows: k, rows per person at most.
        sums: what regressions ask of rows, and the noise with which it leaves; None without any.
        schema: the columns that regressions name; regressions: those that are answered.
        descriptions: what is asked beside them; tallies: the release of each.
        scale: noise multiplier of the one Gaussian that all releases together are as.
        epsilon: of the events at the requested δ.
        apart_by: the column by whose levels coefficients are told apart, too; apart: the release
            of that, None where it is not asked for.
    """

    persons: int
    rows: int
    sums: StructuredPlan | None
    schema: Schema
    regressions: tuple[Regression, ...]
    descriptions: tuple[Description, ...]
    tallies: tuple[WholeSum, ...]
    scale: float
    epsilon: float = math.inf
    apart_by: str = ""
    apart: WholeSum | None = None

    @property
    def guarantee(self) -> str:
        """There is no other."""
        return "formal"

    @property
    def copies(self) -> int:
        return Scoring.copies

    @property
    def refits(self) -> int:
        return Scoring.refits

    @property
    def outcomes(self) -> tuple[Drawn, ...]:
        """Of whose regressions rows are asked, in order."""
        return () if self.sums is None else self.sums.outcomes

    @property
    def measurements(self) -> tuple[WholeSum, ...]:
        """All that is asked of rows, and the noise with which it leaves, in order."""
        sums = () if self.sums is None else self.sums.measurements
        return (*sums, *self.tallies, *(() if self.apart is None else (self.apart,)))

    @property
    def events(self) -> tuple[Event, ...]:
        """What the run is charged as."""
        return charge(self.measurements)

    def with_noise(self, factor: float) -> ScoringPlan:
        """The same with so many times the noise."""
        return replace(
            self,
            sums=None if self.sums is None else self.sums.with_noise(factor),
            tallies=tuple(each.with_noise(factor) for each in self.tallies),
            apart=None if self.apart is None else self.apart.with_noise(factor),
            scale=self.scale * factor,
        )

    def rounds_of(self, outcome: Drawn) -> tuple[WholeSum, ...]:
        """Those that an outcome has a release of."""
        return () if self.sums is None else self.sums.rounds_of(outcome)


def plan(
    mechanism: Scoring,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    estimands: Sequence[Estimand],
    apart_by: str = "",
) -> ScoringPlan:
    """Noise multipliers and charges for a study at a site of ``persons`` persons; reads no row.

    Args:
        apart_by: the column by whose levels coefficients are told apart, too; empty: none is.

    Raises:
        InvalidInput: the study asks for what this mechanism does not do.
        BudgetExceeded: no amount of noise meets ε.
    """
    _check(mechanism, schema, persons, privacy, estimands)

    def made(scale: float) -> ScoringPlan:
        return plan_at(mechanism, schema, persons, estimands, scale, apart_by)

    found = made(smallest_scale(lambda s: made(s).events, privacy.epsilon, privacy.delta))
    return replace(found, epsilon=epsilon(found.events, privacy.delta))


def plan_at(
    mechanism: Scoring,
    schema: Schema,
    persons: int,
    estimands: Sequence[Estimand],
    scale: float,
    apart_by: str = "",
) -> ScoringPlan:
    """The plan whose releases together are as one Gaussian of noise multiplier ``scale``; its ε is
    left open."""
    comparing = [estimand for estimand in estimands if estimand.regression.compares]
    narrow = narrow_schema(schema, comparing) if comparing else schema
    outcomes = list_outcomes(narrow, comparing) if comparing else ()
    descriptions = list_descriptions(schema, estimands)
    regressions, apart, rest = list_regressions(schema, estimands), None, scale
    if apart_by and (divisible := list_divisible(regressions)):
        levels = len(schema[apart_by].levels)
        apart = measure_levels(scale / math.sqrt(SHARE_SITES), divisible, levels)
        rest = scale / math.sqrt(1 - SHARE_SITES)
    whole, *parts = divide_budget(weigh_outcomes(narrow, outcomes), descriptions)
    sums, rows = None, schema.max_rows_per_person
    if outcomes:
        grids, own = make_grids(narrow, outcomes), rest / math.sqrt(whole)
        sums = at_scale(
            mechanism, narrow, grids, outcomes, persons, share_budget(persons, own), own
        )
    tallies = tuple(
        make_tally(each).measure(rest / math.sqrt(part), rows)
        for each, part in zip(descriptions, parts, strict=True)
    )
    told = (persons, rows, sums, narrow, regressions, descriptions, tallies, scale)
    return ScoringPlan(*told, apart_by="" if apart is None else apart_by, apart=apart)


def share_budget(persons: float, scale: float) -> Shares:
    """What part of the budget each measurement has, by public numbers; together 1.

    Args:
        scale: noise multiplier of the one Gaussian that all of them together are as.
    """
    known = max(persons, 1.0) / max(scale, 1e-300)
    of = min(max(math.log(known / _FEW) / math.log(_MANY / _FEW), 0.0), 1.0)

    def between(few: float, many: float) -> float:
        return (1 - of) * few + of * many

    return Shares(
        between(SHARES.margins, SHARES_LARGE.margins),
        between(SHARES.moments, SHARES_LARGE.moments),
        tuple(map(between, SHARES.rounds, SHARES_LARGE.rounds)),
    )


def _count_problems(schema: Schema, persons: int, estimands: Sequence[Estimand]) -> list[Problem]:
    """Counts of so many rows that what is released would not hold them."""
    rows = persons * schema.max_rows_per_person
    found = list_descriptions(schema, estimands)
    counting = any(d.crossed or any(e.regression.total for e in d.estimands) for d in found)
    if not counting or rows <= MOST_VALUE:
        return []
    bound = f"at most {MOST_VALUE:g} rows"
    return [Problem("estimands", "count too many rows", value=str(rows), bound=bound)]


def _check(
    mechanism: Scoring,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    estimands: Sequence[Estimand],
) -> None:
    problems = size_problems(len(schema.columns), schema.max_rows_per_person, persons)
    problems += mechanism.problems(schema, estimands)
    problems += _count_problems(schema, persons, estimands)
    problems += list_informal(privacy)
    if problems:
        raise InvalidInput("mechanism", problems)

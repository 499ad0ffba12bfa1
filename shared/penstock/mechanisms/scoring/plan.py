"""The plan of ``scoring``: the sums of the ``structured`` tables, of the columns that are named.

Pure and public: no row is read, and no torch is imported. What is released is what
:mod:`penstock.mechanisms.structured.plan` lists, and charged alike: margins and moments of the
declared columns, and rounds of clipped score sums. The division of the budget is another: nobody
draws a table, so that more goes to the last rounds, and there are more of these. The first of them
asks how much rows tell (:class:`~penstock.mechanisms.structured.matching.Tails`), the others for
the coefficients alone, each from nearer to the rows' own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.base.errors import InvalidInput
from penstock.mechanisms.refusals import list_informal
from penstock.mechanisms.scoring.regressions import Regression, list_regressions
from penstock.mechanisms.scoring.settings import Scoring, narrow_schema
from penstock.mechanisms.structured.declared import Drawn, list_outcomes
from penstock.mechanisms.structured.plan import Shares, StructuredPlan, at_scale, make_grids
from penstock.mechanisms.tables.plan import size_problems
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.calibration import smallest_scale
from penstock.privacy.events import Event
from penstock.privacy.measurements import WholeSum
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Schema

SHARES = Shares(0.22, 0.13, (0.07, 0.09, 0.10, 0.11, 0.13, 0.15))
"""Of the budget. Frozen on generators and tables that no study shows."""


@dataclass(frozen=True, slots=True)
class ScoringPlan:
    """All public parameters of one run.

    Args:
        sums: what is asked of rows, and the noise with which it leaves.
        schema: the columns that estimands name; regressions: those that are answered.
        epsilon: of the events at the requested δ.
    """

    sums: StructuredPlan
    schema: Schema
    regressions: tuple[Regression, ...]
    epsilon: float

    @property
    def guarantee(self) -> str:
        return self.sums.guarantee

    @property
    def persons(self) -> int:
        return self.sums.persons

    @property
    def rows(self) -> int:
        return self.sums.rows

    @property
    def copies(self) -> int:
        return self.sums.copies

    @property
    def refits(self) -> int:
        return self.sums.refits

    @property
    def outcomes(self) -> tuple[Drawn, ...]:
        """Of which rows are asked, in order."""
        return self.sums.outcomes

    @property
    def measurements(self) -> tuple[WholeSum, ...]:
        """All that is asked of rows, and the noise with which it leaves, in order."""
        return self.sums.measurements

    @property
    def events(self) -> tuple[Event, ...]:
        """What the run is charged as."""
        return self.sums.events

    @property
    def scale(self) -> float:
        """Noise multiplier of the one Gaussian that all releases together are as."""
        return self.sums.margins.noise_multiplier * math.sqrt(SHARES.margins)

    def rounds_of(self, outcome: Drawn) -> tuple[WholeSum, ...]:
        """Those that an outcome has a release of."""
        return self.sums.rounds_of(outcome)


def plan(
    mechanism: Scoring,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    estimands: Sequence[Estimand],
) -> ScoringPlan:
    """Noise multipliers and charges for a study at a site of ``persons`` persons; reads no row.

    Raises:
        InvalidInput: the study asks for what this mechanism does not do.
        BudgetExceeded: no amount of noise meets ε.
    """
    _check(mechanism, schema, persons, privacy, estimands)

    def made(scale: float) -> ScoringPlan:
        return plan_at(mechanism, schema, persons, estimands, scale)

    found = made(smallest_scale(lambda s: made(s).events, privacy.epsilon, privacy.delta))
    return replace(found, epsilon=epsilon(found.events, privacy.delta))


def plan_at(
    mechanism: Scoring,
    schema: Schema,
    persons: int,
    estimands: Sequence[Estimand],
    scale: float,
) -> ScoringPlan:
    """The plan whose releases together are as one Gaussian of noise multiplier ``scale``; its ε is
    left open."""
    narrow = narrow_schema(schema, estimands)
    outcomes = list_outcomes(narrow, estimands)
    grids = make_grids(narrow, outcomes)
    sums = at_scale(mechanism, narrow, grids, outcomes, persons, SHARES, scale)
    return ScoringPlan(sums, narrow, list_regressions(schema, estimands), sums.epsilon)


def _check(
    mechanism: Scoring,
    schema: Schema,
    persons: int,
    privacy: PrivacyRequest,
    estimands: Sequence[Estimand],
) -> None:
    problems = size_problems(len(schema.columns), schema.max_rows_per_person, persons)
    problems += mechanism.problems(schema, estimands)
    problems += list_informal(privacy)
    if problems:
        raise InvalidInput("mechanism", problems)

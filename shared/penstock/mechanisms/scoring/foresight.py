r"""Whether answers will be worth their charge: planned from public numbers alone.

The last rounds' sums have noise of multiplier σ together, and a person's score norm C at most, of
entries that are asked for. With a row's information v and n·k rows, of standardised covariates that
are uncorrelated, a coefficient's noise and its sampling error are

.. math:: \frac{σ C}{n k v},\qquad \frac{1}{\sqrt{n k v}},\qquad
          W = \sqrt{1 + \frac{(σ C)^2}{n k v}},\qquad C = c \sqrt{q + 1}

with q coefficients that are asked for of the outcome, and *planning values* v and c, what hardly a
row's residual exceeds:

=========  ====  ====  ===========================================================================
model      v     c     with
=========  ====  ====  ===========================================================================
ols        1     3     residuals in units of their spread
poisson    1     3     a mean of 1
logistic   .16   .9    every fifth row has it
cox        .2    1.3   every fifth row has the event by the end of follow-up
=========  ====  ====  ===========================================================================

W is how many times as wide an interval is as one without noise. Where it is above
:data:`~penstock.mechanisms.widths.MOST_WIDE`, answers are refused before anything is charged. Rarer
events, missing rows, tails and correlated covariates only widen an interval further; what is
planned depends on no row, so that the refusal tells of none. A forecast (:mod:`penstock.forecast`)
says more, and from planning values of the study's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from penstock.mechanisms.scoring.plan import ScoringPlan, plan_at
from penstock.mechanisms.scoring.settings import Scoring
from penstock.mechanisms.structured.declared import Drawn
from penstock.mechanisms.structured.interactions import count_columns
from penstock.mechanisms.structured.matching import EXPLORED
from penstock.mechanisms.structured.plan import list_counted
from penstock.mechanisms.widths import refuse_wide
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Schema

_PLANNED = {"ols": (1.0, 3.0), "poisson": (1.0, 3.0), "logistic": (0.16, 0.9), "cox": (0.2, 1.3)}
_OTHERS = (0.16, 3.0)
"""v and c; of a model that is not listed the worst of them."""


def require_worth(
    found: ScoringPlan,
    mechanism: Scoring,
    schema: Schema,
    privacy: PrivacyRequest,
    estimands: Sequence[Estimand],
) -> None:
    """Refuse answers of which one is planned to be too wide; reads no row.

    Args:
        found: the plan of all that follows.

    Raises:
        Hopeless: says which ε, or how many persons, would do.
    """

    def made(persons: int, scale: float) -> ScoringPlan:
        return plan_at(mechanism, schema, persons, estimands, scale)

    refuse_wide(found, privacy, planned_width, made, also="ask for fewer coefficients")


def planned_width(of: ScoringPlan) -> float:
    """The largest W of the formula above over outcomes; at least 1, and finite."""
    return max(_width(of, outcome) for outcome in of.outcomes)


def _width(of: ScoringPlan, outcome: Drawn) -> float:
    information, reach = _PLANNED.get(outcome.regression, _OTHERS)
    last = of.rounds_of(outcome)[EXPLORED:]
    # Each outcome has a release of its own in every round.
    sigma = 1 / math.sqrt(sum(1 / each.sd**2 for each in last))
    longest = reach * math.sqrt(_count_asked(of, outcome) + 1)
    rows = of.persons * of.rows
    return math.sqrt(1 + (sigma * longest) ** 2 / (rows * information))


def _count_asked(of: ScoringPlan, outcome: Drawn) -> int:
    """Columns of the design whose coefficients are asked for."""
    grids = list_counted(of.schema, of.outcomes)
    mains = [max(len(g.column.levels) - 1, 1) for g in grids if g.column.name in outcome.terms]
    return sum(mains) + count_columns(grids, [e for e in outcome.extras if e.asked])

r"""Whether answers will be worth their charge: planned from public numbers alone.

The last rounds' sums have noise of multiplier σ together, and a person's score norm C at most, of
entries that are asked for. With a row's information v and n·k rows, of standardised covariates that
are uncorrelated, a coefficient's noise and its sampling error are

.. math:: \frac{σ C}{n k v},\qquad \frac{1}{\sqrt{n k v}},\qquad
          W = \sqrt{1 + \frac{(σ C)^2}{n k v}},\qquad C = c \, r (q + 1)^{.85}

with q coefficients that are asked for of the outcome, *planning values* v and c, and r how much
further out than three sds the rarest level lies that is asked for, √((1 - s)/s)/3 of a share s:

=========  ====  ====  ===========================================================================
model      v     c     with
=========  ====  ====  ===========================================================================
ols        1     4.5   residuals in units of their spread
poisson    1     5.2   a mean of 1
logistic   .16   .8    every fifth row has it
cox        .2    1.15  every fifth row has the event by the end of follow-up
=========  ====  ====  ===========================================================================

c and the power of q + 1 (a norm's would be ½) are measured: noise on the counts of columns, on
their moments and on curvatures is in an answer, too. On 98 cells of simulated cohorts (four models,
400 to 3 000 rows, ε from .5 to 3, 3 to 12 coefficients), to which they were fitted, W is within
25 % of the median interval in .63; on 84 of real tables, to which they were not, in .70 (quartiles
of the ratio .85 and 1.12). Where ε is so small that counts show hardly a column's spread an
interval may even be far too narrow: W of such linear and Poisson models is 4.8 and more.

W is how many times as wide an interval is as one without noise. Where it is above
:data:`~penstock.mechanisms.widths.MOST_WIDE`, answers are refused before anything is charged. What
a study says of events, of an outcome's and of asked columns' levels, and of its frame
(:mod:`penstock.study.planning`) stands in place of a fifth, of levels that are not rare, and of a
full frame. Missing rows, tails and correlated covariates only widen an interval further; what is
planned depends on no row, so that the refusal tells of none. A forecast (:mod:`penstock.forecast`)
says more.
"""

from __future__ import annotations

import math

from penstock.mechanisms.protocol import Asked, Prospect
from penstock.mechanisms.scoring.descriptions import Description, Way
from penstock.mechanisms.scoring.division import (
    DESCRIBED,
    OTHERS,
    PLANNED,
    POWER,
    count_asked,
)
from penstock.mechanisms.scoring.plan import ScoringPlan, plan_at
from penstock.mechanisms.scoring.settings import Scoring
from penstock.mechanisms.structured.declared import Drawn
from penstock.mechanisms.structured.matching import EXPLORED
from penstock.mechanisms.widths import refuse_wide

_SHARE, _REACHED, _LEAST_SHARE = 0.2, 3.0, 1e-6
_SUBGROUP = 0.5
"""Of the rows, that one comparison is planned to leave."""


def require_worth(found: ScoringPlan, asked: Asked[Scoring]) -> None:
    """Refuse answers of which one is planned to be too wide; reads no row.

    Args:
        found: the plan of all that follows.

    Raises:
        Hopeless: says which ε, or how many persons, would do.
    """

    def made(persons: int, scale: float) -> ScoringPlan:
        estimands, apart_by = asked.estimands, asked.apart_by
        return plan_at(asked.settings, asked.schema, persons, estimands, scale, apart_by)

    def width(of: ScoringPlan) -> float:
        return planned_width(of, asked.prospect)

    refuse_wide(found, asked.privacy, width, made, also="ask for less")


def planned_width(of: ScoringPlan, prospect: Prospect = Prospect()) -> float:
    """The largest W of the formula above over outcomes, and of
    :mod:`penstock.mechanisms.scoring.division` over descriptions; at least 1, and finite."""
    widths = [_width(of, outcome, prospect) for outcome in of.outcomes]
    widths += [
        _width_described(of, description, asked.noise_multiplier, prospect)
        for description, asked in zip(of.descriptions, of.tallies, strict=True)
    ]
    return max(widths)


def _width_described(
    of: ScoringPlan, description: Description, sigma: float, prospect: Prospect
) -> float:
    weight = DESCRIBED[description.way]
    if description.way in (Way.LEVELS, Way.SURVIVAL, Way.EVENTS):
        share = prospect.share(description.outcome.name, _SHARE)
        share = min(max(share, _LEAST_SHARE), 1 - _LEAST_SHARE)
        weight *= math.sqrt(_SHARE * (1 - _SHARE) / (share * (1 - share)))
    if description.way is Way.RATE:
        share = prospect.share(description.outcome.name, _SHARE)
        weight *= math.sqrt(_SHARE / max(share, _LEAST_SHARE))
    asked = [e.probability for e in description.estimands if e.probability is not None]
    weight *= 0.5 / math.sqrt(min((p * (1 - p) for p in asked), default=0.25))
    left = math.prod(prospect.share(c.name, _SUBGROUP) for c in description.compared)
    rows = of.persons * of.rows * prospect.filled * max(left, _LEAST_SHARE)
    return math.sqrt(1 + (sigma * weight) ** 2 / rows)


def _width(of: ScoringPlan, outcome: Drawn, prospect: Prospect) -> float:
    information, reach = PLANNED.get(outcome.regression, OTHERS)
    share = min(max(prospect.share(outcome.column, _SHARE), _LEAST_SHARE), 1.0)
    if outcome.lasting:
        information *= share / _SHARE
    elif outcome.regression == "logistic":
        information *= share * (1 - share) / (_SHARE * (1 - _SHARE))
    # Of the last rounds the first one asks for curvatures alone.
    last = of.rounds_of(outcome)[EXPLORED + 1 :]
    # Each outcome has a release of its own in every round.
    sigma = 1 / math.sqrt(sum(1 / each.sd**2 for each in last))
    shares = [prospect.share(name, 1.0) for name in outcome.terms]
    rarest = max(min(shares, default=1.0), _LEAST_SHARE)
    further = max(1.0, math.sqrt((1 - rarest) / rarest) / _REACHED)
    longest = reach * further * (count_asked(of.schema, of.outcomes, outcome) + 1) ** POWER
    rows = of.persons * of.rows * prospect.filled
    return math.sqrt(1 + (sigma * longest) ** 2 / (rows * max(information, _LEAST_SHARE)))

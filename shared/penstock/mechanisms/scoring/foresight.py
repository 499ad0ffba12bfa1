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
:data:`MOST_WIDE`, answers are refused before anything is charged. Rarer events, missing rows, tails
and correlated covariates only widen an interval further; what is planned depends on no row, so that
the refusal tells of none. A forecast (:mod:`penstock.forecast`) says more, and from planning values
of the study's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from penstock.base.errors import Hopeless
from penstock.mechanisms.scoring.plan import ScoringPlan, plan_at
from penstock.mechanisms.scoring.settings import Scoring
from penstock.mechanisms.structured.declared import Drawn
from penstock.mechanisms.structured.interactions import count_columns
from penstock.mechanisms.structured.matching import EXPLORED
from penstock.mechanisms.structured.plan import list_counted
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Schema

MOST_WIDE = 10.0
"""W, above which answers are refused."""

_PLANNED = {"ols": (1.0, 3.0), "poisson": (1.0, 3.0), "logistic": (0.16, 0.9), "cox": (0.2, 1.3)}
_OTHERS = (0.16, 3.0)
"""v and c; of a model that is not listed the worst of them."""

_MOST_PERSONS, _LEAST_SCALE = 1 << 40, 1e-4


def require_worth(
    found: ScoringPlan,
    mechanism: Scoring,
    schema: Schema,
    privacy: PrivacyRequest,
    estimands: Sequence[Estimand],
) -> None:
    """Refuse answers of which one's planned width is above :data:`MOST_WIDE`; reads no row.

    Args:
        found: the plan of all that follows.

    Raises:
        Hopeless: says which ε, or how many persons, would do.
    """
    width, persons = planned_width(found), found.persons
    if width <= MOST_WIDE:
        return

    def wide(persons: int, scale: float) -> bool:
        return planned_width(plan_at(mechanism, schema, persons, estimands, scale)) > MOST_WIDE

    def cost(scale: float) -> float:
        return epsilon(plan_at(mechanism, schema, persons, estimands, scale).events, privacy.delta)

    scale = _enough(lambda scale: wide(persons, scale), found.scale)
    more = "no ε would do" if scale is None else f"ask for an ε of at least {_up(cost(scale)):g}"
    raise Hopeless(
        "the answers would be noise: an interval, planned from public numbers, is so many times as"
        " wide as one without noise",
        value=f"{width:.3g} times with {persons} persons at ε = {privacy.epsilon:g}",
        bound=f"at most {MOST_WIDE:g} times",
        remedy=f"{more}, or ask sites of at least {_persons(wide, found):.6g} persons, or ask for "
        "fewer coefficients",
    )


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


def _enough(wide: Callable[[float], bool], scale: float) -> float | None:
    """Nearly the largest scale of noise that is not too wide; None where the least one is."""
    low, high = _LEAST_SCALE, scale
    if wide(low):
        return None
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if wide(middle) else (middle, high)
    return low


def _persons(wide: Callable[[int, float], bool], found: ScoringPlan) -> float:
    """Nearly the least number of persons, of whom a plan of this scale is not too wide."""
    low = high = found.persons
    while wide(high, found.scale):
        low, high = high, 2 * high
        if high > _MOST_PERSONS:
            return math.inf
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if wide(middle, found.scale) else (low, middle)
    return _up(high)


def _up(value: float) -> float:
    """To two digits, never below."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.2g}")

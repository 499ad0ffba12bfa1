r"""By what a study's releases divide its budget: from public numbers alone.

With noise of multiplier σ and n·k rows the noise on an answer and its sampling error are as

.. math:: W = \sqrt{1 + \frac{(σ g)^2}{n k}}

times the latter, with g a *planning weight*: that of an outcome's coefficients is C/√v
(:mod:`penstock.mechanisms.scoring.foresight`), and a description's is here. The sum of all squared
noises over sampling errors is least, at one price, where parts of the budget (1/σ²) are as g.

=============  ====  =================================================================
way            g     with
=============  ====  =================================================================
mean           4.9   half the range is three sds, and values lie about its middle
levels         2     a fifth of the rows have it
distribution   5.4   a median of 1,024 bins
survival       5     a fifth of the rows have the event by then
events         2     a fifth of the rows have the event
rate           3     the same, and rows are followed for .7 of the time
table          3.3   a tenth of the rows are in a cell
=============  ====  =================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from penstock.mechanisms.scoring.descriptions import Description, Way
from penstock.mechanisms.structured.declared import Drawn
from penstock.mechanisms.structured.interactions import count_columns
from penstock.mechanisms.structured.plan import list_counted
from penstock.schema import Schema

PLANNED = {"ols": (1.0, 4.5), "poisson": (1.0, 5.2), "logistic": (0.16, 0.8), "cox": (0.2, 1.15)}
OTHERS = (0.16, 5.2)
"""v and c of an outcome's model; of one that is not listed the worst of them."""

DESCRIBED: Mapping[Way, float] = MappingProxyType(
    {
        Way.MEAN: 4.9,
        Way.LEVELS: 2.0,
        Way.DISTRIBUTION: 5.4,
        Way.SURVIVAL: 5.0,
        Way.EVENTS: 2.0,
        Way.RATE: 3.0,
        Way.TABLE: 3.3,
    }
)
"""g of a description."""

POWER = 0.85


def count_asked(schema: Schema, outcomes: Sequence[Drawn], outcome: Drawn) -> int:
    """Columns of the design whose coefficients are asked for."""
    grids = list_counted(schema, outcomes)
    asked = [g.column for g in grids if g.column.name in outcome.terms]
    mains = [len(c.levels) - 1 if c.kind == "categorical" else 1 for c in asked]
    return sum(mains) + count_columns(grids, [e for e in outcome.extras if e.asked])


def weigh_outcomes(schema: Schema, outcomes: Sequence[Drawn]) -> float:
    """g of all of them together; 0 where there is none."""
    total = 0.0
    for outcome in outcomes:
        information, reach = PLANNED.get(outcome.regression, OTHERS)
        longest = reach * (count_asked(schema, outcomes, outcome) + 1) ** POWER
        total += longest / information**0.5
    return total


def divide_budget(regressions: float, descriptions: Sequence[Description]) -> tuple[float, ...]:
    """What part of the budget the regressions have, then each description; together 1.

    Args:
        regressions: their planning weight.
    """
    weights = [regressions, *(DESCRIBED[each.way] for each in descriptions)]
    return tuple(weight / sum(weights) for weight in weights)

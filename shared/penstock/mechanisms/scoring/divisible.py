r"""Of which regressions sites' own coefficients are told, in which order, and at which charge: from
public facts alone.

Rows are asked for an outcome's coefficients, all of its regressions together. Where an outcome has
one regression, of all rows, these are that regression's; of others sites' own are not told.

Relation: zero-out of one person with public n. A person's rows are of one level. Each person is
one vector of clipped norm at most 1 in whole numbers
(:func:`~penstock.mechanisms.tables.moments.whole_vectors`: rounding leaves none longer), which
stands in the block of that level, zeros in all others. Whoever leaves takes away that one vector,
so that all blocks together move by at most 1 in L2, however many levels and coefficients there are.
At a site of a joint release all other blocks hold noise alone: a block is a release of one site's
rows, with the whole sum's noise, and its charge is that of any sum of all sites.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from penstock.mechanisms.scoring.regressions import Regression, list_regressions
from penstock.questions.estimands import Estimand
from penstock.schema import Schema

if TYPE_CHECKING:
    from penstock.privacy.measurements import WholeSum


def list_divisible(regressions: Sequence[Regression]) -> tuple[Regression, ...]:
    """Those that are the only one of their outcome, and of all rows."""
    alone = Counter(regression.outcome for regression in regressions)
    return tuple(r for r in regressions if alone[r.outcome] == 1 and not r.where)


def list_terms(regression: Regression) -> list[int]:
    """The places of its terms that are asked for, each once, in order."""
    return sorted(set(regression.asked.values()))


def measure_levels(sigma: float, divisible: Sequence[Regression], levels: int) -> WholeSum:
    """A sum of blocks of scores, one of each level, for each regression a release of its own.

    Sensitivity: 1 in L2 each, zero-out of one person, exactly, as above. No block has more numbers
    than its regression has terms.

    Args:
        sigma: noise multiplier of the one Gaussian that all of them together are as.
    """
    # Here: whoever lists what is told needs no arithmetic.
    from penstock.mechanisms.structured.score_clipping import UNIT
    from penstock.privacy.measurements import WholeSum

    return WholeSum(
        label="sites' scores",
        noise_multiplier=sigma * math.sqrt(len(divisible)),
        sensitivity=1.0,
        squared=Fraction(1),
        unit=UNIT,
        size=levels * max(len(regression.terms) for regression in divisible),
        count=len(divisible),
    )


def list_apart(
    schema: Schema, estimands: Sequence[Estimand], apart_by: str
) -> list[tuple[int, int, int]]:
    """What is told apart, in order: each regression's number, the place of a term of it that is
    asked for, and the level's. Empty where nothing is.

    Args:
        apart_by: the column whose levels they are; empty: none is asked for.
    """
    if not apart_by:
        return []
    levels = range(len(schema[apart_by].levels))
    return [
        (regression.number, place, level)
        for regression in list_divisible(list_regressions(schema, estimands))
        for place in list_terms(regression)
        for level in levels
    ]

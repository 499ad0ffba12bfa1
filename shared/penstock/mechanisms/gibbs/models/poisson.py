"""A Poisson model's chain: counts within public bounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from penstock.base.checks import Checks
from penstock.mechanisms.gibbs.families import POISSON_LOSS
from penstock.mechanisms.gibbs.posing import (
    SHARE,
    Array,
    Expected,
    Loss,
    Planned,
    Posing,
    Question,
    Rows,
    Standardised,
    Summaries,
    one_predictor,
)
from penstock.questions.models.poisson import POISSON
from penstock.schema import Column

LARGEST_COUNT = 1000.0
"""The largest upper bound of a count."""


class PoissonPosing(Posing):
    model = POISSON
    title = f"{POISSON.title}, fitted"
    shares = (0.1, 0.15, 0.55, 0.2)
    quadratic = False
    disperses = True

    def check_outcome(self, check: Checks, outcome: Column) -> None:
        lower, upper = outcome.bounds
        if lower < 0 or upper > LARGEST_COUNT:
            check.add(
                "estimand.outcome",
                "a count needs bounds that a chain can bear",
                value=f"{lower:g} to {upper:g}",
                bound=f"0 to {LARGEST_COUNT:g}",
                remedy="Narrow the column's public bounds",
            )

    def outcome_numbers(self, pieces: int) -> int:
        """The square root."""
        return 1

    def largest_bend(self, most: float, squared: float, reach: float) -> float:
        return (1 + reach) * most * squared

    def expected(
        self,
        hazard: float,
        squared: float,
        reach: float,
        *,
        bears: float | None = None,
        share: float = SHARE,
    ) -> Expected:
        """The mean is 1; a width does not depend on it."""
        return Expected(reach * math.sqrt(squared), 1.0, max(1.5, reach - 1), 1.0)

    def read_outcome(
        self, asked: Question, column: Callable[[str], Array]
    ) -> tuple[Array, Array | None]:
        return np.clip(column(asked.outcome), 0.0, asked.high), None

    def summands(self, asked: Question, rows: Rows, part: slice) -> Array:
        roots: Array = np.sqrt(rows.y[part] / asked.most)
        return roots[:, None]

    def outcome_scale(
        self, asked: Question, sums: Array, count: float, sd: float
    ) -> tuple[float, float]:
        # The square root of a Poisson count has variance 1/4, nearly; spread beyond is allowed for.
        least = sd / count / 2
        root = float(np.clip(sums[0] / count, least, 1.0)) * math.sqrt(asked.most)
        return root**2 + 0.25, 1.2 * math.sqrt(root**2 + 0.25)

    def pose(self, plan: Planned, seen: Summaries, given: Standardised) -> Loss:
        centre, spread = seen.outcome
        return one_predictor(
            plan,
            given,
            family=POISSON_LOSS,
            outcome=given.rows.y,
            limit=min(plan.reach * spread, plan.asked.most),
            start=(math.log(centre),),
        )

    def curvature_cap(self, seen: Summaries, reach: float, highest: float, *, start: bool) -> float:
        typical = seen.outcome[0]
        return min(typical if start else max(1.5, reach - 1) * typical, highest)

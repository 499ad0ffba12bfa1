"""A logistic model's chain."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from penstock.base.checks import Checks
from penstock.mechanisms.gibbs.families import LOGISTIC_LOSS
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
from penstock.questions.models.logistic import LOGISTIC
from penstock.schema import Column


class LogisticPosing(Posing):
    model = LOGISTIC
    title = f"{LOGISTIC.title}, fitted"
    shares = (0.1, 0.15, 0.55, 0.2)
    quadratic = False

    def check_outcome(self, check: Checks, outcome: Column) -> None:
        """Any will do."""

    def outcome_numbers(self, pieces: int) -> int:
        """The value."""
        return 1

    def largest_bend(self, most: float, squared: float, reach: float) -> float:
        return 0.25 * squared

    def expected(
        self,
        hazard: float,
        squared: float,
        reach: float,
        *,
        bears: float | None = None,
        share: float = SHARE,
    ) -> Expected:
        """Every fifth row has it: curvature .16."""
        bend = share * (1 - share)
        return Expected(math.sqrt(squared), bend, min(0.25, 3 * bend), bend)

    def read_outcome(
        self, asked: Question, column: Callable[[str], Array]
    ) -> tuple[Array, Array | None]:
        return (column(asked.outcome) > 0).astype(np.float64), None

    def summands(self, asked: Question, rows: Rows, part: slice) -> Array:
        return rows.y[part][:, None]

    def outcome_scale(
        self, asked: Question, sums: Array, count: float, sd: float
    ) -> tuple[float, float]:
        """Its share, and 1."""
        least = min(max(0.01, sd / count), 0.5)
        return float(np.clip(sums[0] / count, least, 1 - least)), 1.0

    def pose(self, plan: Planned, seen: Summaries, given: Standardised) -> Loss:
        share = seen.outcome[0]
        start = (math.log(share / (1 - share)),)
        return one_predictor(
            plan, given, family=LOGISTIC_LOSS, outcome=given.rows.y, limit=1.0, start=start
        )

    def curvature_cap(self, seen: Summaries, reach: float, highest: float, *, start: bool) -> float:
        share = seen.outcome[0]
        return share * (1 - share) if start else min(0.25, 3 * share * (1 - share))

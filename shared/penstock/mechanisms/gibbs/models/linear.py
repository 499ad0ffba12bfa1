"""A linear model's chain, and that of a mean: residuals that are cut off beyond c spreads."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from penstock.base.checks import Checks
from penstock.mechanisms.gibbs.families import LINEAR_LOSS
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
from penstock.questions.models.linear import LINEAR
from penstock.questions.models.mean import MEAN
from penstock.schema import Column


class LinearPosing(Posing):
    model = LINEAR
    title = f"{LINEAR.title}, fitted"
    shares = (0.1, 0.25, 0.6, 0.05)
    quadratic = True

    def check_outcome(self, check: Checks, outcome: Column) -> None:
        """Any will do."""

    def outcome_numbers(self, pieces: int) -> int:
        """Value and square."""
        return 2

    def largest_bend(self, most: float, squared: float, reach: float) -> float:
        return squared

    def expected(
        self,
        hazard: float,
        squared: float,
        reach: float,
        *,
        bears: float | None = None,
        share: float = SHARE,
    ) -> Expected:
        """Errors have variance 1 in units of the outcome's spread: curvature 1."""
        return Expected(reach * math.sqrt(squared), 1.0, 1.0, 1.0)

    def read_outcome(
        self, asked: Question, column: Callable[[str], Array]
    ) -> tuple[Array, Array | None]:
        """In [-1, 1] by its bounds."""
        middle, half = (asked.low + asked.high) / 2, (asked.high - asked.low) / 2
        return np.clip((column(asked.outcome) - middle) / half, -1.0, 1.0), None

    def summands(self, asked: Question, rows: Rows, part: slice) -> Array:
        y = rows.y[part]
        return np.column_stack([y, y**2])

    def outcome_scale(
        self, asked: Question, sums: Array, count: float, sd: float
    ) -> tuple[float, float]:
        mean = float(np.clip(sums[0] / count, -1.0, 1.0))
        variance = float(sums[1] / count) - mean**2
        return mean, math.sqrt(min(max(variance, sd / count, 4e-4), 1.0))

    def pose(self, plan: Planned, seen: Summaries, given: Standardised) -> Loss:
        centre, spread = seen.outcome
        return one_predictor(
            plan,
            given,
            family=LINEAR_LOSS,
            outcome=(given.rows.y - centre) / spread * given.rows.there.astype(np.float64),
            limit=min(plan.reach, (1 + abs(centre)) / spread),
        )

    def curvature_cap(self, seen: Summaries, reach: float, highest: float, *, start: bool) -> float:
        return 1.0


class MeanPosing(LinearPosing):
    """An intercept alone: every row counts as one, so that its curvature needs no release."""

    model = MEAN
    title = f"{MEAN.title}, taken"
    shares = (0.15, 0.0, 0.8, 0.05)

    def reach(self, signal: float) -> float:
        """Later than others: cutting off skewed errors biases the mean."""
        return 2.0 + 0.5 * math.log1p(signal / 10)

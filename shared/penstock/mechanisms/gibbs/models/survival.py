"""A survival model's chains, for hazard ratios: with a piecewise constant or a Weibull baseline.

Follow-up is cut into public intervals (one, for a Weibull baseline), in each of which events and
time at risk are counted with noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from penstock.base.checks import Checks
from penstock.base.errors import PenstockError
from penstock.mechanisms.gibbs.families import LEAST_SHAPE, WEIBULL_LOSS
from penstock.mechanisms.gibbs.posing import (
    SHARE,
    Array,
    Bools,
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
from penstock.mechanisms.gibbs.posterior import Piecewise
from penstock.questions.models.cox import COX
from penstock.schema import Column

MOST_HAZARD = 1.2
"""U: a person's follow-up ends for a piecewise model where the baseline's cumulative hazard reaches
this."""

EARLIEST = 0.05
"""Times before this share of the follow-up count as this, in a Weibull model: log t is bounded."""


def exposures(asked: Question, time: Array) -> tuple[Array, Bools]:
    """Share of each interval that was lived through, in [0, 1], and whether it ended in it.

    Args:
        time: (N,) in [0, 1].

    Returns:
        (N, J) exposures in units of an interval, and (N, J) bool: the interval that holds the
        time, the first that ends at or after it.
    """
    cuts = np.asarray(asked.cuts)
    width = np.diff(cuts)
    lived = np.clip((time[:, None] - cuts[:-1]) / width, 0.0, 1.0)
    at = (time[:, None] > cuts[1:-1]).sum(axis=1)
    ended: Bools = at[:, None] == np.arange(asked.pieces)
    return lived, ended


class _SurvivalPosing(Posing):
    """What both baselines have in common."""

    model = COX
    shares = (0.1, 0.15, 0.55, 0.2)
    quadratic = False
    settles = True

    def with_baseline(self, baseline: str) -> Posing:
        if baseline not in BASELINES:
            known = ", ".join(BASELINES)
            raise PenstockError("unknown baseline", value=baseline, bound=known)
        return BASELINES[baseline]

    def check_outcome(self, check: Checks, outcome: Column) -> None:
        """Any will do."""

    def outcome_numbers(self, pieces: int) -> int:
        """In each interval of the baseline, events and time at risk."""
        return 2 * pieces

    def outcome_norm(self, pieces: int) -> int:
        """At most one event, and all of the time."""
        return 1 + pieces

    def growth(self, signal: float) -> float:
        """Its curvature changes most from the start, so that its steps stay even the longest."""
        return min(1.3 + 0.1 * math.log1p(signal / 1e5), 2.0)

    def read_outcome(
        self, asked: Question, column: Callable[[str], Array]
    ) -> tuple[Array, Array | None]:
        """Whether there was an event, and the share of the follow-up."""
        if asked.event is None:
            raise PenstockError("a duration without its event column", value=asked.outcome)
        time = np.clip(column(asked.outcome) / asked.high, 0.0, 1.0)
        return (column(asked.event) > 0).astype(np.float64), time

    def summands(self, asked: Question, rows: Rows, part: slice) -> Array:
        lived, ended = exposures(asked, rows.time[part])
        there = rows.there[part][:, None]
        return np.column_stack([ended * rows.y[part][:, None], np.where(there, lived, 0.0)])

    def outcome_scale(
        self, asked: Question, sums: Array, count: float, sd: float
    ) -> tuple[float, float]:
        return 0.0, 1.0

    def hazard(self, asked: Question, sums: Array, sd: float) -> Array:
        """Noise may not take it below what it could hide."""
        j = asked.pieces
        events, lived = np.maximum(sums[:j], sd), np.maximum(sums[j : 2 * j], 2 * sd)
        found: Array = np.clip(events / lived, 1e-3, 20.0)
        return found


class PiecewisePosing(_SurvivalPosing):
    title = "Survival model with a piecewise constant baseline hazard, fitted"

    def pieces(self, asked: int) -> int:
        return asked

    def largest_bend(self, most: float, squared: float, reach: float) -> float:
        return (1 + reach) * MOST_HAZARD * squared

    def expected(
        self,
        hazard: float,
        squared: float,
        reach: float,
        *,
        bears: float | None = None,
        share: float = SHARE,
    ) -> Expected:
        """Every fifth row has the event by the end of follow-up, at an even rate."""
        most = min(MOST_HAZARD, hazard)
        a, x2 = most * (1 + reach), squared - 1
        if bears is not None:
            a = _follow(a, bears * math.sqrt(most))
        gradient = math.sqrt(max(max(1.0, a * a) * (1 + x2), 1 + a * a + (a - 1) ** 2 * x2))
        later = min(max(1.5, reach - 1) * most, max(a, most))
        return Expected(gradient, min(most, a), later, share)

    def pose(self, plan: Planned, seen: Summaries, given: Standardised) -> Loss:
        """Follow-up ends where the baseline's cumulative hazard reaches a public bound: censoring
        by what was released, which biases nothing."""
        rows, asked = given.rows, plan.asked
        lived, ended = exposures(asked, rows.time)
        most = _longest(seen)
        before = np.concatenate([[0.0], np.cumsum(seen.hazard)[:-1]])
        hazard = np.clip(lived * seen.hazard, 0.0, np.maximum(most - before, 0.0))
        full = (lived * seen.hazard).sum(axis=1)
        died = ended * (rows.y * (full <= most))[:, None]
        group = (np.arange(asked.pieces) * plan.levels // asked.pieces)[:, None]
        together = (group == np.arange(plan.levels)).astype(np.float64)
        return Piecewise(
            hazard=(hazard * rows.there[:, None]) @ together,
            died=died @ together,
            covariates=given.x,
            weight=given.weight,
            most=_with_room(most),
            relative=_hazard_at_most(plan, seen, given.squared, most) / most,
            squared=given.squared,
            persons=plan.persons,
            rows=plan.rows,
            start=np.zeros(plan.dimension),
            ridge=asked.ridge,
            stopped=plan.preconditioned,
        )

    def curvature_cap(self, seen: Summaries, reach: float, highest: float, *, start: bool) -> float:
        most = _with_room(_longest(seen))
        return min(most if start else max(1.5, reach - 1) * most, highest)


class WeibullPosing(_SurvivalPosing):
    """A log time beside the intercept, in [-2, 1], whose slope is the shape: R² has 5 for both."""

    title = "Survival model with a Weibull baseline, fitted"
    fixed = 5.0
    own_bend = 1 / LEAST_SHAPE**2
    counts_events = True

    def dimension(self, columns: int, levels: int) -> int:
        return columns + 2

    def largest_bend(self, most: float, squared: float, reach: float) -> float:
        return (1 + reach) * MOST_HAZARD * squared + self.own_bend

    def expected(
        self,
        hazard: float,
        squared: float,
        reach: float,
        *,
        bears: float | None = None,
        share: float = SHARE,
    ) -> Expected:
        """As with a piecewise baseline."""
        most = min(MOST_HAZARD, hazard)
        gradient = max(1.0, most * (1 + reach)) * math.sqrt(squared)
        return Expected(gradient, most, max(1.5, reach - 1) * most, share)

    def pose(self, plan: Planned, seen: Summaries, given: Standardised) -> Loss:
        total = float(seen.hazard[0])
        # log t, centred so that its bound is small.
        late = np.log(np.maximum(given.rows.time, EARLIEST)) + 1.0
        return one_predictor(
            plan,
            given,
            family=WEIBULL_LOSS,
            outcome=given.rows.y,
            limit=max(1.0, (1 + plan.reach) * min(total, MOST_HAZARD)),
            start=(math.log(total) - 1.0, 1.0),
            late=(late * given.rows.there.astype(np.float64),),
        )

    def curvature_cap(self, seen: Summaries, reach: float, highest: float, *, start: bool) -> float:
        typical = float(seen.hazard[0])
        return min(typical if start else max(1.5, reach - 1) * typical, highest)


def _longest(seen: Summaries) -> float:
    """The cumulative hazard at which follow-up ends."""
    return min(MOST_HAZARD, float(seen.hazard.sum()))


def _hazard_at_most(plan: Planned, seen: Summaries, squared: float, most: float) -> float:
    """A: by a plain chain a person's hazard counts as this at most, and by others follow-up ends
    where it is this: at 1, or later where there is little noise, which grows with it."""
    highest = (1 + plan.reach) * most
    if not plan.preconditioned:
        return highest
    return _follow(highest, plan.allowed * math.sqrt(seen.count * most / squared))


def _follow(highest: float, bears: float) -> float:
    """Up to which hazard persons are followed: what noise bears, from 1 to the highest."""
    return max(1.0, min(bears, highest))


def _with_room(most: float) -> float:
    """Rounding may leave a sum a little above."""
    return most * (1 + 1e-12)


BASELINES: dict[str, Posing] = {"piecewise": PiecewisePosing(), "weibull": WeibullPosing()}
"""By the name of the baseline, which the mechanism's settings choose."""

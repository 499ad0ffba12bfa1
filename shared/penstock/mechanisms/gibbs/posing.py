"""What a model must say so that a chain can answer a question of it.

One object for each model, and for each baseline of a survival model. All of it is public but for
the methods that are given :class:`Rows`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.base.checks import Checks
from penstock.mechanisms.gibbs.families import Family
from penstock.mechanisms.gibbs.posterior import Piecewise, Regression
from penstock.questions.models.model import Model
from penstock.questions.terms import Term
from penstock.schema import Column

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Loss = Regression | Piecewise

SHARE = 0.2
"""Planning value of the share of rows with a logistic model's outcome, or with an event."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, in public terms.

    Attributes:
        posing: the model, and how a chain poses it.
        outcome, event: columns; event of a model that needs one.
        terms: columns of the design beside the intercept, the term last.
        middle, half: (q,) from the public bounds.
        numeric: (q,) whether a column takes more than two values.
        low, high: public bounds of the outcome.
        cuts: inner and outer ends of the baseline's intervals, as shares of the follow-up.
        per: units of the term per which its coefficient is reported.
        ridge: of the posterior.
        answers: what each row of the answer is about.
    """

    posing: Posing
    outcome: str
    event: str | None
    terms: tuple[Term, ...]
    middle: tuple[float, ...]
    half: tuple[float, ...]
    numeric: tuple[bool, ...]
    low: float
    high: float
    cuts: tuple[float, ...]
    per: float
    ridge: float
    answers: tuple[str, ...]

    @property
    def columns(self) -> int:
        """q, columns of the design beside the intercept."""
        return len(self.terms)

    @property
    def pieces(self) -> int:
        return len(self.cuts) - 1

    @property
    def most(self) -> float:
        """Y, the largest count of an outcome; at least 1."""
        return max(self.high, 1.0)

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns without which a row is a null row."""
        names = [self.outcome, *(term.column for term in self.terms)]
        names += [self.event] if self.event is not None else []
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Rows:
    """The private rows of a question.

    Attributes:
        x: (N, q) in [-1, 1].
        y: (N,) outcome: in [-1, 1] by its bounds (numbers), 0/1 (levels and events), or a count.
        time: (N,) share of the follow-up, in [0, 1]; zeros without a duration.
        there: (N,) False where a row is absent or lacks a column; all else is 0 there.
    """

    x: Array
    y: Array
    time: Array
    there: Bools


@dataclass(frozen=True, slots=True)
class Summaries:
    """What the first release says; all else follows from it and from public numbers.

    Attributes:
        count: rows; centre, scale: (q,) of the covariates in [-1, 1]; outcome: centre and scale of
            the outcome in its own units; hazard: (J,) rate per interval.
    """

    count: float
    centre: Array
    scale: Array
    outcome: tuple[float, float]
    hazard: Array


@dataclass(frozen=True, slots=True)
class Expected:
    """Planning values: the bound on a row's gradient, on its curvature at the start and at the end,
    and the curvature that rows have on average."""

    gradient: float
    cap: float
    cap_later: float
    curvature: float


class Planned(Protocol):
    """What posing a question needs of a :class:`penstock.mechanisms.gibbs.plan.Plan`."""

    @property
    def persons(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def asked(self) -> Question: ...
    @property
    def dimension(self) -> int: ...
    @property
    def levels(self) -> int: ...
    @property
    def reach(self) -> float: ...
    @property
    def preconditioned(self) -> bool: ...
    @property
    def allowed(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Standardised:
    """Rows whose covariates are brought to the released scales.

    Attributes:
        x: (N, q); weight: (N,) by which a row's gradient counts, 0 in null rows.
        squared: R² = f₀ + X².
    """

    rows: Rows
    x: Array
    weight: Array
    squared: float


class Posing(ABC):
    """How a chain poses a model.

    Attributes:
        model: what a study calls it.
        title: as the report calls it, before "at the sites".
        shares: of the budget, 1/σ² summed over releases: summaries, curvature (0: it is known
            beforehand), chain, information. Frozen on simulated cohorts.
        quadratic: the loss has the same curvature everywhere, and what is released at the end is
            its residuals' mean square; of others it is the curvature at the iterate.
        fixed: f₀, the squared norm of a design row beside the covariates: 1 of an intercept.
        own_bend: bound on the curvature of the posterior's public term beside the ridge.
        counts_events: the weighted number of events is released beside the first curvature.
        disperses: outcomes may vary more than the model says; their residuals' mean square is
            released beside the last curvature, and widens the sampling error.
        refused: why no chain answers it, in words; empty: one does.
        settles: the curvature changes so much with θ that it is released again on the way, and the
            chain's last steps go by that.
    """

    model: ClassVar[Model]
    title: ClassVar[str]
    shares: ClassVar[tuple[float, float, float, float]]
    quadratic: ClassVar[bool]
    fixed: ClassVar[float] = 1.0
    own_bend: ClassVar[float] = 0.0
    counts_events: ClassVar[bool] = False
    disperses: ClassVar[bool] = False
    refused: ClassVar[str] = ""
    settles: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return self.model.name

    def with_baseline(self, baseline: str) -> Posing:
        """The same with a baseline; only survival models have one."""
        return self

    @abstractmethod
    def check_outcome(self, check: Checks, outcome: Column) -> None:
        """Add the problems of an outcome that suits the model, but not a chain."""

    # -- public numbers, for the plan

    def pieces(self, asked: int) -> int:
        """Intervals of the baseline, of as many as the study asks for; 1 without a baseline."""
        return 1

    def dimension(self, columns: int, levels: int) -> int:
        """p of θ: parameters before the slopes, one for each level of the baseline; and slopes."""
        return columns + levels

    @abstractmethod
    def outcome_numbers(self, pieces: int) -> int:
        """What the summaries hold of the outcome; each is at most 1 in size."""

    def outcome_norm(self, pieces: int) -> int:
        """Bound on the squared norm of a row's part in them."""
        return self.outcome_numbers(pieces)

    def growth(self, signal: float) -> float:
        """How shares of the budget grow along the chain: with much signal the start is soon
        forgotten, its curvature, too; with little, steps by a noisy preconditioner do better if
        none of them rules."""
        return min(1.2 + 0.1 * math.log1p(signal / 100), 2.0)

    def reach(self, signal: float) -> float:
        """c: slopes are cut off the later the more signal, n·μ, there is to see a bias with.

        Cutting off symmetric errors biases no slope.
        """
        return 1.5 + 0.25 * math.log1p(signal / 10)

    @abstractmethod
    def largest_bend(self, most: float, squared: float, reach: float) -> float:
        """Bound on a row's Hessian, whatever will be released: what public numbers alone can say.

        Args:
            most: largest outcome, at least 1; squared: R²; reach: c.
        """

    @abstractmethod
    def expected(
        self,
        hazard: float,
        squared: float,
        reach: float,
        *,
        bears: float | None = None,
        share: float = SHARE,
    ) -> Expected:
        """Planning values of :mod:`penstock.mechanisms.gibbs.worth`.

        Args:
            hazard: cumulative, as the noise of the summaries will make it on average.
            bears: of a preconditioned chain: the bound on a person's hazard that noise bears, over
                the root of the baseline's; None of a plain one.
            share: of rows that have a logistic model's outcome, or the event.
        """

    # -- private rows

    @abstractmethod
    def read_outcome(
        self, asked: Question, column: Callable[[str], Array]
    ) -> tuple[Array, Array | None]:
        """Outcome and time of :class:`Rows`, within bounds whatever a row holds.

        Args:
            column: a schema's column, (N,), with 0 in null rows.
        """

    @abstractmethod
    def summands(self, asked: Question, rows: Rows, part: slice) -> Array:
        """(rows, :meth:`outcome_numbers`) that the summaries add up."""

    @abstractmethod
    def outcome_scale(
        self, asked: Question, sums: Array, count: float, sd: float
    ) -> tuple[float, float]:
        """Centre and scale of the outcome, by noisy sums of the summands with noise of this sd."""

    def hazard(self, asked: Question, sums: Array, sd: float) -> Array:
        """Events per interval lived through."""
        return np.ones(1)

    @abstractmethod
    def pose(self, plan: Planned, seen: Summaries, given: Standardised) -> Loss:
        """The posterior."""

    @abstractmethod
    def curvature_cap(self, seen: Summaries, reach: float, highest: float, *, start: bool) -> float:
        """Bound on a row's curvature: at the start the exact one, later a few times a typical one.

        Args:
            reach: c; highest: what the posterior bounds it by anywhere.
        """


def one_predictor(
    plan: Planned,
    given: Standardised,
    *,
    family: Family,
    outcome: Array,
    limit: float,
    start: tuple[float, ...] = (),
    late: tuple[Array, ...] = (),
) -> Regression:
    """The posterior of a model with one linear predictor: intercept, other columns, slopes.

    Args:
        limit: see :class:`penstock.mechanisms.gibbs.families.Family`.
        start: θ₀ as far as it is not 0.
        late: columns between the intercept and the covariates.
    """
    from_zero = np.zeros(plan.dimension)
    from_zero[: len(start)] = start
    one = given.rows.there.astype(np.float64)[:, None]
    return Regression(
        family=family,
        design=np.column_stack([one, *late, given.x]),
        outcome=outcome,
        weight=given.weight,
        squared=given.squared,
        limit=limit,
        persons=plan.persons,
        rows=plan.rows,
        start=from_zero,
        ridge=plan.asked.ridge,
        largest=plan.asked.most,
    )

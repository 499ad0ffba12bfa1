r"""From coded columns to a bounded design, and from its coefficients to the reporting scale.

Each column of the design is brought to [-1, 1] by its public bounds: x̃ = (x - m)/h, with m the
middle and h half the width (numbers), m = h = 1/2 for 0/1 columns. A second, affine step to
a = (x̃ - centre)/scale uses *released* centres and scales (:mod:`penstock.mechanisms.gibbs.run`).
Both are affine, so coefficients go back exactly, by a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.gibbs.settings import Gibbs, Term, answer_terms, design_terms
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

LEAST_SHAPE = 0.2
"""Of a Weibull model: below, its own term of the posterior goes on as a straight line."""

EARLIEST = 0.05
"""Times before this share of the follow-up count as this, in a Weibull model: log t is bounded."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, in public terms.

    Attributes:
        model: of the estimand.
        outcome, event: columns; event for cox alone.
        terms: columns of the design beside the intercept, the term last.
        middle, half: (q,) from the public bounds.
        numeric: (q,) whether a column takes more than two values.
        low, high: public bounds of the outcome.
        cuts: inner and outer ends of the baseline's intervals, as shares of the follow-up.
        weibull: whether a survival model has a Weibull baseline.
        per: units of the term per which its coefficient is reported.
        ridge: of the posterior.
        answers: what each row of the answer is about.
    """

    model: str
    outcome: str
    event: str | None
    terms: tuple[Term, ...]
    middle: tuple[float, ...]
    half: tuple[float, ...]
    numeric: tuple[bool, ...]
    low: float
    high: float
    cuts: tuple[float, ...]
    weibull: bool
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
        y: (N,) outcome: in [-1, 1] by its bounds (ols, mean), 0/1 (logistic, cox's event), or a
            count.
        time: (N,) share of the follow-up, in [0, 1]; zeros without a duration.
        there: (N,) False where a row is absent or lacks a column; all else is 0 there.
    """

    x: Array
    y: Array
    time: Array
    there: Bools


def question(mechanism: Gibbs, schema: Schema, estimand: Estimand) -> Question:
    """The estimand as a question, by the schema's public bounds."""
    terms = design_terms(schema, estimand)
    places = [_place(schema[term.column], term) for term in terms]
    outcome = schema[estimand.outcome]
    low, high = outcome.bounds if outcome.lower is not None else (0.0, 1.0)
    survival = estimand.model == "cox"
    weibull = survival and mechanism.baseline == "weibull"
    pieces = mechanism.pieces if survival and not weibull else 1
    return Question(
        model=estimand.model,
        outcome=estimand.outcome,
        event=outcome.event if survival else None,
        terms=terms,
        middle=tuple(place[0] for place in places),
        half=tuple(place[1] for place in places),
        numeric=tuple(place[2] for place in places),
        low=float(low),
        high=float(high),
        cuts=tuple(float(c) for c in np.linspace(0.0, 1.0, pieces + 1)),
        weibull=weibull,
        per=estimand.per,
        ridge=mechanism.ridge,
        answers=answer_terms(schema, estimand, mechanism),
    )


def _place(column: Column, term: Term) -> tuple[float, float, bool]:
    """Middle, half width, and whether there are more than two values."""
    if term.level is not None or column.kind == "binary":
        return 0.5, 0.5, False
    if column.kind == "ordered":
        top = len(column.levels) - 1.0
        return top / 2, top / 2, top > 1
    low, high = column.bounds
    return (low + high) / 2, (high - low) / 2, True


def read(asked: Question, coded: Mapping[str, Array], present: Bools) -> Rows:
    """The question's rows. Whatever a row holds, its x is in [-1, 1] and its y within bounds.

    Args:
        coded: the schema's columns, each (N,); present: (N,).
    """
    there = np.array(present, dtype=np.bool_)
    for name in asked.needed:
        there &= np.isfinite(coded[name])

    def column(name: str) -> Array:
        return np.where(there, coded[name], 0.0)

    x = np.zeros((len(there), asked.columns))
    for i, (term, middle, half) in enumerate(
        zip(asked.terms, asked.middle, asked.half, strict=True)
    ):
        values = column(term.column)
        values = values if term.level is None else (values == term.level).astype(np.float64)
        x[:, i] = np.clip((values - middle) / half, -1.0, 1.0)
    outcome, time = column(asked.outcome), np.zeros(len(there))
    if asked.model == "cox" and asked.event is not None:
        time = np.clip(outcome / asked.high, 0.0, 1.0)
        y = (column(asked.event) > 0).astype(np.float64)
    elif asked.model in ("ols", "mean"):
        middle, half = (asked.low + asked.high) / 2, (asked.high - asked.low) / 2
        y = np.clip((outcome - middle) / half, -1.0, 1.0)
    elif asked.model == "poisson":
        y = np.clip(outcome, 0.0, asked.high)
    else:
        y = (outcome > 0).astype(np.float64)
    mask = there.astype(np.float64)
    return Rows(x * mask[:, None], y * mask, time * mask, there)


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


def reporting(
    asked: Question, centre: Array, scale: Array, outcome: tuple[float, float]
) -> tuple[Array, Array]:
    """(T, s): coefficients on the reporting scale are T·θ + s, the answer's p rows.

    Args:
        centre, scale: (q,) of the released affine step of the covariates.
        outcome: centre and scale of that of the outcome, in units of its half width.

    Returns:
        T (p, 1+q) for θ = (intercept, q slopes); s (p,). A cox model has no row for the intercept.
    """
    q = asked.columns
    middle, half = np.asarray(asked.middle), np.asarray(asked.half)
    # aᵀθ = θ₀ + Σ θ_j (x_j - m_j - h_j c_j)/(h_j s_j)
    matrix, shift = np.zeros((1 + q, 1 + q)), np.zeros(1 + q)
    matrix[0, 0] = 1.0
    if q:
        matrix[0, 1:] = -(middle + half * centre) / (half * scale)
        matrix[1:, 1:] = np.diag(1.0 / (half * scale))
    if asked.model in ("ols", "mean"):
        wide = (asked.high - asked.low) / 2
        matrix *= wide * outcome[1]
        shift[0] = (asked.low + asked.high) / 2 + wide * outcome[0]
    if q:
        matrix[-1] *= asked.per
    return (matrix[1:], shift[1:]) if asked.model == "cox" else (matrix, shift)

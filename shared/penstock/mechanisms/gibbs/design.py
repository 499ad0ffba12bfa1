r"""From coded columns to a bounded design, and from its coefficients to the reporting scale.

Each column of the design is brought to [-1, 1] by its public bounds: x̃ = (x - m)/h, with m the
middle and h half the width (numbers), m = h = 1/2 for 0/1 columns. A second, affine step to
a = (x̃ - centre)/scale uses *released* centres and scales (:mod:`penstock.mechanisms.gibbs.run`).
Both are affine, so coefficients go back exactly, by a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.gibbs.models import POSINGS
from penstock.mechanisms.gibbs.posing import Question, Rows
from penstock.mechanisms.gibbs.settings import Gibbs, answer_terms
from penstock.questions.estimands import Estimand
from penstock.questions.terms import DesignTerm, Term, design_terms
from penstock.schema import Column, Schema

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


def question(mechanism: Gibbs, schema: Schema, estimand: Estimand) -> Question:
    """The estimand as a question, by the schema's public bounds."""
    terms = _columns(design_terms(schema, estimand))
    places = [_place(schema[term.column], term) for term in terms]
    outcome = schema[estimand.outcome]
    low, high = outcome.bounds if outcome.lower is not None else (0.0, 1.0)
    posing = POSINGS.of(estimand.model).with_baseline(mechanism.baseline)
    pieces = posing.pieces(mechanism.pieces)
    return Question(
        posing=posing,
        outcome=estimand.outcome,
        event=outcome.event if posing.model.needs_event else None,
        terms=terms,
        middle=tuple(place[0] for place in places),
        half=tuple(place[1] for place in places),
        numeric=tuple(place[2] for place in places),
        low=float(low),
        high=float(high),
        cuts=tuple(float(c) for c in np.linspace(0.0, 1.0, pieces + 1)),
        per=estimand.per,
        ridge=mechanism.ridge,
        answers=answer_terms(schema, estimand, mechanism),
    )


def _columns(terms: Sequence[DesignTerm]) -> tuple[Term, ...]:
    """The same; a study has refused all others."""
    columns = tuple(term for term in terms if isinstance(term, Term))
    if len(columns) < len(terms):
        raise TypeError("a chain's design is of columns")
    return columns


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
        values = term.of({term.column: column(term.column)})
        x[:, i] = np.clip((values - middle) / half, -1.0, 1.0)
    y, time = asked.posing.read_outcome(asked, column)
    time = np.zeros(len(there)) if time is None else time
    mask = there.astype(np.float64)
    return Rows(x * mask[:, None], y * mask, time * mask, there)


def reporting(
    asked: Question, centre: Array, scale: Array, outcome: tuple[float, float]
) -> tuple[Array, Array]:
    """(T, s): coefficients on the reporting scale are T·θ + s, the answer's p rows.

    Args:
        centre, scale: (q,) of the released affine step of the covariates.
        outcome: centre and scale of that of the outcome, in units of its half width.

    Returns:
        T (p, 1+q) for θ = (intercept, q slopes); s (p,). A model without an intercept has no row
        for it.
    """
    q = asked.columns
    middle, half = np.asarray(asked.middle), np.asarray(asked.half)
    # aᵀθ = θ₀ + Σ θ_j (x_j - m_j - h_j c_j)/(h_j s_j)
    matrix, shift = np.zeros((1 + q, 1 + q)), np.zeros(1 + q)
    matrix[0, 0] = 1.0
    if q:
        matrix[0, 1:] = -(middle + half * centre) / (half * scale)
        matrix[1:, 1:] = np.diag(1.0 / (half * scale))
    if asked.posing.model.in_outcome_units:
        wide = (asked.high - asked.low) / 2
        matrix *= wide * outcome[1]
        shift[0] = (asked.low + asked.high) / 2 + wide * outcome[0]
    if q:
        matrix[-1] *= asked.per
    return (matrix, shift) if asked.posing.model.intercept else (matrix[1:], shift[1:])

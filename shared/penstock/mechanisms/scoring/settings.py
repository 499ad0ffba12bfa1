"""Settings of ``scoring``: answers to declared questions, regressions' by noisy Fisher scoring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from penstock.base.checks import Checks
from penstock.base.errors import Problem
from penstock.mechanisms.structured.declared import (
    has_model,
    list_exposure_problems,
    list_outcomes,
)
from penstock.questions.estimands import Estimand
from penstock.questions.models.model import Model
from penstock.questions.terms import count_terms
from penstock.schema import NUMBER_KINDS, Schema

MOST_SLOPE = 1e4
"""Of a coefficient, by public bounds: released variances end at 1e12."""

MOST_VALUE = 4e5
"""Of a mean or a quantile, by public bounds."""

MAX_TERMS = 60
"""Coefficients of one regression at most: noise grows with their number."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """The answers to a study's questions: numbers and their covariance, no table.

    There is nothing to set: how often rows are asked, and with which part of the budget, is fixed.

    An answer whose interval is planned, from public numbers, to be more than five times as wide as
    one without noise is refused by sites before a charge
    (:mod:`penstock.mechanisms.scoring.foresight`).
    """

    name: ClassVar[str] = "scoring"
    copies: ClassVar[int] = 1
    refits: ClassVar[int] = 0

    def problems(self, schema: Schema, estimands: Sequence[Estimand]) -> list[Problem]:
        """What this study and schema ask that the mechanism cannot do."""
        check = Checks("mechanism")
        if not estimands:
            check.add(
                "name",
                "answers questions, and the study asks none",
                remedy="Add an estimand, or use a mechanism that releases tables",
            )
        known = {*schema.names}
        for e in estimands:
            if not set(e.columns) <= known:
                return check.problems  # said by the study already
        for e in estimands:
            if e.regression.of_tables:
                check.add(
                    f"estimands.{e.name}",
                    "is no number that noisy sums hold",
                    value=e.model,
                    remedy="Ask for it in a study of tables",
                )
                continue
            if e.robust:
                check.add(
                    f"estimands.{e.name}.errors",
                    "need each person's own score in a square, which no noisy sum holds",
                    value=e.errors,
                    remedy="Remove it, or ask in a study of tables",
                )
            if e.regression.names_level:
                check.add(
                    f"estimands.{e.name}",
                    "has coefficients of every level, which no answer holds",
                    value=e.model,
                    remedy="Ask for it in a study of tables",
                )
            elif (terms := count_terms(schema, e)) > MAX_TERMS:
                check.add(
                    f"estimands.{e.name}.adjust",
                    "makes too many coefficients",
                    value=str(terms),
                    bound=f"at most {MAX_TERMS}",
                    remedy="Adjust for fewer columns or levels",
                )
            if schema[e.outcome].kind in e.regression.outcomes:
                _check_size(check, schema, e)
        check.problems += list_exposure_problems(estimands)
        if not check.problems:
            _check_outcomes(check, schema, estimands)
        return check.problems


def _check_size(check: Checks, schema: Schema, estimand: Estimand) -> None:
    """Refuse units in which a coefficient's variance would be too large a number to release."""

    def half_width(name: str) -> float:
        column = schema[name]
        return (column.bounds[1] - column.bounds[0]) / 2 if column.kind in NUMBER_KINDS else 0.5

    if not estimand.regression.compares:
        _check_values(check, schema, estimand)
        return
    rise = half_width(estimand.outcome) if estimand.regression.in_outcome_units else 1.0
    runs = [math.prod(map(half_width, r.columns)) for r in estimand.regressors]
    largest = rise * max(estimand.per, 1.0) / min(runs, default=1.0)
    if not largest <= MOST_SLOPE:
        check.add(
            f"estimands.{estimand.name}",
            "asks for a coefficient that may be too large a number",
            value=f"{largest:.3g}",
            bound=f"{MOST_SLOPE:g} by the public bounds",
            remedy="Give the outcome or the covariates in other units, or ask per fewer of them",
        )


def _check_values(check: Checks, schema: Schema, estimand: Estimand) -> None:
    """The same of a column's own values."""
    column = schema[estimand.outcome]
    if column.kind not in NUMBER_KINDS or estimand.regression.scale != "plain":
        return
    largest = max(map(abs, column.bounds))
    if not largest <= MOST_VALUE:
        check.add(
            f"estimands.{estimand.name}",
            "asks of values that may be too large numbers",
            value=f"{largest:.3g}",
            bound=f"{MOST_VALUE:g} by the public bounds",
            remedy="Give the outcome in other units",
        )


def _check_outcomes(check: Checks, schema: Schema, estimands: Sequence[Estimand]) -> None:
    """Each outcome has one model, of its own."""
    estimands = [e for e in estimands if e.regression.compares]
    if not estimands:
        return
    outcomes = list_outcomes(narrow_schema(schema, estimands), estimands)
    models: dict[str, Model] = {}
    for e in estimands:
        if schema[e.outcome].kind not in e.regression.outcomes:
            continue  # the study says so
        if not has_model(e, outcomes):
            event = schema[e.outcome].kind == "event"
            check.add(
                f"estimands.{e.name}.outcome",
                "is the event of a duration"
                if event
                else "is asked of in a circle: each of two outcomes adjusts for the other",
                value=e.outcome,
                remedy="Ask of the duration" if event else "Ask in two studies, or of tables",
            )
        elif models.setdefault(e.outcome, e.regression) is not e.regression:
            check.add(
                f"estimands.{e.name}.model",
                "is the second one of its outcome",
                value=e.model,
                bound=models[e.outcome].name,
                remedy="Ask in two studies",
            )


def narrow_schema(schema: Schema, estimands: Sequence[Estimand]) -> Schema:
    """The columns that estimands name, and durations' events: of others nothing is asked."""
    named: set[str | None] = {name for e in estimands for name in e.columns}
    named |= {column.event for column in schema.columns if column.name in named}
    named |= {c.name for c in schema.columns if c.event is not None and c.event in named}
    return replace(schema, columns=tuple(c for c in schema.columns if c.name in named))

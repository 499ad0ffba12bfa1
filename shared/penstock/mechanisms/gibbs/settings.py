"""Settings of ``gibbs``: the coefficients of one regression, by a Langevin chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.base.checks import Checks
from penstock.base.errors import Problem
from penstock.mechanisms.gibbs.models import BASELINES, POSINGS
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Factor
from penstock.questions.models.longitudinal import LongitudinalModel
from penstock.questions.terms import INTERCEPT, count_terms, design_terms
from penstock.schema import NUMBER_KINDS, Column, Schema

DYNAMICS = ("overdamped", "underdamped")
MOST_SLOPE = 1e4
"""Of a coefficient, by public bounds: released variances end at 1e12."""

MAX_TERMS = 60
"""Coefficients at most: noise grows with their number, and the information with its square."""


@dataclass(frozen=True, slots=True)
class Gibbs:
    """The answer to one question: coefficients and their covariance, no table.

    Attributes:
        dynamics: ``overdamped`` (noisy gradient descent) or ``underdamped`` (with momentum).
        steps: of a plain chain, each of the same size; None: a chain that is preconditioned by
            released second moments, whose length follows from the public n and ε.
        ridge: λ of the penalty λ/2 ‖θ‖² per person (of a survival model's preconditioned chain: per
            event that is expected), above 0: strong convexity. What it shrinks is corrected
            afterwards.
        bound: L2 norm beyond which a person's standardised covariates lose weight; None: chosen
            from the number of columns, and further out where noise bears it (but in survival
            models).
        baseline: of a survival model: ``piecewise`` exponential or ``weibull``.
        pieces: intervals of a piecewise baseline, of equal length within the public follow-up.

    An answer whose interval is planned, from public numbers, to be more than five times as wide as
    one without noise is refused by sites before a charge: :mod:`penstock.mechanisms.gibbs.worth`.

    Raises:
        InvalidInput: with every problem.
    """

    name: ClassVar[str] = "gibbs"
    copies: ClassVar[int] = 1
    refits: ClassVar[int] = 0
    dynamics: str = "overdamped"
    steps: int | None = None
    ridge: float = 0.01
    bound: float | None = None
    baseline: str = "piecewise"
    pieces: int = 5

    def __post_init__(self) -> None:
        check = Checks("mechanism")
        check.choice("dynamics", self.dynamics, DYNAMICS)
        if self.steps is not None:
            check.whole("steps", self.steps, 1, 100_000)
        ridge = check.number("ridge", self.ridge, "above 0, at most 10", above=0, most=10)
        if self.bound is not None:
            bound = check.number("bound", self.bound, "above 0, at most 1000", above=0, most=1000)
            check.keep(self, bound=bound)
        check.keep(self, ridge=ridge)
        check.choice("baseline", self.baseline, tuple(BASELINES))
        check.whole("pieces", self.pieces, 1, 50)
        check.done()

    def problems(self, schema: Schema, estimands: Sequence[Estimand]) -> list[Problem]:
        """What this study and schema ask that the mechanism cannot do."""
        check = Checks("mechanism")
        if len(estimands) != 1:
            check.add(
                "name",
                "answers exactly one question",
                value=f"{len(estimands)} estimands",
                bound="1",
                remedy="Ask for one estimand, or use another mechanism",
            )
            return check.problems
        estimand = estimands[0]
        if not {*estimand.columns} <= set(schema.names):
            return check.problems  # said by the study already
        _check_plain(check, estimand)
        if check.problems:
            return check.problems
        outcome = schema[estimand.outcome]
        if outcome.kind in estimand.regression.outcomes:  # else, too, the study says so
            POSINGS.of(estimand.model).check_outcome(check, outcome)
        _check_size(check, schema, estimand)
        terms = count_terms(schema, estimand)
        if terms > MAX_TERMS:
            check.add(
                "estimand.adjust",
                "makes too many coefficients",
                value=str(terms),
                bound=f"at most {MAX_TERMS}",
                remedy="Adjust for fewer columns or levels",
            )
        return check.problems


def _check_plain(check: Checks, estimand: Estimand) -> None:
    """A chain's design is of columns, each within its public bounds, and of all rows."""
    remedy = "Remove it, or use a mechanism that releases tables"
    of_coefficients = not isinstance(estimand.regression, LongitudinalModel)
    refused = POSINGS.of(estimand.model).refused if of_coefficients else "has no coefficient"
    if refused:
        tables = "Use a mechanism that releases tables"
        check.add("estimand.model", refused, value=estimand.model, remedy=tables)
    if estimand.exposure:
        value = f"offset(log({estimand.exposure}))"
        check.add("estimand", "has no part in a chain", value=value, remedy=remedy)
    for regressor in estimand.regressors:
        if not isinstance(regressor, Factor):
            check.add("estimand", "has no part in a chain", value=str(regressor), remedy=remedy)
    if estimand.strata:
        value = f"strata({', '.join(estimand.strata)})"
        remedy_strata = "Adjust for them, or use a mechanism that releases tables"
        check.add("estimand", "has no part in a chain", value=value, remedy=remedy_strata)
    if estimand.robust:
        what = "has no sums over persons of what each one moves"
        check.add("estimand.errors", what, value=estimand.errors, remedy=remedy)
    if estimand.where:
        check.add("estimand", "asks of a subgroup", value=estimand.where, remedy=remedy)


def _check_size(check: Checks, schema: Schema, estimand: Estimand) -> None:
    """Refuse units in which a coefficient's variance would be too large a number to release."""

    def half_width(column: Column) -> float:
        return (column.bounds[1] - column.bounds[0]) / 2 if column.kind in NUMBER_KINDS else 0.5

    scaled = estimand.regression.in_outcome_units
    rise = half_width(schema[estimand.outcome]) if scaled else 1.0
    run = min((half_width(schema[name]) for name in estimand.covariates), default=1.0)
    largest = rise * max(estimand.per, 1.0) / run
    if not largest <= MOST_SLOPE:
        check.add(
            "estimand",
            "asks for a coefficient that may be too large a number",
            value=f"{largest:.3g}",
            bound=f"{MOST_SLOPE:g} by the public bounds",
            remedy="Give the outcome or the covariates in other units, or ask per fewer of them",
        )


def answer_terms(schema: Schema, estimand: Estimand, mechanism: Gibbs) -> tuple[str, ...]:
    """What each row of the answer is about, in order; public, and so is their number p.

    The intercept first (not for cox, whose baseline hazard stays at the site), adjustment columns,
    then the term, last. A mean has one row, of the outcome's name.
    """
    model = estimand.regression
    if not model.compares:
        return (estimand.outcome,)
    names = tuple(term.name for term in design_terms(schema, estimand))
    return (INTERCEPT, *names) if model.intercept else names

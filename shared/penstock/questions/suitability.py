"""Whether a study's columns suit an estimand: they exist, and are of kinds that its model takes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from penstock.base.checks import Checks, nearest, shown
from penstock.base.errors import Problem
from penstock.questions.contingency import check_margins
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import (
    Comparison,
    Factor,
    Product,
    Regressor,
    Spline,
    read_regressor,
)
from penstock.questions.models.longitudinal import LongitudinalModel
from penstock.questions.occasions import check_occasions
from penstock.questions.roles import find_role, refuse_level
from penstock.schema import NUMBER_KINDS, Column

COVARIATES = ("continuous", "integer", "binary", "ordered", "categorical")
STRATA = ("binary", "ordered", "categorical")
MOST_STRATA = 100
"""Combinations of levels, each with a baseline of its own."""
MOST_PRODUCTS = 200
"""Columns that an estimand's products come to; two of a hundred levels each would be ten thousand.
"""


def estimand_problems(
    estimand: Estimand, columns: Sequence[Column], broken: Collection[str] = ()
) -> list[Problem]:
    """Whether an estimand's columns exist and are of kinds that its model can use.

    Args:
        estimand: the estimand.
        columns: the study's columns.
        broken: names of columns that have problems of their own; nothing is said about them.
    """
    check = Checks(f"estimand {estimand.name!r}")
    known = {c.name: c for c in columns}
    model = estimand.regression
    outcome = find_role(check, "outcome", estimand.outcome, known, broken, model.outcomes)
    if outcome is not None:
        model.check_outcome(check, outcome)
        _check_outcome_level(check, estimand, outcome)
    if not model.contrasts:
        _check_alone(check, estimand)
    if isinstance(model, LongitudinalModel) and model.crossed:
        check_margins(check, estimand, known, broken)
    if model.contrasts or model.per_time:
        _check_regressors(check, estimand, known, broken)
    check_occasions(check, estimand, known, broken)
    for comparison in estimand.subgroup:
        column = find_role(check, "where", comparison.column, known, broken, COVARIATES)
        if column is not None:
            _check_comparison(check, estimand, comparison, column)
    if estimand.exposure:
        _check_exposure(check, estimand, known, broken)
    _check_competing(check, estimand, known, broken)
    if estimand.robust and not model.robust:
        what = f"has no meaning for a {estimand.model}"
        check.add("errors", what, value="robust", remedy="Remove it")
    return check.problems


def _check_outcome_level(check: Checks, estimand: Estimand, outcome: Column) -> None:
    level, model = estimand.outcome_level, estimand.regression
    over = model if isinstance(model, LongitudinalModel) else None
    if over is not None and (over.cells or over.crossed or over.of_level(outcome)):
        return  # of which each may be the first
    if not model.names_level:
        if level is not None:
            what = f"has no meaning for a {estimand.model}"
            check.add("outcome_level", what, value=shown(level), remedy="Remove it")
    elif level not in outcome.levels[1:]:
        what = "must be a level of the outcome other than its first"
        refuse_level(check, "outcome_level", what, level, outcome.levels[1:])


def _check_exposure(
    check: Checks, estimand: Estimand, known: Mapping[str, Column], broken: Collection[str]
) -> None:
    """A rate is per unit of a number above 0, whose coefficient is no longer free."""
    name = estimand.exposure
    if not estimand.regression.takes_exposure:
        check.add("exposure", f"has no meaning for a {estimand.model}", remedy="Remove it")
        return
    column = find_role(check, "exposure", name, known, broken, NUMBER_KINDS[:2])
    if column is not None and not column.bounds[0] > 0:
        check.add(
            "exposure",
            f"column {name!r} may be 0, of which there is no rate",
            value=f"lower = {column.bounds[0]:g}",
            bound="above 0",
            remedy="Declare the least exposure that counts; without any a row is left out",
        )
    if name in (estimand.outcome, *estimand.covariates):
        check.add(
            "exposure",
            "stands in the regression twice: its logarithm has coefficient 1",
            value=name,
            remedy="Remove it here, or where it is the outcome, the term or adjusted for",
        )


def _check_competing(
    check: Checks, estimand: Estimand, known: Mapping[str, Column], broken: Collection[str]
) -> None:
    """How else a follow-up ends is a column of its own."""
    name, model, outcome = estimand.competing, estimand.regression, known.get(estimand.outcome)
    if not (isinstance(model, LongitudinalModel) and model.competes):
        if name:
            check.add("competing", f"has no meaning for a {estimand.model}", remedy="Remove it")
        return
    if not name:
        remedy = "Name the column that says that another event ended the follow-up"
        check.add("competing", f"is missing: a {estimand.model} needs it", remedy=remedy)
        return
    find_role(check, "competing", name, known, broken, ("binary", "event"))
    if outcome is not None and name == outcome.event:
        what = "is the event that is asked for"
        check.add("competing", what, value=name, remedy="Name another one")


def _check_regressors(
    check: Checks, estimand: Estimand, known: Mapping[str, Column], broken: Collection[str]
) -> None:
    target, adjusted = estimand.target, [read_regressor(text) for text in estimand.adjust]
    before, beside = len(check.problems), [("adjust", regressor) for regressor in adjusted]
    # Which column is the time of a slope, the mechanism knows.
    asked = [("term", target)] if estimand.regression.contrasts else []
    for role, regressor in asked + beside:
        kinds = NUMBER_KINDS[:2] if isinstance(regressor, Spline) else COVARIATES
        found = [find_role(check, role, name, known, broken, kinds) for name in regressor.columns]
        if estimand.outcome in regressor.columns and isinstance(regressor, Product):
            check.add(role, "has the outcome in it", value=shown(str(regressor)))
        sound = [column for column in found if column is not None]
        if len(sound) < len(found):
            continue
        if isinstance(regressor, Spline):
            _check_spline(check, role, regressor, sound[0])
        elif role == "adjust":
            _check_adjusted(check, regressor)
        elif isinstance(regressor, Product):
            _check_product(check, estimand, regressor, sound)
        else:
            _check_term(check, estimand, sound[0])
    for name in estimand.strata if estimand.regression.contrasts else ():
        find_role(check, "strata", name, known, broken, STRATA)
    names = [target.key, *(r.key for r in adjusted)]
    if asked or estimand.outcome != estimand.term:
        names.insert(0, estimand.outcome)
    check.distinct("adjust" if estimand.outcome != estimand.term else "term", names)
    mains = [name for name in names if ":" not in name]
    check.distinct("strata", [*dict.fromkeys(mains), *estimand.strata])
    _check_marginal(check, estimand, adjusted)
    model = estimand.regression
    if isinstance(model, LongitudinalModel) and model.standardises:
        _check_standardised(check, estimand, known)
    if len(check.problems) == before:
        _check_counts(check, estimand, known)


def _check_standardised(check: Checks, estimand: Estimand, known: Mapping[str, Column]) -> None:
    """A risk is of everybody having a level of one column."""
    term = None if isinstance(estimand.target, Product) else known.get(estimand.term)
    if term is None or term.kind not in ("binary", "categorical"):
        check.add(
            "term",
            f"must be one column with levels that have no order: a {estimand.model} is of "
            "everybody having one of them",
            value=shown(estimand.term),
            bound="a binary or categorical column",
            remedy="Ask for the odds ratio by a logistic model, or in subgroups, by where",
        )


def _check_alone(check: Checks, estimand: Estimand) -> None:
    """What compares nothing, a mean, has an outcome, and nothing else but a subgroup; a slope has
    its time, and what it is adjusted for."""
    what, model = f"has no meaning for a {estimand.model}", estimand.regression
    over = model if isinstance(model, LongitudinalModel) else None
    beside = over is not None and (over.pairs or over.slope or over.crossed)
    if estimand.term != estimand.outcome and not beside:
        check.add(
            "term",
            what,
            value=shown(estimand.term),
            bound=f"{estimand.outcome}, or left out",
            remedy="Remove it",
        )
    if estimand.per != 1 and not (over is not None and (over.slope or over.rates)):
        check.add("per", what, value=shown(estimand.per), bound="1")
    if estimand.adjust and not (over is not None and over.slope):
        check.add("adjust", what, remedy="Remove it")
    if estimand.level is not None and not (over is not None and (over.cells or over.crossed)):
        check.add("level", what, remedy="Remove it")
    if estimand.strata:
        check.add("strata", what, remedy="Remove it, or ask for a subgroup with where")


def _check_term(check: Checks, estimand: Estimand, term: Column) -> None:
    if estimand.target != Factor(term.name):
        remedy = f"Write level = {str(estimand.term).partition('[')[2].rstrip(']')!r}"
        check.add("term", "has a level, which stands in a product only", remedy=remedy)
        return
    if term.kind in ("categorical", "binary") and estimand.per != 1:
        check.add(
            "per", "has no meaning for a term with levels", value=shown(estimand.per), bound="1"
        )
    if term.kind != "categorical":
        if estimand.level is not None:
            check.add(
                "level", f"has no meaning for a term of kind {term.kind!r}", remedy="Remove it"
            )
        return
    if estimand.level not in term.levels[1:]:
        what = "must be a level of the term other than its first"
        refuse_level(check, "level", what, estimand.level, term.levels[1:])


def _check_product(
    check: Checks, estimand: Estimand, product: Product, columns: Sequence[Column]
) -> None:
    """A product that is asked for: it says a level of each column that has no order."""
    for factor, column in zip(product.factors, columns, strict=True):
        if column.kind != "categorical":
            if factor.level is not None:
                check.add(
                    "term",
                    f"has a level of {column.name!r}, which is of kind {column.kind!r}",
                    value=shown(factor.level),
                    remedy=f"Write {column.name}",
                )
        elif factor.level not in column.levels[1:]:
            what = f"must name a level of {column.name!r} other than its first"
            remedy = f"Write {column.name}[{column.levels[1]}]"
            refuse_level(check, "term", what, factor.level, column.levels[1:], remedy)
    if estimand.level is not None:
        check.add(
            "level",
            "has no meaning for a product",
            remedy="A level stands in the product, such as ward[b]:age",
        )
    counted = any(column.kind not in ("categorical", "binary") for column in columns)
    if estimand.per != 1 and not counted:
        check.add(
            "per", "has no meaning for a product of levels", value=shown(estimand.per), bound="1"
        )


def _check_adjusted(check: Checks, regressor: Regressor) -> None:
    factors = regressor.factors if isinstance(regressor, Product) else (regressor,)
    for factor in factors:
        if isinstance(factor, Factor) and factor.level is not None:
            check.add(
                "adjust",
                "names a level: what is adjusted for is all levels",
                value=shown(str(factor)),
                remedy=f"Write {factor.column}",
            )


def _check_spline(check: Checks, role: str, spline: Spline, column: Column) -> None:
    if role == "term":
        check.add(
            "term",
            "is a spline, which has no one coefficient",
            value=shown(str(spline)),
            remedy="Adjust for it, and ask for another column's",
        )
    lower, upper = column.bounds
    outside = [knot for knot in spline.knots if not lower <= knot <= upper]
    if outside:
        check.add(
            role,
            f"has a knot outside the bounds of {column.name!r}",
            value=f"{outside[0]:g}",
            bound=f"{lower:g} to {upper:g}",
        )


def _check_marginal(check: Checks, estimand: Estimand, adjusted: Sequence[Regressor]) -> None:
    """Beside a product, a column's own coefficient is its effect where the other column is 0."""
    target, product = estimand.target, estimand.regression.compares
    for regressor in adjusted:
        both = regressor.columns
        if not isinstance(regressor, Product) or target.key not in both:
            continue
        other = both[1] if target.key == both[0] else both[0]
        check.add(
            "adjust",
            f"has a product with the term: its coefficient would be of rows where {other} is 0",
            value=shown(str(regressor)),
            remedy=f"Ask for {f'{regressor} itself, or for ' if product else ''}{target} in a "
            "subgroup, by where",
        )


def _check_comparison(
    check: Checks, estimand: Estimand, comparison: Comparison, column: Column
) -> None:
    text = shown(str(comparison))
    if column.name in (estimand.outcome, estimand.competing):
        check.add("where", "chooses rows by the outcome", value=text, remedy="Remove it")
    if column.kind in NUMBER_KINDS:
        if comparison.quoted:
            remedy = "Write a number without quotes"
            check.add("where", f"compares {column.name!r} with text", value=text, remedy=remedy)
            return
        lower, upper = column.bounds
        if not lower <= float(comparison.value) <= upper:
            bound = f"{lower:g} to {upper:g}"
            check.add("where", f"lies outside {column.name!r}", value=text, bound=bound)
    elif comparison.value not in column.levels:
        check.add(
            "where",
            f"is no level of {column.name!r}",
            value=shown(comparison.value),
            remedy=nearest(comparison.value, column.levels),
        )
    elif column.kind != "ordered" and comparison.operator not in ("==", "!="):
        check.add("where", f"levels of {column.name!r} have no order", value=text, bound="== or !=")
    alone = comparison.operator == "==" and estimand.regression.contrasts
    if alone and column.name in estimand.target.columns:
        check.add(
            "where",
            f"leaves one value of {column.name!r}, of which the term is",
            value=text,
            remedy="Compare another column",
        )


def _check_counts(check: Checks, estimand: Estimand, known: Mapping[str, Column]) -> None:
    def width(name: str) -> int:
        column = known[name]
        return len(column.levels) - 1 if column.kind == "categorical" else 1

    cells = math.prod(len(known[name].levels) for name in estimand.strata)
    if cells > MOST_STRATA:
        bound = f"at most {MOST_STRATA} combinations of levels"
        check.add("strata", "are too many", value=str(cells), bound=bound)
    products = [r.columns for r in estimand.regressors if isinstance(r, Product)]
    count = sum(width(left) * width(right) for left, right in products)
    if count > MOST_PRODUCTS:
        bound = f"at most {MOST_PRODUCTS}"
        check.add("adjust", "has products of too many columns", value=str(count), bound=bound)

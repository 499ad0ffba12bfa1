"""One estimand on one coded table: the coefficient, its variance, or the reason why there is none.

Tables come from sites and are hostile. Whatever finite or non-finite values they hold, an
:class:`Estimate` comes back: with a ``problem`` and NaN where the model cannot be fitted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import PenstockError
from penstock.questions.estimands import Estimand
from penstock.questions.fits import COURSE_MODELS, TABLE_MODELS
from penstock.questions.fits.table_model import (
    Array,
    Degenerate,
    Fit,
    TableModel,
    count_ones,
)
from penstock.questions.matrices import make_design, make_designs, number_strata
from penstock.questions.models.longitudinal import LongitudinalModel
from penstock.questions.models.registry import ModelRegistry
from penstock.questions.terms import design_terms, find_subgroup
from penstock.schema import Schema

MIN_ROWS = 10
"""Complete rows below which nothing is fitted."""
MAX_INFLATION = 1e4
"""A coefficient whose variance is this many times that of an unrelated, balanced term counts as
not identified: (quasi-)separation makes it grow without limit, collinearity to 1/(1−R²)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One coefficient, on the coefficient scale: the logarithm of a ratio, a difference, a mean.

    Attributes:
        estimate: per ``Estimand.per`` units of the term; NaN where there is a problem.
        variance: squared standard error, model-based or robust as is asked; NaN where there is a
            problem.
        n: complete rows used.
        events: outcomes equal to 1 (logistic), events (cox) or what was counted in all (poisson,
            negative-binomial) among them; None for ols,
            ordinal, multinomial and mean.
        converged: the fit ended at a maximum.
        problem: why there is no estimate, or None.
    """

    estimate: float
    variance: float
    n: int
    events: int | None
    converged: bool
    problem: str | None = None


def estimate(
    frame: Mapping[str, Array],
    schema: Schema,
    estimand: Estimand,
    models: ModelRegistry[TableModel] = TABLE_MODELS,
) -> Estimate:
    """Fit the estimand's model on the complete cases of a coded table.

    Design: an intercept where the model has one, then the columns of
    :func:`penstock.questions.terms.design_terms`, the term last. Columns that are constant or
    linear combinations of earlier ones are left out, as R does; the estimand is refused if that
    hits the term. Columns are standardised for the fit and transformed back. Variances are the
    model-based ones, or robust where that is asked for. Each combination of the strata's levels has
    a baseline of its own, or, of a model with an intercept, a 0/1 column. Rows outside the subgroup
    are as if they were not there. The logarithm of an exposure is an offset: it has coefficient 1.

    Args:
        frame: column name → float64 array, shape (n,); NaN and infinities count as missing.
        schema: describes the columns.
        estimand: must fit the schema (a :class:`penstock.study.study.Study` checks that).
        models: how each model is fitted.

    Raises:
        PenstockError: an unknown model, one of persons over time
            (:mod:`penstock.questions.persons`), or the estimand does not fit the schema. Never
            because of the table.
    """
    if estimand.over_time:
        raise PenstockError("an estimand of persons over time", value=estimand.name)
    model = estimand.regression
    event_column = _find_event(schema, estimand)
    if isinstance(model, LongitudinalModel):
        return _describe(frame, schema, estimand, event_column)
    fitted = models.of(estimand.model)
    n, events = 0, None
    try:
        used = _complete_cases(frame, schema, estimand, event_column)
        outcome = _put_level_second(used[estimand.outcome], schema, estimand)
        event = None if event_column is None else used[event_column]
        n, events = len(outcome), fitted.count_events(outcome, event)
        if n < MIN_ROWS:
            raise Degenerate(f"too few complete rows: {n}")
        design, strata, factor = _pose(used, schema, estimand)
        offset = _offset(used, estimand)
        found = _checked_fit(fitted, outcome, event, design, strata, offset, robust=estimand.robust)
        value, variance = found.coefficient * factor, found.variance * factor * factor
        if not (math.isfinite(value) and 0 < variance < math.inf):
            raise Degenerate("the estimate overflows")
    except Degenerate as problem:
        return Estimate(math.nan, math.nan, n, events, converged=False, problem=str(problem))
    return Estimate(value, variance, n, events, converged=True)


def _describe(
    frame: Mapping[str, Array], schema: Schema, estimand: Estimand, event_column: str | None
) -> Estimate:
    """What is no regression, of complete rows: n counts them, events of a duration those until the
    time that is asked for."""
    n, events, model = 0, None, estimand.regression
    if model.contrasts:
        return _contrast(frame, schema, estimand, event_column)
    try:
        arrays, kept = _find_complete(frame, schema, estimand, event_column)
        n = int(kept.sum())
        if n < MIN_ROWS and not model.total:
            raise Degenerate(f"too few complete rows: {n}")
        beside: tuple[str, ...] = () if event_column is None else (event_column,)
        if estimand.competing:
            beside = (*beside, estimand.competing)
        names = dict.fromkeys((estimand.outcome, *beside, *estimand.target.columns))
        if event_column is not None:
            end = next((float(t) for t in estimand.times), math.inf)
            before = kept & (arrays[estimand.outcome] <= end)
            events = int((before & (arrays[event_column] > 0)).sum())
        # Of a total, rows that it is not of were drawn with the others.
        values = [
            np.where(kept, arrays[x], math.nan) if model.total else arrays[x][kept] for x in names
        ]
        found = fit_course(tuple(values), estimand, schema)
    except Degenerate as problem:
        return Estimate(math.nan, math.nan, n, events, converged=False, problem=str(problem))
    return Estimate(found.coefficient, found.variance, n, events, converged=True)


def _contrast(
    frame: Mapping[str, Array], schema: Schema, estimand: Estimand, event_column: str | None
) -> Estimate:
    """What rows differ by, that is no coefficient of a regression or of one with further ones."""
    n, events, model = 0, None, estimand.regression
    try:
        used = _complete_cases(frame, schema, estimand, event_column)
        outcome = used[estimand.outcome]
        n, events = (
            len(outcome),
            count_ones(outcome if event_column is None else used[event_column]),
        )
        if n < MIN_ROWS:
            raise Degenerate(f"too few complete rows: {n}")
        beside = () if event_column is None else (used[event_column],)
        if isinstance(model, LongitudinalModel) and model.standardises:
            designs, factor = _pose_levels(used, schema, estimand), 1.0
        else:
            design, _, factor = _pose(used, schema, estimand)
            designs = [design]
        found = fit_course((outcome, *beside, *designs), estimand, schema)
        _require_identified(found)
    except Degenerate as problem:
        return Estimate(math.nan, math.nan, n, events, converged=False, problem=str(problem))
    value, variance = found.coefficient * factor, found.variance * factor * factor
    return Estimate(value, variance, n, events, converged=True)


def _pose_levels(used: Mapping[str, Array], schema: Schema, estimand: Estimand) -> list[Array]:
    """The design (n, p), then as it were if everybody had the term's first level, and the asked."""
    n, name = len(used[estimand.outcome]), estimand.term
    strata = number_strata(used, schema, estimand) if estimand.strata else None
    asked = 1 if estimand.level is None else schema[name].levels.index(estimand.level)
    others = [{**used, name: np.full(n, float(level))} for level in (0, asked)]
    designs, _ = make_designs(used, design_terms(schema, estimand), n, strata, others)
    if n < designs[0].shape[1] + 2:
        raise Degenerate(f"too few complete rows: {n} for {designs[0].shape[1]} columns")
    return designs


def fit_course(values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
    """The fit of what is no regression, or Degenerate: numerical libraries may raise anything on a
    hostile table."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if isinstance(estimand.regression, LongitudinalModel):
                found = COURSE_MODELS.of(estimand.model).fit(values, estimand, schema)
            else:  # a mean, of those who are there
                alone = np.ones((len(values[0]), 1))
                found = TABLE_MODELS.of(estimand.model).fit(values[0], None, alone)
    except Degenerate:
        raise
    except Exception as error:
        raise Degenerate(f"the model could not be fitted ({type(error).__name__})") from error
    if not (math.isfinite(found.coefficient) and 0 < found.variance < math.inf):
        raise Degenerate("the estimate is not finite")
    return found


@dataclass(frozen=True, slots=True)
class Regression:
    """A regression as it is fitted: outcome (n,), and design (n, p) with an intercept where the
    model has one, columns standardised, the term last; what is added to the linear predictor (n,),
    the logarithm of an exposure; of a model with an event, that (n,), and a number for each row's
    stratum (n,) where there are strata with baselines of their own."""

    outcome: Array
    design: Array
    offset: Array
    event: Array | None = None
    strata: Array | None = None


def pose_regression(
    frame: Mapping[str, Array], schema: Schema, estimand: Estimand
) -> Regression | None:
    """What :func:`estimate` fits, for whoever looks at the same regression in another way; None
    where the table does not hold it."""
    model = estimand.regression
    event = _find_event(schema, estimand)
    try:
        used = _complete_cases(frame, schema, estimand, event)
        if len(used[estimand.outcome]) < MIN_ROWS:
            return None
        design, strata, _ = _pose(used, schema, estimand)
        offset = _offset(used, estimand)
    except Degenerate:
        return None
    outcome = used[estimand.outcome]
    return Regression(
        outcome,
        design,
        np.zeros(len(outcome)) if offset is None else offset,
        None if event is None else used[event],
        None if model.intercept else strata,
    )


def _put_level_second(outcome: Array, schema: Schema, estimand: Estimand) -> Array:
    """(n,) the outcome, whose level that is asked about has changed places with the second."""
    if estimand.outcome_level is None:
        return outcome
    asked = schema[estimand.outcome].levels.index(estimand.outcome_level)
    second = np.where(outcome == 1, float(asked), outcome)
    return np.where(outcome == asked, 1.0, second)


def _offset(used: Mapping[str, Array], estimand: Estimand) -> Array | None:
    """(n,) the logarithm of the exposure; None without one."""
    if not estimand.exposure:
        return None
    exposure = used[estimand.exposure]
    if not (exposure > 0).all():
        raise Degenerate("an exposure is not above 0")
    return np.log(exposure)


def _pose(
    used: Mapping[str, Array], schema: Schema, estimand: Estimand
) -> tuple[Array, Array | None, float]:
    """The design, the strata, and what makes of the last column's coefficient the estimate."""
    n = len(used[estimand.outcome])
    strata = number_strata(used, schema, estimand) if estimand.strata else None
    terms = design_terms(schema, estimand)
    design, scale = make_design(used, terms, n, strata, intercept=estimand.regression.intercept)
    if n < design.shape[1] + 2:
        raise Degenerate(f"too few complete rows: {n} for {design.shape[1]} columns")
    return design, strata, estimand.per / scale


def _checked_fit(
    model: TableModel,
    outcome: Array,
    event: Array | None,
    design: Array,
    strata: Array | None,
    offset: Array | None,
    *,
    robust: bool,
) -> Fit:
    """The fit, or Degenerate: the one boundary where foreign libraries' errors are mapped."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if robust:
                found = model.fit_robust(outcome, event, design, strata)
            elif offset is not None:
                found = model.fit_offset(outcome, event, design, offset)
            elif strata is None or model.model.intercept:
                found = model.fit(outcome, event, design)
            else:
                found = model.fit_strata(outcome, event, design, strata)
    except Degenerate:
        raise
    except Exception as error:  # any numerical library may raise anything on a hostile table
        raise Degenerate(f"the model could not be fitted ({type(error).__name__})") from error
    if not found.converged:
        raise Degenerate("the fit did not converge (separation?)")
    if not (math.isfinite(found.coefficient) and 0 < found.variance < math.inf):
        raise Degenerate("the fit is not finite")
    # By the model's variance: of a term that separates events a sandwich is small.
    _require_identified(found)
    return found if found.sandwich is None else replace(found, variance=found.sandwich)


def _require_identified(found: Fit) -> None:
    if found.unit_variance is not None and found.variance > MAX_INFLATION * found.unit_variance:
        raise Degenerate("the term is hardly identified (separation or collinearity)")


def _find_event(schema: Schema, estimand: Estimand) -> str | None:
    """The event of an outcome that is a duration; None of another one."""
    outcome = schema[estimand.outcome]
    if not (estimand.regression.needs_event or outcome.kind == "duration"):
        return None
    name = outcome.event
    if name is None:
        raise PenstockError(
            f"a {estimand.model} model needs a duration with an event column",
            value=estimand.outcome,
            remedy="name the duration's event column in the schema",
        )
    return name


def _complete_cases(
    frame: Mapping[str, Array], schema: Schema, estimand: Estimand, event_column: str | None
) -> dict[str, Array]:
    arrays, keep = _find_complete(frame, schema, estimand, event_column)
    return {name: a[keep] for name, a in arrays.items()}


def _find_complete(
    frame: Mapping[str, Array], schema: Schema, estimand: Estimand, event_column: str | None
) -> tuple[dict[str, Array], NDArray[np.bool_]]:
    """The columns that are named, (n,) each, and the rows that are complete and in the subgroup."""
    subgroup = estimand.subgroup
    names = {*estimand.columns}
    if event_column is not None:
        names.add(event_column)
    absent = sorted(names - frame.keys())
    if absent:
        raise Degenerate(f"the table lacks {', '.join(absent)}")
    arrays = {name: np.asarray(frame[name], dtype=np.float64) for name in sorted(names)}
    if len({a.shape for a in arrays.values()}) != 1 or arrays[estimand.outcome].ndim != 1:
        raise Degenerate("the table's columns differ in length")
    keep = np.logical_and.reduce([np.isfinite(a) for a in arrays.values()])
    if subgroup:
        keep &= find_subgroup({c.name: c for c in schema.columns}, subgroup, arrays)
    return arrays, keep

"""What is measured on copies, against the table that they were made of.

All in standard errors of the table's own fit or curve: an error of 1 is as large as what sampling
alone does to the answer. A fit that fails, of most copies, is an error of ``FAILED``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tests.studies.foreign_tables import Table

from penstock.questions.estimation import MAX_INFLATION, estimate
from penstock.questions.fits.partial_likelihood import fit_cox
from penstock.schema import Coded, Schema

Array = NDArray[np.float64]
Fit = tuple[float, float]
"""A coefficient and its standard error; NaN where there is none."""

FAILED = 10.0
AT = (0.2, 0.4, 0.6, 0.8, 1 - 1e-9)
"""Shares of the follow-up at which survival is read; at the end: just before it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What there is to be known of rows.

    Attributes:
        declared: the named coefficients, each adjusted for the others that are named.
        full: all main effects of a model of all columns.
        products: interactions, declared or not, each in a model of the named columns, its own two,
            and the declared interactions.
        share: of rows that are event-free at the end of follow-up; events: share with an event,
            or the outcome's mean.
        curve, spread: Kaplan-Meier at ``AT``, and Greenwood's standard errors; of other outcomes
            the mean, and its standard error.
    """

    declared: dict[str, Fit]
    full: dict[str, Fit]
    products: dict[str, Fit]
    share: float
    events: float
    curve: Array
    spread: Array


def measure(rows: Coded, table: Table) -> Measured:
    """Of a table's rows, or of rows like them."""
    outcome = table.outcome
    named = list(dict.fromkeys(name.partition("=")[0] for name in table.named))
    products: dict[str, Fit] = {}
    if table.products:
        found = fit_terms(rows, table, [*named, *table.products])
        products = {name: found[name] for name in table.products}
    for name in table.undeclared:
        both = [*dict.fromkeys([*named, *name.split(":")]), *table.products, name]
        products[name] = fit_terms(rows, table, both)[name]
    declared = fit_terms(rows, table, named)
    full = fit_terms(rows, table, table.covariates)
    if table.model != "cox":
        mean, sd = float(rows[outcome].mean()), float(rows[outcome].std())
        centre = (np.array([mean]), np.array([sd / math.sqrt(len(rows[outcome]))]))
        return Measured(declared, full, products, math.nan, mean, *centre)
    upper, event = table.schema[outcome].bounds[1], rows[table.schema.names[1]]
    ended = (rows[outcome] >= upper) & (event == 0)
    curve, spread = kaplan_meier(rows[outcome], event, upper)
    share, events = float(ended.mean()), float(event.mean())
    return Measured(declared, full, products, share, events, curve, spread)


def fit_terms(rows: Coded, table: Table, terms: Sequence[str]) -> dict[str, Fit]:
    """One model of columns and products ``a:b``; a categorical's levels are ``column=level``.

    It is what :func:`penstock.questions.estimation.estimate` fits for each term; a Cox model
    is fitted once for all of them.
    """
    if table.model == "cox":
        return _fit_hazards(rows, table.schema, terms)
    found: dict[str, Fit] = {}
    for term in terms:
        column, others = table.schema[term], [other for other in terms if other != term]
        for level in column.levels[1:] if column.kind == "categorical" else ("",):
            asked = table.ask("asked", term, others, level)
            one = estimate(rows, table.schema, asked)
            found[f"{term}={level}" if level else term] = (one.estimate, math.sqrt(one.variance))
    return found


def _fit_hazards(rows: Coded, schema: Schema, terms: Sequence[str]) -> dict[str, Fit]:
    time, event = (rows[schema.names[i]] for i in (0, 1))
    columns: dict[str, Array] = {}
    for term in terms:
        column = None if ":" in term else schema[term]
        if column is not None and column.kind == "categorical":
            for level in range(1, len(column.levels)):
                columns[f"{term}={column.levels[level]}"] = np.where(rows[term] == level, 1.0, 0.0)
        else:
            columns[term] = np.prod([rows[part] for part in term.split(":")], axis=0)
    found = dict.fromkeys(columns, (math.nan, math.nan))
    spread = {name: float(x.std()) for name, x in columns.items()}
    kept = [name for name in columns if spread[name] > 1e-10]
    if not kept or event.sum() < len(kept):
        return found
    design = np.column_stack([(columns[k] - columns[k].mean()) / spread[k] for k in kept])
    try:
        with np.errstate(all="ignore"):
            fit = fit_cox(time, event, design)
    except np.linalg.LinAlgError:
        return found
    # What a report would not show: no maximum, or a coefficient that is hardly identified.
    variance, most = np.diag(fit.covariance), MAX_INFLATION / float(event.sum())
    for j, name in enumerate(kept):
        if 0 <= fit.to_gain < 1e-9 and 0 < variance[j] < most:
            scale = spread[name]
            found[name] = (float(fit.coefficients[j] / scale), math.sqrt(variance[j]) / scale)
    return found


def kaplan_meier(time: Array, event: Array, upper: float) -> tuple[Array, Array]:
    """Survival at ``AT`` of the follow-up, and Greenwood's standard errors."""
    order = np.argsort(time, kind="stable")
    time, event = time[order], event[order]
    first = np.searchsorted(time, time, side="left")
    died = np.bincount(first, event, len(time))
    left = len(time) - np.arange(len(time))
    factors = 1 - died / left
    with np.errstate(divide="ignore", invalid="ignore"):
        greenwood = np.where(left > died, died / (left * (left - died)), 0.0)
    at = np.searchsorted(time, np.array(AT) * upper, side="right")
    curve = np.append(1.0, np.cumprod(factors))[at]
    spread = curve * np.sqrt(np.append(0.0, np.cumsum(greenwood))[at])
    return curve, spread


# -- real beside synthetic -----------------------------------------------------------------------

Answer = dict[str, float]
"""Figures of one seed of one cell by name; the part before the first ``/`` says of what kind:

``declared``, ``undeclared`` and ``full`` (declared, in the model of all columns): errors in real
standard errors; ``real``, ``error`` and ``made``: of an interaction its coefficient in the table,
that one's standard error, and its coefficient in the copies; ``survival``: five errors in
standard errors; ``curve``: the largest difference; ``share`` and ``events``: Δ, and relative Δ;
``mean``: error of another outcome's mean; ``deaths``: how many events the table has, of numbers how
much they add up to; ``failed``: coefficients without a fit in most copies.
"""


def compare(made: Sequence[Coded], table: Table, own: Measured | None = None) -> Answer:
    """Copies against the table itself."""
    own = own or measure(table.rows, table)
    found = [measure(rows, table) for rows in made]
    answer: Answer = {"deaths": own.events * table.n}
    failed = 0

    def errors(kind: str, real: Mapping[str, Fit], fits: list[dict[str, Fit]]) -> None:
        nonlocal failed
        for name, (value, spread) in real.items():
            if math.isnan(value):  # not even the table itself can tell
                continue
            mean = _mean([fit[name][0] for fit in fits])
            failed += math.isnan(mean)
            answer[f"{kind}/{name}"] = _bounded((mean - value) / spread)

    chosen = _chosen(table)
    errors("declared", {k: own.declared[k] for k in table.named}, [f.declared for f in found])
    full = [f.full for f in found]
    errors("full", {k: own.full[k] for k in table.named}, full)
    errors("undeclared", {k: v for k, v in own.full.items() if k not in chosen}, full)
    for name, (value, spread) in own.products.items():
        mean = _mean([f.products[name][0] for f in found])
        answer[f"real/{name}"], answer[f"error/{name}"] = value, spread
        answer[f"made/{name}"] = 0.0 if math.isnan(mean) else mean
    curve = np.mean([f.curve for f in found], axis=0)
    away = (curve - own.curve) / np.where(own.spread > 0, own.spread, np.inf)
    if table.model != "cox":
        answer["mean/outcome"] = float(away[0])
        return answer | {"failed": float(failed)}
    answer |= {f"survival/{at:.1f}": float(z) for at, z in zip(AT, away, strict=True)}
    answer["curve"] = float(np.abs(curve - own.curve).max())
    answer["share"] = float(np.mean([f.share for f in found])) - own.share
    answer["events"] = float(np.mean([f.events for f in found])) / own.events - 1
    answer["failed"] = float(failed)
    return answer


def _chosen(table: Table) -> set[str]:
    """Main effects that are declared, all levels of a categorical column with its one."""
    terms = {name.partition("=")[0] for name in table.named}
    levels = {
        f"{c.name}={level}" for c in table.schema.columns if c.name in terms for level in c.levels
    }
    return terms | levels


def _mean(values: Sequence[float]) -> float:
    """Of those that there are; NaN if they are fewer than half."""
    good = [v for v in values if math.isfinite(v)]
    return math.nan if 2 * len(good) < len(values) or not good else math.fsum(good) / len(good)


def _bounded(error: float) -> float:
    return FAILED if math.isnan(error) else max(-FAILED * 10, min(error, FAILED * 10))


# -- over seeds ----------------------------------------------------------------------------------


def names_of(answers: Sequence[Answer], kind: str) -> list[str]:
    """Of which coefficients, times or interactions there are figures of a kind."""
    found = (key.partition("/") for one in answers for key in one)
    return list(dict.fromkeys(name for first, slash, name in found if slash and first == kind))


def errors_of(answers: Sequence[Answer], kind: str, name: str) -> Array:
    """The errors of one figure in the seeds that have it."""
    key = f"{kind}/{name}"
    return np.array([one[key] for one in answers if key in one])


def squares_of(answers: Sequence[Answer], kind: str) -> Array:
    """Each seed's mean squared error over all figures of a kind."""
    found = []
    for one in answers:
        errors = [value for key, value in one.items() if key.startswith(f"{kind}/")]
        if errors:
            found.append(float(np.mean(np.square(errors))))
    return np.array(found)


def slope_of(answers: Sequence[Answer], name: str) -> float:
    """How much of an interaction the copies hold: a regression through 0 over seeds, of the
    coefficient in the copies on that in the table."""
    real, made = errors_of(answers, "real", name), errors_of(answers, "made", name)
    return float(real @ made / (real @ real)) if len(real) else math.nan

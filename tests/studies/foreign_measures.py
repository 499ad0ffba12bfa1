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

from penstock.schema import Coded, Schema
from penstock_server.analysis.models.partial_likelihood import fit_cox

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
        share: of rows that are event-free at the end of follow-up; events: share with an event.
        curve, spread: Kaplan-Meier at ``AT``, and Greenwood's standard errors.
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
    schema = table.schema
    time, event = schema.names[:2]
    named = list(dict.fromkeys(name.partition("=")[0] for name in table.named))
    products: dict[str, Fit] = {}
    if table.products:
        found = fit_terms(rows, schema, [*named, *table.products])
        products = {name: found[name] for name in table.products}
    for name in table.undeclared:
        both = [*dict.fromkeys([*named, *name.split(":")]), *table.products, name]
        products[name] = fit_terms(rows, schema, both)[name]
    ended = (rows[time] >= schema[time].bounds[1]) & (rows[event] == 0)
    curve, spread = kaplan_meier(rows[time], rows[event], schema[time].bounds[1])
    return Measured(
        fit_terms(rows, schema, named),
        fit_terms(rows, schema, schema.names[2:]),
        products,
        float(ended.mean()),
        float(rows[event].mean()),
        curve,
        spread,
    )


def fit_terms(rows: Coded, schema: Schema, terms: Sequence[str]) -> dict[str, Fit]:
    """One Cox model of columns and products ``a:b``; a categorical's levels are ``column=level``.

    It is what :func:`penstock_server.analysis.estimation.estimate` fits for each term, in one.
    """
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
    if not kept or not event.any():
        return found
    design = np.column_stack([(columns[k] - columns[k].mean()) / spread[k] for k in kept])
    try:
        with np.errstate(all="ignore"):
            fit = fit_cox(time, event, design)
    except np.linalg.LinAlgError:
        return found
    variance = np.diag(fit.covariance)
    # Separated, collinear or without a maximum: nothing that a report would show.
    sound = fit.to_gain < 1e-6 and bool(np.all((variance > 0) & (variance < 1e3)))
    for j, name in enumerate(kept):
        if sound:
            scale = spread[name]
            found[name] = (fit.coefficients[j] / scale, math.sqrt(variance[j]) / scale)
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
``deaths``: how many events the table has; ``failed``: coefficients without a fit in most copies.
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
    for i, at in enumerate(AT):
        if own.spread[i] > 0:
            answer[f"survival/{at:.1f}"] = float((curve[i] - own.curve[i]) / own.spread[i])
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


def slope_of(answers: Sequence[Answer], name: str) -> float:
    """How much of an interaction the copies hold: a regression through 0 over seeds, of the
    coefficient in the copies on that in the table."""
    real, made = errors_of(answers, "real", name), errors_of(answers, "made", name)
    return float(real @ made / (real @ real)) if len(real) else math.nan

"""What is estimated of one table of a release, and the rows that it is estimated of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.inference.floor import variance_floor
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import Estimate, estimate
from penstock.questions.fits import TABLE_MODELS
from penstock.questions.fits.table_model import Degenerate, TableModel
from penstock.questions.landmarks import leave_times
from penstock.questions.models.registry import ModelRegistry
from penstock.questions.persons import Courses, choose_persons, estimate_courses, keep_first
from penstock.schema import Coded, Schema


def estimate_floored(
    schema: Schema,
    estimand: Estimand,
    table: Coded,
    read_courses: Callable[[Coded], Courses] | None = None,
    models: ModelRegistry[TableModel] = TABLE_MODELS,
) -> Estimate:
    """An estimate of no smaller variance than any table of so many rows can have.

    No table of so many rows can know more: a hostile one must not buy weight.

    Args:
        read_courses: what an estimand of persons over time needs, and one of a duration that is
            once a person.
        models: how each model is fitted.
    """
    if estimand.over_time and read_courses is not None:
        found = estimate_courses(table, schema, estimand, read_courses(table))
    else:
        asked, table = choose_rows(schema, read_courses, estimand, table)
        found = estimate(table, schema, asked, models)
    if found.problem is not None:
        return found
    least = variance_floor(schema, estimand, len(table[estimand.outcome]))
    return replace(found, variance=max(found.variance, least))


def choose_rows(
    schema: Schema,
    read_courses: Callable[[Coded], Courses] | None,
    estimand: Estimand,
    table: Coded,
) -> tuple[Estimand, Coded]:
    """What is fitted for a regression, and the rows of a table that it is fitted to: none, where
    the table does not hold them."""
    if estimand.over_time and estimand.regression.compares and read_courses is not None:
        try:
            rows = choose_persons(table, schema, estimand, read_courses(table))
        except Degenerate:
            rows = {name: values[:0] for name, values in table.items()}
        return leave_times(estimand), rows
    if schema[estimand.outcome].kind == "duration":
        table = pick_rows(schema, read_courses, estimand.outcome, table)
    return estimand, table


def pick_rows(
    schema: Schema, read_courses: Callable[[Coded], Courses] | None, duration: str, table: Coded
) -> Coded:
    """The rows of which a duration is asked: where persons have several and it does not vary, the
    first one of each, for nobody dies twice."""
    if read_courses is None or schema[duration].varies:
        return table
    return keep_first(table, read_courses(table))

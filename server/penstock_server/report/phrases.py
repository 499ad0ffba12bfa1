"""The report's sentences. Plain text: whoever shows it escapes it."""

from __future__ import annotations

from penstock.questions.estimands import Estimand
from penstock.questions.models.model import Measure
from penstock.schema import Column, Schema


def contrast(estimand: Estimand, schema: Schema) -> str:
    """What the coefficient compares: "per 10 mmHg of systolic pressure", "sex: 1 against 0".

    A mean compares nothing, and is of its outcome.
    """
    column = schema[estimand.term]
    name = column_name(column)
    if not estimand.regression.compares:
        return f"of {outcome_text(estimand, schema)}"
    if estimand.level is not None:
        return f"{name}: {estimand.level} against {column.levels[0]}"
    if column.kind in ("binary", "event"):
        return f"{name}: {column.levels[1]} against {column.levels[0]}"
    if column.kind == "ordered":
        return f"per {_count(estimand.per, 'level')} of {name}"
    unit = f"{estimand.per:g} {column.unit}" if column.unit else _count(estimand.per, "unit")
    return f"per {unit} of {name}"


def column_name(column: Column) -> str:
    return column.label or column.name


def axis_label(estimand: Estimand, schema: Schema) -> str:
    what, name = contrast(estimand, schema), measure(estimand, schema).name
    joint = " " if what.startswith("per ") or not estimand.regression.compares else ", "
    return f"{name[0].upper()}{name[1:]}{joint}{what}"


def measure(estimand: Estimand, schema: Schema) -> Measure:
    """The estimate's name, its short form, and what lies left and right of a null value."""
    return estimand.regression.measure_of(schema[estimand.outcome])


def outcome_text(estimand: Estimand, schema: Schema) -> str:
    """The outcome (of a duration its event), with its unit where the estimate carries one."""
    column, model = schema[estimand.outcome], estimand.regression
    if model.needs_event and column.event is not None:
        return column_name(schema[column.event])
    if model.is_share(column):
        return f"{column_name(column)}: {column.levels[1]}"
    unit = f" ({column.unit})" if model.in_outcome_units and column.unit else ""
    return f"{column_name(column)}{unit}"


def adjusted_text(estimand: Estimand, schema: Schema) -> str:
    if not estimand.adjust:
        return "not adjusted"
    return "adjusted for " + ", ".join(column_name(schema[name]) for name in estimand.adjust)


def _count(per: float, noun: str) -> str:
    return noun if per == 1 else f"{per:g} {noun}s"

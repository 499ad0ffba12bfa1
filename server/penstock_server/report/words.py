"""The report's sentences. Plain text: whoever shows it escapes it."""

from __future__ import annotations

from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema

MEASURES: dict[str, tuple[str, str, str, str]] = {
    # model: measure, short form, what lies left and right of the null value
    "cox": ("hazard ratio", "HR", "lower hazard", "higher hazard"),
    "logistic": ("odds ratio", "OR", "lower odds", "higher odds"),
    "ols": ("mean difference", "Difference", "lower", "higher"),
    "poisson": ("rate ratio", "RR", "lower rate", "higher rate"),
    "mean": ("mean", "Mean", "lower", "higher"),
}
MODELS: dict[str, str] = {
    "cox": "Cox model, Efron ties",
    "logistic": "Logistic model",
    "ols": "Linear model",
    "poisson": "Poisson model",
    "mean": "Mean",
}


def contrast(estimand: Estimand, schema: Schema) -> str:
    """What the coefficient compares: "per 10 mmHg of systolic pressure", "sex: 1 against 0".

    A mean compares nothing, and is of its outcome.
    """
    column = schema[estimand.term]
    name = column_name(column)
    if estimand.model == "mean":
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
    what, name = contrast(estimand, schema), measure(estimand, schema)[0]
    joint = " " if what.startswith("per ") or estimand.model == "mean" else ", "
    return f"{name[0].upper()}{name[1:]}{joint}{what}"


def share(estimand: Estimand, schema: Schema) -> bool:
    """Whether a mean is the share of a column's second level."""
    return estimand.model == "mean" and schema[estimand.outcome].kind == "binary"


def measure(estimand: Estimand, schema: Schema) -> tuple[str, str, str, str]:
    """The estimate's name, its short form, and what lies left and right of a null value."""
    named = MEASURES[estimand.model]
    return ("share", "Share", *named[2:]) if share(estimand, schema) else named


def outcome_text(estimand: Estimand, schema: Schema) -> str:
    """The outcome (of cox: the event), with its unit where the estimate carries one."""
    column = schema[estimand.outcome]
    if estimand.model == "cox" and column.event is not None:
        return column_name(schema[column.event])
    if share(estimand, schema):
        return f"{column_name(column)}: {column.levels[1]}"
    unit = f" ({column.unit})" if estimand.model in ("ols", "mean") and column.unit else ""
    return f"{column_name(column)}{unit}"


def adjusted_text(estimand: Estimand, schema: Schema) -> str:
    if not estimand.adjust:
        return "not adjusted"
    return "adjusted for " + ", ".join(column_name(schema[name]) for name in estimand.adjust)


def _count(per: float, noun: str) -> str:
    return noun if per == 1 else f"{per:g} {noun}s"

"""The report's sentences. Plain text: whoever shows it escapes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.questions.contingency import list_margins
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Factor, Product, Regressor, Spline
from penstock.questions.models.longitudinal import LongitudinalModel
from penstock.questions.models.model import Measure
from penstock.questions.occasions import tell_time
from penstock.schema import Column, Schema


def contrast(estimand: Estimand, schema: Schema) -> str:
    """What the coefficient compares: "per 10 mmHg of systolic pressure", "sex: 1 against 0",
    "per 10 years of age × sex (1)"; and of whom, where it is not of all.

    A mean compares nothing, and is of its outcome.
    """
    among = f", where {estimand.where}" if estimand.where else ""
    if estimand.over_time and not estimand.regression.compares:
        return f"{_contrast_over_time(estimand, schema)}{among}"
    among = f"{_when(estimand, schema)}{among}"
    if not estimand.regression.contrasts:
        return f"{_contrast_alone(estimand, schema)}{among}"
    target = estimand.target
    if isinstance(target, Product):
        return _contrast_product(estimand, target, schema) + among
    column = schema[estimand.term]
    name = column_name(column)
    if estimand.level is not None:
        return f"{name}: {estimand.level} against {column.levels[0]}{among}"
    if column.kind in ("binary", "event"):
        return f"{name}: {column.levels[1]} against {column.levels[0]}{among}"
    return f"{_per(estimand, column)}{among}"


def _when(estimand: Estimand, schema: Schema) -> str:
    """Of which time a regression is: ", from 2 years on", ", at m6",
    ", at m0, for pressure at m6"."""
    times = [tell_time(time) for time in estimand.times]
    if not (estimand.regression.compares and times):
        return ""
    if estimand.landmark:
        unit = schema[estimand.outcome].unit
        return f", from {times[0]}{f' {unit}' if unit else ''} on"
    later = f", for {column_name(schema[estimand.outcome])} at {times[1]}" if times[1:] else ""
    return f", at {times[0]}{later}"


def _contrast_alone(estimand: Estimand, schema: Schema) -> str:
    """Of what a number of rows is: "of pressure (mmHg)", "of rows with pressure (mmHg) above 140",
    "without death at 5 years", "of death per 100 years", "of rows with stage: II and ward: b"."""
    what, model = outcome_text(estimand, schema), estimand.regression
    over = model if isinstance(model, LongitudinalModel) else None
    if over is not None and over.crossed:
        cell = " and ".join(
            f"{column_name(schema[name])}: {level}" for name, level in list_margins(estimand)
        )
        return f"of rows with {cell}"
    if over is not None and over.pairs:
        return f"of {what} with {column_name(schema[estimand.term])}"
    if over is not None and over.bounded and estimand.until is not None:
        unit = schema[estimand.outcome].unit
        return f"without {what} until {tell_time(estimand.until)}{f' {unit}' if unit else ''}"
    if over is not None and over.ends and schema[estimand.outcome].kind == "duration":
        unit = schema[estimand.outcome].unit
        until = "" if estimand.until is None else f", until {tell_time(estimand.until)}"
        until = f"{until} {unit}" if until and unit else until
        time = f"{estimand.per:g} {unit}" if unit else _count(estimand.per, "unit")
        return f"of {what} per {time}{until}" if over.rates else f"of rows with {what}{until}"
    if estimand.threshold is not None:
        return f"of rows with {what} {estimand.direction} {estimand.threshold:g}"
    if over is not None and over.competes and estimand.at is not None:
        unit, other = schema[estimand.outcome].unit, column_name(schema[estimand.competing])
        by = f"{tell_time(estimand.at)}{f' {unit}' if unit else ''}"
        return f"of {what} by {by}, with {other} as a competing event"
    if estimand.at is not None:
        unit = schema[estimand.outcome].unit
        return f"without {what} at {tell_time(estimand.at)}{f' {unit}' if unit else ''}"
    return f"of rows with {what}" if model.total else f"of {what}"


def _per(estimand: Estimand, column: Column) -> str:
    """Per so many units of a column, or levels."""
    name = column_name(column)
    if column.kind == "ordered":
        return f"per {_count(estimand.per, 'level')} of {name}"
    unit = f"{estimand.per:g} {column.unit}" if column.unit else _count(estimand.per, "unit")
    return f"per {unit} of {name}"


def _contrast_over_time(estimand: Estimand, schema: Schema) -> str:
    """Of what persons, when: "of pressure (mmHg) from 0 to 6", "of persons with pressure (mmHg)
    above 140 at m6"."""
    model = estimand.regression
    what, times = outcome_text(estimand, schema), [tell_time(time) for time in estimand.times]
    if model.needs_event:
        unit = schema[estimand.outcome].unit
        first, last = (f"{time} {unit}" if unit else time for time in times)
        return f"without {what} at {last}, of those followed at {first}"
    if model.per_time:
        return f"of {what} {_per(estimand, schema[estimand.term])}"
    if isinstance(model, LongitudinalModel) and model.cells:
        before, after = estimand.level, estimand.outcome_level
        return f"of {what}: {after} at {times[1]}, of those at {before} at {times[0]}"
    if isinstance(model, LongitudinalModel) and model.pairs:
        other = column_name(schema[estimand.term])
        return f"of {what} at {times[0]} with {other} at {times[-1]}"
    if estimand.threshold is not None:
        return f"of persons with {what} {estimand.direction} {estimand.threshold:g} at {times[0]}"
    when = f"at {times[0]}" if len(times) == 1 else f"from {times[0]} to {times[1]}"
    return f"of {what} {when}"


def _contrast_product(estimand: Estimand, product: Product, schema: Schema) -> str:
    """How much more one column's coefficient is per so much more of the other."""
    columns = [schema[factor.column] for factor in product.factors]
    name = regressor_name(product, schema)
    counted = [c for c in columns if c.kind not in ("binary", "categorical")]
    if not counted:
        return name
    units = [c.unit or ("level" if c.kind == "ordered" else "unit") for c in counted]
    if units == ["unit"]:
        return f"per {_count(estimand.per, 'unit')} of {name}"
    return f"per {estimand.per:g} {'·'.join(units)} of {name}"


def regressor_name(regressor: Regressor, schema: Schema) -> str:
    """As a reader calls it: "age", "age × sex (F)", "a spline of age (3 df)"."""
    if isinstance(regressor, Product):
        return " × ".join(_factor_name(factor, schema) for factor in regressor.factors)
    name = column_name(schema[regressor.column])
    if not isinstance(regressor, Spline):
        return name
    return f"a spline of {name} ({regressor.bends + 1} df)"


def _factor_name(factor: Factor, schema: Schema) -> str:
    column = schema[factor.column]
    level = column.levels[1] if column.kind == "binary" else factor.level
    return column_name(column) if level is None else f"{column_name(column)} ({level})"


def column_name(column: Column) -> str:
    return column.label or column.name


def axis_label(estimand: Estimand, schema: Schema) -> str:
    what, name = contrast(estimand, schema), measure(estimand, schema).name
    joint = " " if what.startswith("per ") or not estimand.regression.contrasts else ", "
    return f"{name[0].upper()}{name[1:]}{joint}{what}"


def measure(estimand: Estimand, schema: Schema) -> Measure:
    """The estimate's name, its short form, and what lies left and right of a null value."""
    found = estimand.regression.measure_of(schema[estimand.outcome])
    if estimand.probability is None:
        return found
    name = "median" if estimand.probability == 0.5 else f"{100 * estimand.probability:g}% quantile"
    return replace(found, name=name)


def outcome_text(estimand: Estimand, schema: Schema) -> str:
    """The outcome (of a duration its event), with its unit where the estimate carries one; of a
    rate "falls per years of follow-up", of one of its levels "discharge: ward against home"."""
    column, model = schema[estimand.outcome], estimand.regression
    timed = model.needs_event or column.kind == "duration"
    if timed and column.event is not None:
        return column_name(schema[column.event])
    if model.is_share(column):
        return f"{column_name(column)}: {column.levels[1]}"
    if isinstance(model, LongitudinalModel) and model.of_level(column):
        return f"{column_name(column)}: {estimand.outcome_level}"
    if model.names_level:
        return f"{column_name(column)}: {estimand.outcome_level} against {column.levels[0]}"
    if estimand.exposure:
        exposure = schema[estimand.exposure]
        of = f"{exposure.unit} of " if exposure.unit else "unit of "
        return f"{column_name(column)} per {of}{column_name(exposure)}"
    unit = f" ({column.unit})" if model.in_outcome_units and column.unit else ""
    return f"{column_name(column)}{unit}"


def adjusted_text(estimand: Estimand, schema: Schema) -> str:
    """What it is adjusted for, columns of products among it; then its strata; and errors that are
    not the model's."""
    names = [regressor_name(regressor, schema) for regressor in estimand.regressors[:-1]]
    text = f"adjusted for {', '.join(names)}" if names else "not adjusted"
    if estimand.strata:
        strata = ", ".join(column_name(schema[name]) for name in estimand.strata)
        text = f"{text}; a baseline for each {strata}"
    return f"{text}; robust errors" if estimand.robust else text


def rounds_text(rounds: Sequence[int]) -> str:
    """Numbers of rounds, in order: "round 3", "rounds 1 to 4 and 7"."""
    runs: list[list[int]] = []
    for number in rounds:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    told = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    listed = " and ".join([", ".join(told[:-1]), told[-1]] if told[1:] else told)
    return f"round{'' if len(rounds) == 1 else 's'} {listed}"


def _count(per: float, noun: str) -> str:
    return noun if per == 1 else f"{per:g} {noun}s"

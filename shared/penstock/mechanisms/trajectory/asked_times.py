"""What estimands of persons over time ask of a trajectory: its time points, and whose rows are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.base.checks import Checks, nearest, shown
from penstock.mechanisms.trajectory.time_points import Times, find_point
from penstock.questions.estimands import Estimand
from penstock.schema import NUMBER_KINDS, Schema

if TYPE_CHECKING:
    from penstock.mechanisms.trajectory.follow_up import FollowUp


def check_over_time(
    check: Checks,
    estimand: Estimand,
    schema: Schema,
    times: Times,
    *,
    measured: bool,
    read: FollowUp | None,
) -> None:
    """Add what keeps tables of visits at these time points from answering an estimand.

    Args:
        measured: whether what a person's rows have in common is measured, so that tables hold
            persons; else each row is a person of its own.
        read: how follow-up ends; None where no column ends it.
    """
    time = times.column
    if estimand.landmark:
        _check_landmark(check, estimand, times, read)
        return
    if estimand.regression.compares:
        _check_crossing(check, estimand, schema, time.name)
    if estimand.outcome == time.name:
        check.add("outcome", "is the time itself", value=time.name)
    if estimand.regression.per_time and estimand.term != time.name:
        given, what = shown(estimand.term), "must be the column of time, along which the slope is"
        check.add("term", what, value=given, remedy=f"Write term = {time.name!r}")
    if estimand.within and not measured:
        check.add(
            "model",
            "is of the same persons at several times, which are not measured here",
            value=estimand.model,
            remedy="Set table.max_rows_per_person to 2 or more, and dependence = 'measured'",
        )
    elif schema.max_rows_per_person > 1 and not measured:
        check.add(
            "at",
            "is of persons, and tables of snapshots do not say whose their rows are",
            remedy="Set dependence = 'measured'",
        )
    sound = [
        field
        for field in ("at", "until")
        if getattr(estimand, field) is not None and _check_time(check, field, estimand, times)
    ]
    if len(sound) == 2:
        _check_order(check, estimand, times)
    _check_varies(check, estimand, schema)


def _check_landmark(check: Checks, estimand: Estimand, times: Times, read: FollowUp | None) -> None:
    """Of a duration from a time on: of that which ends follow-up, once somebody has been seen."""
    if read is None or read.duration.name != estimand.outcome:
        check.add(
            "at",
            "is a time of a duration that does not end visits here",
            value=f"{estimand.outcome} at {estimand.at}",
            remedy=f"Set mechanism.end = {estimand.outcome!r}; or remove at",
        )
        return
    first = read.starts[1]
    if read.same and times.spread and isinstance(estimand.at, float) and estimand.at < first:
        check.add(
            "at",
            f"is within the first time point, in which tables do not say when {times.column.name} "
            "was",
            value=f"{estimand.at:g}",
            bound=f"at least {first:g}",
            remedy="Ask without at, which is of persons as they were when first seen",
        )


def _check_crossing(check: Checks, estimand: Estimand, schema: Schema, time: str) -> None:
    """A regression at a time: of what is known then."""
    if time in estimand.target.columns:
        remedy = "Ask for the slope by a mixed model, or without at"
        check.add("term", "is the time, which is one here", value=time, remedy=remedy)
    if schema[estimand.outcome].kind == "event":
        remedy = "Ask by a cox model, of its duration"
        check.add("outcome", "is an event, of which it is asked when", remedy=remedy)


def _check_time(check: Checks, field: str, estimand: Estimand, times: Times) -> bool:
    given, column = getattr(estimand, field), times.column
    if column.kind not in NUMBER_KINDS:
        if given in column.levels:
            return True
        remedy = nearest(str(given), column.levels)
        check.add(field, f"is no level of {column.name!r}", value=shown(given), remedy=remedy)
        return False
    if isinstance(given, str):
        remedy = "Write a number without quotes"
        check.add(
            field, f"is text, and {column.name!r} a number", value=shown(given), remedy=remedy
        )
        return False
    lower, upper = column.bounds
    if not lower <= given <= upper:
        bound = f"{lower:g} to {upper:g}"
        check.add(field, f"lies outside {column.name!r}", value=f"{given:g}", bound=bound)
        return False
    if column.kind == "integer" and not times.spread and given != round(given):
        what = f"is between two values of {column.name!r}, at which nobody was seen"
        check.add(field, what, value=f"{given:g}", bound="a whole number")
        return False
    return True


def _check_order(check: Checks, estimand: Estimand, times: Times) -> None:
    points = [find_point(times, time) for time in estimand.times]
    if not points[0] < points[1]:
        same = points[0] == points[1]
        check.add(
            "until",
            "is at the same time point as at" if same else "is before at",
            value=shown(estimand.until),
            bound=f"after {estimand.at}, of {times.count} time points",
            remedy="Set points higher" if same and times.column.kind == "continuous" else None,
        )


def _check_varies(check: Checks, estimand: Estimand, schema: Schema) -> None:
    """What never changes has no change."""
    alone = estimand.term == estimand.outcome or estimand.regression.per_time
    if estimand.within and alone and not schema[estimand.outcome].varies:
        check.add("outcome", "does not vary within persons", value=estimand.outcome)

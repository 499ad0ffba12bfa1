"""Which duration a study lets paths end with, and on which clock: what can and what cannot."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.base.checks import Checks, nearest, shown
from penstock.schema import NUMBER_KINDS, Column, Schema

if TYPE_CHECKING:
    from penstock.mechanisms.trajectory.settings import Trajectory


def check_end(check: Checks, mechanism: Trajectory, schema: Schema, *, measured: bool) -> None:
    """Add what keeps paths from ending where the study says; it has no other problems."""
    if mechanism.end is None:
        if mechanism.visit_times is not None:
            check.add("visit_times", "say nothing where no path ends", remedy="Set end, too")
        return
    if mechanism.end not in schema.names:
        durations = [c.name for c in schema.columns if c.kind == "duration"]
        remedy = nearest(mechanism.end, durations)
        check.add("end", "is not a column", value=shown(mechanism.end), remedy=remedy)
        return
    column = schema[mechanism.end]
    if column.kind != "duration":
        check.add("end", f"column {column.name!r} is of kind {column.kind!r}", bound="duration")
        return
    for each in (column, schema[str(column.event)]):
        if each.varies:
            remedy = f"Set varies = false of {each.name!r}, in the dictionary and the study"
            check.add("end", f"is once a person, and {each.name!r} varies", remedy=remedy)
        if each.nullable:
            check.add("end", f"must be known of everybody, and {each.name!r} may be missing")
    if not measured:
        remedy = "Set dependence = 'measured', and table.max_rows_per_person to 2 or more"
        check.add("end", "is of persons whose visits are measured together", remedy=remedy)
    _check_clock(check, mechanism, schema, column)


def _check_clock(check: Checks, mechanism: Trajectory, schema: Schema, duration: Column) -> None:
    time, given = schema[mechanism.time], mechanism.visit_times
    if given is None:
        remedy = (
            f"Set visit_times: when each time point's visits begin, in units of {duration.name}"
        )
        if time.kind not in NUMBER_KINDS or time.unit != duration.unit:
            what = f"is not on the clock of {time.name!r}, which has other units"
            value = f"{duration.unit or 'no unit'}, {time.unit or 'no unit'}"
            check.add("end", what, value=value, remedy=remedy)
        elif time.bounds[0] > 0:
            what, value = f"begins at 0, before {time.name!r} does", f"{time.bounds[0]:g}"
            check.add("end", what, value=value, bound="a lower bound of at most 0", remedy=remedy)
        return
    count = mechanism.time_points(schema)
    rising = all(a < b for a, b in pairwise(given))
    if len(given) != count or given[0] != 0 or not rising or given[-1] > duration.bounds[1]:
        check.add(
            "visit_times",
            "are not the beginnings of the time points",
            value=", ".join(f"{t:g}" for t in given)[:200],
            bound=f"{count} numbers that rise from 0 to at most {duration.bounds[1]:g}",
        )

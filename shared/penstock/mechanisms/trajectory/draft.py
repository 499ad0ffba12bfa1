"""Settings of a trajectory to begin with: which column says when a row was taken."""

from __future__ import annotations

import re
from dataclasses import replace

from penstock.base.checks import nearest, shown
from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.trajectory.settings import MOST_POINTS, TIME_KINDS, Trajectory
from penstock.schema import Column, Schema

_TIME_NAME = re.compile(
    r"(^|_)(visit|wave|time|day|week|month|round|session)s?($|_)", re.IGNORECASE
)
POINTS = 10
"""Time points of a column that does not say them itself."""


def draft_settings(schema: Schema, time: str | None) -> Trajectory:
    """Default settings, along a column of times: a start by counts where everybody has one row and
    there are few enough numbers; paths end with a duration that is once a person
    and counts as the times do, if there is one alone.

    Args:
        time: if not given, the only column that can be one (ordered or integer, never missing) and
            is called like one.

    Raises:
        InvalidInput: no column for a time, or none that can be told to be one: an age is no time
            of a visit.
    """
    steps = [c.name for c in schema.columns if c.kind in ("ordered", "integer") and not c.nullable]
    called = [name for name in steps if _TIME_NAME.search(name)]
    if time is None and len(called) == 1:
        time = called[0]
    if time is None:
        what = "no column says by its name when a row was taken"
        if called:
            what = f"which column says when a row was taken: {' or '.join(called)}?"
        listed = f", one of {', '.join(steps)}" if steps else ""
        problem = Problem("time", what, remedy=f"Give --time{listed}")
        raise InvalidInput("mechanism", [problem])
    if time not in schema.names:
        remedy = nearest(time, schema.names)
        problem = Problem("time", "is not a column", value=shown(time), remedy=remedy)
        raise InvalidInput("mechanism", [problem])
    found = Trajectory(time=time, points=_points(schema[time]))
    counted = replace(found, start="counts")
    if not counted.problems(schema, ()):
        return counted
    ending = [
        replace(found, end=column.name)
        for column in schema.columns
        if column.kind == "duration" and not column.varies
    ]
    sound = [each for each in ending if not each.problems(schema, ())]
    return sound[0] if len(sound) == 1 else found


def _points(column: Column) -> int | None:
    """Time points to begin with; None where the column says them, or cannot have any."""
    if column.kind not in TIME_KINDS or column.kind == "ordered":
        return None
    grid = column.grid
    values = None if grid is None else grid[1] - grid[0] + 1
    if column.kind == "integer" and values is not None and values <= MOST_POINTS:
        return None
    return POINTS if values is None else min(POINTS, values)

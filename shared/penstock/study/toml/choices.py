"""What a draft of a study says until its analyst does: a mechanism's settings, and a question."""

from __future__ import annotations

import re

from penstock.base.checks import Checks, nearest, shown
from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms import MECHANISMS, Gibbs, Maf, Mechanism, SlicedWasserstein, Trajectory
from penstock.mechanisms.trajectory.settings import MOST_POINTS, TIME_KINDS
from penstock.questions.estimands import COVARIATES, Estimand
from penstock.questions.models import MODELS
from penstock.schema import Column, Schema

_TIME_NAME = re.compile(
    r"(^|_)(visit|wave|time|day|week|month|round|session)s?($|_)", re.IGNORECASE
)
POINTS = 10
"""Time points of a column that does not say them itself."""


def mechanism_for(name: str, schema: Schema, time: str | None = None) -> Mechanism:
    """A mechanism with default settings, over these columns.

    Args:
        time: of a trajectory, the column that says when a row was taken; if not given, the only
            column that can be one (ordered or integer, never missing) and is called like one.

    Raises:
        InvalidInput: another name; a time for a mechanism that has none; no column for a time, or
            none that can be told to be one: an age is no time of a visit.
    """
    check = Checks("mechanism")
    check.choice("name", name, MECHANISMS)
    if time is not None and name != Trajectory.name:
        check.add("time", f"has no meaning for {shown(name)}", remedy="Leave --time out")
    check.done()
    if name == Trajectory.name:
        return _trajectory(schema, time)
    plain: dict[str, Mechanism] = {kind.name: kind() for kind in (Maf, SlicedWasserstein, Gibbs)}
    return plain[name]


def _trajectory(schema: Schema, time: str | None) -> Trajectory:
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
    return Trajectory(time=time, points=_points(schema[time]))


def _points(column: Column) -> int | None:
    """Time points to begin with; None where the column says them, or cannot have any."""
    if column.kind not in TIME_KINDS or column.kind == "ordered":
        return None
    grid = column.grid
    values = None if grid is None else grid[1] - grid[0] + 1
    if column.kind == "integer" and values is not None and values <= MOST_POINTS:
        return None
    return POINTS if values is None else min(POINTS, values)


def question_for(schema: Schema) -> Estimand:
    """A question to begin with, for a mechanism that needs one: to be edited.

    Of the models that drafts begin with, the first that these columns can answer: with the first
    column that can be its outcome and, if it compares, the first other one that can be its term.

    Raises:
        InvalidInput: no column can be asked about.
    """
    drafted = sorted((m.draft, m.name) for m in MODELS if m.draft is not None)
    for _, name in drafted:
        model = MODELS.of(name)
        for outcome in schema.columns:
            if outcome.kind not in model.outcomes:
                continue
            if not model.compares:
                return Estimand(model.name, model.name, outcome.name)
            term = _term_for(schema, outcome)
            if term is not None:
                level = term.levels[1] if term.kind == "categorical" else None
                return Estimand("effect", model.name, outcome.name, term.name, level=level)
    raise InvalidInput("study", [Problem("estimands", "no column can be asked about")])


def _term_for(schema: Schema, outcome: Column) -> Column | None:
    """The first column that can be a covariate beside an outcome."""
    events = {c.event for c in schema.columns}
    for term in schema.columns:
        apart = term.name not in (outcome.name, outcome.event) and term.name not in events
        if apart and term.kind in COVARIATES:
            return term
    return None

"""One estimand of persons over time, on one coded table whose rows are persons at times.

As :mod:`penstock.questions.estimation` does for regressions: whatever a hostile table holds, an
:class:`~penstock.questions.estimation.Estimate` comes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.questions.estimands import Estimand
from penstock.questions.estimation import MIN_ROWS, Estimate, estimate, fit_course
from penstock.questions.fits.table_model import Array, Degenerate
from penstock.questions.landmarks import begin_again, leave_times, take_rows
from penstock.questions.matrices import make_design
from penstock.questions.models.longitudinal import LongitudinalModel
from penstock.questions.occasions import Time
from penstock.questions.terms import design_terms, find_subgroup
from penstock.schema import Coded, Schema

Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]

NOT_TOLD_APART = "the tables do not say which rows are of one person: the site's version is older"
NO_CLOCK = "the tables do not say when a visit was taken, as the duration counts"


@dataclass(frozen=True, slots=True)
class Courses:
    """Whose each row of a table is, and when it was taken.

    Attributes:
        person: (N,) from 0; None where the table does not say. Nobody has two rows at one point.
        point: (N,) the number of its time point, from 0; middles: (T,) the time at each point.
        find: the point of a time, as a study writes it.
        time: the column of it.
        clock: (N,) when it was taken, as the duration counts with which follow-up ends; None where
            none ends it.
    """

    person: Whole | None
    point: Whole
    middles: Array
    find: Callable[[Time], int]
    time: str = ""
    clock: Array | None = None


def keep_first(frame: Coded, courses: Courses) -> Coded:
    """The first row of each person: what is once a person counts once. All rows where the table
    does not say whose they are.

    Args:
        frame: column name → coded values, (N,); courses: of the same rows.
    """
    if courses.person is None:
        return frame
    _, first = np.unique(courses.person, return_index=True)
    return {name: values[first] for name, values in frame.items()}


def estimate_courses(
    frame: Mapping[str, Array], schema: Schema, estimand: Estimand, courses: Courses
) -> Estimate:
    """An estimand of persons over time, on those of a table of whom all is known that it asks.

    Rows outside the subgroup are as if they were not there: of two times, a person is to be in it
    at both. n counts persons, of a transition those at the level from which they go.

    Args:
        frame: column name → coded values, (N,); courses: of the same rows.

    Raises:
        PenstockError: an unknown model, or an estimand that is none of persons over time. Never
            because of the table.
    """
    n = 0
    try:
        if estimand.regression.compares or estimand.landmark:
            rows = choose_persons(frame, schema, estimand, courses)
            return estimate(rows, schema, leave_times(estimand))
        values = _values(frame, schema, estimand, courses)
        n = len(values[0] if estimand.times else np.unique(values[-1]))
        if n < MIN_ROWS:
            raise Degenerate(f"too few persons: {n}")
        found = fit_course(values, estimand, schema)
    except Degenerate as problem:
        return Estimate(math.nan, math.nan, n, None, converged=False, problem=str(problem))
    return Estimate(found.coefficient, found.variance, n, None, converged=True)


def choose_persons(
    frame: Mapping[str, Array], schema: Schema, estimand: Estimand, courses: Courses
) -> dict[str, Array]:
    """The rows to which a regression at a time, or anything from a landmark on, is fitted: one for
    each person, as :func:`penstock.questions.landmarks.leave_times` asks of them.

    Raises:
        Degenerate: the table does not hold them.
    """
    event = schema[estimand.outcome].event if estimand.landmark else None
    named = [*estimand.columns, *([] if event is None else [event])]
    arrays = _read(frame, named, len(courses.point))
    person = courses.person
    if person is None:
        if estimand.within:
            raise Degenerate(NOT_TOLD_APART)
        person = np.arange(len(courses.point))
    if not estimand.landmark:
        points = tuple(courses.find(time) for time in estimand.times)
        return take_rows(arrays, person, courses.point, estimand.outcome, points)
    if courses.clock is None:
        raise Degenerate(NO_CLOCK)
    landmark = float(estimand.at or 0.0)
    return begin_again(arrays, person, courses.clock, estimand.outcome, landmark)


def _read(frame: Mapping[str, Array], names: Sequence[str], rows: int) -> dict[str, Array]:
    """The columns that are named, (N,) each."""
    absent = sorted({*names} - frame.keys())
    if absent:
        raise Degenerate(f"the table lacks {', '.join(absent)}")
    arrays = {name: np.asarray(frame[name], dtype=np.float64) for name in names}
    if {values.shape for values in arrays.values()} != {(rows,)}:
        raise Degenerate("the table's columns differ in length")
    return arrays


def _values(
    frame: Mapping[str, Array], schema: Schema, estimand: Estimand, courses: Courses
) -> tuple[Array, ...]:
    """What is fitted: (n,) each, of persons at the times that are named."""
    arrays = _read(frame, estimand.columns, len(courses.point))
    kept = np.ones(len(courses.point), dtype=np.bool_)
    if estimand.subgroup:
        kept = find_subgroup({c.name: c for c in schema.columns}, estimand.subgroup, arrays)
    person = courses.person
    if person is None:
        if estimand.within:
            raise Degenerate(NOT_TOLD_APART)
        person = np.arange(len(kept))
    outcome = arrays[estimand.outcome]
    if not estimand.times:
        return _along(arrays, kept, person, schema, estimand, courses)
    points = [courses.find(time) for time in estimand.times]
    first = kept & (courses.point == points[0]) & np.isfinite(outcome)
    second = _second(estimand)
    if second is None:
        return (outcome[first],)
    other = arrays[second]
    last = kept & (courses.point == points[-1]) & np.isfinite(other)
    model = estimand.regression
    if isinstance(model, LongitudinalModel) and model.cells:
        first &= outcome == schema[estimand.outcome].levels.index(estimand.level or "")
    _, at, until = np.intersect1d(person[first], person[last], return_indices=True)
    return outcome[first][at], other[last][until]


def _along(
    arrays: Mapping[str, Array],
    kept: Bools,
    person: Whole,
    schema: Schema,
    estimand: Estimand,
    courses: Courses,
) -> tuple[Array, ...]:
    """Of all times: the outcome and the time (n,), the design (n, p) of complete rows, the time
    last in it, and whose row each is (n,)."""
    # A row's time is that of its point, and the time's own column is not looked at.
    known = {name: values for name, values in arrays.items() if name != estimand.term}
    there = np.logical_and.reduce([kept, *(np.isfinite(values) for values in known.values())])
    time = courses.middles[courses.point[there]]
    used = {name: values[there] for name, values in known.items()} | {estimand.term: time}
    if not len(time):
        raise Degenerate("too few persons: 0")
    design, _ = make_design(used, design_terms(schema, estimand), len(time))
    return used[estimand.outcome], time, design, person[there].astype(np.float64)


def _second(estimand: Estimand) -> str | None:
    """The column that stands beside the outcome; None where it stands alone, at one time."""
    model = estimand.regression
    if isinstance(model, LongitudinalModel) and model.pairs:
        return estimand.term
    return estimand.outcome if len(estimand.times) > 1 else None

"""Whose each row of a released table is, and when it was taken: how estimands over time read it.

Of measured dependence a table's persons stand in the order of their first time points, the latest
first (:mod:`~penstock.mechanisms.trajectory.cohorts`), and each one's rows in the order of time. So
a new person begins exactly where the time point does not rise: one that follows begins no later
than the one before, and that no later than it ends. No column has to say so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.trajectory.follow_up import follow_up_of
from penstock.mechanisms.trajectory.settings import Trajectory
from penstock.mechanisms.trajectory.time_points import find_point, times_of
from penstock.questions.persons import Courses
from penstock.schema import Coded, Schema

Whole = NDArray[np.int64]


def read_courses(mechanism: Trajectory, schema: Schema, table: Coded) -> Courses:
    """The persons of one released table, copy or refit."""
    times = times_of(mechanism, schema)
    point = times.bins(table[mechanism.time])
    measured = mechanism.measures(schema)
    person = number_persons(point) if measured else np.arange(len(point))
    middles = times.at(np.arange(times.count) / (times.count - 1))
    read = follow_up_of(mechanism, schema)
    clock = None if read is None else read.when(point, table[mechanism.time])
    return Courses(
        person, point, middles, lambda time: find_point(times, time), mechanism.time, clock
    )


def number_persons(point: Whole) -> Whole | None:
    """(N,) whose each row is, from 0; None where persons do not stand in order.

    Args:
        point: (N,) the rows' time points. Tables from before persons had an order mostly break it:
            where they do not, since everybody begins at the first time point, say, persons are told
            apart all the same.
    """
    begins = np.ones(len(point), dtype=np.bool_)
    begins[1:] = point[1:] <= point[:-1]
    if (np.diff(point[begins]) > 0).any():
        return None
    return np.cumsum(begins) - 1


def order_persons(person: Whole, point: Whole) -> Whole:
    """(N,) the rows' new places, so that :func:`number_persons` tells persons apart.

    Args:
        person: (N,) whose each row is, one person after the other; point: (N,) rising within each.
    """
    begins = np.ones(len(person), dtype=np.bool_)
    begins[1:] = person[1:] != person[:-1]
    first = point[begins][np.cumsum(begins) - 1]
    return np.argsort(-first, kind="stable")

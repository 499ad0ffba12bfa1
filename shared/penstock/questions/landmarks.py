"""One row for each person, as of a time: what a regression that names a time is fitted to.

From a *landmark* s on, those count who are still in follow-up at it, T > s; each column is what
was last seen of it by s, and the duration is T − s, whatever comes of the columns later. So nothing
that is only known after s is in a covariate, as it would be if those who lived longer were
described by what was measured of them later (immortal time).

Sources: Anderson, Cain & Gelber 1983, Journal of Clinical Oncology 1, 710–719; van Houwelingen
2007, Scandinavian Journal of Statistics 34, 70–85.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from penstock.questions.estimands import Estimand
from penstock.questions.fits.table_model import Array

Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]


def leave_times(estimand: Estimand) -> Estimand:
    """The same question of the rows that are made here, in which no time is named: of a survival,
    the time from the landmark on."""
    if estimand.regression.compares:
        return replace(estimand, at=None, until=None)
    begin, end = (float(time) for time in estimand.times)
    return replace(estimand, at=end - begin, until=None)


def begin_again(
    columns: Mapping[str, Array], person: Whole, clock: Array, duration: str, landmark: float
) -> dict[str, Array]:
    """Those who are in follow-up at a landmark, each column as last seen by then.

    Args:
        columns: (N,) each; person: (N,) from 0, each one's rows in the order of time.
        clock: (N,) when each row was taken, as the duration counts.

    Returns:
        (m,) each, in the order of persons; NaN where nothing of a column was seen by then.
    """
    seen = clock <= landmark
    found = {name: _last(values, person, seen) for name, values in columns.items()}
    left = found[duration] - landmark
    still = left > 0
    return {name: values[still] for name, values in (found | {duration: left}).items()}


def take_rows(
    columns: Mapping[str, Array],
    person: Whole,
    point: Whole,
    outcome: str,
    points: tuple[int, ...],
) -> dict[str, Array]:
    """The rows of one time point; where there are two, with the outcome as it is at the later one,
    of those who were there at both.

    Args:
        columns: (N,) each; person, point: (N,), nobody twice at one point.
    """
    first = point == points[0]
    found = {name: values[first] for name, values in columns.items()}
    if len(points) == 1:
        return found
    last = point == points[1]
    _, at, until = np.intersect1d(person[first], person[last], return_indices=True)
    chosen = {name: values[at] for name, values in found.items()}
    return chosen | {outcome: columns[outcome][last][until]}


def _last(values: Array, person: Whole, seen: Bools) -> Array:
    """(m,) the last known value of each person among the rows that were seen, or NaN."""
    known = np.flatnonzero(seen & np.isfinite(values))
    found = np.full(int(person.max(initial=-1)) + 1, np.nan)
    last = np.ones(len(known), dtype=np.bool_)
    last[:-1] = person[known][1:] != person[known][:-1]
    found[person[known[last]]] = values[known[last]]
    return found

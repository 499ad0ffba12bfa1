"""Persons counted: in the cells of each column at each time point, and by who is there when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.copula.grids import Grid, place_of
from penstock.mechanisms.tables.margins import estimate_rows
from penstock.mechanisms.trajectory.attendance import count_attendance, spans_once
from penstock.mechanisms.trajectory.coordinates import Places
from penstock.mechanisms.trajectory.follow_up import WEIGHT
from penstock.mechanisms.trajectory.followed import Followed
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Counted:
    """Noisy counts of persons; sd: of each one's noise."""

    fixed: list[Array]
    moving: list[list[Array]]
    spans: Array
    visits: Array
    present: Array
    ends: tuple[Array, Array] | None
    persons: float
    sd: float


def count_persons(places: Places, followed: Followed) -> list[Whole]:
    """Persons in the cells of each histogram: constants; columns by time point; attendance; and how
    follow-up ends."""
    seen, counts = followed.seen, []
    for _, grid, _ in places.fixed():
        counts.append(_count_cells(grid, followed.constants[grid.column.name], seen))
    for t in range(places.count):
        for (_, grid, _), (_, values) in zip(places.at(t), followed.at(t), strict=True):
            counts.append(_count_cells(grid, values, followed.there[:, t]))
    counts += count_attendance(followed.there)[2 if places.once else 0 :]
    if places.follow_up is not None:
        counts += places.follow_up.count(followed)
    return counts


def _count_cells(grid: Grid, values: Array, there: Bools) -> Whole:
    place = np.where(there, place_of(grid, np.where(there, values, some_value(grid))), grid.count)
    return np.asarray(np.bincount(place, minlength=grid.count + 1)[: grid.count])


def some_value(grid: Grid) -> float:
    """A value of the column, for who is not there."""
    return grid.column.bounds[0] if grid.numeric else 0.0


def release_persons(
    places: Places, followed: Followed, persons: int, measurement: WholeSum, noise: NoiseSource
) -> Counted:
    """The counts, with noise.

    Args:
        persons: public n, of all sites where a sum is of many: at most so many are counted.
    """
    histograms = count_persons(places, followed)
    noisy = measurement(np.concatenate(histograms), noise)
    parts = np.split(noisy, np.cumsum([len(h) for h in histograms])[:-1])
    ends = None if places.follow_up is None else (parts.pop(-2) / WEIGHT, parts.pop() / WEIGHT)
    if places.once:
        *cells, present, total = parts
        spans, visits = spans_once(present), np.zeros(0)
    else:
        *cells, spans, visits, present, total = parts
    few, each = len(places.constants), len(places.varying)
    fixed, sd = cells[:few], measurement.sd
    moving = [cells[few + t * each : few + (t + 1) * each] for t in range(places.count)]
    whole = [*fixed, present] if places.once else [*fixed, spans, visits]
    counted = estimate_rows(float(total[0]), whole, sd, persons)
    seen = [
        min(estimate_rows(float(present[t]), moving[t], sd, persons), counted)
        for t in range(places.count)
    ]
    return Counted(fixed, moving, spans, visits, np.array(seen), ends, counted, sd)

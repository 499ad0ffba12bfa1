"""How long a person is followed: a duration and its event beside the visits, on one clock.

A path ends where its person's follow-up does. Of every time point it is public when its visits
begin, in the duration's units: so a duration says which time point is a person's last, and rows
of later ones are not theirs to have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.copula.grids import share_of, value_at
from penstock.mechanisms.trajectory.attendance import Stops, cells_of, pair_cell, spans_of
from penstock.mechanisms.trajectory.followed import Followed
from penstock.mechanisms.trajectory.time_points import Times, times_of
from penstock.schema import Coded, Column, Schema

if TYPE_CHECKING:
    from penstock.mechanisms.trajectory.settings import Trajectory

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]

ENDS = 2
"""Numbers that say how a person's follow-up ends: the time of the event, and of being censored."""

WEIGHT = 2
"""Of a person in the counts of ends, so that these have half the noise: what is once a person costs
little beside visits."""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Which duration ends a path, and on which clock; public.

    Attributes:
        duration: its column; event: the name of its event's.
        starts: (T,) of each time point, the earliest time at which a visit is taken, in the
            duration's units; rising, the first at most 0.
        same: the column of time is on the duration's clock itself.
        cells: m, even ones on the duration's scale, in which times are counted.
    """

    duration: Column
    event: str
    starts: tuple[float, ...]
    same: bool
    cells: int = 1

    def last_point(self, ends: Array) -> Whole:
        """(n,) the last time point that begins by then, at least the first."""
        found = np.searchsorted(np.asarray(self.starts), ends, side="right") - 1
        return np.asarray(np.maximum(found, 0), dtype=np.int64)

    def read(self, columns: Coded) -> Stops:
        """When and how follow-up ends, of coded columns."""
        time, event = columns[self.duration.name], columns[self.event] > 0
        return Stops(time, event, self.last_point(np.nan_to_num(time)))

    def cut(self, followed: Followed) -> Followed:
        """Without visits at time points that begin after the end."""
        last = self.read(followed.constants).point
        there = followed.there & (np.arange(followed.there.shape[1]) <= last[:, None])
        return Followed(there, followed.varying, followed.constants)

    @property
    def sizes(self) -> tuple[int, int]:
        """How many counts :meth:`count` makes in each histogram."""
        return 2 * self.cells + 1, 2 * cells_of(len(self.starts))

    def count(self, followed: Followed) -> list[Whole]:
        """Persons by when and how follow-up ends; and by the last time point that it reaches, the
        last visit, and how it ends. Whoever is counted counts as :data:`WEIGHT`."""
        seen, stops = followed.seen, self.read(followed.constants)
        _, last, _ = spans_of(followed.there)
        pairs = cells_of(len(self.starts))
        when = pair_cell(np.minimum(last, stops.point), stops.point) + pairs * stops.event
        places = (self.place(stops), when)
        return [
            WEIGHT * np.bincount(np.where(seen, place, size), minlength=size + 1)[:size]
            for place, size in zip(places, self.sizes, strict=True)
        ]

    def place(self, stops: Stops) -> Whole:
        """(n,) cells: of times of events, of times censored before the end, and event-free at
        it."""
        share = share_of(self.duration, np.nan_to_num(stops.time))
        place = np.clip(np.floor(share * self.cells), 0, self.cells - 1).astype(np.int64)
        at_end = ~stops.event & (stops.time >= self.duration.bounds[1])
        other = np.where(at_end, 2 * self.cells, self.cells + place)
        return np.asarray(np.where(stops.event, place, other))

    def time_in(self, place: Whole, within: Array) -> Array:
        """(n,) times at a share of the way through their cell."""
        return value_at(self.duration, (place + within) / self.cells)

    def when(self, point: Whole, time: Array) -> Array:
        """(N,) when visits were taken, in the duration's units: by the column of time where it has
        them, else when their time points begin."""
        return time if self.same else np.asarray(self.starts)[point]

    def clock(self, times: Times, positions: Array) -> Array:
        """Times in the duration's units, at shares of the way from the first to the last point."""
        if self.same:
            return times.at(positions)
        at = positions * (times.count - 1)
        return np.asarray(np.interp(at, np.arange(times.count), self.starts))


def follow_up_of(mechanism: Trajectory, schema: Schema, cells: int = 1) -> FollowUp | None:
    """Of a study that has no problems; None where no column ends a path."""
    if mechanism.end is None:
        return None
    duration, starts = schema[mechanism.end], mechanism.visit_times
    same = starts is None
    if starts is None:
        starts = tuple(times_of(mechanism, schema).starts().tolist())
    return FollowUp(duration, str(duration.event), starts, same, cells)

"""Noisy counts of a table: each column's cells, each duration's times by event, and the rows.

One release: exact discrete Gaussian noise on whole numbers, under zero-out with public n. A row is
in one cell of each histogram, whatever it holds, so that each adds up to the number of rows; an
absent row is in none. Everything after the noise is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.grids import Grid, share_of
from penstock.mechanisms.structured.population import count_cells
from penstock.mechanisms.tables.margins import estimate_rows
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource
from penstock.privacy.sensitivity import histogram
from penstock.schema import Coded, Column

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]

TIMES = 32
"""Even cells of a duration's times, without the event and with it."""

_KINDS = 4
"""Of a duration's rows: censored before the end, events, event-free at the end, unknown."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Noisy counts.

    Args:
        cells: of each grid.
        times: of each duration, (2 TIMES + 1,): censored before the end, events, and who is
            event-free at the end, each kind adding up to what was counted of it as a whole, too.
        unknown: of each duration, rows of which the time or the event is missing.
        rows: how many are present, by all counts; sd: of each count's noise.
    """

    cells: list[Array]
    times: list[Array]
    unknown: list[float]
    rows: float
    sd: float


def measure_margins(
    sigma: float, grids: Sequence[Grid], durations: int, rows_per_person: int
) -> WholeSum:
    """Counts of every column's cells, of every duration's times by event, and the number of rows.

    Sensitivity: :func:`penstock.privacy.sensitivity.histogram` of one histogram each, two of a
    duration (times, and kinds of them), and one more, zero-out of one person:
    k·√(columns + 2 durations + 1).
    """
    histograms = len(grids) + 2 * durations + 1
    return WholeSum(
        label="margins",
        noise_multiplier=sigma,
        sensitivity=histogram(histograms, rows_per_person),
        squared=Fraction(rows_per_person**2 * histograms),
        unit=1.0,
        size=sum(grid.count for grid in grids) + durations * (2 * TIMES + 2 + _KINDS) + 1,
    )


def release_margins(
    grids: Sequence[Grid],
    durations: Sequence[Column],
    coded: Coded,
    present: Bools,
    measurement: WholeSum,
    noise: NoiseSource,
) -> Counts:
    """The counts, with noise.

    Args:
        coded: columns of length n·k; present: the same.
        measurement: of :func:`measure_margins`.
    """
    histograms = count_margins(grids, durations, coded, present)
    noisy = measurement(np.concatenate(histograms), noise)
    *parts, total = np.split(noisy, np.cumsum([len(h) for h in histograms])[:-1])
    sd = measurement.sd
    pairs = parts[len(grids) :]
    times = [_join_kinds(*pair) for pair in zip(pairs[::2], pairs[1::2], strict=True)]
    return Counts(
        cells=parts[: len(grids)],
        times=[part[:-1] for part in times],
        unknown=[max(float(part[-1]), 0.0) for part in times],
        rows=estimate_rows(float(total[0]), parts, sd, len(present)),
        sd=sd,
    )


def count_margins(
    grids: Sequence[Grid], durations: Sequence[Column], coded: Coded, present: Bools
) -> list[NDArray[np.int64]]:
    """How many rows are in each cell of each histogram; last, how many rows there are."""
    times = [count_times(column, coded, present) for column in durations]
    both = [counts for time in times for counts in (time, _add_up(time))]
    total = np.array([np.count_nonzero(present)])
    return [*count_cells(grids, coded, present), *both, total]


def count_times(column: Column, coded: Coded, present: Bools) -> NDArray[np.int64]:
    """A duration's rows: by time without the event and with it, at the end, and unknown."""
    time, event = coded[column.name], coded[column.event or ""]
    known = ~(np.isnan(time) | np.isnan(event))
    seen = np.where(known, time, 0.0)
    happened = known & (event > 0)
    ended = (seen >= column.snap(np.array(column.bounds[1]))) & ~happened
    cell = np.clip((share_of(column, seen) * TIMES).astype(np.intp), 0, TIMES - 1)
    place = np.where(ended, 2 * TIMES, cell + TIMES * happened)
    place = np.where(known, place, 2 * TIMES + 1)
    # Absent rows are counted, too, in a cell of their own.
    place = np.where(present, place, 2 * TIMES + 2)
    return np.bincount(place, minlength=2 * TIMES + 3)[:-1]


def _add_up(times: Whole) -> Whole:
    """(4,) of a kind each."""
    return np.array([times[:TIMES].sum(), times[TIMES:-2].sum(), times[-2], times[-1]])


def _join_kinds(times: Array, kinds: Array) -> Array:
    """Times, of which each kind adds up to what both counts of it say, all with noise alike."""
    joined = times.copy()
    places = (slice(TIMES), slice(TIMES, -2), slice(-2, -1), slice(-1, None))
    for place, told in zip(places, kinds, strict=True):
        mine = times[place]
        joined[place] = mine + (told - mine.sum()) / (len(mine) + 1)
    return joined

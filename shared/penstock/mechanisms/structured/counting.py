"""Noisy counts of a table: each column's cells, each duration's times by event, and the rows.

One release: exact discrete Gaussian noise on whole numbers, under zero-out with public n. A row is
in one cell of each histogram, whatever it holds, so that each adds up to the number of rows; an
absent row is in none. Everything after the noise is post-processing.

A survival curve adds up counts, and with them their noise. Times are therefore counted in cells of
several widths (Hay, Rastogi, Miklau & Suciu 2010, "Boosting the accuracy of differentially private
histograms through consistency"): who had an event until some time is then known half as badly, at
the price of a histogram for each width.

Of a number whose bins have several values each of these is counted, too, at half the weight: with
twice the noise, and at a quarter of a histogram's price. Where half of all say 40, a bin of 39, 40
and 41 does not know which. Of a number that has too many values, parts of its bins are counted so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.copula.grids import Grid, share_of, value_of
from penstock.mechanisms.copula.population import count_cells
from penstock.mechanisms.tables.margins import estimate_rows
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource
from penstock.privacy.sensitivity import weighted_histograms
from penstock.schema import Coded, Column

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]

TIMES = 32
"""Even cells of a duration's times, without the event and with it."""

COARSE = (1, 4, 16)
"""Numbers of wider cells in which times are counted, too. Beside ten columns the error of a curve
is least with these, and other counts' noise grows by a sixteenth for each."""


@dataclass(frozen=True, slots=True)
class TimeCounts:
    """Noisy counts of a duration's rows.

    Args:
        censored, events: before the end, in cells of each width: those of :data:`COARSE`, then
            (TIMES,) of the narrowest.
        ended: event-free at the end; unknown: the time or the event is missing.
    """

    censored: Sequence[Array]
    events: Sequence[Array]
    ended: float
    unknown: float

    @classmethod
    def of(cls, levels: Sequence[Array]) -> TimeCounts:
        """From counts of each width: (2 b + 2,), censored, events, ended and unknown."""
        halves = [np.split(level[:-2], 2) for level in levels]
        ended, unknown = np.mean([level[-2:] for level in levels], axis=0)
        censored, events = ([half[kind] for half in halves] for kind in (0, 1))
        return cls(censored, events, float(ended), float(unknown))


@dataclass(frozen=True, slots=True)
class Counts:
    """Noisy counts.

    Args:
        cells: of each grid; values: of each grid's values, or parts, where these are counted, with
            twice the noise; times: of each duration.
        rows: how many are present, by all counts; sd: of each count's noise.
    """

    cells: list[Array]
    values: list[Array]
    times: list[TimeCounts]
    rows: float
    sd: float


def measure_margins(
    sigma: float, grids: Sequence[Grid], durations: int, rows_per_person: int
) -> WholeSum:
    """Counts of every column's cells, of every duration's times by event, and the number of rows.

    Sensitivity: :func:`penstock.privacy.sensitivity.weighted_histograms` of one histogram each,
    four of a duration (times in cells of four widths), one more, and at half the weight one of
    each of v columns whose values, or parts of bins, are counted; zero-out of one person:
    k·√(columns + 4 durations + 1 + v/4).
    """
    widths = (*COARSE, TIMES)
    histograms = len(grids) + len(widths) * durations + 1
    valued, weight = sum(bool(len(grid.homes)) for grid in grids), _weigh(grids)
    squared = Fraction(rows_per_person**2 * (weight**2 * histograms + valued), weight**2)
    cells = sum(grid.count + len(grid.homes) for grid in grids)
    return WholeSum(
        label="margins",
        noise_multiplier=sigma,
        sensitivity=weighted_histograms(histograms + valued / weight**2, rows_per_person),
        squared=squared,
        unit=1.0 / weight,
        size=cells + durations * sum(2 * b + 2 for b in widths) + 1,
    )


def _weigh(grids: Sequence[Grid]) -> int:
    """How many times each histogram is counted, but those of values, which are once: 1 where there
    are none of these."""
    return 2 if any(len(grid.homes) for grid in grids) else 1


def release_margins(
    grids: Sequence[Grid],
    durations: Sequence[Column],
    coded: Coded,
    present: Bools,
    most: int,
    measurement: WholeSum,
    noise: NoiseSource,
) -> Counts:
    """The counts, with noise.

    Args:
        coded: columns of length n·k; present: the same; most: rows that there may be, publicly.
        measurement: of :func:`measure_margins`.
    """
    histograms = count_margins(grids, durations, coded, present)
    noisy = measurement(np.concatenate(histograms), noise)
    valued, weight = sum(bool(len(grid.homes)) for grid in grids), _weigh(grids)
    split = np.split(noisy, np.cumsum([len(h) for h in histograms])[:-1])
    *parts, total = split[: len(split) - valued]
    sd, levels = measurement.sd, len(COARSE) + 1
    starts, told = range(len(grids), len(parts), levels), iter(split[len(split) - valued :])
    return Counts(
        cells=parts[: len(grids)],
        values=[weight * next(told) if len(grid.homes) else np.zeros(0) for grid in grids],
        times=[TimeCounts.of(parts[at : at + levels]) for at in starts],
        rows=estimate_rows(float(total[0]), parts, sd, most),
        sd=sd,
    )


def count_margins(
    grids: Sequence[Grid], durations: Sequence[Column], coded: Coded, present: Bools
) -> list[NDArray[np.int64]]:
    """How many rows are in each cell of each histogram, how many rows there are, and how many of
    them have each value; in units of the measurement."""
    times = [count_times(column, coded, present) for column in durations]
    levels = [_add_up(time, cells) for time in times for cells in (*COARSE, TIMES)]
    total = np.array([np.count_nonzero(present)])
    whole = [*count_cells(grids, coded, present), *levels, total]
    return [*(_weigh(grids) * each for each in whole), *count_values(grids, coded, present)]


def count_values(grids: Sequence[Grid], coded: Coded, present: Bools) -> list[NDArray[np.int64]]:
    """How many rows have each value, or are in each part, of the grids of which these are counted;
    absent ones, and those that are in none of the bins, are in a cell of their own."""
    counts = []
    for grid in (grid for grid in grids if len(grid.homes)):
        last = len(grid.homes)
        place = np.where(present, value_of(grid, coded[grid.column.name]), last)
        counts.append(np.bincount(place, minlength=last + 1)[:last])
    return counts


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


def _add_up(times: Whole, cells: int) -> Whole:
    """(2 cells + 2,) the same in wider cells."""
    wide = times[:-2].reshape(2 * cells, -1).sum(axis=1)
    return np.concatenate([wide, times[-2:]])

r"""Who is in the released tables: each column's figures, of each site and of all sites together.

They are "table 1" of a paper, read in synthetic tables: noise and model are in them, and there is
no interval. A figure is read in each copy, and is the mean over copies.

All sites together are as their tables one below the other: means, shares and counts exactly so,
and standard deviations, too (those within sites and between their means). Tables are not kept for
quartiles. Each site leaves :data:`POINTS` quantiles of a column, each of which stands for as many
of its rows; the quartiles of all sites are those of these points. How long persons were followed
that had no event is a figure of each site alone, by lifelines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.schema import Coded, Column, Schema

Array = NDArray[np.float64]

POINTS = 200
QUARTERS = (0.25, 0.5, 0.75)

_MIDDLES = (np.arange(POINTS) + 0.5) / POINTS


@dataclass(frozen=True, slots=True)
class Figures:
    """A column's; None where no row has a known value, or where its kind has no such figure.

    Attributes:
        known: rows whose value is known; missing: the share of rows whose value is not.
        mean, sd: of numbers; sd needs two rows.
        quartiles: the quarter, the half and three quarters, of numbers and durations.
        shares: of each level, of levels.
        events: how many durations end in theirs.
        followed: how long half would have been followed if nobody had the event.
        points: (:data:`POINTS`,) of numbers and durations, for quartiles of all sites.
    """

    known: float
    missing: float | None
    mean: float | None = None
    sd: float | None = None
    quartiles: tuple[float, ...] | None = None
    shares: tuple[float, ...] | None = None
    events: float | None = None
    points: Array | None = None
    followed: float | None = None


@dataclass(frozen=True, slots=True)
class Described:
    """How many rows there are, or as many as these are a share of, each a person's first if persons
    are told apart, and the figures of each column."""

    rows: float
    columns: Mapping[str, Figures]


@dataclass(frozen=True, slots=True)
class Baseline:
    """One release's.

    Attributes:
        whole: of all its rows; groups: of the sites whose rows they are, in one release of all.
        once: whether each person counts once, at their first row.
    """

    whole: Described
    groups: Mapping[str, Described]
    once: bool = False


def list_described(schema: Schema, by: str | None = None) -> tuple[Column, ...]:
    """The columns that have figures: an event is told beside its duration.

    Args:
        by: a column that says of which group a row is; it has none.
    """
    return tuple(c for c in schema.columns if c.kind != "event" and c.name != by)


def describe_baseline(
    schema: Schema,
    copies: Sequence[Coded],
    *,
    by: str | None = None,
    once: bool = False,
    pick: Callable[[Coded], Coded] = lambda table: table,
    share: float = 1.0,
) -> Baseline:
    """The figures of one release's tables.

    Args:
        copies: one at least; each is read once.
        by: the column of levels that says of which site a row is, where there is one.
        once: what :class:`Baseline` says; pick: the rows of a copy that are described.
        share: of as many rows as the site has, that a copy has; rows and events are told of all.
    """
    columns = list_described(schema, by)
    levels = () if by is None else schema[by].levels
    whole: list[Described] = []
    groups: dict[str, list[Described]] = {level: [] for level in levels}
    durations = [column for column in columns if column.kind == "duration"]
    parts: dict[str, list[tuple[Array, Array]]] = {column.name: [] for column in durations}
    for copy in copies:
        table = pick(copy)
        whole.append(_describe(columns, table))
        for column in durations:
            parts[column.name].append((table[column.name], table[str(column.event)]))
        for place, level in enumerate(levels):
            rows = np.flatnonzero(table[str(by)] == place)
            group = {name: values[rows] for name, values in table.items()}
            groups[level].append(_describe(columns, group, pooled=False))
    average = _average(whole, share)
    followed = {}
    for name, told in parts.items():
        times, events = map(np.concatenate, zip(*told, strict=True))
        followed[name] = replace(average.columns[name], followed=find_followed(times, events))
    return Baseline(
        replace(average, columns={**average.columns, **followed}),
        {level: _average(found, share) for level, found in groups.items()},
        once,
    )


def find_followed(time: Array, event: Array) -> float | None:
    """Median time of follow-up if nobody had the event: Kaplan and Meier's, with events and ends of
    follow-up exchanged (Schemper & Smith, Controlled Clinical Trials 17 (1996) 343-346).

    Args:
        time, event: (n,), of all copies together; NaN where unknown.
    """
    # Half a second to load, which a report without durations need not wait for.
    from lifelines import KaplanMeierFitter

    there = np.isfinite(time) & np.isfinite(event)
    if not there.any():
        return None
    median = float(KaplanMeierFitter().fit(time[there], 1 - event[there]).median_survival_time_)
    return median if math.isfinite(median) else None


def _describe(columns: Sequence[Column], table: Coded, *, pooled: bool = True) -> Described:
    """One table's figures, with points if they are to be pooled."""
    rows = len(next(iter(table.values())))
    found = {column.name: _read(column, table, rows) for column in columns}
    if not pooled:
        found = {name: replace(figures, points=None) for name, figures in found.items()}
    return Described(rows, found)


def _read(column: Column, table: Coded, rows: int) -> Figures:
    values = table[column.name]
    there = np.isfinite(values)
    if column.kind == "duration":  # without its event it says nothing
        there &= np.isfinite(table[str(column.event)])
    found = values[there]
    known = len(found)
    missing = 1 - known / rows if rows else None
    if not known:
        return Figures(0, missing)
    if column.levels:
        counts = np.bincount(found.astype(np.int64), minlength=len(column.levels))
        return Figures(known, missing, shares=tuple((counts / known).tolist()))
    found.sort()
    quartiles = tuple(_find_quantiles(found, np.asarray(QUARTERS)).tolist())
    points = _find_quantiles(found, _MIDDLES)
    if column.kind == "duration":
        events = float(table[str(column.event)][there].sum())
        return Figures(known, missing, quartiles=quartiles, events=events, points=points)
    mean = float(found.mean())
    sd = float(found.std(ddof=1)) if known > 1 else None
    return Figures(known, missing, mean, sd, quartiles, points=points)


def _find_quantiles(ordered: Array, at: Array) -> Array:
    """Linear between ordered values, as numpy's and pandas' are: one place for each value."""
    places = at * (len(ordered) - 1)
    below = places.astype(np.int64)
    above = np.minimum(below + 1, len(ordered) - 1)
    step = places - below
    return np.asarray(ordered[below] + step * (ordered[above] - ordered[below]))


# -- over copies, and over sites -----------------------------------------------------------------


def _average(found: Sequence[Described], share: float) -> Described:
    """The mean of each figure over copies, of those that have it; counts over their share."""
    columns = {name: [one.columns[name] for one in found] for name in found[0].columns}
    return Described(
        float(np.mean([one.rows for one in found])) / share,
        {name: _average_figures(figures, share) for name, figures in columns.items()},
    )


def _average_figures(found: Sequence[Figures], share: float) -> Figures:
    events = _mean([one.events for one in found])
    return Figures(
        float(np.mean([one.known for one in found])) / share,
        _mean([one.missing for one in found]),
        _mean([one.mean for one in found]),
        _mean([one.sd for one in found]),
        _mean_of_each([one.quartiles for one in found]),
        _mean_of_each([one.shares for one in found]),
        None if events is None else events / share,
        _mean_points([one.points for one in found]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def _mean_of_each(values: Sequence[tuple[float, ...] | None]) -> tuple[float, ...] | None:
    known = [v for v in values if v is not None]
    return tuple(np.mean(known, axis=0).tolist()) if known else None


def _mean_points(values: Sequence[Array | None]) -> Array | None:
    known = [v for v in values if v is not None]
    return np.mean(known, axis=0) if known else None


def pool_described(sites: Sequence[Described]) -> Described:
    """All sites together, as their tables one below the other.

    Args:
        sites: one at least, of the same columns.
    """
    if len(sites) == 1:
        return sites[0]
    rows = [site.rows for site in sites]
    return Described(
        math.fsum(rows),
        {name: _pool([site.columns[name] for site in sites], rows) for name in sites[0].columns},
    )


def _pool(found: Sequence[Figures], rows: Sequence[float]) -> Figures:
    known = math.fsum(one.known for one in found)
    everybody = math.fsum(rows)
    return Figures(
        known,
        1 - known / everybody if everybody else None,
        *_pool_moments(found),
        _pool_quartiles(found),
        _pool_shares(found),
        _add([one.events for one in found]),
    )


def _pool_moments(found: Sequence[Figures]) -> tuple[float | None, float | None]:
    """Mean and standard deviation of all rows, from those of sites."""
    told = [(one.known, one.mean, one.sd or 0.0) for one in found if one.mean is not None]
    known = math.fsum(n for n, _, _ in told)
    if not known:
        return None, None
    mean = math.fsum(n * m for n, m, _ in told) / known
    if not known > 1:
        return mean, None
    squares = math.fsum(max(n - 1, 0.0) * s**2 + n * (m - mean) ** 2 for n, m, s in told)
    return mean, math.sqrt(squares / (known - 1))


def _pool_quartiles(found: Sequence[Figures]) -> tuple[float, ...] | None:
    """Of sites' points, each with the weight of the rows that it stands for."""
    told = [(one.known / POINTS, one.points) for one in found if one.points is not None]
    if not told:
        return None
    points = np.concatenate([values for _, values in told])
    weights = np.repeat([weight for weight, _ in told], POINTS)
    order = np.argsort(points, kind="stable")
    points, weights = points[order], weights[order]
    middles = np.cumsum(weights) - weights / 2
    at = np.asarray(QUARTERS) * weights.sum()
    return tuple(np.interp(at, middles, points).tolist())


def _pool_shares(found: Sequence[Figures]) -> tuple[float, ...] | None:
    told = [(one.known, one.shares) for one in found if one.shares is not None]
    if not told:
        return None
    weights, shares = zip(*told, strict=True)
    return tuple(np.average(shares, axis=0, weights=weights).tolist())


def _add(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return math.fsum(known) if known else None

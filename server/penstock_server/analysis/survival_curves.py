r"""The share that is still without an event, in time: Kaplan and Meier's, of copies and of sites.

Each table's curve and Greenwood's variance are read at :data:`TIMES` times up to the
declared follow-up, on the scale of log(−log S), on which it is near normal and an interval stays
within 0 and 1 (Kalbfleisch & Prentice 1980, section 1.4):

.. math:: \hat S(t) = \prod_{t_j \le t} \Big(1 - \frac{d_j}{n_j}\Big), \qquad
          \mathrm{var} \log(-\log \hat S) = \frac{1}{\log^2 \hat S}
          \sum_{t_j \le t} \frac{d_j}{n_j (n_j - d_j)}.

From there each time is an estimand like any other: copies are combined
(:mod:`penstock.inference.combine`), refits add what the mechanism does
(:mod:`penstock.inference.refits`), and sites are pooled
(:mod:`penstock.inference.pooling`). Intervals are of one time each, not of the whole curve.

What is corrected and weighed anew at each time may rise, which no survival does: a curve and its
interval's ends are put in falling order. Over all times together that takes none of them further
from a curve that falls.

Sources: Kaplan & Meier 1958, JASA 53, 457–481; Chernozhukov, Fernández-Val & Galichon 2009,
Biometrika 96, 559–575.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.inference.pooling import Pooled, pool, poolable
from penstock.inference.refits import Measured, widen_sites
from penstock.mechanisms.released import Refitting
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import MIN_ROWS, Estimate
from penstock.questions.fits.kaplan_meier import count_events
from penstock.questions.grammar import Factor
from penstock.schema import LEVEL_KINDS, Coded, Schema

Array = NDArray[np.float64]

TIMES = 60
RISK_TIMES = 5
"""Of the table below a curve, 0 among them."""
MOST_GROUPS = 5
"""Levels of a term that have a curve each."""

MOST_COPIES, MOST_FITS = 5, 10
"""Copies that are read, by how many refits are drawn from each fit, and fits: a curve takes
milliseconds, more than a regression, and a site has many tables."""

_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class CurveAsked:
    """What a curve is of: a duration, by the levels of a column or of all rows."""

    outcome: str
    by: str | None


@dataclass(frozen=True, slots=True)
class SiteCurves:
    """One site's.

    Attributes:
        curves: of each curve, of each group, every time of :func:`list_times`.
        at_risk: how many rows of a copy are still followed at :func:`list_risk_times`.
    """

    curves: Mapping[CurveAsked, Sequence[Sequence[Measured]]]
    at_risk: Mapping[CurveAsked, Sequence[Sequence[float]]]


@dataclass(frozen=True, slots=True)
class PooledCurve:
    """A group's curve, of all sites together: NaN where a site cannot be read.

    Attributes:
        survival, low, high: at each time; sites: of each site alone.
    """

    survival: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    sites: Mapping[str, tuple[float, ...]]


def list_curves(schema: Schema, estimands: Sequence[Estimand]) -> tuple[CurveAsked, ...]:
    """Of each duration that a question is about: by the columns whose levels are compared, or, if
    there are none, of all rows."""
    asked = [e for e in estimands if e.regression.needs_event]
    by = [CurveAsked(e.outcome, name) for e in asked if (name := _compared(e, schema))]
    whole = [CurveAsked(e.outcome, None) for e in asked]
    grouped = {one.outcome for one in by}
    return tuple(dict.fromkeys([*by, *(one for one in whole if one.outcome not in grouped)]))


def _compared(estimand: Estimand, schema: Schema) -> str | None:
    """The column of few levels that the term is."""
    target = estimand.target
    if not isinstance(target, Factor):
        return None
    column = schema[target.column]
    few = column.kind in LEVEL_KINDS and len(column.levels) <= MOST_GROUPS
    return column.name if few else None


def list_times(schema: Schema, asked: CurveAsked) -> Array:
    """Evenly spaced up to the declared follow-up, 0 not among them."""
    return np.linspace(0.0, schema[asked.outcome].bounds[1], TIMES + 1)[1:]


def list_risk_times(schema: Schema, asked: CurveAsked) -> Array:
    """Evenly spaced from 0 up to the declared follow-up."""
    return np.linspace(0.0, schema[asked.outcome].bounds[1], RISK_TIMES)


def measure_curves(
    schema: Schema,
    estimands: Sequence[Estimand],
    copies: Sequence[Coded],
    refits: Sequence[Coded],
    *,
    made: Refitting,
    pick: Callable[[str, Coded], Coded] = lambda _, table: table,
) -> SiteCurves | None:
    """The curves of one site's tables; None where no question is about a duration.

    Args:
        made: how refits were made of the copies.
        pick: the rows of a table of which a duration is asked; all of them.
    """
    asked = list_curves(schema, estimands)
    if not asked:
        return None

    kept = min(MOST_COPIES * made.per_fit, len(copies))
    if made.of_copies:  # those that were made from copies that are read, in turn
        numbered = enumerate(refits, start=1)
        refits = [table for b, table in numbered if made.find_copy(b, len(copies)) <= kept]

    def measure(one: CurveAsked, level: int | None) -> list[Measured]:
        rows = [_read(schema, one, level, pick(one.outcome, table)) for table in copies[:kept]]
        made_again = refits[: MOST_FITS * made.per_fit]
        again = [_read(schema, one, level, pick(one.outcome, table)) for table in made_again]
        found = []
        for place in range(TIMES):
            fitted, refitted = [r[place] for r in rows], [r[place] for r in again]
            found.append(Measured.of(fitted, refitted, made=made))
        return found

    def count(one: CurveAsked, level: int | None) -> list[float]:
        times, tables = list_risk_times(schema, one), (pick(one.outcome, t) for t in copies[:kept])
        counts = [count_at_risk(_follow(schema, one, level, t)[0], times) for t in tables]
        return [float(mean) / made.share for mean in np.mean(counts, axis=0)]

    return SiteCurves(
        {one: [measure(one, level) for level in list_groups(schema, one)] for one in asked},
        {one: [count(one, level) for level in list_groups(schema, one)] for one in asked},
    )


def count_at_risk(time: Array, times: Array) -> Array:
    """How many are followed until each of ``times``, or longer: whoever has the event then, or
    leaves, is still among them, as in lifelines' event tables.

    Args:
        time: (n,), ≥ 0; times: (k,).
    """
    return len(time) - np.searchsorted(np.sort(time), times, side="left").astype(np.float64)


def list_groups(schema: Schema, asked: CurveAsked) -> list[int | None]:
    """Levels, by their place; of all rows, the one group None."""
    return [None] if asked.by is None else [*range(len(schema[asked.by].levels))]


def _read(schema: Schema, asked: CurveAsked, level: int | None, table: Coded) -> list[Estimate]:
    """log(−log S) of one table's group at every time."""
    time, event = _follow(schema, asked, level, table)
    times = list_times(schema, asked)
    n, events = len(time), int(event.sum())
    if n < MIN_ROWS:
        value = variance = np.full(TIMES, np.nan)
    else:
        value, variance = read_survival(time, event, times)
    return [
        Estimate(float(x), float(v), n, events, converged=True)
        if math.isfinite(x) and 0 < v < math.inf
        else Estimate(math.nan, math.nan, n, events, converged=False, problem="no curve there")
        for x, v in zip(value, variance, strict=True)
    ]


def _follow(
    schema: Schema, asked: CurveAsked, level: int | None, table: Coded
) -> tuple[Array, Array]:
    """The times and events of one table's group, of rows that have both."""
    time, event = table[asked.outcome], table[str(schema[asked.outcome].event)]
    kept = np.isfinite(time) & np.isfinite(event)
    if asked.by is not None:
        kept &= table[asked.by] == level
    return time[kept], event[kept]


def read_survival(time: Array, event: Array, times: Array) -> tuple[Array, Array]:
    """log(−log S) and its variance at each of ``times``; NaN before the first event, once nobody is
    left without one, and beyond the last row.

    Args:
        time: (n,), n ≥ 1, ≥ 0; event: (n,), 0 or 1.
    """
    moments, events, risk = count_events(time, event)
    place = np.searchsorted(moments, times, side="right")
    with np.errstate(all="ignore"):
        logs = np.append(0.0, np.cumsum(np.log1p(-events / risk)))[place]
        greenwood = np.append(0.0, np.cumsum(events / (risk * (risk - events))))[place]
        value, variance = np.log(-logs), greenwood / logs**2
    unknown = (logs == 0) | ~np.isfinite(logs) | (times > time.max())
    value[unknown] = variance[unknown] = np.nan
    return value, variance


def pool_curves(
    schema: Schema, asked: CurveAsked, sites: Mapping[str, SiteCurves]
) -> list[PooledCurve]:
    """The groups' curves of all sites together, with the mechanism's variance where refits show it.

    A site without a curve in a group is not in it. Of the others none may drop out in the middle:
    at a time at which one cannot be read, there is no pooled value.
    """
    found = []
    for group in range(len(list_groups(schema, asked))):
        measured = {
            site: {str(i): m for i, m in enumerate(curves.curves[asked][group])}
            for site, curves in sites.items()
        }
        found.append(_pool_group(measured))
    return found


def _pool_group(measured: Mapping[str, Mapping[str, Measured]]) -> PooledCurve:
    wide = {site: list(found.values()) for site, found in widen_sites(measured).items()}
    good = {
        site: [e.problem is None and poolable(e.estimate, e.variance) for e in estimates]
        for site, estimates in wide.items()
    }
    used = [site for site in wide if any(good[site])]
    pooled: list[Pooled | None] = []
    for place in range(TIMES):
        here = [wide[site][place] for site in used]
        known = bool(used) and all(good[site][place] for site in used)
        pooled.append(
            pool(
                [e.estimate for e in here],
                [e.variance for e in here],
                degrees=[e.df for e in here],
                level=_LEVEL,
            )
            if known
            else None
        )
    # Where −log S is larger, S is smaller.
    return PooledCurve(
        survival=_order(math.nan if p is None else _survival(p.estimate) for p in pooled),
        low=_order(math.nan if p is None else _survival(p.ci_high) for p in pooled),
        high=_order(math.nan if p is None else _survival(p.ci_low) for p in pooled),
        sites={
            site: _order(
                _survival(e.estimate) if ok else math.nan
                for e, ok in zip(wide[site], good[site], strict=True)
            )
            for site in used
        },
    )


def _order(survival: Iterable[float]) -> tuple[float, ...]:
    """The same values, the largest first; NaN stays where it is."""
    values = np.fromiter(survival, dtype=np.float64)
    known = ~np.isnan(values)
    values[known] = -np.sort(-values[known])
    return tuple(values.tolist())


def _survival(value: float) -> float:
    """S of log(−log S)."""
    return math.exp(-math.exp(min(value, 700.0)))

"""What a trajectory's particles and paths show, in numbers small enough for a report.

Everything here is post-processing of one site's checked upload, or of several sites'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms import Trajectory
from penstock.schema import LEVEL_KINDS, Coded, Column, Schema

Array = NDArray[np.float64]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MOST_COLUMNS = 6
MOST_PARTICLES = 500
"""Of a time point, kept for the picture."""
MOST_PATHS, MOST_TIMES = 24, 46


@dataclass(frozen=True, slots=True)
class Marginals:
    """A site's particles by time point, and some of its paths.

    Attributes:
        rows: of the site's copies, a noisy count of its own; what weighs it among sites.
        particles: of each column (T, m), coded; NaN where missing.
        paths: of each column of numbers (p, k); seen at k of the path's times.
        shares: of each column with levels (k, L): how many of all paths are on each level.
    """

    rows: int
    particles: Mapping[str, Array]
    paths: Mapping[str, Array]
    shares: Mapping[str, Array]


def drawn(mechanism: Trajectory, schema: Schema) -> tuple[Column, ...]:
    """The columns that a picture shows: the first ones but for the time; of those that vary, if
    there are any, since the others are flat lines."""
    others = [c for c in schema.columns if c.name != mechanism.time]
    return tuple([c for c in others if c.varies] or others)[:MOST_COLUMNS]


def seen(mechanism: Trajectory) -> NDArray[np.int64]:
    """Which of a path's times a picture shows: both ends, and others evenly between."""
    count = min(MOST_TIMES, mechanism.path_times)
    return np.rint(np.linspace(0, mechanism.path_times - 1, count)).astype(np.int64)


def summarise(
    mechanism: Trajectory,
    schema: Schema,
    rows: int,
    particles: Coded,
    paths: Coded,
) -> Marginals:
    """One site's marginals.

    Args:
        particles: coded columns, m·T rows ordered by time point.
        paths: coded columns, paths · path_times rows ordered by path and time.
    """
    at, points = seen(mechanism), mechanism.time_points(schema)
    columns = drawn(mechanism, schema)
    clouds = {
        c.name: particles[c.name].reshape(points, mechanism.particles)[:, :MOST_PARTICLES]
        for c in columns
    }
    lines, shares = {}, {}
    for column in columns:
        values = paths[column.name].reshape(mechanism.paths, mechanism.path_times)[:, at]
        if column.kind in LEVEL_KINDS:
            shares[column.name] = level_shares(values.T, len(column.levels))
        else:
            lines[column.name] = values[:MOST_PATHS]
    return Marginals(rows, clouds, lines, shares)


def level_shares(values: Array, levels: int) -> Array:
    """(T, L): the share of each level among the values (T, m) that are not missing; else 0."""
    known = np.maximum((~np.isnan(values)).sum(axis=1), 1)
    counts = np.stack([(values == level).sum(axis=1) for level in range(levels)], axis=1)
    return np.asarray(counts / known[:, None], dtype=np.float64)


def quantiles(sites: Sequence[Marginals], column: str) -> list[list[float] | None]:
    """Of each time point the :data:`QUANTILES` of all sites' particles, weighed by rows.

    None where every particle's value is missing.
    """
    found: list[list[float] | None] = []
    for t in range(len(sites[0].particles[column])):
        values = np.concatenate([s.particles[column][t] for s in sites])
        weights = np.concatenate(
            [np.full(s.particles[column].shape[1], float(s.rows)) for s in sites]
        )
        known = ~np.isnan(values)
        found.append(_weighted(values[known], weights[known]) if known.any() else None)
    return found


def _weighted(values: Array, weights: Array) -> list[float]:
    """Weighted quantiles: linear between the middles of the values' shares."""
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    middles = (np.cumsum(weights) - weights / 2) / weights.sum()
    return [float(x) for x in np.interp(QUANTILES, middles, values)]


def shares(sites: Sequence[Marginals], column: str, levels: int) -> Array:
    """(T, L) of all sites' particles, weighed by rows."""
    weights = np.array([s.rows for s in sites], dtype=np.float64)
    each = np.stack([level_shares(s.particles[column], levels) for s in sites])
    return np.asarray(np.tensordot(weights / weights.sum(), each, 1), dtype=np.float64)


def path_shares(sites: Sequence[Marginals], column: str) -> Array:
    """(k, L) of all sites' paths, weighed by rows."""
    weights = np.array([s.rows for s in sites], dtype=np.float64)
    each = np.stack([s.shares[column] for s in sites])
    return np.asarray(np.tensordot(weights / weights.sum(), each, 1), dtype=np.float64)


def some_paths(sites: Sequence[Marginals], column: str) -> Array:
    """At most :data:`MOST_PATHS` paths, the sites in turn."""
    turns = [
        s.paths[column][i] for i in range(MOST_PATHS) for s in sites if i < len(s.paths[column])
    ]
    return np.stack(turns[:MOST_PATHS])

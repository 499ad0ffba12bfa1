r"""Levels without an order: as often in a table as they were counted.

A column of L levels is L - 1 coordinates of a model, the points of a simplex. It is counted as what
it is, L levels and who has none, and each coordinate's margin follows (:func:`spread_levels`). A
model has these margins one by one, and what it draws lies between the points: a level is whichever
is nearest, and would come too often or too seldom. A number for each level, which is added when the
nearest is looked for, makes it as frequent as it was counted (:class:`LevelShares`): the dual of
the semi-discrete transport of drawn rows to levels of given shares. All that follows the count is
post-processing.

Source: Aurenhammer, Hoffmann & Aronov 1998, Algorithmica 20, 61-76 (least-squares assignment with
weights); James & Stein 1961 (shares that are mostly noise are drawn to the model's own).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.schema.encoding import Simplex

Array = NDArray[np.float64]

SETTLED, _STEPS = 1 << 12, 80
"""By how many rows the numbers are found, and in how many steps."""

_FIRST_STEP, _LAST_STEP = 0.1, 0.01
"""Of a number, for a level that is there e times as often as it should be; squared distances of
points are 2 L/(L - 1)."""

_LEAST = 1e-4
"""Of a share, where its logarithm is taken."""


@dataclass(frozen=True, slots=True)
class LevelShares:
    """The numbers of one column's levels.

    Args:
        column: where it is; added: (L,).
    """

    column: Simplex
    added: Array

    def settle(self, x: Array) -> None:
        """Rows (n, d), changed in place: where another level is meant than the nearest point's, the
        coordinates are that level's point."""
        near = self.column.measure_nearness(x)
        meant = (near + self.added).argmax(axis=1)
        moved = np.flatnonzero(meant != near.argmax(axis=1))
        x[moved, self.column.where] = self.column.points[meant[moved]]


def spread_levels(column: Simplex, counts: Array, edges: Array) -> Array:
    """Distribution functions (L - 1, cells + 1) of the coordinates, by the counts of levels.

    Args:
        counts: (L + 1,), noisy; the last is of rows without a level. edges: (L - 1, cells + 1).
    """
    shares = np.maximum(counts, 0.0) + _LEAST
    places = np.vstack([column.points, np.zeros(column.points.shape[1])])  # (L + 1, L - 1)
    # One coordinate at a time: of many levels all together are much memory.
    risen = [
        column.noise_below(ends[:, None] - place) @ (shares / shares.sum())
        for ends, place in zip(edges, places.T, strict=True)
    ]
    return np.array(risen)


def draw_shares(counts: Array, sd: float, own: Array) -> Array:
    """Shares as counted, drawn to a model's ``own`` by how much of what they differ by is noise.

    Args:
        counts: (L,), noisy; sd: of the noise on each; own: (L,), adding up to 1.
    """
    there = np.maximum(counts, 0.0)
    rows = max(float(there.sum()), 1.0)
    apart = there / rows - own
    noise, seen = len(own) * (sd / rows) ** 2, float(apart @ apart)
    kept = max(0.0, 1 - noise / seen) if seen > 0 else 0.0
    mixed: Array = np.maximum(own + kept * apart, 0.0)
    return np.asarray(mixed / mixed.sum())


def fit_levels(column: Simplex, drawn: Array, counts: Array, sd: float) -> LevelShares:
    """The numbers by which rows (n, d) that a model draws have levels as often as they were
    counted.

    Args:
        counts, sd: of :func:`draw_shares`.
    """
    # Where a row has no level, the nearest point says nothing.
    known = drawn if column.present is None else drawn[drawn[:, column.present] > 0]
    near, levels = column.measure_nearness(known), len(column.points)
    if not len(near):
        return LevelShares(column, np.zeros(levels))

    def share(added: Array) -> Array:
        chosen = (near + added).argmax(axis=1)
        return np.asarray(np.bincount(chosen, minlength=levels) / len(near))

    added: Array = np.zeros(levels)
    goal = draw_shares(counts, sd, share(added))
    for size in np.geomspace(_FIRST_STEP, _LAST_STEP, _STEPS):
        added = added + size * np.log((goal + _LEAST) / (share(added) + _LEAST))
    return LevelShares(column, added)

"""A person's vector of weighted scores, and the release of what goes with what in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.copula.grids import Grid, draw_cells, middle_of, share_of
from penstock.mechanisms.copula.population import Scale
from penstock.mechanisms.tables.moments import release_moments
from penstock.mechanisms.trajectory.attendance import LATENTS, AttendanceScores, Stops
from penstock.mechanisms.trajectory.coordinates import Places
from penstock.mechanisms.trajectory.endings import Endings
from penstock.mechanisms.trajectory.followed import Followed
from penstock.mechanisms.trajectory.headcounts import some_value
from penstock.mechanisms.trajectory.repeats import SCORES, RepeatsPlan
from penstock.mechanisms.trajectory.visit_shares import Shares
from penstock.privacy.noise.sources import NoiseSource

if TYPE_CHECKING:
    from penstock.privacy.measurements import WholeSum

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_FAR, _REACH, _NARROWEST = 0.999, (2.5, 3.5), 1e-3
"""A number's score reaches as far as this share of the rows, within bounds, in spreads; and the
least spread, of the whole scale."""


@dataclass(frozen=True, slots=True)
class Scores:
    """A person's vector of weighted scores, by scales that were made of the first margins."""

    places: Places
    attendance: AttendanceScores
    ending: Endings | None
    fixed: list[Scale]
    moving: list[list[Scale]]
    weights: Array

    @classmethod
    def of(
        cls,
        places: Places,
        shares: Shares,
        attendance: AttendanceScores,
        ending: Endings | None,
        plan: RepeatsPlan,
    ) -> Scores:
        fixed = [_scale(g, s) for g, s in zip(places.constants, shares.fixed, strict=True)]
        # Of numbers one scale for all time points, so that they have a place in time there.
        common = [_scale(g, s) for g, s in zip(places.varying, shares.pooled, strict=True)]
        moving = [
            [
                common[j] if g.numeric else _scale(g, s)
                for j, (g, s) in enumerate(zip(places.varying, each, strict=True))
            ]
            for each in shares.moving
        ]
        ahead = [np.full(LATENTS, attendance.reach), *([] if ending is None else [ending.reach])]
        parts = [*ahead, *(s.reach for s in fixed)]
        reach = np.concatenate([*parts, *(s.reach for each in moving for s in each)])
        # A score that reaches far, of a rare level, would be a whole person's length.
        most = places.start + plan.visits * places.width
        weights = 1 / np.maximum(reach / _REACH[1], 1.0)
        if places.once:  # that somebody is seen at a time is all there is to attend
            most -= LATENTS
            weights[:LATENTS] = 0.0
        weights = np.sqrt(SCORES / most * weights)
        return cls(places, attendance, ending, fixed, moving, weights)

    def __call__(self, followed: Followed) -> Array:
        """(n, D) of rows."""
        read = self.places.follow_up
        parts = self._ahead(followed.there, read.read(followed.constants) if read else None)
        for j, grid, _ in self.places.fixed():
            parts.append(self.fixed[j].score(grid, followed.constants[grid.column.name]))
        for t in range(self.places.count):
            there = followed.there[:, t]
            for (j, grid, _), (_, values) in zip(self.places.at(t), followed.at(t), strict=True):
                known = np.where(there, values, some_value(grid))
                parts.append(self.moving[t][j].score(grid, known) * there[:, None])
        return np.asarray(np.concatenate(parts, axis=1) * self.weights)

    def _ahead(self, there: Bools, stops: Stops | None) -> list[Array]:
        """Of how persons attend, and how follow-up ends."""
        parts = [self.attendance(there, stops)]
        if self.ending is not None and stops is not None:
            parts.append(self.ending.score(stops))
        return parts

    def imagine(self, shares: Shares, joined: Array, ranked: Array, there: Bools) -> Array:
        """(N, D) of imagined persons, as if they had been rows, without the weights."""
        ahead = joined[:, LATENTS : self.places.ahead]
        parts = self._ahead(there, self.ending.draw(ahead) if self.ending else None)
        for j, grid, at in self.places.fixed():
            parts.append(
                self.fixed[j].place(grid, draw_cells(grid, shares.fixed[j], joined[:, at]))
            )
        for t in range(self.places.count):
            for j, grid, at in self.places.at(t):
                cells = draw_cells(grid, shares.moving[t][j], ranked[:, at])
                parts.append(self.moving[t][j].place(grid, cells) * there[:, t, None])
        return np.concatenate(parts, axis=1)


def release_together(
    scores: Array, seen: Bools, radius: float, measurement: WholeSum, noise: NoiseSource
) -> Array:
    """Σ y yᵀ over persons, y = (scores, 1), with noise; (D + 1, D + 1).

    A person is one vector, clipped as a whole: R² in the Frobenius norm, zero-out of one person,
    however many rows it is made of.

    Args:
        scores: (n, D); seen: (n,).
    """
    return release_moments(scores[:, None, :], seen[:, None], radius, measurement, noise)


def _scale(grid: Grid, shares: Array) -> Scale:
    """How far a column's scores reach; a number's are itself, on the column's scale, in spreads
    from its mean: normal scores would know nothing of how far apart values are."""
    if not grid.numeric:
        return Scale.of(grid, shares)
    values = middle_of(grid)
    there = ~np.isnan(values)
    x, p = share_of(grid.column, values[there]), shares[there] / shares[there].sum()
    mean = float(p @ x)
    spread = math.sqrt(float(p @ (x - mean) ** 2) + _NARROWEST**2)
    away = (x - mean) / spread
    order = np.argsort(np.abs(away))
    far = int(np.searchsorted(np.cumsum(p[order]), _FAR).clip(max=len(x) - 1))
    reach = min(max(float(np.abs(away[order[far]])), _REACH[0]), _REACH[1])
    points = np.zeros(grid.count)
    points[there] = np.clip(away, -reach, reach)
    return Scale(np.array([mean]), np.array([spread]), np.array([reach]), points)

"""Which correlations, and which margins, give imagined persons the released moments."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from penstock.mechanisms.copula.column_shares import read_shares
from penstock.mechanisms.copula.correlations import make_definite, take_root
from penstock.mechanisms.copula.densities import Known, Reference
from penstock.mechanisms.copula.population import quasi_random, recall
from penstock.mechanisms.tables.moments import clip_rows
from penstock.mechanisms.trajectory.attendance import Attendance
from penstock.mechanisms.trajectory.coordinates import Places
from penstock.mechanisms.trajectory.headcounts import Counted
from penstock.mechanisms.trajectory.pairs import Pairs
from penstock.mechanisms.trajectory.repeats import RepeatsPlan
from penstock.mechanisms.trajectory.visit_scores import Scores
from penstock.mechanisms.trajectory.visit_shares import (
    Shares,
    even_spreads,
    move_shares,
    read_pooled,
)

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_POWER = 11
"""2^11 imagined persons are looked at."""

_ROUNDS, _STEP, _MOST = 8, 0.8, 0.985
"""Of matching; and how far a correlation goes."""

_MISFIT, _SAMPLED = 0.01, 1.0
"""How far moments may be off; and the error of a correlation of rows over 1/√rows."""

_STIFFNESS, _STIFFNESS_ONCE = 60.0, 600.0
"""How little a time point's density bends away from that of all, moved; and where everybody has one
row, so that there are few at each time."""

_FEWEST = 0.02
"""Share of persons below which a mean of those who are there is a guess."""


@dataclass(frozen=True, slots=True)
class Imagined:
    """Quasi-random persons, by whom a match goes; public: latents (N, D), uniforms (N, T)."""

    latents: Array
    uniforms: Array

    @classmethod
    def of(cls, places: Places) -> Imagined:
        points = quasi_random(places.size + places.count, _POWER)
        return cls(points[:, : places.size], ndtr(points[:, places.size :]))


@dataclass(frozen=True, slots=True)
class Match:
    """Which correlations give imagined persons the released moments.

    Attributes:
        told: (D + 1, D + 1) mean moments; error: sd of the noise beside their diagonal.
        pairs: which are alike.
    """

    plan: RepeatsPlan
    places: Places
    scores: Scores
    attendance: Attendance
    imagined: Imagined
    told: Array
    error: float
    persons: float
    pairs: Pairs

    @classmethod
    def of(
        cls,
        plan: RepeatsPlan,
        places: Places,
        scores: Scores,
        attendance: Attendance,
        imagined: Imagined,
        counted: Counted,
        released: Array,
    ) -> Match:
        error = plan.moments.sd / math.sqrt(2) / counted.persons
        told = released / counted.persons
        given = (plan, places, scores, attendance, imagined, told, error, counted.persons)
        return cls(*given, Pairs.of(places))

    def rank(self, root: Array) -> tuple[Array, Array, Bools]:
        """Mean and spread (D,) of each number among those who are there, and who is."""
        joined = self.imagined.latents @ root
        there = self.attendance.draw(joined[:, : self.places.ahead], self.imagined.uniforms)
        weight = self.places.attended(there)
        total = weight.sum(axis=0)
        safe = np.maximum(total, 1.0)
        middle = (weight * joined).sum(axis=0) / safe
        spread = np.sqrt((weight * (joined - middle) ** 2).sum(axis=0) / safe)
        enough = total > _FEWEST * len(joined)
        enough[: self.places.start] = False  # of everybody
        return np.where(enough, middle, 0.0), np.where(enough, spread, 1.0), there

    def look(self, shares: Shares, root: Array) -> tuple[Array, Array, Array, Bools]:
        """Mean moments of imagined persons as they are released; scores, latents, attendance."""
        joined = self.imagined.latents @ root
        middle, spread, there = self.rank(root)
        ranked = (joined - middle) / spread
        plain = self.scores.imagine(shares, joined, ranked, there)
        seen = np.column_stack([plain * self.scores.weights, np.ones(len(plain))])
        seen = clip_rows(seen, self.plan.radius)
        return np.asarray(seen.T @ seen / len(seen)), plain, joined, there

    def correlate(self, shares: Shares, start: Array) -> Array:
        """(D, D)."""
        correlation, weights = start.copy(), self.scores.weights
        for _ in range(_ROUNDS):
            found, plain, joined, there = self.look(shares, take_root(correlation))
            attended = self.places.attended(there)
            both = attended.T @ attended / len(there)
            share = np.maximum(np.diag(both), 1e-6)
            # By how much a score goes with its own number.
            follows = np.abs((plain * joined).mean(axis=0)) / share
            follows = np.maximum(follows, 0.02)
            size = both * np.outer(weights * follows, weights * follows)
            gap = _centred(self.told, both, share) - _centred(found, both, share)
            error = (self.error / np.maximum(size, 1e-12)) ** 2 + _MISFIT**2
            error += _SAMPLED / (self.persons * np.maximum(both, 1e-6))
            precision = np.where(both > 1e-3, 1 / error, 0.0)
            raw = correlation + np.where(precision > 0, gap / np.maximum(size, 1e-12), 0.0)
            correlation = correlation + _STEP * (self.pairs.pool(raw, precision) - correlation)
            correlation = np.clip(correlation, -_MOST, _MOST)
            correlation[self.pairs.apart] = 0.0
            np.fill_diagonal(correlation, 1.0)
            correlation = _part_ahead(make_definite(correlation), self.places.ahead)
        return correlation

    def recall(self, shares: Shares, counted: Counted, correlation: Array) -> Shares:
        """Margins once more, with the means and squares that moments tell of them."""
        found, _, _, there = self.look(shares, take_root(correlation))
        gap, share = self.told - found, np.maximum(there.mean(axis=0), _FEWEST)
        fixed, moving = list(shares.fixed), [list(each) for each in shares.moving]
        pooled = list(shares.pooled)
        for j, grid, at in self.places.fixed():
            if grid.numeric:
                known = self._known(
                    self.scores.fixed[j].points, shares.fixed[j], int(at[0]), gap, 1.0
                )
                given = (counted.fixed[j], counted.sd, counted.persons)
                fixed[j] = read_shares(grid, *given, [known])
        for j, grid in enumerate(self.places.varying):
            if not grid.numeric:
                continue
            points = self.scores.moving[0][j].points
            known_at = []
            for t in range(self.places.count):
                place = self.places.start + t * self.places.width + self.places.offset(j)
                known_at.append(
                    self._known(points, shares.moving[t][j], place, gap, float(share[t]))
                )
            pooled[j] = read_pooled(grid, counted, j, known_at)
            for t, known in enumerate(even_spreads(known_at)):
                moved = move_shares(grid, pooled[j], known)
                counts, rows = counted.moving[t][j], float(counted.present[t])
                stiffness = _STIFFNESS_ONCE if self.places.once else _STIFFNESS
                reference = Reference(moved, (stiffness,))
                moving[t][j] = read_shares(grid, counts, counted.sd, rows, [known], reference)
        return Shares(fixed, moving, pooled)

    def _known(self, points: Array, shares: Array, at: int, gap: Array, share: float) -> Known:
        mine, weight = gap[at, [-1, at]] / share, float(self.scores.weights[at])
        return recall(points, shares, weight, mine, self.error / share, self.persons * share)


def _centred(moments: Array, both: Array, share: Array) -> Array:
    """Moments (D, D) less what means of those who are there add to them."""
    mean = moments[:-1, -1] / share
    return np.asarray(moments[:-1, :-1] - both * np.outer(mean, mean))


def _part_ahead(correlation: Array, ahead: int) -> Array:
    """The same with the first numbers uncorrelated: how persons attend, and how follow-up ends, is
    drawn from what was counted as if they were; what they go with is turned with them."""
    values, vectors = np.linalg.eigh(correlation[:ahead, :ahead])
    turn = (vectors / np.sqrt(np.maximum(values, 1e-6))) @ vectors.T
    found = correlation.copy()
    found[:ahead] = turn @ found[:ahead]
    found[:, :ahead] = found[:, :ahead] @ turn
    found[:ahead, :ahead] = np.eye(ahead)
    return found

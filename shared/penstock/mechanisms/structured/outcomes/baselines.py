r"""A duration whose strata have baselines of their own.

The hazard of a person of stratum s in interval k is :math:`h_k e^{d_{sb} + z·β}`, b the block of
the interval: :mod:`~penstock.mechanisms.structured.outcomes.hazards` with a deviation more. h
follows from the counts of all, so that deviations move events between strata and none in time.
They are learned in the rounds that ask for all of θ, from the residuals of each block and stratum;
a person's are those of one stratum, so that the length of a score, and with it the noise on
everything else, hardly depends on how many strata there are. Deviations are shrunken: a thin
stratum's baseline is in proportion to the common one, by the coefficient of its column.

The *declared* regression is stratified (Kalbfleisch & Prentice 2002, 4.4): hazards, and means of
those at risk, of each stratum by itself,

.. math:: u = \sum_k (z - \bar z_{sk})(dN_k - Y_k g_{sk} e^{z·b}),

so that columns of strata say nothing. The first references, which have to tell how strata differ,
have the world's hazards of each stratum, but means of all: residuals are about 0 where these are
right, so that little comes into a baseline of how many persons the population has in its stratum.
Censoring is not stratified beyond its coefficients.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.outcomes.courses import Courses, Divided, Some
from penstock.mechanisms.structured.outcomes.hazards import (
    BLOCKS,
    INTERVALS,
    Reference,
    Survival,
    Times,
)
from penstock.mechanisms.structured.outcomes.protocol import World
from penstock.mechanisms.structured.strata import Strata
from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_MOST_DEVIATIONS = 80
"""Of a duration: each is an entry of every score."""

_LEAST_PERSONS = 15.0
"""Persons for each deviation and unit of a round's noise, below which it would be noise. Frozen on
simulated cohorts and two real tables."""

_IMPORTANCE = 0.7
"""Of each, of which a person has those of one stratum."""

_PRIOR, _ALIKE = 0.5, 0.8
"""Sd of a deviation, and the correlation of those of blocks that are neighbours."""

_MOST = 2.0


def count_deviations(strata: int, persons: float = math.inf, noise: float = 0.0) -> int:
    """How many deviations a stratum has, by public numbers: one for each block, or none.

    Args:
        strata: how many there are; noise: sd of a round's sum of scores.
    """
    few = strata * BLOCKS <= _MOST_DEVIATIONS
    known = persons >= _LEAST_PERSONS * strata * BLOCKS * noise
    return BLOCKS if strata > 1 and few and known else 0


class Stratified(Survival):
    """The model of one duration whose strata differ.

    Args:
        strata: of the design; deviations: of each stratum, as :func:`count_deviations` says.
    """

    def __init__(self, times: Times, world: World, strata: Strata, deviations: int) -> None:
        super().__init__(times, world)
        self._base, self._deviations = self.size, deviations
        self._strata, self._count = strata, strata.count
        self.own += self._count * deviations
        self._mine = strata.of(world.design)
        places = [np.flatnonzero(self._mine == number) for number in range(self._count + 1)]
        self._groups = [(number, some) for number, some in enumerate(places) if len(some)]

    def prior(self) -> Array:
        found = np.zeros((self.size, self.size))
        found[: self._base, : self._base] = super().prior()
        apart = np.abs(np.subtract.outer(*[np.arange(self._deviations)] * 2))
        precision = np.linalg.inv(_PRIOR**2 * _ALIKE**apart)
        found[self._base :, self._base :] = np.kron(np.eye(self._count), precision)
        return found

    def importance(self, again: bool) -> Array:
        own = np.full(self._count * self._deviations, _IMPORTANCE)
        return np.append(super().importance(again), own)

    # -- the world ---------------------------------------------------------------------------------

    def _deviate(self, theta: Array) -> Array:
        """(strata + 1, k) how much larger hazards are; the last of whose stratum is missing."""
        own = theta[self._base :].reshape(self._count, self._deviations)
        if not self._deviations:
            return np.ones((self._count + 1, INTERVALS))
        log = np.clip(own, -_MOST, _MOST) @ self._blocks.T
        return np.asarray(np.exp(np.append(log, np.zeros((1, INTERVALS)), axis=0)))

    def _weigh(self, theta: Array) -> Array:
        events, losses = super()._weigh(theta)
        own = self._deviate(theta)[self._mine].T
        return np.stack([events * own, np.broadcast_to(losses, own.shape)])

    def slopes(self, theta: Array, found: Courses | Divided) -> Array:
        plain = super().slopes(theta, found)
        if not self._deviations or not isinstance(found, Divided):
            return plain
        world = self._make_world(theta)
        by, _ = self._list_changes(world)
        each, there = found.change_each(by), world.chances.event
        total, at_risk = sum(each), np.maximum(there.sum(axis=1), 1e-12)
        slopes = np.zeros((plain.shape[0], self._count + 1, self._deviations))
        for (number, some), mine in zip(self._groups, each, strict=True):
            # The common baseline follows, so that the counts stay.
            share = there[:, some].sum(axis=1) / at_risk
            slopes[:, number] = (mine - total * share[:, None]).T @ self._blocks
        own = slopes[:, : self._count].reshape(len(plain), -1)
        return np.column_stack([plain, own / len(self._mine)])

    def _happen(self, theta: Array, design: Array, needed: Array, hazard: Array) -> Array:
        mine, own = self._strata.of(design), self._deviate(theta)
        found = np.empty(len(design))
        for number, deviation in enumerate(own):
            some = mine == number
            found[some] = self._reach(needed[some], hazard * deviation)
        return found

    # -- the declared regression -------------------------------------------------------------------

    def _newton(
        self, z: Array, at: Array, exposed: Array, happened: Array, narrow: Bools | None
    ) -> tuple[Array, Array]:
        if narrow is None:
            return super()._newton(z, at, exposed, happened, narrow)
        score, information = np.zeros(len(at)), np.zeros((len(at), len(at)))
        for _, some in self._groups:
            parts = exposed[:, some], happened[:, some]
            found = super()._newton(z[some], at, *parts, narrow)
            score, information = score + found[0], information + found[1]
        return score, information

    def refer(
        self, theta: Array, at: Array | None = None, narrow: Bools | None = None
    ) -> Reference:
        common = super().refer(theta, at, narrow)
        each = [common] * (self._count + 1)
        happened, exposed = self._expect(theta)
        expected = self._rise(common.coefficients) * exposed
        # One person of everybody's is in each stratum, so that there is somebody.
        few, at_risk = 1 / len(self._mine), np.maximum(expected.sum(axis=1), 1e-12)
        events, sums = happened.sum(axis=1), at_risk[:, None] * common.means
        for number, some in self._groups:
            here, means = expected[:, some], common.means
            total = here.sum(axis=1) + few * at_risk
            hazard = (happened[:, some].sum(axis=1) + few * events) / total
            if narrow is not None:
                means = (here @ self._design[some] + few * sums) / total[:, None]
            each[number] = replace(common, hazard=hazard, means=means)
        return replace(common, each=tuple(each))

    def _look_up(self, reference: Reference, design: Array) -> tuple[Array, Array, Some]:
        mine = self._strata.of(design)
        hazards = np.stack([one.hazard for one in reference.each], axis=1)
        return hazards[:, mine], np.stack([one.means for one in reference.each]), mine

    def _score(self, reference: Reference, design: Array, coded: Coded) -> Array:
        found = super()._score(reference, design, coded)
        if not self._deviations:
            return found
        blocks = found[:, self.coefficients : self.coefficients + BLOCKS]
        among = self._strata.of(design)[:, None] == np.arange(self._count)
        own = (among[:, :, None] * blocks[:, None]).reshape(len(found), -1)
        return np.column_stack([found[:, : self._base], own, found[:, self._base :]])

    def imagine(self, reference: Reference, turn: Array, bounded: bool = True) -> Divided:
        plain, own, curved = np.split(turn, [self._base, self.size])
        blocks = slice(self.coefficients, self.coefficients + BLOCKS)
        parts = []
        for number, some in self._groups:
            mine = plain.copy()
            if self._deviations and number < self._count:
                mine[blocks] += own[number * BLOCKS : (number + 1) * BLOCKS]
            asked = np.concatenate([mine, curved])
            part = self._imagine_some(reference.each[number], asked, bounded, some)
            parts.append((some, part))
        return Divided(parts)

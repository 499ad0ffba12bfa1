r"""Levels in order that a proportional odds regression is asked of.

They are drawn by what was counted of them, tilted by their places (:mod:`.tilting`): an adjacent
category logit, whose cumulative logits are nearly as far apart for all. *Scores* are those of the
declared regression, :math:`P(y \le c) = F(τ_c - η)` with η = z·b, of which a row of level c has

.. math:: r_c(η) = F(τ_c - η) + F(τ_{c-1} - η) - 1,\qquad u = (z - \bar z)\, r_c,\qquad r_c

(:mod:`penstock.questions.fits.cutpoints`), each within -1 and 1; of two levels it is y − μ. The
second corrects the counted shares where counts are mostly noise. z̄ is the mean by the slope of r,
so that u is blind to a shift of all cutpoints, to first order; how far apart they are, counts say.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from penstock.mechanisms.structured.outcomes.links import PLACED, count_own
from penstock.mechanisms.structured.outcomes.protocol import LEAST_INFORMATION, World
from penstock.mechanisms.structured.outcomes.support import Support
from penstock.mechanisms.structured.outcomes.tilting import Tilting, Values
from penstock.questions.fits.cutpoints import Cumulative, place_cuts
from penstock.questions.fits.newton import maximise
from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Places = NDArray[np.intp]

_PRIOR = 1.0
"""Sd of coefficients, of standardised columns; of two levels that of a logarithm of odds."""

_SPREADS, _STEP = 2.0, 1.0
"""A level's place is taken on so many spreads of what was counted, at least a step: two levels are
then 1 apart, and a coefficient is about the logarithm of an odds ratio, however many they are."""

_THIN = 1e-4
"""Share of a world below which a level counts as the one below it: no cutpoint is told apart."""

_RIDGE = 1e-6
_LEAST_CHANCE = 1e-12


@dataclass(frozen=True, slots=True)
class Cuts:
    """The declared regression: coefficients (width,), zeros for bends; a person's information
    (linear, linear); z̄ (width,); and of each level the cutpoints above and below it, (levels,),
    infinite at the ends."""

    coefficients: Array
    information: Array
    means: Array
    above: Array
    below: Array

    def rise(self, predicted: Array) -> tuple[Array, Array]:
        """(N, levels) the chance to lie at most where a level ends, and where it begins."""
        return expit(self.above - predicted[:, None]), expit(self.below - predicted[:, None])

    def bend(self, predicted: Array) -> Array:
        """(N,) by how much the residual falls on average with the predictor."""
        up, down = self.rise(predicted)
        # Levels that count as one have the chance of all in each.
        alone = np.append(True, self.above[1:] > self.above[:-1])
        slope = (up - down) * (up * (1 - up) + down * (1 - down))
        return np.asarray(slope[:, alone].sum(axis=1))


class Proportional(Tilting[Cuts]):
    """The model of one column.

    Args:
        support: its levels, as counted; world: the persons.
    """

    def __init__(self, support: Support, world: World) -> None:
        super().__init__(support, world, count_own(*PLACED), _PRIOR, _SPREADS, _STEP)

    @property
    def _unsure(self) -> float:
        """The mean's noise is that of all levels' counts."""
        return float(np.linalg.norm(self._values)) * super()._unsure

    def inform(self, theta: Array) -> float:
        """By each person's own cumulative odds."""
        chances = self.chances(theta)
        risen = np.clip(np.cumsum(chances, axis=1)[:, :-1], 0.0, 1.0)
        both = chances[:, :-1] + chances[:, 1:]
        return float((risen * (1 - risen) * both).sum(axis=1).mean())

    def _move(self, theta: Array, tilt: Array, design: Array, added: Array) -> Array:
        """Everybody's cumulative odds fall by the same."""
        risen = np.cumsum(self._chances_of(theta, tilt, design), axis=1)[:, :-1]
        inside = np.clip(risen, _LEAST_CHANCE, 1 - _LEAST_CHANCE)
        moved = expit(logit(inside) - added[:, None])
        ends = np.zeros((len(design), 1)), np.ones((len(design), 1))
        return np.diff(np.column_stack([ends[0], moved, ends[1]]), axis=1)

    # -- the declared regression -------------------------------------------------------------------

    def refer(self, theta: Array, at: Array | None = None, narrow: Bools | None = None) -> Cuts:
        chances, there = self.chances(theta), self.world.complete
        taken, n = self.world.taken(narrow), len(there)
        whole = float(there.sum())
        # Of nobody there are levels all the same.
        weights = (there if whole else np.ones(n))[:, None] * chances / (whole or n)
        weights = np.maximum(weights, _LEAST_CHANCE)
        group = _join_thin(weights.sum(axis=0))
        joined = np.stack([weights[:, group == g].sum(axis=1) for g in range(group[-1] + 1)])
        line = np.zeros(self.linear)
        # The first reference is that of no effect.
        moved = taken > 0
        if at is not None or not theta[: self.coefficients].any():
            moved = np.zeros(self.linear, dtype=np.bool_)
        if at is not None:
            line = at * taken
        z = self._design[:, : self.linear]
        fixed = z[:, ~moved] @ line[~moved]
        level = np.repeat(np.arange(len(joined)), n)
        rows = np.tile(z[:, moved], (len(joined), 1))
        shift = np.tile(fixed, len(joined))
        likelihood = Cumulative(level, rows, joined.ravel(), _RIDGE, shift)
        found = maximise(likelihood, likelihood.start()).coefficients
        cuts = found[: len(joined) - 1]
        line[moved] = found[len(joined) - 1 :]
        above, below, _ = place_cuts(cuts)
        predicted = z @ line
        made = Cuts(
            np.append(line, np.zeros(self.coefficients - self.linear)),
            np.zeros((self.linear, self.linear)),
            np.zeros(self.coefficients),
            above[group],
            below[group],
        )
        up, down = made.rise(predicted)
        slope = there * (chances * (up * (1 - up) + down * (1 - down))).sum(axis=1)
        means = slope @ self._design / max(float(slope.sum()), 1e-12)
        apart = z * taken - means[: self.linear]
        information = (apart * slope[:, None]).T @ apart / n
        information += np.diag(1 - taken + LEAST_INFORMATION)
        return Cuts(made.coefficients, information, means, made.above, made.below)

    def scores(self, reference: Cuts, design: Array, coded: Coded) -> Array:
        level = coded[self._support.grid.column.name]
        known = ~np.isnan(level)
        place = np.clip(np.where(known, level, 0.0), 0, len(reference.above) - 1).astype(np.intp)
        predicted = design @ reference.coefficients
        up, down = (
            expit(reference.above[place] - predicted),
            expit(reference.below[place] - predicted),
        )
        residual = np.where(known, up + down - 1, 0.0)
        scores = (design - reference.means) * residual[:, None]
        curvature = known[:, None] * self._curve(reference, design, predicted)
        return np.column_stack([scores, residual, curvature])

    def imagine(self, reference: Cuts, turn: Array, bounded: bool = True) -> Values:
        """A row's part has no bound of its own."""
        scores, own, curved = np.split(turn, [self.coefficients, self.size])
        design, there = self._design, self.world.complete
        predicted = design @ reference.coefficients
        up, down = reference.rise(predicted)
        residual = up + down - 1
        return Values(
            residual,
            np.zeros_like(residual),
            (design - reference.means) @ scores + own[0],
            np.zeros(turn.shape[1]),
            self._curve(reference, design, predicted) @ curved,
            np.broadcast_to(there[:, None], residual.shape),
        )

    def _curve(self, reference: Cuts, design: Array, predicted: Array) -> Array:
        """(N, pairs) what each adds to the information."""
        if not self.pairs:
            return np.zeros((len(design), 0))
        apart, slope = design - reference.means, reference.bend(predicted)
        return np.stack([slope * apart[:, i] * apart[:, j] for i, j in self.pairs], axis=1)


def _join_thin(shares: Array) -> Places:
    """(levels,) a number for each, from 0 and rising, the same for a thin one as for the one below
    it; a thin first one, as for the one above. Two there are always."""
    apart = shares >= min(_THIN, float(np.sort(shares)[-2]))
    return np.asarray(np.maximum(np.cumsum(apart) - 1, 0), dtype=np.intp)

r"""A number, a count or a 0/1 column that a generalised linear model is asked of.

It is drawn by what was counted of it, tilted (:mod:`.tilting`). *Scores* are those of the declared
regression, a mean μ that follows from z·b by its link:

.. math:: u = (z - \bar z)(y - μ)/s,\qquad (y - μ)/s,\qquad |y - μ|/s - m

the last for numbers alone, and of a negative binomial regression the first over 1 + α μ, α as the
world has it: the second and the third correct the counted shares where counts are
mostly noise. s is the counted spread, and m the world's mean; z̄ is the mean by the slope of μ, so
that u is blind to the level, to first order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.outcomes.counted import MOST_STEP, tilt_chances
from penstock.mechanisms.structured.outcomes.dispersion import find_dispersion
from penstock.mechanisms.structured.outcomes.links import Link
from penstock.mechanisms.structured.outcomes.protocol import LEAST_INFORMATION, World
from penstock.mechanisms.structured.outcomes.support import Support
from penstock.mechanisms.structured.outcomes.tilting import Tilting, Values
from penstock.schema import Coded

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_PRIOR, _STANDARDISED_PRIOR = 1.0, 3.0
"""Sds of coefficients, of standardised columns. That of a number is over its residual's variance,
and so the larger, the more is explained."""

_NEWTON_ROUNDS, _SHIFTED, _SETTLED = 25, 12, 1e-6
_DISPERSED_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Line:
    """The declared regression: a level and coefficients (width,), zeros for bends; a person's
    information (linear, linear); z̄ (width,); the mean absolute residual; and α of a variance
    μ + α μ², which is 0 but of a regression that estimates it."""

    level: float
    coefficients: Array
    information: Array
    means: Array
    wide: float
    dispersion: float


class Tilted(Tilting[Line]):
    """The model of one column.

    Args:
        support: the column's counted distribution; link: of the declared regression.
        world: the persons.
    """

    def __init__(self, support: Support, link: Link, world: World) -> None:
        wide = _STANDARDISED_PRIOR if link.standardised else _PRIOR
        super().__init__(support, world, link.own, wide, 1.0 if link.standardised else None)
        self._link = link

    @property
    def unit(self) -> float:
        return self._spread * self._unit if self._link.standardised else 1.0

    def inform(self, theta: Array) -> float:
        chances = self.chances(theta)
        mean = chances @ self._values
        variance = np.maximum(chances @ self._values**2 - mean**2, 1e-9)
        slope = self._link.slope(self._link.predictor(mean))
        return float((slope**2 / variance).mean()) * (self.unit / self._unit) ** 2

    def _move(self, theta: Array, tilt: Array, design: Array, added: Array) -> Array:
        at = self._shift(tilt, self._predict(theta, design), added)
        return tilt_chances(tilt + at[:, None] * self._values)

    def _shift(self, tilt: Array, predicted: Array, added: Array) -> Array:
        """By how much more each person's chances are tilted, so that the mean moves as asked."""
        goal, at = np.zeros(0), predicted
        ends = float(self._values[0]), float(self._values[-1])
        for turn in range(_SHIFTED):
            chances = tilt_chances(tilt + at[:, None] * self._values)
            mean = chances @ self._values
            if turn == 0:
                moved = self._link.predictor(mean) + added / self._unit
                room = 1e-3 * (ends[1] - ends[0])
                goal = np.clip(self._link.mean(moved), ends[0] + room, ends[1] - room)
            slope = np.maximum(chances @ self._values**2 - mean**2, 1e-9)
            most = MOST_STEP / np.sqrt(slope)
            at = at + np.clip((goal - mean) / slope, -most, most)
        return at

    # -- the declared regression -------------------------------------------------------------------

    def refer(self, theta: Array, at: Array | None = None, narrow: Bools | None = None) -> Line:
        chances, link, there = self.chances(theta), self._link, self.world.complete
        y, n = chances @ self._values, len(there)
        taken = self.world.taken(narrow)
        z = np.column_stack([self._design[:, : self.linear] * taken, np.ones(n)])
        held = self.world.held(narrow)
        offset = self._design[:, : self.linear] @ held
        line = np.zeros(z.shape[1])
        line[-1] = link.predictor(np.array([there @ y / max(float(there.sum()), 1.0)]))[0]
        moved = np.ones(len(line), dtype=np.bool_)
        # The first reference is that of no effect.
        if at is not None or not theta[: self.coefficients].any():
            moved[:-1] = False
        if at is not None:
            line[:-1] = at * taken
        dispersion = 0.0
        for _ in range(_DISPERSED_ROUNDS if link.dispersed else 1):
            for _ in range(_NEWTON_ROUNDS):
                predicted = z @ line + offset
                mean = link.mean(predicted)
                weight = there / (1 + dispersion * mean)
                information = (z * (weight * link.slope(predicted))[:, None]).T @ z
                # Of nobody there is none.
                information += max(1e-6 * float(np.trace(information)), 1e-12) * np.eye(len(line))
                score = z.T @ (weight * (y - mean))
                step = np.linalg.solve(information[np.ix_(moved, moved)], score[moved])
                line[moved] += np.clip(step, -1.0, 1.0)
                if np.abs(step).max() < _SETTLED:
                    break
            if link.dispersed:
                mean = link.mean(z @ line + offset)
                dispersion = find_dispersion(self._values, chances, mean, there)
        predicted = z @ line + offset
        wider = 1 + dispersion * link.mean(predicted)
        # By how much the score falls, of a mean that need not be the regression's.
        slope = there * link.slope(predicted) / wider * ((1 + dispersion * y) / wider)
        means = slope @ self._design / max(float(slope.sum()), 1e-12)
        apart = z[:, :-1] - means[: self.linear]
        off = np.abs(self._values - link.mean(predicted)[:, None]) / self._spread
        bends = np.zeros(self.coefficients - self.linear)
        return Line(
            float(line[-1]),
            np.append(line[:-1] + held, bends),
            (apart * slope[:, None]).T @ apart / (n * self._spread)
            + np.diag(1 - taken + LEAST_INFORMATION),
            means,
            float(there @ (chances * off).sum(axis=1) / max(float(there.sum()), 1.0)),
            dispersion,
        )

    def scores(self, reference: Line, design: Array, coded: Coded) -> Array:
        y = (coded[self._support.grid.column.name] - self._middle) / self._unit
        known = ~np.isnan(y)
        predicted = reference.level + design @ reference.coefficients
        residual = np.where(known, y - self._link.mean(predicted), 0.0) / self._spread
        own = np.column_stack([residual, known * (np.abs(residual) - reference.wide)])
        weighed = residual * self._weigh(reference, predicted)
        scores = (design - reference.means) * weighed[:, None]
        curvature = known[:, None] * self._curve(reference, design, predicted)
        return np.column_stack([scores, own[:, : self.own], curvature])

    def imagine(self, reference: Line, turn: Array, bounded: bool = True) -> Values:
        """A row's part has no bound of its own."""
        scores, own, curved = np.split(turn, [self.coefficients, self.size])
        design, there = self._design, self.world.complete
        predicted = reference.level + design @ reference.coefficients
        residual = (self._values - self._link.mean(predicted)[:, None]) / self._spread
        apart = design - reference.means
        return Values(
            residual,
            np.abs(residual) - reference.wide,
            (apart * self._weigh(reference, predicted)[:, None]) @ scores + own[0],
            own[1] if self.own > 1 else np.zeros(turn.shape[1]),
            self._curve(reference, design, predicted) @ curved,
            np.broadcast_to(there[:, None], residual.shape),
        )

    def _weigh(self, reference: Line, predicted: Array) -> Array:
        """(N,) by which a residual counts in a score: 1 where its variance is the mean."""
        return np.asarray(1 / (1 + reference.dispersion * self._link.mean(predicted)))

    def _curve(self, reference: Line, design: Array, predicted: Array) -> Array:
        """(N, pairs) what each adds to the information."""
        apart = design - reference.means
        slope = self._link.slope(predicted) * self._weigh(reference, predicted) / self._spread
        found = [slope * apart[:, i] * apart[:, j] for i, j in self.pairs]
        return np.stack(found, axis=1) if found else np.zeros((len(design), 0))

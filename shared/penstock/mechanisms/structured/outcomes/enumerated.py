"""Outcomes of which there are a few, each of a chance that follows from one linear predictor.

A number of a generalised linear model: 0 or 1, a count, or a residual in cells. Every outcome has
a value; a reference's score of a row is the design times a residual, and the residual.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.structured.outcomes.protocol import OutcomeModel
from penstock.schema import Coded, Column

Array = NDArray[np.float64]

PRIOR, BEND_PRIOR, LEVEL_PRIOR = 1.0, 0.3, 1.0
LEVEL_IMPORTANCE = 0.7
NEWTON_ROUNDS, MOST = 25, 8.0


@dataclass(frozen=True, slots=True)
class Line:
    """The declared regression: a level and coefficients (width,), zeros for bends."""

    level: float
    coefficients: Array

    def at(self, design: Array) -> Array:
        return np.clip(self.level + design @ self.coefficients, -MOST, MOST)


class Enumerated(OutcomeModel[Line]):
    """A model with one linear predictor η: coefficients of the design, and a level.

    Args:
        column: the outcome; design: (N, width) of the quasi-random persons; linear: how many of its
            columns the declared regression has; importance: (width,); level: η of no effect.
    """

    own = 1

    def __init__(
        self, column: Column, design: Array, linear: int, importance: Array, level: float
    ) -> None:
        self._column, self._design, self._linear = column, design, linear
        self._importance, self._level, self.coefficients = importance, level, design.shape[1]

    def start(self) -> Array:
        return np.append(np.zeros(self.coefficients), self._level)

    def prior(self) -> Array:
        bends = self.coefficients - self._linear
        sds = [np.full(self._linear, PRIOR), np.full(bends, BEND_PRIOR), np.array([LEVEL_PRIOR])]
        return np.asarray(np.concatenate(sds) ** -2)

    def importance(self, again: bool) -> Array:
        return np.asarray(np.append(self._importance, LEVEL_IMPORTANCE))

    def _predict(self, theta: Array, design: Array) -> Array:
        at = theta[self.coefficients] + design @ theta[: self.coefficients]
        return np.asarray(np.clip(at, -MOST, MOST))

    @abstractmethod
    def values(self) -> Array:
        """(outcomes,) or (N, outcomes)."""

    @abstractmethod
    def chances_at(self, predicted: Array) -> tuple[Array, Array]:
        """(N, outcomes), and by η."""

    @abstractmethod
    def mean(self, predicted: Array) -> Array:
        """Of the outcome, in the declared regression."""

    @abstractmethod
    def mean_slope(self, predicted: Array) -> Array:
        """Of that by η."""

    def chances(self, theta: Array) -> Array:
        return self.chances_at(self._predict(theta, self._design))[0]

    def slopes(self, theta: Array, found: Array) -> Array:
        _, turned = self.chances_at(self._predict(theta, self._design))
        by_person = np.matmul(turned[:, None, :], found)[:, 0]
        return np.column_stack([by_person.T @ self._design, by_person.sum(axis=0)]) / len(found)

    def refer(self, theta: Array) -> Line:
        chances = self.chances(theta)
        y = (chances * self.values()).sum(axis=1)
        z = np.column_stack([self._design[:, : self._linear], np.ones(len(y))])
        line = np.append(theta[: self._linear], theta[self.coefficients])
        if not theta[: self.coefficients].any():
            return Line(float(theta[self.coefficients]), np.zeros(self.coefficients))
        for _ in range(NEWTON_ROUNDS):
            predicted = np.clip(z @ line, -MOST, MOST)
            score = z.T @ (y - self.mean(predicted))
            information = (z * self.mean_slope(predicted)[:, None]).T @ z
            information += 1e-6 * len(y) * np.eye(len(line))
            line = line + np.clip(np.linalg.solve(information, score), -1.0, 1.0)
        bends = np.zeros(self.coefficients - self._linear)
        return Line(float(line[-1]), np.append(line[:-1], bends))

    def code(self, coded: Coded) -> Array:
        """The rows' outcome, on the scale of :meth:`values`; NaN where it is missing."""
        return coded[self._column.name]

    def scores(self, reference: Line, design: Array, coded: Coded) -> Array:
        y = self.code(coded)
        residual = np.where(np.isnan(y), 0.0, y - self.mean(reference.at(design)))
        return np.column_stack([design * residual[:, None], residual])

    def imagine(self, reference: Line) -> Array:
        n = len(self._design)
        residual = self.values() - self.mean(reference.at(self._design))[:, None]
        whole = np.column_stack([self._design, np.ones(n)])
        return np.asarray(residual[:, :, None] * whole[:, None, :])

    def draw_places(self, theta: Array, design: Array, uniforms: Array) -> NDArray[np.intp]:
        """(N,) which of the outcomes."""
        risen = np.cumsum(self.chances_at(self._predict(theta, design))[0], axis=1)
        risen[:, -1] = np.inf
        return np.asarray((uniforms[:, :1] >= risen).sum(axis=1))

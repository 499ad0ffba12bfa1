"""A 0/1 outcome: chances by the logistic function of one linear predictor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from penstock.mechanisms.structured.outcomes.enumerated import Enumerated
from penstock.schema import Coded, Column

Array = NDArray[np.float64]


class Logistic(Enumerated):
    """The model of a 0/1 outcome.

    Args:
        share: of ones, as counted.
    """

    def __init__(
        self, column: Column, share: float, design: Array, linear: int, importance: Array
    ) -> None:
        level = float(logit(min(max(share, 1e-3), 1 - 1e-3)))
        super().__init__(column, design, linear, importance, level)

    def values(self) -> Array:
        return np.array([0.0, 1.0])

    def chances_at(self, predicted: Array) -> tuple[Array, Array]:
        one = expit(predicted)
        turned = one * (1 - one)
        return np.column_stack([1 - one, one]), np.column_stack([-turned, turned])

    def mean(self, predicted: Array) -> Array:
        return np.asarray(expit(predicted))

    def mean_slope(self, predicted: Array) -> Array:
        one = expit(predicted)
        return np.asarray(one * (1 - one))

    def draw(self, theta: Array, design: Array, uniforms: Array) -> Coded:
        return {self._column.name: self.draw_places(theta, design, uniforms).astype(np.float64)}

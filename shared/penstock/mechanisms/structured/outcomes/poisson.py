r"""Counts: a mean of :math:`e^η`, and more spread than a Poisson variable's where counts show it.

The size r of a negative binomial is such that the released margin has the variance it has beside
what no covariate explains; r large is Poisson. Scores are those of a Poisson regression, which is
what the study fits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from penstock.mechanisms.structured.outcomes.enumerated import Enumerated
from penstock.schema import Coded, Column

Array = NDArray[np.float64]

_MOST_COUNT, _MOST_SIZE = 60, 200.0


class Poisson(Enumerated):
    """The model of a count from 0.

    Args:
        points, shares: (c,) its cells' values, and their shares as counted.
    """

    def __init__(
        self,
        column: Column,
        points: Array,
        shares: Array,
        design: Array,
        linear: int,
        importance: Array,
    ) -> None:
        there = ~np.isnan(points)
        share = shares[there] / shares[there].sum()
        mean = max(float(share @ points[there]), 1e-2)
        variance = float(share @ (points[there] - mean) ** 2)
        self._size = min(mean**2 / max(variance - mean, mean**2 / _MOST_SIZE), _MOST_SIZE)
        # Steps of one while they fit; wider ones for counts in hundreds.
        step = max(1.0, np.ceil(column.bounds[1] / _MOST_COUNT))
        self._counts = np.arange(0.0, column.bounds[1] + step, step)
        super().__init__(column, design, linear, importance, float(np.log(mean)))

    def values(self) -> Array:
        return self._counts

    def chances_at(self, predicted: Array) -> tuple[Array, Array]:
        r, y = self._size, self._counts
        mean = np.exp(predicted)[:, None]
        logs = gammaln(y + r) - gammaln(y + 1) + y * np.log(mean) - (y + r) * np.log(mean + r)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        chances = weights / weights.sum(axis=1, keepdims=True)
        slope = r * (y - mean) / (mean + r)
        slope = slope - (chances * slope).sum(axis=1, keepdims=True)
        return chances, chances * slope

    def mean(self, predicted: Array) -> Array:
        return np.exp(predicted)

    def mean_slope(self, predicted: Array) -> Array:
        return np.exp(predicted)

    def draw(self, theta: Array, design: Array, uniforms: Array) -> Coded:
        place = self.draw_places(theta, design, uniforms)
        step = self._counts[1] - self._counts[0]
        spread = np.floor((uniforms[:, 1] - 0.5) * step + 0.5) if step > 1 else 0.0
        return {self._column.name: self._column.snap(self._counts[place] + spread)}

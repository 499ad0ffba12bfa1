"""α of a world: by how much its counts vary more than a Poisson model of these means has it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma

Array = NDArray[np.float64]

_LEAST, _MOST = 1e-5, 1e3
"""Of α."""

_HALVED = 40


def find_dispersion(values: Array, chances: Array, mean: Array, weights: Array) -> float:
    """α of the variance μ + α μ² that is most likely, of persons with these means; 0 where a
    Poisson model is likelier than any.

    Args:
        values: (c,) counts that there can be; chances: (N, c) of each person.
        mean: (N,) μ; weights: (N,) of the persons.

    Source: Lawless 1987, Canadian Journal of Statistics 15, 209–225, equation 2.6.
    """
    whole = max(float(weights.sum()), 1.0)
    shares, expected = weights @ chances / whole, chances @ values
    square = chances @ values**2

    def slope(alpha: float) -> float:
        """Of the log likelihood, by 1/α."""
        r = 1 / alpha
        each = (mean - expected) / (r + mean) - np.log1p(alpha * mean)
        return float(shares @ (digamma(values + r) - digamma(r)) + weights @ each / whole)

    extra = square - 2 * mean * expected + mean**2 - expected
    if not weights @ extra > 0:
        return 0.0
    low, high = np.log(_LEAST), np.log(_MOST)
    for _ in range(_HALVED):
        middle = (low + high) / 2
        # The likelihood rises with α where it falls with 1/α.
        low, high = (middle, high) if slope(float(np.exp(middle))) < 0 else (low, middle)
    return float(np.exp((low + high) / 2))

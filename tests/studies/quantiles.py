"""Quantiles of a sample at as many levels as there are particles: the papers' targets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def sample_quantiles(ordered: Array, particles: int) -> Array:
    """(N, b) samples in rising order to (N, m) quantiles, at levels i/(m-1), i = 0 … m-1.

    Between order statistics linear (as numpy and torch do by default; the paper's code): for
    b = m the samples themselves.
    """
    at = np.linspace(0, ordered.shape[1] - 1, particles)
    low = at.astype(np.intp)
    # As the samples are: double work for single particles would only be rounded away.
    weight = (at - low).astype(ordered.dtype)
    rises = np.diff(ordered, axis=1, append=ordered[:, -1:])
    found = rises.take(low, axis=1)
    found *= weight
    found += ordered.take(low, axis=1)
    return found

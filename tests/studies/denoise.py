"""Shrink an iterate that is mostly noise: for the least excess risk, not for an unbiased answer.

Post-processing of what was released. The mechanism's own answer is left unshrunk: a pooled analysis
needs estimates whose errors average out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_ROUNDS = 100


def denoised(theta: Array, noise: Array, prior: Array) -> Array:
    r"""E[θ* | θ] where θ = θ* + N(0, S) and θ* ∼ N(0, τ²C), τ² by maximum likelihood (EM).

    Empirical Bayes (Efron & Morris 1973) with noise of known covariance.

    Args:
        theta: (p,); noise: S (p, p); prior: C (p, p), the shape of what θ* is like; both definite.
    """
    precision, shape = np.linalg.inv(noise), np.linalg.inv(prior)
    scale = max(float(theta @ shape @ theta) / len(theta), 1e-12)
    mean: Array = theta
    for _ in range(_ROUNDS):
        covariance = np.linalg.inv(precision + shape / scale)
        mean = covariance @ (precision @ theta)
        scale = max(float(mean @ shape @ mean + np.trace(shape @ covariance)) / len(theta), 1e-12)
    return mean

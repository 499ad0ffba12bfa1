"""What a noisy curvature says: made definite, drawn to a diagonal, blended with another.

And how it is summed: as the vector of its upper triangle.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_FLOOR = 0.03
"""Least eigenvalue of an information, over their mean: noise may have made some negative."""
_LEAST_DIAGONAL = 0.2
"""The same of a diagonal's entry, over the mean of its kind."""
_VARIED = 0.5
"""By how much of itself an entry is taken to differ from its kind's, beside noise."""

_DRIFT = 0.15
"""By how much of itself the curvature may change from the start to the iterate."""


def shrunk(
    matrix: Array,
    sd: float,
    baseline: int,
    squares: Array | None = None,
    most: float = math.inf,
) -> Array:
    """A noisy curvature, drawn towards a diagonal by as much as is noise; and what is left of it.

    The diagonal is drawn to the mean one of the baseline's parameters, and to that of the
    covariates, times their mean squares: there is little else to expect. What is beside it shrinks
    by noise's expected square over the square of what is there (Ledoit & Wolf 2004, the noise's
    variance known).

    Args:
        sd: of the noise on a number of the diagonal; 1/√2 of it elsewhere.
        baseline: parameters before the covariates'.
        squares: mean ones of the covariates, (p - baseline,); None: 1.
        most: that rows bend by on average.
    """
    p = len(matrix)
    unit = np.ones(p)
    if squares is not None:
        unit[baseline:] = np.clip(squares, 1e-3, 1.0)
    diagonal = np.diag(matrix).copy()
    for part in (slice(0, baseline), slice(baseline, p)):
        if diagonal[part].size:
            typical = max(float(diagonal[part].sum() / unit[part].sum()), 0.0)
            typical = min(typical, most)
            common = typical * unit[part]
            spread = np.maximum((_VARIED * common) ** 2, 1e-300)
            diagonal[part] = common + (diagonal[part] - common) * spread / (spread + sd**2)
            diagonal[part] = np.maximum(diagonal[part], _LEAST_DIAGONAL * common)
    off = matrix - np.diag(np.diag(matrix))
    expected = sd**2 * p * (p - 1) / 2
    kept = 1 - min(1.0, expected / max(float((off**2).sum()), 1e-300))
    found: Array = np.diag(diagonal) + kept * off
    return found


def definite(matrix: Array) -> Array:
    """Eigenvalues floored: noise may have made them negative."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    typical = max(float(values.mean()), 1e-6)
    found: Array = (vectors * np.maximum(values, _FLOOR * typical)) @ vectors.T
    return found


def share_of_start(
    curvature: Array, spread: float, other: float, later: Array | None = None
) -> float:
    """How much of the curvature at the start goes into that at the iterate, by the noise on both.

    The former is taken to be off by :data:`_DRIFT` of itself, or by as much as the two differ
    beyond noise.
    """
    drift = _DRIFT * max(float(np.diag(curvature).mean()), 0.0)
    if later is not None:
        # Of p(p + 1)/2 numbers: a norm's noise of sd·√2p is one of sd²·p(p + 1)/2 in squares.
        noise = (spread**2 + other**2) * (len(curvature) + 1) / 4
        drift = max(drift, math.sqrt(max(float(((later - curvature) ** 2).sum()) - noise, 0.0)))
    return other**2 / (other**2 + spread**2 + drift**2)


def triangle(size: int) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
    """Upper triangle of a symmetric matrix as one vector of the same (Frobenius) norm.

    Returns:
        Row and column indices, and factors: 1 on the diagonal, √2 beside it.
    """
    first, second = np.triu_indices(size)
    return first, second, np.where(first == second, 1.0, math.sqrt(2.0))


def symmetric(vector: Array, size: int) -> Array:
    """The symmetric matrix of such a vector."""
    first, second, factor = triangle(size)
    matrix = np.zeros((size, size))
    matrix[first, second] = vector / factor
    matrix[second, first] = matrix[first, second]
    return matrix

r"""The strategy by which noisy counts have the least noise once they are added up from one end.

Of the counts h of B bins in order, A·h is released with noise, and

.. math:: W h = L (A h), \qquad W = L A, \quad
   W_{eb} = \tfrac12 \text{ if bin } b \text{ lies below edge } e, \text{ else } -\tfrac12

is half the rows below each edge less half of those above. A and L are both ``|W|^½`` up to an
orthogonal factor. W is skew-circulant (what leaves at the top comes in at the bottom with its sign
changed), so that all columns of A have one norm, and all rows of L the same:

.. math:: ‖A e_b‖² = ‖L^T e_e‖² = \frac1B \sum_{j<B} \frac{1}{2 \sin(π(2j+1)/2B)}
   ≈ \frac1π \Bigl(\ln\frac{8B}{π} + γ\Bigr).

This is the trace norm of W over B, below which the product of the two norms cannot be for any
factorisation, so none has less noise. For B = 32 the noise's sd is .73 of what the square root of
the lower triangle of ones gives (Fichtenberger, Henzinger & Upadhyay 2023, arXiv 2202.11205).
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidEvent
from penstock.privacy.numbers import whole

Array = NDArray[np.float64]
Whole = NDArray[np.int64]

_BITS = 20
"""Of the strategy's entries behind the point."""

UNIT = math.ldexp(1.0, -_BITS)
"""Of which they are whole multiples."""


def strategy(bins: int) -> Array:
    """A, (B, B), symmetric: ``|W|^½`` rounded to whole multiples of 2⁻²⁰."""
    return np.asarray(whole_strategy(bins) * UNIT)


@lru_cache(maxsize=2)  # B³ steps, and B² numbers: of a table's columns the last ones
def absolute(bins: int) -> Array:
    """``|W| = L Lᵀ``, (B, B): covariance of the noise at upper edges of bins, in units of sd²."""
    back = recovery(bins)
    squared: Array = back @ back.T
    squared.setflags(write=False)
    return squared


@cache
def whole_strategy(bins: int) -> Whole:
    """A in units of 2⁻²⁰."""
    most = 4096
    if not 2 <= whole("bins", bins) <= most:
        raise InvalidEvent("bins out of bounds", value=bins, bound=f"2 to {most}")
    found: Whole = np.rint(_skew_circulant(np.sqrt(_sizes(bins))) / UNIT).astype(np.int64)
    found.setflags(write=False)
    return found


def longest_column(bins: int) -> Fraction:
    """max ‖A e_b‖² of A as rounded, exactly."""
    return Fraction(int((whole_strategy(bins) ** 2).sum(axis=0).max()), 4**_BITS)


@cache
def recovery(bins: int) -> Array:
    """L = W A⁻¹ of A as rounded, so that L A = W."""
    edge, bin_ = np.arange(1, bins + 1)[:, None], np.arange(bins)
    half = np.where(bin_ < edge, 0.5, -0.5)
    found = np.asarray(np.linalg.solve(strategy(bins).T, half.T).T)
    found.setflags(write=False)
    return found


def _sizes(bins: int) -> Array:
    """Moduli of W's eigenvalues, (B,)."""
    sizes: Array = 0.5 / np.sin(math.pi * (2 * np.arange(bins) + 1) / (2 * bins))
    return sizes


def _skew_circulant(eigenvalues: Array) -> Array:
    """The real symmetric skew-circulant matrix with these eigenvalues, (B, B).

    Eigenvectors are exp(iπ(2j+1)b/B); the entries depend on the difference of row and column.
    """
    b = len(eigenvalues)
    apart = np.arange(b)[:, None] - np.arange(b)
    phases = math.pi * (2 * np.arange(b) + 1) / b
    column = np.array([float(np.cos(phases * lag) @ eigenvalues) / b for lag in range(b)])
    # cos(phase · -lag) is the same: symmetric.
    matrix: Array = column[np.abs(apart)]
    return matrix

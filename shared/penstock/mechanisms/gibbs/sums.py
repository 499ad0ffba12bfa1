"""Noisy sums of bounded contributions: whole numbers, exact discrete Gaussian noise.

Each row's contribution, of L2 norm at most 1, is rounded to whole multiples of a public power of
two, so that the sum over any rows is exact, and one person moves it by at most
k·(1 + √m·unit/2), k rows of m numbers each. Zero-out, public n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidEvent
from penstock.privacy.events import DiscreteGaussian
from penstock.privacy.noise.discrete import add_discrete_gaussian, exact_positive, grid_sd
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]

UNIT = 2.0**-30
_NUMBERS_AT_ONCE = 1 << 19

Contributions = Callable[[slice], Array]
"""Of the rows of a slice, (rows, m), each of norm at most 1."""


def reach(size: int, rows_per_person: int) -> float:
    """k·(1 + √m·unit), an upper bound: rounding moves a row by √m·unit/2, floats by far less."""
    return rows_per_person * (1.0 + math.sqrt(size) * UNIT)


def event(sigma: float, size: int, rows_per_person: int, label: str) -> DiscreteGaussian:
    """What :func:`noisy_sum` is charged as, in units of a row's bound."""
    variance = _variance(sigma, size, rows_per_person)
    grid = grid_sd(variance, UNIT)
    return DiscreteGaussian(sigma, 1, label, reach(size, rows_per_person), grid, size)


def _variance(sigma: float, size: int, rows_per_person: int) -> Fraction:
    sensitivity = Fraction(reach(size, rows_per_person))
    return (exact_positive("noise multiplier", sigma) * sensitivity) ** 2


def noisy_sum(
    rows: int,
    size: int,
    contributions: Contributions,
    sigma: float,
    rows_per_person: int,
    noise: NoiseSource,
) -> Array:
    """(m,) the sum of all rows' contributions, with noise of sd σ·:func:`reach` on each number.

    Args:
        rows: N; they are looked at in parts, so that memory holds no more.
        contributions: of a slice of rows. What is not finite counts as 0.

    Sensitivity: :func:`reach` (zero-out of one person), if every contribution's norm is at most 1
    but for rounding errors; longer ones are a bug and are dropped, whoever they belong to.

    Raises:
        InvalidEvent: a parameter is out of its bound, or a contribution is not of size m.
    """
    total = np.zeros(size, dtype=np.int64)
    at_once = max(1, _NUMBERS_AT_ONCE // max(size, 1))
    for at in range(0, rows, at_once):
        part = np.asarray(contributions(slice(at, min(at + at_once, rows))), dtype=np.float64)
        if part.ndim != 2 or part.shape[1] != size:
            raise InvalidEvent("contributions of another size", value=part.shape, bound=size)
        usable = np.isfinite(part).all(axis=1) & ((part**2).sum(axis=1) <= 1 + 1e-10)
        whole = np.rint(np.where(usable[:, None], part, 0.0) / UNIT)
        total += whole.astype(np.int64).sum(axis=0)
    variance = _variance(sigma, size, rows_per_person)
    return add_discrete_gaussian(total, variance, noise, unit=UNIT)

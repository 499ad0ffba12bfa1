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
from penstock.privacy.measurements import WholeSum, is_known
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]

UNIT = 2.0**-30
_NUMBERS_AT_ONCE = 1 << 19

Contributions = Callable[[slice], Array]
"""Of the rows of a slice, (rows, m), each of norm at most 1."""


def reach(size: int, rows_per_person: int) -> float:
    """k·(1 + √m·unit), an upper bound: rounding moves a row by √m·unit/2, floats by far less."""
    return rows_per_person * (1.0 + math.sqrt(size) * UNIT)


def measure_sum(sigma: float, size: int, rows_per_person: int, label: str) -> WholeSum:
    """The sum of all rows' contributions, m numbers, in units of the bound on a row's.

    Sensitivity: :func:`reach` (zero-out of one person, public n), for sums of :func:`add_up`.
    """
    sensitivity = reach(size, rows_per_person)
    return WholeSum(label, sigma, sensitivity, Fraction(sensitivity) ** 2, UNIT, size)


def add_up(rows: int, size: int, contributions: Contributions) -> NDArray[np.int64]:
    """(m,) the sum of all rows' contributions, in whole multiples of :data:`UNIT`.

    One person moves it by :func:`reach` at most, if every contribution's norm is at most 1 but for
    rounding errors; longer ones are a bug and are dropped, whoever they belong to.

    Args:
        rows: N; they are looked at in parts, so that memory holds no more.
        contributions: of a slice of rows. What is not finite counts as 0.

    Raises:
        InvalidEvent: a contribution is not of size m.
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
    return total


def ask_rows(
    asks: WholeSum, rows: int, contributions: Contributions, size: int, noise: NoiseSource
) -> Array:
    """The noisy sum of all rows' contributions, as :func:`add_up` has them, in the bound's units.

    Where many sites have added it up already, no row is looked at.
    """
    known = is_known(noise)
    total = np.zeros(size, dtype=np.int64) if known else add_up(rows, size, contributions)
    return asks(total, noise)

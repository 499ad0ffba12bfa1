"""What the early stages' laws share: their sums before the noise, faulty noise, hostile rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from penstock.privacy import measurements

Array = NDArray[np.float64]

wild = st.floats(width=64, allow_nan=True, allow_infinity=True) | st.sampled_from(
    [1e308, -1e308, 1e300, math.inf, -math.inf, math.nan, 0.0, 1e-320]
)
"""Any float that a row may hold."""


@contextmanager
def before_noise() -> Iterator[list[tuple[list[int], Fraction]]]:
    """What releases are before their noise: whole numbers, and their unit."""
    seen: list[tuple[list[int], Fraction]] = []

    def spy(value: Any, variance: Any, noise: Any, *, unit: float) -> Array:
        seen.append(([int(v) for v in np.ravel(value)], Fraction(unit)))
        bare: Array = np.asarray(value, dtype=np.float64) * unit
        return bare

    with patch.object(measurements, "add_discrete_gaussian", spy):
        yield seen


def distance(a: tuple[list[int], Fraction], b: tuple[list[int], Fraction]) -> Fraction:
    """Squared L2 distance of two such releases, exactly."""
    (x, unit), (y, same) = a, b
    if unit != same or len(x) != len(y):
        raise ValueError("the two worlds do not release the same thing")
    return sum((p - q) ** 2 for p, q in zip(x, y, strict=True)) * unit**2


def scaled_variance(factor: float) -> AbstractContextManager[Any]:
    """The noise of sums of whole numbers, its variance multiplied; 1 leaves it as it is."""
    add = measurements.add_discrete_gaussian

    def wrong(value: Any, variance: Any, noise: Any, *, unit: float) -> Any:
        return add(value, Fraction(factor) * variance, noise, unit=unit)

    return patch.object(measurements, "add_discrete_gaussian", wrong)


def has_unit_variance(standard: Array) -> bool:
    """Two-sided chi-square test of independent draws, false alarm 1e-9."""
    low, high = stats.chi2.ppf([5e-10, 1 - 5e-10], standard.size)
    return bool(low < (standard**2).sum() < high)

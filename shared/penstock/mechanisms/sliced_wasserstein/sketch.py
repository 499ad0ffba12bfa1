r"""Noisy distribution functions of many projections at once, released a single time.

For each of N directions every present row falls into one of B bins, the outer two unbounded. Of
the counts h of a direction, A·h is released with exact discrete Gaussian noise, and

.. math:: W h = L (A h), \qquad W = L A, \quad
   W_{eb} = \tfrac12 \text{ if bin } b \text{ lies below edge } e, \text{ else } -\tfrac12

is half the rows below each edge less half of those above: A and L are those of
:mod:`penstock.privacy.factorisation`.

Relation: zero-out with public n. Numbers of rows and entries of A are whole numbers of a unit, and
noise is drawn in whole numbers: nothing here rests on rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.base.errors import InvalidEvent
from penstock.privacy.factorisation import (
    UNIT,
    absolute,
    longest_column,
    recovery,
    strategy,
    whole_strategy,
)
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource
from penstock.privacy.numbers import whole
from penstock.privacy.sensitivity import projected_cdfs

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]

_HELD = 1 << 18
"""Bound on the numbers (rows · directions) that are computed at once; a row at least."""


@dataclass(frozen=True, slots=True)
class Directions:
    """On what rows are projected, and where the bins are; never drawn from rows uncharged.

    Args:
        matrix: (d, N), finite; columns of any length above 0, orthonormal or not: a row is in one
            bin of each direction whatever they are.
        low, high: (N,), finite, low < high; B bins of equal width between them, and rows beyond
            are counted in the outer two.

    Raises:
        InvalidEvent: the shapes do not fit, or a value is out of its bounds.
    """

    matrix: Array
    low: Array
    high: Array

    def __post_init__(self) -> None:
        shape = self.matrix.shape
        if len(shape) != 2 or not self.matrix.size or self.low.shape != shape[1:]:
            raise InvalidEvent("directions must be (d, N), their ranges (N,)", value=shape)
        if self.high.shape != self.low.shape or not bool((self.high - self.low > 0).all()):
            raise InvalidEvent("a range must have a width", value=self.high.shape)
        finite = (np.isfinite(a).all() for a in (self.matrix, self.high - self.low))
        if not all(finite) or not bool(self.matrix.any(axis=0).all()):
            raise InvalidEvent("directions and ranges must be finite, and no direction 0")

    @classmethod
    def within(cls, matrix: ArrayLike, centre: ArrayLike, reach: ArrayLike) -> Directions:
        """Ranges centre ± reach, scalars or (N,)."""
        theta = np.asarray(matrix, dtype=np.float64)
        middle, half = np.broadcast_arrays(centre, reach, np.zeros(theta.shape[1:]))[:2]
        return cls(theta, np.asarray(middle - half), np.asarray(middle + half))

    @property
    def count(self) -> int:
        """N."""
        return int(self.matrix.shape[1])


@dataclass(frozen=True, slots=True)
class Sketch:
    """What was released, and how noisy it is.

    Args:
        directions: on which; bins: B.
        halves: (N, B + 1), half the rows below each edge less half of those above, the two ends
            (minus and plus half of all rows) included.
        sd: of the noise on each entry of A·h, in rows; 0 without noise.
    """

    directions: Directions
    bins: int
    halves: Array
    sd: float

    @property
    def rows(self) -> float:
        """The number of rows, at least 1: every direction counts them, with its own noise."""
        return max(float(2 * self.halves[:, -1].mean()), 1.0)

    @property
    def covariance(self) -> Array:
        """Of the noise at a direction's inner edges, (B - 1, B - 1), in rows²."""
        squared = absolute(self.bins)[1:, 1:]
        return self.sd**2 * squared


def measure_sketch(sigma: float, directions: int, bins: int, rows_per_person: int = 1) -> WholeSum:
    """A·(counts of bins) for each of so many directions.

    Sensitivity: :func:`penstock.privacy.sensitivity.projected_cdfs` of :func:`strategy`, zero-out
    of one person; it holds exactly, by whole numbers: (k·√N·max ‖A e_b‖)².
    """
    reach = longest_column(bins) * whole("directions", directions)
    return WholeSum(
        label="sketch",
        noise_multiplier=sigma,
        sensitivity=projected_cdfs(directions, strategy(bins), rows_per_person),
        squared=reach * whole("rows per person", rows_per_person) ** 2,
        unit=UNIT,
        size=directions * bins,
    )


def release_sketch(
    rows: Array,
    present: Bools,
    directions: Directions,
    bins: int,
    measurement: WholeSum | None,
    noise: NoiseSource,
) -> Sketch:
    """Distribution functions of projected rows, with noise.

    Args:
        rows: (n, k, d); present: (n, k). What is not finite is projected as 0, or as a huge number.
        bins: B, from 2 to 4096.
        measurement: of :func:`measure_sketch`, or None for no noise.

    Raises:
        InvalidEvent: shapes that do not fit, or bins out of their bounds.
    """
    if rows.ndim != 3 or present.shape != rows.shape[:2]:
        raise InvalidEvent("rows must be (n, k, d), present (n, k)", value=rows.shape)
    if rows.shape[2] != len(directions.matrix):
        raise InvalidEvent("rows and directions differ in dimension", value=rows.shape)
    total = counts(rows, present, directions, bins) @ whole_strategy(bins).T
    if measurement is None:
        return _read_sketch(directions, bins, np.asarray(total * UNIT), 0.0)
    return _read_sketch(directions, bins, measurement(total, noise), measurement.sd)


def _read_sketch(directions: Directions, bins: int, released: Array, sd: float) -> Sketch:
    upper = released @ recovery(bins).T
    # The bottom edge is the top's with its sign changed.
    halves = np.concatenate([-upper[:, -1:], upper], axis=1)
    return Sketch(directions, bins, halves, sd)


def counts(rows: Array, present: Bools, directions: Directions, bins: int) -> Whole:
    """How many present rows are in each bin of each direction, (N, B)."""
    n_directions, flat = directions.count, rows.reshape(-1, rows.shape[2])
    scale = bins / (directions.high - directions.low)
    first = np.arange(n_directions, dtype=np.int64) * bins
    found = np.zeros(n_directions * bins, dtype=np.int64)
    there = present.reshape(-1, 1)
    # Absent rows are computed too: no float may depend on how many persons there are.
    at_once = max(1, _HELD // n_directions)
    for at in range(0, len(flat), at_once):
        part = np.nan_to_num(flat[at : at + at_once], nan=0.0, posinf=1e100, neginf=-1e100)
        place = np.clip(part, -1e100, 1e100) @ directions.matrix
        place -= directions.low
        place *= scale
        inside = np.clip(np.floor(place, out=place), 0, bins - 1, out=place).astype(np.int64)
        inside += first
        inside = np.where(there[at : at + at_once], inside, len(found))
        found += np.bincount(inside.ravel(), minlength=len(found) + 1)[:-1]
    return found.reshape(n_directions, bins)

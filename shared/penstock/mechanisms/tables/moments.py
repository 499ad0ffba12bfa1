r"""Noisy second moments, and the affine map that gives a model's sample the same moments.

:func:`release_moments` sums y yᵀ over clipped rows y = (scores, 1), in whole numbers with exact
discrete Gaussian noise, under zero-out with public n. :func:`match_moments` finds the affine map
after which a model's samples, *observed and clipped alike*, have these moments, so that neither
clipping nor rounding biases what it bounds. Everything after the noise is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.discrete import exact_positive
from penstock.privacy.noise.sources import NoiseSource
from penstock.privacy.sensitivity import second_moments

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]

_BITS = 24
_ROWS_AT_ONCE = 1 << 12
"""Rows are whole numbers of at most 24 bits where their moments are summed: 2¹⁴ fit in an int64,
and fewer in the processor's cache."""

_EIGENVALUE_FLOOR = 0.02
_MATCH_ROUNDS = 15
"""Always as many: how soon a match settles is nobody's business."""

_STRETCH, _SHIFT = (1.5, 4.0), (0.4, 2.0)
"""Bounds of a match, in standard deviations: the widest are far beyond what any real cohort needs,
the narrowest are for moments that are mostly noise."""

_STRETCH_SIGNAL, _SHIFT_SIGNAL = 0.03, 0.01
"""Where between: this over the sd of a moment's noise. The less of it, the further a match goes."""


@dataclass(frozen=True, slots=True)
class Affine:
    """y ↦ y Aᵀ + b, A (d, d) invertible."""

    matrix: Array
    shift: Array

    @classmethod
    def identity(cls, d: int) -> Affine:
        return cls(np.eye(d), np.zeros(d))

    def apply(self, y: Array) -> Array:
        """(…, d) → (…, d)."""
        moved: Array = y @ self.matrix.T + self.shift
        return moved

    def invert(self, y: Array) -> Array:
        """(…, d) → (…, d)."""
        back: Array = (y - self.shift) @ np.linalg.inv(self.matrix).T
        return back

    def after(self, first: Affine) -> Affine:
        """This map after ``first``: y ↦ self(first(y))."""
        return Affine(self.matrix @ first.matrix, self.matrix @ first.shift + self.shift)


def measure_moments(sigma: float, radius: float, d: int, rows_per_person: int) -> WholeSum:
    """Σ y yᵀ over present rows, y = (scores, 1) clipped to norm ``radius``.

    Sensitivity: :func:`penstock.privacy.sensitivity.second_moments`, zero-out of one person; it
    holds exactly, by :func:`whole_moments`.
    """
    return WholeSum(
        label="moments",
        noise_multiplier=sigma,
        sensitivity=second_moments(radius, rows_per_person),
        squared=(rows_per_person * exact_positive("radius", radius) ** 2) ** 2,
        unit=row_unit(radius) ** 2,
        size=(d + 1) * (d + 2) // 2,
        symmetric=True,
    )


def release_moments(
    scores: Array,
    present: Bools,
    radius: float,
    measurement: WholeSum | None,
    noise: NoiseSource,
) -> Array:
    """Σ y yᵀ over present rows, y = (scores, 1) clipped to norm ``radius``; (d+1, d+1), symmetric.

    Args:
        scores: (n, k, d); present: (n, k). What is not finite counts as 0, or not at all.
        measurement: of :func:`measure_moments`, or None for no noise.
    """
    if measurement is None:
        y = _clipped(scores.reshape(-1, scores.shape[2]), radius)
        y = np.where(present.reshape(-1, 1), y, 0.0)
        bare: Array = y.T @ y
        return bare
    total, _ = whole_moments(scores, present, radius)
    return measurement(total, noise)


def whole_moments(
    scores: Array, present: Bools, radius: float
) -> tuple[NDArray[np.object_], float]:
    """Σ y yᵀ over present y = (scores, 1), clipped and rounded toward zero, in whole numbers.

    Each y is a vector of whole multiples of a public power of two u, of norm at most the radius *as
    whole numbers*, whatever the floats before did; so each y yᵀ has Frobenius norm ≤ radius²
    exactly, and the sum is exact.

    Args:
        scores: (n, k, d); present: (n, k); radius: finite.

    Returns:
        The sum, (d+1, d+1), Python ints in units of u²; and u².
    """
    # Absent rows are computed too: no float may depend on how many persons there are.
    flat, there, unit = scores.reshape(-1, scores.shape[2]), present.ravel(), row_unit(radius)
    total = np.zeros((scores.shape[2] + 1,) * 2, dtype=object)
    for at in range(0, len(flat), _ROWS_AT_ONCE):
        some = slice(at, at + _ROWS_AT_ONCE)
        part, _ = whole_vectors(_clipped(flat[some], radius), there[some], radius)
        total += np.einsum("ni,nj->ij", part, part)
    return total, unit * unit


def whole_vectors(y: Array, present: Bools, radius: float) -> tuple[Whole, float]:
    """Vectors rounded toward zero to whole multiples of a unit, of norm ≤ radius *as such*.

    Args:
        y: (n, q), clipped to the radius already, as far as floats can.
        present: (n,); an absent vector is 0, and so is one that rounding left too long.

    Returns:
        (n, q) whole numbers, and their unit u, a public power of two.
    """
    unit = row_unit(radius)
    most = math.floor((exact_positive("radius", radius) / Fraction(unit)) ** 2)
    units = y / unit
    np.copyto(units, 0.0, where=np.isnan(units))
    np.clip(units, -math.isqrt(most), math.isqrt(most), out=units)
    # To whole numbers is toward zero.
    whole = units.astype(np.int64)
    usable = present & (np.einsum("nq,nq->n", whole, whole) <= most)
    whole *= usable[:, None]
    return whole, unit


def row_unit(radius: float) -> float:
    """The power of two of which the radius is below 2^24 and at least 2^23."""
    return math.ldexp(1.0, math.frexp(radius)[1] - _BITS)


def gaussian(moments: Array, rows: float, held: Collection[int] = ()) -> Affine:
    """The affine map from standard Gaussians to one with the released (clipped) moments.

    Coordinates that are ``held`` stay standard, and independent of all others.
    """
    d = len(moments) - 1
    moved = [j for j in range(d) if j not in held]
    mean, covariance = mean_and_covariance(_only(moments / rows, moved))
    matrix, shift = np.eye(d), np.zeros(d)
    matrix[np.ix_(moved, moved)], shift[moved] = power(covariance, 0.5), mean
    return Affine(matrix, shift)


def _only(moments: Array, coordinates: list[int]) -> Array:
    """The second moments of some coordinates."""
    at = [*coordinates, len(moments) - 1]
    return moments[np.ix_(at, at)]


def match_moments(
    moments: Array,
    rows: float,
    radius: float,
    sample: Array,
    observe: Callable[[Array], Array] | None = None,
    sd: float = 0.0,
    held: Collection[int] = (),
) -> Affine:
    r"""The affine map that gives a model's sample, seen as the rows were, the released moments.

    Indirect inference (Gourieroux, Monfort & Renault 1993) by a fixed point: map the sample,
    ``observe`` it, clip it to ``radius``, compare its mean m and covariance S with the released
    ones m*, S*, and compose with the optimal transport map between the two Gaussians,
    :math:`S^{-1/2}(S^{1/2} S^* S^{1/2})^{1/2} S^{-1/2}`, which moves the sample least. Rounding,
    thresholds and clipping therefore do not bias what is released. Of all rounds the one whose
    moments are nearest is taken.

    Args:
        moments: as released by :func:`release_moments`; rows: the (noisy) number of rows.
        sample: (N, d) scores drawn from the model, N large.
        observe: scores as the model makes them to scores as a row has them: decode, encode again.
        sd: of the noise on each mean moment; it bounds how far the map goes.
        held: coordinates that stay as they are, since nothing is known of them: noise alone would
            carry them away, and what is mixed with them.
    """
    d, sd = sample.shape[1], max(sd, 1e-9)
    moved = [j for j in range(d) if j not in held]
    stretch = float(np.clip(_STRETCH_SIGNAL / sd, *_STRETCH))
    most = float(np.clip(_SHIFT_SIGNAL / sd, *_SHIFT))
    goal_mean, goal_cov = mean_and_covariance(_only(moments / rows, moved))
    matrix, shift, step = np.eye(d), np.zeros(d), np.eye(d)
    spread, nearest, least = sample.std(axis=0) + 1e-6, (matrix, shift), math.inf
    for last in (*[False] * _MATCH_ROUNDS, True):
        y = sample @ matrix.T + shift
        # A threshold hides a column's scale, so that nothing would stop it from drifting.
        drift = np.maximum(y.std(axis=0) / spread, 1e-6)
        keep = (np.clip(drift, 0.5, 2.0) / drift)[moved]
        y = _clipped(y if observe is None else observe(y), radius)
        mean, cov = mean_and_covariance(_only(y.T @ y / len(y), moved))
        # Moments that no such map gives are chased beyond the nearest one, the further the less
        # noise bounds the chase.
        apart = float(((cov - goal_cov) ** 2).sum() + ((mean - goal_mean) ** 2).sum())
        if apart < least:
            nearest, least = (matrix, shift.copy()), apart
        if last:
            break
        root, inverse = power(cov, 0.5), power(cov, -0.5)
        transport = inverse @ power(root @ goal_cov @ root, 0.5) @ inverse
        step[np.ix_(moved, moved)] = transport * keep[:, None]
        # Moments that are mostly noise can lie where no sample gets: the chase must end somewhere,
        # and the map must keep its inverse.
        matrix = _within(step @ matrix, 1 / stretch, stretch)
        shift[moved] = np.clip(shift[moved] + goal_mean - mean, -most, most)
    return Affine(*nearest)


def _within(matrix: Array, low: float, high: float) -> Array:
    """The matrix with its singular values brought into [low, high], low > 0: invertible."""
    left, values, right = np.linalg.svd(matrix)
    bounded: Array = (left * np.clip(values, low, high)) @ right
    return bounded


def mean_and_covariance(moments: Array) -> tuple[Array, Array]:
    """Of second moments (d+1, d+1) over the number of rows; the covariance is made definite."""
    mean: Array = moments[:-1, -1]
    covariance: Array = moments[:-1, :-1] - np.outer(mean, mean)
    return mean, power(covariance, 1.0)


def power(matrix: Array, exponent: float) -> Array:
    """A symmetric matrix to a power, its eigenvalues floored: noise may have made them negative."""
    eigenvalues, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    result: Array = (vectors * np.maximum(eigenvalues, _EIGENVALUE_FLOOR) ** exponent) @ vectors.T
    return result


def clip_rows(y: Array, radius: float) -> Array:
    """Rows (n, q), those longer than ``radius`` shortened to it."""
    norm = np.linalg.norm(y, axis=1, keepdims=True)
    clipped: Array = y * np.minimum(1.0, radius * (1 - 1e-12) / np.maximum(norm, 1e-300))
    return clipped


def _clipped(scores: Array, radius: float) -> Array:
    """The rows (scores, 1), clipped."""
    return clip_rows(np.column_stack([scores, np.ones(len(scores))]), radius)

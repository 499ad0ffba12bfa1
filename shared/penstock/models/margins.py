r"""Noisy margins and noisy moments: the cheap, early parts of a private fit.

Both are sums of whole numbers over persons with exact discrete Gaussian noise, under zero-out with
public n: their sensitivities hold in the machine's arithmetic, not only on paper. Everything after
the noise is post-processing.

* :func:`noisy_histograms` counts each column on a fixed grid over the public box. From the counts
  come each column's location and scale (:func:`standardise`).
* :func:`noisy_moments` sums y yᵀ over clipped rows y = (scores, 1). :func:`match_moments` finds the
  affine map after which a model's samples, *clipped alike*, have these moments, so that clipping
  does not bias what it bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from penstock.privacy.discrete import add_discrete_gaussian, exact_positive, grid_sd
from penstock.privacy.events import DiscreteGaussian
from penstock.privacy.noise import NoiseSource
from penstock.privacy.sensitivity import histogram, second_moments

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

BINS = 32
"""Bins per column, equal widths over the public box."""

_ROW_BITS = 24
_ROWS_AT_ONCE = 1 << 14
"""Rows are whole numbers of at most 24 bits where their moments are summed: 2¹⁴ fit in an int64."""

_EIGENVALUE_FLOOR = 0.02
_MATCH_ROUNDS = 40
_MOST_STRETCH, _MOST_SHIFT = 10.0, 10.0
"""Bounds of the final match, in standard deviations: far beyond what any real cohort needs."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Noisy counts: ``bins`` (d, BINS), the number of ``rows`` present, and the sd of each."""

    bins: Array
    rows: float
    sd: float


def histogram_event(sigma: float, d: int, rows_per_person: int) -> DiscreteGaussian:
    """What :func:`noisy_histograms` is charged as."""
    sensitivity = histogram(d + 1, rows_per_person)
    grid = grid_sd(_histogram_variance(sigma, d, rows_per_person), 1.0)
    return DiscreteGaussian(sigma, 1, "margins", sensitivity, grid, BINS * d + 1)


def _histogram_variance(sigma: float, d: int, rows_per_person: int) -> Fraction:
    return exact_positive("noise multiplier", sigma) ** 2 * rows_per_person**2 * (d + 1)


def noisy_histograms(
    rows: Array, present: Bools, low: Array, high: Array, sigma: float | None, noise: NoiseSource
) -> Counts:
    """Histograms of every column and the number of rows, with noise.

    Args:
        rows: (n, k, d); present: (n, k). Values are clamped to the box; NaN counts at its centre.
        low, high: (d,), the public box.
        sigma: noise multiplier, or None for no noise (public rows, ``empirical`` class).

    Sensitivity: :func:`penstock.privacy.sensitivity.histogram` of d + 1 (each column, and the total
    number of rows), zero-out of one person.
    """
    n, k, d = rows.shape
    inside = clamp(rows, low, high)[present]
    place = np.clip(((inside - low) / (high - low) * BINS).astype(np.intp), 0, BINS - 1)
    counts = np.stack([np.bincount(place[:, j], minlength=BINS) for j in range(d)])
    whole = np.append(counts.ravel(), len(inside))
    flat, sd = whole.astype(np.float64), 0.0
    if sigma is not None:
        sd = sigma * histogram(d + 1, k)
        flat = add_discrete_gaussian(whole, _histogram_variance(sigma, d, k), noise, unit=1.0)
    # The number of rows is at most the public n·k, and a model needs at least one.
    return Counts(flat[:-1].reshape(d, BINS), float(np.clip(flat[-1], 1.0, max(n * k, 1))), sd)


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


def standardise(counts: Counts, low: Array, high: Array) -> Affine:
    """The map from scores, roughly of mean 0 and sd 1 per column, to values.

    Mean and sd of each noisy histogram, bins below two standard deviations of their noise left out:
    else the empty bins, most of the box, would outweigh the rest. Where nothing stands out of the
    noise, the box itself.
    """
    width = (high - low) / BINS
    centres = low[:, None] + width[:, None] * (np.arange(BINS) + 0.5)
    kept = np.where(counts.bins > 2 * counts.sd, counts.bins, 0.0)
    kept[kept.sum(axis=1) <= 0] = 1.0
    weights = kept / kept.sum(axis=1, keepdims=True)
    mean = (weights * centres).sum(axis=1)
    variance = (weights * (centres - mean[:, None]) ** 2).sum(axis=1)
    # A bin is as fine as these counts see: all rows equal still have a scale.
    return Affine(np.diag(np.sqrt(variance + width**2 / 12)), mean)


def moment_event(sigma: float, radius: float, d: int, rows_per_person: int) -> DiscreteGaussian:
    """What :func:`noisy_moments` is charged as."""
    sensitivity = second_moments(radius, rows_per_person)
    unit, variance = _row_unit(radius) ** 2, _moment_variance(sigma, radius, rows_per_person)
    grid = min(grid_sd(variance, unit), grid_sd(variance / 2, unit))
    return DiscreteGaussian(sigma, 1, "moments", sensitivity, grid, (d + 1) * (d + 2) // 2)


def _moment_variance(sigma: float, radius: float, rows_per_person: int) -> Fraction:
    sensitivity = rows_per_person * exact_positive("radius", radius) ** 2
    return (exact_positive("noise multiplier", sigma) * sensitivity) ** 2


def noisy_moments(
    scores: Array, present: Bools, radius: float, sigma: float | None, noise: NoiseSource
) -> Array:
    """Σ y yᵀ over present rows, y = (scores, 1) clipped to norm ``radius``; (d+1, d+1), symmetric.

    A symmetric matrix is one vector of its diagonal and √2 times its upper triangle, of the same L2
    norm; so the entries beside the diagonal carry 1/√2 of the diagonal's sd.

    Args:
        scores: (n, k, d); present: (n, k). What is not finite counts as 0, or not at all.
        sigma: noise multiplier, or None for no noise.

    Sensitivity: :func:`penstock.privacy.sensitivity.second_moments`, zero-out of one person; it
    holds exactly, by :func:`whole_moments`.
    """
    if sigma is None:
        y = _clipped(scores[present], radius)
        bare: Array = y.T @ y
        return bare
    total, unit = whole_moments(scores, present, radius)
    variance = _moment_variance(sigma, radius, scores.shape[1])
    upper = np.triu_indices(len(total), 1)
    noisy = np.diag(add_discrete_gaussian(np.diag(total), variance, noise, unit=unit))
    noisy[upper] = add_discrete_gaussian(total[upper], variance / 2, noise, unit=unit)
    noisy.T[upper] = noisy[upper]
    return noisy


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
    unit = _row_unit(radius)
    most = math.floor((exact_positive("radius", radius) / Fraction(unit)) ** 2)
    # Absent rows are computed too: no float may depend on how many persons there are.
    y = np.nan_to_num(_clipped(scores.reshape(-1, scores.shape[2]), radius) / unit)
    whole = np.clip(np.trunc(y), -math.isqrt(most), math.isqrt(most)).astype(np.int64)
    whole[~present.ravel() | ((whole**2).sum(axis=1) > most)] = 0
    total = np.zeros((whole.shape[1],) * 2, dtype=object)
    for at in range(0, len(whole), _ROWS_AT_ONCE):
        part = whole[at : at + _ROWS_AT_ONCE]
        total += np.einsum("ni,nj->ij", part, part)
    return total, unit * unit


def _row_unit(radius: float) -> float:
    """The power of two of which the radius is below 2^24 and at least 2^23."""
    return math.ldexp(1.0, math.frexp(radius)[1] - _ROW_BITS)


def gaussian(moments: Array, rows: float) -> Affine:
    """The affine map from standard Gaussians to one with the released (clipped) moments."""
    mean, covariance = _mean_and_covariance(moments / rows)
    return Affine(_root(covariance, 0.5), mean)


def match_moments(
    moments: Array,
    rows: float,
    radius: float,
    sample: Array,
    observe: Callable[[Array], Array] | None = None,
) -> Affine:
    r"""The affine map that gives a model's sample, seen as the rows were, the released moments.

    Indirect inference (Gourieroux, Monfort & Renault 1993) by a fixed point: map the sample,
    ``observe`` it, clip it to ``radius``, compare its mean m and covariance S with the released
    ones m*, S*, and compose with the optimal transport map between the two Gaussians,
    :math:`S^{-1/2}(S^{1/2} S^* S^{1/2})^{1/2} S^{-1/2}`, which moves the sample least. Rounding,
    thresholds and clipping therefore do not bias what is released.

    Args:
        moments: as released by :func:`noisy_moments`; rows: the (noisy) number of rows.
        sample: (N, d) scores drawn from the model, N large.
        observe: scores as the model makes them to scores as a row has them: decode, encode again.
    """
    d = sample.shape[1]
    goal_mean, goal_cov = _mean_and_covariance(moments / rows)
    matrix, shift = np.eye(d), np.zeros(d)
    spread = sample.std(axis=0) + 1e-6
    for _ in range(_MATCH_ROUNDS):
        y = sample @ matrix.T + shift
        # A threshold hides a column's scale, so that nothing would stop it from drifting.
        drift = np.maximum(y.std(axis=0) / spread, 1e-6)
        keep = np.clip(drift, 0.5, 2.0) / drift
        y = _clipped(y if observe is None else observe(y), radius)
        mean, cov = _mean_and_covariance(y.T @ y / len(y))
        root, inverse = _root(cov, 0.5), _root(cov, -0.5)
        step = (inverse @ _root(root @ goal_cov @ root, 0.5) @ inverse) * keep[:, None]
        # Moments that are mostly noise can lie where no sample gets: the chase must end somewhere,
        # and the map must keep its inverse.
        matrix = _within(step @ matrix, 1 / _MOST_STRETCH, _MOST_STRETCH)
        shift = np.clip(shift + (goal_mean - mean), -_MOST_SHIFT, _MOST_SHIFT)
    return Affine(matrix, shift)


def _within(matrix: Array, low: float, high: float) -> Array:
    """The matrix with its singular values brought into [low, high], low > 0: invertible."""
    left, values, right = np.linalg.svd(matrix)
    bounded: Array = (left * np.clip(values, low, high)) @ right
    return bounded


def _mean_and_covariance(moments: Array) -> tuple[Array, Array]:
    mean: Array = moments[:-1, -1]
    covariance: Array = moments[:-1, :-1] - np.outer(mean, mean)
    return mean, _root(covariance, 1.0)


def _root(matrix: Array, power: float) -> Array:
    """A symmetric matrix to a power, its eigenvalues floored: noise may have made them negative."""
    eigenvalues, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    result: Array = (vectors * np.maximum(eigenvalues, _EIGENVALUE_FLOOR) ** power) @ vectors.T
    return result


def _clipped(scores: Array, radius: float) -> Array:
    y = np.column_stack([scores, np.ones(len(scores))])
    norm = np.linalg.norm(y, axis=1, keepdims=True)
    clipped: Array = y * np.minimum(1.0, radius * (1 - 1e-12) / norm)
    return clipped


def clamp(x: Array, low: Array, high: Array) -> Array:
    """Values inside the box, NaN at its centre: what any row, however odd, counts as."""
    inside: Array = np.clip(np.where(np.isnan(x), (low + high) / 2, x), low, high)
    return inside

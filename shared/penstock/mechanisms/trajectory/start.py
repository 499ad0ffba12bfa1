r"""The start: noisy moments of the rows at each time point, and particles drawn from them.

A row is a point z of the unit space with a constant beside it, y = (z, a). A *cell* is a time
point, or a cluster of one; a release is Σ y yᵀ of every cell at once, in whole numbers with exact
discrete Gaussian noise, so that counts, means and covariances cost one charge.

Sensitivity (zero-out, public n): √k·R² with R² = r² + a², for a person of at most k rows of norm
‖z‖ ≤ r. A person's c rows in one cell count c^(-1/2) each, so that their sum there has norm
√c·R²; cells are disjoint coordinates, and Σ c ≤ k.

``k-means`` (Lloyd's rounds on noisy sums) repeats the release, with time points parted into
clusters by what the last one showed. All that follows a release is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.tables.moments import clip_rows, row_unit, whole_vectors
from penstock.privacy.measurements import WholeSum, is_known
from penstock.privacy.noise.discrete import exact_positive
from penstock.privacy.noise.sources import NoiseSource
from penstock.privacy.numbers import positive

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]

ROUNDS = 5
"""Releases of a k-means start: one of each time point, four of its clusters."""

_CONSTANT = 0.6
"""a over r. Smaller ones make covariances more exact, and counts less."""

_HALF = 24
"""Whole vectors have 24 bits a coordinate: a product is cut into two halves of 24 bits at most, of
which float64 adds up 2²⁸ exactly."""

_LEAST_VARIANCE = 4e-4
"""Of a released covariance, in any direction: noise may have made it negative."""

_LEAST_TIED = 0.02
"""Least eigenvalue of a correlation: below, noise has made it."""

_FAR, _NODES = 4.0, 64
"""Over how many sds, and in how many steps, a spread is expected."""

_LEAST_STEP = 0.01
"""Of a random walk along time, over the least noise variance: differences alone may show none."""

_CERTAIN = 3.0
"""A count that is lower than so many sds of its noise counts as that: it divides."""


@dataclass(frozen=True, slots=True)
class Start:
    """Public parameters of the start.

    Attributes:
        sigma: noise multiplier of each release; None: a public start, nothing is read.
        modes: clusters per time point; 1 is one Gaussian each.
        radius: r, to which rows are clipped; dimension: d of the unit space.
        rows: k, rows per person at most; cells: time points T.
    """

    sigma: float | None
    modes: int
    radius: float
    dimension: int
    rows: int
    cells: int

    @property
    def constant(self) -> float:
        """a, the coordinate that counts."""
        return _CONSTANT * self.radius

    @property
    def reach(self) -> float:
        """R, the norm of y; rounded up so that no y within the radius is longer."""
        return math.hypot(self.radius, self.constant) * (1 + 1e-9)

    @property
    def rounds(self) -> int:
        """How many releases there are."""
        return 0 if self.sigma is None else 1 if self.modes == 1 else ROUNDS

    @property
    def measurement(self) -> WholeSum | None:
        """What is released of the rows; None of a public start."""
        return None if self.sigma is None else measure_start(self)


def measure_start(start: Start) -> WholeSum:
    """Σ y yᵀ of every cell at once, in each round.

    Sensitivity √k·R² (zero-out, public n): the whole numbers keep it exactly.

    Raises:
        InvalidEvent: a public start, which has no noise.
    """
    d = start.dimension
    return WholeSum(
        label="start",
        noise_multiplier=positive("noise multiplier", start.sigma or 0.0),
        sensitivity=math.sqrt(start.rows) * start.reach**2 * (1 + 1e-12),
        squared=start.rows * exact_positive("reach", start.reach) ** 4,
        unit=row_unit(start.reach) ** 2,
        size=start.cells * start.modes * (d + 1) * (d + 2) // 2,
        count=start.rounds,
        symmetric=True,
    )


@dataclass(frozen=True, slots=True)
class Marginals:
    """What a start says of each cell; post-processing.

    Attributes:
        counts: (T, G) rows, at least 0; means: (T, G, d); covariances: (T, G, d, d), definite.
        count_sd: of a count's noise.
        rows: all rows, at least what their noise could hide: of counts that are cut off at 0 the
            sum would be too large.
    """

    counts: Array
    means: Array
    covariances: Array
    count_sd: float
    rows: float


def released(start: Start, z: Array, bins: Whole, there: Bools, noise: NoiseSource) -> Marginals:
    """The start's releases on rows z (n, k, d), their time points and presence (n, k).

    Privacy: :func:`measure_start`. Every row may be anything: what is not finite counts as absent.
    """
    measurement = measure_start(start)
    sums = measurement(_add_up(start, z, bins, there, bins, start.cells, noise), noise)
    found = marginals(start, sums[:, None])
    rows = found.rows  # of clusters there are more, hence more noise on their sum
    for _ in range(1, start.rounds):
        clusters = nearest_cluster(found, z, bins) if found.means.shape[1] > 1 else None
        if clusters is None:
            found = _split(found, start.modes)
            clusters = nearest_cluster(found, z, bins)
        cells = bins * start.modes + clusters
        count = start.cells * start.modes
        sums = measurement(_add_up(start, z, bins, there, cells, count, noise), noise)
        found = marginals(start, sums.reshape(start.cells, start.modes, *sums.shape[1:]))
    return replace(found, rows=rows)


def _add_up(
    start: Start,
    z: Array,
    bins: Whole,
    there: Bools,
    cells: Whole,
    count: int,
    noise: NoiseSource,
) -> NDArray[np.object_]:
    """What rows add to each cell; nothing where the sites' sum is known."""
    if is_known(noise):
        return np.zeros((count, start.dimension + 1, start.dimension + 1), dtype=object)
    whole, _ = contributions(start, z, bins, there, cells)
    return sum_cells(whole, cells.ravel(), count)


def contributions(
    start: Start, z: Array, bins: Whole, there: Bools, cells: Whole
) -> tuple[Whole, float]:
    """Rows y·c^(-1/4) as whole vectors (n·k, d + 1), and their unit; 0 where absent.

    c is how many rows the person has in the row's cell. What two such vectors of one cell add to
    Σ y yᵀ has norm ≤ R²/√c each *in whole numbers*: truncation shortens every coordinate.
    """
    n, k, d = z.shape
    flat = z.reshape(n * k, d)
    usable = there.ravel() & np.isfinite(flat).all(axis=1)
    y = clip_rows(np.where(usable[:, None], flat, 0.0), start.radius)
    y = np.column_stack([y, np.full(n * k, start.constant)])
    shared = _shared(cells, usable.reshape(n, k)).ravel()
    return whole_vectors(y * shared[:, None] ** -0.25, usable, start.reach)


def _shared(cells: Whole, usable: Bools) -> Array:
    """(n, k): how many of the person's usable rows are in the row's cell, at least 1."""
    alike = cells[:, :, None] == cells[:, None, :]
    count = (alike & usable[:, None, :]).sum(axis=2)
    return np.asarray(np.maximum(count, 1), dtype=np.float64)


def sum_cells(whole: Whole, cells: Whole, count: int) -> NDArray[np.object_]:
    """Σ y yᵀ of each of ``count`` cells, (count, d+1, d+1), upper triangles of whole numbers."""
    size = whole.shape[1]
    total = np.zeros((count, size, size), dtype=object)
    # Cell by cell by weight, not by picking rows: how many a cell has must not show in the work.
    for row, column in zip(*np.triu_indices(size), strict=True):
        product = whole[:, row] * whole[:, column]
        high, low = product >> _HALF, product & ((1 << _HALF) - 1)
        halves = [np.bincount(cells, weights=each, minlength=count) for each in (high, low)]
        summed = (each.astype(np.int64).astype(object) for each in halves)
        total[:, row, column] = (next(summed) << _HALF) + next(summed)
    return total


def marginals(start: Start, sums: Array) -> Marginals:
    """Counts, means and covariances from sums (T, G, d+1, d+1), smoothed along time.

    Each is taken for a random walk along time that is seen with the noise that is known to be
    there, whose steps' size the sums themselves show: where noise is small nothing is moved, and
    an empty cell is filled from its neighbours. Means walk around a straight line.
    """
    a, d = start.constant, start.dimension
    sd = math.sqrt(float(measure_start(start).variance))
    count_sd = sd / a**2
    seen = sums[..., d, d, None] / a**2
    rows = max(float(seen.sum()), count_sd * math.sqrt(seen.size))
    counts = np.maximum(smooth(seen, np.full(seen.shape[:2], count_sd))[0][..., 0], 0.0)
    safe = np.maximum(counts, _CERTAIN * count_sd)
    seen = sums[..., :d, d] / (a * safe[..., None])
    means = smooth(seen, sd / (math.sqrt(2) * a * safe), trend=True)[0]
    longest = np.linalg.norm(means, axis=-1, keepdims=True)
    means = means * np.minimum(1.0, start.radius / np.maximum(longest, 1e-300))
    second = sums[..., :d, :d] / safe[..., None, None]
    raw = second - means[..., :, None] * means[..., None, :]
    flat, variance = smooth(raw.reshape(*raw.shape[:2], d * d), sd / safe)
    covariances = rounded(flat.reshape(raw.shape), variance, start.radius)
    return Marginals(counts, means, _definite(covariances, start), count_sd, rows)


def rounded(covariances: Array, variance: Array, widest: float) -> Array:
    r"""Covariances (T, G, d, d) with noise on them, as likely ones as they may come of.

    A variance that noise hides is not none, nor what noise made of it: its root is the mean of σ
    given what was seen, if beforehand every σ up to ``widest`` is alike,

    .. math:: p(σ | x) ∝ \exp(-(σ^2 - x)^2 / 2v).

    Correlations are drawn to 0, each by what noise explains of it (James & Stein 1961; Efron &
    Morris 1975 for noise that differs): of noise alone large ones would be made, and eigenvalues
    below 0, which turn into spread when they are found out.

    Args:
        variance: (T, G) v of the noise on a diagonal entry; half of it beside the diagonal.
        widest: no column has a larger σ.
    """
    d, sd = covariances.shape[-1], np.sqrt(variance)[..., None]
    spread = _expect_spread(np.diagonal(covariances, axis1=-2, axis2=-1), sd, widest)
    size = spread[..., :, None] * spread[..., None, :]
    first, second = np.triu_indices(d, 1)
    seen = (covariances / size)[..., first, second]
    noise = (variance[..., None] / 2) / size[..., first, second] ** 2
    weight = 1 / noise**2
    common = (weight * (seen**2 - noise)).sum(axis=-1) / np.maximum(weight.sum(axis=-1), 1e-300)
    common = np.clip(common, 0.0, 1.0)[..., None]
    kept = np.zeros_like(covariances)
    kept[..., first, second] = kept[..., second, first] = seen * common / (common + noise)
    values, vectors = np.linalg.eigh(kept + np.eye(d))
    definite = (vectors * np.maximum(values, _LEAST_TIED)[..., None, :]) @ np.swapaxes(
        vectors, -1, -2
    )
    own = np.sqrt(np.diagonal(definite, axis1=-2, axis2=-1))
    return np.asarray(definite / (own[..., :, None] * own[..., None, :]) * size)


def _expect_spread(seen: Array, sd: Array, widest: float) -> Array:
    """(..., d) E[σ | x] of :func:`rounded`, by quadrature over where it is likely."""
    middle = np.sqrt(np.clip(seen, 0.0, widest**2))
    # Where σ is far from 0 it is known to sd/2σ; near 0 to the root of sd.
    about = _FAR * sd / np.sqrt(np.maximum(middle**2, sd / 2))
    low, high = np.maximum(middle - about, 0.0), np.minimum(middle + about, widest)
    share = (np.arange(_NODES) + 0.5) / _NODES
    at = low[..., None] + (high - low)[..., None] * share
    exponent = -(((at**2 - seen[..., None]) / sd[..., None]) ** 2) / 2
    chances = np.exp(exponent - exponent.max(axis=-1, keepdims=True))
    return np.asarray((at * chances).sum(axis=-1) / chances.sum(axis=-1))


def smooth(seen: Array, sd: Array, *, trend: bool = False) -> tuple[Array, Array]:
    """(T, G, q) values of G random walks that were seen with noise of sd (T, G), along T.

    The local level model: the posterior mean given the variance of a step, which is the mean
    square of the differences less what noise adds to it.

    Args:
        trend: around a straight line, by weighted least squares, that is not smoothed: a slope
            along time is what such data are asked for, and shrinking it would bias the answer.

    Returns:
        Smoothed values, and the variance (T, G) of the noise that is left on each.
    """
    smoothed, left = np.empty_like(seen), np.empty(seen.shape[:2])
    count = len(seen)
    for g in range(seen.shape[1]):
        noise = sd[:, g] ** 2
        precision = 1 / noise
        if count == 1:
            smoothed[:, g], left[:, g] = seen[:, g], noise
            continue
        line = _line(seen[:, g], precision) if trend else np.zeros_like(seen[:, g])
        rest = seen[:, g] - line
        weight = 1 / (noise[1:] + noise[:-1])
        jumps = (np.diff(rest, axis=0) ** 2).mean(axis=1)
        excess = float((weight * (jumps - noise[1:] - noise[:-1])).sum() / weight.sum())
        step = max(excess, _LEAST_STEP * float(np.min(noise)))
        walk = np.zeros((count, count))
        at = np.arange(count - 1)
        walk[at, at] += 1
        walk[at + 1, at + 1] += 1
        walk[at, at + 1] = walk[at + 1, at] = -1
        gain = np.linalg.inv(walk / step + np.diag(precision)) * precision
        smoothed[:, g] = line + gain @ rest
        left[:, g] = (gain**2) @ noise
    return smoothed, left


def _line(values: Array, precision: Array) -> Array:
    """(T, q) values to those of their weighted regression on the time point's number."""
    design = np.column_stack([np.ones(len(values)), np.arange(len(values)) - len(values) / 2])
    weighted = design * precision[:, None]
    fitted: Array = design @ np.linalg.solve(design.T @ weighted, weighted.T @ values)
    return fitted


def _definite(covariances: Array, start: Start) -> Array:
    """With eigenvalues between the least variance and what the radius allows."""
    values, vectors = np.linalg.eigh((covariances + np.swapaxes(covariances, -1, -2)) / 2)
    bounded = np.clip(values, _LEAST_VARIANCE, max(start.radius**2, _LEAST_VARIANCE))
    definite: Array = (vectors * bounded[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    return definite


def _split(found: Marginals, modes: int) -> Marginals:
    """Clusters to begin with: evenly along the longest axis of each time point.

    The axis is turned the same way from one time point to the next, so that a cluster stays one.
    """
    values, vectors = np.linalg.eigh(found.covariances[:, 0])
    axis = vectors[:, :, -1]
    for t in range(1, len(axis)):
        if axis[t] @ axis[t - 1] < 0:
            axis[t] *= -1
    places = np.linspace(-1.3, 1.3, modes)
    along = np.sqrt(values[:, -1])[:, None] * axis
    means = found.means + places[None, :, None] * along[:, None, :]
    inside = values[:, -1:] / modes**2
    covariances = np.repeat(inside[:, :, None, None] * np.eye(means.shape[2]), modes, axis=1)
    counts = np.repeat(found.counts / modes, modes, axis=1)
    return Marginals(counts, means, covariances, found.count_sd, found.rows)


def nearest_cluster(found: Marginals, z: Array, bins: Whole) -> Whole:
    """(n, k): the nearest centre of a row's time point."""
    rows = np.nan_to_num(z, nan=0.0, posinf=0.0, neginf=0.0)
    far = np.stack(
        [((rows - found.means[bins, g]) ** 2).sum(axis=-1) for g in range(found.means.shape[1])],
        axis=-1,
    )
    return np.asarray(far.argmin(axis=-1), dtype=np.int64)

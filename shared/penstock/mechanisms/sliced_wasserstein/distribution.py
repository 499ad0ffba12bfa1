r"""From a sketch to distribution functions: what the flow is to reach. Post-processing.

A sketch's noise is known exactly, and what it may show is not arbitrary: in units in which the rows
have mean 0 and sd 1 (the released moments see to that, nearly), a projection's distribution
function is the normal one and a deviation from it,

.. math:: F_θ(t) = Φ(t) - φ(t) \sum_{k ≥ 1} a_k(θ) \, He_{k-1}(t)/\sqrt{k!},
   \qquad a_k(θ) = E[He_k(θᵀx)]/\sqrt{k!}.

Where a density's Hermite coefficients of degree k are independent with variance τ_k²,
the a_k(θ) have this variance in every direction, and those of different degrees are uncorrelated.
The variances are estimated from the noisy sketch itself (maximum likelihood over the directions),
and deviations replaced by their best linear prediction; what all directions have in common, and
know far better together, is predicted first. So where there is little signal the flow stays at the
Gaussian that it starts from, and where there is much the sketch stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from penstock.mechanisms.sliced_wasserstein.sketch import Sketch

Array = NDArray[np.float64]

LEVELS = 512
"""Intervals on which distribution functions are kept."""

REACH = 2.8
"""Bins span this many sds to either side of the mean; rows beyond are in the outer bins. Wider
ones would spend noise on edges that few rows pass, and the tails are normal well enough."""

DEGREES = 12

_BEYOND = 1.25
"""Functions are kept this much further out than the bins, with tails by prediction."""

_ROUNDS = 100
"""Of the estimate of variances; always as many."""

_LEAST = 1e-5
"""A distribution function is known to this at best."""

_SLOPE = 1e-9
"""Least rise, as a share: the inverse exists."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Distribution functions that a flow is to reach, one per direction.

    Args:
        matrix: (d, N), the directions.
        points: (N, L + 1), rising along each row, and cdf: (N, L + 1), strictly rising from 0 to 1:
            linear in between.
    """

    matrix: Array
    points: Array
    cdf: Array

    def quantiles(self, levels: Array, which: NDArray[np.intp] | None = None) -> Array:
        """At levels (m,) or (N, m) in [0, 1], of all directions or of these; (N, m)."""
        some = np.arange(len(self.cdf)) if which is None else which
        rows = np.broadcast_to(levels, (len(some), levels.shape[-1]))
        found = np.empty(rows.shape)
        for out, level, j in zip(found, rows, some, strict=True):
            out[:] = np.interp(level, self.cdf[j], self.points[j])
        return found


def predicted(sketch: Sketch, rows: float) -> Targets:
    """Each direction's best linear prediction, as above, in the nearest rising order.

    The ranges' middles and half-widths must be mean ± a multiple of the sd, as nearly as these are
    known: :data:`REACH` sds.

    Args:
        rows: the number of rows, public or released.
    """
    low, high = sketch.directions.low, sketch.directions.high
    fine = np.linspace(-_BEYOND * REACH, _BEYOND * REACH, LEVELS + 1)
    at = np.linspace(-REACH, REACH, sketch.bins + 1)[1:-1]
    deviations = sketch.halves[:, 1:-1] / rows + 0.5 - ndtr(at)
    noise = sketch.covariance / rows**2
    shared, base = _shared(deviations, noise, at, fine)
    rest = deviations - shared
    own = rest @ _gain(rest, noise, at, fine).T
    points = (low + high)[:, None] / 2 + (high - low)[:, None] / (2 * REACH) * fine
    return Targets(sketch.directions.matrix, points, _rising(ndtr(fine) + base + own))


def _shared(deviations: Array, noise: Array, at: Array, fine: Array) -> tuple[Array, Array]:
    """What all directions have in common, at the edges and at fine points: heavy or light tails.

    Over all directions a deviation is odd in t on average, since θ and -θ see the same rows. Their
    mean has 1/N of the noise.
    """
    mean, odd = deviations.mean(axis=0), _odd(len(at))
    covariance = odd @ noise @ odd.T / len(deviations)
    seen = odd @ mean
    ends = [_gain(seen[None], covariance, at, t) @ seen for t in (at, fine)]
    return ends[0], ends[1]


def _odd(size: int) -> Array:
    """The projection f ↦ (f(t) - f(-t))/2 of values at symmetric points."""
    projection: Array = (np.eye(size) - np.eye(size)[::-1]) / 2
    return projection


def _gain(deviations: Array, noise: Array, at: Array, fine: Array) -> Array:
    """The linear prediction of deviations at ``fine`` from noisy ones ``at``; (L + 1, B - 1)."""
    own, cross = _parts(at, at), _parts(fine, at)
    # Noise of hardly any size, or in half of the dimensions only, must leave inverses.
    noise = noise + (_LEAST**2 + 1e-9 * np.trace(noise)) * np.eye(len(at))
    seen = deviations.T @ deviations / len(deviations)
    variances = np.full(len(own), 1e-3)
    for _ in range(_ROUNDS):
        precision = np.linalg.inv(noise + np.tensordot(variances, own, axes=1))
        explained = precision @ seen @ precision
        # Majorisation: up where the sketch varies more than is explained, down where less.
        ratio = np.einsum("kij,ij->k", own, explained) / np.einsum("kij,ij->k", own, precision)
        variances = np.maximum(variances * np.sqrt(np.maximum(ratio, 0.0)), 1e-16)
    signal = np.tensordot(variances, own, axes=1)
    gain = np.linalg.solve(noise + signal, np.tensordot(variances, cross, axes=1).T).T
    return np.asarray(gain)


def _parts(t: Array, s: Array) -> Array:
    """Covariances between deviations at t and at s, one per degree, and one of white noise."""
    degrees = np.einsum("ik,jk->kij", _shapes(t), _shapes(s))
    u, v = ndtr(t), ndtr(s)
    rest = np.minimum.outer(u, v) - np.outer(u, v)
    parts: Array = np.concatenate([degrees, rest[None]])
    return parts


def _shapes(t: Array) -> Array:
    r"""φ(t) He_{k-1}(t)/√k! for k = 1 … DEGREES, (len(t), DEGREES)."""
    found = [np.exp(-t * t / 2) / math.sqrt(2 * math.pi)]
    found.append(t * found[0])
    for k in range(2, DEGREES):
        found.append(t * found[-1] - (k - 1) * found[-2])
    scaled = [f / math.sqrt(math.factorial(k + 1)) for k, f in enumerate(found[:DEGREES])]
    return np.stack(scaled, axis=1)


def _rising(values: Array) -> Array:
    """Rows to strictly rising ones from 0 to 1, the nearest but for a tiny slope; never NaN."""
    # A quarter of a second of imports that every start of a gate or a worker would wait for.
    from scipy.optimize import isotonic_regression

    rising = np.stack([isotonic_regression(row).x for row in np.nan_to_num(values, nan=0.5)])
    inside = np.clip(rising, 0.0, 1.0)
    inside[:, 0], inside[:, -1] = 0.0, 1.0
    inside = inside * (1 - _SLOPE) + _SLOPE * np.linspace(0, 1, inside.shape[1])
    return np.asarray(inside)

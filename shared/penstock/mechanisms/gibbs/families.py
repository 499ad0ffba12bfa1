r"""The losses of one linear predictor: φ(z; y) that is convex, with a slope and a bend in bounds.

==============  =============================== =========================== ===============
family          φ'(z; y)                        L                           b
==============  =============================== =========================== ===============
linear          clip(z - y, ±L) (Huber 1964)    given                       1
logistic        1/(1 + e^-z) - y                1                           1/4
poisson         clip(e^z - y, ±L), y ≤ Y        given                       Y + L
weibull         min(e^z, A) - d, d in {0, 1}    max(1, A)                   A
==============  =============================== =========================== ===============

(e^z - y ≤ L only where e^z ≤ Y + L.) A Weibull model with shape κ has cumulative hazard
e^z, z = κ log t + …, and log density z + log κ of an event, up to a constant; the term -Σ w d·log κ
depends on rows through one number, which is released beforehand with noise of its own; it is public
here, convex, and linear below a least κ.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEAST_SHAPE = 0.2
"""Of a Weibull model: below, its own term of the posterior goes on as a straight line."""

LARGEST_PREDICTOR = 40.0
"""Linear predictors are cut off here: e^40 is finite, and 1/(1 + e^-40) is 1 in float64."""


def library_of(array: Any) -> ModuleType:
    """The library whose array this is: numpy, or torch, which is loaded where its tensors are.

    So that plans, which are posed without any tensor, import no torch.
    """
    return sys.modules[type(array).__module__.partition(".")[0]]


def capped_exponential(xp: ModuleType, z: Any, most: float) -> Any:
    """∫ min(e^z, A): e^z up to log A, a straight line beyond."""
    at = xp.clip(z, None, math.log(most))
    return xp.exp(at) * (1 + z - at)


class Family(ABC):
    """A loss; z and y are (N,) arrays of numpy or torch, ``limit`` is L or A of the table above."""

    @abstractmethod
    def largest_slope(self, limit: float) -> float:
        """L."""

    @abstractmethod
    def largest_bend(self, limit: float, largest: float) -> float:
        """b; ``largest`` is Y of a count."""

    @abstractmethod
    def loss(self, z: Any, y: Any, limit: float) -> Any:
        """φ, (N,)."""

    @abstractmethod
    def slope(self, z: Any, y: Any, limit: float) -> Any:
        """φ', (N,)."""

    @abstractmethod
    def bend(self, z: Any, y: Any, limit: float) -> Any:
        """φ'', (N,), where it exists."""

    def cut_off(self, z: Any) -> Any:
        """The predictor, cut off where e^z would overflow: slopes are constant there."""
        return library_of(z).clip(z, -LARGEST_PREDICTOR, LARGEST_PREDICTOR)

    def bend_ratio(self, curvature: Array, first: float, theta: Array, intercept: bool) -> float:
        """E[φ''] at θ over that at the start, where every z is ``first``, by what was released.

        1 of those whose score equations keep E[e^z].
        """
        return 1.0

    def public_loss(self, theta: Array, events: float) -> float:
        """What the posterior has beside rows and ridge: of public numbers alone."""
        return 0.0

    def public_slope(self, theta: Array, events: float, persons: int) -> Array:
        """Its gradient (p,), the mean over persons."""
        return np.zeros(len(theta))

    def public_curvature(self, theta: Array, events: float, persons: int) -> Array:
        """Its Hessian (p, p), the mean over persons."""
        return np.zeros((len(theta), len(theta)))


class _Linear(Family):
    def largest_slope(self, limit: float) -> float:
        return limit

    def largest_bend(self, limit: float, largest: float) -> float:
        return 1.0

    def loss(self, z: Any, y: Any, limit: float) -> Any:
        r = abs(z - y)
        inner, outer = r * r / 2, limit * (r - limit / 2)
        return library_of(z).where(r <= limit, inner, outer)

    def slope(self, z: Any, y: Any, limit: float) -> Any:
        return library_of(z).clip(z - y, -limit, limit)

    def bend(self, z: Any, y: Any, limit: float) -> Any:
        return (0 * z + 1.0) * (abs(z - y) <= limit)  # of z's own precision

    def cut_off(self, z: Any) -> Any:
        """As it is: the loss is straight far out by itself."""
        return z


class _Logistic(Family):
    def largest_slope(self, limit: float) -> float:
        return 1.0

    def largest_bend(self, limit: float, largest: float) -> float:
        return 0.25

    def loss(self, z: Any, y: Any, limit: float) -> Any:
        return library_of(z).logaddexp(0 * z, z) - y * z

    def slope(self, z: Any, y: Any, limit: float) -> Any:
        return 1.0 / (1.0 + library_of(z).exp(-z)) - y

    def bend(self, z: Any, y: Any, limit: float) -> Any:
        share = 1.0 / (1.0 + library_of(z).exp(-z))
        return share * (1.0 - share)

    def bend_ratio(self, curvature: Array, first: float, theta: Array, intercept: bool) -> float:
        """It falls as the predictor spreads: by E[s(1-s)], s = 1/(1 + e^-z), for a normal z with
        the released second moments."""
        moments = curvature / _expected_bend(first, 0.0)
        mean = 0.0
        if intercept:
            moments = moments / moments[0, 0]
            mean = float(moments[0] @ theta)
        variance = float(theta @ moments @ theta) - mean**2
        ratio = _expected_bend(mean, variance) / _expected_bend(first, 0.0)
        return min(max(ratio, 0.05), 4.0)


def _expected_bend(mean: float, variance: float) -> float:
    """E[s(1-s)] for a normal linear predictor."""
    nodes, masses = hermegauss(31)
    z = np.clip(mean + math.sqrt(max(variance, 0.0)) * nodes, -30.0, 30.0)
    share = 1.0 / (1.0 + np.exp(-z))
    return float((share * (1 - share)) @ masses / masses.sum())


class _Poisson(Family):
    def largest_slope(self, limit: float) -> float:
        return limit

    def largest_bend(self, limit: float, largest: float) -> float:
        return largest + limit

    def loss(self, z: Any, y: Any, limit: float) -> Any:
        xp = library_of(z)
        low = xp.log(xp.maximum(y - limit, 0 * y + 1e-300))
        high = xp.log(y + limit)
        at = xp.minimum(xp.maximum(z, low), high)
        values = xp.exp(at) - y * at + (xp.exp(at) - y) * (z - at)
        return xp.where(z < low, xp.exp(at) - y * at - limit * (z - at), values)

    def slope(self, z: Any, y: Any, limit: float) -> Any:
        xp = library_of(z)
        return xp.clip(xp.exp(z) - y, -limit, limit)

    def bend(self, z: Any, y: Any, limit: float) -> Any:
        mean = library_of(z).exp(z)
        return mean * (abs(mean - y) <= limit)


class _Weibull(Family):
    """θ[1] is the shape."""

    def largest_slope(self, limit: float) -> float:
        return max(1.0, limit)

    def largest_bend(self, limit: float, largest: float) -> float:
        return limit

    def loss(self, z: Any, y: Any, limit: float) -> Any:
        return capped_exponential(library_of(z), z, limit) - y * z

    def slope(self, z: Any, y: Any, limit: float) -> Any:
        xp = library_of(z)
        return xp.clip(xp.exp(z), None, limit) - y

    def bend(self, z: Any, y: Any, limit: float) -> Any:
        mean = library_of(z).exp(z)
        return mean * (mean <= limit)

    def public_loss(self, theta: Array, events: float) -> float:
        k = max(float(theta[1]), LEAST_SHAPE)
        return -events * (math.log(k) + (float(theta[1]) - k) / k)

    def public_slope(self, theta: Array, events: float, persons: int) -> Array:
        slope = np.zeros(len(theta))
        slope[1] = -events / persons / max(float(theta[1]), LEAST_SHAPE)
        return slope

    def public_curvature(self, theta: Array, events: float, persons: int) -> Array:
        curvature = np.zeros((len(theta), len(theta)))
        shape = max(float(theta[1]), LEAST_SHAPE)
        curvature[1, 1] = events / persons / shape**2
        return curvature


LINEAR_LOSS, LOGISTIC_LOSS = _Linear(), _Logistic()
POISSON_LOSS, WEIBULL_LOSS = _Poisson(), _Weibull()

r"""Strongly convex, smooth posteriors in which one person's gradient is bounded at *every* θ.

.. math:: F(θ) = \frac1n \sum_{i} w_i \, φ(a_i^T θ; y_i) + \frac λ2 ‖θ - θ_0‖^2

over the rows a of all n persons (public; null rows contribute nothing), θ₀ public. Nothing is
clipped that would break convexity: the *slope* φ' is cut off instead, which makes φ linear beyond.

**Proposition.** Let φ' be non-decreasing in z with ``|φ'| ≤ L`` and 0 ≤ φ'' ≤ b where φ'' exists,
and w = min(1, (X/‖x‖)²) for a = (f, x) with ‖f‖² ≤ f₀. Then with R² = f₀ + X², at every θ and for
every row, (i) ‖w φ' a‖ ≤ L·R; (ii) w φ'' a aᵀ has no eigenvalue outside [0, b·R²]. So, for k rows
per person, one person moves ∇F by at most k·L·R/n (zero-out), and F is λ-strongly convex and
(k·b·R² + λ)-smooth, *whoever is zeroed out*.

*Proof.* Where ‖x‖ ≤ X, w = 1 and ‖a‖² ≤ R². Beyond, with u = X/‖x‖ < 1: w²‖a‖² = u⁴‖f‖² + u²X² ≤ R²
and w‖a‖² = u²‖f‖² + X² ≤ R². The sum over n persons of at most k rows each, divided by n, keeps a
Hessian's eigenvalues within k·b·R²; a null record only takes a summand away. ∎

A weight depends on covariates alone, so that a correct model's estimating equations stay unbiased
(Mallows 1975); clipping the covariates would attenuate slopes.

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

:class:`Piecewise` has several linear predictors per row: see there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidEvent
from penstock.mechanisms.gibbs.design import LEAST_SHAPE
from penstock.mechanisms.gibbs.sums import triangle

Array = NDArray[np.float64]

_LARGEST = 40.0
"""Linear predictors are cut off here: e^40 is finite, and 1/(1 + e^-40) is 1 in float64."""


class Posterior(Protocol):
    """What a chain descends on.

    Attributes:
        dimension: p of θ.
        start: θ₀ (p,), public.
        ridge: λ.
        reach: bound on the norm of one row's gradient; over n, and k-fold, it is the sensitivity.
        bend: bound on the largest eigenvalue of one row's Hessian.
    """

    @property
    def dimension(self) -> int: ...
    @property
    def start(self) -> Array: ...
    @property
    def ridge(self) -> float: ...
    @property
    def reach(self) -> float: ...
    @property
    def bend(self) -> float: ...

    def gradient(self, theta: Array) -> Array:
        """∇F(θ), (p,): exact, on private rows."""

    def loss(self, theta: Array) -> float:
        """F(θ) up to a constant: exact, on private rows; for tests and studies."""

    def information(self, theta: Array, cap: float, part: slice) -> Array:
        """Each row's Hessian as a vector (rows, p(p+1)/2) of norm at most 1, in units of
        cap·(f₀ + X²), its curvature cut off at ``cap``."""

    def prior_curvature(self, theta: Array) -> Array:
        """(p, p) what the public terms add to the Hessian, the ridge among it."""


def weights(x: Array, bound: float) -> Array:
    """min(1, (X/‖x‖)²) of rows (N, q)."""
    squared = np.maximum((x**2).sum(axis=1), 1e-300)
    found: Array = np.minimum(1.0, bound**2 / squared)
    return found


def _xp(array: Any) -> ModuleType:
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


def _numpy(array: Any) -> Array:
    if isinstance(array, np.ndarray):
        return array
    found: Array = array.detach().cpu().numpy()
    return found


def place(array: Array, device: str) -> Any:
    """The array where a chain's arithmetic is done: numpy on a CPU, else a float64 tensor."""
    if device == "cpu":
        return array
    import torch

    return torch.asarray(array, dtype=torch.float64, device=device)


@dataclass(frozen=True, slots=True)
class Regression:
    """One linear predictor per row.

    Args:
        family: ``linear``, ``logistic``, ``poisson`` or ``weibull``.
        design: (N, p), 0 in null rows; outcome: (N,); weight: (N,), 0 in null rows. Numpy arrays,
            or tensors.
        squared: R² = f₀ + X².
        limit: L (linear, poisson), A (weibull); 1 for logistic.
        largest: Y of a count.
        persons, rows: n and k.
        start, ridge: θ₀ and λ.
        events: Σ w d, as released (weibull); θ[1] is the shape.
    """

    family: str
    design: Any
    outcome: Any
    weight: Any
    squared: float
    limit: float
    persons: int
    rows: int
    start: Array
    ridge: float
    largest: float = 1.0
    events: float = 0.0

    def __post_init__(self) -> None:
        if self.family not in ("linear", "logistic", "poisson", "weibull"):
            raise InvalidEvent("an unknown family", value=self.family)
        for name in ("squared", "limit", "ridge", "largest"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidEvent(f"{name} must be finite and positive", value=getattr(self, name))
        if not (math.isfinite(self.events) and self.events >= 0):
            raise InvalidEvent("events must be finite and not negative", value=self.events)

    @property
    def dimension(self) -> int:
        return len(self.start)

    @property
    def reach(self) -> float:
        slope = {"logistic": 1.0, "weibull": max(1.0, self.limit)}.get(self.family, self.limit)
        return slope * math.sqrt(self.squared)

    @property
    def bend(self) -> float:
        curvature = {
            "linear": 1.0,
            "logistic": 0.25,
            "poisson": self.largest + self.limit,
            "weibull": self.limit,
        }
        return curvature[self.family] * self.squared

    def gradient(self, theta: Array) -> Array:
        slope = self.weight * self._slope(self._predictor(theta))
        total = _numpy(self.design.T @ slope) / self.persons
        found: Array = total + self.ridge * (theta - self.start) + self._public_slope(theta)
        return found

    def loss(self, theta: Array) -> float:
        xp = _xp(self.design)
        z, y = self._predictor(theta), self.outcome
        if self.family == "linear":
            r = abs(z - y)
            inner, outer = r * r / 2, self.limit * (r - self.limit / 2)
            values = xp.where(r <= self.limit, inner, outer)
        elif self.family == "logistic":
            values = xp.logaddexp(0 * z, z) - y * z
        elif self.family == "weibull":
            values = _capped(xp, z, self.limit) - y * z
        else:
            low = xp.log(xp.maximum(y - self.limit, 0 * y + 1e-300))
            high = xp.log(y + self.limit)
            at = xp.minimum(xp.maximum(z, low), high)
            values = xp.exp(at) - y * at + (xp.exp(at) - y) * (z - at)
            values = xp.where(z < low, xp.exp(at) - y * at - self.limit * (z - at), values)
        shape = 0.0
        if self.family == "weibull":
            k = max(float(theta[1]), LEAST_SHAPE)
            shape = -self.events * (math.log(k) + (float(theta[1]) - k) / k)
        off = theta - self.start
        total = float((self.weight * values).sum()) + shape
        return total / self.persons + self.ridge / 2 * float(off @ off)

    def information(self, theta: Array, cap: float, part: slice) -> Array:
        xp = _xp(self.design)
        a = self.design[part]
        z = xp.clip(a @ self._like(theta), -_LARGEST, _LARGEST)
        bent = xp.clip(self._curvature(z, self.outcome[part]), None, cap) * self.weight[part]
        first, second, factor = triangle(self.dimension)
        rows = _numpy(a)
        scaled = _numpy(bent)[:, None] / (cap * self.squared)
        found: Array = scaled * rows[:, first] * rows[:, second] * factor
        return found

    def residuals(self, theta: Array, part: slice) -> Array:
        """Of a linear model: clip(y - z, ±L), (rows,)."""
        z = _numpy(self.design[part] @ self._like(theta))
        found: Array = np.clip(_numpy(self.outcome[part]) - z, -self.limit, self.limit)
        return found

    def weights(self, part: slice) -> Array:
        return _numpy(self.weight[part])

    def prior_curvature(self, theta: Array) -> Array:
        curvature: Array = self.ridge * np.eye(self.dimension)
        if self.family == "weibull":
            shape = max(float(theta[1]), LEAST_SHAPE)
            curvature[1, 1] += self.events / self.persons / shape**2
        return curvature

    def _like(self, theta: Array) -> Any:
        return theta if isinstance(self.design, np.ndarray) else self.design.new_tensor(theta)

    def _predictor(self, theta: Array) -> Any:
        z = self.design @ self._like(theta)
        # A linear loss is straight far out by itself; the others' slopes are constant there.
        return z if self.family == "linear" else _xp(z).clip(z, -_LARGEST, _LARGEST)

    def _slope(self, z: Any) -> Any:
        xp, y = _xp(z), self.outcome
        if self.family == "linear":
            return xp.clip(z - y, -self.limit, self.limit)
        if self.family == "logistic":
            return 1.0 / (1.0 + xp.exp(-z)) - y
        if self.family == "poisson":
            return xp.clip(xp.exp(z) - y, -self.limit, self.limit)
        return xp.clip(xp.exp(z), None, self.limit) - y

    def _curvature(self, z: Any, y: Any) -> Any:
        xp = _xp(z)
        if self.family == "linear":
            return (0 * z + 1.0) * (abs(z - y) <= self.limit)  # of z's own precision
        if self.family == "logistic":
            share = 1.0 / (1.0 + xp.exp(-z))
            return share * (1.0 - share)
        mean = xp.exp(z)
        if self.family == "poisson":
            return mean * (abs(mean - y) <= self.limit)
        return mean * (mean <= self.limit)

    def _public_slope(self, theta: Array) -> Array:
        slope = np.zeros(self.dimension)
        if self.family == "weibull":
            slope[1] = -self.events / self.persons / max(float(theta[1]), LEAST_SHAPE)
        return slope


def _capped(xp: ModuleType, z: Any, most: float) -> Any:
    """∫ min(e^z, A): e^z up to log A, a straight line beyond."""
    at = xp.clip(z, None, math.log(most))
    return xp.exp(at) * (1 + z - at)


@dataclass(frozen=True, slots=True)
class Piecewise:
    r"""A piecewise exponential survival model: J levels of the baseline, q slopes.

    With u_j the baseline's cumulative hazard that a row lived through in interval j (time in it,
    times a *released* rate), d_j its event, and z_j = α_j + xᵀβ:

    .. math:: φ = \sum_j u_j h(z_j) - d_j z_j, \quad h' = \min(e^z, E), \quad \sum_j u_j ≤ U

    **Proposition.** With A = U·E and w, X as for one predictor, one row's gradient has norm at most
    s = max{A√(1+X²), √(1+X²), √(1 + A² + (A-1)²X²)} at every θ, and its Hessian lies in
    [0, A(1+X²)].

    *Proof.* The gradient is w·(g, x Σg) with g_j = u_j h'(z_j) - d_j, of which at most one d_j is
    1, and 0 ≤ Σ u_j h' = a ≤ A. Without an event Σ g² ≤ a², (Σg)² = a². With one, in interval k,
    (Σg)² = (a-1)², and Σ g² ≤ (1-a_k)² + (a-a_k)² is convex in a_k, so at most
    max{1 + a², (1-a)²}. With the second, (1-a)²(1+X²) ≤ max{1, A²}(1+X²); with the first,
    1 + a² + (a-1)²X² is convex in a: 1 + X² at a = 0, the third term of s at a = A. And ‖wx‖ ≤ X as
    before. The Hessian is a sum of positive semidefinite terms with trace
    w Σ_j u_j h''(1 + ‖x‖²) ≤ A(1+X²). ∎

    Args:
        hazard: u (N, J); died: d (N, J) of 0 and 1; covariates: x (N, q); weight: (N,), 0 in null
            rows.
        most: U, bound on Σ_j u_j; relative: E.
        squared: R² = 1 + X².
    """

    hazard: Any
    died: Any
    covariates: Any
    weight: Any
    most: float
    relative: float
    squared: float
    persons: int
    rows: int
    start: Array
    ridge: float

    def __post_init__(self) -> None:
        for name in ("most", "relative", "ridge"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidEvent(f"{name} must be finite and positive", value=getattr(self, name))
        if not 1 <= self.squared < math.inf:
            raise InvalidEvent("R² must be at least 1", value=self.squared)

    @property
    def dimension(self) -> int:
        return len(self.start)

    @property
    def pieces(self) -> int:
        return int(self.hazard.shape[1])

    @property
    def reach(self) -> float:
        a, x2 = self.most * self.relative, self.squared - 1
        return math.sqrt(max(max(1.0, a * a) * (1 + x2), 1 + a * a + (a - 1) ** 2 * x2))

    @property
    def bend(self) -> float:
        return self.most * self.relative * self.squared

    def gradient(self, theta: Array) -> Array:
        xp = _xp(self.hazard)
        excess = self.hazard * xp.clip(xp.exp(self._predictors(theta)), None, self.relative)
        excess = (excess - self.died) * self.weight[:, None]
        baseline, slopes = excess.sum(0), self.covariates.T @ excess.sum(1)
        total = np.concatenate([_numpy(baseline), _numpy(slopes)]) / self.persons
        found: Array = total + self.ridge * (theta - self.start)
        return found

    def loss(self, theta: Array) -> float:
        xp, z = _xp(self.hazard), self._predictors(theta)
        values = self.hazard * _capped(xp, z, self.relative) - self.died * z
        off = theta - self.start
        total = float((self.weight * values.sum(1)).sum())
        return total / self.persons + self.ridge / 2 * float(off @ off)

    def information(self, theta: Array, cap: float, part: slice) -> Array:
        z = _numpy(self._predictors(theta, part))
        bent = _numpy(self.hazard[part]) * np.exp(z) * (np.exp(z) <= self.relative)
        total = bent.sum(axis=1)
        bent *= (_numpy(self.weight[part]) * np.minimum(1, cap / np.maximum(total, cap)))[:, None]
        x = _numpy(self.covariates[part])
        j, p = self.pieces, self.dimension
        first, second, factor = triangle(p)
        own = bent.sum(axis=1)
        # (e_j, x)(e_j, x)ᵀ summed over j: diagonal in the baseline, u_j·x beside it.
        full = np.zeros((len(x), len(first)))
        both = (first < j) & (second < j)
        full[:, both & (first == second)] = bent
        mixed = (first < j) & (second >= j)
        full[:, mixed] = bent[:, first[mixed]] * x[:, second[mixed] - j]
        rest = first >= j
        full[:, rest] = own[:, None] * x[:, first[rest] - j] * x[:, second[rest] - j]
        found: Array = full * factor / (cap * self.squared)
        return found

    def prior_curvature(self, theta: Array) -> Array:
        curvature: Array = self.ridge * np.eye(self.dimension)
        return curvature

    def _predictors(self, theta: Array, part: slice | None = None) -> Any:
        xp, j = _xp(self.hazard), self.pieces
        x = self.covariates if part is None else self.covariates[part]
        like = theta if isinstance(x, np.ndarray) else x.new_tensor(theta)
        return xp.clip(like[None, :j] + (x @ like[j:])[:, None], -_LARGEST, _LARGEST)

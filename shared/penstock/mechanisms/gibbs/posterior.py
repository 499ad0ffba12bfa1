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

The losses φ are in :mod:`penstock.mechanisms.gibbs.families`.
:class:`Piecewise` has several linear predictors per row: see there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidEvent
from penstock.mechanisms.gibbs.curvature import triangle
from penstock.mechanisms.gibbs.families import (
    LARGEST_PREDICTOR,
    Family,
    capped_exponential,
    library_of,
)

Array = NDArray[np.float64]


class Posterior(Protocol):
    """What a chain descends on.

    Attributes:
        dimension: p of θ.
        weight: w (N,), one for each row.
        start: θ₀ (p,), public.
        ridge: λ.
        reach: bound on the norm of one row's gradient; over n, and k-fold, it is the sensitivity.
        bend: bound on the largest eigenvalue of one row's Hessian.
    """

    @property
    def dimension(self) -> int: ...
    @property
    def weight(self) -> Any: ...
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

    def row_gradients(self, theta: Array, part: slice) -> Array:
        """Each row's own gradient (rows, p), in units of :attr:`reach`: of norm at most 1.

        A row's is computed by itself, so that it is the same whichever rows stand beside it.
        """

    def prior_gradient(self, theta: Array) -> Array:
        """(p,) what the public terms add to ∇F: ∇F = reach/n · Σ over rows of their own + this."""


def weights(x: Array, bound: float) -> Array:
    """min(1, (X/‖x‖)²) of rows (N, q)."""
    squared = np.maximum((x**2).sum(axis=1), 1e-300)
    found: Array = np.minimum(1.0, bound**2 / squared)
    return found


def _until(hazard: Any, most: float) -> Any:
    """Hazards (N, J) of one piece after another, until their sum is ``most``."""
    xp = library_of(hazard)
    left = most - (xp.cumsum(hazard, 1) - hazard)
    return xp.minimum(hazard, xp.clip(left, 0.0, None))


def _multiply_rows(rows: Any, theta: Any) -> Any:
    """rows · θ, (N,): a matrix product may round a row by where it stands, and this does not."""
    return (rows * theta).sum(1)


def _numpy(array: Any) -> Array:
    if isinstance(array, np.ndarray):
        return array
    found: Array = array.detach().cpu().numpy()
    return found


@dataclass(frozen=True, slots=True)
class Regression:
    """One linear predictor per row.

    Args:
        family: the loss.
        design: (N, p), 0 in null rows; outcome: (N,); weight: (N,), 0 in null rows. Numpy arrays,
            or tensors.
        squared: R² = f₀ + X².
        limit: L (linear, poisson), A (weibull); 1 for logistic.
        largest: Y of a count.
        persons, rows: n and k.
        start, ridge: θ₀ and λ.
        events: Σ w d, as released (weibull); θ[1] is the shape.
    """

    family: Family
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
        if not isinstance(self.family, Family):
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
        return self.family.largest_slope(self.limit) * math.sqrt(self.squared)

    @property
    def bend(self) -> float:
        return self.family.largest_bend(self.limit, self.largest) * self.squared

    def gradient(self, theta: Array) -> Array:
        z = self.family.cut_off(self._predictor(theta))
        slope = self.weight * self.family.slope(z, self.outcome, self.limit)
        total = _numpy(self.design.T @ slope) / self.persons
        public = self.family.public_slope(theta, self.events, self.persons)
        found: Array = total + self.ridge * (theta - self.start) + public
        return found

    def row_gradients(self, theta: Array, part: slice) -> Array:
        a = self.design[part]
        z = self.family.cut_off(_multiply_rows(a, self._like(theta)))
        slope = self.weight[part] * self.family.slope(z, self.outcome[part], self.limit)
        found: Array = _numpy(a) * _numpy(slope)[:, None] / self.reach
        return found

    def prior_gradient(self, theta: Array) -> Array:
        public = self.family.public_slope(theta, self.events, self.persons)
        found: Array = self.ridge * (theta - self.start) + public
        return found

    def loss(self, theta: Array) -> float:
        z = self.family.cut_off(self._predictor(theta))
        values = self.family.loss(z, self.outcome, self.limit)
        off = theta - self.start
        total = float((self.weight * values).sum()) + self.family.public_loss(theta, self.events)
        return total / self.persons + self.ridge / 2 * float(off @ off)

    def information(self, theta: Array, cap: float, part: slice) -> Array:
        xp = library_of(self.design)
        a = self.design[part]
        z = _multiply_rows(a, self._like(theta))
        z = xp.clip(z, -LARGEST_PREDICTOR, LARGEST_PREDICTOR)
        bend = self.family.bend(z, self.outcome[part], self.limit)
        bent = xp.clip(bend, None, cap) * self.weight[part]
        first, second, factor = triangle(self.dimension)
        rows = _numpy(a)
        scaled = _numpy(bent)[:, None] / (cap * self.squared)
        found: Array = scaled * rows[:, first] * rows[:, second] * factor
        return found

    def residuals(self, theta: Array, part: slice) -> Array:
        """-φ', (rows,): of a linear model clip(y - z, ±L)."""
        z = self.family.cut_off(_multiply_rows(self.design[part], self._like(theta)))
        found: Array = -_numpy(self.family.slope(z, self.outcome[part], self.limit))
        return found

    def outcomes(self, part: slice) -> Array:
        return _numpy(self.outcome[part])

    def weights(self, part: slice) -> Array:
        return _numpy(self.weight[part])

    def prior_curvature(self, theta: Array) -> Array:
        public = self.family.public_curvature(theta, self.events, self.persons)
        curvature: Array = self.ridge * np.eye(self.dimension) + public
        return curvature

    def _like(self, theta: Array) -> Any:
        return theta if isinstance(self.design, np.ndarray) else self.design.new_tensor(theta)

    def _predictor(self, theta: Array) -> Any:
        return self.design @ self._like(theta)


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

    The cut h' counts all events of those with a high hazard, and only a part of it: a slope that
    takes e^z beyond E is biased away from 0. ``stopped``, a row's follow-up ends where its own
    cumulative hazard Σ u_j e^{z_j} at the present θ is A, and an event after that counts no more.
    Then 0 ≤ a ≤ A and the first proof hold as they are, and since the end is foreseen, the score
    ∫(dN - dΛ) up to there has mean 0 at the truth (Aalen 1978), whatever A is. It jumps in θ where
    an event drops out, so that it is the gradient of no convex function: bounded at every θ, which
    is all that composition asks, but not for a chain that is accounted by its last iterate.

    Args:
        hazard: u (N, J); died: d (N, J) of 0 and 1; covariates: x (N, q); weight: (N,), 0 in null
            rows.
        most: U, bound on Σ_j u_j; relative: E.
        squared: R² = 1 + X².
        stopped: follow-up ends at A; else h' is cut off.
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
    stopped: bool = False

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
        excess = self._excess(theta) * self.weight[:, None]
        baseline, slopes = excess.sum(0), self.covariates.T @ excess.sum(1)
        total = np.concatenate([_numpy(baseline), _numpy(slopes)]) / self.persons
        found: Array = total + self.ridge * (theta - self.start)
        return found

    def row_gradients(self, theta: Array, part: slice) -> Array:
        excess = _numpy(self._excess(theta, part) * self.weight[part][:, None])
        slopes = _numpy(self.covariates[part]) * excess.sum(1)[:, None]
        found: Array = np.column_stack([excess, slopes]) / self.reach
        return found

    def prior_gradient(self, theta: Array) -> Array:
        found: Array = self.ridge * (theta - self.start)
        return found

    def loss(self, theta: Array) -> float:
        """F(θ); of which the gradient is the derivative unless follow-up is ``stopped``."""
        xp, z = library_of(self.hazard), self._predictors(theta)
        values = self.hazard * capped_exponential(xp, z, self.relative) - self.died * z
        off = theta - self.start
        total = float((self.weight * values.sum(1)).sum())
        return total / self.persons + self.ridge / 2 * float(off @ off)

    def information(self, theta: Array, cap: float, part: slice) -> Array:
        z = _numpy(self._predictors(theta, part))
        bent = _numpy(self.hazard[part]) * np.exp(z)
        if self.stopped:
            bent = _until(bent, self.most * self.relative)
        else:
            bent *= np.exp(z) <= self.relative
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

    def _excess(self, theta: Array, part: slice | None = None) -> Any:
        """Expected less observed events, (N, J)."""
        xp, own = library_of(self.hazard), part or slice(None)
        lived, died = self.hazard[own], self.died[own]
        relative = xp.exp(self._predictors(theta, part))
        if not self.stopped:
            return lived * xp.clip(relative, None, self.relative) - died
        hazard, most = lived * relative, self.most * self.relative
        reached = hazard.sum(1) > most
        return _until(hazard, most) - died * (~reached)[:, None]

    def _predictors(self, theta: Array, part: slice | None = None) -> Any:
        xp, j = library_of(self.hazard), self.pieces
        x = self.covariates if part is None else self.covariates[part]
        like = theta if isinstance(x, np.ndarray) else x.new_tensor(theta)
        z = x @ like[j:] if part is None else _multiply_rows(x, like[j:])
        return xp.clip(like[None, :j] + z[:, None], -LARGEST_PREDICTOR, LARGEST_PREDICTOR)

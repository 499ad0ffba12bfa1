r"""Several estimates of each site, pooled together with the covariances between them.

Of k sites and p outcomes, such as the coefficients of one regression, site i tells those of
X_i, which picks their rows from the identity:

.. math::

    y_i = X_i μ + u_i + e_i,\qquad \mathrm{Var}\, u_i = X_i T X_i',\qquad \mathrm{Var}\, e_i = S_i,

    W_i = (S_i + X_i T X_i')^{-1},\qquad \hat μ = C \sum X_i' W_i y_i,\qquad
    C = \mathrm{Var}\, \hat μ = \Big(\sum X_i' W_i X_i\Big)^{-1},

generalised least squares. The fixed effect has T = 0. Else T is any covariance of p outcomes
between sites, by the restricted likelihood, which with n estimates in all is

.. math::

    \ell(T) = -\tfrac{n-p}2 \log 2π + \tfrac12 \log \Big|\sum X_i' X_i\Big|
        + \tfrac12 \sum \log |W_i| + \tfrac12 \log |C|
        - \tfrac12 \sum (y_i - X_i \hat μ)' W_i (y_i - X_i \hat μ).

It is maximised over the Cholesky factor L of T = LL', whose entries are free, so that T stays a
covariance, a singular one where the maximum is there. It may have several maxima: the best is taken
of those that are reached from guesses of several sizes and correlations, so that a higher one is
unlikely, and not excluded.

What a site tells of one outcome says something of the others, by their covariance: a site without
an outcome still counts for it. One outcome alone is :func:`penstock.inference.pooling.pool` with
``reml`` or ``fixed``, and test ``z``.

Sources: van Houwelingen, Arends & Stijnen, Statistics in Medicine 21 (2002) 589–624; Jackson, Riley
& White, Statistics in Medicine 30 (2011) 2481–2498; Harville, JASA 72 (1977) 320–338 (the
restricted likelihood). Golden values: metafor's ``rma.mv`` with ``struct="UN"``
(tests/golden/data).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from penstock.base.errors import InvalidInput, Problem
from penstock.inference.pooling import poolable, quantile
from penstock.inference.tau_squared import Array, estimate_tau2

Method = Literal["fixed", "reml"]
Fall = Callable[[Array], tuple[float, Array]]

METHODS: tuple[Method, ...] = get_args(Method)
SIZES, SHARES = (0.03, 0.5, 3.0), (0.0, 0.8)
"""Guesses of T: variances beside what outcomes vary by, and the share of their correlations."""
LEAST_SITES = 2
"""That tell two outcomes together, for their covariance between sites to be estimated."""
SINGULAR = 1e-12
"""Of a covariance scaled to variances of 1, a smaller eigenvalue says that it has no inverse."""
NEGLIGIBLE = 1e-10
"""The slope at which a climb ends, of variances scaled to about 1."""
NEWTON, STEP = 5, 1e-5
"""Steps after it at most; and by how much the factor's entries are moved to see how slopes bend."""


@dataclass(frozen=True, slots=True)
class PooledVector:
    """Outcomes of all sites, on the coefficient scale; (p,) each.

    Attributes:
        k: sites that tell any outcome; counts: sites that tell each.
        estimates, errors, low, high, p_values: normal, two-sided against 0. T is taken as known, so
            that with few sites intervals of ``reml`` are too narrow.
        covariance: (p, p), of the estimates.
        between: (p, p), T; 0 of the fixed effect.
        q, q_df, q_p: Σ (y − Xμ̂)'S⁻¹(y − Xμ̂) at the fixed effect, against χ²(n − p).
        log_likelihood: restricted of ``reml``, plain of ``fixed``.
    """

    method: Method
    k: int
    counts: tuple[int, ...]
    level: float
    estimates: tuple[float, ...]
    errors: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    p_values: tuple[float, ...]
    covariance: Array
    between: Array
    q: float
    q_df: int
    q_p: float
    log_likelihood: float


@dataclass(frozen=True, slots=True)
class Told:
    """What one site tells: the outcomes' places (m,), estimates (m,) and covariance (m, m)."""

    places: NDArray[np.intp]
    y: Array
    s: Array


@dataclass(frozen=True, slots=True)
class Weighed:
    """Generalised least squares of one T.

    Attributes:
        mean: (p,) μ̂; covariance: (p, p) C.
        spread: Σ (y − Xμ̂)'W(y − Xμ̂).
        weights: W_i of each site, and W_i (y_i − X_i μ̂).
        log_weights: Σ log det W_i.
    """

    mean: Array
    covariance: Array
    spread: float
    weights: tuple[tuple[Array, Array], ...]
    log_weights: float

    @classmethod
    def of(cls, told: Sequence[Told], between: Array) -> Weighed:
        """Of sites' estimates and T (p, p)."""
        p = len(between)
        information, score = np.zeros((p, p)), np.zeros(p)
        inverses, log_weights = [], 0.0
        for one in told:
            whole = one.s + between[np.ix_(one.places, one.places)]
            w = _invert(whole)
            log_weights -= float(np.linalg.slogdet(whole)[1])
            information[np.ix_(one.places, one.places)] += w
            score[one.places] += w @ one.y
            inverses.append(w)
        covariance = _invert(information)
        mean = covariance @ score
        weights, spread = [], 0.0
        for one, w in zip(told, inverses, strict=True):
            left = one.y - mean[one.places]
            weights.append((w, w @ left))
            spread += float(left @ w @ left)
        return cls(mean, covariance, spread, tuple(weights), log_weights)


def pool_vectors(
    estimates: ArrayLike,
    covariances: ArrayLike,
    *,
    method: Method = "reml",
    between: ArrayLike | None = None,
    level: float = 0.95,
) -> PooledVector:
    """Pool p outcomes of k sites together.

    Args:
        estimates: (k, p); NaN where a site does not tell an outcome.
        covariances: (k, p, p), of each site's estimates, symmetric with an inverse; rows and
            columns of outcomes that it does not tell are not read.
        method: ``reml``, or ``fixed``.
        between: (p, p), a T that is known, which is taken in place of an estimate; with ``reml``
            alone.
        level: coverage of the intervals, in (0, 1).

    Raises:
        InvalidInput: with every problem of the arguments; or an outcome that no site tells, or, for
            T to be estimated, two of which fewer than :data:`LEAST_SITES` sites tell both.

    Example:
        Two coefficients of three sites, the last of which tells the first one alone.

        >>> y = [[0.20, 0.10], [0.12, 0.30], [0.55, float("nan")]]
        >>> s = [[[0.010, 0.004], [0.004, 0.020]]] * 3
        >>> found = pool_vectors(y, s, method="fixed")
        >>> [round(x, 3) for x in found.estimates]
        [0.29, 0.252]
    """
    y, s, known = _check(estimates, covariances, method, between, level)
    told = _list_told(y, s)
    n, p = sum(len(one.y) for one in told), y.shape[1]
    fixed = Weighed.of(told, np.zeros((p, p)))
    if method == "fixed":
        t, found = np.zeros((p, p)), fixed
        likelihood = (fixed.log_weights - fixed.spread - n * math.log(2 * math.pi)) / 2
    else:
        t = _estimate_between(y, told, fixed) if known is None else known
        found = Weighed.of(told, t)
        likelihood = _restrict(found) + _complete(told, n, p)
    errors = np.sqrt(np.diag(found.covariance))
    half = quantile(level, None) * errors
    df = n - p
    return PooledVector(
        method=method,
        k=len(told),
        counts=tuple(np.isfinite(y).sum(axis=0).tolist()),
        level=level,
        estimates=tuple(found.mean.tolist()),
        errors=tuple(errors.tolist()),
        low=tuple((found.mean - half).tolist()),
        high=tuple((found.mean + half).tolist()),
        p_values=tuple((2 * special.ndtr(-np.abs(found.mean) / errors)).tolist()),
        covariance=found.covariance,
        between=t,
        q=fixed.spread,
        q_df=df,
        q_p=float(special.chdtrc(df, fixed.spread)) if df > 0 else 1.0,
        log_likelihood=likelihood,
    )


def _list_told(y: Array, s: Array) -> list[Told]:
    """Sites that tell anything, without what they do not tell."""
    told = []
    for values, covariance in zip(y, s, strict=True):
        places = np.flatnonzero(np.isfinite(values))
        if len(places):
            told.append(Told(places, values[places], covariance[np.ix_(places, places)]))
    return told


def _invert(matrix: Array) -> Array:
    """Of a covariance, by variances of 1, so that units do not matter."""
    root = np.sqrt(np.diag(matrix))
    scale = np.outer(root, root)
    inverse = np.linalg.inv(matrix / scale) / scale
    return np.asarray((inverse + inverse.T) / 2)


# -- T by the restricted likelihood ----------------------------------------------------------------


def _restrict(found: Weighed) -> float:
    """ℓ(T) but for what does not depend on T."""
    volume = float(np.linalg.slogdet(found.covariance)[1])
    return (found.log_weights + volume - found.spread) / 2


def _complete(told: Sequence[Told], n: int, p: int) -> float:
    """What ℓ(T) has besides: X'X counts the sites of each outcome."""
    counts = np.bincount(np.concatenate([one.places for one in told]), minlength=p)
    return (float(np.log(counts).sum()) - (n - p) * math.log(2 * math.pi)) / 2


def _slope(found: Weighed, told: Sequence[Told], p: int) -> Array:
    """(p, p) ∂ℓ/∂T as of a full matrix: −½ Σ X'(W − WXCX'W − Wrr'W)X."""
    whole = np.zeros((p, p))
    for one, (w, weighed) in zip(told, found.weights, strict=True):
        at = np.ix_(one.places, one.places)
        whole[at] += w - w @ found.covariance[at] @ w - np.outer(weighed, weighed)
    return -whole / 2


def _estimate_between(y: Array, told: Sequence[Told], fixed: Weighed) -> Array:
    """T, of outcomes scaled to a spread of about 1."""
    p = y.shape[1]
    alone = np.array([_weigh_alone(told, j) for j in range(p)])
    tau2, typical = alone.T
    scale = np.sqrt(np.maximum(tau2, typical))
    scaled = [
        Told(
            one.places,
            (one.y - fixed.mean[one.places]) / scale[one.places],
            one.s / np.outer(scale[one.places], scale[one.places]),
        )
        for one in told
    ]
    lower = np.tril_indices(p)

    def fall(entries: Array) -> tuple[float, Array]:
        factor = np.zeros((p, p))
        factor[lower] = entries
        found = Weighed.of(scaled, factor @ factor.T)
        return -_restrict(found), -2 * (_slope(found, scaled, p) @ factor)[lower]

    none = np.zeros(len(lower[0]))
    best = fall(none)[0], none
    for guess in _guess(y / scale, tau2 / scale**2):
        end = optimize.minimize(
            fall,
            np.linalg.cholesky(guess)[lower],
            jac=True,
            method="BFGS",
            options={"gtol": NEGLIGIBLE, "maxiter": 2000},
        )
        if float(end.fun) < best[0]:
            best = float(end.fun), np.asarray(end.x, dtype=np.float64)
    factor = np.zeros((p, p))
    factor[lower] = _polish(fall, best[1])
    return np.asarray(factor @ factor.T * np.outer(scale, scale))


def _weigh_alone(told: Sequence[Told], outcome: int) -> tuple[float, float]:
    """Of one outcome by itself τ² by the restricted likelihood, and the harmonic mean of its
    variances: near those that have weight."""
    found = [
        (float(one.y[at]), float(one.s[at, at]))
        for one in told
        for at in np.flatnonzero(one.places == outcome)
    ]
    y, v = np.array(found).T
    return estimate_tau2("reml", y, v, np.full(len(v), math.inf)), 1 / float((1 / v).mean())


def _guess(y: Array, tau2: Array) -> Iterator[Array]:
    """Matrices (p, p) with an inverse, of scaled outcomes: variances as each outcome has them by
    itself, or all of one size; and correlations from none to nearly those of the estimates."""
    away = np.where(np.isfinite(y), y - np.nanmean(y, axis=0), 0.0)
    length = np.sqrt((away**2).sum(axis=0))
    turned = away / np.where(length > 0, length, 1.0)
    own = turned.T @ turned
    np.fill_diagonal(own, 1.0)
    for sizes in (np.maximum(tau2, SIZES[0]), *(np.full(len(own), size) for size in SIZES)):
        for share in SHARES:
            root = np.sqrt(sizes)
            yield ((1 - share) * np.eye(len(own)) + share * own) * np.outer(root, root)


def _polish(fall: Fall, entries: Array) -> Array:
    """Newton's steps from where a climb ended, as long as the slope falls by them."""
    _, slope = fall(entries)
    for _ in range(NEWTON):
        columns = []
        for at in np.eye(len(entries)) * STEP:
            columns.append((fall(entries + at)[1] - fall(entries - at)[1]) / (2 * STEP))
        bend = np.stack(columns)
        move = np.linalg.lstsq((bend + bend.T) / 2, -slope, rcond=SINGULAR)[0]
        _, there = fall(entries + move)
        if not np.linalg.norm(there) < np.linalg.norm(slope):
            break
        entries, slope = entries + move, there
    return entries


# -- what is given ---------------------------------------------------------------------------------


def _check(
    estimates: ArrayLike,
    covariances: ArrayLike,
    method: str,
    between: ArrayLike | None,
    level: float,
) -> tuple[Array, Array, Array | None]:
    y = np.asarray(estimates, dtype=np.float64)
    s = np.asarray(covariances, dtype=np.float64)
    problems: list[Problem] = []
    if method not in METHODS:
        bound = "one of " + ", ".join(METHODS)
        problems.append(Problem("method", "unknown", value=method, bound=bound))
    if not 0 < level < 1:
        problems.append(Problem("level", "not a coverage", value=str(level), bound="in (0, 1)"))
    if y.ndim != 2 or y.size == 0 or s.shape != (*y.shape, y.shape[-1]):
        problems.append(
            Problem(
                "estimates, covariances",
                "not a vector and a matrix for each site",
                value=f"shapes {y.shape} and {s.shape}",
                bound="(k, p) and (k, p, p)",
            )
        )
        raise InvalidInput("pooling", problems)
    problems.extend(_find_bad_sites(y, s))
    t = None if between is None else np.asarray(between, dtype=np.float64)
    p = y.shape[1]
    if t is not None and method == "fixed":
        problems.append(Problem("between", "given to the fixed effect, which has none"))
    elif t is not None and (t.shape != (p, p) or not _is_covariance(t, least=-SINGULAR)):
        problems.append(Problem("between", "not a covariance", bound=f"({p}, {p})"))
    elif not np.isinf(y).any():
        estimated = method != "fixed" and t is None
        problems.extend(_find_unseen(np.isfinite(y).astype(np.int64), estimated=estimated))
    if problems:
        raise InvalidInput("pooling", problems)
    return y, s, t


def _find_bad_sites(y: Array, s: Array) -> Iterator[Problem]:
    if np.isinf(y).any():
        yield Problem("estimates", "infinite", remedy="NaN where a site does not tell an outcome")
        return
    for i, one in enumerate(_list_told(y, s)):
        if not _is_covariance(one.s, least=SINGULAR):
            yield Problem(
                f"covariances[{i}]",
                "not a covariance with an inverse",
                bound="finite, symmetric, positive definite",
            )
        elif not all(map(poolable, one.y, np.diag(one.s))):
            yield Problem(
                f"estimates[{i}], covariances[{i}]",
                "beyond what double precision can pool",
                bound="|estimate| <= 1e60, variance in [1e-60, 1e60]",
            )


def _find_unseen(seen: NDArray[np.int64], *, estimated: bool) -> Iterator[Problem]:
    """Outcomes, or two of them, that too few sites tell; of 1 and 0, (k, p)."""
    least = LEAST_SITES if estimated else 1
    together = seen.T @ seen
    for j, row in enumerate(together):
        if row[j] < least:
            yield Problem(
                "estimates",
                f"too few sites tell outcome {j}",
                value=str(row[j]),
                bound=f"at least {least}",
                remedy="leave it out",
            )
        for other in np.flatnonzero(row[:j] < least) if estimated else ():
            yield Problem(
                "estimates",
                f"too few sites tell both outcome {other} and {j}",
                value=str(row[other]),
                bound=f"at least {least}, for their covariance between sites",
                remedy="leave one out, or pool with fixed",
            )


def _is_covariance(matrix: Array, *, least: float) -> bool:
    """Finite, symmetric, and of variances scaled to 1 with no eigenvalue below ``least``."""
    if not (np.isfinite(matrix).all() and (np.diag(matrix) >= 0).all()):
        return False
    root = np.sqrt(np.diag(matrix))
    scale = np.outer(root, root)
    if not (np.abs(matrix - matrix.T) <= 1e-9 * scale).all():
        return False
    scaled = np.divide(matrix, scale, out=np.zeros_like(matrix), where=scale > 0)
    return bool(np.linalg.eigvalsh(scaled).min() >= least)

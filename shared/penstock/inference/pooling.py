"""Pooling of per-site estimates: fixed effect and random effects, own implementation.

With estimates y_i and variances v_i of k sites, weights w_i = 1/(v_i + τ²):

    μ̂ = Σ w_i y_i / Σ w_i,   se² = 1/Σ w_i,   Q = Σ (y_i − μ̂_FE)²/v_i,

and τ² by one of ten estimators (:mod:`penstock.inference.tau_squared`). Where the
v_i are themselves estimates, with degrees of freedom, Q is compared with Welch's reference instead
of χ², and standard errors are Meier's (:mod:`penstock.inference.uncertain`); with infinite
ones nothing changes.
All values are on the coefficient scale (log hazard ratio, log odds ratio, mean difference).

statsmodels' ``combine_effects(method_re="chi2")`` lets τ² go below 0, and is not used.

Sources: Hartung & Knapp, Statistics in Medicine 20 (2001) 3875–3889; Higgins, Thompson &
Spiegelhalter, JRSS A 172 (2009) 137–159; Higgins & Thompson, Statistics in Medicine 21 (2002)
1539–1558.
Golden values: R's metafor (tests/golden/data).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from penstock.base.errors import InvalidInput, Problem
from penstock.inference.tau_squared import (
    estimate_tau2,
    spread_about_mean,
    sum_cross_products,
    sum_products,
)
from penstock.inference.uncertain import Uncertainty

Estimated = Literal["fixed", "dl", "pm", "reml", "ml", "hs", "hsk", "he", "sj", "eb"]
Method = Estimated | Literal["unweighted", "total", "release"]
Test = Literal["z", "knapp-hartung", "knapp-hartung-floored"]
Array = NDArray[np.float64]

METHODS: tuple[Estimated, ...] = get_args(Estimated)
TESTS: tuple[Test, ...] = ("z", "knapp-hartung", "knapp-hartung-floored")

_SMALLEST, _LARGEST = 1e-60, 1e60


@dataclass(frozen=True, slots=True)
class Pooled:
    """One pooled estimate, on the coefficient scale; ``total``: sites added up
    (:mod:`penstock.inference.totals`); ``unweighted``: their plain mean
    (:mod:`penstock.inference.weighting`); ``release``: nothing was pooled, there is
    one release of all sites (:mod:`penstock.inference.unpooled`).

    ``test`` is the test that was used: with one site, Knapp–Hartung has no degrees of freedom and
    ``z`` takes its place. ``df`` is None for ``z`` with known variances; of estimated ones it is
    Meier's. ``q_df2``: second degrees of freedom of Q's reference, Welch's F; None if it is χ².
    ``statistic`` and ``p_value`` are NaN where the
    plain Knapp–Hartung interval collapses to a point. ``i2`` is a fraction in [0, 1]. ``i2`` and
    ``h2`` follow metafor: with the typical within-site variance
    s² = (k−1)Σw/((Σw)²−Σw²), w = 1/v, they are τ²/(τ²+s²) and τ²/s² + 1 with the method's own τ²
    (for DerSimonian–Laird this is (Q−df)/Q and Q/df where Q > df); for the fixed effect
    max(0, (Q−df)/Q) and Q/df. ``pi_low`` and ``pi_high`` are None below three sites and for the
    fixed effect. ``weights`` sum to 1.
    """

    method: Method
    test: Test
    k: int
    level: float
    estimate: float
    se: float
    df: float | None
    statistic: float
    p_value: float
    ci_low: float
    ci_high: float
    pi_low: float | None
    pi_high: float | None
    tau2: float
    q: float
    q_df: int
    q_df2: float | None
    q_p: float
    i2: float
    h2: float
    weights: tuple[float, ...]


def pool(
    estimates: ArrayLike,
    variances: ArrayLike,
    *,
    method: Estimated = "reml",
    test: Test = "knapp-hartung-floored",
    level: float = 0.95,
    degrees: ArrayLike | None = None,
) -> Pooled:
    """Pool k estimates with their variances.

    The interval is μ̂ ± t·se. With ``z``: t normal, se = (Σw)^(−½). With ``knapp-hartung``: t from
    Student's t(k−1) and se² = q/Σw, q = Σ w_i(y_i−μ̂)²/(k−1). ``knapp-hartung-floored`` takes
    max(1, q), metafor's "adhoc": on homogeneous data the plain one collapses. The prediction
    interval is μ̂ ± t(k−2)·√(τ²+se²) with the test's own se (Higgins et al. 2009).

    Of estimated variances, with Λ and A of :mod:`~penstock.inference.uncertain`: ``z`` takes
    Student's t with Meier's degrees of freedom and se² = (1 + 4A)/Σw; Knapp–Hartung's q is taken
    times 1 + 4A − 2Λ/(k−1), and the floor is 1 + 4A; to first order in 1/ν these have the mean that
    Var μ̂ has.

    The default, REML with the floored Knapp–Hartung interval, is the report's. Where
    variances lack the mechanism's noise (no refits), that noise shows as heterogeneity between
    sites, and the fixed effect covers far below its level. Where they hold it, the floored interval
    is above its level with few sites (``make reproduce NAME=combining``).

    Args:
        estimates: shape (k,), k ≥ 1, finite; coefficient scale.
        variances: shape (k,), finite and > 0; squared units of the estimates.
        method: of :data:`METHODS`. ``fixed`` goes with ``z`` only.
        test: ``z``, ``knapp-hartung`` or ``knapp-hartung-floored``.
        level: coverage of the intervals, in (0, 1).
        degrees: of freedom of the variances, shape (k,), > 0; infinite where known; None: all are.

    Raises:
        InvalidInput: with every problem of the arguments.

    Example:
        Two sites that agree, and a third that does not.

        >>> pooled = pool([0.20, 0.12, 0.55], [0.01, 0.02, 0.01])
        >>> round(pooled.estimate, 3), round(pooled.i2, 2)
        (0.3, 0.76)
        >>> round(pooled.ci_low, 2), round(pooled.ci_high, 2)
        (-0.27, 0.87)
    """
    y, v, nu = check_sites(estimates, variances, method, test, level, degrees)
    k = len(y)
    if method == "fixed" or k == 1:
        test = "z"
    tau2 = estimate_tau2(method, y, v, nu)
    w = 1.0 / (v + tau2)
    total = float(w.sum())
    mu = sum_products(w, y) / total
    se2, df = _mean_error(y, v, nu, tau2, mu, test)
    se = math.sqrt(se2)
    half = quantile(level, df) * se
    statistic = mu / se if se > 0 else math.nan
    pi_half = None
    if method != "fixed" and k >= 3:
        pi_half = quantile(level, k - 2) * math.sqrt(tau2 + se2)
    unknown = Uncertainty.of(v, 0.0, nu)
    q, i2, h2 = _heterogeneity(y, v, tau2, method, unknown)
    return Pooled(
        method=method,
        test=test,
        k=k,
        level=level,
        estimate=mu,
        se=se,
        df=df,
        statistic=statistic,
        p_value=2 * tail(abs(statistic), df),
        ci_low=mu - half,
        ci_high=mu + half,
        pi_low=None if pi_half is None else mu - pi_half,
        pi_high=None if pi_half is None else mu + pi_half,
        tau2=tau2,
        q=q,
        q_df=k - 1,
        q_df2=unknown.q_df2(k - 1) if unknown.homogeneity > 0 else None,
        q_p=unknown.q_p(q, k - 1) if k > 1 else 1.0,
        i2=i2,
        h2=h2,
        weights=tuple((w / total).tolist()),
    )


def _mean_error(
    y: Array, v: Array, nu: Array, tau2: float, mu: float, test: Test
) -> tuple[float, float | None]:
    """The squared standard error of μ̂, and its degrees of freedom; None: the normal."""
    w, k, unknown = 1.0 / (v + tau2), len(y), Uncertainty.of(v, tau2, nu)
    total, least = float(w.sum()), 1.0 + 4 * unknown.mean
    if test == "z":
        return least / total, unknown.df if math.isfinite(unknown.df) else None
    spread = sum_products(w, (y - mu) ** 2) / (k - 1)
    spread *= max(least - 2 * unknown.homogeneity / (k - 1), 0.0)
    return (max(least, spread) if test == "knapp-hartung-floored" else spread) / total, k - 1


def restate(pooled: Pooled, *, se: float, estimate: float | None = None) -> Pooled:
    """The same with another standard error, and another estimate where one is given: its test, its
    interval and what is foretold of a further site, by the degrees of freedom that it has."""
    mu = pooled.estimate if estimate is None else estimate
    half = quantile(pooled.level, pooled.df) * se
    ahead = None
    if pooled.pi_low is not None:
        ahead = quantile(pooled.level, pooled.k - 2) * math.sqrt(pooled.tau2 + se**2)
    return replace(
        pooled,
        estimate=mu,
        se=se,
        statistic=mu / se,
        p_value=2 * tail(abs(mu / se), pooled.df),
        ci_low=mu - half,
        ci_high=mu + half,
        pi_low=None if ahead is None else mu - ahead,
        pi_high=None if ahead is None else mu + ahead,
    )


def quantile(level: float, df: float | None) -> float:
    """What Student's t (None, or infinite: the normal) exceeds on either side with 1 − level."""
    if df is None or math.isinf(df):
        return float(special.ndtri(0.5 + level / 2))
    return float(special.stdtrit(df, 0.5 + level / 2))


def tail(x: float, df: float | None) -> float:
    """P that Student's t (None: the normal) is below −x."""
    return float(special.ndtr(-x) if df is None else special.stdtr(df, -x))


def poolable(estimate: float, variance: float) -> bool:
    """Whether :func:`pool` accepts a site: ``|estimate| ≤ 1e60`` and variance in [1e-60, 1e60].

    Inside these bounds w²y², the largest term, stays inside double precision. NaN gives False.
    """
    return abs(estimate) <= _LARGEST and _SMALLEST <= variance <= _LARGEST


def _heterogeneity(
    y: Array, v: Array, tau2: float, method: Method, unknown: Uncertainty
) -> tuple[float, float, float]:
    """Cochran's Q, I² (fraction) and H² as :class:`Pooled` defines them."""
    df = len(y) - 1
    if df == 0:
        return 0.0, 0.0, 1.0
    w = 1.0 / v
    q = spread_about_mean(w, y)
    if method == "fixed":
        mean = unknown.expected_q(df)
        return q, max(0.0, 1.0 - mean / q) if q > 0 else 0.0, q / mean
    typical = df * float(w.sum()) / sum_cross_products(w)
    return q, tau2 / (tau2 + typical), tau2 / typical + 1.0


def check_sites(
    estimates: ArrayLike,
    variances: ArrayLike,
    method: str,
    test: str,
    level: float,
    degrees: ArrayLike | None,
) -> tuple[Array, Array, Array]:
    """Estimates, variances and degrees of freedom as :func:`pool` takes them.

    Raises:
        InvalidInput: with every problem of the arguments.
    """
    y = np.asarray(estimates, dtype=np.float64)
    v = np.asarray(variances, dtype=np.float64)
    nu = np.full(v.shape, math.inf) if degrees is None else np.asarray(degrees, dtype=np.float64)
    problems: list[Problem] = []
    if method not in METHODS:
        problems.append(Problem("method", "unknown", value=method, bound=_one_of(METHODS)))
    if test not in TESTS:
        problems.append(Problem("test", "unknown", value=test, bound=_one_of(TESTS)))
    if not 0 < level < 1:
        problems.append(Problem("level", "not a coverage", value=str(level), bound="in (0, 1)"))
    if y.ndim != 1 or y.shape != v.shape or y.size == 0:
        problems.append(
            Problem(
                "estimates, variances",
                "not two vectors of the same length",
                value=f"shapes {y.shape} and {v.shape}",
                bound="(k,) and (k,), k >= 1",
            )
        )
    else:
        if nu.shape != v.shape or not (nu > 0).all():
            problems.append(Problem("degrees", "not one number above 0 for each variance"))
        if not np.isfinite(y).all():
            problems.append(Problem("estimates", "not finite", remedy="leave failed sites out"))
        if not (np.isfinite(v).all() and (v > 0).all()):
            problems.append(Problem("variances", "not finite and > 0"))
        elif np.isfinite(y).all() and not (  # of all at once: poolable
            float(np.abs(y).max()) <= _LARGEST
            and float(v.min()) >= _SMALLEST
            and float(v.max()) <= _LARGEST
        ):
            problems.append(
                Problem(
                    "estimates, variances",
                    "beyond what double precision can pool",
                    bound="|estimate| <= 1e60, variance in [1e-60, 1e60]",
                )
            )
    if problems:
        raise InvalidInput("pooling", problems)
    return y, v, nu


def _one_of(names: Sequence[str]) -> str:
    return "one of " + ", ".join(names)

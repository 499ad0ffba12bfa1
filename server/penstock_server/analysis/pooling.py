"""Pooling of per-site estimates: fixed effect and random effects, own implementation.

With estimates y_i and variances v_i of k sites, weights w_i = 1/(v_i + τ²):

    μ̂ = Σ w_i y_i / Σ w_i,   se² = 1/Σ w_i,   Q = Σ (y_i − μ̂_FE)²/v_i,

and τ² = 0 (``fixed``), or by DerSimonian–Laird, Paule–Mandel or REML, always cut at 0. Where the
v_i are themselves estimates, with degrees of freedom, Q is compared with Welch's reference instead
of χ², τ² with Q's mean under homogeneity, and standard errors are Meier's
(:mod:`penstock_server.analysis.uncertain`); with infinite ones nothing changes. REML takes the v_i
as known all the same.
All values are on the coefficient scale (log hazard ratio, log odds ratio, mean difference).

statsmodels' ``combine_effects(method_re="chi2")`` lets τ² go below 0, and is not used.

Sources: DerSimonian & Laird, Controlled Clinical Trials 7 (1986) 177–188; Paule & Mandel,
J. Res. NBS 87 (1982) 377–385; Hartung & Knapp, Statistics in Medicine 20 (2001) 3875–3889;
Higgins, Thompson & Spiegelhalter, JRSS A 172 (2009) 137–159; Higgins & Thompson, Statistics in
Medicine 21 (2002) 1539–1558; Viechtbauer & Cheung, Research Synthesis Methods 1 (2010) 112–125.
Golden values: R's metafor (tests/golden/data).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from penstock.base.errors import InvalidInput, Problem
from penstock_server.analysis.uncertain import Uncertainty

Method = Literal["fixed", "dl", "pm", "reml", "total"]
Test = Literal["z", "knapp-hartung", "knapp-hartung-floored"]
Array = NDArray[np.float64]

METHODS: tuple[Method, ...] = ("fixed", "dl", "pm", "reml")
TESTS: tuple[Test, ...] = ("z", "knapp-hartung", "knapp-hartung-floored")

FLAG_RESIDUAL = 3.0
"""A site is flagged beyond this externally studentised residual (two-sided normal: 0.27 %)."""
FLAG_MIN_SITES = 4
"""Below this many sites τ² without the site rests on two estimates: nothing is flagged."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """One pooled estimate, on the coefficient scale; ``total``: sites added up
    (:mod:`penstock_server.analysis.totals`).

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


@dataclass(frozen=True, slots=True)
class Influence:
    """What one site does to the pooled estimate (Viechtbauer & Cheung 2010).

    Attributes:
        without: the pooled result of the other k−1 sites.
        change: (μ̂ − μ̂₍₋ᵢ₎)/se₍₋ᵢ₎, how far the site moves the pooled estimate, in standard errors
            of the estimate without it.
        residual: (y_i − μ̂₍₋ᵢ₎)/√(v_i + τ²₍₋ᵢ₎ + se₍₋ᵢ₎²), externally studentised.
        flagged: the residual is as unlikely as a normal one beyond 3, by Student's t with the
            degrees of freedom of the site's own variance; and k ≥ 4.
    """

    without: Pooled
    change: float
    residual: float
    flagged: bool


def pool(
    estimates: ArrayLike,
    variances: ArrayLike,
    *,
    method: Method = "dl",
    test: Test = "knapp-hartung-floored",
    level: float = 0.95,
    degrees: ArrayLike | None = None,
) -> Pooled:
    """Pool k estimates with their variances.

    The interval is μ̂ ± t·se. With ``z``: t normal, se = (Σw)^(−½). With ``knapp-hartung``: t from
    Student's t(k−1) and se² = q/Σw, q = Σ w_i(y_i−μ̂)²/(k−1). ``knapp-hartung-floored`` takes
    max(1, q), metafor's "adhoc": on homogeneous data the plain one collapses. The prediction
    interval is μ̂ ± t(k−2)·√(τ²+se²) with the test's own se (Higgins et al. 2009).

    Of estimated variances, with Λ and A of :mod:`~penstock_server.analysis.uncertain`: ``z`` takes
    Student's t with Meier's degrees of freedom and se² = (1 + 4A)/Σw; Knapp–Hartung's q is taken
    times 1 + 4A − 2Λ/(k−1), and the floor is 1 + 4A; to first order in 1/ν these have the mean that
    Var μ̂ has.

    The default, DerSimonian–Laird with the floored Knapp–Hartung interval, is the report's. Where
    variances lack the mechanism's noise (no refits), that noise shows as heterogeneity between
    sites, and the fixed effect covers far below its level. Where they hold it, the floored interval
    is above its level with few sites (``make reproduce NAME=combining``).

    Args:
        estimates: shape (k,), k ≥ 1, finite; coefficient scale.
        variances: shape (k,), finite and > 0; squared units of the estimates.
        method: ``fixed``, ``dl``, ``pm`` or ``reml``. ``fixed`` goes with ``z`` only.
        test: ``z``, ``knapp-hartung`` or ``knapp-hartung-floored``.
        level: coverage of the intervals, in (0, 1).
        degrees: of freedom of the variances, shape (k,), > 0; infinite where known; None: all are.

    Raises:
        InvalidInput: with every problem of the arguments.

    Example:
        Two sites that agree, and a third that does not.

        >>> pooled = pool([0.20, 0.12, 0.55], [0.01, 0.02, 0.01])
        >>> round(pooled.estimate, 3), round(pooled.i2, 2)
        (0.3, 0.77)
        >>> round(pooled.ci_low, 2), round(pooled.ci_high, 2)
        (-0.28, 0.88)
    """
    y, v, nu = _checked(estimates, variances, method, test, level, degrees)
    k = len(y)
    if method == "fixed" or k == 1:
        test = "z"
    tau2 = 0.0 if k == 1 else _TAU2[method](y, v, nu)
    w = 1.0 / (v + tau2)
    total = float(w.sum())
    mu = _sum_products(w, y) / total
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
        p_value=2 * _tail(abs(statistic), df),
        ci_low=mu - half,
        ci_high=mu + half,
        pi_low=None if pi_half is None else mu - pi_half,
        pi_high=None if pi_half is None else mu + pi_half,
        tau2=tau2,
        q=q,
        q_df=k - 1,
        q_df2=unknown.q_df2(k) if unknown.homogeneity > 0 else None,
        q_p=unknown.q_p(q, k) if k > 1 else 1.0,
        i2=i2,
        h2=h2,
        weights=tuple(float(x) for x in w / total),
    )


def _mean_error(
    y: Array, v: Array, nu: Array, tau2: float, mu: float, test: Test
) -> tuple[float, float | None]:
    """The squared standard error of μ̂, and its degrees of freedom; None: the normal."""
    w, k, unknown = 1.0 / (v + tau2), len(y), Uncertainty.of(v, tau2, nu)
    total, least = float(w.sum()), 1.0 + 4 * unknown.mean
    if test == "z":
        return least / total, unknown.df if math.isfinite(unknown.df) else None
    spread = _sum_products(w, (y - mu) ** 2) / (k - 1)
    spread *= max(least - 2 * unknown.homogeneity / (k - 1), 0.0)
    return (max(least, spread) if test == "knapp-hartung-floored" else spread) / total, k - 1


def quantile(level: float, df: float | None) -> float:
    """What Student's t (None, or infinite: the normal) exceeds on either side with 1 − level."""
    if df is None or math.isinf(df):
        return float(special.ndtri(0.5 + level / 2))
    return float(special.stdtrit(df, 0.5 + level / 2))


def _tail(x: float, df: float | None) -> float:
    return float(special.ndtr(-x) if df is None else special.stdtr(df, -x))


def poolable(estimate: float, variance: float) -> bool:
    """Whether :func:`pool` accepts a site: ``|estimate| ≤ 1e60`` and variance in [1e-60, 1e60].

    Inside these bounds w²y², the largest term, stays inside double precision. NaN gives False.
    """
    return abs(estimate) <= 1e60 and 1e-60 <= variance <= 1e60


def leave_one_out(
    estimates: ArrayLike,
    variances: ArrayLike,
    *,
    method: Method = "dl",
    test: Test = "knapp-hartung-floored",
    level: float = 0.95,
    degrees: ArrayLike | None = None,
) -> tuple[Pooled, ...]:
    """The k pooled results with one site left out each, in the order of the sites.

    Empty for k = 1. Arguments and errors as for :func:`pool`.
    """
    y, v, nu = _checked(estimates, variances, method, test, level, degrees)
    if len(y) == 1:
        return ()

    def without(i: int) -> Pooled:
        rest = (np.delete(part, i) for part in (y, v))
        return pool(*rest, method=method, test=test, level=level, degrees=np.delete(nu, i))

    return tuple(without(i) for i in range(len(y)))


def influence(
    estimates: ArrayLike,
    variances: ArrayLike,
    *,
    method: Method = "dl",
    degrees: ArrayLike | None = None,
) -> tuple[Influence, ...]:
    """How much each site moves the pooled estimate; flags those beyond their leave-one-out limit.

    Standard errors are those of test ``z``, as in metafor's ``rstudent``. A site is flagged if its
    externally studentised residual is beyond 3 (of an estimated variance, beyond what Student's t
    exceeds as rarely) and there are at least 4 sites. A flag asks for a
    look: it is not a reason to leave the site out. Two outlying sites can mask each other, as τ²
    without one of them still holds the other. Empty for k = 1.

    Raises:
        InvalidInput: as :func:`pool`.
    """
    y, v, nu = _checked(estimates, variances, method, "z", 0.95, degrees)
    k = len(y)
    whole = pool(y, v, method=method, test="z", degrees=nu)
    found = []
    if k == 1:
        return ()
    rest = leave_one_out(y, v, method=method, test="z", degrees=nu)
    level = 1 - 2 * _tail(FLAG_RESIDUAL, None)
    limits = [FLAG_RESIDUAL if math.isinf(df) else quantile(level, df) for df in nu]
    for yi, vi, limit, without in zip(y, v, limits, rest, strict=True):
        residual = float((yi - without.estimate) / math.sqrt(vi + without.tau2 + without.se**2))
        found.append(
            Influence(
                without=without,
                change=(whole.estimate - without.estimate) / without.se,
                residual=residual,
                flagged=bool(k >= FLAG_MIN_SITES and abs(residual) > limit),
            )
        )
    return tuple(found)


def _heterogeneity(
    y: Array, v: Array, tau2: float, method: Method, unknown: Uncertainty
) -> tuple[float, float, float]:
    """Cochran's Q, I² (fraction) and H² as :class:`Pooled` defines them."""
    df = len(y) - 1
    if df == 0:
        return 0.0, 0.0, 1.0
    w = 1.0 / v
    q = _spread_about_mean(w, y)
    if method == "fixed":
        mean = unknown.expected_q(len(y))
        return q, max(0.0, 1.0 - mean / q) if q > 0 else 0.0, q / mean
    typical = df * float(w.sum()) / _cross(w)
    return q, tau2 / (tau2 + typical), tau2 / typical + 1.0


def _spread_about_mean(w: Array, y: Array) -> float:
    """Σ w (y − Σwy/Σw)²."""
    return _sum_products(w, (y - _sum_products(w, y) / float(w.sum())) ** 2)


def _sum_products(a: Array, b: Array) -> float:
    """Σ a b, rounded as numpy's sums are: what a linear algebra library adds differs in the last
    digit from one processor, and even from one process, to another."""
    return float((a * b).sum())


def _tau2_fixed(y: Array, v: Array, nu: Array) -> float:
    return 0.0


def _tau2_dl(y: Array, v: Array, nu: Array) -> float:
    """DerSimonian & Laird 1986, eq. 8: (Q − E Q)/(Σw − Σw²/Σw), cut at 0; E Q = k − 1 if known."""
    w = 1.0 / v
    q = _spread_about_mean(w, y)
    mean = Uncertainty.of(v, 0.0, nu).expected_q(len(y))
    return max(0.0, (q - mean) * float(w.sum()) / _cross(w))


def _cross(w: Array) -> float:
    """(Σw)² − Σw² as Σ_{i≠j} w_i w_j, which one dominating weight cannot cancel to 0."""
    products = np.outer(w, w)
    np.fill_diagonal(products, 0.0)
    return float(products.sum())


def _residual_q(tau2: float, y: Array, v: Array) -> float:
    w = 1.0 / (v + tau2)
    return _spread_about_mean(w, y)


def _tau2_pm(y: Array, v: Array, nu: Array) -> float:
    """Paule & Mandel 1982: the root of Q(τ²) = E Q(τ²), or 0 where Q(0) is below it already.

    E Q = k − 1 of known variances, and more of estimated ones. Q decreases in τ², and
    Q(τ²) ≤ Σ(y−ȳ)²/τ², which gives the bracket.
    """
    df = len(y) - 1

    def excess(tau2: float) -> float:
        return _residual_q(tau2, y, v) - Uncertainty.of(v, tau2, nu).expected_q(len(y))

    if excess(0.0) <= 0:
        return 0.0
    high = float(((y - y.mean()) ** 2).sum()) / df
    if excess(high) >= 0:  # equality up to rounding: v is negligible beside τ²
        return high
    return _root(excess, 0.0, high, v)


def _reml_score(tau2: float, y: Array, v: Array) -> float:
    """d/dτ² of the restricted log likelihood, times 2: Σw²(y−μ̂)² − Σw + Σw²/Σw."""
    w = 1.0 / (v + tau2)
    total = float(w.sum())
    mean, squares = _sum_products(w, y) / total, _sum_products(w, w)
    return _sum_products(w * w, (y - mean) ** 2) - total + squares / total


def _reml_log_likelihood(tau2: float, y: Array, v: Array) -> float:
    w = 1.0 / (v + tau2)
    total = float(w.sum())
    fit = _spread_about_mean(w, y)
    return 0.5 * (float(np.log(w).sum()) - math.log(total) - fit)


def _tau2_reml(y: Array, v: Array, nu: Array) -> float:
    """The global maximum of the restricted likelihood over τ² ≥ 0, the variances taken as known.

    The likelihood can have several maxima. It is scanned on a logarithmic grid, and each sign
    change of the score from + to − is refined by bracketing.
    """
    spread = float(np.ptp(y)) ** 2
    high = max(spread, float(v.max()))
    while _reml_score(high, y, v) > 0:
        high *= 4.0
    low = 1e-8 * min(float(v.min()), spread) if spread > 0 else 0.0
    if not low > 0:
        return 0.0
    grid = np.concatenate(([0.0], np.geomspace(low, high, 256)))
    scores = [_reml_score(t, y, v) for t in grid]
    candidates = [0.0]
    for left, right, s_left, s_right in zip(
        grid[:-1], grid[1:], scores[:-1], scores[1:], strict=True
    ):
        if s_left > 0 >= s_right:
            candidates.append(_root(lambda t: _reml_score(t, y, v), float(left), float(right), v))
    return max(candidates, key=lambda t: _reml_log_likelihood(t, y, v))


def _root(f: Callable[[float], float], low: float, high: float, v: Array) -> float:
    """The root in [low, high]; an error far below the smallest variance does not matter."""
    xtol = 1e-14 * float(v.min())
    return float(optimize.brentq(f, low, high, xtol=xtol, rtol=1e-15, maxiter=1000))


_TAU2 = {"fixed": _tau2_fixed, "dl": _tau2_dl, "pm": _tau2_pm, "reml": _tau2_reml}


def _checked(
    estimates: ArrayLike,
    variances: ArrayLike,
    method: str,
    test: str,
    level: float,
    degrees: ArrayLike | None,
) -> tuple[Array, Array, Array]:
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
        elif np.isfinite(y).all() and not all(map(poolable, y, v)):
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

"""Whether small sites find other effects than large ones: Egger, Begg, and trim-and-fill.

In a federation no site was left out for what it found, so that a funnel that leans tells of sites
that differ by size, not of unpublished ones. Of fewer than :data:`LEAST_SITES` sites no test says
anything (Cochrane Handbook, 13.3.5.4).

Sources: Egger et al., BMJ 315 (1997) 629–634; Sterne & Egger in Publication Bias in Meta-Analysis
(2005) 99–110; Begg & Mazumdar, Biometrics 50 (1994) 1088–1101; Duval & Tweedie, Biometrics 56
(2000) 455–463, estimator L₀.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from penstock.base.errors import InvalidInput, Problem
from penstock.inference.moderators import regress
from penstock.inference.pooling import Estimated, Pooled, Test, check_sites, pool, quantile
from penstock.inference.tau_squared import Array

LEAST_SITES = 10
"""Sites, of fewer of which a report tests nothing."""
MOST_ROUNDS = 100
"""Of trim-and-fill, which settles in a few."""

Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Leaning:
    """A regression on standard errors.

    Attributes:
        slope, se: of the standard error; statistic: of its test, Student's t with ``df`` degrees of
            freedom, or normal where ``df`` is None.
        limit, low, high: the effect of a site without error, and its interval.
    """

    slope: float
    se: float
    statistic: float
    df: int | None
    p_value: float
    limit: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Filled:
    """What trim-and-fill adds: so many sites on a side, of these estimates and variances, and what
    all are pooled to."""

    missing: int
    side: Side
    estimates: tuple[float, ...]
    variances: tuple[float, ...]
    pooled: Pooled


def regress_on_error(
    estimates: ArrayLike, variances: ArrayLike, *, level: float = 0.95
) -> Leaning | None:
    """Egger's test: y = a + b·√v + e by least squares with weights 1/v and a free dispersion.

    None where nothing can be told: below three sites, all of one size, or on one line.

    Raises:
        InvalidInput: as :func:`~penstock.inference.pooling.pool`.
    """
    y, v, _ = check_sites(estimates, variances, "fixed", "z", level, None)
    k, s = len(y), np.sqrt(v)
    if k < 3 or _one_size(s):
        return None
    # y/√v = a/√v + b: the centred form keeps the slope's error where sizes hardly differ.
    w = 1.0 / v
    centre = float((w * s).sum() / w.sum())
    away, mean = s - centre, float((w * y).sum() / w.sum())
    across = float((w * away**2).sum())
    slope = float((w * away * y).sum()) / across
    residuals = y - mean - slope * away
    dispersion = float((w * residuals**2).sum()) / (k - 2)
    if not dispersion > 0:
        return None
    se = math.sqrt(dispersion / across)
    limit = mean - slope * centre
    half = quantile(level, k - 2) * math.sqrt(
        dispersion * (1 / float(w.sum()) + centre**2 / across)
    )
    return Leaning(
        slope=slope,
        se=se,
        statistic=slope / se,
        df=k - 2,
        p_value=2 * float(special.stdtr(k - 2, -abs(slope / se))),
        limit=limit,
        low=limit - half,
        high=limit + half,
    )


def regress_beside_tau2(
    estimates: ArrayLike,
    variances: ArrayLike,
    *,
    method: Estimated = "reml",
    test: Test = "z",
    level: float = 0.95,
) -> Leaning | None:
    """The same beside τ²: a meta-regression on √v. None as of :func:`regress_on_error`.

    Raises:
        InvalidInput: as :func:`~penstock.inference.pooling.pool`.
    """
    y, v, _ = check_sites(estimates, variances, method, test, level, None)
    s = np.sqrt(v)
    if len(y) < 3 or _one_size(s):
        return None
    found = regress(
        y, v, np.stack([np.ones(len(y)), s], axis=1), method=method, test=test, level=level
    )
    slope, se = found.coefficients[1], found.errors[1]
    return Leaning(
        slope=slope,
        se=se,
        statistic=slope / se,
        df=found.df,
        p_value=found.p_values[1],
        limit=found.coefficients[0],
        low=found.low[0],
        high=found.high[0],
    )


def correlate_ranks(estimates: ArrayLike, variances: ArrayLike) -> tuple[float, float] | None:
    """Begg and Mazumdar's test: Kendall's τ of (y − μ̂)/√(v − 1/Σw) and v, and its p value.

    The p value is exact without ties. None below three sites, or where all are of one size.

    Raises:
        InvalidInput: as :func:`~penstock.inference.pooling.pool`.
    """
    y, v, _ = check_sites(estimates, variances, "fixed", "z", 0.95, None)
    if len(y) < 3 or _one_size(np.sqrt(v)):
        return None
    w = 1.0 / v
    mean = float((w * y).sum() / w.sum())
    around = v - 1 / float(w.sum())
    if not (around > 0).all():  # one site has all the weight
        return None
    from scipy import stats  # slow to load, and only this asks for it

    found = stats.kendalltau((y - mean) / np.sqrt(around), v)
    tau, p = float(found.statistic), float(found.pvalue)
    return None if math.isnan(tau) else (tau, p)


def trim_and_fill(
    estimates: ArrayLike,
    variances: ArrayLike,
    *,
    side: Side | None = None,
    method: Estimated = "reml",
    test: Test = "knapp-hartung-floored",
    level: float = 0.95,
) -> Filled:
    """Trim-and-fill, L₀ = (4S − k(k+1))/(2k−1), S the sum of ranks of estimates beyond the mean.

    Args:
        side: where sites are thought to be missing; None: where effects by the regression on √v
            fall as sites get smaller is ``right``, else ``left``.

    Raises:
        InvalidInput: as :func:`~penstock.inference.pooling.pool`, or ``side`` is not a side.
    """
    y, v, _ = check_sites(estimates, variances, method, test, level, None)
    if side is None:
        leaning = regress_beside_tau2(y, v, method=method)
        side = "right" if leaning is not None and leaning.slope < 0 else "left"
    elif side not in ("left", "right"):
        problem = Problem("side", "not a side", value=side, bound="left or right")
        raise InvalidInput("trim-and-fill", [problem])
    sign = -1.0 if side == "right" else 1.0
    order = np.argsort(sign * y, kind="stable")
    flipped, sizes = sign * y[order], v[order]
    missing, mean = _count_missing(flipped, sizes, method)
    lost = slice(len(y) - missing, len(y))
    added = sign * (2 * mean - flipped[lost])
    whole = pool(
        np.concatenate([y, added]),
        np.concatenate([v, sizes[lost]]),
        method=method,
        test=test,
        level=level,
    )
    return Filled(missing, side, tuple(added.tolist()), tuple(sizes[lost].tolist()), whole)


def _count_missing(y: Array, v: Array, method: Estimated) -> tuple[int, float]:
    """How many are missing on the left of sorted estimates, and the mean of those not trimmed."""
    k, missing = len(y), 0
    mean = 0.0
    for _ in range(MOST_ROUNDS):
        kept = k - missing
        mean = pool(y[:kept], v[:kept], method=method, test="z").estimate
        away = y - mean
        ranks = np.empty(k)
        ranks[np.argsort(np.abs(away), kind="stable")] = np.arange(1, k + 1)
        beyond = float(ranks[away > 0].sum())
        found = max(0, round((4 * beyond - k * (k + 1)) / (2 * k - 1)))
        if found == missing:
            break
        missing = min(found, k - 1)
    return missing, mean


def _one_size(s: Array) -> bool:
    return bool(np.ptp(s) <= 1e-9 * float(s.max()))

"""Ten estimators of τ², the variance of effects between sites, all cut at 0.

Of k estimates y with variances v, w = 1/(v + τ²), μ̂ = Σwy/Σw and Q(τ²) = Σ w (y − μ̂)²:

==========  ==================================================================================
``fixed``   τ² = 0
``dl``      DerSimonian–Laird: (Q(0) − E Q)/(Σw − Σw²/Σw) with w = 1/v
``pm``      Paule–Mandel: the root of Q(τ²) = E Q
``reml``    the global maximum of the restricted likelihood
``ml``      the global maximum of the likelihood
``hs``      Hunter–Schmidt: (Q(0) − k)/Σw
``hsk``     the same, corrected for few sites: (Q(0) k/(k − 1) − k)/Σw
``he``      Hedges: Σ(y − ȳ)²/(k − 1) − v̄
``sj``      Sidik–Jonkman: τ₀² Q(τ₀²)/(k − 1), τ₀² = Σ(y − ȳ)²/k
``eb``      empirical Bayes (Morris): the root of Q(τ²) = k − 1
==========  ==================================================================================

E Q is k − 1 of known variances. Where the v are estimates, with degrees of freedom, ``dl`` and
``pm`` take Q's mean under homogeneity instead (:mod:`penstock.inference.uncertain`); the
others take the v as known. Of known variances ``eb`` and ``pm`` are one.

Sources: DerSimonian & Laird, Controlled Clinical Trials 7 (1986) 177–188; Paule & Mandel, J. Res.
NBS 87 (1982) 377–385; Hunter & Schmidt, Methods of Meta-Analysis (1990); Brannick, Potter, Benitez
& Morris, Organizational Research Methods 22 (2019) 490–514 (``hsk``); Hedges & Olkin, Statistical
Methods for Meta-Analysis (1985); Sidik & Jonkman, JRSS C 54 (2005) 367–384; Morris, JASA 78 (1983)
47–55; Viechtbauer, J. Educational and Behavioral Statistics 30 (2005) 261–293.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from penstock.inference.uncertain import Uncertainty

Array = NDArray[np.float64]
Estimator = Callable[[Array, Array, Array], float]

GRID, COARSE = 256, 32
"""Points between which a likelihood's maxima are looked for; of more than :data:`MANY` sites fewer,
since it is single sites that make second maxima."""
MANY = 100
"""Sites, beyond which time counts: each of them is left out once."""


def sum_products(a: Array, b: Array) -> float:
    """Σ a b, rounded as numpy's sums are: what a linear algebra library adds differs in the last
    digit from one processor, and even from one process, to another."""
    return float((a * b).sum())


def spread_about_mean(w: Array, y: Array) -> float:
    """Σ w (y − Σwy/Σw)²."""
    return sum_products(w, (y - sum_products(w, y) / float(w.sum())) ** 2)


def sum_cross_products(w: Array) -> float:
    """(Σw)² − Σw² as Σ_{i≠j} w_i w_j, which one dominating weight cannot cancel to 0.

    Of more than :data:`MANY` sites, none with half of the weight, nothing can: it is subtracted.
    """
    total = float(w.sum())
    if len(w) > MANY and float(w.max()) <= total / 2:
        return total**2 - sum_products(w, w)
    products = np.outer(w, w)
    np.fill_diagonal(products, 0.0)
    return float(products.sum())


def generalised_q(tau2: float, y: Array, v: Array) -> float:
    """Q(τ²) = Σ (y − μ̂(τ²))²/(v + τ²); it decreases in τ²."""
    return spread_about_mean(1.0 / (v + tau2), y)


def find_root(f: Callable[[float], float], low: float, high: float, v: Array) -> float:
    """The root in [low, high]; an error far below the smallest variance does not matter."""
    xtol = 1e-14 * float(v.min())
    return float(optimize.brentq(f, low, high, xtol=xtol, rtol=1e-15, maxiter=1000))


def find_highest(
    score: Callable[[float], float],
    scores: Callable[[Array], Array],
    log_likelihood: Callable[[float], float],
    spread: float,
    v: Array,
) -> float:
    """The global maximum over τ² ≥ 0 of a log likelihood that falls in the end.

    It can have several maxima. It is scanned on a logarithmic grid, and each sign change of the
    score from + to − is refined by bracketing.

    Args:
        score: its derivative, times any factor above 0, and scores: the same of many τ² at once.
        log_likelihood: decides between maxima.
        spread: the squared range of what τ² is the variance of; 0: τ² is 0.
        v: variances within sites, > 0.
    """
    if not spread > 0:
        return 0.0
    high = max(spread, float(v.max()))
    while score(high) > 0:
        high *= 4.0
    low = 1e-8 * min(float(v.min()), spread)
    if not low > 0:
        return 0.0
    grid = np.concatenate(([0.0], np.geomspace(low, high, GRID if len(v) <= MANY else COARSE)))
    found = scores(grid)
    turns = np.flatnonzero((found[:-1] > 0) & (found[1:] <= 0))
    candidates = [0.0]
    for left, right in zip(grid[turns], grid[turns + 1], strict=True):
        # One τ² alone is rounded otherwise than in a grid: next to a root its sign may differ.
        if score(float(left)) > 0 >= score(float(right)):
            candidates.append(find_root(score, float(left), float(right), v))
        else:
            candidates += [float(left), float(right)]
    return max(candidates, key=log_likelihood)


def _fixed(y: Array, v: Array, nu: Array) -> float:
    return 0.0


def _dl(y: Array, v: Array, nu: Array) -> float:
    """DerSimonian & Laird 1986, eq. 8."""
    w = 1.0 / v
    q = spread_about_mean(w, y)
    mean = Uncertainty.of(v, 0.0, nu).expected_q(len(y) - 1)
    return (q - mean) * float(w.sum()) / sum_cross_products(w)


def _pm(y: Array, v: Array, nu: Array) -> float:
    """The root of Q(τ²) = E Q(τ²), or 0 where Q(0) is below it already.

    Q decreases in τ², and Q(τ²) ≤ Σ(y−ȳ)²/τ², which gives the bracket.
    """

    def excess(tau2: float) -> float:
        return generalised_q(tau2, y, v) - Uncertainty.of(v, tau2, nu).expected_q(len(y) - 1)

    if excess(0.0) <= 0:
        return 0.0
    high = float(((y - y.mean()) ** 2).sum()) / (len(y) - 1)
    if excess(high) >= 0:  # equality up to rounding: v is negligible beside τ²
        return high
    return find_root(excess, 0.0, high, v)


def _reml(y: Array, v: Array, nu: Array) -> float:
    """The restricted likelihood's score, times 2: Σw²(y−μ̂)² − Σw + Σw²/Σw."""
    return _likeliest(y, v, restricted=True)


def _ml(y: Array, v: Array, nu: Array) -> float:
    """The likelihood's score, times 2: Σw²(y−μ̂)² − Σw."""
    return _likeliest(y, v, restricted=False)


def _likeliest(y: Array, v: Array, *, restricted: bool) -> float:
    def scores(tau2: Array) -> Array:
        w = 1.0 / (v + tau2[:, None])
        total = w.sum(axis=1)
        mean = (w * y).sum(axis=1) / total
        squares = w * w
        found: Array = (squares * (y - mean[:, None]) ** 2).sum(axis=1) - total
        if restricted:
            found = found + squares.sum(axis=1) / total
        return found

    def score(tau2: float) -> float:
        return float(scores(np.array([tau2]))[0])

    def log_likelihood(tau2: float) -> float:
        w = 1.0 / (v + tau2)
        found = float(np.log(w).sum()) - spread_about_mean(w, y)
        return found - math.log(float(w.sum())) if restricted else found

    return find_highest(score, scores, log_likelihood, float(np.ptp(y)) ** 2, v)


def _hs(y: Array, v: Array, nu: Array) -> float:
    return (generalised_q(0.0, y, v) - len(y)) / float((1.0 / v).sum())


def _hsk(y: Array, v: Array, nu: Array) -> float:
    k = len(y)
    return (generalised_q(0.0, y, v) * k / (k - 1) - k) / float((1.0 / v).sum())


def _he(y: Array, v: Array, nu: Array) -> float:
    return float(y.var(ddof=1)) - float(v.mean())


def _sj(y: Array, v: Array, nu: Array) -> float:
    first = float(y.var())
    return first * generalised_q(first, y, v) / (len(y) - 1)


def _eb(y: Array, v: Array, nu: Array) -> float:
    return _pm(y, v, np.full(v.shape, math.inf))


ESTIMATORS: Mapping[str, Estimator] = {
    "fixed": _fixed,
    "dl": _dl,
    "pm": _pm,
    "reml": _reml,
    "ml": _ml,
    "hs": _hs,
    "hsk": _hsk,
    "he": _he,
    "sj": _sj,
    "eb": _eb,
}


def estimate_tau2(method: str, y: Array, v: Array, nu: Array) -> float:
    """τ² ≥ 0 of estimates, variances and their degrees of freedom, (k,) each; 0 of one site.

    Args:
        method: a key of :data:`ESTIMATORS`.
    """
    return max(0.0, ESTIMATORS[method](y, v, nu)) if len(y) > 1 else 0.0

r"""Rényi divergences in closed form, of one release and in nats.

Written so that nothing cancels: each is ``log(1 + x)/(α-1)`` with an x that is a sum of positive
terms. A release that costs next to nothing keeps its digits, and one that costs 1e6 does not
overflow. :mod:`penstock.privacy.accounting.renyi` holds autodp's values against these.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def gaussian_squared(sigma: float) -> float:
    """μ² = 1/σ²; the divergence of order α is α·μ²/2 (Mironov 2017, arXiv 1702.07476, Cor. 3)."""
    inverse = 1 / sigma
    return inverse * inverse


def descent_squared(sigma: float, contraction: float, steps: int) -> float:
    r"""μ² of the last iterate of noisy descent (Bok, Su & Altschuler 2024, 2403.00278, Sec. 4).

    With h = -log c, (1-c^T)/(1+c^T) = tanh(hT/2): exact digits for c close to 1 and large T, and
    never above T/σ², which is composition. Rounded up.
    """
    half = -math.log(contraction) / 2
    copies = math.tanh(half * steps) / math.tanh(half) if half > 0 else float(steps)
    return min(copies * (1 + 1e-14), float(steps)) * gaussian_squared(sigma)


def laplace(scale: float, order: float) -> float:
    """Laplace noise of the given scale (Mironov 2017, Prop. 6; α and b as there)."""
    up, down = (order - 1) / scale, order / scale
    heavy, light = order / (2 * order - 1), (order - 1) / (2 * order - 1)
    if up > 1:
        moment = up + math.log(heavy) + math.log1p(light / heavy * math.exp(-up - down))
    else:
        # The terms of first order cancel exactly; what is left of both is positive.
        moment = math.log1p(heavy * _exp_rest(up) + light * _exp_rest(-down))
    return min(moment / (order - 1), 1 / scale)


def pure(epsilon: float, order: float) -> float:
    """Randomized response at ε, the worst of all (ε, 0)-DP (Bun & Steinke 2016, Prop. 3.3)."""
    x = (order - 1) * epsilon
    if x > 1:
        told = 1 / (1 + math.exp(-epsilon))  # the chance of the truth
        moment = x + math.log1p((1 - told) * math.expm1(-2 * x))
    else:
        moment = math.log1p(2 * math.sinh(x / 2) ** 2 + math.tanh(epsilon / 2) * math.sinh(x))
    return min(moment / (order - 1), epsilon)


def poisson(rate: float, sigma: float, orders: tuple[float, ...]) -> Array:
    r"""Poisson-sampled Gaussian at many orders at once, 1 < α ≤ :data:`MAX_ORDER`.

    At whole orders (Mironov, Talwar & Zhang 2019, arXiv 1908.10530, §3.3 with Cor. 7), with the
    1 = Σ_j P(Bin(α, q) = j) taken out so that all terms are positive,

    .. math:: (α-1)\,ρ_α = \log\Bigl(1 + \sum_{j=2}^{α} \binom{α}{j} q^j (1-q)^{α-j}
              \bigl(e^{j(j-1)/(2σ^2)} - 1\bigr)\Bigr);

    between them (α-1)ρ_α is interpolated, an upper bound because it is convex, and 0 at α = 1.
    """
    below = [math.floor(order) for order in orders]
    above = [math.ceil(order) for order in orders]
    moments = _poisson_moments(rate, sigma, tuple(sorted({*below, *above})))
    low = np.array([moments[n] for n in below])
    high = np.array([moments[n] for n in above])
    share = np.array(orders) - np.array(below)
    # inf·0 at whole orders would be NaN.
    between = np.where(share > 0, low * (1 - share) + high * np.where(share > 0, share, 1), low)
    found: Array = between / (np.array(orders) - 1)
    return found


MAX_ORDER = 10_000
_TABLE = 64


def _poisson_moments(rate: float, sigma: float, whole: tuple[int, ...]) -> dict[int, float]:
    """(α-1)ρ_α at whole orders."""
    half = gaussian_squared(sigma) / 2
    hit, miss = math.log(rate), math.log1p(-rate)
    found = {1: 0.0}
    small = [n for n in whole if 1 < n <= _TABLE]
    blocks = [small] if len(small) > 2 else [[n] for n in small]
    for block in [*blocks, *([n] for n in whole if n > _TABLE)]:
        choose, rest = _binomials(tuple(block))
        j = np.arange(2.0, block[-1] + 1)
        x = j * (j - 1) * half
        # log(e^x - 1)
        with np.errstate(over="ignore", divide="ignore"):
            grown = np.where(x > 30, x + np.log1p(-np.exp(-x)), np.log(np.expm1(np.minimum(x, 40))))
        terms = choose + rest * miss + (j * hit + grown)
        top = terms.max(axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):
            logs = top[:, 0] + np.log(np.exp(terms - top).sum(axis=1))
        logs = np.where(np.isfinite(top[:, 0]), logs, top[:, 0])
        found.update(zip(block, np.logaddexp(0.0, logs).tolist(), strict=True))
    return found


@cache
def _binomials(whole: tuple[int, ...]) -> tuple[Array, Array]:
    """log binomials of α over j, and α - j, for j from 2 to the largest α; -∞ above α."""
    from scipy.special import gammaln

    n = np.array(whole, dtype=np.float64)[:, None]
    j = np.arange(2.0, whole[-1] + 1)[None, :]
    rest = np.maximum(n - j, 0.0)
    choose = gammaln(n + 1) - gammaln(j + 1) - gammaln(rest + 1)
    return np.where(j <= n, choose, -np.inf), rest


def _exp_rest(x: float) -> float:
    """e^x - 1 - x, with all its digits."""
    if abs(x) > 0.5:
        return math.expm1(x) - x
    total, term, k = 0.0, x * x / 2, 3
    while abs(term) > 1e-18 * total:
        total += term
        term *= x / k
        k += 1
    return total

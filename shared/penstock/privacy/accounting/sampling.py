r"""Amplification for batches of fixed size, drawn without replacement.

Relation: one person's row replaced by another's (which covers zero-out: the null record is such a
row), population and batch public. A row exchanged for another moves the batch's sum by at most the
*diameter* of a row, and σ is the noise's sd over that diameter. That holds for any third row that
takes the place as well, which the proofs below need.

**Rényi.** With γ = batch/population, P and Q the mixtures over all batches that hold the one row in
either world, and P' = (1-γ)R + γP, Q' = (1-γ)R + γQ what is seen,

.. math:: E_{Q'}\Bigl[\Bigl(\frac{P'}{Q'}\Bigr)^α\Bigr]
          = 1 + \sum_{j=2}^{α} \binom{α}{j} γ^j\, E_{Q'}\Bigl[\Bigl(\frac{P-Q}{Q'}\Bigr)^j\Bigr]

at whole orders α. Wang, Balle & Kasiviswanathan 2019 (arXiv 1808.00087, Thm 9) bound the moment of
order j by 2e^{(j-1)ρ(j)}, and by 4(e^{ρ(2)} - 1) at j = 2, with ρ(j) = j/(2σ²) of the Gaussian.

For the Gaussian these moments are known exactly, which is up to 20 times better for large σ. As
``|x|^j/y^{j-1}`` is jointly convex, one batch with each of three rows in the same place is the
worst: P, Q, R are then Gaussians of sd 1 with means pairwise within D = 1/σ (or R = Q). Let
``A = |P-R|²``, ``B = |Q-R|²`` and c the inner product of P - R and Q - R. For even j,
M_j = E_R[((P-Q)/R)^j] is a sum of exponentials,
:math:`\sum_k \binom{j}{k} (-1)^{j-k} e^{k(k-1)A/2 + (j-k)(j-k-1)B/2 + k(j-k)c}`.

1. ∂M/∂A = C(j,2)·E_R[(P/R)²((P-Q)/R)^{j-2}] ≥ 0, ∂M/∂B likewise, and ∂M/∂c = -j(j-1)·E_R[PQ/R²·
   ((P-Q)/R)^{j-2}] ≤ 0. So P and Q are as far apart as may be, ``|P-Q| = D`` (if R is too near to
   both, scale all three: by data processing M grows until it is).
2. Along ``|P-Q| = D``, dM/dA = C(j,2)·E_P[((P-Q)/R)^{j-1}] has the sign of E[sinh^{j-1}(w/2)] for a
   Gaussian w of mean (D² + (j-1)(A-B))/2, hence of that mean. Say A ≥ B: M grows with A up to D²,
   and there falls and then grows with B in [0, D²]: its largest value is at an end.
3. So M_j is largest at the equilateral triangle or at Q = R, ``|P-R| = D``. With P/R·Q/R as a
   change of measure it is e^{D²(3j²/8-j/2)}·E(2 sinh(w/2))^j, w ~ N(0, D²), in the one case, and
   e^{D²(j²/8-j/4)}·E(2 sinh(w/2))^j, w ~ N((j-1)D²/2, D²), in the other.

Odd j: the geometric mean of j-1 and j+1, by Cauchy-Schwarz under Q'. Thm 27 of the same paper is
the same idea with four times the binary moment in place of the exact ternary one.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, gammaln, logsumexp

from penstock.base.errors import InvalidEvent
from penstock.privacy.events import FixedSizeGaussian

Array = NDArray[np.float64]

ROUNDING = 1e-9
"""Relative; added to a bound so that rounding in float64 (about 1e-12 here) keeps it one."""

_MOST_EXACT, _REACH, _GRID = 256, 64.0, 0.1
"""Exact moments up to the 256th, and up to 64σ; beyond, Thm 9's are as good."""

_MOST_ORDER = 2**16
"""Above this order no amplification is claimed; the sum would be long and the gain nothing."""


def renyi_fixed_size(batch: int, population: int, noise_multiplier: float, order: float) -> float:
    r"""Rényi divergence, in nats, of one Gaussian release on a batch of fixed size; upper bound.

    At whole orders the formula of this module's head, with the smaller bound for each moment.
    Between whole orders by convexity of α ↦ (α-1)ρ_α, which is 0 at α = 1: below 2 this is the
    value at 2. Never above α/(2σ²), which holds without amplification: the Rényi divergence is
    jointly quasi-convex, so that a mixture over batches is no worse than the worst batch.

    Args:
        batch, population: whole, 1 ≤ batch < population.
        noise_multiplier: σ, noise sd over the L2 diameter of a row.
        order: α > 1, any real number.

    Raises:
        InvalidEvent: an argument out of its domain.
    """
    _check(batch, population, noise_multiplier)
    if not (order > 1 and math.isfinite(order)):
        raise InvalidEvent("a Rényi order must be finite and above 1", value=order)
    d = 1 / noise_multiplier
    plain = order / 2 * d * d
    if order > _MOST_ORDER:
        return plain
    below = math.floor(order)
    share = order - below
    low = _log_moment(batch / population, noise_multiplier, below)
    high = _log_moment(batch / population, noise_multiplier, below + 1) if share > 0 else 0.0
    between = ((1 - share) * low + share * high) / (order - 1)
    return min(between * (1 + ROUNDING), plain)


@lru_cache(maxsize=8192)
def _log_moment(rate: float, sigma: float, order: int) -> float:
    """(α-1)ρ_α at a whole order α ≥ 1, with or without amplification, whichever is smaller."""
    if order == 1:
        return 0.0
    d = 1 / sigma
    plain = (order - 1) * order / 2 * d * d
    j = np.arange(2, order + 1, dtype=np.float64)
    # Thm 9; its other bound at j = 2 is never below the exact moment, known wherever it matters.
    with np.errstate(over="ignore"):  # infinite, as it should be
        moments = math.log(2) + (j - 1) * j / 2 * d * d
    exact = _log_worst_moments(sigma, 1 << order.bit_length())[: len(j)]
    moments[: len(exact)] = np.minimum(moments[: len(exact)], exact)
    choose = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    total = float(logsumexp(choose + j * math.log(rate) + moments))
    return min(float(np.logaddexp(0.0, total)), plain)


@lru_cache(maxsize=1024)
def _log_worst_moments(sigma: float, most: int) -> Array:
    """Logarithms of the largest M_j of the module's head, j = 2, 3, ... ≤ most, while they help.

    The trapezoidal rule on an entire function that falls off as a Gaussian: its error is below
    rounding (tests/golden compare it with the sum of exponentials in mpmath).
    """
    d = 1 / sigma
    last = min(2 * int(_REACH / (2 * d)), _MOST_EXACT, most)
    if last < 2:
        return np.empty(0)
    j = np.arange(2.0, last + 1, 2)[:, None]
    # Half a step off 0, where the logarithm is infinite, and symmetric around it.
    z = np.arange(_GRID / 2, last * d + 2 * math.sqrt(last) + 12, _GRID)[None, :]
    # log(2 sinh(w/2)) at w = dz
    log_sinh = d * z / 2 + np.log(-np.expm1(-d * z))

    def log_expected(mean: Array) -> Array:
        right, left = j * log_sinh - (z - mean / d) ** 2 / 2, j * log_sinh - (z + mean / d) ** 2 / 2
        both = np.logaddexp(logsumexp(right, axis=1), logsumexp(left, axis=1))
        found: Array = both + math.log(_GRID / math.sqrt(2 * math.pi))
        return found

    equilateral = (d * d * (3 * j**2 / 8 - j / 2))[:, 0] + log_expected(0 * j)
    degenerate = (d * d * (j**2 / 8 - j / 4))[:, 0] + log_expected((j - 1) * d * d / 2)
    even = np.maximum(equilateral, degenerate)
    return np.insert(even, np.arange(1, len(even)), (even[1:] + even[:-1]) / 2)


def profile_fixed_size(
    batch: int, population: int, noise_multiplier: float, epsilons: ArrayLike
) -> Array:
    r"""δ at each ε of one Gaussian release on a batch of fixed size; upper bound.

    With γ = batch/population and δ(ε) = Φ(1/(2σ) - εσ) - e^ε Φ(-1/(2σ) - εσ), the curve of the
    unsampled Gaussian (Balle & Wang 2018, arXiv 1805.06530, Thm 8),

    .. math:: δ'\bigl(\log(1 + γ(e^{ε} - 1))\bigr) \le γ\, δ(ε)

    (Balle, Barthe & Gaboardi 2018, arXiv 1807.01647, Thm 9: without replacement, substitution);
    here solved for the δ' of the ε' that are asked for. The same in both directions.

    Args:
        batch, population, noise_multiplier: as in :func:`renyi_fixed_size`.
        epsilons: ε' ≥ 0, any shape; ∞ gives 0.

    Returns:
        δ' in [0, 1], the shape of ``epsilons``.

    Raises:
        InvalidEvent: an argument out of its domain, or an ε' that is negative or NaN.
    """
    _check(batch, population, noise_multiplier)
    wanted = np.asarray(epsilons, dtype=np.float64)
    if not (wanted >= 0).all():
        raise InvalidEvent("ε must not be negative", value=float(np.min(wanted)))
    rate = batch / population
    with np.errstate(divide="ignore"):  # ε' = 0 has logarithm -∞ and gives ε = 0
        # e^ε - 1 = (e^ε' - 1)/γ; the logarithm of e^ε' - 1 taken so that a large ε' is no overflow.
        whole = np.logaddexp(0.0, wanted + np.log(-np.expm1(-wanted)) - math.log(rate))
    found: Array = np.minimum(rate * _gaussian_delta(1 / noise_multiplier, whole), 1.0)
    return found


def _gaussian_delta(mu: float, epsilons: Array) -> Array:
    """The Gaussian's δ(ε), rounded up, without cancellation of two nearly equal tails.

    With t = ε/μ - μ/2 and Mills' ratio M, e^ε φ(t + μ) = φ(t), so that δ = φ(t)(M(t) - M(t + μ)).
    """
    t = epsilons / mu - mu / 2
    ratio = np.sqrt(np.pi / 2)
    with np.errstate(over="ignore", invalid="ignore"):
        # Far to the left Mills' ratio overflows, where δ is 1 in float64 anyway.
        difference = ratio * (erfcx(t / math.sqrt(2)) - erfcx((t + mu) / math.sqrt(2)))
        tail = ratio * erfcx(t / math.sqrt(2))
        density = np.exp(-(t**2) / 2) / math.sqrt(2 * np.pi)
        delta = density * (difference * (1 + ROUNDING) + 1e-15 * tail)
    return np.where(t < -30, 1.0, np.where(np.isinf(epsilons), 0.0, delta))


def _check(batch: int, population: int, noise_multiplier: float) -> None:
    """One place says what a batch of fixed size is: the event itself."""
    FixedSizeGaussian(batch, population, noise_multiplier)

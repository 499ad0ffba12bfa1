r"""Amplification by shuffling: rows that leave in random order hide each other.

Relation: one person's row replaced by any other (which covers zero-out), n public. Everything is
an upper bound. The only input is what one row's randomizer guarantees between *any* two inputs,
(ε₀, δ₀); that it adds Gaussian noise is not used further, which a bound of its own could improve.

The argument (Feldman, McMillan & Talwar 2021, arXiv 2012.12803v4, Thm 3.2): whatever the others'
inputs are, each of their rows is with probability e^-ε₀ a *clone*: drawn as if from one of the two
inputs in question, each with probability 1/2. Shuffled, everything that tells the two worlds apart
is a function of how many of the clones and the person's own row fell on either side:

.. math:: C \sim \mathrm{Bin}(n-1, e^{-ε_0}),\quad A \sim \mathrm{Bin}(C, 1/2),\quad
          Δ \sim \mathrm{Bern}\Bigl(\frac{e^{ε_0}}{e^{ε_0}+1}\Bigr)

and the worlds are P = (A+Δ, C-A+1-Δ) and Q = (A+1-Δ, C-A+Δ). Exchanging the two sides turns P into
Q, so that one direction of the hockey-stick divergence is both.

A randomizer that is (ε₀, δ₀)-DP only (Thm 3.8): two laws within δ₀/(e^ε₀+1) of the person's two are
ε₀-close (Dwork & Roth 2014, Lemma 3.17), and any other row's law is within e^-ε₀ δ₀·3/2 ≤ δ₀(1 +
e^-ε₀/2) of one that has these two as clones. Exchanging n laws so moves either world by at most
n·δ₀(1 + e^-ε₀/2) in total variation, and δ by e^ε + 1 times that.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincc, expit

from penstock.base.errors import InvalidEvent
from penstock.privacy.accounting import gaussian
from penstock.privacy.events import ShuffledGaussian
from penstock.privacy.numbers import MAX_PERSONS, positive, whole

Array = NDArray[np.float64]

_BUCKETS = 1024
_WINDOW = 12.0
_ROUNDING = 1e-9
_STEPS = 60
_CLOSE = 1e-6
_HOPELESS = 100.0
"""Above this ε₀ no amplification is looked for: even 10¹⁰ persons have no clone among them."""


def shuffled(event: ShuffledGaussian) -> float:
    """ε of *one* of the event's tables at the event's own ``delta``; its count is not looked at.

    The better of the clones (:func:`epsilon`) and of no amplification at all: a row is one
    Gaussian release, (ε, δ)-DP by its exact curve, and a table's other rows do not depend on it.

    Raises:
        InvalidEvent: δ₀ is above δ.
    """
    epsilon0 = local_epsilon(event.noise_multiplier, event.local_delta)
    clones = epsilon(epsilon0, event.local_delta, event.persons, event.delta)
    return min(clones, local_epsilon(event.noise_multiplier, event.delta))


def local_epsilon(noise_multiplier: float, local_delta: float) -> float:
    """ε₀ at δ₀ of one row with Gaussian noise, between any two inputs, by the exact curve.

    Args:
        noise_multiplier: noise sd over the L2 *diameter* of a row; finite, above 0.
        local_delta: δ₀ in (0, 1).

    Raises:
        InvalidEvent: an argument out of its domain.
    """
    positive("noise multiplier", noise_multiplier)
    return gaussian.epsilon(math.nextafter(1 / noise_multiplier, math.inf), local_delta)


def epsilon(epsilon0: float, local_delta: float, persons: int, delta: float) -> float:
    r"""ε at δ of n rows in random order, each from an (ε₀, δ₀)-DP randomizer; upper bound.

    The smallest ε (to a relative 1e-6, on the upper side) with

    .. math:: δ_{clones}(ε) + (e^ε + 1)(1 + e^{-ε_0}/2)\, n\, δ_0 \le δ

    (Thm 3.8, with the divergence itself in place of the closed form, whose condition
    ε₀ ≤ ln(n/(16 ln(2/δ))) is then not needed). Never above ε₀: without any amplification the
    whole table is (ε₀, δ₀)-DP, and that is what is returned where δ₀ costs more than δ holds.

    Args:
        epsilon0: ε₀ ≥ 0 of one row's randomizer, between any two inputs; ∞ stays ∞.
        local_delta: δ₀ in [0, δ]; about δ/(100 n) costs little.
        persons: n ≥ 1; one row each, null records included.
        delta: δ in (0, 1) of the whole table.

    Raises:
        InvalidEvent: an argument out of its domain, or δ < δ₀: then no finite ε is known.
    """
    _check(epsilon0, local_delta, persons, delta)
    if epsilon0 == 0 or epsilon0 > _HOPELESS:
        return epsilon0
    clones, masses = _clones(epsilon0, persons)
    cost = (1 + math.exp(-epsilon0) / 2) * persons * local_delta

    def excess(at: float) -> tuple[float, float]:
        """What δ lacks at ε, and its slope in e^ε."""
        divergence, slope = _divergence(epsilon0, at, clones, masses)
        return divergence + (math.exp(at) + 1) * cost - delta, slope + cost

    # δ_clones falls and δ₀'s part grows, both convex in e^ε, so that the ε that will do are an
    # interval; where a point will not do, the slope says on which side the interval lies.
    low, high, best = 0.0, epsilon0, epsilon0
    if excess(0.0)[0] <= 0:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        lacking, slope = excess(middle)
        if lacking <= 0:
            high = best = middle
        elif slope < 0:
            low = middle
        else:
            high = middle
        if high - low <= _CLOSE * low:
            break
    return best


def _clones(epsilon0: float, persons: int) -> tuple[Array, Array]:
    """The number of clones in buckets: the smallest number in each, and its probability.

    More clones never hurt (one more is drawn without looking at the data), so that a bucket may be
    taken at its smallest number; this needs no truncation, and is exact where buckets hold one.
    """
    others = persons - 1
    # Rounded down: fewer clones are less private.
    rate = max(math.nextafter(math.exp(-epsilon0), 0.0), 0.0)
    mean, sd = others * rate, math.sqrt(others * rate * (1 - rate))
    low = max(math.floor(mean - _WINDOW * sd), 0)
    high = min(math.ceil(mean + _WINDOW * sd) + 40, others)
    edges = np.unique(np.append(np.rint(np.linspace(low, high, _BUCKETS)), 0.0))
    # From the near tail on either side, so that a small probability is no difference of ones.
    upper = np.append(_at_least(edges, others, rate), 0.0)
    lower = np.append(_fewer_than(edges, others, rate), 1.0)
    left = edges < mean
    masses = np.where(left, np.diff(lower), -np.diff(upper))
    error = _beta_error(others) * np.where(left, lower[1:], upper[:-1])
    return edges, np.maximum(masses, 0.0) + error


def _at_least(k: Array, trials: Array | int, rate: float) -> Array:
    """P(Bin(trials, rate) ≥ k)."""
    inside = (k >= 1) & (k <= trials)
    k1 = np.where(inside, k, 1.0)
    tail = betainc(k1, np.where(inside, trials - k1 + 1, 1.0), rate)
    return np.where(inside, tail, np.where(k < 1, 1.0, 0.0))


def _fewer_than(k: Array, trials: int, rate: float) -> Array:
    """P(Bin(trials, rate) < k), accurate where it is small."""
    inside = (k >= 1) & (k <= trials)
    k1 = np.where(inside, k, 1.0)
    tail = betaincc(k1, np.where(inside, trials - k1 + 1, 1.0), rate)
    return np.where(inside, tail, np.where(k < 1, 0.0, 1.0))


def _beta_error(trials: Array | int) -> Array:
    """Relative error of the two tails above, generously: 2e-16·√n was measured (tests/golden)."""
    error: Array = 1e-15 * (8 + np.sqrt(trials))
    return error


def _divergence(epsilon0: float, at: float, clones: Array, masses: Array) -> tuple[float, float]:
    r"""Hockey-stick divergence of P from Q at ε ≤ ε₀, rounded up, and its slope in e^ε.

    Given C = c, P and Q put on A+Δ = a the masses p·b(a-1) + (1-p)·b(a) and (1-p)·b(a-1) + p·b(a),
    b binomial(c, 1/2) and p = e^ε₀/(e^ε₀+1). Their ratio grows with b(a-1)/b(a) = a/(c+1-a), so
    that P > e^ε Q from one k on. With α = p - e^ε(1-p) and β = e^ε p - (1-p) that is where
    c+1-a < (c+1)·α/(α+β), and the divergence is α·P(Bin ≥ k-1) - β·P(Bin ≥ k).
    """
    p = float(expit(epsilon0))
    alpha = -math.expm1(at - epsilon0) * p
    beta = -math.exp(at) * math.expm1(-at - epsilon0) * p
    # α/(α+β); its complement would round to 1 for a large ε, and leave out what P alone can give.
    share = math.expm1(at - epsilon0) / (math.expm1(-epsilon0) * (math.exp(at) + 1))
    k = clones + 2 - np.maximum(np.ceil(share * (clones + 1)), 1.0)
    before, after = _at_least(k - 1, clones, 0.5), _at_least(k, clones, 0.5)
    # Rounding may put k one too high; what is left out then is below 1e-15 of α·P(Bin ≥ k-2).
    wider = before * (1 + (k - 1) / (clones - k + 2))
    error = _beta_error(clones) * (alpha * wider + beta * after)
    each = np.maximum(alpha * before - beta * after, 0.0) * (1 + _ROUNDING) + error
    slope = -((1 - p) * before + p * after)
    return float(masses @ each), float(masses @ slope)


def _check(epsilon0: float, local_delta: float, persons: int, delta: float) -> None:
    if not epsilon0 >= 0:
        raise InvalidEvent("ε₀ must not be negative", value=epsilon0)
    whole("persons", persons, MAX_PERSONS)
    if not 0 < delta < 1:
        raise InvalidEvent("δ must lie in (0, 1)", value=delta)
    if not 0 <= local_delta <= delta:
        raise InvalidEvent(
            "a row's own δ₀ must lie in [0, δ]",
            value=local_delta,
            bound=f"δ = {delta:g}",
            remedy="a smaller δ₀, about δ/(100 n)",
        )

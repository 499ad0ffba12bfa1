r"""What is exactly Gaussian-DP, or all but, in closed form.

A mechanism is μ-GDP if telling neighbours apart is no easier than telling N(0, 1) from N(μ, 1).
Unsampled Gaussian releases are, with μ = 1/σ, and compose adaptively by √Σμ² (Dong, Roth & Su 2022,
arXiv 1905.02383, Thm 2.7 and Cor. 3.3). The curve of a μ-GDP mechanism is

.. math:: δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)

(Balle & Wang 2018, arXiv 1805.06530, Thm 8). Sites of a sum that adds up over several sites, and
the last iterate of a noisy descent, are μ-GDP as well (:mod:`penstock.privacy.events`); a discrete
Gaussian on a fine grid differs by next to nothing (:func:`indistinct`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from penstock.base.errors import InvalidEvent
from penstock.privacy.accounting.curves import descent_squared, gaussian_squared
from penstock.privacy.events import (
    DiscreteGaussian,
    DistributedGaussian,
    Event,
    Gaussian,
    NoisyDescent,
    Release,
    by_person,
)

TAIL = 700.0
"""-log of a chance that is as good as none, in :func:`indistinct`."""

_ROUNDING = 1e-11
"""Relative error of :func:`delta` in float64, at most; 8e-13 was measured."""


def mu_squared(event: Release) -> float | None:
    """μ² of one event, with its count, rounded up; None if it is not exactly Gaussian-DP."""
    match event:
        case Gaussian():
            return event.count * gaussian_squared(event.noise_multiplier)
        case NoisyDescent():
            once = descent_squared(event.noise_multiplier, event.contraction, event.steps)
            return event.count * once
    return None


def mu(events: Iterable[Event]) -> float | None:
    """√Σμ² of the composition, over strata the largest; None where not all is Gaussian-DP.

    Zero-out with public n. 0 for no events.
    """
    found = 0.0
    for events_of_one in by_person(events):
        squares = [mu_squared(event) for event in events_of_one]
        if None in squares:
            return None
        found = max(found, math.sqrt(sum(s for s in squares if s is not None)))
    return found


def delta(mu: float, epsilon: float) -> float:
    """δ at ε of a μ-GDP mechanism, relative error below 1e-11 (for μ ≤ 1000); not rounded.

    Args:
        mu: μ ≥ 0; ∞ gives 1.
        epsilon: ε ≥ 0.

    Raises:
        InvalidEvent: μ or ε negative or NaN.
    """
    if not mu >= 0:
        raise InvalidEvent("μ must not be negative", value=mu)
    if not epsilon >= 0:
        raise InvalidEvent("ε must not be negative", value=epsilon)
    if mu == 0 or math.isinf(epsilon):
        return 0.0
    # ε/μ - μ/2. In these terms e^ε φ(a + μ) = φ(a), so with Mills' ratio M = Φ(-x)/φ(x) the curve
    # is φ(a)(M(a) - M(a + μ)): nothing overflows, and tails as small as 1e-300 keep their digits.
    a = epsilon / mu - mu / 2
    if math.isinf(a) or a > 38:
        return 1.0 if a < 0 else 0.0
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    if mu < 0.002:
        # The difference would lose digits: -M' = 1 - xM(x) by Gauss-Legendre, error O(μ⁴).
        step = mu / (2 * math.sqrt(3))
        middle = a + mu / 2
        slopes = (1 - x * _mills(x) for x in (middle - step, middle + step))
        return density * mu * sum(slopes) / 2
    if a > 0:
        return density * (_mills(a) - _mills(a + mu))
    return math.erfc(a / math.sqrt(2)) / 2 - density * _mills(a + mu)


def epsilon(mu: float, delta_: float) -> float:
    """The smallest ε ≥ 0 of a μ-GDP mechanism at δ, rounded up (by about 1e-11, relative).

    Args:
        mu: μ ≥ 0; ∞ gives ∞.
        delta_: δ in (0, 1).

    Raises:
        InvalidEvent: μ is negative or NaN, or δ no probability strictly between 0 and 1.
    """
    if not 0 < delta_ < 1:
        raise InvalidEvent("δ must lie in (0, 1)", value=delta_)
    within = delta_ * (1 - _ROUNDING)
    if delta(mu, 0.0) <= within:
        return 0.0
    # δ(ε) <= Φ(-a) <= exp(-a²/2) with a as in delta(): at `high` that is δ.
    low, high = 0.0, mu * (mu / 2 + math.sqrt(-2 * math.log(within)) + 1)
    if math.isinf(high):
        return math.inf
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if delta(mu, middle) <= within else (middle, high)
    return high


def indistinct(event: DiscreteGaussian | DistributedGaussian) -> tuple[float, float]:
    r"""η₁, η₂: how little exact discrete noise differs from rounded continuous noise.

    Let s be the sd over the grid's width, p the discrete Gaussian's mass at a whole number k, and
    r that of N(0, s²) rounded to the nearest whole number. With Z = Σ exp(-k²/2s²) and u uniform
    on ±1/2,

    .. math:: \frac{r(k)}{p(k)} = \frac{Z}{s\sqrt{2π}}\, E\, e^{-(2ku + u^2)/(2s^2)}.

    - From below: Z ≥ s√(2π) (Poisson summation) and Jensen's inequality, as E u = 0 and
      E u² = 1/12: log(r/p) ≥ -1/(24 s²).
    - From above: E e^{-ku/s²} = sinh(a)/a ≤ e^{a²/6} with a = k/(2s²), and
      Z ≤ s√(2π)(1 + 3e^{-2π²s²}) for s ≥ 1: log(r/p) ≤ k²/(24 s⁴) + 3e^{-2π²s²}.

    Over the ``size`` numbers of a release, each with its own s_j ≥ s, the logarithm lies between
    -η₁ with η₁ = size/(24 s²), and η₂ = B/(24 s²) + 3·size·e^{-2π²s²} wherever Σ(k_j/s_j)² ≤ B. For
    rounded noise, ‖k/s‖ ≤ ‖N(0, I)‖ + √size/(2s), and the norm exceeds √size + t with a chance of
    at most τ = e^{-t²/2} (concentration of a 1-Lipschitz function); here t² = 2·TAIL.

    Let W be the law of everything that is seen, with discrete noise, V the same with rounded
    noise, and ' either for the neighbour. Whatever was chosen adaptively, the ratios of the
    releases multiply: W ≤ e^{Ση₁} V everywhere, and V' ≤ e^{Ση₂} W' but for an event of chance
    Στ. Rounding N(q, s²) is post-processing of a Gaussian release, so that V has the curve δ_V of
    a composition with plain Gaussians, and

    .. math:: W(S) \le e^{Ση_1} V(S) \le e^{Ση_1}\bigl(e^ε V'(S) + δ_V(ε)\bigr)
              \le e^{ε + Ση_1 + Ση_2} W'(S) + e^{Ση_1}\bigl(δ_V(ε) + e^ε Στ\bigr).

    So δ_W(ε + Ση₁ + Ση₂) ≤ e^{Ση₁}(δ_V(ε) + e^ε Στ). Whole-valued queries only move both laws, and
    the event's σ is the same for both.

    A distributed sum has chances within e^{±κ} of one discrete Gaussian's, κ as
    :class:`~penstock.privacy.events.DistributedGaussian` says: both η are larger by κ.
    """
    s, size, apart = event.grid_sd, event.size, 0.0
    if isinstance(event, DistributedGaussian):
        apart = 7 * event.honest * size * math.exp(-((math.pi * s) ** 2))
        s *= math.sqrt(event.honest)
    if not s >= 1:
        return math.inf, math.inf
    norm = math.sqrt(size) * (1 + 1 / (2 * s)) + math.sqrt(2 * TAIL)
    below = size / (24 * s * s)
    above = norm * norm / (24 * s * s) + 3 * size * math.exp(-2 * math.pi**2 * s * s)
    return (below + apart) * (1 + 1e-12), (above + apart) * (1 + 1e-12)


def _mills(x: float) -> float:
    from scipy.special import erfcx

    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))

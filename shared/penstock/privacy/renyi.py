r"""Rényi divergences of events: the one file that speaks to autodp, which gates.

Only autodp's ``RenyiDP`` is used: its φ-function, AFA and PLD paths return underestimates for some
mechanisms and are not imported here. Divergences compose by addition (Mironov 2017, arXiv
1702.07476, Prop. 1) and convert by

.. math:: ε = ρ_α + \log\frac{α-1}{α} - \frac{\log δ + \log α}{α - 1}

(Canonne, Kamath & Steinke 2020, arXiv 2004.00010, Prop. 12; Balle et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from penstock.errors import InvalidEvent
from penstock.privacy.events import Event, Gaussian, PoissonGaussian, Unbounded

ORDERS: tuple[float, ...] = (
    *(1 + k / 16 for k in range(1, 16)),
    *(2 + k / 8 for k in range(64)),
    *(float(a) for a in range(10, 65)),
    *(80.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0),
)
"""Rényi orders searched for a single study. Autodp interpolates (α-1)ρ_α linearly between whole
orders for sampled Gaussians, which is an upper bound because (α-1)ρ_α is convex."""

MIN_DELTA = 1e-12


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse what is not a privacy budget.

    Raises:
        InvalidEvent: ε is not a finite positive number, or δ is outside [1e-12, 1).
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise InvalidEvent("ε must be a finite positive number", value=epsilon)
    check_delta(delta)


def check_delta(delta: float) -> None:
    if not MIN_DELTA <= delta < 1:
        raise InvalidEvent("δ out of range", value=delta, bound=f"{MIN_DELTA} <= δ < 1")


@lru_cache(maxsize=4096)
def _renyi_once(kind: type[Event], rate: float, noise_multiplier: float, order: float) -> float:
    """autodp's RDP of one release at one order, in nats."""
    # autodp imports slowly, and the analyst's half of this package never needs it.
    from autodp import mechanism_zoo, transformer_zoo

    mechanism = mechanism_zoo.ExactGaussianMechanism(noise_multiplier)
    if kind is PoissonGaussian:
        # The improved bound is proved for the Gaussian (Zhu & Wang 2019, Thm 8) and only used here.
        amplify = transformer_zoo.AmplificationBySampling(PoissonSampling=True)
        mechanism = amplify(mechanism, rate, improved_bound_flag=True)
    value = float(mechanism.RenyiDP(order))
    if not value >= 0:
        raise InvalidEvent(f"autodp gave no valid Rényi divergence at order {order}", value=value)
    return value


def renyi(event: Event, order: float) -> float:
    """Rényi divergence of ``order`` (> 1) of one event, zero-out relation, in nats.

    ``count`` enters here and nowhere else. ∞ for :class:`Unbounded`.
    """
    if not (order > 1 and math.isfinite(order)):
        raise InvalidEvent("a Rényi order must be finite and above 1", value=order)
    match event:
        case Gaussian():
            once = _renyi_once(Gaussian, 1.0, event.noise_multiplier, order)
            return event.count * once
        case PoissonGaussian():
            once = _renyi_once(PoissonGaussian, event.rate, event.noise_multiplier, order)
            return event.count * once
        case Unbounded():
            return math.inf
    raise InvalidEvent("unknown kind of event", value=type(event).__name__)


def renyi_total(events: Iterable[Event], order: float) -> float:
    """Rényi divergence of a composition: the sum over its events."""
    return math.fsum(renyi(event, order) for event in events)


def to_epsilon(rho: float, order: float, delta: float) -> float:
    """ε at δ from a Rényi divergence ρ of the given order (formula above), at least 0."""
    check_delta(delta)
    if math.isnan(rho) or rho < 0:
        raise InvalidEvent("a Rényi divergence is never negative", value=rho)
    if rho == 0:
        return 0.0
    tail = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
    return max(rho + tail, 0.0)


def to_rho(epsilon: float, order: float, delta: float) -> float:
    """The largest Rényi divergence of ``order`` that still gives (ε, δ); may be negative."""
    tail = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
    return epsilon - tail

r"""Rényi divergences of events: what gates, and the one file that speaks to autodp.

What is charged is the larger of two values: autodp's, and that of a closed form of our own
(:mod:`penstock.privacy.accounting.curves`), rounded up by 1e-10. They agree to 1e-9 wherever autodp
keeps its digits (tests/golden/test_curves.py: hundreds of random configurations); where (α-1)ρ_α is
so small that autodp's logarithms cancel (below 1e-5), the closed form stands alone.

Of autodp only ``RenyiDP`` of three mechanisms is used, and ``anaRDPacct`` with its exact sum for
Poisson-sampled Gaussians. That is what its own amplification calls when the improved bound is asked
for; called directly it does not fill a table of the first hundred orders, and takes 0.3 ms instead
of 12. Its φ-function, AFA, f-DP and PLD paths and its calibrators return underestimates for some
mechanisms and are not reachable from here (tests/unit/shared/privacy/accounting/test_autodp.py).

Divergences compose by addition (Mironov 2017, arXiv 1702.07476, Prop. 1), also adaptively, and
convert by

.. math:: ε = ρ_α + \log\frac{α-1}{α} - \frac{\log δ + \log α}{α - 1}

(Canonne, Kamath & Steinke 2020, arXiv 2004.00010, Prop. 12; Balle et al. 2020). Approximate events
take their δ off the top (:func:`delta_off_top`) and enter with their ε alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from penstock.base.errors import InvalidEvent
from penstock.privacy.accounting import curves
from penstock.privacy.accounting.curves import Array
from penstock.privacy.events import (
    Approximate,
    DiscreteGaussian,
    DistributedGaussian,
    Event,
    FixedSizeGaussian,
    Gaussian,
    Laplace,
    NoisyDescent,
    OnStratum,
    PoissonGaussian,
    Pure,
    Release,
    ShuffledGaussian,
    Unbounded,
    by_person,
)

ORDERS: tuple[float, ...] = (
    *(1 + k / 16 for k in range(1, 16)),
    *(2 + k / 8 for k in range(64)),
    *(float(a) for a in range(10, 65)),
    *(80.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0),
)
"""Rényi orders searched for a single study."""

MIN_DELTA = 1e-12

_ROUND_UP = 1 + 1e-10
_DIGITS = 1e-5
"""(α-1)ρ_α from which on autodp's values are good to 1e-9; 6e-10 was measured."""


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


def check_order(order: float) -> None:
    if not 1 < order <= curves.MAX_ORDER:
        raise InvalidEvent(
            "a Rényi order out of range", value=order, bound=f"1 < α <= {curves.MAX_ORDER}"
        )


def renyi(event: Event, order: float) -> float:
    """Rényi divergence of ``order`` of one event, in nats, rounded up; relation of the event.

    ``count`` enters here and nowhere else. ∞ for :class:`Unbounded`. On a stratum: that of a person
    in the stratum. Events with a :func:`delta_off_top`: of what is left beside that δ.

    Raises:
        InvalidEvent: the order is not in (1, 10,000], or the event is of no known kind.
    """
    check_order(order)
    match event:
        case OnStratum():
            return renyi(event.event, order)
        case Gaussian() | DiscreteGaussian() | DistributedGaussian():
            once = _gaussian(event.noise_multiplier, order)
        case NoisyDescent():
            squared = curves.descent_squared(event.noise_multiplier, event.contraction, event.steps)
            once = order * (squared / 2)
        case PoissonGaussian():
            once = _poisson(event.rate, event.noise_multiplier, order)
        case FixedSizeGaussian():
            from penstock.privacy.accounting.sampling import renyi_fixed_size

            once = renyi_fixed_size(event.batch, event.population, event.noise_multiplier, order)
        case Laplace():
            once = _laplace(event.scale, order)
        case Pure() | Approximate():
            once = _pure(event.epsilon, order)
        case ShuffledGaussian():
            shuffled = shuffled_epsilon(event)
            once = _pure(shuffled, order) if math.isfinite(shuffled) else math.inf
        case Unbounded():
            return math.inf
        case _:
            raise InvalidEvent("unknown kind of event", value=type(event).__name__)
    # The next number up: a divergence that underflows is still no zero.
    return event.count * math.nextafter(once * _ROUND_UP, math.inf)


def renyi_total(events: Iterable[Event], order: float) -> float:
    """Rényi divergence of a composition: the sum over its events, over strata the largest."""
    return max(_sum(renyi(event, order) for event in own) for own in by_person(events))


def delta_off_top(events: Iterable[Event]) -> float:
    """What approximate events take off δ before the rest is converted; over strata the largest."""
    return max(_sum(_off_top(event) for event in own) for own in by_person(events))


def to_epsilon(rho: float, order: float, delta: float) -> float:
    """ε at δ from a Rényi divergence ρ of the given order (formula above), at least 0."""
    check_delta(delta)
    if math.isnan(rho) or rho < 0:
        raise InvalidEvent("a Rényi divergence is never negative", value=rho)
    if rho == 0:
        return 0.0
    return max(rho + _tail(order, delta), 0.0)


def epsilon_of_one(events: Sequence[Release], delta: float) -> float:
    """ε at δ at the best order, of events that all concern one person; δ is off the top already."""
    if not events:
        return 0.0
    if not delta >= MIN_DELTA:
        return math.inf
    # Every order gives a valid bound, so that a search that misses the best is loose, never wrong.
    curve = total_closed_form(events)
    found = [to_epsilon(rho, a, delta) for rho, a in zip(curve.tolist(), ORDERS, strict=True)]
    order = ORDERS[found.index(min(found))]
    return to_epsilon(renyi_total(events, order), order, delta)


def total_closed_form(events: Iterable[Release]) -> Array:
    """:func:`closed_form` of a composition, at :data:`ORDERS`."""
    total = np.zeros(len(ORDERS))
    with np.errstate(over="ignore"):  # ∞ is what is meant
        for event, count in merged(events).items():
            total += count * closed_form(event)
    return total


def merged(events: Iterable[Release]) -> dict[Release, int]:
    """How often each release happened: equal but for count, label and the query's own units."""
    times: dict[Release, int] = {}
    for event in events:
        key: Release = event
        if isinstance(event, Pure | Approximate):
            key = replace(event, count=1, label="")
        elif not isinstance(event, Unbounded):
            key = replace(event, count=1, label="", sensitivity=1.0)
        times[key] = times.get(key, 0) + (1 if isinstance(event, Unbounded) else event.count)
    return times


def to_rho(epsilon: float, order: float, delta: float) -> float:
    """The largest Rényi divergence of ``order`` that still gives (ε, δ); may be negative."""
    return epsilon - _tail(order, delta)


def closed_form(event: Release, orders: tuple[float, ...] = ORDERS) -> Array:
    """Divergences of a release at many orders at once, without autodp; an upper bound.

    To search in, and to display: what is charged is :func:`renyi`.
    """
    match event:
        case PoissonGaussian():
            once = _poisson_curve(event.rate, event.noise_multiplier, orders)
        case Laplace():
            once = np.array([curves.laplace(event.scale, order) for order in orders])
        case Pure() | Approximate():
            once = np.array([curves.pure(event.epsilon, order) for order in orders])
        case FixedSizeGaussian() | ShuffledGaussian() | Unbounded():
            return np.array([renyi(event, order) for order in orders])
        case _:
            with np.errstate(over="ignore"):
                linear: Array = np.nextafter(np.array(orders) * (renyi(event, 2.0) / 2), math.inf)
            return linear
    with np.errstate(over="ignore"):
        total: Array = event.count * np.nextafter(once * _ROUND_UP, math.inf)
    return total


def shuffled_epsilon(event: ShuffledGaussian) -> float:
    """ε of one shuffled table, beside its δ: ∞ where the bound says nothing."""
    return _shuffled(replace(event, count=1, label="", sensitivity=1.0))


def _off_top(event: Release) -> float:
    if not isinstance(event, Release):
        raise InvalidEvent("unknown kind of event", value=type(event).__name__)
    return event.delta_off_top


def _tail(order: float, delta: float) -> float:
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def _sum(values: Iterable[float]) -> float:
    # fsum rounds once, so that neither the order nor the grouping of events matters.
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


def _has_digits(exact: float, order: float) -> bool:
    return (order - 1) * exact >= _DIGITS and math.isfinite(exact)


def _larger(exact: float, autodps: float) -> float:
    # In this order a NaN of autodp's is never taken.
    return autodps if autodps > exact else exact


@lru_cache(maxsize=4096)
def _gaussian(sigma: float, order: float) -> float:
    exact = order * (curves.gaussian_squared(sigma) / 2)
    if not _has_digits(exact, order):
        return exact
    # autodp imports slowly, and the analyst's half of this package never needs it.
    from autodp.mechanism_zoo import ExactGaussianMechanism

    return _larger(exact, float(ExactGaussianMechanism(sigma).RenyiDP(order)))


@lru_cache(maxsize=4096)
def _laplace(scale: float, order: float) -> float:
    exact = curves.laplace(scale, order)
    if not _has_digits(exact, order):
        return exact
    from autodp.mechanism_zoo import LaplaceMechanism

    return _larger(exact, float(LaplaceMechanism(scale).RenyiDP(order)))


@lru_cache(maxsize=4096)
def _pure(epsilon: float, order: float) -> float:
    exact = curves.pure(epsilon, order)
    if not _has_digits(exact, min(order, 2.0)):  # it takes logarithms of sinh(ε) itself
        return exact
    from autodp.mechanism_zoo import PureDP_Mechanism

    return _larger(exact, float(PureDP_Mechanism(epsilon).RenyiDP(order)))


@lru_cache(maxsize=16384)
def _poisson(rate: float, sigma: float, order: float) -> float:
    exact = float(curves.poisson(rate, sigma, (order,))[0])
    if not _has_digits(exact, order):
        return exact
    from autodp.rdp_acct import anaRDPacct

    accountant = anaRDPacct(m=2)
    accountant.compose_poisson_subsampled_mechanisms(lambda a: 0.5 / sigma**2 * a, rate)
    accountant.build_zeroth_oracle()
    return _larger(exact, float(accountant.evalRDP(order)))


@lru_cache(maxsize=4096)
def _poisson_curve(rate: float, sigma: float, orders: tuple[float, ...]) -> Array:
    return curves.poisson(rate, sigma, orders)


@lru_cache(maxsize=1024)
def _shuffled(event: ShuffledGaussian) -> float:
    from penstock.privacy.accounting import shuffling

    return shuffling.shuffled(event)

r"""What events cost by their privacy loss distributions: reported beside what gates.

dp-accounting composes; every event enters by a privacy loss distribution that dominates it, each
rounded up ("connect the dots": Doroshenko et al. 2022, arXiv 2207.04380). Where all is Gaussian no
distribution is needed (:mod:`penstock.privacy.accounting.gaussian`). Relations:

- *zero-out* (dp-accounting's REPLACE_SPECIAL): as the events say.
- *replace-one*: each event's own replace-one version (:func:`replace_one`), and for a
  Poisson-sampled Gaussian the mixtures (1-q)·N(0) + q·N(±1) against each other, by dp-accounting.
  No other event is ever given to dp-accounting under REPLACE_ONE: there it doubles sensitivities in
  some places and not in others.

==================== ======================================================================
Gaussian-DP events   one Gaussian of μ = √Σμ²
DiscreteGaussian,    on a fine grid the same with a small, proven correction
DistributedGaussian  (:func:`~penstock.privacy.accounting.gaussian.indistinct`); on a coarse one
                     its Rényi curve, turned into a profile
PoissonGaussian      dp-accounting's own
FixedSizeGaussian    its privacy profile (:mod:`~penstock.privacy.accounting.sampling`), both ways
Laplace              dp-accounting's own
Pure, Approximate,   randomized response at ε; δ off the top before
ShuffledGaussian
==================== ======================================================================

A profile is a bound on δ(ε) that holds for all neighbours and all that happened before, so that a
distribution with that profile dominates the event and may stand for it in any composition (Zhu,
Dong & Wang 2022, arXiv 2106.08567, Thm 10). Events whose only bound is a Rényi curve add up their
curves first.

Every ε here is an upper bound, and never above the Rényi one, which is valid too. That one stands
alone where a distribution would be too large to hold: ε above :data:`MOST_EPSILON`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np

from penstock.base.errors import InvalidEvent
from penstock.privacy.accounting import gaussian
from penstock.privacy.accounting.curves import Array, gaussian_squared
from penstock.privacy.accounting.renyi import (
    MIN_DELTA,
    ORDERS,
    closed_form,
    delta_off_top,
    epsilon_of_one,
    merged,
    shuffled_epsilon,
    total_closed_form,
)
from penstock.privacy.events import (
    Approximate,
    DiscreteGaussian,
    DistributedGaussian,
    Event,
    FixedSizeGaussian,
    Gaussian,
    Laplace,
    PoissonGaussian,
    Pure,
    Release,
    ShuffledGaussian,
    Unbounded,
    by_person,
)

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

INTERVAL = 1e-4
"""Losses are rounded to this grid, or to a coarser one where the grid would get too long."""

MOST_EPSILON = 300.0
_MOST_CELLS = 2**19
_MOST_SEARCHED = 2**20
_MOST_AT_ONCE = 10_000
_FFT_ERROR = 1e-15
_MOST_SHIFT = 1e-3
_SHAPING_DELTA = 1e-9


def epsilon(events: Iterable[Event], delta: float, replaced: bool = False) -> float:
    """ε at δ; for ``replaced`` under replace-one. ∞ where no δ is left or an event has no bound."""
    return max(_epsilon_of_one(own, delta, replaced) for own in by_person(events))


def delta(events: Iterable[Event], epsilon: float, replaced: bool = False) -> float:
    """δ at ε ≥ 0; at most 1."""
    if not epsilon >= 0:
        raise InvalidEvent("ε must not be negative", value=epsilon)
    return max(_delta_of_one(own, epsilon, replaced) for own in by_person(events))


def replace_one(event: Release) -> Release:
    r"""What dominates the event where a person is exchanged for another, zero-out twice.

    The noise is half as large relative to twice the sensitivity; ε of pure DP doubles, and (ε, δ)
    becomes (2ε, (1 + e^ε)δ) (group privacy: Dwork & Roth 2014, Thm 2.2 and its δ). What is
    accounted by a diameter is as it was. A Poisson-sampled Gaussian keeps its numbers: it is the
    relation that differs.

    Raises:
        InvalidEvent: (1 + e^ε)δ is no longer below 1.
    """
    match event:
        case PoissonGaussian() | FixedSizeGaussian() | ShuffledGaussian() | Unbounded():
            return event
        case Laplace():
            return replace(event, scale=event.scale / 2)
        case Pure():
            return replace(event, epsilon=2 * event.epsilon)
        case Approximate():
            return replace(event, epsilon=2 * event.epsilon, delta=_grown(event))
    return replace(event, noise_multiplier=event.noise_multiplier / 2)


def _epsilon_of_one(events: Sequence[Release], delta: float, replaced: bool) -> float:
    own = _under(events, replaced)
    if own is None:
        return math.inf
    events, left = own, delta - delta_off_top(own)
    if not left >= MIN_DELTA or any(isinstance(event, Unbounded) for event in events):
        return math.inf
    if not events:
        return 0.0
    whole = compose(events, left, replaced)
    found = whole.epsilon(left) if whole else math.inf
    return min(found, epsilon_of_one(_unsampled(events) if replaced else events, left))


def _delta_of_one(events: Sequence[Release], epsilon: float, replaced: bool) -> float:
    own = _under(events, replaced)
    if own is None:
        return 1.0
    events, off_top = own, delta_off_top(own)
    if not off_top < 1 or any(isinstance(event, Unbounded) for event in events):
        return 1.0
    if not events:
        return 0.0
    whole = compose(events, _SHAPING_DELTA, replaced)
    curve = total_closed_form(_unsampled(events) if replaced else events)
    bound = float(_delta_by_renyi(curve, np.array([epsilon]))[0])
    return min(1.0, off_top + (min(bound, whole.delta(epsilon)) if whole else bound))


def _under(events: Sequence[Release], replaced: bool) -> Sequence[Release] | None:
    """The events under one of the relations; None where an (ε, δ) has no replace-one version."""
    if not all(isinstance(event, Release) for event in events):
        raise InvalidEvent("unknown kind of event", value={type(e).__name__ for e in events})
    if not replaced:
        return events
    if not all(_grown(event) < 1 for event in events if isinstance(event, Approximate)):
        return None
    return [replace_one(event) for event in events]


def _grown(event: Approximate) -> float:
    return event.delta * (1 + math.exp(min(event.epsilon, 700.0)))


def _unsampled(events: Sequence[Release]) -> list[Release]:
    """Poisson-sampled Gaussians under replace-one, bounded by what they are without sampling."""
    return [
        Gaussian(event.noise_multiplier / 2, event.count)
        if isinstance(event, PoissonGaussian)
        else event
        for event in events
    ]


# -- composition -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Whole:
    """A composition of releases to one person, as one curve.

    Attributes:
        mu: of the Gaussian-DP part, where that is all there is; else None.
        distribution: dp-accounting's PLD of everything, else None.
        swell, shift: η₁ and η₁ + η₂ of :func:`penstock.privacy.accounting.gaussian.indistinct`,
        summed.
        error: what rounding in the convolutions may have lost of δ.
    """

    mu: float | None
    distribution: PrivacyLossDistribution
    swell: float
    shift: float
    error: float

    def epsilon(self, delta: float) -> float:
        """ε at δ, an upper bound; ∞ where this curve says nothing."""
        inner = delta * math.exp(-self.swell) - self.error
        if not inner > 0:
            return math.inf
        if self.mu is not None:
            found = gaussian.epsilon(self.mu, inner)
        elif self.distribution.get_delta_for_epsilon(0.0) <= inner:
            found = 0.0
        else:
            found = float(self.distribution.get_epsilon_for_delta(inner))
        if not found >= 0 or (self.shift and found > gaussian.TAIL - 100):
            return math.inf  # no number; or e^ε times the noise's tail would no longer be nothing
        return found + self.shift

    def delta(self, epsilon: float) -> float:
        """δ at ε, an upper bound."""
        inner = epsilon - self.shift
        if inner < 0 or (self.shift and inner > gaussian.TAIL - 100):
            return 1.0
        if self.mu is not None:
            found = gaussian.delta(self.mu, inner) * (1 + 1e-11)
        else:
            found = float(self.distribution.get_delta_for_epsilon(inner))
        return min(1.0, math.exp(self.swell) * (found + self.error)) if found >= 0 else 1.0


def compose(events: Sequence[Release], delta: float, replaced: bool) -> Whole | None:
    """All events as one curve, or None where its distribution would be too large.

    Args:
        events: of one person; under replace-one already :func:`replace_one`'s.
        delta: δ near which the curve will be asked; it shapes the grid, and bounds nothing.
        replaced: which relation a Poisson-sampled Gaussian is under.
    """
    times = merged(events)
    squared, swell, shift, error = 0.0, 0.0, 0.0, 0.0
    others: dict[Release, int] = {}
    for event, count in times.items():
        square = gaussian.mu_squared(event)
        if square is None and isinstance(event, DiscreteGaussian | DistributedGaussian):
            once = gaussian.indistinct(event)
            if count * sum(once) <= _MOST_SHIFT:
                square = gaussian_squared(event.noise_multiplier)
                swell += count * once[0]
                shift += count * sum(once)
                # e^ε·τ up to TAIL - 100, and τ = e^-TAIL for each release.
                error += count * math.exp(-100)
        if square is None:
            others[event] = count
        else:
            squared += count * square
    if not others:
        return Whole(math.sqrt(squared), None, swell, shift, error)

    halved = [
        replace(event, noise_multiplier=event.noise_multiplier / 2)
        if replaced and isinstance(event, PoissonGaussian)
        else event
        for event in events
    ]
    rough = epsilon_of_one(halved, max(delta, MIN_DELTA))
    if not rough <= MOST_EPSILON or (not squared and _only_by_renyi(others)):
        return None
    interval = _interval(rough, squared, others)
    try:
        parts = _distributions(squared, others, interval, replaced)
        distribution = reduce(lambda both, part: both.compose(part), parts)
    except (ValueError, ArithmeticError):
        return None  # numbers that dp-accounting cannot hold, such as a rate of 1e-320
    return Whole(None, distribution, swell, shift, error + _FFT_ERROR * (sum(others.values()) + 16))


def _only_by_renyi(events: Iterable[Release]) -> bool:
    return all(isinstance(event, DiscreteGaussian | DistributedGaussian) for event in events)


def _interval(rough: float, squared: float, others: Mapping[Release, int]) -> float:
    """The grid's width: finer for many steps, as each rounds up; coarser to keep work bounded.

    dp-accounting looks for each cell of a Gaussian on its own, some microseconds each.
    """
    steps, width = sum(others.values()), squared + 20 * math.sqrt(squared)
    for event in others:
        if isinstance(event, PoissonGaussian | FixedSizeGaussian):
            width += (1 / event.noise_multiplier + 20) / event.noise_multiplier
        elif isinstance(event, Laplace):
            width += 2 / event.scale
    fine = INTERVAL * min(1.0, math.sqrt(1e5 / steps))
    return max(fine, 2 * rough / _MOST_CELLS, width / _MOST_SEARCHED)


def _distributions(
    squared: float, others: Mapping[Release, int], interval: float, replaced: bool
) -> Iterator[PrivacyLossDistribution]:
    """One privacy loss distribution for each kind of event, composed with itself."""
    # dp-accounting imports slowly, and the analyst's half of this package never needs it.
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as library

    from penstock.privacy.accounting.sampling import profile_fixed_size

    relation = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.REPLACE_SPECIAL
    width = {"value_discretization_interval": interval}
    if squared > 0:
        yield library.from_gaussian_mechanism(1 / math.sqrt(squared), **width)
    curve: Array | None = None
    for event, count in others.items():
        match event:
            case PoissonGaussian():
                once = library.from_gaussian_mechanism(
                    event.noise_multiplier,
                    sampling_prob=event.rate,
                    neighboring_relation=relation,
                    **width,
                )
            case Laplace():
                once = library.from_laplace_mechanism(event.scale, **width)
            case Pure() | Approximate():
                once = _response(event.epsilon, interval)
            case ShuffledGaussian():
                once = _response(shuffled_epsilon(event), interval)
            case FixedSizeGaussian():
                profile = partial(
                    profile_fixed_size, event.batch, event.population, event.noise_multiplier
                )
                once = _of_profile(profile, interval)
            case DiscreteGaussian() | DistributedGaussian():
                more = count * closed_form(event)
                curve = more if curve is None else curve + more
                continue
            case _:
                raise InvalidEvent("unknown kind of event", value=type(event).__name__)
        yield _repeat(once, count)
    if curve is not None:
        yield _of_profile(partial(_delta_by_renyi, curve), interval)


def _repeat(distribution: PrivacyLossDistribution, count: int) -> PrivacyLossDistribution:
    """``count`` copies composed; above 10,000 by squaring, which cuts tails as it goes.

    One convolution would need memory for all ``count`` widths, and dp-accounting raises the number
    of cells to the power of the count, as a whole number.
    """
    if count <= _MOST_AT_ONCE:
        return distribution.self_compose(count) if count > 1 else distribution
    power, rest = distribution.self_compose(_MOST_AT_ONCE), count % _MOST_AT_ONCE
    found = distribution.self_compose(rest) if rest else None
    count //= _MOST_AT_ONCE
    while count:
        if count % 2:
            found = power if found is None else found.compose(power)
        count //= 2
        if count:
            power = power.compose(power)
    return found


# -- distributions from curves -----------------------------------------------------------------


def _response(epsilon: float, interval: float) -> PrivacyLossDistribution:
    """Randomized response at ε: its two losses, each shared out between two cells."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as library

    low, high = math.floor(epsilon / interval), math.ceil(epsilon / interval)
    cells = np.array(sorted({-high, -low, low, high}))
    losses = cells * interval
    told = 1 / (1 + math.exp(-epsilon))
    deltas = told * -np.expm1(np.minimum(losses - epsilon, 0))
    deltas += (1 - told) * -np.expm1(np.minimum(losses + epsilon, 0))
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(interval, cells, deltas)
    return library.PrivacyLossDistribution(pmf)


def _of_profile(profile: Callable[[Array], Array], interval: float) -> PrivacyLossDistribution:
    r"""A distribution that dominates everything with this profile in both directions.

    ``profile`` bounds δ(ε) for ε ≥ 0 and both orders of the neighbours. The masses at h, 2h, ...
    are those whose curve meets the profile there and is linear in e^ε between ("connect the
    dots": Doroshenko et al. 2022, arXiv 2207.04380, Alg. 1). At a loss of -ε lies e^{-ε} times the
    mass at ε, as the two neighbours may be exchanged, and the rest at 0. (dp-accounting's own
    constructor asks for the profile below 0, where differences of numbers near 1 leave 1e-8 of
    rounding.)
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as library

    most = min(int(2 * MOST_EPSILON / interval), _MOST_CELLS)
    top = 1
    while top < most and profile(np.array([top * interval]))[0] > 1e-18:
        top = min(top + top // 4 + 1, most)
    losses = np.asarray(np.arange(top + 1) * interval, dtype=np.float64)
    # Bounds need not fall by themselves; the least so far is one too.
    deltas = np.minimum.accumulate(np.clip(profile(losses), 0.0, 1.0))
    falls = np.append(-np.diff(deltas), 0.0)
    # Upwards from 1: (e^h · fall before - fall after) / (e^h - 1); the last has no fall after.
    masses = (falls[:-1] * math.exp(interval) - falls[1:]) / math.expm1(interval)
    masses = np.maximum(masses, 0.0)
    mirrored = masses * np.exp(-losses[1:])
    rest = max(1.0 - deltas[-1] - masses.sum() - mirrored.sum(), 0.0)
    cells = np.concatenate((mirrored[::-1], [rest], masses))
    found = dict(zip(range(-top, top + 1), cells.tolist(), strict=True))
    pmf = pld_pmf.create_pmf(found, interval, float(deltas[-1]), pessimistic_estimate=True)
    return library.PrivacyLossDistribution(pmf)


def _delta_by_renyi(curve: Array, epsilons: Array) -> Array:
    """δ at each ε from divergences at :data:`ORDERS`, at most 1 (the conversion of renyi.py)."""
    least = np.zeros_like(epsilons)
    for order, rho in zip(ORDERS, curve.tolist(), strict=True):
        if math.isfinite(rho):
            exponent = (order - 1) * (rho + math.log1p(-1 / order)) - math.log(order)
            np.minimum(least, exponent - (order - 1) * epsilons, out=least)
    return np.exp(least)

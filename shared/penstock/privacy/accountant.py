r"""What events cost.

Two accountants, never mixed:

- **autodp gates.** Its Rényi divergences are valid upper bounds; they compose by addition
  (Mironov 2017, arXiv 1702.07476, Prop. 1) and convert by

  .. math:: ε = ρ_α + \log\frac{α-1}{α} - \frac{\log δ + \log α}{α - 1}

  (Canonne, Kamath & Steinke 2020, arXiv 2004.00010, Prop. 12; Balle et al. 2020). For one study,
  whose mechanism is fixed before it runs, the best order of :data:`ORDERS` may be taken. For a
  *lineage*, which composes adaptively chosen studies, one order is fixed at creation
  (:class:`Filter`).
- **dp-accounting's PLD is reported** beside it: tighter by 10-40 %, for the mechanisms actually
  run, and for the replace-one relation that papers and ethics boards quote.

Only autodp's RDP is used: its φ-function, AFA and PLD paths return underestimates for some
mechanisms and are not imported here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

from penstock.errors import BudgetExceeded, InvalidEvent
from penstock.privacy.events import Event, Gaussian, PoissonGaussian, Unbounded

ORDERS: tuple[float, ...] = (
    *(1 + k / 16 for k in range(1, 16)),
    *(2 + k / 8 for k in range(64)),
    *(float(a) for a in range(10, 65)),
    *(80.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0),
)
"""Rényi orders searched for a single study. Autodp interpolates (α-1)ρ_α linearly between whole
orders for sampled Gaussians, which is an upper bound because (α-1)ρ_α is convex."""

PLD_INTERVAL = 1e-4
MIN_DELTA = 1e-12


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse what is not a privacy budget.

    Raises:
        InvalidEvent: ε is not a finite positive number, or δ is outside [1e-12, 1).
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise InvalidEvent("ε must be a finite positive number", value=epsilon)
    _check_delta(delta)


def _check_delta(delta: float) -> None:
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
    _check_delta(delta)
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


def epsilon(events: Sequence[Event], delta: float) -> float:
    """ε at δ of a non-adaptive composition, by autodp's RDP at its best order.

    An upper bound under zero-out with public n. 0 for no events, ∞ for an unbounded one.
    """
    _check_delta(delta)
    if not events:
        return 0.0

    @cache
    def at(index: int) -> float:
        order = ORDERS[index]
        return to_epsilon(renyi_total(events, order), order, delta)

    # Every order gives a valid bound, so a search that misses the best one is loose, never wrong.
    # Coarse to fine, since autodp takes about 10 ms for each order of a sampled Gaussian.
    best = min(range(0, len(ORDERS), 16), key=at)
    for step in (4, 1):
        near = range(max(best - 4 * step, 0), min(best + 4 * step, len(ORDERS) - 1) + 1, step)
        best = min((best, *near), key=at)
    return at(best)


Relation = Literal["zero-out", "replace-one"]


def epsilon_pld(events: Sequence[Event], delta: float, *, relation: Relation = "zero-out") -> float:
    """ε at δ by dp-accounting's privacy loss distributions (pessimistic estimate).

    ``relation="replace-one"`` gives the value that papers quote: a person exchanged for another.
    There an unsampled Gaussian has twice the sensitivity, and a Poisson-sampled one the mixture
    (1-q)·N(0) + q·N(±1) in both directions; dp-accounting accounts for both itself.
    """
    _check_delta(delta)
    if any(isinstance(event, Unbounded) for event in events):
        return math.inf
    if not events:
        return 0.0
    # dp-accounting imports slowly, and the analyst's half of this package never needs it.
    import dp_accounting as dpa
    from dp_accounting import pld

    neighbours = {
        "zero-out": dpa.NeighboringRelation.REPLACE_SPECIAL,
        "replace-one": dpa.NeighboringRelation.REPLACE_ONE,
    }[relation]
    accountant = pld.PLDAccountant(neighbours, value_discretization_interval=PLD_INTERVAL)
    for event, count in _merged(events).items():
        once = dpa.GaussianDpEvent(event.noise_multiplier)
        if isinstance(event, PoissonGaussian):
            once = dpa.PoissonSampledDpEvent(event.rate, once)
        accountant.compose(dpa.SelfComposedDpEvent(once, count) if count > 1 else once)
    value = float(accountant.get_epsilon(delta))
    if not value >= 0:
        raise InvalidEvent("dp-accounting gave no valid ε", value=value)
    return value


def _merged(events: Iterable[Event]) -> dict[Gaussian | PoissonGaussian, int]:
    """Add up the counts of events that differ only in count and label; a PLD each is costly."""
    merged: dict[Gaussian | PoissonGaussian, int] = {}
    for event in events:
        match event:
            case Gaussian():
                key: Gaussian | PoissonGaussian = Gaussian(event.noise_multiplier)
            case PoissonGaussian():
                key = PoissonGaussian(event.rate, event.noise_multiplier)
            case _:
                raise InvalidEvent("not a bounded event", value=type(event).__name__)
        merged[key] = merged.get(key, 0) + event.count
    return merged


@dataclass(frozen=True, slots=True)
class Filter:
    r"""A Rényi privacy filter of one fixed order over adaptively chosen releases.

    A charge is admitted while Σρ_α stays within ρ_max = :func:`to_rho` (ε, α, δ). Because α is
    fixed before the first release, everything admitted is together (ε, δ)-DP even if each
    mechanism is chosen after seeing the outputs of the others (Feldman & Zrnic 2021, arXiv
    2008.11193, Thm 4.3 with constant budgets; concurrently Lécuyer 2021, arXiv 2103.01379).

    Args:
        epsilon: the total that may ever be spent.
        delta: its δ.
        order: the fixed Rényi order α > 1.
    """

    epsilon: float
    delta: float
    order: float

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        if not (self.order > 1 and math.isfinite(self.order)):
            raise InvalidEvent("a Rényi order must be finite and above 1", value=self.order)
        if not to_rho(self.epsilon, self.order, self.delta) > 0:
            raise InvalidEvent(
                "this order can hold no release at all",
                value=self.order,
                bound=f"ε = {self.epsilon}, δ = {self.delta}",
            )

    @property
    def rho_max(self) -> float:
        """The Rényi budget at the fixed order, in nats."""
        return to_rho(self.epsilon, self.order, self.delta)

    def admits(self, spent: Sequence[Event], charge: Sequence[Event]) -> bool:
        """Whether ``charge`` fits on top of ``spent``."""
        # fsum and a strict comparison: rounding may refuse a charge that just fits, never admit one
        # that just does not.
        return renyi_total((*spent, *charge), self.order) <= self.rho_max

    def spent(self, events: Sequence[Event]) -> float:
        """ε (at the filter's order and δ) of what has been charged; 0 before the first charge."""
        return to_epsilon(renyi_total(events, self.order), self.order, self.delta)

    def check(self, spent: Sequence[Event], charge: Sequence[Event], *, what: str) -> None:
        """Refuse a charge that does not fit, saying what is left.

        Raises:
            BudgetExceeded: with the ε that is spent and the largest ε that still fits.
        """
        if not self.admits(spent, charge):
            raise BudgetExceeded(
                f"{what}: the charge would take ε to {self.spent((*spent, *charge)):.4g}",
                bound=f"at most {self.epsilon:g} at δ = {self.delta:g}, "
                f"{self.spent(spent):.4g} spent",
                remedy=f"ask for ε <= {self.left(spent):.3g} (Gaussian), or a larger allowance",
            )

    def left(self, spent: Sequence[Event]) -> float:
        """The ε at this δ of the largest single Gaussian release that still fits (rounded down)."""
        rho = self.rho_max - renyi_total(spent, self.order)
        if not rho > 0:
            return 0.0
        # ρ_α = α/(2σ²); nudged to the private side so that the answer is itself admitted.
        noise_multiplier = math.sqrt(self.order / (2 * rho)) * (1 + 1e-9)
        return math.floor(epsilon((Gaussian(noise_multiplier),), self.delta) * 1e4) / 1e4


def best_order(budget_epsilon: float, budget_delta: float) -> float:
    """The order at which Gaussian releases that use up (ε, δ) exactly are cheapest.

    A function of the public budget only, so it may be fixed when a lineage is created.
    """
    check_budget(budget_epsilon, budget_delta)

    # The largest Gaussian composition (in 1/σ²) that order α admits is 2ρ_max/α.
    def capacity(order: float) -> float:
        return to_rho(budget_epsilon, order, budget_delta) / order

    return max(ORDERS, key=capacity)

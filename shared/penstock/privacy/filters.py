"""Privacy filters: what adaptively chosen releases may cost together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from penstock.base.errors import BudgetExceeded, InvalidEvent
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.accounting.curves import Array
from penstock.privacy.accounting.renyi import (
    MIN_DELTA,
    ORDERS,
    check_budget,
    check_order,
    closed_form,
    delta_off_top,
    renyi_total,
    to_epsilon,
    to_rho,
)
from penstock.privacy.events import Event, Gaussian, OnStratum


@dataclass(frozen=True, slots=True)
class Filter:
    r"""A Rényi privacy filter over adaptively chosen releases.

    A charge is admitted while, at some order α of a grid Λ fixed before the first release, Σρ_α
    stays within ρ_max = :func:`to_rho` (ε, α, δ'), with δ' = (δ - δ_a)/\|Λ\|, and while what is
    taken off the top of δ stays within δ_a = ``approximate_delta``. Then everything admitted is
    together (ε, δ)-DP, even if each mechanism, and whether there is a next one, is chosen after
    seeing the outputs of all before.

    *One order*: Feldman & Zrnic 2021 (arXiv 2008.11193, Thm 4.3 with constant budgets; concurrently
    Lécuyer 2021, arXiv 2103.01379). Its conditions: α, the budget and δ are fixed beforehand; each
    release has its divergence bounded, whatever came before, by a number known before it is made;
    it is refused unless it fits in whole.

    *A grid*: let stop(α) be the same interaction, ended before the first release that would take
    order α over its budget; it is (ε, δ')-DP by the above. A transcript says which orders are still
    within their budgets at its end (sums never fall); let E_α be those for which α is the first.
    On E_α the interaction is stop(α), and some E_α always holds, so that for every set S
    P(S) = Σ_α P(S ∩ E_α) <= Σ_α (e^ε P'(S ∩ E_α) + δ') = e^ε P'(S) + δ - δ_a.
    Taking the best order at the end without dividing δ is not covered.

    *δ off the top*: an (ε_i, δ_i)-DP release is, but for an event of chance δ_i, one with the
    divergence of (ε_i, 0)-DP. The share δ_a is fixed at creation because a part of δ that was
    chosen after seeing outputs would be a second grid, over which nothing was divided; while
    Σδ_i <= δ_a for every transcript, all those events together have a chance of at most δ_a
    (Whitehouse, Ramdas, Rogers & Wu 2023, arXiv 2203.05481, keep the same two sums).

    *Strata*: a person pays for what has no stratum and for their own stratum alone, so the sums are
    those of the dearest stratum; in every stratum's own world the conditions above hold.

    Args:
        epsilon: the total that may ever be spent.
        delta: its δ.
        order: the fixed Rényi order α > 1, or a grid of different ones.
        approximate_delta: δ_a, the share of δ for events with a δ of their own.

    Raises:
        InvalidEvent: no budget; an order out of range, twice, or one that can hold no release;
            or no δ left beside δ_a.

    Example:
        >>> from penstock.privacy.events import Gaussian
        >>> limit = Filter(epsilon=3.0, delta=1e-5, order=best_order(3.0, 1e-5))
        >>> spent = [Gaussian(4.0)]
        >>> limit.admits(spent, [Gaussian(4.0)]), limit.admits(spent, [Gaussian(1.0)])
        (True, False)
    """

    epsilon: float
    delta: float
    order: float | tuple[float, ...]
    approximate_delta: float = 0.0

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        if not 0 <= self.approximate_delta < self.delta:
            raise InvalidEvent(
                "the share of δ for approximate events",
                value=self.approximate_delta,
                bound=f"at least 0, below δ = {self.delta:g}",
            )
        if not self.orders or len(set(self.orders)) != len(self.orders):
            raise InvalidEvent("a grid needs orders that differ", value=self.order)
        if not self.delta_per_order >= MIN_DELTA:
            raise InvalidEvent(
                "too little of δ for each order", value=self.delta_per_order, bound=MIN_DELTA
            )
        for order in self.orders:
            check_order(order)
            if not to_rho(self.epsilon, order, self.delta_per_order) > 0:
                raise InvalidEvent(
                    "this order can hold no release at all",
                    value=order,
                    bound=f"ε = {self.epsilon}, δ = {self.delta_per_order}",
                )

    @property
    def orders(self) -> tuple[float, ...]:
        """Λ, of one order or more."""
        return self.order if isinstance(self.order, tuple) else (self.order,)

    @property
    def delta_per_order(self) -> float:
        """``δ' = (δ - δ_a)/|Λ|``."""
        return (self.delta - self.approximate_delta) / len(self.orders)

    @property
    def rho_max(self) -> float:
        """The Rényi budget at the (first) order, in nats."""
        return self.budget(self.orders[0])

    def budget(self, order: float) -> float:
        """The Rényi budget at one of the orders, in nats."""
        return to_rho(self.epsilon, order, self.delta_per_order)

    def admits(self, spent: Sequence[Event], charge: Sequence[Event]) -> bool:
        """Whether ``charge`` fits on top of ``spent``."""
        # Sums are rounded once and divergences up: rounding may refuse a charge that just fits,
        # never admit one that just does not.
        events = (*spent, *charge)
        return delta_off_top(events) <= self.approximate_delta and any(
            renyi_total(events, order) <= self.budget(order) for order in self.orders
        )

    def spent(self, events: Sequence[Event]) -> float:
        """ε (with the filter's orders and δ) of what has been charged; 0 before the first charge.

        The smallest ε of a filter, otherwise like this one, that would have admitted all of it.
        ∞ with more δ off the top than was set aside.
        """
        if not delta_off_top(events) <= self.approximate_delta:
            return math.inf
        return min(
            to_epsilon(renyi_total(events, order), order, self.delta_per_order)
            for order in self.orders
        )

    def share(self, events: Sequence[Event]) -> float:
        """The part of the Rényi budget that is used, 1 when it is full; what adds up, unlike ε.

        Of ε the first release takes a large part at once, and later ones ever less. Of a grid it is
        the part at the order that has the most left.
        """
        return min(renyi_total(events, order) / self.budget(order) for order in self.orders)

    def check(self, spent: Sequence[Event], charge: Sequence[Event], *, what: str) -> None:
        """Refuse a charge that does not fit, saying what is left.

        Raises:
            BudgetExceeded: with the ε that is spent and the largest ε that still fits.
        """
        if self.admits(spent, charge):
            return
        off_top = delta_off_top((*spent, *charge))
        if not off_top <= self.approximate_delta:
            raise BudgetExceeded(
                f"{what}: the charge would take {off_top:.4g} off the top of δ",
                bound=f"at most {self.approximate_delta:g}, {delta_off_top(spent):.4g} spent",
                remedy="ask for mechanisms without a δ of their own, or a larger share of δ",
            )
        raise BudgetExceeded(
            f"{what}: the charge would take ε to {self.spent((*spent, *charge)):.4g}",
            bound=f"at most {self.epsilon:g} at δ = {self.delta:g}, {self.spent(spent):.4g} spent",
            remedy=f"ask for ε <= {self.left(spent):.3g} (Gaussian), or a larger allowance",
        )

    def left(self, spent: Sequence[Event]) -> float:
        """The ε at this δ of the largest single Gaussian release that still fits (rounded down)."""
        # ρ_α = α/(2σ²), so that the order with the largest ρ/α left holds the least noise.
        squared = max((self.budget(a) - renyi_total(spent, a)) / a for a in self.orders)
        if not squared > 0:
            return 0.0
        # Nudged to the private side so that the answer is itself admitted.
        noise_multiplier = (1 + 1e-9) / math.sqrt(2 * squared)
        return math.floor(epsilon((Gaussian(noise_multiplier),), self.delta) * 1e4) / 1e4


@dataclass(frozen=True, slots=True)
class Odometer:
    r"""A running ε that may be read, and acted upon, at any time.

    A ladder of filters ε_1 < ... < ε_J, each with its share (δ - δ_a)/J. A reading is the lowest
    rung whose filter admits all that happened so far. At any time, also one chosen by what was
    seen, what happened is (reading, δ)-DP in the sense of the filters: let E_j be that the reading
    at that time is ε_j; on E_j the interaction is one that filter j admitted, so that
    P(S ∩ E_j) <= e^{ε_j} P'(S ∩ E_j) + (δ - δ_a)/J, and the shares sum to δ - δ_a. The chance of
    what approximate events take off the top is at most δ_a over all E_j together (Rogers, Roth,
    Ullman & Vadhan 2016, arXiv 1605.08294, for the notion; Feldman & Zrnic 2021, arXiv 2008.11193,
    for Rényi filters as rungs). :meth:`Filter.spent` is tighter and no odometer: it is the price of
    what was admitted only if one would have stopped there anyway.

    Readings are made of closed forms (:func:`penstock.privacy.accounting.renyi.closed_form`); they
    decide nothing.

    Args:
        epsilon: what may be spent. Rungs lie a sixth of an octave apart, from 2⁻⁵ to √2 times that;
            beyond the last a reading is ∞.
        delta: δ of all readings together.
        order: the order, or grid, of every rung that it can serve; None for each rung's own grid
            of three, which its public numbers fix beforehand, and which reads lower when little is
            spent.
        approximate_delta: δ_a, as in :class:`Filter`.

    Raises:
        InvalidEvent: no budget, as in :class:`Filter`.
    """

    epsilon: float
    delta: float
    order: float | tuple[float, ...] | None = None
    approximate_delta: float = 0.0

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        if not 0 <= self.approximate_delta < self.delta:
            raise InvalidEvent(
                "the share of δ for approximate events", value=self.approximate_delta
            )
        for order in self._grid:
            check_order(order)

    @property
    def _grid(self) -> tuple[float, ...]:
        if self.order is None:
            return ()
        return self.order if isinstance(self.order, tuple) else (self.order,)

    @property
    def rungs(self) -> tuple[Filter, ...]:
        """The ladder, lowest first; without the rungs that no order can serve."""
        return _ladder(self.epsilon, self.delta, self._grid, self.approximate_delta)

    def reading(self, events: Sequence[Event]) -> float:
        """ε of the lowest rung that admits all of ``events``; 0 for none, ∞ above the ladder."""
        return self.readings([events])[0]

    def readings(self, charges: Iterable[Sequence[Event]]) -> list[float]:
        """The reading after each of a sequence of charges, in one pass."""
        rungs = self.rungs
        orders = tuple(sorted({order for rung in rungs for order in rung.orders}))
        budgets = np.array(
            [[r.budget(a) if a in r.orders else -math.inf for a in orders] for r in rungs]
        ).reshape(len(rungs), len(orders))
        # One row for events without a stratum, one more for each stratum: divergences, and last δ.
        sums: dict[str | None, Array] = {None: np.zeros(len(orders) + 1)}
        found, empty = [], True
        for charge in charges:
            for event in charge:
                stratum, release = (
                    (event.stratum, event.event) if isinstance(event, OnStratum) else (None, event)
                )
                row = sums.setdefault(stratum, np.zeros(len(orders) + 1))
                row[:-1] += closed_form(release, orders)
                row[-1] += release.delta_off_top
                empty = False
            own = [row for stratum, row in sums.items() if stratum is not None]
            dearest = sums[None] + (np.max(own, axis=0) if own else 0.0)
            held = (dearest[:-1] * (1 + 1e-12) <= budgets).any(axis=1)
            within = dearest[-1] <= self.approximate_delta * (1 + 1e-12)
            reading = rungs[int(held.argmax())].epsilon if held.any() and within else math.inf
            found.append(0.0 if empty else reading)
        return found


RUNGS = 34
"""How many filters an odometer has; a finer ladder has less δ for each."""


@lru_cache(maxsize=256)
def _ladder(
    epsilon: float, delta: float, orders: tuple[float, ...], aside: float
) -> tuple[Filter, ...]:
    share = (delta - aside) / RUNGS
    found = []
    for step in range(RUNGS):
        rung = epsilon * 2.0 ** ((step - RUNGS + 4) / 6)
        grid = orders or _around_best(rung, max(share, MIN_DELTA))
        if not share / len(grid) >= MIN_DELTA:
            grid = grid[-1:]
        usable = tuple(a for a in grid if to_rho(rung, a, share / len(grid)) > 0)
        if usable and share / len(usable) >= MIN_DELTA:
            found.append(Filter(rung, share + aside, usable, aside))
    return tuple(found)


def _around_best(epsilon: float, delta: float) -> tuple[float, ...]:
    """The best order for Gaussians, last, and lower ones, which are better for sampled ones."""
    best = best_order(epsilon, delta)
    near = {min(ORDERS, key=lambda a: abs(a - best * part)) for part in (0.5, 0.75, 1.0)}
    return tuple(sorted(near))


def best_order(budget_epsilon: float, budget_delta: float) -> float:
    """The order at which Gaussian releases that use up (ε, δ) exactly are cheapest.

    A function of the public budget only, so it may be fixed when a lineage is created.
    """
    check_budget(budget_epsilon, budget_delta)

    # The largest Gaussian composition (in 1/σ²) that order α admits is 2ρ_max/α.
    def capacity(order: float) -> float:
        return to_rho(budget_epsilon, order, budget_delta) / order

    return max(ORDERS, key=capacity)

"""Privacy filters: what adaptively chosen releases may cost together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import BudgetExceeded, InvalidEvent
from penstock.privacy.accountant import epsilon
from penstock.privacy.events import Event, Gaussian
from penstock.privacy.renyi import ORDERS, check_budget, renyi_total, to_epsilon, to_rho


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

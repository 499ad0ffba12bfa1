"""Noise from a privacy target. Everything here ends on the private side of its target.

Two ways to fix the noise of a mechanism: for a target (ε, δ) (:func:`smallest_scale`), or given,
when its ε is :func:`penstock.privacy.accounting.accountant.epsilon`. We bisect over our own
accountants: autodp's calibrators can land above their target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from penstock.base.errors import BudgetExceeded, InvalidEvent
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.accounting.renyi import check_budget
from penstock.privacy.events import Event

SCALE_LIMIT = 1e6

MakeEvents = Callable[[float], Sequence[Event]]
Accountant = Callable[[Sequence[Event], float], float]


def smallest_scale(
    make_events: MakeEvents,
    target_epsilon: float,
    delta: float,
    *,
    tolerance: float = 1e-4,
    accountant: Accountant = epsilon,
) -> float:
    """The smallest noise scale (to ``tolerance``, relative) whose events cost at most ε.

    Bisection keeps the upper end, so the returned scale itself was evaluated and costs at most
    ``target_epsilon`` by the accountant.

    Args:
        make_events: public function from a common scale of all noise multipliers to the events;
            they must cost less as the scale grows.
        target_epsilon: ε > 0, zero-out with public n.
        delta: δ.
        accountant: ε of events at δ. The default gates; with
            :func:`penstock.privacy.accounting.accountant.epsilon_pld` the noise is what a paper
            would use, and may be refused by a filter.

    Raises:
        BudgetExceeded: no scale up to 1e6 reaches the target: part of the cost does not scale.
        InvalidEvent: ε or δ is not a budget.

    Example:
        Noise for ten releases at ε = 3. What is found costs at most that, never more.

        >>> from penstock.privacy.events import Gaussian
        >>> def make_events(scale):
        ...     return [Gaussian(scale, count=10)]
        >>> scale = smallest_scale(make_events, target_epsilon=3.0, delta=1e-5)
        >>> round(scale, 2)
        4.72
        >>> 2.99 < epsilon(make_events(scale), delta=1e-5) <= 3.0
        True
    """
    check_budget(target_epsilon, delta)

    def cost(scale: float) -> float:
        return accountant(tuple(make_events(scale)), delta)

    found = _smallest(lambda scale: cost(scale) <= target_epsilon, tolerance)
    if found is None:
        raise BudgetExceeded(
            "the part of the mechanism that does not shrink with noise already costs too much",
            value=f"ε = {cost(SCALE_LIMIT):.4g}",
            bound=f"at most {target_epsilon:g}",
            remedy="ask for a larger ε, a smaller w or latent clip, or fewer copies",
        )
    return found


def _smallest(fits: Callable[[float], bool], tolerance: float) -> float | None:
    """Bisection in the logarithm; None if nothing up to the limit fits."""
    if not 0 < tolerance < 1:
        raise InvalidEvent("tolerance must lie in (0, 1)", value=tolerance)
    high = 1.0
    while not fits(high):
        high *= 2
        if high > SCALE_LIMIT:
            return None
    low = high / 2
    while low > 1 / SCALE_LIMIT and fits(low):
        high, low = low, low / 2
    while high - low > tolerance * high:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high

"""Noise from a privacy target. Everything here ends on the private side of its target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from penstock.errors import BudgetExceeded, InvalidEvent
from penstock.privacy.accountant import epsilon
from penstock.privacy.events import Event
from penstock.privacy.renyi import check_budget

SCALE_LIMIT = 1e6


def smallest_scale(
    make_events: Callable[[float], Sequence[Event]],
    target_epsilon: float,
    delta: float,
    *,
    tolerance: float = 1e-4,
) -> float:
    """The smallest noise scale (to ``tolerance``, relative) whose events cost at most ε.

    ``make_events(scale)`` must cost less as the scale grows. Bisection keeps the upper end, so the
    returned scale itself was evaluated and costs at most ``target_epsilon`` by
    :func:`penstock.privacy.accountant.epsilon`.

    Args:
        make_events: public function from a common scale of all noise multipliers to the events.
        target_epsilon: ε > 0, zero-out with public n.
        delta: δ.

    Raises:
        BudgetExceeded: no scale up to 1e6 reaches the target: part of the cost does not scale.
        InvalidEvent: ε or δ is not a budget.
    """
    check_budget(target_epsilon, delta)
    if not 0 < tolerance < 1:
        raise InvalidEvent("tolerance must lie in (0, 1)", value=tolerance)

    def fits(scale: float) -> bool:
        return epsilon(tuple(make_events(scale)), delta) <= target_epsilon

    high = 1.0
    while not fits(high):
        high *= 2
        if high > SCALE_LIMIT:
            floor = epsilon(tuple(make_events(SCALE_LIMIT)), delta)
            raise BudgetExceeded(
                "the part of the mechanism that does not shrink with noise already costs too much",
                value=f"ε = {floor:.4g}",
                bound=f"at most {target_epsilon:g}",
                remedy="ask for a larger ε, a smaller w or latent clip, or fewer copies",
            )
    low = high / 2
    while low > 1 / SCALE_LIMIT and fits(low):
        high, low = low, low / 2
    while high - low > tolerance * high:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high

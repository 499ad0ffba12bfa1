"""Whether an answer's interval, planned from public numbers alone, is worth a charge.

*Width* is W, how many times as wide an interval is as one without noise; each mechanism that
answers plans it by a formula of its own. Nothing here depends on a row, so that a refusal tells of
none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from penstock.base.errors import Hopeless
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.events import Event
from penstock.privacy.request import PrivacyRequest

MOST_WIDE = 5.0
"""W, above which an answer is refused."""

_MOST_PERSONS, _LEAST_SCALE = 1 << 40, 1e-4


class Scaled(Protocol):
    """A plan whose releases together are as one Gaussian of noise multiplier ``scale``."""

    @property
    def persons(self) -> int: ...
    @property
    def scale(self) -> float: ...
    @property
    def events(self) -> Sequence[Event]: ...


P = TypeVar("P", bound=Scaled)


def refuse_wide(
    found: P,
    privacy: PrivacyRequest,
    width: Callable[[P], float],
    plan_at: Callable[[int, float], P],
    *,
    also: str = "",
) -> None:
    """Refuse what is planned to be wider than :data:`MOST_WIDE`.

    Args:
        found: the plan of all that follows; width: W of a plan.
        plan_at: the same question's plan for so many persons, at a scale of noise.
        also: what else would help, in words.

    Raises:
        Hopeless: says which ε, or how many persons, would do.
    """
    wide, persons = width(found), found.persons
    if wide <= MOST_WIDE:
        return

    def too_wide(persons: int, scale: float) -> bool:
        return width(plan_at(persons, scale)) > MOST_WIDE

    scale = _find_scale(lambda scale: too_wide(persons, scale), found.scale)
    if scale is None:
        more = "no ε would do"
    else:
        cost = epsilon(plan_at(persons, scale).events, privacy.delta)
        more = f"ask for an ε of at least {_round_up(cost):g}"
    many = _count_persons(lambda persons: too_wide(persons, found.scale), persons)
    raise Hopeless(
        "the answer would be noise: an interval, planned from public numbers, is so many times as"
        " wide as one without noise",
        value=f"{wide:.3g} times with {persons} persons at ε = {privacy.epsilon:g}",
        bound=f"at most {MOST_WIDE:g} times",
        remedy=f"{more}, or ask sites of at least {many:.6g} persons" + (also and f", or {also}"),
    )


def _find_scale(too_wide: Callable[[float], bool], scale: float) -> float | None:
    """Nearly the largest scale of noise that is not too wide; None where the least one is."""
    low, high = _LEAST_SCALE, scale
    if too_wide(low):
        return None
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if too_wide(middle) else (middle, high)
    return low


def _count_persons(too_wide: Callable[[int], bool], persons: int) -> float:
    """Nearly the least number of persons that is enough, of more than these."""
    low = high = persons
    while too_wide(high):
        low, high = high, 2 * high
        if high > _MOST_PERSONS:
            return math.inf
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if too_wide(middle) else (low, middle)
    return _round_up(high)


def _round_up(value: float) -> float:
    """To two digits, never below."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.2g}")

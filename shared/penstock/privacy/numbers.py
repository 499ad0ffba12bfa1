"""What a parameter of a mechanism may be: one check each, and NaN never passes."""

from __future__ import annotations

import math

from penstock.base.errors import InvalidEvent

MAX_COUNT = 10**9
MAX_PERSONS = 10**10


def positive(name: str, value: float) -> float:
    """A finite number above 0.

    Raises:
        InvalidEvent: it is none; True is no number.
    """
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (good and math.isfinite(value) and value > 0):
        raise InvalidEvent(f"{name} must be a finite positive number", value=value)
    return float(value)


def whole(name: str, value: int, most: int = MAX_COUNT) -> int:
    """A whole number from 1 to ``most``.

    Raises:
        InvalidEvent: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidEvent(f"{name} must be a whole number", value=value, bound=f"1 to {most:,}")
    return value


def share(name: str, value: float) -> float:
    """A number strictly between 0 and 1.

    Raises:
        InvalidEvent: it is none.
    """
    if not (isinstance(value, float) and 0 < value < 1):
        raise InvalidEvent(f"{name} must lie in (0, 1)", value=value)
    return value

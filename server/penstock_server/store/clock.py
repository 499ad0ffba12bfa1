"""The coordinator's time, as its store has it: UTC, as text that sorts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from penstock.base.times import stamp, utc_now


class Clock:
    """What time it is.

    Args:
        read: the current time, UTC.
    """

    def __init__(self, read: Callable[[], datetime] = utc_now) -> None:
        self.now = read

    def stamp(self, seconds: float = 0.0) -> str:
        """The time in so many seconds."""
        return stamp(self.now() + timedelta(seconds=seconds))

"""Moments as texts: RFC 3339, always in UTC, in a form that sorts as text.

What happens is stamped with microseconds; what people write in a study has whole seconds.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_WHOLE_SECONDS = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


def utc_now() -> datetime:
    """This machine's clock."""
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """A moment with microseconds: ``2026-11-21T00:00:00.000000Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def stamp_now() -> str:
    """:func:`stamp` of this machine's clock."""
    return stamp(utc_now())


def stamp_seconds(moment: datetime) -> str:
    """A moment with whole seconds, what is below them cut off: ``2026-11-21T00:00:00Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_stamp(text: str) -> datetime:
    """A moment that some machine stamped, in UTC.

    Raises:
        ValueError: it is no time, or one without a zone, or none that UTC has.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without a zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time before the year 1 or after 9999") from None


def parse_time(text: str) -> datetime:
    """A time in UTC with whole seconds, as :func:`stamp_seconds` writes it, and nothing else.

    Raises:
        ValueError: it is anything else.
    """
    if not (isinstance(text, str) and _WHOLE_SECONDS.fullmatch(text)):
        raise ValueError("not a UTC time of the form 2026-11-21T00:00:00Z")
    return datetime.fromisoformat(text)

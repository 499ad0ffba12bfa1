"""How the page writes numbers, times and codes: the filters of its templates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from penstock.base.documents import Json
from penstock.telling.axis import Scale, number_text, power_text
from penstock.wire.messages import CODES


def _interval(value: Json, scale: Scale) -> str:
    return scale.interval_text(value["low"], value["high"])


def _epsilon(value: float | str | None) -> str:
    if value is None:
        return "not stated"
    if isinstance(value, str):
        return "∞"
    if 0 < value < 0.00005:
        return "<0.0001"
    return number_text(value, 2 if value >= 0.1 else 4)


def _moment(text: str) -> str:
    """RFC 3339 in UTC, to the minute: nobody reads seconds of a study that takes days."""
    found = re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)\S*Z$", text)
    return f"{found[1]} {found[2]} UTC" if found else text


def _meaning(code: str) -> str:
    """What a site's code means; nothing of one that is not known here."""
    return CODES.get(code, ("", ""))[0]


def _significant(value: float, digits: int = 2) -> str:
    """``digits`` significant digits, in powers of ten where plain digits would be long."""
    if value == 0 or not math.isfinite(value):
        return number_text(value, 0)
    exponent = math.floor(math.log10(abs(value)))
    if -4 < exponent < 6:
        return number_text(value, max(0, digits - 1 - exponent))
    return power_text(value, digits)


def _p_value(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _percent(value: float) -> str:
    return f"{100 * value:.0f}%"


FILTERS: dict[str, Callable[..., str]] = {
    "interval": _interval,
    "epsilon": _epsilon,
    "significant": _significant,
    "p_value": _p_value,
    "percent": _percent,
    "moment": _moment,
    "meaning": _meaning,
}

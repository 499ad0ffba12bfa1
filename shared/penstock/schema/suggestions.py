"""How a column is best modelled, as far as what is declared of it tells.

Within wide public bounds a count or a concentration fills a sliver of a linear box, and many rows
may hold exactly 0: ``scale = "log"`` and ``spike = 0`` are worth more than budget there, and
somebody who writes a first dictionary knows of neither. These suggestions follow from a column's
*declared* name, label, unit, kind, bounds and decimals alone: the same dictionary has the same
suggestions at every site, whatever its rows are. They are advice; a study is valid without them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from penstock.base.errors import InvalidInput
from penstock.schema.columns import Column, Schema

_WIDE_COUNT = 20.0
"""The least upper bound of a count that bunches far below it."""

_MAGNITUDES = 1.5
"""Orders of magnitude between a concentration's bounds, or between its upper bound and a
hundredth of it where the lower one is 0, from which it bunches."""

HOW_SUGGESTED = 'suggested from what is declared, never from rows; scale = "linear" says no'
"""Said below suggestions, wherever they are shown."""

_STEPS = 2000
"""Steps within the bounds that suggested decimals give at least."""

# What a whole number from 0 may be beside a count of things: it has no pile at 0 and no long tail.
_NO_COUNT = re.compile(
    r"(^|[^a-z])(age|years?|yr|months?|weeks?|days?|hours?|minutes?|date|time|duration|score|scale"
    r"|index|percent(age)?|pct|rank|grade|class|level|code|id|hr|bpm|pulse|heart.?rate|mmhg"
    r"|pressure|sbp|dbp|temperature|height|weight|size|length|width|depth"
    r"|distance|volume|mm|cm|kg|karnofsky|ecog|points)([^a-z]|$)|%",
    re.IGNORECASE,
)

_AMOUNT = r"(p|n|u|µ|μ|m|c|k)?(g|mol|iu|u|eq|kat)"
_VOLUME = r"(d|m|u|µ|μ|n|p|f)?l"
_CONCENTRATION = re.compile(
    rf"({_AMOUNT}|f(g|mol)|cells?|copies|10\S*|/)\s*(/|per\s+)\s*({_VOLUME}|m?g|mg\s*protein"
    rf"|mm3|mm\^3)(\s|$)|^/\s*({_VOLUME}|mm3)$",
    re.IGNORECASE,
)
_MONEY = re.compile(r"^(eur|usd|gbp|chf|euros?|dollars?|pounds?|[€$£])$", re.IGNORECASE)
_ASSAY = re.compile(
    r"(^|[^a-z])(crp|c.reactive|creat(inine)?|bili(rubin)?|ferritin|triglycerides?|trig|troponin"
    r"|(nt.?pro)?bnp|psa|cea|ca.?(125|19)|alt|ast|ggt|alp|ldh|ck|d.?dimer|tsh|hcg|procalcitonin"
    r"|lactate|glucose|insulin|urea|light.chains?|kappa|lambda|receptors?|titres?|titers?"
    r"|viral.load|copies|concentration|costs?|charges)([^a-z]|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Keys that a column could do with.

    Attributes:
        column: its name; keys: of its table in the file, with values; why: in a few words.
    """

    column: str
    keys: dict[str, str | float]
    why: str

    def __str__(self) -> str:
        written = [
            f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value:g}"
            for key, value in self.keys.items()
        ]
        return f"{self.column}: consider {', '.join(written)} ({self.why})"


def suggest_modelling(column: Column) -> Suggestion | None:
    """What the column could do with; None where nothing is to be said.

    A column that declares a ``scale``, be it linear, was thought about: nothing is said of it.
    """
    if column.kind not in ("continuous", "integer") or column.scale is not None:
        return None
    lower, upper = column.bounds
    if lower < 0 or not (what := _skewed(column, lower, upper)):
        return None
    keys: dict[str, str | float] = {"scale": "log"}
    if lower == 0:
        if column.grid is None:  # which both a spike and a logarithm of 0 need
            keys["decimals"] = max(0, math.ceil(math.log10(_STEPS / upper)))
        if column.spike is None:
            keys["spike"] = 0
    try:
        _with(column, keys)
    except InvalidInput:  # bounds of which there is no logarithm
        return None
    return Suggestion(column.name, keys, f"{what} from {lower:g} to {upper:g}")


def suggest_for(schema: Schema) -> tuple[Suggestion, ...]:
    """All suggestions for a schema's columns, in their order."""
    return tuple(s for s in map(suggest_modelling, schema.columns) if s is not None)


def follow_suggestions(column: Column) -> Column:
    """The column with what is suggested of it."""
    found = suggest_modelling(column)
    return column if found is None else _with(column, found.keys)


def _with(column: Column, keys: dict[str, str | float]) -> Column:
    return replace(column, **keys)  # type: ignore[arg-type]


def _skewed(column: Column, lower: float, upper: float) -> str:
    """What kind of skewed number it is, or nothing."""
    text = f"{column.name} {column.label}".replace("_", " ").replace(".", " ")
    amount = _CONCENTRATION.search(column.unit) or _ASSAY.search(text)
    if amount or _MONEY.search(column.unit):
        least = lower if lower > 0 else upper / 100
        wide = math.log10(upper / least) >= _MAGNITUDES
        return ("a concentration" if amount else "an amount of money") if wide else ""
    count = column.kind == "integer" and lower == 0 and upper >= _WIDE_COUNT
    if count and not _NO_COUNT.search(f"{text} {column.unit}"):
        return "a count"
    return ""

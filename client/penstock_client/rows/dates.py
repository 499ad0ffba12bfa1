"""Dates in a site's file, in the one form that the steward said; and the time between two.

Nothing is guessed: 03.04.2020 is a day in March to one hospital and in April to another.
"""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Numbers = NDArray[np.float64]

ISO = "yyyy-mm-dd"
FORM_BOUND = (
    "dd, mm (or mon, as in Jan) and yyyy in the file's order with its separators, such as "
    "dd.mm.yyyy, mm/dd/yyyy, yyyymmdd; or days since yyyy-mm-dd (a number: Excel's is days since "
    "1899-12-30, that of SAS and Stata days since 1960-01-01)"
)
UNITS = ("days", "weeks", "months", "years", "full years")
_DAYS_OF = {"days": 1.0, "weeks": 7.0, "months": 365.25 / 12, "years": 365.25}

_MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
_TOKEN = re.compile(r"yyyy|yy|mon|mm|dd|m|d", re.IGNORECASE)
_SINCE = re.compile(r"days since (\d{4})-(\d{2})-(\d{2})")
_TIME = r"(?:[T ]+\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[AaPp][Mm])?(?:Z|[+-]\d{2}:?\d{2})?)?"
_EPOCH = datetime.date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class DateForm:
    """A form in which dates are written: ``dd.mm.yyyy``, or ``days since 1960-01-01``.

    A time of day behind a date is left out: times are in whole days.

    Raises:
        ValueError: it is no such form, or one that can be read in two ways.
    """

    form: str = ISO
    _pattern: re.Pattern[str] | None = field(init=False, repr=False, compare=False, default=None)
    _base: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        since = _SINCE.fullmatch(self.form)
        if since is not None:
            base = datetime.date(int(since[1]), int(since[2]), int(since[3])).toordinal()
            object.__setattr__(self, "_base", base)
            return
        object.__setattr__(self, "_pattern", _pattern(self.form))

    def day(self, text: str) -> float:
        """The day's ordinal (1 is 0001-01-01); NaN for what is no date in this form."""
        if self._pattern is None:
            try:
                days = math.floor(float(text))
            except (ValueError, OverflowError):
                return math.nan
            return float(self._base + days) if abs(days) < 10_000_000 else math.nan
        found = self._pattern.fullmatch(text)
        if found is None:
            return math.nan
        parts = found.groupdict()
        month = parts["m"].casefold()[:3]
        try:
            number = _MONTHS[month] if month.isalpha() else int(month)
            return float(datetime.date(int(parts["y"]), number, int(parts["d"])).toordinal())
        except (ValueError, KeyError):
            return math.nan

    def days(self, texts: pd.Series) -> Numbers:
        """Each text's day; each different text is read once."""
        import pandas as pd

        codes, different = pd.factorize(texts)
        found = np.array([self.day(str(text)) for text in different], dtype=np.float64)
        return found[codes] if len(found) else np.full(len(texts), math.nan)


def _pattern(form: str) -> re.Pattern[str]:
    tokens = [t.casefold() for t in _TOKEN.findall(form)]
    if "yy" in tokens:
        raise ValueError("two-digit years can be read in two ways")
    kinds = [t[0] for t in tokens]
    if sorted(kinds) != ["d", "m", "y"]:
        raise ValueError("does not have a day, a month and a year, each once")
    between = _TOKEN.split(form)
    if any(any(c.isalnum() for c in part) for part in between):
        raise ValueError("has letters or digits beside day, month and year")
    apart = all(between[1:-1])  # without separators every part has all its digits
    digits = r"\d{1,2}" if apart else r"\d{2}"
    parts = {"d": digits, "m": digits, "y": r"\d{4}", "mon": r"[A-Za-z]{3,9}\.?"}
    pattern = re.escape(between[0])
    for token, after in zip(tokens, between[1:], strict=True):
        pattern += f"(?P<{token[0]}>{parts.get(token, parts[token[0]])}){re.escape(after)}"
    return re.compile(pattern + _TIME)


def measure_between(start: Numbers, end: Numbers, unit: str) -> Numbers:
    """The time from ``start`` to ``end``, both in days, in one of :data:`UNITS`.

    Weeks have 7 days, years 365.25, months a twelfth of that; full years count birthdays, and that
    of a 29 February is on 1 March in other years. NaN where either is.
    """
    if unit != "full years":
        return (end - start) / _DAYS_OF[unit]
    known = np.isfinite(start) & np.isfinite(end)
    found = np.full(len(start), math.nan)
    (first, from_place), (last, to_place) = _split_dates(start[known]), _split_dates(end[known])
    found[known] = last - first - (to_place < from_place)
    return found


def _split_dates(days: Numbers) -> tuple[Numbers, Numbers]:
    """Years, and where in its year each day lies."""
    day = (days - _EPOCH).astype("int64").astype("datetime64[D]")
    month, year = day.astype("datetime64[M]"), day.astype("datetime64[Y]")
    place = (month - year.astype("datetime64[M]")).astype("int64") * 32
    place += (day - month.astype("datetime64[D]")).astype("int64")
    return year.astype("int64").astype(np.float64), place.astype(np.float64)

"""Recoding carried out: a batch of a file's rows becomes cells of the dictionary's columns.

Each different cell of a batch is read once. The same file under the same recoding always gives the
same cells: nothing here is guessed from rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.schema import Column
from penstock_client.rows.codes import Codes
from penstock_client.rows.dates import measure_between
from penstock_client.rows.recoding import Rule
from penstock_client.rows.sources.source import Batch

if TYPE_CHECKING:
    import pandas as pd

_UNREAD = None
Reader = Callable[[str], str | None]
"""A cell as the dictionary would have it ("" is missing); None where it cannot be read."""


@dataclass(frozen=True, slots=True)
class Cells:
    """A column's cells in a batch.

    Attributes:
        text: as the dictionary would have them; "" is missing.
        raw: as they stand in the file, for its steward's own eyes.
        unread: where nothing says what a cell means; its text counts for nothing.
        why: what is wrong with those.
        remedy: what to do about them.
    """

    text: pd.Series
    raw: pd.Series
    unread: NDArray[np.bool_]
    why: str = ""
    remedy: str = ""


def read_cells(batch: Batch, column: Column | None, rule: Rule) -> Cells:
    """A column of the dictionary, read from a batch that has all that ``rule.reads``.

    Args:
        column: None for the person column.
    """
    blank_codes = _make_blanker(rule, column)
    blanked = [_read_each(batch.read_text(name), blank_codes)[0] for name in rule.sources]
    text, raw = blanked[0], batch.read_text(rule.sources[0])
    for name, other in zip(rule.sources[1:], blanked[1:], strict=True):
        blank = text == ""
        text, raw = text.mask(blank, other), raw.mask(blank, batch.read_text(name))
    if column is None:
        return Cells(text, raw, np.zeros(len(text), dtype=bool))
    if rule.since is not None:
        return _read_times(batch.read_text(rule.since), text, raw, rule)
    if rule.present:
        import pandas as pd

        present = pd.Series(np.where(text == "", "0", "1"), text.index, dtype=object)
        return Cells(present, raw, np.zeros(len(text), dtype=bool))
    read = _make_level_reader(rule, column) if column.levels else _make_number_reader(rule)
    found, unread = _read_each(text, read)
    if column.levels:
        why, remedy = "outside the levels", "Name it under `values` in recoding.toml"
    else:
        why, remedy = "text in a number", _explain_numbers(rule)
    return Cells(found, raw, unread, why, remedy)


def _read_each(text: pd.Series, read: Reader | None) -> tuple[pd.Series, NDArray[np.bool_]]:
    """Every cell as it is read, and where it was not; None reads it as it stands."""
    if read is None:
        return text, np.zeros(len(text), dtype=bool)
    import pandas as pd  # half a second that no start of a site waits for

    codes, different = pd.factorize(text)
    if not len(different):
        return text, np.zeros(len(text), dtype=bool)
    found = [read(str(one)) for one in different]
    unread = np.array([one is _UNREAD for one in found])
    cells = np.array(["" if one is None else one for one in found], dtype=object)
    return pd.Series(cells[codes], text.index, dtype=object), unread[codes]


def _make_blanker(rule: Rule, column: Column | None) -> Reader | None:
    """White space and codes for "missing" go; all else stays as it is."""
    listed = (*rule.missing, *(() if column is None else column.missing))
    trim = rule.trim and column is not None
    if not listed and not trim:
        return None
    missing = Codes(listed, ignore_case=rule.ignore_case and column is not None)
    one_by_one = [Codes((code,)) for code in listed]  # -9.0 is -9, whatever else is listed
    plain = _make_plain_reader(rule) or str
    of_numbers = column is not None and not column.levels and rule.since is None
    numbers = {_parse_decimal(plain(code) or code) for code in listed} - {None}
    numbers |= {_parse_decimal(code) for code in listed} - {None}

    def read(cell: str) -> str:
        if trim:
            cell = " ".join(cell.split())
        if missing.find(cell) is not None or any(one.find(cell) for one in one_by_one):
            return ""
        if of_numbers and numbers and _parse_decimal(plain(cell) or "") in numbers:
            return ""
        return cell

    return read


def _make_level_reader(rule: Rule, column: Column) -> Reader | None:
    if rule.values:
        mapped = Codes(rule.values, ignore_case=rule.ignore_case)

        def read(cell: str) -> str | None:
            found = mapped.find(cell) if cell else None
            return cell if not cell else _UNREAD if found is None else rule.values[found]

        return read
    if rule.ignore_case:
        levels = Codes(column.levels, ignore_case=True)
        return lambda cell: levels.find(cell) or cell
    return None


def _make_number_reader(rule: Rule) -> Reader | None:
    mapped = Codes(rule.values, ignore_case=rule.ignore_case)
    plain = _make_plain_reader(rule)
    if plain is None:
        if not rule.values and rule.times == 1.0:
            return None
        plain = str

    def read(cell: str) -> str | None:
        if not cell:
            return cell
        if (found := mapped.find(cell)) is not None:
            return rule.values[found]
        number = plain(cell)
        if number is None or rule.times == 1.0:
            return number
        value = _parse_decimal(number)
        return _UNREAD if value is None else str(value * Decimal(repr(rule.times)))

    return read


def _make_plain_reader(rule: Rule) -> Reader | None:
    """A number with a point and without marks between thousands; None for what is none."""
    if rule.decimal == "." and not rule.thousands:
        return None
    mark, between = re.escape(rule.decimal), re.escape(rule.thousands)
    whole = r"[0-9]+"
    if rule.thousands:
        whole = rf"(?:[0-9]{{1,3}}(?:{between}[0-9]{{3}})+|[0-9]+)"
    pattern = re.compile(rf"[+-]?(?:{whole}(?:{mark}[0-9]*)?|{mark}[0-9]+)(?:[eE][+-]?[0-9]+)?")

    def read(cell: str) -> str | None:
        if not cell:
            return cell
        if pattern.fullmatch(cell) is None:
            return _UNREAD
        if rule.thousands:
            cell = cell.replace(rule.thousands, "")
        return cell.replace(rule.decimal, ".")

    return read


def _parse_decimal(text: str) -> Decimal | None:
    try:
        value = Decimal(text) if text.isascii() else None
    except InvalidOperation:
        return None
    return value if value is not None and value.is_finite() else None


def _explain_numbers(rule: Rule) -> str:
    """What to do about text in a number, where the recoding says how numbers are written."""
    if rule.decimal == "." and not rule.thousands:
        return ""
    example = f"1{rule.thousands}234{rule.decimal}5"
    return (
        f"recoding.toml says that numbers are written like {example}: correct `decimal` and "
        "`thousands` there, or the file."
    )


def _read_times(since: pd.Series, end: pd.Series, raw: pd.Series, rule: Rule) -> Cells:
    """The time from one date to another; missing where either is."""
    import pandas as pd

    start, _ = _read_each(since, _make_blanker(rule, None))
    last, first = rule.date.days(end), rule.since_date.days(start)
    missing = ((end == "") | (start == "")).to_numpy()
    unread = ((end != "").to_numpy() & np.isnan(last)) | (
        (start != "").to_numpy() & np.isnan(first)
    )
    found = measure_between(first, last, rule.unit)
    blank = missing | unread
    texts = ["" if out else repr(float(value)) for out, value in zip(blank, found, strict=True)]
    both = raw.str.cat(since, sep=" since ")
    forms = dict.fromkeys((rule.date.form, rule.since_date.form))
    return Cells(
        pd.Series(texts, end.index, dtype=object),
        both,
        unread,
        f"not a date like {' or '.join(forms)}",
        "Say `date` (and `since_date`) in recoding.toml as the file writes them; nothing is "
        "guessed, since 03.04.2020 can be read in two ways.",
    )

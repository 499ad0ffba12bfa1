"""`site check`: rows against the site's own dictionary, for the steward's eyes only.

Findings name columns and line numbers, never values; :func:`outside_values` is what the steward
asks for by itself. All of it is computed from private rows, so it stays at the site, and nothing
outside depends on it (privacy contract §2).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from penstock.checks import closest, nearest
from penstock.errors import InvalidInput, Problem
from penstock.schema import Column, Schema, end_follow_up

MIN_PERSONS = 50
"""Fewer persons than this give noise at any ε worth having."""

_SHOWN = 5
_FEW = 12
_DECIMAL_COMMA = r"[+-]?[0-9]*,[0-9]+"
Codes = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the rows.

    ``fatal`` findings must be corrected in the file or the dictionary; the others are clamped or
    mapped in the way said, once the steward accepts it.

    Attributes:
        lines: where the first few of ``count`` cells lie, in ``unit`` of the file.
    """

    column: str
    message: str
    lines: tuple[int, ...] = ()
    count: int = 0
    fatal: bool = False
    remedy: str = ""
    unit: str = "line"

    def __str__(self) -> str:
        text = f"{self.column}: {self.message}" if self.column else self.message
        if self.lines:
            text += f" ({self.unit}{'s' if self.count != 1 else ''} "
            text += ", ".join(map(str, self.lines))
            more = self.count - len(self.lines)
            text += f" and {more} more)" if more > 0 else ")"
        return f"{text}. {self.remedy}" if self.remedy else text


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of a check: findings, and the coded rows where nothing is fatal.

    Attributes:
        counted: persons that have rows: a fact of the rows, for the steward alone.
        coded: float64 per dictionary column; level index for levels, NaN for missing.
        person: int64, the person's index 0 … counted-1 of each row.
        dictionary: what the rows were checked against.
        unused: columns of the file that the dictionary leaves out; nothing reads them.
        persons: the declared frame, the only number of persons that leaves the site; None where
            none was declared, as of a public table.
        others: the level that took what is none of a column's levels.
        given: the table as it was read; nothing but certification looks at it.
    """

    findings: tuple[Finding, ...]
    rows: int
    counted: int
    coded: dict[str, Codes]
    person: NDArray[np.int64]
    dictionary: Schema
    unused: tuple[str, ...] = ()
    persons: int | None = None
    others: Mapping[str, str] = field(default_factory=dict)
    given: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)

    @property
    def fatal(self) -> bool:
        return any(f.fatal for f in self.findings)

    def standing(self, *, accept: bool) -> list[Finding]:
        """The findings that keep these rows from being certified."""
        return [f for f in self.findings if f.fatal or not accept]


def check(
    frame: pd.DataFrame,
    dictionary: Schema,
    *,
    persons: int | None = None,
    others: Mapping[str, str] | None = None,
) -> Checked:
    """Validate a text table against the dictionary; reports everything it finds.

    Args:
        frame: every cell as stripped text, as :mod:`penstock_client.rows.sources` gives it.
        persons: the declared frame, which must have a place for everybody.
        others: the level that takes what is none of a column's levels; else it becomes missing.
    """
    others = others or {}
    findings: list[Finding] = []
    if not len(frame):
        findings.append(Finding("", "the file holds no rows", fatal=True))
    person, counted = _persons(frame, dictionary, findings)
    if persons is not None and counted > persons:
        findings.append(
            Finding(
                "",
                f"{counted} persons in the rows, and {persons} places in the declared frame",
                fatal=True,
                remedy="Correct the file; or declare a larger frame (`persons` in the "
                "dictionary, and --new-frame where rows were certified before): that tells "
                "everybody that the old one had become too small.",
            )
        )
    if 0 < counted < MIN_PERSONS:
        findings.append(
            Finding(
                "",
                f"{counted} persons; at least {MIN_PERSONS} are needed",
                fatal=True,
                remedy="With fewer persons a private release is noise; pool with another site.",
            )
        )
    coded: dict[str, Codes] = {}
    for column in dictionary.columns:
        if column.name not in frame.columns:
            findings.append(
                Finding(
                    column.name,
                    "column missing from the file",
                    fatal=True,
                    remedy=_hint(column.name, frame.columns),
                )
            )
        elif len(frame):
            other = others.get(column.name)
            coded[column.name] = _column(frame[column.name], column, other, findings)
    coded = _seen_to_the_end(coded, dictionary, findings)
    used = {*dictionary.names, dictionary.person}
    unused = tuple(str(c) for c in frame.columns if c not in used)
    return Checked(
        tuple(findings),
        len(frame),
        counted,
        coded,
        person,
        dictionary,
        unused,
        persons,
        others,
        frame,
    )


def _seen_to_the_end(
    coded: dict[str, Codes], dictionary: Schema, findings: list[Finding]
) -> dict[str, Codes]:
    """Rows as they are seen at the end of follow-up: later events have not happened yet."""
    seen = end_follow_up(coded, dictionary)
    for column in dictionary.columns:
        event = column.event
        if event is None or event not in coded or column.name not in coded:
            continue
        later = int(((coded[event] > 0) & (seen[event] == 0)).sum())
        if later:
            message = f"{later} events after the follow-up; these rows are event-free at its end"
            findings.append(Finding(column.name, message))
        seen[column.name] = np.clip(seen[column.name], 0.0, column.bounds[1])
    return seen


def _hint(name: str, columns: Sequence[str]) -> str:
    hint = nearest if len(columns) <= _FEW else closest
    return hint(name, columns) or ""


def _persons(
    frame: pd.DataFrame, dictionary: Schema, findings: list[Finding]
) -> tuple[NDArray[np.int64], int]:
    name = dictionary.person
    if name is None:
        return np.arange(len(frame), dtype=np.int64), len(frame)
    if name not in frame.columns:
        message, remedy = "the person column is missing from the file", _hint(name, frame.columns)
        findings.append(Finding(name, message, fatal=True, remedy=remedy))
        return np.arange(len(frame), dtype=np.int64), len(frame)
    ids = frame[name]
    blank = (ids == "").to_numpy()
    if blank.any():
        findings.append(_at(ids.index, blank, name, "a row without a person id", fatal=True))
    codes, unique = pd.factorize(ids)
    limit = dictionary.max_rows_per_person
    beyond = (ids.groupby(ids).cumcount() >= limit).to_numpy()
    if beyond.any() and limit == 1:
        findings.append(
            _at(
                ids.index,
                beyond,
                name,
                "duplicate person ids",
                fatal=True,
                remedy="Remove the rows, or declare max_rows_per_person in the dictionary.",
            )
        )
    elif beyond.any():
        message = f"more than {limit} rows of one person; only the first {limit} count"
        findings.append(_at(ids.index, beyond, name, message))
    return codes.astype(np.int64), len(unique)


def _at(
    index: pd.Index,
    where: NDArray[np.bool_],
    column: str,
    message: str,
    *,
    fatal: bool = False,
    remedy: str = "",
) -> Finding:
    lines = index[where]
    shown = tuple(int(n) for n in lines[:_SHOWN])
    return Finding(column, message, shown, len(lines), fatal, remedy, str(index.name or "line"))


def outside_values(frame: pd.DataFrame, dictionary: Schema) -> dict[str, list[tuple[str, int]]]:
    """Which values lie outside levels and bounds, and how often: VALUES OF ROWS.

    For the steward's own terminal, on request; they go into no file, no log and no message.

    Returns:
        Of each column that has some, its distinct values, the most frequent first.
    """
    found: dict[str, list[tuple[str, int]]] = {}
    for column in dictionary.columns:
        if column.name not in frame.columns or not len(frame):
            continue
        text = frame[column.name]
        numbers, missing = _read(text, column)
        if column.levels:
            outside = np.isnan(_level_codes(text, numbers, column))
        else:
            low, high = column.bounds
            outside = ~((numbers >= low) & (numbers <= high))
        values = text[outside & ~missing]
        if len(values):
            found[column.name] = Counter(values).most_common()
    return found


def _read(text: pd.Series, column: Column) -> tuple[Codes, NDArray[np.bool_]]:
    """Cells as numbers (NaN where they are none), and where a cell is missing."""
    numbers = pd.to_numeric(text, errors="coerce").to_numpy(dtype=np.float64)
    return numbers, (text == "").to_numpy() | _matches(text, numbers, column.missing)


def _column(text: pd.Series, column: Column, other: str | None, findings: list[Finding]) -> Codes:
    numbers, missing = _read(text, column)
    if missing.all():
        findings.append(
            Finding(
                column.name,
                "every value is missing",
                remedy="" if column.nullable else "Declare it nullable, or leave it out.",
                fatal=not column.nullable,
            )
        )
    elif missing.any() and not column.nullable:
        message = (
            "missing values in a column that is not nullable; "
            "these persons contribute nothing where a study uses it"
        )
        findings.append(_at(text.index, missing, column.name, message))
    if column.levels:
        values = _levels(text, numbers, missing, column, other, findings)
    else:
        values = _numbers(text, numbers, missing, column, findings)
    values[missing] = math.nan
    return values


def _matches(text: pd.Series, numbers: Codes, codes: Sequence[str]) -> NDArray[np.bool_]:
    """Cells that equal a code as text, or as a number ("-9" and "-9.0")."""
    found: NDArray[np.bool_] = text.isin(list(codes)).to_numpy()
    for code in codes:
        value = _as_number(code)
        if value is not None:
            found = found | (numbers == value)
    return found


def _as_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _level_codes(text: pd.Series, numbers: Codes, column: Column) -> Codes:
    """Each cell's level by its index; NaN for what is none of them."""
    values = np.full(len(text), math.nan)
    for index, level in enumerate(column.levels):
        values[_matches(text, numbers, (level,))] = index
    # A level's own text wins: "01" and "1" may be two levels, though they are one number.
    for index, level in enumerate(column.levels):
        values[(text == level).to_numpy()] = index
    return values


def _levels(
    text: pd.Series,
    numbers: Codes,
    missing: NDArray[np.bool_],
    column: Column,
    other: str | None,
    findings: list[Finding],
) -> Codes:
    values = _level_codes(text, numbers, column)
    unknown = np.isnan(values) & ~missing
    if unknown.any():
        name = "" if other is not None else ", or name a public level in `other`"
        remedy = (
            f"Correct the file, declare a code in `missing`{name}; "
            "levels come from a codebook, never from rows."
        )
        become = "missing" if other is None else repr(other)
        message = f"{_count(unknown)} outside the levels; they become {become}"
        findings.append(_at(text.index, unknown, column.name, message, remedy=remedy))
    if other is not None:
        values[unknown] = column.levels.index(other)
    return values


def _count(where: NDArray[np.bool_]) -> str:
    count = int(where.sum())
    return f"{count} value{'s' if count != 1 else ''}"


def _numbers(
    text: pd.Series,
    numbers: Codes,
    missing: NDArray[np.bool_],
    column: Column,
    findings: list[Finding],
) -> Codes:
    odd = ~np.isfinite(numbers) & ~missing
    values = np.where(odd, math.nan, numbers)
    if odd.any():
        remedy = "Correct the file, or declare the text in `missing`."
        if text[odd].str.fullmatch(_DECIMAL_COMMA).any():
            remedy = "Write decimals with a point, not a comma."
        findings.append(
            _at(text.index, odd, column.name, "text in a number", fatal=True, remedy=remedy)
        )
    low = -math.inf if column.lower is None else column.lower
    high = math.inf if column.upper is None else column.upper
    outside = ((values < low) | (values > high)) & ~missing
    if outside.any():
        remedy = (
            "Correct the file, or declare a code such as -9 in `missing`; "
            "bounds are widened by public knowledge, never to hold rows."
        )
        become = "they are clamped"
        if column.kind == "duration":
            become = "they end at the follow-up, or are clamped to 0"
            remedy = "Nothing is wrong with a longer follow-up; correct what is below 0."
        message = f"{_count(outside)} outside [{low:g}, {high:g}]; {become}"
        findings.append(_at(text.index, outside, column.name, message, remedy=remedy))
    if column.kind == "integer":
        whole = np.rint(values)
        fractions = (values != whole) & ~missing & ~odd
        if fractions.any():
            message = "fractions in a whole number; they are rounded"
            findings.append(_at(text.index, fractions, column.name, message))
        values = whole
    if column.kind == "duration":
        return values  # with its event, see _seen_to_the_end
    clipped: Codes = np.clip(values, low, high)
    return clipped


def require_clean(what: str, checked: Checked, *, accept: bool) -> None:
    """Stop unless nothing is fatal and everything else is accepted.

    Raises:
        InvalidInput: with every finding that stands in the way.
    """
    standing = checked.standing(accept=accept)
    if standing:
        problems = [Problem("", str(f).rstrip(".")) for f in standing]
        if not any(f.fatal for f in standing):
            problems.append(Problem("", "add --accept to clamp and map as said"))
        raise InvalidInput(what, problems)

"""`site check`: rows against the site's own dictionary, for the steward's eyes only.

Findings name columns and line numbers, never values. They are computed from private rows, so
they stay at the site, and nothing outside depends on them (privacy contract §2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from penstock.checks import closest, nearest
from penstock.errors import InvalidInput, Problem
from penstock.schema import Column, Schema

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
        coded: float64 per dictionary column; level index for levels, NaN for missing.
        person: int64, the person's index 0 … persons-1 of each row.
        dictionary: what the rows were checked against.
        unused: columns of the file that the dictionary leaves out; nothing reads them.
        given: the table as it was read; nothing but certification looks at it.
    """

    findings: tuple[Finding, ...]
    rows: int
    persons: int
    coded: dict[str, Codes]
    person: NDArray[np.int64]
    dictionary: Schema
    unused: tuple[str, ...] = ()
    given: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)

    @property
    def fatal(self) -> bool:
        return any(f.fatal for f in self.findings)

    def standing(self, *, accept: bool) -> list[Finding]:
        """The findings that keep these rows from being certified."""
        return [f for f in self.findings if f.fatal or not accept]


def check(frame: pd.DataFrame, dictionary: Schema) -> Checked:
    """Validate a text table against the dictionary; reports everything it finds.

    Args:
        frame: every cell as stripped text, as :mod:`penstock_client.rows.sources` gives it.
    """
    findings: list[Finding] = []
    if not len(frame):
        findings.append(Finding("", "the file holds no rows", fatal=True))
    person, persons = _persons(frame, dictionary, findings)
    if 0 < persons < MIN_PERSONS:
        findings.append(
            Finding(
                "",
                f"{persons} persons; at least {MIN_PERSONS} are needed",
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
            coded[column.name] = _column(frame[column.name], column, findings)
    used = {*dictionary.names, dictionary.person}
    unused = tuple(str(c) for c in frame.columns if c not in used)
    return Checked(tuple(findings), len(frame), persons, coded, person, dictionary, unused, frame)


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


def _column(text: pd.Series, column: Column, findings: list[Finding]) -> Codes:
    numbers = pd.to_numeric(text, errors="coerce").to_numpy(dtype=np.float64)
    missing = (text == "").to_numpy() | _matches(text, numbers, column.missing)
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
    code = _levels if column.levels else _numbers
    values = code(text, numbers, missing, column, findings)
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


def _levels(
    text: pd.Series,
    numbers: Codes,
    missing: NDArray[np.bool_],
    column: Column,
    findings: list[Finding],
) -> Codes:
    values = np.full(len(text), math.nan)
    for index, level in enumerate(column.levels):
        values[_matches(text, numbers, (level,))] = index
    # A level's own text wins: "01" and "1" may be two levels, though they are one number.
    for index, level in enumerate(column.levels):
        values[(text == level).to_numpy()] = index
    unknown = np.isnan(values) & ~missing
    if unknown.any():
        remedy = "Add them to `levels`, or to `missing`, or correct the file."
        message = "unknown levels; they become missing"
        findings.append(_at(text.index, unknown, column.name, message, remedy=remedy))
    return values


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
            "Correct the file, widen the public bounds, or declare a code such as -9 in `missing`."
        )
        message = f"values outside [{low:g}, {high:g}]; they are clamped"
        findings.append(_at(text.index, outside, column.name, message, remedy=remedy))
    if column.kind == "integer":
        whole = np.rint(values)
        fractions = (values != whole) & ~missing & ~odd
        if fractions.any():
            message = "fractions in a whole number; they are rounded"
            findings.append(_at(text.index, fractions, column.name, message))
        values = whole
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

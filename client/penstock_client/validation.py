"""`site check`: rows against the site's own dictionary, for the steward's eyes only.

Findings name columns and line numbers, never values. They are computed from private rows, so
they stay at the site, and nothing outside depends on them (privacy contract §2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from penstock.checks import closest, nearest
from penstock.errors import InvalidInput, Problem
from penstock.schema import Column, Schema
from penstock_client.sources import SHOWN, places

MIN_PERSONS = 50
"""Fewer persons than this give noise at any ε worth having."""

_FEW = 12
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
            text += f" ({places(self.unit, self.lines, self.count)})"
        return f"{text}. {self.remedy}" if self.remedy else text


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of a check: findings, and the coded rows where nothing is fatal.

    Attributes:
        coded: float64 per dictionary column; level index for levels, NaN for missing.
        person: int64, the person's index 0 … persons-1 of each row.
        dictionary: what the rows were checked against.
        unused: columns of the file that the dictionary leaves out; nothing reads them.
    """

    findings: tuple[Finding, ...]
    rows: int
    persons: int
    coded: dict[str, Codes]
    person: NDArray[np.int64]
    dictionary: Schema
    unused: tuple[str, ...] = ()

    @property
    def fatal(self) -> bool:
        return any(f.fatal for f in self.findings)


def check(frame: pd.DataFrame, dictionary: Schema) -> Checked:
    """Validate a text table against the dictionary; reports everything it finds.

    Args:
        frame: every cell as stripped text, as :func:`penstock_client.sources.read_text` gives it.
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
    return Checked(tuple(findings), len(frame), persons, coded, person, dictionary, unused)


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
    if (ids == "").any():
        findings.append(_at(name, "a row without a person id", ids == "", fatal=True))
    codes, unique = pd.factorize(ids)
    rank = ids.groupby(ids).cumcount()
    limit = dictionary.max_rows_per_person
    beyond = rank >= limit
    if beyond.any() and limit == 1:
        findings.append(
            _at(
                name,
                "duplicate person ids",
                beyond,
                fatal=True,
                remedy="Remove the rows, or declare max_rows_per_person in the dictionary.",
            )
        )
    elif beyond.any():
        findings.append(
            _at(name, f"more than {limit} rows of one person; only the first {limit} count", beyond)
        )
    return codes.astype(np.int64), len(unique)


def _at(
    column: str, message: str, mask: pd.Series, *, fatal: bool = False, remedy: str = ""
) -> Finding:
    lines = mask.index[mask.to_numpy()]
    shown = tuple(int(n) for n in lines[:SHOWN])
    unit = str(mask.index.name or "line")
    return Finding(column, message, shown, len(lines), fatal, remedy, unit)


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
        findings.append(
            _at(
                column.name,
                "missing values in a column that is not nullable; "
                "these persons contribute nothing where a study uses it",
                pd.Series(missing, text.index),
            )
        )
    if column.levels:
        values = _levels(text, numbers, missing, column, findings)
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
    unknown = np.isnan(values) & ~missing
    if unknown.any():
        findings.append(
            _at(
                column.name,
                "unknown levels; they become missing",
                pd.Series(unknown, text.index),
                remedy="Add them to `levels`, or to `missing`, or correct the file.",
            )
        )
    return values


def _numbers(
    text: pd.Series,
    numbers: Codes,
    missing: NDArray[np.bool_],
    column: Column,
    findings: list[Finding],
) -> Codes:
    values = numbers.copy()
    odd = ~np.isfinite(values) & ~missing
    if odd.any():
        findings.append(
            _at(
                column.name,
                "text in a number",
                pd.Series(odd, text.index),
                fatal=True,
                remedy="Correct the file, or declare the text in `missing`.",
            )
        )
    low = -math.inf if column.lower is None else column.lower
    high = math.inf if column.upper is None else column.upper
    outside = ((values < low) | (values > high)) & ~missing & ~odd
    if outside.any():
        findings.append(
            _at(
                column.name,
                f"values outside [{low:g}, {high:g}]; they are clamped",
                pd.Series(outside, text.index),
                remedy="Correct the file, or widen the public bounds.",
            )
        )
    whole = np.rint(values)
    if column.kind == "integer":
        fractions = (values != whole) & ~missing & ~odd
        if fractions.any():
            message = "fractions in a whole number; they are rounded"
            findings.append(_at(column.name, message, pd.Series(fractions, text.index)))
        values = whole
    clipped: Codes = np.clip(values, low, high)
    return clipped


def require_clean(what: str, checked: Checked, *, accept: bool) -> None:
    """Stop unless nothing is fatal and everything else is accepted.

    Raises:
        InvalidInput: with every finding that stands in the way.
    """
    standing = [f for f in checked.findings if f.fatal or not accept]
    if standing:
        problems = [Problem("", str(f).rstrip(".")) for f in standing]
        if not any(f.fatal for f in standing):
            problems.append(Problem("", "add --accept to clamp and map as said"))
        raise InvalidInput(what, problems)

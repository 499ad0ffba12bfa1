"""What batches of a file add up to: who is in them, and the coded values of each column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.base.checks import closest, nearest
from penstock.schema import Column, Schema
from penstock.study.toml.writer import key
from penstock_client.rows import codes
from penstock_client.rows.cells import Cells, read_cells
from penstock_client.rows.findings import Finding, Spots
from penstock_client.rows.recoding import Recoding
from penstock_client.rows.sources.source import Batch

if TYPE_CHECKING:
    import pandas as pd

Codes = NDArray[np.float64]

_FEW = 12
_DECIMAL_COMMA = r"[+-]?[0-9]*,[0-9]+"


def hint_at_column(name: str, columns: Sequence[str]) -> str:
    """The nearest column, or all of a few."""
    hint = nearest if len(columns) <= _FEW else closest
    return hint(name, columns) or ""


class PersonTally:
    """Who each row belongs to."""

    def __init__(self, dictionary: Schema, recoding: Recoding) -> None:
        self._name, self._limit = dictionary.person, dictionary.max_rows_per_person
        self._rule = None if self._name is None else recoding.rule(self._name)
        self.reads = frozenset() if self._rule is None else frozenset(self._rule.reads)
        self._numbers: dict[str, int] = {}
        self._rows_of: list[int] = []
        self._codes: list[NDArray[np.int64]] = []
        self._blank, self._beyond = Spots(), Spots()
        self._rows = 0
        self._there = False

    @property
    def counted(self) -> int:
        return len(self._numbers) if self._there else self._rows

    def person(self) -> NDArray[np.int64]:
        """The person's index, 0, 1, ..., of each row."""
        return np.concatenate(self._codes) if self._codes else np.zeros(0, dtype=np.int64)

    def add(self, batch: Batch) -> pd.Series | None:
        """The batch's ids; None without a person column."""
        first, self._rows = self._rows, self._rows + len(batch)
        rule = self._rule
        self._there = rule is not None and all(s in batch.names for s in rule.sources)
        if rule is None or not self._there:
            self._codes.append(np.arange(first, self._rows, dtype=np.int64))
            return None
        ids = read_cells(batch, None, rule).text
        codes = np.empty(len(ids), dtype=np.int64)
        beyond = np.zeros(len(ids), dtype=bool)
        for row, one in enumerate(ids):
            number = codes[row] = self._numbers.setdefault(one, len(self._numbers))
            if number == len(self._rows_of):
                self._rows_of.append(0)
            self._rows_of[number] += 1
            beyond[row] = self._rows_of[number] > self._limit
        self._codes.append(codes)
        self._blank.add(ids.index, (ids == "").to_numpy())
        self._beyond.add(ids.index, beyond)
        return ids

    def findings(self, columns: Sequence[str]) -> list[Finding]:
        if self._rule is None or self._name is None:
            return []
        name = self._name
        if not self._there:
            source = next((s for s in self._rule.sources if s not in columns), name)
            message, remedy = (
                "the person column is missing from the file",
                hint_at_column(source, columns),
            )
            return [Finding(name, message, fatal=True, remedy=remedy)]
        found = []
        if self._blank.count:
            message, remedy = "a row without a person id", "Give it one, or remove the row."
            found.append(self._blank.finding(name, message, fatal=True, remedy=remedy))
        if self._beyond.count and self._limit == 1:
            remedy = (
                "Make each id the id of one row; or, if a person may have several, raise "
                "max_rows_per_person in the dictionary, which allows one row."
            )
            message = "duplicate person ids"
            found.append(self._beyond.finding(name, message, fatal=True, remedy=remedy))
        elif self._beyond.count:
            limit = self._limit
            message = f"more than {limit} rows of one person; only the first {limit} count"
            found.append(self._beyond.finding(name, message))
        return found


@dataclass(frozen=True, slots=True)
class Coded:
    """A batch of a column.

    Attributes:
        values: level index or number, NaN for missing.
        missing, unread, outside: of each cell at most one of the three.
    """

    values: Codes
    missing: NDArray[np.bool_]
    unread: NDArray[np.bool_]
    outside: NDArray[np.bool_]
    fractions: NDArray[np.bool_]


def code_cells(cells: Cells, column: Column, other: str | None) -> Coded:
    missing = (cells.text == "").to_numpy() & ~cells.unread
    if column.levels:
        values = _code_levels(cells.text, column)
        values[cells.unread] = math.nan
        outside = np.isnan(values) & ~missing
        if other is not None:
            values[outside] = column.levels.index(other)
        none = np.zeros(len(values), dtype=bool)
        return Coded(values, missing, none, outside, none)
    import pandas as pd

    values = pd.to_numeric(cells.text, errors="coerce").to_numpy(dtype=np.float64)
    unread = cells.unread | (~np.isfinite(values) & ~missing)
    values = np.where(unread | missing, math.nan, values)
    low, high = column.bounds
    outside = (values < low) | (values > high)
    fractions = np.zeros(len(values), dtype=bool)
    if column.kind == "integer":
        whole = np.rint(values)
        fractions = (values != whole) & ~np.isnan(values)
        values = whole
    if column.kind != "duration":  # these are ended with their events, see _seen_to_the_end
        values = np.clip(values, low, high)
    return Coded(values, missing, unread, outside, fractions)


class ColumnTally:
    """One column of the dictionary, batch by batch."""

    def __init__(self, column: Column, other: str | None) -> None:
        self._column, self._other = column, other
        self._parts: list[Codes] = []
        self._rows = self._known = 0
        self._missing, self._unread, self._outside = Spots(), Spots(), Spots()
        self._fractions, self._negative, self._late = Spots(), Spots(), Spots()
        self._only_case = True
        self._why, self._remedy, self._commas = "text in a number", "", False

    def add(self, cells: Cells) -> None:
        found, index = code_cells(cells, self._column, self._other), cells.text.index
        self._parts.append(found.values)
        self._rows += len(index)
        self._known += int((~(found.missing | found.unread | found.outside)).sum())
        self._missing.add(index, found.missing)
        self._outside.add(index, found.outside)
        self._unread.add(index, found.unread)
        self._fractions.add(index, found.fractions)
        if self._column.kind == "duration":
            negative = found.outside & (found.values < self._column.bounds[0])
            self._negative.add(index, negative)
            self._late.add(index, found.outside & ~negative)
        if self._column.levels:
            self._only_case &= _differ_by_case(cells.text[found.outside], self._column)
        if found.unread.any():
            self._why = cells.why or self._why
            self._remedy = cells.remedy
            odd = cells.raw[found.unread].astype(str)
            self._commas |= bool(odd.str.fullmatch(_DECIMAL_COMMA).any())

    def coded(self) -> Codes:
        """The whole column."""
        whole = np.concatenate(self._parts)
        self._parts = [whole]
        return whole

    def findings(self, without: int, counted: int, allowed: bool) -> list[Finding]:
        """All that is to be said of it.

        Args:
            without: persons of whom no value is known; counted: of so many.
            allowed: it may be without any known value.
        """
        column, nobody = self._column, not self._known
        name, found = column.name, []
        lost = (0, 0) if column.nullable else (without, counted)
        if self._missing.count == self._rows:
            remedy = f"Leave it out of the dictionary; or name it: --allow-empty {name}"
            message = "every value is missing"
            return [Finding(name, message, (), 0, not allowed, remedy, "line", *lost)]
        if nobody and not self._unread.count:
            message, remedy = self._explain_nobody()
            fatal = not allowed
            return [self._outside.finding(name, message, fatal=fatal, remedy=remedy, lost=lost)]
        if self._missing.count and not column.nullable:
            message = "missing values in a column that is not nullable"
            # A missing value stays missing: there is nothing to accept.
            found.append(self._missing.finding(name, message, lost=lost, note=True))
        if self._unread.count:
            remedy = self._remedy or "Correct the file, or declare the text in `missing`."
            if not self._remedy and 2 * self._unread.count > self._rows - self._missing.count:
                remedy = (
                    "Most of its values are text: write numbers without a unit in the file, or say "
                    "in recoding.toml what they mean (`values`; of dates, `since`)."
                )
            if self._commas and not self._remedy:
                remedy = "Write decimals with a point, not a comma; or say in recoding.toml that "
                remedy += 'decimal = ",".'
            found.append(self._unread.finding(name, self._why, fatal=True, remedy=remedy))
        if column.kind == "duration":
            found += self._report_times()
        elif self._outside.count:
            found.append(self._report_outside(lost))
        if self._fractions.count:
            message = "fractions in a whole number; they are rounded"
            found.append(self._fractions.finding(name, message))
        return found

    def _report_times(self) -> list[Finding]:
        """Times below 0 are mistakes, those beyond the follow-up are none."""
        name, found = self._column.name, []
        low, high = self._column.bounds
        if self._negative.count:
            message = f"{_count(self._negative)} below {low:g}; they are clamped to {low:g}"
            remedy = "Correct them in the file, or declare a code such as -9 in `missing`."
            found.append(self._negative.finding(name, message, remedy=remedy))
        if self._late.count:
            message = f"{_count(self._late)} beyond the follow-up, {high:g}; they end there"
            remedy = (
                "Nothing is wrong with a longer follow-up; declare a code such as 9999 in "
                "`missing`."
            )
            found.append(self._late.finding(name, message, remedy=remedy))
        return found

    def _report_outside(self, lost: tuple[int, int]) -> Finding:
        column, spots = self._column, self._outside
        many = f"{_count(spots)} outside"
        if not column.levels:
            low, high = column.bounds
            remedy = (
                "Correct the file, or declare a code such as -9 in `missing`; "
                "bounds are widened by public knowledge, never to hold rows."
            )
            message = f"{many} [{low:g}, {high:g}]; they are clamped"
            return spots.finding(column.name, message, remedy=remedy)
        name = "" if self._other is not None else ", or name a public level in `other`"
        remedy = (
            "Correct the file, say in recoding.toml what they mean (`values`), declare a code in "
            f"`missing`{name}; levels come from a codebook, never from rows."
        )
        if self._only_case:
            remedy = f"{self._explain_case()}."
        if self._other is not None:
            message = f"{many} the levels; they become {self._other!r}"
            return spots.finding(column.name, message, remedy=remedy)
        message = f"{many} the levels; they become missing"
        return spots.finding(column.name, message, remedy=remedy, lost=lost)

    def _explain_nobody(self) -> tuple[str, str]:
        """What is wrong with a column without a known value, as message and remedy."""
        column, spots = self._column, self._outside
        rest = f", {self._missing.count} are missing" if self._missing.count else ""
        name = f"or, to certify it so, name it: --allow-empty {column.name}"
        if column.levels:
            become = "missing" if self._other is None else repr(self._other)
            message = (
                f"not one known value: {spots.count} of {self._rows} are outside the levels and "
                f"become {become}{rest}"
            )
            remedy = "Say in recoding.toml what they mean (`values`)"
            return message, f"{self._explain_case() if self._only_case else remedy}; {name}"
        low, high = column.bounds
        message = (
            f"not one known value: {spots.count} of {self._rows} are outside [{low:g}, {high:g}] "
            f"and clamped{rest}"
        )
        if column.kind == "duration":
            message = (
                f"not one known value: of {self._rows}, {self._negative.count} are below {low:g} "
                f"and {self._late.count} beyond the follow-up, {high:g}{rest}"
            )
        return message, f"Look at the unit (`times` in recoding.toml) and the bounds; {name}"

    def _explain_case(self) -> str:
        """What to do where all unknown values differ from levels in capital letters alone."""
        return (
            "They differ from levels in capital letters alone: say ignore_case = true under "
            f"[columns.{key(self._column.name)}] in recoding.toml"
        )


def _count(spots: Spots) -> str:
    return f"{spots.count} value{'s' if spots.count != 1 else ''}"


def _differ_by_case(cells: pd.Series, column: Column) -> bool:
    """Whether `ignore_case` would make a level of each."""
    folded = codes.Codes(column.levels, ignore_case=True)
    distinct = len(folded) == len(column.levels)  # else it is refused
    return distinct and all(folded.find(str(one)) is not None for one in cells.unique())


def _code_levels(text: pd.Series, column: Column) -> Codes:
    """Each cell's level by its index; NaN for what is none of them."""
    import pandas as pd

    known = codes.Codes(column.levels)
    place = {level: float(index) for index, level in enumerate(column.levels)}
    numbers, different = pd.factorize(text)
    levels = [known.find(str(one)) for one in different]
    found = np.array([math.nan if x is None else place[x] for x in levels], dtype=np.float64)
    return found[numbers] if len(found) else np.zeros(0)

"""`site check`: rows against the site's own dictionary, for the steward's eyes only.

Findings name columns and line numbers, never values; :func:`outside_values` is what the steward
asks for by itself. All of it is computed from private rows, so it stays at the site, and nothing
outside depends on it (privacy contract §2).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.checks import Checks, closest, nearest, shown
from penstock.errors import InvalidInput, Problem
from penstock.schema import Column, Schema
from penstock_client.rows import codes
from penstock_client.rows.cells import Cells, read_cells
from penstock_client.rows.findings import Finding, Spots
from penstock_client.rows.identities import Gathering, Identities
from penstock_client.rows.recoding import NOTHING_RECODED, Recoding

if TYPE_CHECKING:
    import pandas as pd

MIN_PERSONS = 50
"""Fewer persons than this give noise at any ε worth having."""

_FEW = 12
_DECIMAL_COMMA = r"[+-]?[0-9]*,[0-9]+"
Codes = NDArray[np.float64]


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
        without: persons without one complete row, who would contribute nothing to a study of all
            columns; columns that are nullable need not be known.
        everybody: who is in the rows, as keyed hashes; only where the gate's key was given.
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
    without: int = 0
    everybody: Identities | None = field(default=None, repr=False, compare=False)

    @property
    def fatal(self) -> bool:
        return any(f.fatal for f in self.findings)

    def standing(self, *, accept: bool) -> list[Finding]:
        """The findings that keep these rows from being certified."""
        return [f for f in self.findings if f.fatal or not (accept or f.note)]


def check(
    table: pd.DataFrame | Iterable[pd.DataFrame],
    dictionary: Schema,
    *,
    persons: int | None = None,
    others: Mapping[str, str] | None = None,
    recoding: Recoding = NOTHING_RECODED,
    allow_empty: Collection[str] = (),
    secret: bytes | None = None,
) -> Checked:
    """Validate a text table against the dictionary; reports everything it finds.

    Args:
        table: every cell as stripped text, as :mod:`penstock_client.rows.sources` gives it, whole
            or in batches; no more than one batch is held.
        persons: the declared frame, which must have a place for everybody.
        others: the level that takes what is none of a column's levels; else it becomes missing.
        recoding: how the table says what the dictionary's columns are.
        allow_empty: columns that may be without a single known value.
        secret: the gate's key; with it the table's identities are found, which certification needs.

    Raises:
        InvalidInput: ``allow_empty`` names no column.
    """
    allowed = Checks("--allow-empty")
    for name in allow_empty:
        if name not in dictionary.names:
            remedy = _hint(name, dictionary.names)
            allowed.add("", "is no column of the dictionary", value=name, remedy=remedy)
    allowed.done()
    others = others or {}
    reading = _Reading(dictionary, others, recoding, secret)
    for batch in _batches(table):
        reading.add(batch)
    return reading.done(persons, frozenset(allow_empty))


def _batches(table: pd.DataFrame | Iterable[pd.DataFrame]) -> Iterable[pd.DataFrame]:
    import pandas as pd  # half a second that only a check needs, and no start of a site

    return (table,) if isinstance(table, pd.DataFrame) else table


class _Reading:
    """Batches of a file become coded rows, and findings."""

    def __init__(
        self,
        dictionary: Schema,
        others: Mapping[str, str],
        recoding: Recoding,
        secret: bytes | None,
    ) -> None:
        self._dictionary, self._others, self._recoding = dictionary, others, recoding
        self._names: tuple[str, ...] = ()
        self._rows = 0
        self._persons = _Persons(dictionary, recoding)
        self._columns = {c.name: _Column(c, others.get(c.name)) for c in dictionary.columns}
        self._everybody = None if secret is None else Gathering(secret)

    def add(self, batch: pd.DataFrame) -> None:
        """One more batch; all of them have the same columns."""
        self._names = tuple(map(str, batch.columns))
        self._rows += len(batch)
        ids = self._persons.add(batch)
        for column in self._dictionary.columns:
            rule = self._recoding.rule(column.name)
            if len(batch) and all(name in batch.columns for name in rule.reads):
                self._columns[column.name].add(read_cells(batch, column, rule))
        if self._everybody is not None and len(batch):
            self._everybody.add(batch, ids)

    def done(self, persons: int | None, allow_empty: frozenset[str]) -> Checked:
        findings: list[Finding] = []
        if not self._rows:
            findings.append(Finding("", "the file holds no rows", fatal=True))
        findings += self._persons.findings(self._names)
        counted, person = self._persons.counted, self._persons.person()
        findings += _of_the_frame(counted, persons)
        coded: dict[str, Codes] = {}
        used = _first_rows(person, self._dictionary.max_rows_per_person)
        complete = used.copy()
        for column in self._dictionary.columns:
            name, found = column.name, self._columns[column.name]
            absent = [s for s in self._recoding.rule(name).reads if s not in self._names]
            if absent:
                findings += [_absent(name, source, self._names) for source in absent]
            elif self._rows:
                coded[name] = found.coded()
                known = used & ~np.isnan(coded[name])
                complete &= known | column.nullable
                without = counted - len(np.unique(person[known]))
                findings += found.findings(without, counted, name in allow_empty)
        coded = _seen_to_the_end(coded, self._dictionary)
        reads = {s for c in self._dictionary.names for s in self._recoding.rule(c).reads}
        unused = tuple(n for n in self._names if n not in reads | self._persons.reads)
        return Checked(
            tuple(findings),
            self._rows,
            counted,
            coded,
            person,
            self._dictionary,
            unused,
            persons,
            self._others,
            counted - len(np.unique(person[complete])) if coded else 0,
            None if self._everybody is None else self._everybody.done(),
        )


def _seen_to_the_end(coded: dict[str, Codes], dictionary: Schema) -> dict[str, Codes]:
    """Durations within their follow-up."""
    ended = {
        c.name: np.clip(coded[c.name], *c.bounds)
        for c in dictionary.columns
        if c.kind == "duration" and c.name in coded
    }
    return coded | ended


def _first_rows(person: NDArray[np.int64], most: int) -> NDArray[np.bool_]:
    """Which rows count: the first ``most`` of each person."""
    order = np.argsort(person, kind="stable")
    rows_of = np.bincount(person)
    rank = np.empty(len(person), dtype=np.int64)
    rank[order] = np.arange(len(person)) - np.repeat(np.cumsum(rows_of) - rows_of, rows_of)
    return np.asarray(rank < most)


def _of_the_frame(counted: int, persons: int | None) -> list[Finding]:
    findings = []
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
    return findings


def _absent(name: str, source: str, columns: Sequence[str]) -> Finding:
    """A column of the dictionary for which the file lacks what it is read from."""
    message, remedy = "column missing from the file", _hint(source, columns)
    if source != name:
        message = f"{message}: {shown(source)}, from which recoding.toml reads it"
    elif not remedy:
        remedy = "If it has another name there, say it in recoding.toml: from = …"
    return Finding(name, message, fatal=True, remedy=remedy)


def _hint(name: str, columns: Sequence[str]) -> str:
    hint = nearest if len(columns) <= _FEW else closest
    return hint(name, columns) or ""


class _Persons:
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

    def add(self, batch: pd.DataFrame) -> pd.Series | None:
        """The batch's ids; None without a person column."""
        first, self._rows = self._rows, self._rows + len(batch)
        rule = self._rule
        self._there = rule is not None and all(s in batch.columns for s in rule.sources)
        if rule is None or not self._there:
            self._codes.append(np.arange(first, self._rows, dtype=np.int64))
            return None
        ids = read_cells(batch, None, rule).text
        codes = np.empty(len(ids), dtype=np.int64)
        beyond = np.zeros(len(ids), dtype=bool)
        for row, one in enumerate(ids):
            code = codes[row] = self._numbers.setdefault(one, len(self._numbers))
            if code == len(self._rows_of):
                self._rows_of.append(0)
            self._rows_of[code] += 1
            beyond[row] = self._rows_of[code] > self._limit
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
            message, remedy = "the person column is missing from the file", _hint(source, columns)
            return [Finding(name, message, fatal=True, remedy=remedy)]
        found = []
        if self._blank.count:
            found.append(self._blank.finding(name, "a row without a person id", fatal=True))
        if self._beyond.count and self._limit == 1:
            remedy = "Remove the rows, or declare max_rows_per_person in the dictionary."
            message = "duplicate person ids"
            found.append(self._beyond.finding(name, message, fatal=True, remedy=remedy))
        elif self._beyond.count:
            limit = self._limit
            message = f"more than {limit} rows of one person; only the first {limit} count"
            found.append(self._beyond.finding(name, message))
        return found


@dataclass(frozen=True, slots=True)
class _Coded:
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


def _code(cells: Cells, column: Column, other: str | None) -> _Coded:
    missing = (cells.text == "").to_numpy() & ~cells.unread
    if column.levels:
        values = _level_codes(cells.text, column)
        values[cells.unread] = math.nan
        outside = np.isnan(values) & ~missing
        if other is not None:
            values[outside] = column.levels.index(other)
        none = np.zeros(len(values), dtype=bool)
        return _Coded(values, missing, none, outside, none)
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
    return _Coded(values, missing, unread, outside, fractions)


class _Column:
    """One column of the dictionary, batch by batch."""

    def __init__(self, column: Column, other: str | None) -> None:
        self._column, self._other = column, other
        self._parts: list[Codes] = []
        self._rows = self._known = 0
        self._missing, self._unread, self._outside = Spots(), Spots(), Spots()
        self._fractions = Spots()
        self._why, self._remedy, self._commas = "text in a number", "", False

    def add(self, cells: Cells) -> None:
        found, index = _code(cells, self._column, self._other), cells.text.index
        self._parts.append(found.values)
        self._rows += len(index)
        self._known += int((~(found.missing | found.unread | found.outside)).sum())
        self._missing.add(index, found.missing)
        self._outside.add(index, found.outside)
        self._unread.add(index, found.unread)
        self._fractions.add(index, found.fractions)
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
            message, remedy = self._nobody()
            fatal = not allowed
            return [self._outside.finding(name, message, fatal=fatal, remedy=remedy, lost=lost)]
        if self._missing.count and not column.nullable:
            message = "missing values in a column that is not nullable"
            # A missing value stays missing: there is nothing to accept.
            found.append(self._missing.finding(name, message, lost=lost, note=True))
        if self._unread.count:
            remedy = self._remedy or "Correct the file, or declare the text in `missing`."
            if self._commas and not self._remedy:
                remedy = "Write decimals with a point, not a comma; or say in recoding.toml that "
                remedy += 'decimal = ",".'
            found.append(self._unread.finding(name, self._why, fatal=True, remedy=remedy))
        if self._outside.count:
            found.append(self._some_outside(lost))
        if self._fractions.count:
            message = "fractions in a whole number; they are rounded"
            found.append(self._fractions.finding(name, message))
        return found

    def _some_outside(self, lost: tuple[int, int]) -> Finding:
        column, spots = self._column, self._outside
        many = f"{spots.count} value{'s' if spots.count != 1 else ''} outside"
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
        if self._other is not None:
            message = f"{many} the levels; they become {self._other!r}"
            return spots.finding(column.name, message, remedy=remedy)
        message = f"{many} the levels; they become missing"
        return spots.finding(column.name, message, remedy=remedy, lost=lost)

    def _nobody(self) -> tuple[str, str]:
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
            return message, f"Say in recoding.toml what they mean (`values`); {name}"
        low, high = column.bounds
        message = (
            f"not one known value: {spots.count} of {self._rows} are outside [{low:g}, {high:g}] "
            f"and clamped{rest}"
        )
        return message, f"Look at the unit (`times` in recoding.toml) and the bounds; {name}"


def _level_codes(text: pd.Series, column: Column) -> Codes:
    """Each cell's level by its index; NaN for what is none of them."""
    import pandas as pd

    known = codes.Codes(column.levels)
    place = {level: float(index) for index, level in enumerate(column.levels)}
    numbers, different = pd.factorize(text)
    levels = [known.find(str(one)) for one in different]
    found = np.array([math.nan if x is None else place[x] for x in levels], dtype=np.float64)
    return found[numbers] if len(found) else np.zeros(0)


def outside_values(
    table: pd.DataFrame | Iterable[pd.DataFrame],
    dictionary: Schema,
    recoding: Recoding = NOTHING_RECODED,
) -> dict[str, list[tuple[str, int]]]:
    """Which values lie outside levels and bounds, or cannot be read, and how often: VALUES OF ROWS.

    For the steward's own terminal, on request; they go into no file, no log and no message. They
    are as they stand in the file, before any recoding.

    Returns:
        Of each column that has some, its distinct values, the most frequent first.
    """
    found: dict[str, Counter[str]] = {}
    for batch in _batches(table):
        for column in dictionary.columns:
            rule = recoding.rule(column.name)
            if not len(batch) or any(name not in batch.columns for name in rule.reads):
                continue
            cells = read_cells(batch, column, rule)
            coded = _code(cells, column, None)
            values = cells.raw[coded.outside | coded.unread]
            found.setdefault(column.name, Counter()).update(values)
    return {name: counts.most_common() for name, counts in found.items() if counts}


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

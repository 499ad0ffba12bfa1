"""`site check`: rows against the site's own dictionary, for the steward's eyes only.

Findings name columns and line numbers, never values; :func:`find_outside_values` is what the
steward asks for by itself. All of it is computed from private rows, so it stays at the site, and
nothing outside depends on it (docs/privacy.md, "What counts as leaving").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.base.checks import Checks, shown
from penstock.base.errors import InvalidInput, Problem
from penstock.schema import Schema, end_follow_up
from penstock_client.rows.cells import read_cells
from penstock_client.rows.findings import Finding
from penstock_client.rows.identities import Identities, IdentityGatherer
from penstock_client.rows.recoding import NOTHING_RECODED, Recoding
from penstock_client.rows.sources.source import Batch
from penstock_client.rows.tally import Codes, ColumnTally, PersonTally, code_cells, hint_at_column

MIN_PERSONS = 50
"""Fewer persons than this give noise at any ε worth having."""


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
        recoding: by which the source was read.
        source: what messages call it.
        public: the same of the site's public table, if it has one.
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
    recoding: Recoding = field(default=NOTHING_RECODED, repr=False, compare=False)
    source: str = ""
    public: Checked | None = field(default=None, repr=False, compare=False)

    @property
    def fatal(self) -> bool:
        return any(f.fatal for f in self.findings)

    def standing(self, *, accept: bool) -> list[Finding]:
        """The findings that keep these rows from being certified."""
        return [f for f in self.findings if f.fatal or not (accept or f.note)]


def check_rows(
    batches: Iterable[Batch],
    dictionary: Schema,
    *,
    persons: int | None = None,
    others: Mapping[str, str] | None = None,
    recoding: Recoding = NOTHING_RECODED,
    allow_empty: Collection[str] = (),
    secret: bytes | None = None,
) -> Checked:
    """Validate rows against the dictionary; reports everything it finds.

    Args:
        batches: of a source's rows; no more than one is held.
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
            remedy = hint_at_column(name, dictionary.names)
            allowed.add("", "is no column of the dictionary", value=name, remedy=remedy)
    allowed.done()
    others = others or {}
    reading = _Reading(dictionary, others, recoding, secret)
    for batch in batches:
        reading.add(batch)
    return reading.done(persons, frozenset(allow_empty))


class _Reading:
    """Batches of a source become coded rows, and findings."""

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
        self._persons = PersonTally(dictionary, recoding)
        self._columns = {c.name: ColumnTally(c, others.get(c.name)) for c in dictionary.columns}
        self._everybody = None if secret is None else IdentityGatherer(secret)

    def add(self, batch: Batch) -> None:
        """One more batch; all of them have the same columns."""
        self._names = batch.names
        self._rows += len(batch)
        ids = self._persons.add(batch)
        for column in self._dictionary.columns:
            rule = self._recoding.rule(column.name)
            if len(batch) and all(name in batch.names for name in rule.reads):
                self._columns[column.name].add(read_cells(batch, column, rule))
        if self._everybody is not None and len(batch):
            self._everybody.add(batch, ids)

    def done(self, persons: int | None, allow_empty: frozenset[str]) -> Checked:
        findings: list[Finding] = []
        if not self._rows:
            findings.append(Finding("", "the file holds no rows", fatal=True))
        findings += self._persons.findings(self._names)
        counted, person = self._persons.counted, self._persons.person()
        findings += _check_frame(counted, persons)
        coded: dict[str, Codes] = {}
        used = _find_first_rows(person, self._dictionary.max_rows_per_person)
        complete = used.copy()
        for column in self._dictionary.columns:
            name, found = column.name, self._columns[column.name]
            absent = [s for s in self._recoding.rule(name).reads if s not in self._names]
            if absent:
                findings += [_report_absent(name, source, self._names) for source in absent]
            elif self._rows:
                coded[name] = found.coded()
                known = used & ~np.isnan(coded[name])
                if not column.varies:
                    findings += _find_disagreement(name, coded[name], person, used)
                    known = used & np.isin(person, person[known])  # one row tells it of all
                complete &= known | column.nullable
                without = counted - len(np.unique(person[known]))
                findings += found.findings(without, counted, name in allow_empty)
        coded = _cut_at_end(coded, self._dictionary, person, findings)
        findings += _find_stray_visits(coded, self._dictionary, person)
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
            self._recoding,
        )


def _cut_at_end(
    coded: dict[str, Codes],
    dictionary: Schema,
    person: NDArray[np.int64],
    findings: list[Finding],
) -> dict[str, Codes]:
    """Rows as they are seen at the end of follow-up: later events have not happened yet. What is
    once a person counts once."""
    seen = end_follow_up(coded, dictionary)
    for column in dictionary.columns:
        event = column.event
        if event is None or event not in coded or column.name not in coded:
            continue
        after = (coded[event] > 0) & (seen[event] == 0)
        later = int(after.sum())
        if later:
            whose = "rows"
            if not column.varies:
                later, whose = len(np.unique(person[after])), "persons"
            message = f"{later} events after the follow-up; these {whose} are event-free at its end"
            findings.append(Finding(column.name, message))
    ended = {
        c.name: np.clip(seen[c.name], *c.bounds)
        for c in dictionary.columns
        if c.kind == "duration" and c.name in seen
    }
    return dict(seen) | ended


def _find_stray_visits(
    coded: Mapping[str, Codes], dictionary: Schema, person: NDArray[np.int64]
) -> list[Finding]:
    """Rows that no visit can be of, where a column is on the clock of a duration that is once a
    person: after its end, or before its beginning. Which column is the time, a study says."""
    findings = []
    for column in dictionary.columns:
        ends = [
            c
            for c in dictionary.columns
            if c.kind == "duration" and not c.varies and c.unit and c.unit == column.unit
        ]
        clock = column.kind in ("continuous", "integer") and column.varies
        if not (clock and column.bounds[0] <= 0 and column.name in coded):
            continue
        time = coded[column.name]
        for end in (each for each in ends if each.name in coded):
            stray = (("after", time > coded[end.name]), ("before the beginning of", time < 0))
            said = [
                f"{int(where.sum())} rows of {len(np.unique(person[where]))} persons are {side} "
                f"their {end.name}"
                for side, where in stray
                if where.any()
            ]
            if said:
                message = " and ".join(said)
                remedy = f"A study whose visits end with {end.name} leaves out what is after it."
                findings.append(Finding(column.name, message, remedy=remedy, note=True))
    return findings


def _find_first_rows(person: NDArray[np.int64], most: int) -> NDArray[np.bool_]:
    """Which rows count: the first ``most`` of each person."""
    order = np.argsort(person, kind="stable")
    rows_of = np.bincount(person)
    rank = np.empty(len(person), dtype=np.int64)
    rank[order] = np.arange(len(person)) - np.repeat(np.cumsum(rows_of) - rows_of, rows_of)
    return np.asarray(rank < most)


def _find_disagreement(
    name: str, values: Codes, person: NDArray[np.int64], used: NDArray[np.bool_]
) -> list[Finding]:
    """Persons whose rows differ in a column that does not vary."""
    known = used & ~np.isnan(values)
    pairs = np.unique(np.column_stack([person[known], values[known]]), axis=0)
    many = int((np.unique(pairs[:, 0], return_counts=True)[1] > 1).sum())
    if not many:
        return []
    persons = f"{many} person{'s' if many != 1 else ''}"
    message = (
        f"rows of {persons} differ in a column that does not vary; their first known value counts"
    )
    return [Finding(name, message, remedy="Correct the file, or remove varies = false.")]


def _check_frame(counted: int, persons: int | None) -> list[Finding]:
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


def _report_absent(name: str, source: str, columns: Sequence[str]) -> Finding:
    """A column of the dictionary for which the file lacks what it is read from."""
    message, remedy = "column missing from the file", hint_at_column(source, columns)
    if source != name:
        message = f"{message}: {shown(source)}, from which recoding.toml reads it"
    elif not remedy:
        remedy = "If it has another name there, say it in recoding.toml: from = …"
    return Finding(name, message, fatal=True, remedy=remedy)


def find_outside_values(
    batches: Iterable[Batch],
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
    for batch in batches:
        for column in dictionary.columns:
            rule = recoding.rule(column.name)
            if not len(batch) or any(name not in batch.names for name in rule.reads):
                continue
            cells = read_cells(batch, column, rule)
            coded = code_cells(cells, column, None)
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

"""``recoding.toml``: how this site's file is laid out, in the words of its dictionary.

The dictionary says what the columns *are*; it is public, and the same at every site. How one file
says it (other names, ``1`` for male, decimal commas, dates) is that site's own business: nothing of
a recoding is published, hashed into what is, or seen by the gate. Certified rows are recoded rows.

Here is what a recoding says; :mod:`penstock_client.rows.recoding_file` reads it, and
:mod:`penstock_client.rows.cells` carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock_client.rows.dates import DateForm
from penstock_client.rows.sources.layout import PLAIN, Layout


@dataclass(frozen=True, slots=True)
class Rule:
    """How the cells of one column are read.

    Attributes:
        sources: the file's columns that it is read from: the first that is not blank counts.
        again: another column is read from the same one, and that is meant.
        missing: cells that mean "missing", before anything else is done with them.
        trim: white space within a cell becomes one space (at its ends it always goes).
        ignore_case: capital and small letters are the same.
        values: what stands in the file, and the level or number that it means. A column of levels
            knows no other cells then; in one of numbers they are read as they are.
        decimal, thousands: how numbers are written.
        times: what numbers are multiplied with, to be in the dictionary's unit.
        present: the level is 1 where something stands, and 0 where the cell is blank.
        since: the file's column with the day from which the time to this one's is taken.
        unit: of that time, one of ``UNITS``.
        date, since_date: the forms of the two dates.
    """

    sources: tuple[str, ...]
    again: bool = False
    missing: tuple[str, ...] = ()
    trim: bool = False
    ignore_case: bool = False
    values: Mapping[str, str] = field(default_factory=dict)
    decimal: str = "."
    thousands: str = ""
    times: float = 1.0
    present: bool = False
    since: str | None = None
    unit: str = "days"
    date: DateForm = field(default_factory=DateForm)
    since_date: DateForm = field(default_factory=DateForm)

    @property
    def mode(self) -> str:
        """What of the source is read: its value, whether there is one, or its distance in time."""
        return "present" if self.present else "date" if self.since is not None else "value"

    @property
    def reads(self) -> tuple[str, ...]:
        """Every column of the file that it needs."""
        return self.sources if self.since is None else (*self.sources, self.since)


@dataclass(frozen=True, slots=True)
class Recoding:
    """How a file becomes the columns of a dictionary; by default it has them as they are.

    Attributes:
        rules: by the dictionary's column; the person column may have one, too.
        general: what holds for every column without a rule of its own.
        text: as the steward wrote it; None where nobody wrote one.
    """

    layout: Layout = PLAIN
    rules: Mapping[str, Rule] = field(default_factory=dict)
    general: Rule = field(default_factory=lambda: Rule(()))
    text: str | None = field(default=None, repr=False, compare=False)

    def rule(self, name: str) -> Rule:
        """How a column of the dictionary is read."""
        return self.rules.get(name) or replace(self.general, sources=(name,))


NOTHING_RECODED = Recoding()

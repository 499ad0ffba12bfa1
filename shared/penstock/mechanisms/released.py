"""What a site's release looks like: named parts, public, from the signed study and the public n.

A site checks what its worker made against this, and a coordinator what a site uploads. Names and
schemas follow from public settings alone. How many rows a synthetic table has is *released*, not
public: as many as were counted, with noise, at most one for each row of the frame. The copies are
of one model and have one number; each refit has its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from penstock.schema import LARGEST, Column, Schema, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa

ANSWER, PARTICLES, PATHS, SITES = "answer", "particles", "paths", "sites"
"""Names of parts that a release has once; those of tables are :func:`name_copy`'s,
:func:`name_refit`'s, :func:`name_planted`'s and :func:`name_recovered`'s."""

TERM, ESTIMATE, DOUBT, COVARIANCE, NOISE = "term", "estimate", "doubt", "cov_{}", "noise_{}"
"""Columns of an answer: the coefficient's number from 1, in the order that the mechanism gives its
terms; its value; what share of all that rows tell of it hangs on a few who lie far out, whom a
mechanism cuts to a bound (missing: an older version told none); a column of the covariance matrix;
and of that part of it which is the mechanism's own, where it is told apart."""

VARIANCE, ADDED = "variance", "noise"
"""Columns of what is told of sites apart, beside :data:`TERM` and :data:`ESTIMATE`: an estimate's
variance, and that part of it which is the mechanism's own."""

_NAME = re.compile(r"[a-z0-9]+([-/][a-z0-9]+)*")
LONGEST_NAME = 64

_PART_BYTES, _COLUMN_BYTES, _LABEL_BYTES = 2_000, 500, 8
"""Of a part's headers, beside those of its columns; and of the labels that stand before a row where
parts are told apart by them (:mod:`penstock.mechanisms.labelled`)."""


class Kind(StrEnum):
    """What a part is: a synthetic copy; a refit, a table of the whole private procedure repeated
    on the rows of a copy (:class:`Refitting`); a table that was drawn with effects planted into
    the model, and what the same procedure makes of it; or something that a release has once."""

    COPY = "copy"
    REFIT = "refit"
    PLANTED = "planted"
    RECOVERED = "recovered"
    ONCE = "once"


@dataclass(frozen=True, slots=True)
class PartShape:
    """One part of a release: its name, columns, and how many rows it may have.

    Args:
        rows: so many, or the most where they are counted.
        counted: whether it has as many rows as a noisy count says, at least one.
        each: so many rows, one after the other, belong together, such as those of a path.
    """

    name: str
    kind: Kind
    schema: Schema
    rows: int
    counted: bool = False
    each: int = 1

    def __post_init__(self) -> None:
        if not (_NAME.fullmatch(self.name) and len(self.name) <= LONGEST_NAME):
            raise ValueError(f"{self.name!r} is no name of a part")
        if not (self.rows >= (1 if self.counted else 0) and self.each >= 1):
            raise ValueError(f"{self.name} cannot have {self.rows} rows, {self.each} together")

    @property
    def least(self) -> int:
        """The least rows that it may have."""
        return 1 if self.counted else self.rows

    def allows(self, rows: int) -> bool:
        """Whether it may have so many rows."""
        return self.least <= rows <= self.rows

    def table(self, columns: Mapping[str, npt.ArrayLike]) -> pa.Table:
        """Coded columns as Arrow; values are snapped to the schema."""
        return to_arrow(columns, self.schema)

    def arrow(self) -> pa.Schema:
        """Names and types."""
        return self.table({name: np.zeros(0) for name in self.schema.names}).schema

    def bytes(self) -> int:
        """The most bytes of such a part: twice the buffers of the longest labels, so that many
        batches fit, and its headers."""
        row = _LABEL_BYTES + sum(_cell(c) for c in self.schema.columns)
        return 2 * self.rows * row + _PART_BYTES + _COLUMN_BYTES * len(self.schema.columns)


@dataclass(frozen=True, slots=True)
class Shape:
    """The parts of a release, in the order in which they are made and lie in a file."""

    parts: tuple[PartShape, ...]

    def __post_init__(self) -> None:
        if not self.parts or len(set(self.names)) < len(self.parts):
            raise ValueError("a release has parts, each with a name of its own")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    @property
    def first(self) -> PartShape:
        """Whose rows a manifest tells; the copies have as many each."""
        return self.parts[0]

    @property
    def cells(self) -> int:
        """The most values of all parts, each row's label or name among them."""
        return sum(part.rows * (1 + len(part.schema.columns)) for part in self.parts)

    def part(self, name: str) -> PartShape:
        """The part of this name."""
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(name)

    def of_kind(self, kind: Kind) -> tuple[PartShape, ...]:
        """The parts of one kind, in order."""
        return tuple(part for part in self.parts if part.kind is kind)

    def counts_fit(self, rows: Mapping[str, int]) -> bool:
        """Whether parts with so many rows are what was promised: all of them, and copies alike."""
        return (
            tuple(rows) == self.names
            and all(part.allows(rows[part.name]) for part in self.parts)
            and len({rows[part.name] for part in self.of_kind(Kind.COPY)}) <= 1
        )

    def bytes(self) -> int:
        """The most bytes of all parts, and a megabyte."""
        return sum(part.bytes() for part in self.parts) + 1_000_000


def _cell(column: Column) -> int:
    """Bytes of a value: a number of 8 bytes, or a label and its offset; and a validity bit."""
    labels = (len(level.encode()) + 4 for level in column.levels)
    return max(8, *labels, 0) + 1


class Copied(Protocol):
    """How many tables of each kind are released."""

    @property
    def copies(self) -> int: ...

    @property
    def refits(self) -> int: ...


def name_copy(copy: int) -> str:
    """The part that is copy ``copy`` (from 1)."""
    return f"tables/copy-{copy}"


def name_refit(refit: int) -> str:
    """The part that is refit ``refit`` (from 1)."""
    return f"refits/{refit}"


def shape_copies(
    of: Copied, schema: Schema, persons: int, *, counted: bool
) -> tuple[PartShape, ...]:
    """The synthetic copies: at most one row for each of the frame's."""
    most = persons * schema.max_rows_per_person
    numbers = range(1, of.copies + 1)
    return tuple(PartShape(name_copy(i), Kind.COPY, schema, most, counted) for i in numbers)


def shape_refits(
    of: Copied, schema: Schema, persons: int, *, counted: bool
) -> tuple[PartShape, ...]:
    """The refits: at most one row for each of the frame's."""
    most = persons * schema.max_rows_per_person
    numbers = range(1, of.refits + 1)
    return tuple(PartShape(name_refit(i), Kind.REFIT, schema, most, counted) for i in numbers)


def name_planted(run: int) -> str:
    """The part that is the table of planted run ``run`` (from 1), with the effects in it."""
    return f"planted/{run}"


def name_recovered(run: int) -> str:
    """The part that is what the whole private procedure made of :func:`name_planted`."""
    return f"recovered/{run}"


def shape_planted(
    runs: int, schema: Schema, persons: int, *, counted: bool
) -> tuple[PartShape, ...]:
    """Planted runs, each a table and what came back of it: at most one row for each of the
    frame's."""
    most = persons * schema.max_rows_per_person
    return tuple(
        PartShape(name(i), kind, schema, most, counted)
        for i in range(1, runs + 1)
        for name, kind in ((name_planted, Kind.PLANTED), (name_recovered, Kind.RECOVERED))
    )


@dataclass(frozen=True, slots=True)
class Refitting:
    """How the tables of a release were made.

    Attributes:
        of_copies: whether each was fitted to the rows of a copy; before wire 1.1 each had rows of
            its own.
        per_fit: how many in a row were drawn from one fit, each apart.
        fresh: share of a table's sampling variance that is new whenever one is drawn, in (0, 1];
            where two are drawn from a fit, they show it.
        share: of as many rows as the site has, that each table has, in (0, 1].
    """

    of_copies: bool = True
    per_fit: int = 1
    fresh: float = 1.0
    share: float = 1.0

    def on_wire(self, version: str) -> Refitting:
        """The same of a release of this version: the site's, of the manifest, as major.minor."""
        major, minor = map(int, version.split("."))
        return replace(self, of_copies=self.of_copies and (major, minor) >= (1, 1))

    def find_fit(self, refit: int) -> int:
        """The fit (from 1) from which refit ``refit`` (from 1) was drawn."""
        return (refit - 1) // self.per_fit + 1

    def find_copy(self, refit: int, copies: int) -> int:
        """The copy (from 1) to whose rows that fit was made, the copies in turn; 0: to none."""
        return (self.find_fit(refit) - 1) % copies + 1 if self.of_copies else 0


EACH = Refitting()
"""A fit of its own for each refit, to the rows of a copy."""

LEAST_FITS = 3
"""From which a bias is told from chance, and what is new in a table is measured."""


def answer_schema(terms: int, *, apart: bool = False) -> Schema:
    """The columns of an answer of so many coefficients: numbers, and no text of a site's.

    Args:
        apart: whether the mechanism's part of the covariance is told, too.
    """
    matrices = (COVARIANCE, NOISE) if apart else (COVARIANCE,)
    names = (name.format(i + 1) for name in matrices for i in range(terms))
    return Schema(
        (
            Column(TERM, "integer", lower=0, upper=terms),
            Column(ESTIMATE, "continuous", lower=-LARGEST, upper=LARGEST),
            Column(DOUBT, "continuous", lower=0, upper=1, nullable=True),
            *(Column(name, "continuous", lower=-LARGEST, upper=LARGEST) for name in names),
        )
    )


def sites_schema(terms: int) -> Schema:
    """The columns of what is told of sites apart: so many numbers in all."""
    numbers = (
        Column(name, "continuous", lower=-LARGEST, upper=LARGEST)
        for name in (ESTIMATE, VARIANCE, ADDED)
    )
    return Schema((Column(TERM, "integer", lower=0, upper=terms), *numbers))

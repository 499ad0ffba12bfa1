"""What a site's released table looks like: public, from the signed study and the public n.

A site checks its worker's table against this, and a coordinator the site's upload. How many rows a
synthetic table has is *released*, not public: as many as were counted, with noise, at most one for
each row of the frame. The copies are of one model and have one number; each refit has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from penstock.schema import LARGEST, Column, Schema, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa

COPY = "_copy"
"""Column of every released table: 1, 2, … are the synthetic copies; -1, -2, … the refits, tables of
the whole private procedure repeated on the rows of a copy (:func:`refit_copy`); 0 is neither."""

PATH = "_path"
"""Column of a trajectory's: of what is no copy, the path's number from 1, or -1 for a particle."""

PARTICLE = -1
"""What stands under :data:`PATH` for a particle."""

TERM, ESTIMATE, COVARIANCE = "term", "estimate", "cov_{}"
"""Columns of an answer: the coefficient's number from 1, in the order that the mechanism gives its
terms; its value; a column of the covariance matrix."""

_NOTHING = np.iinfo(np.int32).min
"""What a missing label is read as: no label at all."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A released table's columns and how many rows each label has.

    Args:
        schema: the columns behind the labels.
        labels: names of the whole numbers before them, :data:`COPY` first.
        counts: rows by :data:`COPY`; of synthetic tables, the most.
        particles: how many of the rows that are no copy are particles; they come first.
        paths, path_times: the others are so many paths of so many rows, one after the other.
        counted: whether copies and refits have as many rows as a noisy count says, at least one;
            else, and whatever is neither, exactly so many.
    """

    schema: Schema
    labels: tuple[str, ...]
    counts: Mapping[int, int]
    particles: int = 0
    paths: int = 0
    path_times: int = 0
    counted: bool = False

    @property
    def names(self) -> list[str]:
        """All columns, in order."""
        return [*self.labels, *self.schema.names]

    @property
    def rows(self) -> int:
        """The most rows of the whole table."""
        return sum(self.counts.values())

    def allows(self, rows: int) -> bool:
        """Whether each copy may have so many rows."""
        return 1 <= rows <= self.counts[1] if self.counted else rows == self.counts[1]

    def table(
        self, columns: Mapping[str, npt.ArrayLike], labels: Mapping[str, npt.NDArray[np.int32]]
    ) -> pa.Table:
        """Coded columns and labels as Arrow; values are snapped to the schema."""
        import pyarrow as pa

        found = to_arrow(columns, self.schema)
        for place, name in enumerate(self.labels):
            found = found.add_column(place, name, pa.array(labels[name], pa.int32()))
        return found

    def arrow(self) -> pa.Schema:
        """Names and types."""
        none = np.zeros(0)
        whole = {name: none.astype(np.int32) for name in self.labels}
        return self.table({name: none for name in self.schema.names}, whole).schema

    def copy_rows(self, table: pa.Table) -> int | None:
        """How many rows each copy has in a table with these columns; None if its labels are others.

        The copies and refits may come in any order; what is neither, in that of :data:`PATH`.
        """
        copies = _labels(table, COPY)
        labels, counts = np.unique(copies, return_counts=True)
        found = dict(zip(labels.tolist(), counts.tolist(), strict=True))
        rows: int = found.get(1, 0)
        if not self._counts_fit(found):
            return None
        if PATH not in self.labels:
            return rows
        paths, other = _labels(table, PATH), copies == 0
        numbers = np.repeat(np.arange(1, self.paths + 1, dtype=np.int32), self.path_times)
        expected = np.concatenate([np.full(self.particles, PARTICLE, dtype=np.int32), numbers])
        right = (paths[~other] == 0).all() and np.array_equal(paths[other], expected)
        return rows if right else None

    def _counts_fit(self, found: Mapping[int, int]) -> bool:
        """Whether these rows by label are what was promised: copies alike, refits each its own."""
        if not self.counted or found.keys() != self.counts.keys():
            return found == self.counts
        alike = all(count == found[1] for copy, count in found.items() if copy > 0)
        within = all(count <= self.counts[copy] for copy, count in found.items())
        return alike and within and found.get(0) == self.counts.get(0)

    def bytes(self) -> int:
        """The most bytes of such a table.

        Twice the buffers of the longest labels, and a megabyte for headers: many batches fit.
        """
        row = 4 * len(self.labels) + sum(_cell(c) for c in self.schema.columns)
        return 2 * self.rows * row + 1_000_000


def _cell(column: Column) -> int:
    """Bytes of a value: a number of 8 bytes, or a label and its offset; and a validity bit."""
    labels = (len(level.encode()) + 4 for level in column.levels)
    return max(8, *labels, 0) + 1


def _labels(table: pa.Table, name: str) -> npt.NDArray[np.int32]:
    found: npt.NDArray[np.int32] = table.column(name).fill_null(_NOTHING).to_numpy()
    return found


class Copied(Protocol):
    """How many tables of each kind are released."""

    @property
    def copies(self) -> int: ...

    @property
    def refits(self) -> int: ...


def synthetic_counts(of: Copied, schema: Schema, persons: int) -> dict[int, int]:
    """The most rows of each synthetic table, by :data:`COPY`: one for each of the frame's."""
    tables = (*range(-of.refits, 0), *range(1, of.copies + 1))
    return dict.fromkeys(tables, persons * schema.max_rows_per_person)


def refit_copy(refit: int, copies: int) -> int:
    """The copy (from 1) from whose rows refit ``refit`` (from 1) is made: the copies in turn."""
    return (refit - 1) % copies + 1


def refits_of_copies(wire: str) -> bool:
    """Whether a release of this wire version has such refits; before 1.1 each had rows of its own.

    Args:
        wire: the site's, of the manifest: major.minor.
    """
    major, minor = map(int, wire.split("."))
    return (major, minor) >= (1, 1)


def answer_schema(terms: int) -> Schema:
    """The columns of an answer of so many coefficients: numbers, and no text of a site's."""
    names = (ESTIMATE, *(COVARIANCE.format(i + 1) for i in range(terms)))
    return Schema(
        (
            Column(TERM, "integer", lower=0, upper=terms),
            *(Column(name, "continuous", lower=-LARGEST, upper=LARGEST) for name in names),
        )
    )

"""What a site's released table looks like: public, from the signed study and the public n.

A site checks its worker's table against this, and a coordinator the site's upload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.schema import Column, Schema, to_arrow
from penstock.study import Study

if TYPE_CHECKING:
    import pyarrow as pa

COPY = "_copy"
"""Column of every released table: 1, 2, … are the synthetic copies; -1, -2, … the refits, tables of
the whole private procedure repeated on rows of the released model; 0 is neither."""

PATH = "_path"
"""Column of a trajectory's: of what is no copy, the path's number from 1, or -1 for a particle."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A released table's columns and how many rows each label has.

    Args:
        schema: the columns behind the labels.
        labels: names of the whole numbers before them, :data:`COPY` first.
        counts: rows by :data:`COPY`.
    """

    schema: Schema
    labels: tuple[str, ...]
    counts: Mapping[int, int]

    @property
    def names(self) -> list[str]:
        """All columns, in order."""
        return [*self.labels, *self.schema.names]

    @property
    def rows(self) -> int:
        """Rows of the whole table."""
        return sum(self.counts.values())

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


def shape_of(study: Study, persons: int) -> Shape:
    """The shape of what a site of so many persons releases."""
    mechanism, rows = study.mechanism, persons * study.schema.max_rows_per_person
    tables = (*range(-mechanism.refits, 0), *range(1, mechanism.copies + 1))
    return Shape(study.schema, (COPY,), {copy: rows for copy in tables})

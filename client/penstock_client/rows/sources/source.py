"""What a source of rows is, whatever its rows lie in: a file, a database, memory.

A source gives its rows in batches, so that their number costs time and not memory. A batch has
columns of text, or typed ones (Arrow), and says where each row lies, for the messages to the
steward. What the cells mean is the business of :mod:`penstock_client.rows.recoding`.

Typed columns become text here, in one place, and only when somebody reads them. They are not handed
on as numbers, for two reasons that hold for every source: the keyed hashes of rows
(:mod:`penstock_client.rows.identities`) are of the text of all cells, so that persons are known
again whatever the rows lie in; and numbers of rows that were certified before came from text, whose
parsing is not exact to the last bit, so that other numbers would be another version of the data.
A source is therefore known by the text of its cells, and never by its bytes: a CSV file and a
Parquet file whose cells are the same texts hold the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from penstock.base.errors import InvalidInput, Problem
from penstock_client.rows.sources.layout import PLAIN, Layout

if TYPE_CHECKING:
    import pandas as pd

BATCH_CELLS = 400_000
"""Cells of a batch, some 40 MB of text; but no fewer rows than a draft looks at."""

SAMPLE_ROWS = 5000


class Unreadable(Exception):
    """Why a source cannot be read, in words that quote none of its rows."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = list(problems)


class Source(Protocol):
    """A table of rows that a site has.

    Attributes:
        failures: what reading it may raise, beside :class:`Unreadable`.
    """

    failures: tuple[type[Exception], ...]

    @property
    def name(self) -> str:
        """What messages call it: a path or an address, without a password."""

    def make_batches(self) -> Iterator[Batch]:
        """All rows, in an order that stays the same; every batch has the same columns.

        There is one batch at least, so that a table without rows has its columns.
        """

    def explain_failure(self, error: Exception) -> Problem:
        """What a steward is told of one of ``failures``; never a library's text with a row."""

    def guess_layout(self) -> Layout:
        """How it seems to be laid out, for a draft; :data:`PLAIN` where there is no layout."""

    def is_same(self, other: Source) -> bool:
        """Whether both are the same table, under whatever names."""


class Batch:
    """Some rows of a source, in its order.

    Args:
        source: which they are from.
        columns: by name; stripped text (blank: missing), or Arrow's typed values.
        places: where each row lies: the line of a text file, else the row, counted from 1.
        unit: what ``places`` count, in the singular.
    """

    def __init__(
        self,
        source: Source,
        columns: Mapping[str, Sequence[str] | pa.ChunkedArray],
        places: Sequence[int],
        unit: str,
    ) -> None:
        self._source, self._columns = source, columns
        self._places, self._unit = places, unit
        self._index: pd.Index | None = None
        self._texts: dict[str, pd.Series] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Of its columns, in the source's order."""
        return tuple(self._columns)

    @property
    def places(self) -> pd.Index:
        """Where each row lies; the index's name is what is counted."""
        import pandas as pd  # half a second that only a check needs, and no start of a site

        if self._index is None:
            self._index = pd.Index(self._places, name=self._unit)
        return self._index

    def __len__(self) -> int:
        return len(self._places)

    def read_text(self, name: str) -> pd.Series:
        """A column's cells as stripped text, by place; missing ones are blank.

        Raises:
            InvalidInput: a typed value cannot be read.
        """
        import pandas as pd

        if name not in self._texts:
            column = self._columns[name]
            try:
                texts = _write_texts(column) if isinstance(column, pa.ChunkedArray) else column
            except self._source.failures as error:
                problem = self._source.explain_failure(error)
                raise InvalidInput(self._source.name, [problem]) from None
            self._texts[name] = pd.Series(texts, self.places, dtype=object)
        return self._texts[name]

    def read_rows(self, names: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Each row's place, and its cells of these columns; nothing where none is named."""
        if not names:
            return iter(())
        cells = zip(*(self.read_text(name).tolist() for name in names), strict=True)
        return zip(self._places, cells, strict=True)


def read_batches(source: Source) -> Iterator[Batch]:
    """The rows of a source; what its library raises becomes what the steward is told.

    Raises:
        InvalidInput: it cannot be read. Where lines of a text file have too few cells or too many,
            it comes at the end, when they are counted.
    """
    try:
        yield from source.make_batches()
        return
    except Unreadable as error:
        problems = error.problems
    except source.failures as error:
        problems = [source.explain_failure(error)]
    raise InvalidInput(source.name, problems)


def batch_rows(columns: int) -> int:
    """How many rows of so many columns one batch has."""
    return max(SAMPLE_ROWS, BATCH_CELLS // max(1, columns))


def make_typed_batch(source: Source, table: pa.Table, before: int) -> Batch:
    """A batch of Arrow columns whose first row is that after ``before`` others."""
    places = range(before + 1, before + table.num_rows + 1)
    names = [name.strip() for name in table.column_names]
    columns = dict(zip(names, map(_plain_type, table.columns), strict=True))
    return Batch(source, columns, places, "row")


def refuse_same_names(names: Sequence[str]) -> None:
    """Raises:
    Unreadable: two columns have the same name.
    """
    twice = sorted({n for n in names if n and names.count(n) > 1})
    if twice:
        raise Unreadable(*(Problem(n, "column occurs twice") for n in twice))


def _plain_type(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Codes as what they stand for, truth as 1 and 0, bytes as text."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        values = values.cast(pa.large_string())  # text of a writer that did not say so
    return values


def _write_texts(values: pa.ChunkedArray) -> list[str]:
    return ["" if v is None or v != v else str(v).strip() for v in values.to_pylist()]


class FileSource:
    """What the files among the sources have in common.

    Args:
        path: of the file.
        layout: as the recoding says; a kind of file that has none refuses any but :data:`PLAIN`.
    """

    failures: tuple[type[Exception], ...] = (OSError, ValueError)

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path, self.layout = path, layout

    @property
    def name(self) -> str:
        return str(self.path)

    def explain_failure(self, error: Exception) -> Problem:
        """A library's own text may quote a row; its type says enough."""
        if isinstance(error, FileNotFoundError):
            return Problem("", "no such file", remedy="Correct `data` in site.toml")
        return Problem("", "cannot be read", value=type(error).__name__)

    def guess_layout(self) -> Layout:
        return PLAIN

    def is_same(self, other: Source) -> bool:
        if not isinstance(other, FileSource) or not self.path.exists():
            return False
        return self.path.samefile(other.path)

"""Reading a site's file as text, exactly as it lies there: no type guessing, no NaN guessing.

A file is read in batches of rows, so that its size costs time and not memory. What its cells mean
is the business of :mod:`penstock_client.rows.recoding`.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.base.errors import InvalidInput, Problem

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {".csv": ",", ".txt": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
ENCODINGS = {
    "utf-8": "utf-8-sig",
    "utf-16": "utf-16",
    "latin-1": "latin-1",
    "iso-8859-1": "latin-1",
    "iso-8859-2": "iso-8859-2",
    "iso-8859-15": "iso-8859-15",
    "windows-1250": "cp1250",
    "windows-1251": "cp1251",
    "windows-1252": "cp1252",
    "macintosh": "mac-roman",
    "cp437": "cp437",
    "cp850": "cp850",
    "shift-jis": "shift-jis",
    "gb18030": "gb18030",
}
"""Names that people know, and Python's: a list, so that a typo is not some other codec."""

BATCH_CELLS = 400_000
"""Cells of a batch, some 40 MB of text; but no fewer rows than a draft looks at."""

SAMPLE_ROWS = 5000
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Layout:
    """How a text file is laid out.

    Attributes:
        delimiter: between cells, of :data:`DELIMITERS`; None: as the file's ending says.
        encoding: of :data:`ENCODINGS`.
    """

    delimiter: str | None = None
    encoding: str = "utf-8"


PLAIN = Layout()


def read_text(path: Path, layout: Layout = PLAIN) -> pd.DataFrame:
    """The whole table at ``path``: :func:`read_batches` in one piece.

    Raises:
        InvalidInput: as there.
    """
    import pandas as pd  # half a second that only a check needs, and no start of a site

    return pd.concat(list(read_batches(path, layout)))


def read_batches(path: Path, layout: Layout = PLAIN) -> Iterator[pd.DataFrame]:
    """The table at ``path`` in batches, with every cell as stripped text; missing ones are empty.

    The index says where each row lies, and its name what that is: the ``line`` of a text file
    (the header is line 1), or the ``row`` of a Parquet file (from 1). Columns without a name, as
    a saved index leaves them, are dropped. Blank lines are skipped. There is one batch at least,
    so that a file without rows has its columns.

    Raises:
        InvalidInput: no such file, an unknown kind of file, empty, or not readable as one. What
            is said never quotes the file's rows. Where lines have too few cells or too many, it
            comes at the end, when they are counted.
    """
    suffix = path.suffix.lower()
    try:
        if suffix in PARQUET:
            yield from _parquet_batches(path, layout)
            return
        if suffix in SEPARATORS:
            yield from _text_batches(path, layout.delimiter or SEPARATORS[suffix], layout.encoding)
            return
        known = ", ".join((*SEPARATORS, *PARQUET))
        problems = [
            Problem("", "unknown kind of file", None, suffix or "no ending", known, "Export it so")
        ]
    except FileNotFoundError:
        problems = [Problem("", "no such file", remedy="Correct `data` in site.toml")]
    except UnicodeDecodeError:
        problems = [_not_text(path, layout.encoding)]
    except _Unreadable as error:
        problems = error.problems
    except (pa.ArrowException, ValueError, OSError) as error:
        # A library's own text may quote a row; its type says enough.
        problems = [Problem("", "cannot be read", value=type(error).__name__)]
    raise InvalidInput(str(path), problems)


class _Unreadable(Exception):
    def __init__(self, *problems: Problem) -> None:
        self.problems = list(problems)


def _not_text(path: Path, encoding: str) -> Problem:
    """What is wrong with a file of another encoding, and in which line that shows."""
    decoder, line = codecs.getincrementaldecoder(ENCODINGS[encoding])(), 1
    with path.open("rb") as file:
        try:
            while block := file.read(_BLOCK):
                line += decoder.decode(block).count("\n")
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            line += error.object.count(b"\n", 0, error.start)
    remedy = (
        "Save it as UTF-8 (in a spreadsheet: CSV UTF-8), or say under [source] in recoding.toml "
        'what it is, such as encoding = "windows-1252"'
    )
    return Problem("", f"not {encoding.upper()} text", line, remedy=remedy)


def _text_batches(path: Path, separator: str, encoding: str) -> Iterator[pd.DataFrame]:
    with path.open("rb") as file:
        text = io.TextIOWrapper(file, ENCODINGS[encoding], newline="")
        records = _records(text, separator)
        _, first = next(records, (0, []))
        header = [name.strip() for name in first]
        if not header:
            raise _Unreadable(Problem("", "the file is empty"))
        _check_header(header, separator)
        size = max(SAMPLE_ROWS, BATCH_CELLS // len(header))
        lines: list[int] = []
        rows: list[list[str]] = []
        ragged: list[int] = []
        cells: dict[str, str] = {}  # one object for equal cells: most columns have few values
        begun = False
        for line, record in records:
            if len(record) != len(header):
                ragged.append(line)
            if ragged:
                continue  # the rest is only looked through for more of them
            rows.append([cells.setdefault(c, c) for c in map(str.strip, record)])
            lines.append(line)
            if len(rows) == size:
                yield _batch(header, rows, lines)
                lines, rows, cells, begun = [], [], {}, True
        if ragged:
            message = f"not as many cells as the header's {len(header)}"
            if len(ragged) > 1:
                message += f", and {len(ragged) - 1} more such lines"
            remedy = f"Quote cells that hold {DELIMITERS[separator]}, and end no line with one"
            raise _Unreadable(Problem("", message, ragged[0], remedy=remedy))
        if rows or not begun:
            yield _batch(header, rows, lines)


def _batch(header: list[str], rows: list[list[str]], lines: list[int]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(rows, columns=header, index=pd.Index(lines, name="line"), dtype=object)
    return frame.loc[:, [bool(name) for name in header]]


def _records(text: io.TextIOBase, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Each record with the line it begins on; a quoted cell may span lines."""
    reader = csv.reader(text, delimiter=separator, skipinitialspace=True, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error:
            remedy = "Check the quotes there"
            raise _Unreadable(Problem("", "cannot be read", line, remedy=remedy)) from None
        if any(record):
            yield line, record


def _check_header(header: list[str], separator: str) -> None:
    """Refuse what is not a line of distinct column names; quotes none that may be a value."""
    if len(header) == 1:
        for other in DELIMITERS.keys() - {separator}:
            if other in header[0]:
                said = '"\\t"' if other == "\t" else f'"{other}"'
                raise _Unreadable(
                    Problem(
                        "",
                        f"the columns are separated by {DELIMITERS[other]}",
                        1,
                        bound=f"{DELIMITERS[separator]} are expected",
                        remedy=f"Say delimiter = {said} under [source] in recoding.toml",
                    )
                )
    if sum(map(_is_number, header)) > len(header) / 2:
        remedy = "Add a first line with the names that dictionary.toml uses"
        raise _Unreadable(Problem("", "the first line holds no column names", 1, remedy=remedy))
    _check_twice(header)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_twice(names: list[str]) -> None:
    twice = sorted({n for n in names if n and names.count(n) > 1})
    if twice:
        raise _Unreadable(*(Problem(n, "column occurs twice") for n in twice))


def _parquet_batches(path: Path, layout: Layout) -> Iterator[pd.DataFrame]:
    if layout != PLAIN:
        message = "is a Parquet file, which has no delimiter and no encoding"
        raise _Unreadable(Problem("", message, remedy="Remove them from recoding.toml"))
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        names = [name.strip() for name in file.schema_arrow.names]
        _check_twice(names)
        size = max(SAMPLE_ROWS, BATCH_CELLS // max(1, len(names)))
        at = 0
        for batch in file.iter_batches(size):
            yield _typed_batch(names, pa.Table.from_batches([batch]), at)
            at += batch.num_rows
        if not at:
            yield _typed_batch(names, file.schema_arrow.empty_table(), 0)


def _typed_batch(names: list[str], table: pa.Table, before: int) -> pd.DataFrame:
    import pandas as pd

    columns = {}
    for name, values in zip(names, table.columns, strict=True):
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if pa.types.is_boolean(values.type):
            values = values.cast(pa.int8())
        if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
            values = values.cast(pa.large_string())  # text of a writer that did not say so
        columns[name] = ["" if v is None or v != v else str(v).strip() for v in values.to_pylist()]
    index = pd.RangeIndex(before + 1, before + table.num_rows + 1, name="row")
    return pd.DataFrame(columns, index=index, dtype=object)

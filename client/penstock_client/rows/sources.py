"""Reading a site's file as text, exactly as it lies there: no type guessing, no NaN guessing."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import InvalidInput, Problem

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {".csv": ",", ".txt": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")

_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


def read_text(path: Path) -> pd.DataFrame:
    """The table at ``path`` with every cell as stripped text; missing cells are empty.

    The index says where each row lies, and its name what that is: the ``line`` of a text file
    (the header is line 1), or the ``row`` of a Parquet file (from 1). Columns without a name, as
    a saved index leaves them, are dropped. Blank lines are skipped.

    Raises:
        InvalidInput: no such file, an unknown kind of file, empty, or not readable as one. What
            is said never quotes the file's rows.
    """
    suffix = path.suffix.lower()
    try:
        if suffix in PARQUET:
            return _parquet_as_text(path)
        if suffix in SEPARATORS:
            return _text_table(path.read_bytes(), SEPARATORS[suffix])
        known = ", ".join((*SEPARATORS, *PARQUET))
        problems = [
            Problem("", "unknown kind of file", None, suffix or "no ending", known, "Export it so")
        ]
    except FileNotFoundError:
        problems = [Problem("", "no such file", remedy="Correct `data` in site.toml")]
    except _Unreadable as error:
        problems = error.problems
    except (pa.ArrowException, ValueError, OSError) as error:
        # A library's own text may quote a row; its type says enough.
        problems = [Problem("", "cannot be read", value=type(error).__name__)]
    raise InvalidInput(str(path), problems)


class _Unreadable(Exception):
    def __init__(self, *problems: Problem) -> None:
        self.problems = list(problems)


def _text_table(data: bytes, separator: str) -> pd.DataFrame:
    import pandas as pd  # half a second that only a check needs, and no start of a site

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        remedy = "Save it as UTF-8 (in a spreadsheet: CSV UTF-8)"
        raise _Unreadable(Problem("", "not UTF-8 text", line, remedy=remedy)) from None
    cells: dict[str, str] = {}  # one object for equal cells: most columns have few values
    records = _records(text, separator)
    _, first = next(records, (0, []))
    header = [name.strip() for name in first]
    if not header:
        raise _Unreadable(Problem("", "the file is empty"))
    _check_header(header, separator)
    lines, rows, ragged = [], [], []
    for line, record in records:
        if len(record) != len(header):
            ragged.append(line)
        rows.append([cells.setdefault(c, c) for c in map(str.strip, record)])
        lines.append(line)
    if ragged:
        message = f"not as many cells as the header's {len(header)}"
        if len(ragged) > 1:
            message += f", and {len(ragged) - 1} more such lines"
        remedy = f"Quote cells that hold {_NAMES[separator]}, and end no line with one"
        raise _Unreadable(Problem("", message, ragged[0], remedy=remedy))
    frame = pd.DataFrame(rows, columns=header, index=pd.Index(lines, name="line"), dtype=object)
    return frame.loc[:, [bool(name) for name in header]]


def _records(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Each record with the line it begins on; a quoted cell may span lines."""
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True
    )
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
        for other in _NAMES.keys() - {separator}:
            if other in header[0]:
                raise _Unreadable(
                    Problem(
                        "",
                        f"the columns are separated by {_NAMES[other]}",
                        1,
                        bound=f"{_NAMES[separator]} are expected by the file's ending",
                        remedy="Export it as .csv with commas (and decimal points), or as .tsv",
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


def _parquet_as_text(path: Path) -> pd.DataFrame:
    import pandas as pd
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        names = [name.strip() for name in file.schema_arrow.names]
        _check_twice(names)
        table = file.read()
    columns = {}
    for name, values in zip(names, table.columns, strict=True):
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if pa.types.is_boolean(values.type):
            values = values.cast(pa.int8())
        columns[name] = ["" if v is None or v != v else str(v).strip() for v in values.to_pylist()]
    index = pd.RangeIndex(1, table.num_rows + 1, name="row")
    return pd.DataFrame(columns, index=index, dtype=object)

"""Rows in a text file with a mark between cells (CSV, TSV): no type guessing, no NaN guessing.

Every cell is the text that lies there, stripped. Columns without a name, as a saved index leaves
them, are dropped; blank lines are skipped.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator

from penstock.base.errors import Problem
from penstock_client.rows.sources.guessing import guess_layout
from penstock_client.rows.sources.layout import DELIMITERS, ENCODINGS, PLAIN, Layout
from penstock_client.rows.sources.source import (
    Batch,
    FileSource,
    Unreadable,
    batch_rows,
    refuse_same_names,
)

SEPARATORS = {".csv": ",", ".txt": ",", ".tsv": "\t"}
_BLOCK = 1 << 20


class DelimitedText(FileSource):
    """A text file whose first line names the columns (line 1)."""

    @property
    def separator(self) -> str:
        """As the recoding says, or else the file's ending."""
        return self.layout.delimiter or SEPARATORS[self.path.suffix.lower()]

    def guess_layout(self) -> Layout:
        """Of a file that is not there, a plain one: reading it tells that it is missing."""
        if not self.path.exists():
            return super().guess_layout()
        return guess_layout(self.path, SEPARATORS[self.path.suffix.lower()])

    def explain_failure(self, error: Exception) -> Problem:
        if isinstance(error, UnicodeDecodeError):
            return self._explain_encoding()
        return super().explain_failure(error)

    def _explain_encoding(self) -> Problem:
        """What is wrong with a file of another encoding, and in which line that shows."""
        encoding = self.layout.encoding
        decoder, line = codecs.getincrementaldecoder(ENCODINGS[encoding])(), 1
        with self.path.open("rb") as file:
            try:
                while block := file.read(_BLOCK):
                    line += decoder.decode(block).count("\n")
                decoder.decode(b"", final=True)
            except UnicodeDecodeError as error:
                line += error.object.count(b"\n", 0, error.start)
        remedy = (
            "Save it as UTF-8 (in a spreadsheet: CSV UTF-8), or say under [source] in "
            'recoding.toml what it is, such as encoding = "windows-1252"'
        )
        if encoding != PLAIN.encoding:  # said, or guessed since it is no UTF-8 either
            remedy = (
                "Save it as UTF-8 (in a spreadsheet: CSV UTF-8), or say its encoding under "
                "[source] in recoding.toml; look whether it is text at all"
            )
        return Problem("", f"not {encoding.upper()} text", line, remedy=remedy)

    def make_batches(self) -> Iterator[Batch]:
        separator = self.separator
        with self.path.open("rb") as file:
            text = io.TextIOWrapper(file, ENCODINGS[self.layout.encoding], newline="")
            records = _read_records(text, separator)
            _, first = next(records, (0, []))
            header = [name.strip() for name in first]
            if not header:
                raise Unreadable(Problem("", "the file is empty"))
            _check_header(header, separator)
            size = batch_rows(len(header))
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
                    yield self._make_batch(header, rows, lines)
                    lines, rows, cells, begun = [], [], {}, True
            if ragged:
                message = f"not as many cells as the header's {len(header)}"
                if len(ragged) > 1:
                    message += f", and {len(ragged) - 1} more such lines"
                remedy = f"Quote cells that hold {DELIMITERS[separator]}, and end no line with one"
                raise Unreadable(Problem("", message, ragged[0], remedy=remedy))
            if rows or not begun:
                yield self._make_batch(header, rows, lines)

    def _make_batch(self, header: list[str], rows: list[list[str]], lines: list[int]) -> Batch:
        columns = zip(*rows, strict=True) if rows else ((),) * len(header)
        named = {name: cells for name, cells in zip(header, columns, strict=True) if name}
        return Batch(self, named, lines, "line")


def _read_records(text: io.TextIOBase, separator: str) -> Iterator[tuple[int, list[str]]]:
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
            raise Unreadable(Problem("", "cannot be read", line, remedy=remedy)) from None
        if any(record):
            yield line, record


def _check_header(header: list[str], separator: str) -> None:
    """Refuse what is not a line of distinct column names; quotes none that may be a value."""
    if len(header) == 1:
        for other in DELIMITERS.keys() - {separator}:
            if other in header[0]:
                said = '"\\t"' if other == "\t" else f'"{other}"'
                raise Unreadable(
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
        raise Unreadable(Problem("", "the first line holds no column names", 1, remedy=remedy))
    refuse_same_names(header)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

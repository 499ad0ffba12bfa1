"""How a text file seems to be laid out, for a draft that its steward confirms.

Nothing here is used to read rows for certification: what holds is said in ``recoding.toml``.
"""

from __future__ import annotations

import codecs
import csv
import itertools
from collections.abc import Sequence
from pathlib import Path

from penstock_client.rows.sources.layout import DELIMITERS, ENCODINGS, Layout

_BLOCK = 1 << 20
_LINES = 5


def guess_layout(path: Path, plain: str) -> Layout:
    """The layout that a text file seems to have.

    Args:
        plain: the delimiter that its ending says, and that a layout need not.
    """
    encoding = _guess_encoding(path)
    with path.open(encoding=ENCODINGS[encoding], errors="replace", newline="") as file:
        lines = list(itertools.islice((line for line in file if line.strip()), _LINES))
    found = [mark for mark in (plain, *DELIMITERS) if _splits_lines(lines, mark)]
    return Layout(None if not found or found[0] == plain else found[0], encoding)


def _splits_lines(lines: Sequence[str], mark: str) -> bool:
    """Whether every line has the same number of cells, and more than one."""
    counts = {len(_split_line(line, mark)) for line in lines}
    return len(counts) == 1 and max(counts) > 1


def _split_line(line: str, mark: str) -> Sequence[str]:
    try:
        return next(csv.reader([line], delimiter=mark, skipinitialspace=True), [])
    except csv.Error:
        return []


def _guess_encoding(path: Path) -> str:
    """UTF-8 where it can be; else what spreadsheets of western Europe write, to be confirmed."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        start = file.read(2)
        if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
        file.seek(0)
        try:
            while block := file.read(_BLOCK):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "windows-1252"
    return "utf-8"

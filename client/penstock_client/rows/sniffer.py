"""How a text file seems to be laid out, for a draft that its steward confirms.

Nothing here is used to read rows for certification: what holds is said in ``recoding.toml``.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock_client.rows.sources import DELIMITERS, ENCODINGS, PARQUET, PLAIN, SEPARATORS, Layout

_BLOCK = 1 << 20
_LINES = 5
_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+")
_POINT = re.compile(r"[+-]?[0-9]*\.[0-9]+")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]([A-Za-z]{3}|\d{1,2})[-/.](\d{4}|\d{2})"
)


def sniff(path: Path) -> Layout:
    """The layout that a text file seems to have; the plain one of its ending where it is fine."""
    suffix = path.suffix.lower()
    if suffix in PARQUET or suffix not in SEPARATORS or not path.exists():
        return PLAIN
    encoding = _encoding(path)
    with path.open(encoding=ENCODINGS[encoding], errors="replace", newline="") as file:
        lines = list(itertools.islice((line for line in file if line.strip()), _LINES))
    plain = SEPARATORS[suffix]
    found = [mark for mark in (plain, *DELIMITERS) if _splits(lines, mark)]
    return Layout(None if not found or found[0] == plain else found[0], encoding)


def _splits(lines: Sequence[str], mark: str) -> bool:
    """Whether every line has the same number of cells, and more than one."""
    counts = {len(_cells(line, mark)) for line in lines}
    return len(counts) == 1 and max(counts) > 1


def _cells(line: str, mark: str) -> Sequence[str]:
    try:
        return next(csv.reader([line], delimiter=mark, skipinitialspace=True), [])
    except csv.Error:
        return []


def _encoding(path: Path) -> str:
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


def has_decimal_commas(columns: Mapping[str, Sequence[str]]) -> bool:
    """Whether numbers seem to be written 1,5.

    Some column holds them, mostly them and whole numbers, and none with a point.
    """
    for cells in columns.values():
        filled = [cell for cell in cells if cell]
        commas = sum(_COMMA.fullmatch(cell) is not None for cell in filled)
        whole = sum(_WHOLE.fullmatch(cell) is not None for cell in filled)
        pointed = any(_POINT.fullmatch(cell) for cell in filled)
        if commas and not pointed and 2 * (commas + whole) > len(filled):
            return True
    return False


def holds_dates(cells: Sequence[str]) -> bool:
    """Whether a column seems to hold dates, which no column of a dictionary can."""
    filled = [cell for cell in cells if cell]
    return bool(filled) and all(_DATE.fullmatch(cell) for cell in filled)

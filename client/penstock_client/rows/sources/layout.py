"""How a text file is laid out: what ``recoding.toml`` may say under ``[source]``."""

from __future__ import annotations

from dataclasses import dataclass

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

"""Small pieces of sentences."""

from __future__ import annotations

FORMULA_START = tuple("=+-@＝＋－＠\t\r\n")
"""What a spreadsheet may take for a formula's beginning; some read the full-width forms (U+FF1D,
U+FF0B, U+FF0D, U+FF20) as the plain ones."""


def count_text(count: int, noun: str) -> str:
    """``count`` things: "1 site", "1,200 sites"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

"""Codes and labels in cells: which of a list of texts a cell is."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WHOLE = re.compile(r"([+-]?[0-9]{1,15})(\.0*)?")


class Codes:
    """A list of texts, and which of them a cell's text means.

    A cell is the code that it equals as text. Software that once met a missing value writes whole
    numbers as ``1.0``: where *every* code is a whole number, and no two are the same one, a cell
    that is the same whole number is that code, too. Nowhere else do digits mean a number: ``I21.0``
    is not ``I21``, ``410.10`` not ``410.1``, and ``1e2`` not ``100``.

    Args:
        ignore_case: capital and small letters are the same.
    """

    def __init__(self, texts: Iterable[str], *, ignore_case: bool = False) -> None:
        self._ignore_case = ignore_case
        listed = list(texts)
        self._exact = frozenset(listed)
        self._texts = {self._fold(text): text for text in listed}
        numbers = [parse_whole(text) for text in listed]
        distinct = None not in numbers and len(set(numbers)) == len(numbers)
        self._numbers = dict(zip(numbers, listed, strict=True)) if distinct else {}

    def find(self, cell: str) -> str | None:
        """The code that a cell is; None where it is none."""
        if cell in self._exact:
            return cell
        found = self._texts.get(self._fold(cell))
        if found is None and self._numbers and (number := parse_whole(cell)) is not None:
            found = self._numbers.get(number)
        return found

    def __len__(self) -> int:
        return len(self._texts)

    def _fold(self, text: str) -> str:
        return text.casefold() if self._ignore_case else text


def parse_whole(text: str) -> int | None:
    """The whole number that a text writes, also as ``1.0``; None for all else."""
    found = _WHOLE.fullmatch(text) if text.isascii() else None
    return None if found is None else int(found[1])

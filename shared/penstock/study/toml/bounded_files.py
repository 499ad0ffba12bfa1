"""A TOML file's text, read no further than its bound."""

from __future__ import annotations

from pathlib import Path

from penstock.base.errors import InvalidInput, Problem
from penstock.study.toml.reader import MAX_BYTES, too_large


def read_file(path: Path) -> str:
    """The text of a file that a person wrote; more than its bound is never held in memory.

    Raises:
        FileNotFoundError: there is none.
        InvalidInput: too large, or not UTF-8.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        size = max(len(data), path.stat().st_size)  # of a device, nothing
        raise InvalidInput(str(path), [too_large(size)])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        problem = Problem("", "not UTF-8 text", remedy="Save it as UTF-8")
        raise InvalidInput(str(path), [problem]) from None

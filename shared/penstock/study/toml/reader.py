"""TOML text to values, and to the line of every key.

``tomllib`` says what a valid file holds but not where; :class:`Lines` finds where, for text that
``tomllib`` has already accepted.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import replace

from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem

MAX_BYTES = 1_000_000
"""A dictionary of 200 columns is a twentieth of it."""

MAX_DEPTH = 16
"""Brackets, and dots of a key, within each other; ours need four."""

_AT = re.compile(r"\(at line (\d+), column (\d+)\)$")
_TWICE = "Cannot overwrite a value"
"""What tomllib says of a key that is there already."""
_NAMED = re.compile(r"[ \t]*([^\[\]{}=#]{1,80}?)[ \t]*=")
_KEY = re.compile(r"""[ \t]*("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)[ \t]*""")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL
)
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_PLAIN = re.compile(r"[^,\]}#\n]*")
_QUIET = re.compile(r"(?:[^\"'\[\]{}.,#\n]++|#[^\n]*+)++")


def read_toml(text: str, what: str) -> tuple[Json, Lines]:
    """Values and lines of a TOML text.

    Size and depth are bounded before anything is parsed: a key of half a million dots is a
    megabyte, and its tables and their paths would be gigabytes.

    Raises:
        InvalidInput: not TOML (with the line), too large, or nested too deeply.
    """
    # A character is a byte at least: what is far too large is not encoded to be measured.
    size = len(text) if len(text) > MAX_BYTES else len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise InvalidInput(what, [too_large(size)])
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    _check_depth(text, what)
    try:
        values = tomllib.loads(text, parse_float=WrittenFloat)
    except ValueError as error:  # TOMLDecodeError, and numbers or dates Python cannot hold
        message = str(error)
        found = _AT.search(message)
        line = int(found[1]) if found else text.count("\n") + 1 if "end of doc" in message else None
        reason = _AT.sub("", message).strip()
        problem = Problem("", f"is not valid TOML: {reason}", line)
        if reason.startswith(_TWICE) and line and (key := _NAMED.match(text.split("\n")[line - 1])):
            problem = Problem(key[1], "is written twice in one table", line, remedy="Remove one")
        raise InvalidInput(what, [problem]) from None
    return values, Lines(text)


class WrittenFloat(float):
    """A number of a TOML file that knows how it was written: as a code, 410.10 is not 410.1."""

    text: str

    def __new__(cls, text: str) -> WrittenFloat:
        made = super().__new__(cls, text)
        made.text = text
        return made


def as_text(value: object) -> object:
    """A number where text is meant, as it was written: ``[-9, 410.10]`` is ``["-9", "410.10"]``."""
    if isinstance(value, WrittenFloat):
        return value.text
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if plain else value


def too_large(size: int) -> Problem:
    """What is wrong with a file of so many bytes, or with one that was read no further."""
    return Problem("", "is too large", value=f"{size} bytes", bound=f"at most {MAX_BYTES}")


def _check_depth(text: str, what: str) -> None:
    """Refuse what is nested too deeply, in one pass and without parsing.

    Depth is open brackets, and the dots of each key on the way (a number has one, too). Up to the
    first thing that is not TOML this sees strings and comments as ``tomllib`` does, which reads
    no further either.
    """
    at, depth, dots = 0, 0, 0
    before: list[int] = []  # the dots in front of each open bracket
    while at < len(text):
        if (found := _QUIET.match(text, at)) is not None:
            at = found.end()
            continue
        character = text[at]
        if character in "\"'":
            string = _STRING.match(text, at)
            if string is None or (text.startswith(character * 3, at) and len(string[0]) < 6):
                return  # an open string: what follows is read by nobody
            at = string.end()
            continue
        at += 1
        if character == ".":
            dots += 1
        elif character in "[{":
            before.append(dots)
            depth, dots = depth + dots + 1, 0
        elif character in "]}" and before:
            dots = before.pop()
            depth -= dots + 1
        elif character in ",\n":
            dots = 0
        if depth + dots > MAX_DEPTH:
            line = text.count("\n", 0, at) + 1
            problem = Problem("", "is nested too deeply", line, bound=f"at most {MAX_DEPTH}")
            raise InvalidInput(what, [problem])


class Lines:
    """The 1-based line of every key of a valid TOML text.

    A key is known by its dotted path as problems write it: ``columns.age.lower``,
    ``estimands[1].term`` (1 is the first).
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._line, self._counted = 1, 0
        self._scan()

    def __getitem__(self, path: str) -> int | None:
        """The line of ``path``, or else of the innermost table around it; None at the top."""
        while path:
            if path in self._lines:
                return self._lines[path]
            cut = max(path.rfind("."), path.rfind("["))
            path = path[:cut] if cut > 0 else ""
        return None

    def locate(self, problems: Iterable[Problem]) -> list[Problem]:
        """The problems with their lines, in the order of the file."""
        located = [replace(p, line=self[p.where]) if p.line is None else p for p in problems]
        return sorted(located, key=lambda p: p.line or 0)

    def _mark(self, path: str, at: int) -> None:
        # Positions only grow, so newlines are counted once over the whole scan.
        self._line += self._text.count("\n", self._counted, at)
        self._counted = at
        self._lines.setdefault(path, self._line)

    def _scan(self) -> None:
        text, at, table = self._text, 0, ""
        while (at := _end(_BLANK, text, at)) < len(text):
            if text.startswith("[[", at):
                keys, end = self._keys(at + 2)
                table = self._item(self._resolve(keys))
                self._mark(table, at)
                at = end + 2
            elif text[at] == "[":
                keys, end = self._keys(at + 1)
                table = self._resolve(keys)
                self._mark(table, at)
                at = end + 1
            else:
                at = self._pair(table, at)

    def _pair(self, table: str, at: int) -> int:
        """``key = value`` inside ``table``; returns the position after it."""
        keys, end = self._keys(at)
        path = table
        for key in keys:
            path = f"{path}.{key}" if path else key
            self._mark(path, at)
        return self._value(path, end + 1)

    def _value(self, path: str, at: int) -> int:
        text = self._text
        at = _end(_BLANK, text, at)
        if text[at] in "\"'":
            return _end(_STRING, text, at)
        if text[at] not in "[{":
            return _end(_PLAIN, text, at)
        opening, close = text[at], "]" if text[at] == "[" else "}"
        at = _end(_BLANK, text, at + 1)
        while text[at] != close:
            if opening == "{":
                at = self._pair(path, at)
            else:
                item = self._item(path)
                self._mark(item, at)
                at = self._value(item, at)
            at = _end(_BLANK, text, at)
            if text[at] == ",":
                at = _end(_BLANK, text, at + 1)
        return at + 1

    def _keys(self, at: int) -> tuple[list[str], int]:
        keys = []
        while (found := _KEY.match(self._text, at)) is not None:
            quoted = found[1][0] in "\"'"  # tomllib knows the escapes
            keys.append(tomllib.loads(f"x = {found[1]}")["x"] if quoted else found[1])
            at = found.end()
            if self._text[at : at + 1] != ".":
                break
            at += 1
        return keys, at

    def _item(self, path: str) -> str:
        self._counts[path] = self._counts.get(path, 0) + 1
        return f"{path}[{self._counts[path]}]"

    def _resolve(self, keys: list[str]) -> str:
        """The path of a header: below an array of tables it means the latest item."""
        path = ""
        for i, key in enumerate(keys):
            path = f"{path}.{key}" if path else key
            if i + 1 < len(keys) and path in self._counts:
                path = f"{path}[{self._counts[path]}]"
        return path


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    # No match cannot be in valid TOML; one character on, so that a scan always ends.
    return found.end() if found is not None else at + 1

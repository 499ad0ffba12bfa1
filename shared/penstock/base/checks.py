"""Validation that collects every problem of an object before it raises.

A dataclass checks itself on construction with :class:`Checks`; a mapping that came from a file
or over the wire becomes one through :func:`record`, which refuses unknown keys. Both raise one
:class:`~penstock.base.errors.InvalidInput` whose problems name the *field*; whoever knows the file
(the TOML readers) turns fields into lines.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar, cast

from penstock.base.errors import InvalidInput, Problem

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
NAME_BOUND = "a letter, then up to 63 letters, digits, '_', '.' or '-'"
SITE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
SITE_BOUND = "lower-case letters, digits and '-', at most 63, not starting with '-'"

_SHOWN = 80
T = TypeVar("T")


def shown(value: object) -> str:
    """``value`` as a person would write it, cut to 80 characters (it may be hostile)."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length()} bits"  # repr() refuses the longest ones
    if isinstance(value, dict | list | tuple | set | frozenset):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value[:_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def closest(word: str, known: Iterable[str]) -> str | None:
    """The question "did you mean" where a known word is close, else None."""
    folded = {k.casefold(): k for k in known}
    found = difflib.get_close_matches(word[:100].casefold(), list(folded), n=1, cutoff=0.6)
    return f"Did you mean {folded[found[0]]!r}?" if found else None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """A remedy for an unknown word: the nearest known one, or all of them."""
    words = list(known)
    return closest(word, words) or (f"Known: {', '.join(words)}" if words else None)


def within(prefix: str, problems: Iterable[Problem]) -> list[Problem]:
    """The same problems with ``prefix`` put before the field."""
    return [replace(p, where=f"{prefix}.{p.where}" if p.where else prefix) for p in problems]


class Checks:
    """Collects problems; every method returns the value to keep, or None if it is refused.

    A number that is NaN fails every comparison and so is refused wherever a bound is stated;
    where none is stated it is refused as not finite.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.problems: list[Problem] = []

    def add(
        self,
        where: str,
        message: str,
        *,
        value: str | None = None,
        bound: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.problems.append(Problem(where, message, None, value, bound, remedy))

    def done(self) -> None:
        """Raises:
        InvalidInput: with all problems, if there are any.
        """
        if self.problems:
            raise InvalidInput(self.what, self.problems)

    def number(
        self,
        where: str,
        value: object,
        bound: str,
        *,
        least: float = -math.inf,
        most: float = math.inf,
        above: float = -math.inf,
        below: float = math.inf,
        remedy: str | None = None,
    ) -> float | None:
        """A finite number with least <= value <= most and above < value < below, as a float."""
        number = _as_float(value)
        if number is None:
            self.add(where, "must be a number", value=shown(value), bound=bound, remedy=remedy)
            return None
        if math.isfinite(number) and least <= number <= most and above < number < below:
            return number + 0.0  # -0.0 becomes 0.0, so that equal studies have equal bytes
        self.add(where, "is out of range", value=shown(value), bound=bound, remedy=remedy)
        return None

    def whole(
        self, where: str, value: object, least: int, most: int, remedy: str | None = None
    ) -> int | None:
        """A whole number (not a bool, not 3.0) with least <= value <= most."""
        bound = f"a whole number from {least} to {most}"
        if isinstance(value, bool) or not isinstance(value, int):
            message = "must be a whole number"
        elif least <= value <= most:
            return int(value)
        else:
            message = "is out of range"
        self.add(where, message, value=shown(value), bound=bound, remedy=remedy)
        return None

    def text(
        self, where: str, value: object, limit: int = 200, *, empty: bool = False
    ) -> str | None:
        """One line of printable text without white space at its ends."""
        bound = f"{0 if empty else 1} to {limit} printable characters on one line"
        if not isinstance(value, str):
            message = "must be text"
        elif not value and not empty:
            message = "is blank"
        elif len(value) <= limit and value.isprintable() and value == value.strip():
            return value
        else:
            message = "is too long, or has control characters or white space at an end"
        self.add(where, message, value=shown(value), bound=bound)
        return None

    def flag(self, where: str, value: object) -> bool | None:
        """True or False."""
        if isinstance(value, bool):
            return value
        self.add(where, "must be true or false", value=shown(value))
        return None

    def pattern(
        self,
        where: str,
        value: object,
        pattern: re.Pattern[str] = NAME,
        bound: str = NAME_BOUND,
        remedy: str | None = None,
    ) -> str | None:
        """Text that matches ``pattern`` in full."""
        if isinstance(value, str) and pattern.fullmatch(value):
            return value
        message = "is blank" if value == "" else "is not well formed"
        self.add(where, message, value=shown(value), bound=bound, remedy=remedy)
        return None

    def choice(self, where: str, value: object, options: Sequence[str]) -> str | None:
        """One of ``options``."""
        if isinstance(value, str) and value in options:
            return value
        self.add(
            where,
            "is blank" if value == "" else "is unknown",
            value=shown(value),
            bound=f"one of {', '.join(options)}",
            remedy=closest(value, options) if isinstance(value, str) else None,
        )
        return None

    def sequence(self, where: str, value: object, least: int, most: int) -> tuple[Any, ...] | None:
        """A tuple of ``least`` to ``most`` items (from a file: a list)."""
        bound = f"{least} to {most} items"
        if not isinstance(value, tuple):
            self.add(where, "must be a list", value=shown(value), bound=bound)
        elif not least <= len(value) <= most:
            self.add(where, "has the wrong length", value=f"{len(value)} items", bound=bound)
        else:
            return value
        return None

    def distinct(self, where: str, values: Iterable[object]) -> None:
        """No value twice (values that cannot be hashed are another check's business)."""
        seen: set[str] = set()
        for value in values:
            if isinstance(value, str) and value in seen:
                self.add(where, "appears twice", value=shown(value), bound="each only once")
            elif isinstance(value, str):
                seen.add(value)

    def keep(self, owner: object, **values: object) -> None:
        """Store normalised values (18 as 18.0) in the frozen object that is being built."""
        for name, value in values.items():
            if value is not None:
                object.__setattr__(owner, name, value)


def _as_float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def record(cls: type[T], data: object, what: str, parts: Mapping[str, object] | None = None) -> T:
    """``cls(**data)`` for a frozen dataclass, with lists as tuples and strict keys.

    Args:
        cls: the dataclass.
        data: a mapping from a file or the wire; anything else is refused.
        what: what is being read, for the error.
        parts: fields that were already built, in place of the mapping's.

    Raises:
        InvalidInput: unknown or missing keys *and* what the dataclass itself refuses.
    """
    check = Checks(what)
    if not isinstance(data, Mapping):
        check.add("", "must be a table", value=shown(data))
        raise InvalidInput(what, check.problems)
    known = fields(cast(Any, cls))
    check.problems += unknown_keys(data, [f.name for f in known])
    values = {f.name: _tupled(data[f.name]) for f in known if f.name in data} | dict(parts or {})
    for f in known:
        if f.name not in values and f.default is MISSING and f.default_factory is MISSING:
            check.add(f.name, "is missing")
            values[f.name] = None
    if not check.problems:
        return cls(**values)
    absent = {p.where for p in check.problems}
    try:
        cls(**values)
    except InvalidInput as error:
        check.problems += [p for p in error.problems if p.where not in absent]
    raise InvalidInput(what, check.problems)


def unknown_keys(data: Mapping[str, object], known: Sequence[str]) -> list[Problem]:
    """One problem for each key that is not known, naming the nearest one that is."""
    return [
        Problem(
            shown(key).strip("'"),
            "is not a known key",
            remedy=nearest(shown(key).strip("'"), known),
        )
        for key in data
        if key not in known
    ]


def _tupled(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value

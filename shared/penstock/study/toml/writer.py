"""The little TOML that the drafts and templates need to write."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def key(name: str) -> str:
    """A key, quoted where it must be."""
    return name if _BARE.fullmatch(name) else value(name)


def value(item: object) -> str:
    """Text, numbers, booleans and lists of them, as TOML.

    Raises:
        TypeError: anything else.
    """
    if isinstance(item, str):
        # JSON's escapes are TOML's, but for DEL, which TOML wants escaped.
        return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, int):
        return str(item)
    if isinstance(item, float):
        if item.is_integer() and abs(item) < 1e15:
            return str(int(item))
        return repr(item) if math.isfinite(item) else str(item)
    if isinstance(item, Sequence):
        return f"[{', '.join(value(i) for i in item)}]"
    raise TypeError(f"cannot write {type(item).__name__} as TOML")


def table(name: str, fields: Mapping[str, object], notes: Mapping[str, str] | None = None) -> str:
    """``[name]`` with its fields, one a line, and a comment behind those that have a note."""
    lines = [name if name.startswith("[") else f"[{name}]"]
    for field, item in fields.items():
        line = f"{key(field)} = {value(item)}"
        note = (notes or {}).get(field)
        lines.append(f"{line}  # {note}" if note else line)
    return "\n".join(lines) + "\n"

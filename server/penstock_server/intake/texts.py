"""A site's text, before it is kept or shown."""

from __future__ import annotations

from penstock.base.printable import make_printable

TEXT_LIMIT = 500
"""Characters of a site's text that are kept."""


def printable_text(text: str, limit: int = TEXT_LIMIT) -> str:
    """Short and printable: no store or terminal may stumble over it."""
    return make_printable(text[:limit])

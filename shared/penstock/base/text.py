"""Small pieces of sentences."""

from __future__ import annotations


def count_text(count: int, noun: str) -> str:
    """``count`` things: "1 site", "1,200 sites"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

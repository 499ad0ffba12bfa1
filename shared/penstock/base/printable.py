"""Texts that others wrote, as a terminal, a store or a picture can show them."""

from __future__ import annotations

REPLACED = "\N{REPLACEMENT CHARACTER}"


def make_printable(text: str, instead: str = REPLACED, *, keep: str = "") -> str:
    """The text without control characters: they are others' to send, not to rule.

    Args:
        instead: what stands in the place of each; may be nothing.
        keep: control characters that are meant, such as line breaks.
    """
    return "".join(c if c.isprintable() or c in keep else instead for c in text)

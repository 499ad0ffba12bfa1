"""The kinds of sources that a site can read its rows from: a closed list.

A new kind is one module beside this one, and one line here. Nothing else asks what kind a source
is, by its class or by its ending; a test reads the syntax trees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.base.errors import InvalidInput, Problem
from penstock_client.rows.sources import delimited, parquet
from penstock_client.rows.sources.layout import PLAIN, Layout
from penstock_client.rows.sources.source import Source


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A kind of source, and what tells it from the others.

    Attributes:
        make: from a file's path, or from an address, and a layout; reads nothing yet.
        suffixes: of files, in small letters.
        schemes: of addresses, which have one of them before ``://``, and lie in no file.
    """

    make: Callable[[Any, Layout], Source]
    suffixes: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()


TEXT = SourceKind(delimited.DelimitedText, suffixes=tuple(delimited.SEPARATORS))
PARQUET = SourceKind(parquet.ParquetFile, suffixes=parquet.SUFFIXES)


@dataclass(frozen=True, slots=True)
class Registry:
    """A closed list of kinds.

    Attributes:
        remedy: what to do about a file of no known kind.
    """

    kinds: tuple[SourceKind, ...]
    remedy: str | None = None

    def locate(self, root: Path, text: str) -> Path | str:
        """What a text in site.toml names: an address, or a path, absolute or relative to ``root``.

        It is an address only where its scheme is known.
        """
        scheme, divider, _ = text.partition("://")
        known = divider and any(scheme in kind.schemes for kind in self.kinds)
        return text if known else root / text

    def open(self, place: Path | str, layout: Layout = PLAIN) -> Source:
        """The source at a path, or at an address that :meth:`locate` found; reads nothing yet.

        Raises:
            InvalidInput: of no known kind.
        """
        if isinstance(place, str):
            mark = place.partition("://")[0]
            kinds = [kind for kind in self.kinds if mark in kind.schemes]
        else:
            mark = place.suffix.lower()
            kinds = [kind for kind in self.kinds if mark in kind.suffixes]
        if kinds:
            return kinds[0].make(place, layout)
        if isinstance(place, str):  # which may hold a password
            raise InvalidInput("data", [Problem("", "unknown kind of address", value=mark)])
        known = ", ".join(suffix for kind in self.kinds for suffix in kind.suffixes)
        problem = Problem("", "unknown kind of file", None, mark or "no ending", known, self.remedy)
        raise InvalidInput(str(place), [problem])


SOURCES = Registry((TEXT, PARQUET), "Export it so")
"""Of a site's rows."""

TABLES = Registry((TEXT,))
"""Of what people write by hand, such as a codebook."""

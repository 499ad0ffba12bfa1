"""The kinds of sources that a site can read its rows from: a closed list.

A new kind is one module beside this one, and one line here. Nothing else asks what kind a source
is, by its class or by its ending; a test reads the syntax trees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.base.errors import InvalidInput, Problem
from penstock_client.rows.sources import delimited, parquet
from penstock_client.rows.sources.layout import PLAIN, Layout
from penstock_client.rows.sources.source import Source


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of source that lies in a file.

    Attributes:
        make: from its path and layout; reads nothing yet.
        suffixes: of its files, in small letters.
    """

    make: Callable[[Path, Layout], Source]
    suffixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddressKind:
    """A kind of source that lies in no file, and has an address such as ``scheme://…``.

    Attributes:
        make: from its address and layout; asks nothing yet.
        schemes: what stands before ``://``.
    """

    make: Callable[[str, Layout], Source]
    schemes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Registry:
    """A closed list of kinds.

    Attributes:
        remedy: what to do about a file of no known kind.
    """

    files: tuple[FileKind, ...]
    addresses: tuple[AddressKind, ...] = ()
    remedy: str | None = None

    def locate(self, root: Path, text: str) -> Path | str:
        """What a text in site.toml names: an address, or a path, absolute or relative to ``root``.

        It is an address only where its scheme is known.
        """
        scheme, divider, _ = text.partition("://")
        known = divider and any(scheme in kind.schemes for kind in self.addresses)
        return text if known else root / text

    def open(self, place: Path | str, layout: Layout = PLAIN) -> Source:
        """The source at a path, or at an address that :meth:`locate` found; reads nothing yet.

        Raises:
            InvalidInput: of no known kind.
        """
        return (
            self._open_address(place, layout)
            if isinstance(place, str)
            else self._open_file(place, layout)
        )

    def _open_file(self, path: Path, layout: Layout) -> Source:
        suffix = path.suffix.lower()
        for kind in self.files:
            if suffix in kind.suffixes:
                return kind.make(path, layout)
        what, known = "unknown kind of file", [s for kind in self.files for s in kind.suffixes]
        problem = Problem("", what, None, suffix or "no ending", ", ".join(known), self.remedy)
        raise InvalidInput(str(path), [problem])

    def _open_address(self, address: str, layout: Layout) -> Source:
        scheme = address.partition("://")[0]
        for kind in self.addresses:
            if scheme in kind.schemes:
                return kind.make(address, layout)
        # Not the address itself, which may hold a password.
        raise InvalidInput("data", [Problem("", "unknown kind of address", value=scheme)])


TEXT = FileKind(delimited.DelimitedText, tuple(delimited.SEPARATORS))
PARQUET = FileKind(parquet.ParquetFile, parquet.SUFFIXES)

SOURCES = Registry((TEXT, PARQUET), remedy="Export it so")
"""Of a site's rows."""

TABLES = Registry((TEXT,))
"""Of what people write by hand, such as a codebook."""

"""What an analyst can ask of a coordinator, wherever it is.

A coordinator is named by the path of its directory on this machine. How it is reached is brought
by whoever is installed, through the entry point group ``penstock.coordinators``, so that the
analyst's half needs neither side.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import PenstockError

GROUP = "penstock.coordinators"


class Coordinator(Protocol):
    """The analyst's view of a coordinator. Every call is idempotent."""

    def submit(self, signed: bytes) -> str:
        """Hand in a signed study; returns its id."""

    def studies(self) -> list[dict[str, Any]]:
        """All studies, oldest first."""

    def status(self, study: str) -> dict[str, Any]:
        """One study by id, beginning of an id, or name, with each site's state."""

    def cancel(self, signed: bytes) -> None:
        """Hand in a signed cancellation."""

    def pull(self, study: str, out: Path, *, all_copies: bool) -> list[Path]:
        """Write the report and the pooled data into ``out``; returns the files."""


def connect(where: str) -> Coordinator:
    """The coordinator at ``where``.

    Raises:
        PenstockError: nothing installed can reach it.
    """
    found = {point.name: point for point in entry_points(group=GROUP)}
    if "directory" not in found:
        raise PenstockError(
            "a coordinator's directory can only be used where the server part is installed",
            value=where,
            remedy="pip install 'penstock[server]'",
        )
    opened: Coordinator = found["directory"].load()(where)
    return opened

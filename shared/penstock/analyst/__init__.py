"""What an analyst can ask of a coordinator, wherever it is.

A coordinator is named by its address (``https://...``), by the name of a saved login, or by the
path of its directory on this machine. How a directory is used is brought by whoever is installed,
through the entry point group ``penstock.coordinators``, so that the analyst's half needs neither
side.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, runtime_checkable

from penstock.base.documents import Json
from penstock.base.errors import PenstockError
from penstock.wire.messages import Copies

GROUP = "penstock.coordinators"

ALWAYS = ("report.html", "report.json", "dictionary.json", "study.json")
"""What ``pull`` writes of every study."""

RESULT_FILES = (
    *ALWAYS,
    "pooled.parquet",
    "pooled.csv",
    "refits.parquet",
    "refits.csv",
    "imputations.parquet",
    "imputations.csv",
    "baseline.csv",
    "survival.csv",
    "transitions.csv",
    "crosstabs.csv",
    "odds_ratios.csv",
    "methods.csv",
    "influence.csv",
    "cumulative.csv",
    "guarantees.csv",
    "parts.csv",
    "sites.csv",
    "paths.parquet",
    "paths.csv",
    "particles.parquet",
    "particles.csv",
    "couplings.parquet",
    "coefficients.csv",
    "coefficients.json",
)
"""What ``pull`` may write, by the study's mechanism; no other name is taken from a server."""

POLL_SECONDS = 0.5
"""How often to look at a study on this machine; over the network see ``Fetching.poll_seconds``."""

Received = Callable[[str, int, int], None]
"""Told a file's name, the bytes that have come, and all its bytes."""


class Coordinator(Protocol):
    """The analyst's view of a coordinator. Every call is idempotent."""

    def require_wire(self, wire: str) -> None:
        """Refuse to hand in a study of a wire version that the coordinator does not know.

        Sites would answer in it, and be charged for what the coordinator could not read.

        Raises:
            CoordinatorError: it is newer.
        """

    def submit(self, signed: bytes) -> str:
        """Hand in a signed study; returns its id."""

    def studies(self) -> list[Json]:
        """All studies that you may read, oldest first."""

    def status(self, study: str) -> Json:
        """One study by id, beginning of an id, or name, with each site's state."""

    def sites(self) -> list[Json]:
        """The enrolled sites: ``site``, ``federation``, ``persons`` (the declared frame),
        ``gate_key`` and ``gate_fingerprint`` of each."""

    def cancel(self, signed: bytes) -> None:
        """Hand in a signed cancellation."""

    def close_study(self, signed: bytes) -> None:
        """Finish a study with what was delivered; who has not begun gets the cancellation."""

    def pull(self, study: str, out: Path, *, copies: Copies) -> list[Path]:
        """Write the report and what was released into ``out``; returns the files."""


@runtime_checkable
class Fetching(Protocol):
    """A coordinator whose files come over a network: some of them, and with progress."""

    poll_seconds: float

    def fetch(
        self,
        study: str,
        names: Collection[str] | None,
        out: Path,
        *,
        copies: Copies,
        received: Received | None = None,
    ) -> list[Path]:
        """Write these files of :data:`RESULT_FILES` into ``out``; all of them or none.

        Without names: all that the study has, :data:`ALWAYS` among them.
        """


def connect(where: str | None = None) -> Coordinator:
    """The coordinator at ``where``: an address, a directory, a login's name; None for the login.

    Raises:
        InvalidInput: not an address.
        NotAllowed: no login for it.
        PenstockError: nothing installed can reach it.
    """
    from penstock.analyst import logins

    if where is None or "://" in where or not Path(where).exists():
        login = logins.find(where)
        if login is not None:
            from penstock.analyst.remote import Remote

            return Remote(login.url, login.token, ca=login.ca)
    return _find_directory(where or "")


def _find_directory(where: str) -> Coordinator:
    found = {point.name: point for point in entry_points(group=GROUP)}
    if "directory" not in found:
        raise PenstockError(
            "a coordinator's directory can only be used where the server part is installed",
            value=where,
            remedy="pip install 'penstock[server]', or give the coordinator's https:// address",
        )
    opened: Coordinator = found["directory"].load()(where)
    return opened

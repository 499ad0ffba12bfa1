"""A coordinator's directory: making it, opening it, and its certificate."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from penstock.base.errors import CoordinatorError
from penstock.processes.certificates import fingerprint
from penstock_server.install import tls
from penstock_server.install.configuration import LOCAL_NAMES, Settings, read_settings
from penstock_server.store.database import sqlite_url
from penstock_server.store.folder import Folder
from penstock_server.store.store import Store
from penstock_server.studies.coordinator import Coordinator, Limits


def make_coordinator(
    root: Path,
    url: str | None = None,
    *,
    simulation: bool = False,
    names: Sequence[str] = LOCAL_NAMES,
    port: int = 8443,
    bind: str = "0.0.0.0",
    certificate: tuple[Path, Path, Path] | None = None,
) -> Settings:
    """Make a coordinator: its directory (0700), its store, its certificate.

    Args:
        certificate: an own certificate, its key, and the CA's certificate; made here if None.

    Raises:
        CoordinatorError: one exists there already; nothing is overwritten.
    """
    folder = Folder(root)
    folder.check()
    if folder.settings.exists():
        raise CoordinatorError("a coordinator exists there already", value=root)
    folder.make()
    if certificate is not None:
        tls.adopt(folder.tls, *certificate)
    else:
        tls.issue(folder.tls, _all_names(names))
    store = Store.create(url or sqlite_url(root))
    store.values.set("simulation", simulation)
    store.close()
    for database in root.glob("coordinator.db*"):
        database.chmod(0o600)
    settings = Settings(tuple(names), port, bind, url or "", certificate is not None)
    # Last, since its presence says that a coordinator is here.
    descriptor = os.open(folder.settings, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        # A database's URL may hold a password: the file is for its owner's eyes only.
        json.dump(asdict(settings), file, indent=1)
    return settings


def _all_names(names: Sequence[str]) -> list[str]:
    return [*names, *(n for n in LOCAL_NAMES if n not in names)]


def open_coordinator(root: Path, *, upgrade: bool = True) -> Coordinator:
    """The coordinator of a directory.

    Args:
        upgrade: bring a store of the version before up to date; False refuses it.

    Raises:
        CoordinatorError: none there.
    """
    settings = read_settings(root)
    store = Store(settings.store or sqlite_url(root))
    store.check(upgrade=upgrade)
    limits = Limits(settings.open_studies_each, settings.open_studies)
    return Coordinator(store, Folder(root), limits=limits, patience=settings.round_patience)


def renew_certificate(root: Path) -> bool:
    """Renew the server's certificate if it ends soon; whether it did."""
    settings = read_settings(root)
    if settings.own_certificate:
        return False
    return tls.renew_if_due(Folder(root).tls, _all_names(settings.names))


def authority_fingerprint(root: Path) -> str:
    """The CA certificate's fingerprint, to be compared by voice."""
    return fingerprint(tls.read_authority(Folder(root).tls))

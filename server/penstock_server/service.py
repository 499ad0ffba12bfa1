"""A coordinator's directory: its store, its studies, and the loop that keeps them moving."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import CoordinatorError
from penstock_server.lifecycle import Coordinator, now, read_join, stamp
from penstock_server.network import LocalGates
from penstock_server.store import Store, sqlite_url

log = logging.getLogger("penstock.coordinator")

CONFIG = "coordinator.json"
LOCK = "pump.lock"
IDLE_SECONDS = 0.2


def init(folder: Path, url: str | None, *, simulation: bool) -> None:
    """Make a coordinator: its directory (0700), its store.

    Raises:
        CoordinatorError: one exists there already; nothing is overwritten.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (folder / CONFIG).exists():
        raise CoordinatorError("a coordinator exists there already", value=folder)
    store = Store.create(url or sqlite_url(folder))
    store.set("simulation", simulation)
    store.close()
    descriptor = os.open(folder / CONFIG, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        # A database's URL may hold a password: the file is for its owner's eyes only.
        json.dump({"store": url or ""}, file)


def open_coordinator(folder: Path) -> Coordinator:
    """The coordinator of a directory.

    Raises:
        CoordinatorError: none there.
    """
    try:
        config = json.loads((folder / CONFIG).read_text())
    except FileNotFoundError:
        raise CoordinatorError(
            "no coordinator here", value=folder, remedy="run `penstock server init`"
        ) from None
    store = Store(config["store"] or sqlite_url(folder))
    store.check()
    coordinator = Coordinator(store, folder, finish=lambda *ended: _finish(coordinator, *ended))
    return coordinator


def _finish(coordinator: Coordinator, study_id: str, moment: str) -> None:
    # Here, not above: asking for a study's status needs no statistics and no plots.
    from penstock_server import results

    results.build(coordinator, study_id, moment)


def enrol(coordinator: Coordinator, join: dict[str, Any]) -> None:
    """Enrol a site from its join record, after fingerprints were compared."""
    coordinator.store.add_site(read_join(join), stamp(now()))


def run(coordinator: Coordinator, *, stop: Callable[[], bool]) -> None:
    """Pump messages to the gates on this machine until ``stop()``.

    Raises:
        CoordinatorError: another process does so already for this directory.
    """
    with _alone(coordinator.folder):
        while not stop():
            sites = coordinator.store.sites()
            sockets = {name: Path(s.join["gate_socket"]) for name, s in sites.items()}
            if not coordinator.pump(LocalGates(sockets)):
                time.sleep(IDLE_SECONDS)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two pumps would write the same tables; the lock ends with the process, however it ends."""
    with open(folder / LOCK, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CoordinatorError("this coordinator runs already", value=folder) from None
        yield


class Directory:
    """The analyst's view (:class:`penstock.analyst.Coordinator`) of a coordinator's directory."""

    def __init__(self, where: str) -> None:
        self._coordinator = open_coordinator(Path(where))

    def submit(self, signed: bytes) -> str:
        return self._coordinator.submit(signed)

    def studies(self) -> list[dict[str, Any]]:
        return [self._coordinator.status(r.id) for r in self._coordinator.store.studies()]

    def status(self, study: str) -> dict[str, Any]:
        return self._coordinator.status(study)

    def cancel(self, signed: bytes) -> None:
        self._coordinator.cancel(signed)

    def pull(self, study: str, out: Path, *, all_copies: bool) -> list[Path]:
        from penstock_server import results

        return results.pull(self._coordinator, study, out, all_copies=all_copies)

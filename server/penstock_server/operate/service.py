"""A coordinator's directory: making it, enrolling sites, and the loop that keeps studies moving."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.base.errors import CoordinatorError
from penstock.processes.certificates import fingerprint as certificate_fingerprint
from penstock.wire.messages import Copies, StudyState
from penstock.wire.signatures import fingerprint
from penstock_server.access.accesslog import Visitor, here
from penstock_server.install import tls
from penstock_server.store.database import sqlite_url
from penstock_server.store.folder import Folder
from penstock_server.store.store import Store
from penstock_server.studies.lifecycle import Coordinator, Limits, now, read_join, stamp
from penstock_server.transport.carrier import Network
from penstock_server.transport.pump import Pump

INVITE = "penstock-invite/1"
IDLE_SECONDS = 0.3
LOCAL_NAMES = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Settings:
    """``coordinator.json``.

    Attributes:
        names: host names and addresses in the certificate; the first is what sites connect to.
        port: of the api, the only one that is open.
        bind: the address it listens on.
        store: SQL URL; empty for SQLite in the directory.
        own_certificate: the certificate came from elsewhere, and is not renewed here.
        open_studies, open_studies_each: how many studies may be open, in all and of one account.
        wrong_tokens: how many an address may try before it is told to wait, ever longer.

    Raises:
        ValueError: a limit that is no whole number above 0.
    """

    names: tuple[str, ...] = LOCAL_NAMES
    port: int = 8443
    bind: str = "0.0.0.0"
    store: str = ""
    own_certificate: bool = False
    open_studies: int = 200
    open_studies_each: int = 20
    wrong_tokens: int = 20

    def __post_init__(self) -> None:
        for limit in (self.open_studies, self.open_studies_each, self.wrong_tokens):
            if isinstance(limit, bool) or not isinstance(limit, int) or not limit >= 1:
                raise ValueError("not a whole number above 0")

    @property
    def address(self) -> str:
        """host:port as sites and analysts write it."""
        host = self.names[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def init(
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


def read_settings(root: Path) -> Settings:
    """A coordinator's settings.

    Raises:
        CoordinatorError: none there, or of another version.
    """
    try:
        values = json.loads(Folder(root).settings.read_text())
        return Settings(**{**values, "names": tuple(values["names"])})
    except FileNotFoundError:
        raise CoordinatorError(
            "no coordinator here", value=root, remedy="run `penstock server init`"
        ) from None
    except (ValueError, TypeError, KeyError):
        raise CoordinatorError(
            "coordinator.json cannot be read", value=root, remedy="restore it from a backup"
        ) from None


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
    return Coordinator(store, root, limits=limits)


def renew(root: Path) -> bool:
    """Renew the server's certificate if it ends soon; whether it did."""
    settings = read_settings(root)
    if settings.own_certificate:
        return False
    return tls.renew_if_due(Folder(root).tls, _all_names(settings.names))


def enrol(coordinator: Coordinator, join: dict[str, Any], by: Visitor | None = None) -> None:
    """Enrol a site from its join record, after fingerprints were compared.

    Args:
        by: who does; None for whoever holds the directory.
    """
    checked, facts = read_join(join), ("site", "persons", "gate_key")
    fields = {name: checked[name] for name in facts} | (by or here()).fields
    coordinator.store.sites.add(checked, stamp(now()), coordinator.access.within("enrol", **fields))


def invite(coordinator: Coordinator, name: str) -> dict[str, Any]:
    """What an enrolled site needs to connect; nothing in it is secret.

    Raises:
        CoordinatorError: no such site.
    """
    site = coordinator.store.sites.all().get(name)
    if site is None:
        raise CoordinatorError("no such site", value=name)
    settings = read_settings(coordinator.folder)
    return {
        "format": INVITE,
        "federation": site.federation,
        "site": site.name,
        "address": settings.address,
        "ca": tls.authority(Folder(coordinator.folder).tls),
        "gate_key": site.gate_key,
        "gate_fingerprint": fingerprint(site.gate_key),
        "node_key": site.join["node_key"],
    }


def write_invite(coordinator: Coordinator, name: str, path: Path) -> None:
    """Write an enrolled site's invite, in one rename and for its owner's eyes only (0600).

    Nothing in it is secret; but it names a hospital, its keys and the way in, and is handed over
    by a person, not picked up.

    Raises:
        CoordinatorError: no such site.
    """
    text = json.dumps(invite(coordinator, name), indent=1) + "\n"
    descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise


def authority_fingerprint(root: Path) -> str:
    """The CA certificate's fingerprint, to be compared by voice."""
    return certificate_fingerprint(tls.authority(Folder(root).tls))


def run(coordinator: Coordinator, network: Network, *, stop: Callable[[], bool]) -> None:
    """Pump messages over a network until ``stop()``.

    Raises:
        CoordinatorError: another process does so already for this directory.
    """
    with alone(coordinator.folder):
        pump = Pump(coordinator, network)
        while not stop():
            if not pump.turn():
                time.sleep(IDLE_SECONDS)


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Two pumps would write the same tables; the lock ends with the process, however it ends."""
    with open(Folder(root).lock, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CoordinatorError("this coordinator runs already", value=root) from None
        yield


class Directory:
    """The analyst's view (:class:`penstock.analyst.Coordinator`) of a coordinator's directory.

    Whoever holds the directory is its admin: any key may sign, and every study can be read.
    """

    def __init__(self, where: str) -> None:
        self._coordinator = open_coordinator(Path(where))

    def submit(self, signed: bytes) -> str:
        return self._coordinator.submit(signed)

    def studies(self) -> list[dict[str, Any]]:
        return self._coordinator.studies()

    def status(self, study: str) -> dict[str, Any]:
        return self._coordinator.status(study)

    def cancel(self, signed: bytes) -> None:
        self._coordinator.cancel(signed)

    def close_study(self, signed: bytes) -> None:
        self._coordinator.close(signed)

    def pull(self, study: str, out: Path, *, copies: Copies) -> list[Path]:
        from penstock_server.results import results

        found = self._coordinator.find(study)
        if found.state is StudyState.FINISHED:
            by = here().fields
            self._coordinator.access.write("read", study=found.id, what="*", copies=copies, **by)
        return results.pull(self._coordinator, found.id, out, copies=copies)

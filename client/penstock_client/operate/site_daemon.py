"""A site's processes: the gate, and the two that speak to the coordinator, under one supervisor."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.base.errors import PenstockError
from penstock.base.files import write_atomic
from penstock.base.times import stamp_now
from penstock.processes.supervisor import Child, Supervisor, make_flower_environment, python_command
from penstock_client.gate.recovery import STOPPED, find_contradiction
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database, find_holder, hold_exclusively
from penstock_client.site.network_paths import NetworkPaths
from penstock_client.site.policy import read_policy
from penstock_client.site.signers import read_trust
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import SEEDED, read_settings

ANSWER_SECONDS = 1.0
LINK_SECONDS = 0.5
Tell = Callable[[str], None]


def serve_site(
    paths: SitePaths,
    *,
    tell: Tell,
    ready: Callable[[], None],
    notes: Callable[[list[str]], None] = lambda _: None,
) -> None:
    """Run a site's processes until SIGTERM, SIGINT or the steward's stop. Blocks.

    Args:
        tell: takes short lines on what the processes do.
        ready: called once, when all of them run.
        notes: called first, with what a steward should know.

    Raises:
        LedgerLocked: it runs already, or a gate alone does; LedgerError: the ledger is damaged.
        InvalidInput: policy or trust has problems.
    """
    paths.check_sockets()
    network = NetworkPaths(paths.network)
    with _hold_lock(paths.daemon_lock, "this site runs already", "`penstock site stop` it first"):
        said = check_before_start(paths)
        children = [make_gate_child(paths)]
        if network.joined:
            network.read_coordinator()
            network.make()
            children += make_network_children(network, paths.gate_socket)
        elif not paths.node_public.exists():
            said.append(
                "this site has not joined a coordinator: only the gate runs. Stop it, "
                "`penstock site join` the invite, and start again"
            )
        notes(said)
        with _tell_of_link(network.link, tell):
            _supervise(children, paths.daemon_state, tell, ready)


def serve_network(
    network: NetworkPaths, gate_socket: Path, *, tell: Tell, ready: Callable[[], None]
) -> None:
    """Run the network side alone, as a user of its own, until SIGTERM or SIGINT. Blocks.

    Raises:
        PenstockError: it has not joined; LedgerLocked: it runs already.
    """
    network.read_coordinator()
    network.make()
    with _hold_lock(network.lock, "this network side runs already", "stop it first"):
        children = make_network_children(network, gate_socket)
        with _tell_of_link(network.link, tell):
            _supervise(children, network.state, tell, ready)


def check_before_start(paths: SitePaths) -> list[str]:
    """What would keep the gate from starting is told now; returns notes for the steward.

    Raises:
        LedgerLocked: a gate runs here; LedgerError: the ledger is damaged.
        InvalidInput: policy or trust has problems.
    """
    notes = list_notes(paths)
    if read_settings(paths).insecure_seed is not None:
        notes.append(SEEDED)
    with hold_exclusively(paths.lock):
        # For writing: what a gate that was killed in the middle of a record left is tidied up.
        database = Database(paths.database)
        try:
            ledger, public = Ledger(database, None), paths.gate_public()
            ledger.verify(public)
            if find_contradiction(paths, ledger, public) is not None:
                notes.append(STOPPED)
        finally:
            database.close()
    return notes


def list_notes(paths: SitePaths) -> list[str]:
    """What is still missing before studies are answered.

    Raises:
        InvalidInput: policy or trust has problems: a typo is told to the steward now, not to an
            analyst later.
    """
    read_policy(paths.policy)
    notes = []
    if not paths.join.exists():
        notes.append("no rows are certified yet: stop the gate and run `penstock site check`")
    if not read_trust(paths.trust).signers:
        notes.append("nobody's studies are answered yet: see `penstock site trust add`")
    return notes


def make_gate_child(paths: SitePaths) -> Child:
    """The gate; a steward's stop ends it with status 0, and the daemon with it."""
    command = python_command("penstock", "site", "gate", "--supervised", "--dir", str(paths.root))
    ready = partial(is_answering, paths.steward_socket)
    return Child("gate", command, log=paths.log, ready=ready, final=True)


def make_network_children(network: NetworkPaths, gate_socket: Path) -> list[Child]:
    """The SuperNode and the runner; neither sees more than its directory and ``gate.sock``."""
    root, environment = str(network.root), make_flower_environment(network.home)
    return [
        Child(
            "supernode",
            python_command("penstock_client.operate.flower.supernode", root),
            environment=environment,
            log=network.log / "supernode.log",
            ready=partial(is_answering, network.supernode_socket),
        ),
        Child(
            "runner",
            python_command("penstock_client.operate.flower.runner", root, str(gate_socket)),
            environment=environment,
            log=network.log / "runner.log",
        ),
    ]


def is_answering(path: Path) -> bool:
    """Whether somebody listens on a Unix socket; a file left behind is not enough."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(ANSWER_SECONDS)
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


# -- one daemon, and what it says of itself ----------------------------------------------------


@contextmanager
def _hold_lock(lock: Path, held: str, remedy: str) -> Iterator[None]:
    lock.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    with hold_exclusively(lock, held=held, remedy=remedy):
        yield


def _supervise(
    children: Sequence[Child], state: Path, tell: Tell, ready: Callable[[], None]
) -> None:
    """Run the children, keeping what is told of each in a file that ``site status`` reads."""
    said = {child.name: "starting" for child in children}

    def note(text: str) -> None:
        name, _, what = text.partition(" ")
        if name in said:
            said[name] = what
            with suppress(OSError):  # a full disk must not end what it is told about
                _write_state(state, said)
        tell(text)

    _write_state(state, said)
    try:
        Supervisor(children, tell=note, on_ready=ready).run()
    finally:
        state.unlink(missing_ok=True)


@contextmanager
def _tell_of_link(path: Path, tell: Tell) -> Iterator[None]:
    """Tell of the way to the coordinator whenever the SuperNode says something new of it."""
    over = threading.Event()

    def written() -> int:
        return path.stat().st_mtime_ns if path.exists() else 0

    def watch() -> None:
        seen, last = before, ""
        while not over.wait(LINK_SECONDS):
            if written() == seen:
                continue
            seen, why = written(), read_link(path).get("why", "")
            if why and why != last:
                last = why
                tell(why)

    before = written()

    thread = threading.Thread(target=watch, daemon=True, name="link")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def read_link(path: Path) -> dict[str, str]:
    """What the SuperNode last said of its connection (``state``, ``why``); empty if nothing."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {"state": str(record["state"]), "why": str(record["why"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write_state(path: Path, said: dict[str, str]) -> None:
    record = {"pid": os.getpid(), "since": stamp_now(), "processes": said}
    write_atomic(path, json.dumps(record).encode())


@dataclass(frozen=True, slots=True)
class Running:
    """What a living daemon last said of its processes."""

    pid: int
    processes: dict[str, str]


def find_running(lock: Path, state: Path) -> Running | None:
    """The daemon that holds ``lock``; None where none runs, whatever one left behind."""
    pid = find_holder(lock)
    if pid is None:
        return None
    try:
        record = json.loads(state.read_text(encoding="utf-8"))
        return Running(pid, {str(k): str(v) for k, v in record["processes"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Running(pid, {})


def find_joined(network: NetworkPaths) -> str | None:
    """The address of the coordinator that was joined here; None where there is none."""
    try:
        return network.read_coordinator().address
    except PenstockError:
        return None

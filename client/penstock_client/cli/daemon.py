"""`start`, `stop`, `status`, `gate`, `network`: a site's processes."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.documents import Json
from penstock.base.errors import GateUnavailable
from penstock.cli.console import done, emit_json, err, friendly, say_with_time, table
from penstock.wire.signatures import fingerprint
from penstock_client.cli.common import AsJson, SiteDir, call_document, open_site, shorten
from penstock_client.ledger.sqlite_file import find_holder
from penstock_client.operate import site_daemon
from penstock_client.site.network_paths import NetworkPaths
from penstock_client.site.site_paths import SitePaths

STOP_SECONDS = 60.0

_UNJOINED = {
    "here": "not joined: see `penstock site join`",
    "separate": "known to the network side, which runs as a user of its own",
}


@friendly
def start(directory: SiteDir = Path()) -> None:
    """Run the site until Ctrl-C or `penstock site stop`: the gate, and what it needs to be asked.

    Where the site has joined a coordinator, that is Flower's SuperNode and a runner.
    """
    paths, settings = open_site(directory)
    site_daemon.serve_site(
        paths,
        tell=say_with_time,
        ready=lambda: done(f"site {settings.name} is up"),
        notes=_show_notes,
    )


def _show_notes(notes: list[str]) -> None:
    for note in notes:
        err.print("  !", note, markup=False)


@friendly
def gate(
    directory: SiteDir = Path(),
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
) -> None:
    """Run the gate alone in the foreground, until Ctrl-C or `penstock site stop`."""
    # gRPC's forks and threads are noisy on standard error; our log says what matters.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from penstock_client.gate.service import serve_gate

    paths, settings = open_site(directory)
    notes = site_daemon.list_notes(paths)
    _log_to(None if supervised else paths.log)

    def ready(more: list[str]) -> None:
        _show_notes([*more, *notes])
        done(f"gate of {settings.name} answers on {paths.gate_socket}")

    serve_gate(paths, settings, ready=ready)


def _log_to(path: Path | None) -> None:
    """Log to standard error, and to a file; a supervisor keeps a file of what it gets itself."""
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if path is not None:
        handlers.append(logging.FileHandler(path))
        os.chmod(path, 0o600)
    for each in handlers:
        each.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger("penstock").addHandler(each)
    logging.getLogger("penstock").setLevel(logging.INFO)


@friendly
def network(
    directory: Annotated[Path, typer.Argument(help="The network side's directory.")],
    gate: Annotated[Path, typer.Option(help="The gate's gate.sock.")],
) -> None:
    """Run the network side alone, as a user of its own, until Ctrl-C."""
    found = NetworkPaths(directory.resolve())
    address = found.read_coordinator().address
    if not site_daemon.is_answering(gate):
        _show_notes([f"nobody answers on {gate} yet"])
    site_daemon.serve_network(
        found,
        gate.absolute(),
        tell=say_with_time,
        ready=lambda: done(f"the network side is up, for {address}"),
    )


@friendly
def stop(directory: SiteDir = Path()) -> None:
    """Stop the site. A run in progress is ended and its charge stays."""
    paths, _ = open_site(directory)
    try:
        call_document(paths, "Stop")
    except GateUnavailable:
        supervisor = find_holder(paths.daemon_lock)
        if not supervisor:
            raise
        # It was about to start the gate again.
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor, signal.SIGTERM)
    end = time.monotonic() + STOP_SECONDS
    while time.monotonic() < end:
        if find_holder(paths.lock) is None and find_holder(paths.daemon_lock) is None:
            done("the site has stopped")
            return
        time.sleep(0.1)
    raise GateUnavailable("the site is still stopping", remedy="look at log/gate.log")


@friendly
def status(directory: SiteDir = Path(), as_json: AsJson = False) -> None:
    """What the gate says of itself, what it holds, and which processes run."""
    paths, _ = open_site(directory)
    processes = _read_processes(paths)
    try:
        shown = call_document(paths, "Status")
    except GateUnavailable:
        if not processes["daemon"]:
            raise
        shown = {"remedy": "the gate does not answer: see log/gate.log"}
    shown = {**shown, **processes}
    if as_json:
        emit_json(shown)
        return
    if "gate_key" in shown:
        shown["gate_key"] = fingerprint(shown["gate_key"])
    rows = [(k, shorten(v)) for k, v in _word_processes(shown).items()]
    table(f"site {shown.get('site', paths.root)}", ("", ""), rows)


def _read_processes(paths: SitePaths) -> Json:
    """The daemon's pid and what it says of its children; the coordinator that was joined."""
    found = site_daemon.find_running(paths.daemon_lock, paths.daemon_state)
    return {
        "daemon": found.pid if found else None,
        "processes": found.processes if found else {},
        "coordinator": site_daemon.find_joined(NetworkPaths(paths.network)),
        "connection": site_daemon.read_link(NetworkPaths(paths.network).link).get("why", "")
        if found
        else "",
        "network": "separate" if paths.node_public.exists() else "here",
    }


def _word_processes(shown: Json) -> Json:
    """The same, in a person's words."""
    said = [f"{name} {what}" for name, what in shown["processes"].items()]
    return {
        **shown,
        "daemon": f"pid {shown['daemon']}" if shown["daemon"] else "none: the gate runs alone",
        "processes": said or "none but the gate",
        "coordinator": shown["coordinator"] or _UNJOINED[shown["network"]],
    }

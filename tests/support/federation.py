"""A federation of real processes on this machine: the commands that people start, nothing else.

One coordinator and some small sites, each with its own directory below a short one, and everything
that their daemons start. Processes are found by their command line, which names the directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import TestSite, World
from typer.testing import CliRunner

from penstock.analyst.remote import Remote
from penstock.base.times import stamp_now
from penstock.cli.main import app
from penstock.wire import gate_pb2
from penstock.wire.signatures import public_hex
from penstock.wire.signed import SignedStudy, sign_study
from penstock_client.cli.common import call_document, call_steward
from penstock_client.ledger.state import Charge
from penstock_server.api.directory import Directory
from penstock_server.install.founding import open_coordinator

COORDINATOR = "coordinator"
KINDS = {
    "supervisor": (("penstock", "server", "start"), ("penstock", "site", "start")),
    "superlink": (("penstock_server.transport.flower.superlink",),),
    "api": (("penstock_server.api.serve",),),
    "builder": (("penstock_server.operate.builder",),),
    "assembly": (("penstock_server.results.assembly",),),
    "runner": (
        ("penstock_server.transport.flower.runner",),
        ("penstock_client.operate.flower.runner",),
    ),
    "gate": (("penstock", "site", "gate"),),
    "supernode": (("penstock_client.operate.flower.supernode",),),
    "worker": (("penstock_client.work.worker",),),
}
PERSONS = 120
PLENTY = 1000.0
TICK_LEAST, TICK_AT_MOST = 0.05, 0.2
"""Seconds between two looks, longer the longer there was nothing: a look costs up to 11 ms."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def penstock(*args: object, code: int = 0) -> str:
    """What a command of ours says; it runs in this process."""
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, result.output
    return result.output


class Federation:
    """A coordinator and sites, enrolled and joined; :meth:`start` starts their daemons.

    Args:
        names: of the sites.
        prefixes: what stands before a machine's commands, such as a network namespace.
        host: the coordinator's address, in its certificate and the invites.
        site: more for :meth:`tests.conftest.World.site`, the same for all.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        prefixes: Mapping[str, Sequence[str]] | None = None,
        host: str = "127.0.0.1",
        **site: Any,
    ) -> None:
        # Not pytest's own folder: Unix socket paths end at 107 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="pf-"))
        self.world = World(self.root)
        self.port = free_port()
        self._prefixes = dict(prefixes or {})
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._local = host == "127.0.0.1"
        try:
            at = ("--name", host, "--bind", host, "--port", self.port)
            penstock("server", "init", "-d", self.folder(COORDINATOR), *at)
            for name in names:
                made = {"n": PERSONS, "total": PLENTY, "allowance": PLENTY, **site}
                self._join(self.world.site(name, **made))
            self.token = self._add_token()
            self.analyst = self._connect()
        except BaseException:
            shutil.rmtree(self.root, ignore_errors=True)
            raise

    def _join(self, site: TestSite) -> None:
        root, invite = site.paths.root, self.root / f"invite-{site.name}.json"
        where = ("-d", self.folder(COORDINATOR))
        penstock("server", "enrol", site.paths.join, *where, "--out", invite)
        penstock("site", "join", invite, "--dir", root)
        # What a restore from a backup brings back.
        for part in ("ledger", "releases"):
            shutil.copytree(root / part, self.backup(site.name) / part)

    def _add_token(self) -> str:
        public = self.root / "ada.pub"
        public.write_text(public_hex(self.world.analyst) + "\n")
        where = ("-d", self.folder(COORDINATOR), "--json")
        said = penstock("server", "token", "add", "ada", "--key", public, *where)
        return str(json.loads(said)["token"])

    def _connect(self) -> Any:
        """The analyst over HTTPS; where this process has no way to the port, at the directory."""
        if not self._local:
            return Directory(str(self.folder(COORDINATOR)))
        return Remote(self.url, self.token, ca=self.ca.read_text())

    # -- places --------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        return self.folder(COORDINATOR) / "tls" / "ca.crt"

    @property
    def machines(self) -> list[str]:
        return [COORDINATOR, *self.names]

    @property
    def names(self) -> list[str]:
        return [s.name for s in self.world.sites]

    def folder(self, machine: str) -> Path:
        return self.root / ("hub" if machine == COORDINATOR else machine)

    def backup(self, name: str) -> Path:
        return self.root / "old" / name

    def site(self, name: str) -> TestSite:
        return next(s for s in self.world.sites if s.name == name)

    # -- processes -----------------------------------------------------------------------------

    def start(self, *machines: str, wait: bool = True) -> None:
        """Start daemons (all of them if none is named), and wait until the sites are heard of."""
        chosen = machines or tuple(self.machines)
        since = stamp_now()
        for machine in chosen:
            self._daemons[machine] = self._popen(machine)
        if not wait:
            return
        if COORDINATOR in chosen:
            self.until(lambda: all(self.heard(n, since) for n in self.names), "sites to be heard")
        for machine in set(chosen) - {COORDINATOR}:
            self.until(lambda m=machine: len(self.pids(m)) >= 4, f"the processes of {machine}")
            self.until(lambda m=machine: self._answers(m), f"the gate of {machine}")

    def _popen(self, machine: str) -> subprocess.Popen[bytes]:
        folder = str(self.folder(machine))
        command = (
            ("server", "start", "-d", folder)
            if machine == COORDINATOR
            else ("site", "start", "--dir", folder)
        )
        prefix = self._prefixes.get(machine, ())
        with open(self.root / f"{machine}.out", "ab") as out:
            return subprocess.Popen(
                [*prefix, sys.executable, "-m", "penstock", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )

    def _answers(self, name: str) -> bool:
        try:
            return bool(self.status(name))
        except Exception:
            return False

    def heard(self, name: str, since: str) -> bool:
        """Whether the coordinator has heard of a site after ``since``."""
        coordinator = open_coordinator(self.folder(COORDINATOR))
        try:
            return coordinator.store.sites.all()[name].seen > since
        finally:
            coordinator.store.close()

    def stop(self, *machines: str) -> None:
        """SIGTERM to daemons (all of them if none is named), and wait for their clean end."""
        chosen = machines or tuple(self.machines)
        with ThreadPoolExecutor(len(chosen)) as pool:
            codes = list(pool.map(self._stop_one, chosen))
        assert codes == [0] * len(chosen), self.logs()

    def _stop_one(self, machine: str) -> int:
        daemon = self._daemons.pop(machine)
        daemon.send_signal(signal.SIGTERM)
        try:
            return daemon.wait(60)
        except subprocess.TimeoutExpired:
            self._daemons[machine] = daemon  # to be ended with the rest
            raise AssertionError(
                f"{machine} did not stop: {self.leftovers()}\n{self.logs()}"
            ) from None

    def await_end(self, machine: str) -> None:
        """Wait for a daemon that somebody else has told to stop."""
        assert self._daemons.pop(machine).wait(60) == 0, self.logs()

    def pids(self, machine: str) -> dict[str, int]:
        """Process ids by kind."""
        return {kind: p.pid for kind, p in _found(str(self.folder(machine)))}

    def pid(self, machine: str, kind: str, *, other_than: int = 0, seconds: float = 120) -> int:
        """The process of a kind, as soon as there is one (after another has ended)."""
        found: dict[str, int] = {}

        def there() -> bool:
            found.update(_found_pids(str(self.folder(machine)), kind))
            return found.get(kind, other_than) != other_than

        self.until(there, f"{kind} of {machine}", seconds)
        return found[kind]

    def kill(self, machine: str, kind: str) -> int:
        """``kill -9`` of one process, as soon as there is one; returns the id that it had."""
        pid = self.pid(machine, kind)
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            process.send_signal(signal.SIGKILL)
            if kind == "supervisor":
                self._daemons.pop(machine).wait(30)
            else:
                process.wait(30)
        return pid

    def leftovers(self) -> list[str]:
        """Every process that names this federation, by its command line or its environment."""
        return [" ".join(_words(p)) for p in self._ours()]

    def _ours(self) -> Iterator[psutil.Process]:
        root = str(self.root)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                with contextlib.suppress(psutil.AccessDenied):  # a gate's is nobody's to read
                    words += process.environ().values()
                if process.pid != os.getpid() and any(root in w for w in words):
                    yield process

    def open_ports(self, *machines: str) -> set[int]:
        """TCP ports on which processes of these machines (all if none is named) listen."""
        ports = set()
        for machine in machines or self.machines:
            for _, process in _found(str(self.folder(machine))):
                with contextlib.suppress(psutil.Error):
                    for each in process.net_connections(kind="inet"):
                        if each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE):
                            ports.add(each.laddr.port)
        return ports

    def close(self) -> None:
        """Stop everything, whatever happened, and say what had been left running."""
        for daemon in self._daemons.values():
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(60)
        left = []
        for process in self._ours():
            with contextlib.suppress(psutil.Error):
                left.append(" ".join(_words(process)))
                process.kill()
        for daemon in self._daemons.values():
            daemon.wait(10)
        logs = self.logs()
        close = getattr(self.analyst, "close", None)
        if close is not None:
            close()
        shutil.rmtree(self.root, ignore_errors=True)
        assert left == [], f"left running: {left}\n{logs}"

    # -- studies -------------------------------------------------------------------------------

    def signed(self, name: str, **changes: Any) -> SignedStudy:
        """A fast study of every site."""
        study = self.world.study(name=name, **changes)
        return sign_study(study, self.world.analyst)  # type: ignore[arg-type]

    def submit(self, name: str, **changes: Any) -> str:
        """Hand in a fast study; the api may just be starting. Returns its id."""
        return self.hand_in(self.signed(name, **changes))

    def hand_in(self, signed: SignedStudy) -> str:
        """The same of a study that is signed."""
        found: list[object] = []

        def taken() -> bool:
            with contextlib.suppress(Exception):
                found.append(self.analyst.submit(signed.to_bytes()))
            return bool(found)

        self.until(taken, "the study to be taken", 60)
        return str(found[0])

    def parts(self, study: str) -> dict[str, str]:
        """Each site's state in a study, from the store itself."""
        coordinator = open_coordinator(self.folder(COORDINATOR))
        try:
            return {p.site: str(p.state) for p in coordinator.store.studies.parts(study)}
        finally:
            coordinator.store.close()

    def status_of(self, study: str) -> dict[str, Any]:
        """A study's status as the coordinator has it, whether or not its api runs."""
        coordinator = open_coordinator(self.folder(COORDINATOR))
        try:
            return coordinator.status(study)
        finally:
            coordinator.store.close()

    def ended(self, study: str, seconds: float = 180) -> dict[str, Any]:
        """Wait until a study has ended; its status."""

        def over() -> bool:
            return self.status_of(study)["state"] not in ("open", "pooling")

        self.until(over, "the study to end", seconds)
        return self.status_of(study)

    def reached(self, study: str, site: str, *states: str, seconds: float = 120) -> None:
        """Wait until the coordinator knows a site's part to be in one of these states."""
        self.until(lambda: self.parts(study)[site] in states, f"{site} to be {states}", seconds)

    def charges(self, study: str) -> dict[str, list[str]]:
        """The status of every charge of a study, by site, from verified ledgers."""
        return {s.name: [c.status for c in self._charges(s, study)] for s in self.world.sites}

    def reserved(self, study: str, *sites: str) -> None:
        """Wait until these sites' charges are reserved: what came before costs nothing."""
        for name in sites:
            site = next(s for s in self.world.sites if s.name == name)
            self.until(lambda s=site: bool(self._charges(s, study)), f"{name} to reserve")

    def _charges(self, site: TestSite, study: str) -> list[Charge]:
        return [c for c in site.ledger().charges.values() if c.study_id == study]

    def draws(self, study: str) -> dict[str, int]:
        """How often each site began to draw for a study: its log says so each time."""
        return {
            s.name: sum(
                s.paths.log.read_text().count(f"request {c.id[:12]} reserved")
                for c in self._charges(s, study)
            )
            for s in self.world.sites
        }

    def same_bytes(self, study: str, name: str) -> bool:
        """Whether what the coordinator holds of a site is the one table that its gate kept."""
        (charge,) = self._charges(self.site(name), study)
        kept = self.site(name).paths.releases / charge.id / "table.arrow"
        came = self.folder(COORDINATOR) / "uploads" / study / f"{name}.arrow"
        return kept.read_bytes() == came.read_bytes()

    # -- stewards ------------------------------------------------------------------------------

    def policy(self, name: str, approval: str) -> None:
        path = self.site(name).paths.policy
        text = path.read_text()
        for word in ("automatic", "by-hand"):
            text = text.replace(f'"{word}"', f'"{approval}"')
        path.write_text(text)

    def approve(self, name: str, study: str) -> None:
        """The steward approves the request of a study (by its name), as soon as it waits."""
        paths = self.site(name).paths
        waiting: list[str] = []

        def asked() -> bool:
            with contextlib.suppress(Exception):
                rows = call_document(paths, "Requests")["requests"]
                waiting.extend(
                    r["request"]
                    for r in rows
                    if r["state"] == "awaiting-approval" and r["study"] == study
                )
            return bool(waiting)

        self.until(asked, f"a request at {name}")
        call_steward(paths, "Approve", gate_pb2.JobRequest(request_id=waiting[0]))

    def status(self, name: str) -> dict[str, Any]:
        """What the gate tells its steward."""
        return dict(call_document(self.site(name).paths, "Status"))

    # -- waiting -------------------------------------------------------------------------------

    def until(self, done: Callable[[], bool], what: str, seconds: float = 120) -> None:
        """Poll; when it takes too long, fail with what every process has said last."""
        limit, tick = time.monotonic() + seconds, TICK_LEAST
        while not done():
            assert time.monotonic() < limit, f"waited for {what}\n{self.logs()}"
            time.sleep(tick)
            tick = min(1.2 * tick, TICK_AT_MOST)

    def logs(self, lines: int = 15) -> str:
        """The last lines of every log."""
        files = [*self.root.glob("*.out"), *self.log_files()]
        tails = [(p, p.read_text(errors="replace").splitlines()[-lines:]) for p in sorted(files)]
        return "\n".join(f"== {p}\n" + "\n".join(tail) for p, tail in tails)

    def log_files(self) -> list[Path]:
        return [p for p in self.root.rglob("*.log") if p.is_file()]


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[], None]]:
    """A file system of its own with next to no room; yields what gives it room."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder.mkdir(mode=0o700, exist_ok=True)
    made = _mount("size=8k", "-t", "tmpfs", "penstock-test", str(folder))
    if made.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode()}")
    try:
        yield lambda: _mount("remount,size=64m", str(folder)).check_returncode()
    finally:
        # Lazily: a process that is just being stopped may have a file open.
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _mount(options: str, *args: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["mount", "-o", options, *args], check=False, capture_output=True)


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _found(folder: str) -> Iterator[tuple[str, psutil.Process]]:
    """The processes of a directory by kind; not those that are just becoming one."""
    for process in psutil.process_iter():
        words = _words(process)
        if not any(w == folder or w.startswith(folder + "/") for w in words):
            continue
        if any(w.endswith("leash.py") for w in words):
            continue
        kind = kind_of(words)
        if kind is not None:
            yield kind, process


def _found_pids(folder: str, kind: str) -> dict[str, int]:
    return {k: p.pid for k, p in _found(folder) if k == kind}


def kind_of(words: Sequence[str]) -> str | None:
    """Which of :data:`KINDS` a command line is."""
    text = " ".join(words)
    for kind, commands in KINDS.items():
        if any(f"-m {' '.join(c)} " in f"{text} " for c in commands):
            return kind
    return None

"""Keeps a few processes running: starts them in order, restarts what ends, leaves nothing behind.

What holds, whatever happens to the children or to the supervisor:

- A child that ends is started again, later each time, until it has run well for a minute.
- Stopping goes in reverse order: SIGTERM to a child's process group, SIGKILL after a grace.
- What a child leaves in its process group is killed when the child has ended.
- ``kill -9`` of the supervisor sends SIGTERM to every child (Linux). The kernel does so when the
  *thread* that forked ends; that is the one that runs :meth:`Supervisor.run`.
- A child has no descriptor of ours, no terminal, and writes to its own log only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.processes import leash
from penstock.processes.stop_flag import StopFlag

# A killed SuperNode is refused until two of its heartbeats were missed: the last waits are longer.
BACKOFF = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 90.0)
SETTLED_SECONDS = 60.0
GRACE_SECONDS = 20.0
READY_SECONDS = 60.0
LOG_BYTES = 10_000_000
TICK_SECONDS = 0.1

_LOOPBACK = ("127.0.0.1", "localhost")
_INHERITED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "HOME", "TMPDIR", "TZ")
_NETWORK = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"),
)


def _say_ready() -> bool:
    return True


def _do_nothing() -> None:
    return None


@dataclass(frozen=True)
class Child:
    """One process to keep running.

    Attributes:
        command: program and arguments; the program is looked up in the child's PATH.
        environment: the child's whole environment; when empty, the supervisor's own.
        log: where its output goes (0600, appended); None drops the output.
        ready: whether it does its work yet; asked often, so it must answer at once. An OSError
            means no.
        final: a clean exit (status 0) of this child ends the whole supervisor.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    ready: Callable[[], bool] = _say_ready
    final: bool = False


def python_command(module: str, *args: str) -> tuple[str, ...]:
    """The command that runs a module with the Python that runs now."""
    return (sys.executable, "-m", module, *args)


def make_plain_environment() -> dict[str, str]:
    """All that a process gets to see that talks to nobody: no credentials, proxies or settings."""
    return {
        **{k: v for k, v in os.environ.items() if k in _INHERITED},
        # It imports exactly what its supervisor imports, installed or editable.
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "PYTHONUNBUFFERED": "1",
    }


def make_flower_environment(home: Path) -> dict[str, str]:
    """All that a Flower process gets to see: no credentials, no accelerator, no telemetry.

    Args:
        home: Flower's own directory.
    """
    network = {k: v for k, v in os.environ.items() if k in _NETWORK}
    spared = [os.environ.get(name, "") for name in ("no_proxy", "NO_PROXY")]
    hosts = [h.strip() for text in spared for h in text.split(",") if h.strip()]
    no_proxy = ",".join(dict.fromkeys([*hosts, *_LOOPBACK]))
    return {
        **make_plain_environment(),
        **network,
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }


@dataclass
class _Slot:
    """A child and its present process."""

    child: Child
    process: subprocess.Popen[bytes] | None = None
    first: float | None = None  # when it was first to start
    started: float = 0.0
    due: float = 0.0
    failures: int = 0
    ready: bool = False
    passed: bool = False  # was ready once, or is overdue: the next child may start

    @property
    def log(self) -> str:
        path = self.child.log
        return f": see {path.parent.name}/{path.name}" if path is not None else ""


class Supervisor:
    """Runs children until it is told to stop.

    Args:
        children: in the order of starting; each waits until the one before is ready.
        tell: takes short lines for a person. Where it cannot write, the children still run.
        on_ready: called once, when all children are ready for the first time.
        backoff: seconds to wait before each further start in a row; the last one repeats.
        settled: seconds of running after which a child's failures are forgotten.
        grace: seconds between SIGTERM and SIGKILL.
        patience: seconds after which a child that is not ready is told of, and the next started.
    """

    def __init__(
        self,
        children: Sequence[Child],
        *,
        tell: Callable[[str], None],
        on_ready: Callable[[], None] = _do_nothing,
        backoff: Sequence[float] = BACKOFF,
        settled: float = SETTLED_SECONDS,
        grace: float = GRACE_SECONDS,
        patience: float = READY_SECONDS,
    ) -> None:
        if not backoff:
            raise ValueError("backoff needs at least one wait")
        self._slots = [_Slot(child) for child in children]
        self._tell = tell
        self._on_ready = on_ready
        self._backoff = tuple(backoff)
        self._settled = settled
        self._grace = grace
        self._patience = patience
        self._hurry = StopFlag()

    def run(self, stop: StopFlag | None = None) -> int:
        """Block until ``stop`` is set, a signal arrives, or the final child has ended.

        Returns:
            0; no child is left then.
        """
        stop = stop if stop is not None else StopFlag()
        announced = False
        with self._catch_signals(stop):
            try:
                while not stop.is_set() and not self._look_at_children():
                    if not announced and all(s.ready for s in self._slots):
                        announced = True
                        self._on_ready()
                    stop.wait(TICK_SECONDS)
            finally:
                self._stop_all()
        return 0

    def _say(self, text: str) -> None:
        # A terminal that was closed must not end what it was told about.
        with contextlib.suppress(OSError, ValueError):
            self._tell(text)

    @contextlib.contextmanager
    def _catch_signals(self, stop: StopFlag) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # Python lets only the main thread have handlers
            return

        def handle(*_: object) -> None:
            if stop.is_set():
                self._hurry.set()  # asked twice: no more grace
            stop.set()

        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup means to go on
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, handle) for number in numbers}
        # Who started us may ignore it, and then the kernel throws a child's status away.
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _look_at_children(self) -> bool:
        """Look at every child once; true when the final one ended well."""
        for slot in self._slots:
            if slot.process is None:
                if time.monotonic() >= slot.due:
                    self._start(slot)
            elif _has_ended(slot.process):
                if slot.child.final and slot.process.returncode == 0:
                    self._say(f"{slot.child.name} has stopped")
                    slot.process = None
                    return True
                self._plan_restart(slot, f"ended ({_describe_end(slot.process.returncode)})")
            if slot.process is not None and not slot.ready:
                self._ask(slot)
            if not slot.passed and not self._is_overdue(slot):
                break
        _reap_strangers([s.process.pid for s in self._slots if s.process is not None])
        return False

    def _start(self, slot: _Slot) -> None:
        child = slot.child
        slot.started = time.monotonic()
        slot.first = slot.first if slot.first is not None else slot.started
        environment = dict(child.environment) or dict(os.environ)
        program = shutil.which(child.command[0], path=environment.get("PATH", os.defpath))
        if program is None:
            self._plan_restart(slot, f"cannot be started (no program {child.command[0]})")
            return
        own = Path(leash.__file__)
        tied = (sys.executable, "-I", "-S", str(own), str(os.getpid()), program, *child.command[1:])
        try:
            with _open_output(child.log) as output:
                slot.process = subprocess.Popen(
                    tied,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    close_fds=True,
                    start_new_session=True,  # its own group, and no way to the terminal
                )
        except OSError as error:
            self._plan_restart(slot, f"cannot be started ({error.strerror})")

    def _ask(self, slot: _Slot) -> None:
        """Ask a running child whether it is ready, and say so."""
        try:
            slot.ready = slot.child.ready()
        except OSError:
            slot.ready = False
        if slot.ready:
            slot.passed = True
            self._say(f"{slot.child.name} runs")

    def _is_overdue(self, slot: _Slot) -> bool:
        """Whether a child that never was ready has held up the others long enough; told once."""
        if slot.first is None or time.monotonic() - slot.first < self._patience:
            return False
        slot.passed = True
        self._say(f"{slot.child.name} is not ready after {self._patience:g} s{slot.log}")
        return True

    def _plan_restart(self, slot: _Slot, what: str) -> None:
        """Plan the next start of a child that ended or could not start."""
        moment = time.monotonic()
        if slot.process is not None and moment - slot.started >= self._settled:
            slot.failures = 0
        wait = self._backoff[min(slot.failures, len(self._backoff) - 1)]
        slot.failures += 1
        slot.process, slot.ready, slot.due = None, False, moment + wait
        self._say(f"{slot.child.name} {what}, again in {wait:g} s{slot.log}")

    def _stop_all(self) -> None:
        """SIGTERM in reverse order, each when the one after is gone or has had its share of time.

        Each child has the whole grace from its own SIGTERM on.
        """
        deadlines: list[tuple[_Slot, float]] = []
        share = self._grace / max(1, len(self._slots))
        for slot in reversed(self._slots):
            if slot.process is None:
                continue
            _send_signal(slot.process, signal.SIGTERM)
            deadlines.append((slot, time.monotonic() + self._grace))
            turn = time.monotonic() + share
            while not _has_ended(slot.process) and time.monotonic() < turn:
                if self._hurry.wait(TICK_SECONDS / 2):
                    break
        for slot, deadline in deadlines:
            process = slot.process
            if process is None:
                continue
            while not _has_ended(process) and time.monotonic() < deadline:
                if self._hurry.wait(TICK_SECONDS / 2):
                    break
            if not _has_ended(process):
                self._say(f"{slot.child.name} did not stop and was killed{slot.log}")
                _send_signal(process, signal.SIGKILL)
                process.wait()
            slot.process = None


@contextlib.contextmanager
def _open_output(log: Path | None) -> Iterator[int]:
    """A descriptor for a child's output: a log of at most two files, for its owner's eyes."""
    if log is None:
        yield subprocess.DEVNULL
        return
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_name(log.name + ".1"))
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(descriptor, 0o600)  # one that was there may be open to others
        yield descriptor
    finally:
        os.close(descriptor)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a child has ended; then it is reaped, and nothing of its group is left."""
    if process.returncode is not None:
        return True
    if hasattr(os, "waitid"):
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, process.pid, flags) is None:
            return False
        # Not reaped yet: its number, and so its group's, cannot belong to anybody else.
        _send_signal(process, signal.SIGKILL)
        process.wait()
        return True
    return process.poll() is not None


def _send_signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _reap_strangers(ours: Sequence[int]) -> None:
    """As process 1 of a container, orphans of others become ours, and nobody else reaps them."""
    if os.getpid() != 1:
        return
    with contextlib.suppress(ChildProcessError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid in ours:
                return
            os.waitpid(found.si_pid, 0)


def _describe_end(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"

"""Starting, watching and killing one worker."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from penstock_client.work.ends import explain_end
from penstock_client.work.rehearsal import Measured
from penstock_client.work.spec import MEASURED, OUTCOME, READY, REHEARSED, SPEC, TABLE, Spec

_INHERITED = ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "HOME", "LANG", "TMPDIR")


def make_environment(threads: int) -> dict[str, str]:
    """What a process that sees rows is told of its parent's environment."""
    kept = {k: v for k, v in os.environ.items() if k in _INHERITED}
    # The worker imports exactly what the gate imports, installed or editable.
    kept["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    kept["OMP_NUM_THREADS"] = str(threads)
    return kept


class Worker:
    """One job in a process of its own: first without rows, then, once they are charged, with them.

    ``prepare`` and ``run`` block; ``kill`` may be called from another thread at any time, before
    them too.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._channel: socket.socket | None = None
        self._killed = False
        self._memory_gb = math.nan

    def prepare(self, spec: Spec, *, rehearse: bool = True) -> bool:
        """Spawn the process, without a row; whether its rehearsal went well and it waits for them.

        The rehearsal's table is then at :attr:`rehearsed`, and its length is :meth:`measured`.
        """
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True)
        (self._folder / SPEC).write_text(json.dumps(asdict(spec)))
        self._memory_gb = spec.memory_gb
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "penstock_client.work.worker", str(self._folder)]
        with self._lock, theirs:
            self._channel = ours
            if self._killed:
                return False
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), *(["--rehearse"] if rehearse else [])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=make_environment(spec.threads),
                text=True,
                start_new_session=True,
                pass_fds=[theirs.fileno(), *([] if spec.public is None else [spec.public])],
            )
        return any(line.strip() == READY for line in self._lines())

    @property
    def rehearsed(self) -> Path:
        """The table of the rehearsal."""
        return self._folder / REHEARSED

    def measured(self) -> Measured:
        """How long the rehearsal took."""
        return Measured(**json.loads((self._folder / MEASURED).read_text()))

    def run(
        self, rows: int, progress: Callable[[int, int], None], name: str = TABLE
    ) -> Path | None:
        """Hand the sealed rows over, and wait for the end of what was prepared.

        Returns:
            The path of what it made, its table or what is named, or None if it died or failed.
        """
        process, channel = self._process, self._channel
        if process is None or channel is None:
            return None  # killed before there was one
        with contextlib.suppress(OSError):  # it died; its status says so
            socket.send_fds(channel, [b"."], [rows])
        for line in self._lines():
            step, _, of = line.partition(" ")
            if step.isdigit() and of.strip().isdigit():
                progress(int(step), int(of))
        code = process.wait()
        made = self._folder / name
        return made if code == 0 and made.exists() else None

    def _lines(self) -> Iterator[str]:
        process = self._process
        if process is not None and process.stdout is not None:
            # Not the file's own iterator, which reads ahead: who reads on later would miss lines.
            yield from iter(process.stdout.readline, "")

    def pid(self) -> int | None:
        """The worker's process id, while there is one."""
        return self._process.pid if self._process is not None else None

    def kill(self) -> None:
        """End the worker now; its reservation is burnt by whoever waits on ``run``."""
        with self._lock:
            self._killed = True
            if self._process is not None and self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def why(self) -> str:
        """How the worker ended, for the site's steward and its log; never an error's text."""
        try:
            outcome = json.loads((self._folder / OUTCOME).read_text())
        except (OSError, ValueError):
            outcome = None
        status = self._process.poll() if self._process is not None else None
        return explain_end(outcome, status, self._memory_gb, self._killed)

    def clean(self) -> None:
        """End the process, if it still waits, and remove what it left."""
        self.kill()
        if self._process is not None:
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
        if self._channel is not None:
            self._channel.close()
        shutil.rmtree(self._folder, ignore_errors=True)

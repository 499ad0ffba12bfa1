"""Starting, watching and killing one worker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from penstock_client.work.spec import OUTCOME, SPEC, TABLE, Spec

_INHERITED = ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "HOME", "LANG", "TMPDIR")


def environment(threads: int) -> dict[str, str]:
    """What a process that sees rows is told of its parent's environment."""
    kept = {k: v for k, v in os.environ.items() if k in _INHERITED}
    # The worker imports exactly what the gate imports, installed or editable.
    kept["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    kept["OMP_NUM_THREADS"] = str(threads)
    return kept


class Worker:
    """One fit in a process of its own.

    ``run`` blocks; ``kill`` may be called from another thread at any time, before ``run`` too.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._killed = False

    def run(self, spec: Spec, progress: Callable[[int, int], None]) -> Path | None:
        """Run to the end; the table's path, or None if the worker died or failed."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True)
        (self._folder / SPEC).write_text(json.dumps(asdict(spec)))
        with self._lock:
            if self._killed:
                return None
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock_client.work.worker", str(self._folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment(spec.threads),
                text=True,
                start_new_session=True,
            )
            self._process = process
        if process.stdout is not None:
            for line in process.stdout:
                step, _, of = line.partition(" ")
                if step.isdigit() and of.strip().isdigit():
                    progress(int(step), int(of))
            process.stdout.close()
        code = process.wait()
        table = self._folder / TABLE
        return table if code == 0 and table.exists() else None

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
        """The type and place of the worker's error, for the site's own log; never its text."""
        try:
            outcome = json.loads((self._folder / OUTCOME).read_text())
            return f"{outcome['error']} at {outcome['where']}"
        except (OSError, ValueError, KeyError):
            code = self._process.returncode if self._process is not None else None
            return f"exit status {code}"

    def clean(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

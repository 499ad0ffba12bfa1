"""The process that makes one study's results: it reads uploads, writes a folder, and ends.

``python -m penstock_server.results.assembly FOLDER``, started by
:mod:`penstock_server.operate.builder`. It has
neither the store nor a key, and no network: :class:`penstock_server.results.material.Material`
comes on standard input, and is all it knows. On standard output it says, line by line: ``pooled
COUNT`` after each site; then one of ``made``, ``failed WHY`` (would fail again), ``stuck WHY`` (may
pass: a full disk, say) and ``broke WHY``. Whoever started it sees whether it ended without a word.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePath

from penstock.base.errors import PenstockError
from penstock.processes import leash, logs
from penstock.processes.confinement import forbid_dumps, forbid_network
from penstock.processes.crew import ChildDied
from penstock.processes.supervisor import make_plain_environment, python_command

log = logging.getLogger("penstock.coordinator")

MODULE = "penstock_server.results.assembly"
LINE_BYTES = 4000
OUT_OF_MEMORY = "memory ran out"
SETTINGS = {
    # Tables are small: a second thread of linear algebra burns half as much again, for no time.
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    # POT loads every library that it could compute with, and needs numpy here.
    "POT_BACKEND_DISABLE_PYTORCH": "1",
}
"""Of the environment, for libraries that read it where they are loaded."""


class End(StrEnum):
    """How a try ended."""

    MADE = "made"
    FAILED = "failed"
    STUCK = "stuck"
    BROKE = "broke"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a try ended, and why, to follow "because"."""

    end: End
    why: str = ""


class Assembly:
    """A process that makes results, and what it has said.

    Args:
        material: of :meth:`penstock_server.results.material.Material.to_bytes`.
        folder: to write into; it exists, and is empty.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, material: bytes, folder: Path) -> None:
        self.pooled = 0
        self._said = b""
        self._outcome: Outcome | None = None
        command = python_command(MODULE, str(folder))
        # Dies with whoever started it, at once: it has nothing to put in order.
        life = f"{os.getpid()}:{int(signal.SIGKILL)}"
        tie = (sys.executable, "-I", "-S", leash.__file__, life, *command)
        with tempfile.TemporaryFile(dir=folder.parent) as source:  # a file without a name
            source.write(material)
            source.seek(0)
            self._process = subprocess.Popen(
                tie,
                stdin=source,
                stdout=subprocess.PIPE,
                env=make_plain_environment(),
                close_fds=True,
                start_new_session=True,
            )

    def poll(self) -> Outcome | None:
        """How it ended; None while it works. Never waits."""
        ended = self._process.poll() is not None
        self._listen()
        if not ended:
            return None
        return self._outcome or Outcome(End.BROKE, _describe_end(self._process.returncode))

    def _listen(self) -> None:
        """Take what it has said; after its end, all of it."""
        pipe = self._process.stdout
        if pipe is None or pipe.closed:
            return
        os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            while part := os.read(pipe.fileno(), 1 << 16):
                *lines, rest = (self._said + part).split(b"\n")
                self._said = rest[-LINE_BYTES:]
                for line in lines:
                    self._hear_line(line[:LINE_BYTES].decode(errors="replace"))

    def _hear_line(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "pooled" and rest.isdecimal():
            self.pooled = int(rest)
        elif word in list(End):
            self._outcome = Outcome(End(word), rest)

    def kill(self) -> None:
        """End it now, whatever it does."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _describe_end(status: int) -> str:
    if status == -signal.SIGKILL:
        return "its process was killed (SIGKILL), as happens where memory runs out"
    if status < 0:
        return f"its process was ended by signal {-status}"
    return f"its process ended with status {status}: see log/builder.log"


def main(folder: Path) -> Outcome:
    """Make the results of what comes on standard input, into a folder."""
    _step_back()
    forbid_network()
    forbid_dumps()
    try:
        # Not above: whoever starts this needs no statistics. And it may be what memory lacks for.
        from penstock_server.results import production
        from penstock_server.results.material import Material

        material = Material.from_bytes(sys.stdin.buffer.read())
        production.build_results(material, folder, pooled=lambda done: _say(f"pooled {done}"))
        _sync(folder)
    except MemoryError:
        return Outcome(End.BROKE, OUT_OF_MEMORY)
    except ChildDied as error:
        return Outcome(End.BROKE, _describe_end(error.status))
    except OSError as error:
        if error.errno is None:  # not the disk's: something that is forbidden here
            log.exception("no results")
            return Outcome(End.FAILED, f"{type(error).__name__}: see log/builder.log")
        return Outcome(End.STUCK, explain_disk(error))
    except PenstockError as error:
        return Outcome(End.FAILED, _explain_error(error))
    except Exception as error:
        # Uploads are kept; what the error quotes of them is for whoever runs the coordinator.
        log.exception("no results")
        return Outcome(End.FAILED, f"{type(error).__name__}: see log/builder.log")
    return Outcome(End.MADE)


def explain_disk(error: OSError) -> str:
    """What a disk refuses, to follow "because"."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the coordinator's disk is full ({error.strerror}): whoever runs it has to make room"
        )
    return f"the coordinator's disk cannot be used ({error.strerror})"


def _step_back() -> None:
    """Be the process that the kernel ends where memory runs out, and not the port or the pump."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with contextlib.suppress(OSError):
        os.nice(5)


def _explain_error(error: PenstockError) -> str:
    """An error without the paths of this machine: the analyst reads it."""
    if isinstance(error.value, PurePath):
        return f"{error.message}: {error.remedy}" if error.remedy else error.message
    return " ".join(str(error).split())


def _sync(folder: Path) -> None:
    """A study is finished only when its results would outlive a power cut."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.umask(0o077)
    os.environ.update(SETTINGS)
    logs.log_to_stderr()
    found = main(Path(sys.argv[1]))
    _say(f"{found.end} {found.why}".strip())

"""Work that forked processes share: each takes a piece, says in bytes what it came to, and goes on.

A child sees what its parent saw when it forked, and what it reads itself is its own: no table and
no object goes from one process to another. It dies with its parent, at once. What a piece comes to
depends on the piece alone, so that it is the same by however many processes; one that fails in a
child is done again by the parent, where its error has its type and its place in the log.

Forked is where there are no other threads yet: libraries of linear algebra are to be held to one
before they are loaded.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.base.documents import Json
from penstock.processes.leash import PR_SET_PDEATHSIG

Work = Callable[[int], bytes]

FEWEST_PIECES = 8
"""Below which one process does them all: a child loads libraries for two seconds."""

LIGHT_BYTES = 200e6
"""Of memory that a process takes which holds little beside its libraries."""

_PIECE = struct.Struct("<Q")
_ANSWER = struct.Struct("<?Q")
"""Whether it was done, and how many bytes follow."""


class ChildDied(Exception):
    """A child ended before its piece was done.

    Attributes:
        status: as ``subprocess.Popen.returncode`` has it.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"a process of the crew ended: {status}")
        self.status = status


def count_cores() -> int:
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count_processes(pieces: int, memory: float = LIGHT_BYTES, fewest: int = FEWEST_PIECES) -> int:
    """How many processes are worth it: one for each core, if there are pieces enough; fewer where
    memory is short. On Linux alone, where a child can be tied to its parent's life; else 1.

    Args:
        memory: bytes that one takes.
        fewest: pieces below which it is not worth it.
    """
    if pieces < fewest or sys.platform != "linux":
        return 1
    return max(1, min(count_cores(), pieces, int(_spare_memory() / memory)))


def _spare_memory() -> float:
    """Bytes that the machine has left, and the group of processes that this one is in; infinite
    where nobody says."""
    spare = [float("inf")]
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        (left,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        spare.append(1024 * float(left))
    with suppress(OSError, ValueError, IndexError):
        own = Path("/proc/self/cgroup").read_text().split("::", 1)[1].split()[0]
        for place in (group := Path(f"/sys/fs/cgroup{own}"), *group.parents):
            limit = place / "memory.max"
            if limit.exists() and (most := limit.read_text().strip()) != "max":
                spare.append(float(most) - float((place / "memory.current").read_text()))
    return min(spare)


def share_work(count: int, work: Work, processes: int) -> Iterator[tuple[int, bytes]]:
    """Do each piece once; yields its number, from 0, and what it came to, as soon as it is done.

    Args:
        work: of a piece's number.
        processes: 1: this one does them, in order.

    Raises:
        ChildDied: a child was killed, as happens where memory runs out.
        Exception: what a piece raises.
    """
    if processes < 2:
        for piece in range(count):
            yield piece, work(piece)
        return
    children: list[_Child] = []
    try:
        for _ in range(processes):
            children.append(_Child.fork(work, children))
        yield from _hand_out(count, work, children)
    finally:
        for child in children:
            child.kill()


def gather_documents(count: int, work: Callable[[int], Json], processes: int) -> list[Json]:
    """What all pieces come to, in their order, as JSON has it: also where this process does them.

    Arguments and errors as for :func:`share_work`.
    """
    told = dict(share_work(count, lambda piece: json.dumps(work(piece)).encode(), processes))
    return [json.loads(told[piece]) for piece in range(count)]


def _hand_out(count: int, work: Work, children: Sequence[_Child]) -> Iterator[tuple[int, bytes]]:
    left = iter(range(count))
    with selectors.DefaultSelector() as waiting:
        for child, piece in zip(children, left, strict=False):
            child.give(piece)
            waiting.register(child.told, selectors.EVENT_READ, (child, piece))
        while waiting.get_map():
            for key, _ in waiting.select():
                child, piece = key.data
                done, answer = child.hear()
                waiting.unregister(child.told)
                following = next(left, None)
                if following is not None:
                    child.give(following)
                    waiting.register(child.told, selectors.EVENT_READ, (child, following))
                yield piece, answer if done else work(piece)


@dataclass(frozen=True, slots=True)
class _Child:
    """A forked process, and this end of the pipes to it."""

    pid: int
    asked: int
    told: int

    @classmethod
    def fork(cls, work: Work, others: Sequence[_Child]) -> _Child:
        """Args: others: whose pipes the new one is not to hold open."""
        parent = os.getpid()
        pieces, asked = os.pipe()
        told, answers = os.pipe()
        pid = os.fork()
        if pid:
            os.close(pieces)
            os.close(answers)
            return cls(pid, asked, told)
        status = 1
        try:
            _die_with(parent)
            for descriptor in (asked, told, *(end for c in others for end in (c.asked, c.told))):
                os.close(descriptor)
            _serve(work, pieces, answers)
            status = 0
        finally:
            os._exit(status)  # nothing that the parent has begun is this one's to end

    def give(self, piece: int) -> None:
        with suppress(BrokenPipeError):  # it died; whoever hears it is told
            os.write(self.asked, _PIECE.pack(piece))

    def hear(self) -> tuple[bool, bytes]:
        """Raises: ChildDied."""
        head = _read(self.told, _ANSWER.size)
        if head is not None:
            done, size = _ANSWER.unpack(head)
            answer = _read(self.told, size)
            if answer is not None:
                return done, answer
        # Its number stays its own until it is waited for below.
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        status = 0 if ended is None else ended.si_status
        exited = ended is not None and ended.si_code == os.CLD_EXITED
        raise ChildDied(status if exited else -status)

    def kill(self) -> None:
        """End it now, whatever it does; it has nothing to put in order."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        for end in (self.asked, self.told):
            os.close(end)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before this one asked
        os._exit(1)


def _serve(work: Work, pieces: int, answers: int) -> None:
    """In a child: piece by piece, until there are no more."""
    while (asked := _read(pieces, _PIECE.size)) is not None:
        (piece,) = _PIECE.unpack(asked)
        try:
            done, answer = True, work(piece)
        except Exception:  # the parent does it again, and is who raises
            done, answer = False, b""
        _write(answers, _ANSWER.pack(done, len(answer)) + answer)


def _read(descriptor: int, size: int) -> bytes | None:
    """So many bytes; None where the other end is closed."""
    found = bytearray()
    while len(found) < size:
        part = os.read(descriptor, size - len(found))
        if not part:
            return None
        found += part
    return bytes(found)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]

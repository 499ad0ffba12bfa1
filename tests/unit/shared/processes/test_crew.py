"""Work that forked processes share: done once, whatever ends on the way, and nobody is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from penstock.base.documents import Json
from penstock.processes import crew
from penstock.processes.crew import (
    ChildDied,
    count_processes,
    gather_documents,
    share_work,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="crews are Linux'")


def list_children() -> set[psutil.Process]:
    return set(psutil.Process().children())


@pytest.fixture
def before() -> set[psutil.Process]:
    """What other tests of this process have left running: a tracker of shared memory, say."""
    return list_children()


def until(done: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not done():
        assert time.monotonic() < limit, "it takes too long"
        time.sleep(0.02)


@pytest.mark.parametrize("processes", [1, 2, 3, 30])
def test_each_piece_is_done_once_whoever_does_it(processes: int) -> None:
    """Answers larger than a pipe holds, and empty ones."""
    found = list(share_work(20, lambda piece: bytes([piece]) * (piece * 20_000), processes))
    assert sorted(found) == [(i, bytes([i]) * (i * 20_000)) for i in range(20)]
    assert list(share_work(0, bytes, processes)) == []


@pytest.mark.parametrize("processes", [1, 3])
def test_documents_are_in_the_order_of_their_pieces(processes: int) -> None:
    def work(piece: int) -> Json:
        time.sleep(0.02 if piece % 3 == 0 else 0)  # so that others are done before
        return {"piece": piece, "third": piece / 3, "pair": (piece, None)}

    found = gather_documents(8, work, processes)
    assert found == [{"piece": i, "third": i / 3, "pair": [i, None]} for i in range(8)]
    assert gather_documents(0, work, processes) == []


def test_the_work_is_done_elsewhere(before: set[psutil.Process]) -> None:
    who = {int(answer) for _, answer in share_work(20, lambda _: str(os.getpid()).encode(), 2)}
    assert 1 <= len(who) <= 2
    assert os.getpid() not in who
    assert list_children() == before


def test_an_error_of_a_child_is_raised_as_it_is(before: set[psutil.Process]) -> None:
    def work(piece: int) -> bytes:
        if piece == 5:
            raise KeyError("of this piece")
        return b"done"

    with pytest.raises(KeyError, match="of this piece"):
        list(share_work(20, work, 2))
    assert list_children() == before


def test_what_fails_in_a_child_alone_is_done_by_the_parent() -> None:
    own = os.getpid()

    def work(piece: int) -> bytes:
        if piece == 5 and os.getpid() != own:
            raise MemoryError
        return b"done"

    assert len(list(share_work(20, work, 2))) == 20


@pytest.mark.parametrize("whose", ["its own", "a mate's"])
def test_a_child_that_is_killed_ends_the_work(whose: str, before: set[psutil.Process]) -> None:
    def work(piece: int) -> bytes:
        if piece == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        if whose == "a mate's":
            time.sleep(0.01)
        return b"done"

    with pytest.raises(ChildDied) as died:
        list(share_work(20, work, 3))
    assert died.value.status == -signal.SIGKILL
    assert list_children() == before


def test_whoever_stops_listening_leaves_nobody_behind(before: set[psutil.Process]) -> None:
    work = share_work(20, lambda _: b"done", 2)
    next(work)
    assert len(list_children() - before) == 2
    work.close()
    assert list_children() == before


def test_children_die_with_their_parent(tmp_path: Path) -> None:
    code = """
import os, sys, time
from pathlib import Path
from penstock.processes.crew import share_work
def work(piece):
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(600)
list(share_work(2, work, 2))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment) as parent:
        until(lambda: len(list(tmp_path.iterdir())) == 2)
        parent.kill()
    children = [int(path.name) for path in tmp_path.iterdir()]
    until(lambda: not any(map(psutil.pid_exists, children)))


def test_there_are_no_more_processes_than_cores_pieces_and_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "count_cores", lambda: 16)
    monkeypatch.setattr(crew, "_spare_memory", lambda: 10e9)
    assert count_processes(1000, 1.0) == 16
    assert count_processes(10, 1.0) == 10
    assert count_processes(1000, 3e9) == 3
    assert count_processes(1000, 30e9) == 1
    assert count_processes(crew.FEWEST_PIECES - 1, 1.0) == 1


def test_memory_that_is_left_is_what_the_machine_says() -> None:
    assert 0 < crew._spare_memory() <= psutil.virtual_memory().total

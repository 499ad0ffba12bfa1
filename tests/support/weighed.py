"""A real worker on simulated rows, weighed: how much memory it held at most, and for how long.

Linux only: the peak is the kernel's own count (``VmHWM``), looked at until the process ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from penstock.mechanisms import MECHANISMS as ALL
from penstock.mechanisms import (
    Gibbs,
    Maf,
    Scoring,
    Settings,
    SlicedWasserstein,
    Structured,
    Trajectory,
)
from penstock.mechanisms.memory import Memory
from penstock.mechanisms.plans import plan
from penstock.privacy.events import to_dict
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.study.study import Study
from penstock_client.attack import inference as attack
from penstock_client.work.launcher import Worker
from penstock_client.work.rehearsal import synthetic_rows
from penstock_client.work.spec import Spec

MB = 1e6
LINUX = Path("/proc/self/status").exists()

MECHANISMS: dict[str, Callable[[], Settings]] = {
    "maf": Maf,
    "sliced-wasserstein": SlicedWasserstein,
    "structured": Structured,
    "trajectory": lambda: Trajectory("visit"),
    "gibbs": Gibbs,
    "scoring": Scoring,
}
"""Each as its defaults have it."""


@dataclass(frozen=True, slots=True)
class Weight:
    """In MB: what the process held when it was ready for rows, and at most; and seconds."""

    ready: float
    peak: float
    seconds: float
    whole: bool


def schema(columns: int, *, visits: bool = False, levels: int = 0) -> Schema:
    """So many columns: a duration, its event, numbers of all kinds, and a few levels.

    Args:
        visits: three rows per person, and a time column.
        levels: of a categorical column more.
    """
    found = [Column("t", "duration", upper=10, decimals=2, event="e"), Column("e", "event")]
    if visits:
        found = [Column("visit", "integer", lower=0, upper=4)]
    if levels:
        names = tuple(f"l{i}" for i in range(levels))
        found.append(Column("group", "categorical", levels=names))
    while len(found) < columns:
        i = len(found)
        found.append(
            Column(f"b{i}", "binary")
            if i % 5 == 4
            else Column(f"x{i}", "continuous", lower=-4, upper=4)
        )
    return Schema(
        tuple(found),
        person="patient" if visits else None,
        max_rows_per_person=3 if visits else 1,
    )


def asked(mechanism: Settings, of: Schema, **changed: object) -> Study:
    """A study of this schema at one site, ε = 1."""
    terms = [n for n in of.names if n.startswith(("x", "b"))]
    question = Estimand("hr", "cox", "t", terms[0], adjust=tuple(terms[1:]))
    values: dict[str, object] = {
        "name": "weighed",
        "title": "How much memory",
        "federation": "net",
        "sites": ("a",),
        "schema": of,
        "estimands": (question,) if isinstance(mechanism, Gibbs | Scoring) else (),
        "privacy": PrivacyRequest(1.0, 1e-6),
        "mechanism": mechanism,
        "quorum": 1,
        "deadline_hours": 1.0,
        "not_before": "2026-11-01T00:00:00Z",
        "expires": "2026-12-01T00:00:00Z",
    }
    return Study(**(values | changed))  # type: ignore[arg-type]


def foreseen(study: Study, persons: int, threads: int = 1) -> Memory:
    """What its memory is planned to be."""
    planned = plan(study.mechanism, study.schema, persons, study.privacy, study.estimands)
    return ALL.of(study.mechanism).memory(planned, study.schema, threads=threads)


def foreseen_of_attack(study: Study, persons: int, threads: int = 1) -> Memory:
    """What the memory of an attack on its release is planned to be."""
    planned = plan(study.mechanism, study.schema, persons, study.privacy, study.estimands)
    return ALL.of(study.mechanism).attack_memory(planned, study.schema, threads=threads)


def weigh(
    study: Study, persons: int, *, threads: int = 1, memory_gb: float = 64.0, rehearse: bool = False
) -> Weight:
    """Run a study's worker to its end.

    Raises:
        RuntimeError: it failed.
    """
    spec = _spec(study, persons, threads, memory_gb)
    with tempfile.TemporaryDirectory() as folder, _rows(study, persons) as descriptor:
        worker = Worker(Path(folder) / "job")
        try:
            if not worker.prepare(spec, rehearse=rehearse):
                raise RuntimeError(f"the worker did not come so far: {worker.why()}")
            pid = worker.pid()
            ready = resident(pid, "VmHWM")
            with _watched(pid) as seen:
                began = time.perf_counter()
                table = worker.run(descriptor, lambda _step, _of: None)
                seconds = time.perf_counter() - began
            if table is None:
                raise RuntimeError(f"the worker failed: {worker.why()}")
            return Weight(ready, max(seen), seconds, True)
        finally:
            worker.clean()


def weigh_attack(
    study: Study, persons: int, *, swept: bool = False, memory_gb: float = 64.0
) -> float:
    """Peak MB of the process that attacks a study once, for a steward's eyes.

    Raises:
        JobFailed: it failed.
    """
    spec, peak, over = _spec(study, persons, 1, memory_gb), [0.0], threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    if "penstock_client.attack.attacker" in child.cmdline():
                        peak.append(resident(child.pid, "VmHWM"))

    thread = threading.Thread(target=look)
    with _rows(study, persons) as descriptor:
        thread.start()
        try:
            attack.run(spec, descriptor, 1, lambda _step, _of: None, swept=swept)
        finally:
            over.set()
            thread.join()
    return max(p for p in peak if not math.isnan(p))


def _spec(study: Study, persons: int, threads: int, memory_gb: float) -> Spec:
    planned = plan(study.mechanism, study.schema, persons, study.privacy, study.estimands)
    return Spec(
        study=study.to_dict(),
        dictionary=study.schema.to_dict(),
        events=[to_dict(e) for e in planned.events],
        public=None,
        persons=persons,
        device="cpu",
        threads=threads,
        memory_gb=memory_gb,
        insecure_seed=None,
    )


def resident(pid: int | str | None, field: str) -> float:
    """MB of a process; NaN once it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024 / MB
    except OSError:
        pass
    return math.nan


@contextmanager
def _rows(study: Study, persons: int):  # type: ignore[no-untyped-def]
    """A descriptor of simulated rows."""
    data = synthetic_rows(study.schema, persons, study.schema.max_rows_per_person)
    descriptor = os.memfd_create("rows")
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _watched(pid: int | None, every: float = 0.01):  # type: ignore[no-untyped-def]
    """The peaks of a process, looked at until it ends."""
    seen, done = [0.0], threading.Event()

    def look() -> None:
        while not done.is_set():
            now = resident(pid, "VmHWM")
            if not math.isnan(now):
                seen.append(now)
            done.wait(every)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()

"""A gate in this process whose clock is ours, and whose worker takes as long as we say."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.carried_out import shape_of

from penstock.base.errors import Refused
from penstock.mechanisms import MECHANISMS
from penstock.mechanisms.parts import Part
from penstock.study.study import Study
from penstock.wire.messages import choose_version
from penstock.wire.release_file import write_release
from penstock.wire.signed import SignedStudy, sign_cancel
from penstock_client.gate.gate import Gate
from penstock_client.gate.running import Runner
from penstock_client.gate.stores import Stores
from penstock_client.rows.sealed import map_rows
from penstock_client.site.site_settings import read_settings
from penstock_client.work import rehearsal
from penstock_client.work.spec import Spec

TICK = 1.0
SLOT = 10.0
PLANNED = 20.0
"""Of :data:`tests.conftest.FAST`, by what :class:`Slow` says of its rehearsal."""


AWAY = "away"


class Killed(BaseException):
    """The gate's process ended here."""


class Clock:
    """Time that passes only when it is told to, in ticks; somebody may watch each of them."""

    def __init__(self) -> None:
        # Later than any time at which a test certifies its rows by the real clock.
        self.at = datetime(2090, 1, 1, tzinfo=UTC)
        self.watch: Callable[[], None] = lambda: None

    def __call__(self) -> str:
        return self.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def pass_by(self, seconds: float) -> None:
        while seconds > 1e-9:
            self.at += timedelta(seconds=min(TICK, seconds))
            seconds -= TICK
            self.watch()


def table_of(study: Study, persons: int, path: Path) -> None:
    """A release of the promised shape, and of nothing."""
    shape = shape_of(study, persons)
    parts = (
        Part(p.name, {c.name: np.full(p.rows, c.lower or 0.0) for c in p.schema.columns})
        for p in shape.parts
    )
    write_release(path, shape, parts, choose_version(study.wire))


class Slow:
    """In a worker's place: a run of so many seconds, and an end.

    Attributes:
        rows: what the last one found behind its descriptor at the end of its run.
    """

    rows = b""

    def __init__(self, folder: Path, clock: Clock, takes: float, end: str) -> None:
        self.folder, self.clock, self.takes, self.end = folder, clock, takes, end
        self.rehearsed, self.killed = folder / "rehearsed.arrow", False
        self.spec: Spec | None = None

    def prepare(self, spec: Spec, *, rehearse: bool = True) -> bool:
        self.spec = spec
        self.folder.mkdir(parents=True, exist_ok=True)
        if rehearse:
            study = Study.from_dict(spec.study)
            study = rehearsal.shortened(study, MECHANISMS.of(study.mechanism))
            table_of(study, spec.persons, self.rehearsed)
        return True

    def measured(self) -> rehearsal.Measured:
        return rehearsal.Measured(first=6.0, copy=1.0, refit=2.0)

    def run(self, rows: int, progress: Callable[[int, int], None]) -> Path | None:
        assert self.spec is not None
        left = self.takes
        while left > 0:
            self.clock.pass_by(TICK)
            left -= TICK
            progress(int(self.takes - left), int(self.takes))
            if self.killed:
                return None
        if self.end == "gate killed":
            raise Killed
        Slow.rows = bytes(map_rows(rows))
        table = self.folder / "table.arrow"
        table_of(Study.from_dict(self.spec.study), self.spec.persons, table)
        return table if self.end == "delivered" else None

    def kill(self) -> None:
        self.killed = True

    def why(self) -> str:
        return "a test"

    def clean(self) -> None:
        pass


class Timed:
    """A gate and everything that shows of it outside, tick by tick.

    Args:
        runs: how long each job takes, and how it ends, in order.
        cancel: the tick at which the first study is cancelled.
    """

    def __init__(
        self,
        site: Any,
        analyst: Any,
        runs: list[tuple[float, str]],
        *,
        cancel: int | None = None,
    ) -> None:
        self.site, self.analyst, self.runs, self.cancel = site, analyst, list(runs), cancel
        self.clock, self.jobs = Clock(), []
        self.signed: list[SignedStudy] = []
        self.seen: list[Any] = []
        self.ticks = 0
        self.open()

    def open(self) -> None:
        """Start the gate, or start it again."""
        paths = self.site.paths
        stores = Stores(paths, read_settings(paths), self.clock)
        work: Any = self._work
        self.gate = Gate(stores, Runner(stores, work=work, pause=self.clock.pass_by))
        self.gate.runner.settlement.recover()
        self.clock.watch = self._look

    def _work(self, folder: Path) -> Slow:
        takes, end = self.runs.pop(0)
        return Slow(folder, self.clock, takes, end)

    def submit(self, *studies: SignedStudy) -> None:
        for signed in studies:
            self.signed.append(signed)
            self.jobs.append(self.gate.submit(signed.to_bytes()).request_id)

    def _look(self) -> None:
        """All that a network side can ask, now."""
        self.ticks += 1
        told = self.gate.describe()
        view = []
        for request in self.jobs:
            seen = self.gate.poll(request)
            view.append((str(seen.state), seen.code, seen.step, seen.steps))
            try:
                view.append(len(self.gate.collect(request)[0]) > 0)
            except Refused as refusal:
                view.append(refusal.reason)
        self.seen.append((self.ticks, told["ledger_seq"], *view))
        if self.ticks == self.cancel:
            self.gate.cancel(sign_cancel(self.signed[0].study_id, self.analyst).to_bytes())
            self._end_threads()

    def _away(self) -> None:
        self.ticks += 1
        self.seen.append((self.ticks, AWAY))

    def _end_threads(self) -> None:
        """What a cancellation does elsewhere is done before the clock goes on."""
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and "end_cancelled" in thread.name:
                thread.join(10)

    def run(self, ticks: int) -> list[Any]:
        """Let the gate work, and start it again where it is killed; what showed at each tick."""
        while self.ticks < ticks:
            try:
                wait = self.gate.runner.turn()
            except Killed:
                self.gate.stores.database.close()
                self.clock.watch = self._away
                self.clock.pass_by(3 * TICK)  # until somebody starts it again
                self.open()
                continue
            if wait:
                self.clock.pass_by(min(wait, TICK))
        return self.seen[:ticks]

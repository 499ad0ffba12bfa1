"""The coordinator's builder: has the results made of every study that has all its answers.

``python -m penstock_server.operate.builder COORDINATOR_DIRECTORY``

One study after the other, each in a process of its own (:mod:`penstock_server.results.assembly`),
while the pump and the api go on. It holds the study's lease (:mod:`penstock_server.store.leases`),
tells the store how far the process is, and ends the study with what came of it. Killed anywhere,
the next one begins that study anew; two at once do not disturb each other.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from penstock.base.errors import CoordinatorError, PenstockError
from penstock.base.files import sync_directory
from penstock.processes import logs
from penstock.processes.confinement import forbid_dumps
from penstock.processes.stop_flag import StopFlag
from penstock_server.install.founding import open_coordinator
from penstock_server.results.assembly import Assembly, End, Outcome, explain_disk
from penstock_server.results.material import gather
from penstock_server.store.leases import Lease
from penstock_server.studies.coordinator import Coordinator

log = logging.getLogger("penstock.coordinator")

TICK_SECONDS = 0.25
RENEW_SECONDS = 3.0
STUCK_SECONDS = 30.0
STILL_SECONDS = 3600.0
"""No site takes so long to be pooled."""
MAKING, MADE = ".pooling-", "made"


class Making(Protocol):
    """Something that makes results, elsewhere."""

    pooled: int

    def poll(self) -> Outcome | None:
        """How it ended; None while it works. Never waits."""

    def kill(self) -> None:
        """End it now."""


Launch = Callable[[bytes, Path], Making]


@dataclass
class _Try:
    """A study whose lease is ours: what makes its results, or how that ended."""

    lease: Lease
    name: str
    folder: Path
    making: Making | None = None
    pooled: int = 0
    moved: float = 0.0  # when a site was pooled last
    renewed: float = 0.0
    ending: Callable[[], None] | None = None


class Builder:
    """Makes results, a step at a time.

    Args:
        launch: starts what makes them.
        clock: seconds, monotonic.
        renew: seconds between two renewals of the lease.
        stuck: seconds after which a full disk is tried again.
        still: seconds without another site after which a try is broken off.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        launch: Launch = Assembly,
        clock: Callable[[], float] = time.monotonic,
        renew: float = RENEW_SECONDS,
        stuck: float = STUCK_SECONDS,
        still: float = STILL_SECONDS,
    ) -> None:
        self._coordinator, self._leases = coordinator, coordinator.leases
        self._launch, self._clock = launch, clock
        self._renew, self._stuck_for, self._still = renew, stuck, still
        self._try: _Try | None = None
        self._trouble = ""  # of the store, that was logged

    def turn(self) -> bool:
        """Look at what is being made, or begin another study; whether there is something to do."""
        try:
            if self._try is None:
                lease = self._leases.claim()
                if lease is not None:
                    self._begin(lease)
            else:
                self._watch(self._try)
        except CoordinatorError as error:
            # The store's own trouble, a full disk say: nothing is lost, and it is tried again.
            if str(error) != self._trouble:
                log.error("%s", error)
            self._trouble = str(error)
        else:
            self._trouble = ""
        return self._try is not None

    def close(self) -> None:
        """Stop, and let another go on at once: to be stopped is no crash."""
        found = self._try
        if found is None:
            return
        if found.ending is None:
            self._settle(found, partial(self._leases.give_back, found.lease))
        try:
            self._watch(found)
        except CoordinatorError as error:
            log.error("%s", error)  # the lease runs out by itself
        self._drop(found)

    # -- beginning -----------------------------------------------------------------------------

    def _begin(self, lease: Lease) -> None:
        row = self._coordinator.store.studies.find(lease.study_id)
        name = row.name if row is not None else lease.study_id[:12]
        root = self._coordinator.folder.studies
        found = self._try = _Try(lease, name, root / f"{MAKING}{lease.holder}")
        found.moved = found.renewed = self._clock()
        log.info("study %s is pooled", name)
        try:
            root.mkdir(mode=0o700, exist_ok=True)
            self._sweep(root, found.folder)
            (found.folder / MADE).mkdir(mode=0o700, parents=True)
            found.making = self._launch(self._gather_material(lease), found.folder / MADE)
        except OSError as error:
            self._postpone(found, explain_disk(error))
        except CoordinatorError:
            raise  # the store's own trouble, which may pass
        except PenstockError as error:
            # A stored study that cannot be read any more: no later try would find another one.
            self._settle_outcome(found, Outcome(End.FAILED, " ".join(str(error).split())))

    def _gather_material(self, lease: Lease) -> bytes:
        row = self._coordinator.store.studies.find(lease.study_id)
        if row is None:
            raise CoordinatorError("no such study", value=lease.study_id)
        return gather(self._coordinator, row, lease.since).to_bytes()

    def _sweep(self, root: Path, mine: Path) -> None:
        """Remove what tries that were killed have left behind."""
        held = self._leases.holders()
        for folder in root.glob(f"{MAKING}*"):
            if folder != mine and folder.name.removeprefix(MAKING) not in held:
                shutil.rmtree(folder, ignore_errors=True)

    # -- watching ------------------------------------------------------------------------------

    def _watch(self, found: _Try) -> None:
        if found.ending is None:
            self._check_making(found)
        if found.ending is not None:
            try:
                found.ending()  # again at the next turn, if the store cannot take it now
            except OSError as error:
                self._postpone(found, explain_disk(error))
                return
            self._drop(found)

    def _check_making(self, found: _Try) -> None:
        if found.making is None:  # the store failed while it was to begin
            self._settle(found, partial(self._leases.give_back, found.lease))
            return
        outcome, moment = found.making.poll(), self._clock()
        if outcome is not None:
            self._settle_outcome(found, outcome)
            return
        moved = found.making.pooled != found.pooled
        if moved:
            found.pooled, found.moved = found.making.pooled, moment
        elif moment - found.moved >= self._still:
            why = f"no site was pooled within {self._still:g} s"
            self._settle_outcome(found, Outcome(End.BROKE, why))
            return
        if moved or moment - found.renewed >= self._renew:
            if not self._leases.renew(found.lease, found.pooled):
                log.info("study %s was cancelled, or is pooled by another process", found.name)
                self._settle(found, lambda: None)
            found.renewed = moment

    def _settle_outcome(self, found: _Try, outcome: Outcome) -> None:
        lease, why = found.lease, outcome.why
        if outcome.end is End.MADE:
            self._settle(found, partial(self._finish, found))
        elif outcome.end is End.FAILED:
            log.error("no results of study %s: %s", found.name, why)
            self._settle(found, partial(self._leases.fail, lease, why))
        elif outcome.end is End.STUCK:
            self._postpone(found, why)
        else:
            log.error("study %s: try %d broke off: %s", found.name, lease.crashes + 1, why)
            self._settle(found, partial(self._leases.crash, lease, why))

    def _postpone(self, found: _Try, why: str) -> None:
        log.error("study %s: %s", found.name, why)
        later = partial(self._leases.give_back, found.lease, trouble=why, wait=self._stuck_for)
        self._settle(found, later)

    def _settle(self, found: _Try, ending: Callable[[], None]) -> None:
        """Nothing more is made; what became of it is for the store, as soon as that takes it."""
        if found.making is not None:
            found.making.kill()
        found.ending = ending

    def _finish(self, found: _Try) -> None:
        made, place = found.folder / MADE, self._coordinator.folder.results(found.lease.study_id)
        if not (made.exists() or place.exists()):
            self._leases.crash(found.lease, "somebody has removed what it made")
        elif self._leases.finish(found.lease, partial(_move, made, place)):
            log.info("study %s has its results", found.name)
        else:
            log.info("study %s was ended by another process", found.name)

    def _drop(self, found: _Try) -> None:
        shutil.rmtree(found.folder, ignore_errors=True)
        self._try = None


def _move(made: Path, place: Path) -> None:
    """Put a folder in its place, whole or not at all; done before, it changes nothing."""
    if not made.exists():
        return
    # Of a try whose transaction failed after this: no study that has not ended has results.
    shutil.rmtree(place, ignore_errors=True)
    os.rename(made, place)
    sync_directory(place.parent)


def main(root: Path) -> None:
    """Make results until SIGTERM."""
    os.umask(0o077)
    logs.log_to_stderr()
    forbid_dumps()
    stopping = StopFlag()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    builder = Builder(open_coordinator(root))
    log.info("the builder runs")
    while not stopping.is_set():
        builder.turn()
        stopping.wait(TICK_SECONDS)
    builder.close()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except CoordinatorError as error:
        log.error("%s", error)
        sys.exit(error.exit_code)

"""A ledger whose process is killed at random moments, over and over.

`python -m tests.support.kills`

A single-threaded program of its own, so that it may fork: every child does what a gate does with
its ledger (settle what was open, then reserve, "read rows", commit or burn, again and again), and
is ended by SIGKILL after a random number of microseconds in a random stage. What was truly spent is
kept in a file of its own, written and synced after each reservation and before its commit: the
moment at which rows would be read.

Prints what it saw as one line of JSON; any broken promise ends it with an exception.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import random
import signal
import sys
import time
from pathlib import Path

from tests.support.ledgers import DIGESTS, ROWS

from penstock.base.errors import BudgetExceeded
from penstock.base.times import stamp_now
from penstock.privacy.accounting.renyi import renyi_total
from penstock.privacy.events import Gaussian
from penstock.privacy.filters import best_order
from penstock.wire.messages import JobState
from penstock.wire.signatures import generate_key, public_hex
from penstock_client.gate.jobs import Job, Jobs
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database, hold_exclusively
from penstock_client.ledger.state import Charge

TOTAL, DELTA = 3.0, 1e-5
SIGMAS = (9.0, 14.0, 30.0)  # a data set holds about twenty of these, then another one begins
START, QUEUE, RESERVE, READ, SETTLE = range(5)


class Shore:
    """What is looked at from outside: the ledger's file, the truth, and where a child is."""

    def __init__(self, folder: Path, *, careless: bool = False) -> None:
        self.careless = careless
        self.folder, self.path, self.truth = folder, folder / "gate.db", folder / "truth"
        self.key = generate_key()
        self.stage = mmap.mmap(-1, 1)
        self.seen: list[str] = []
        self.truth.touch()
        renyi_total([Gaussian(s) for s in SIGMAS], best_order(TOTAL, DELTA))  # once, not per child
        database = Database.create(self.path)
        Ledger(database, self.key).open_for("here")
        database.close()

    # -- the child -----------------------------------------------------------------------------

    def child(self, seed: int) -> None:
        """What a gate does, for ever."""
        rng = random.Random(seed)
        with hold_exclusively(self.folder / "lock"):
            database = Database(self.path)
            ledger, jobs = Ledger(database, self.key), Jobs(database)
            ledger.verify(public_hex(self.key))
            for job in jobs.in_state(JobState.RUNNING):
                self._settle(ledger, jobs, job.request_id, False)
            while True:
                queued = jobs.in_state(JobState.QUEUED)
                self._run(ledger, jobs, queued[0] if queued else self._queue(ledger, jobs), rng)

    def _queue(self, ledger: Ledger, jobs: Jobs) -> Job:
        self.stage[0] = QUEUE
        lineage = list(ledger.state().lineages)[-1:]
        name = lineage[0] if lineage else self._begin(ledger)
        now = stamp_now()
        job = Job(
            f"r{len(jobs.all())}",
            "s",
            b"",
            name,
            1,
            JobState.QUEUED,
            "",
            submitted=now,
            updated=now,
        )
        jobs.add(job)
        return job

    def _begin(self, ledger: Ledger) -> str:
        name = f"rows-{len(ledger.state().lineages)}"
        with ledger.database.transaction():
            ledger.add_lineage(name, TOTAL, DELTA, unit=ROWS, disjoint=True)
            ledger.add_version(name, 100, "f")
        return name

    def _run(self, ledger: Ledger, jobs: Jobs, job: Job, rng: random.Random) -> None:
        self.stage[0] = RESERVE
        events = (Gaussian(rng.choice(SIGMAS), rng.randint(1, 3)), Gaussian(SIGMAS[1]))
        charge = Charge(job.request_id, job.lineage, 1, "s", "ada", "maf", events, DELTA, **DIGESTS)
        if self.careless:
            self._read(job, events)
        try:
            with ledger.database.transaction():
                ledger.reserve(charge, signer_epsilon=TOTAL)
                jobs.move(job.request_id, JobState.RUNNING, stamp_now())
        except BudgetExceeded:
            jobs.move(job.request_id, JobState.FAILED, stamp_now(), "budget")
            self._begin(ledger)
            return
        self.stage[0] = READ
        if not self.careless:
            self._read(job, events)
        self._settle(ledger, jobs, job.request_id, rng.random() < 0.7)

    def _read(self, job: Job, events: tuple[Gaussian, ...]) -> None:
        told = [job.request_id, job.lineage, [[e.noise_multiplier, e.count] for e in events]]
        descriptor = os.open(self.truth, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, json.dumps(told).encode() + b"\n")
        os.fsync(descriptor)
        os.close(descriptor)

    def _settle(self, ledger: Ledger, jobs: Jobs, request: str, kept: bool) -> None:
        self.stage[0] = SETTLE
        with ledger.database.transaction():
            if kept:
                ledger.commit(request)
            else:
                ledger.burn(request, "interrupted")
            jobs.move(request, JobState.DELIVERED if kept else JobState.FAILED, stamp_now())

    # -- outside -------------------------------------------------------------------------------

    def kill(self, rng: random.Random) -> tuple[int, bool]:
        """Start a child and kill it somewhere; its stage, and whether a journal was left hot."""
        self.stage[0] = START
        child = os.fork()
        if child == 0:
            try:
                self.child(rng.getrandbits(32))
            finally:
                os._exit(1)
        if (target := rng.choice((None, START, QUEUE, RESERVE, RESERVE, READ, SETTLE))) is None:
            time.sleep(rng.uniform(0.0, 0.04))
        else:
            end = time.monotonic() + 5.0
            while self.stage[0] != target and time.monotonic() < end:
                pass
            time.sleep(rng.uniform(0.0, 0.002))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            raise ChildProcessError("a child ended by itself")
        journal = self.path.with_name("gate.db-journal")
        return self.stage[0], journal.exists() and journal.stat().st_size > 0

    def check(self) -> tuple[int, int]:
        """Every promise; returns the number of charges and of data sets.

        Raises:
            RuntimeError: naming the promise that was broken.
        """
        database = Database(self.path)
        try:
            ledger = Ledger(database, self.key)
            state = ledger.verify(public_hex(self.key))
            hashes = [hash_ for _, _, hash_, _ in ledger.records()]
            running = {j.request_id for j in Jobs(database).in_state(JobState.RUNNING)}
        finally:
            database.close()
        _require(hashes[: len(self.seen)] == self.seen, "records were lost")
        self.seen = hashes
        reserved = {c.id for c in state.charges.values() if c.status == "reserved"}
        _require(reserved == running, "jobs and charges do not agree")
        lines = self.truth.read_text().splitlines()
        # A line that a kill cut short told nobody anything.
        told = [json.loads(line) for line in lines if line.endswith("]")]
        ids = [request for request, _, _ in told]
        _require(len(set(ids)) == len(ids), "rows were read twice under one id")
        for request, lineage, events in told:
            _require(request in state.charges, "rows were read without a charge")
            charge = state.charges[request]
            same = [[e.noise_multiplier, e.count] for e in charge.events] == events
            _require(same and charge.lineage == lineage, "another charge than what was run")
        for lineage in state.lineages.values():
            order, limit = lineage.order, lineage.filter.rho_max
            # By hand: ρ_α of a Gaussian is count·α / (2σ²).
            true = math.fsum(
                n * order / (2 * s * s)
                for _, where, e in told
                for s, n in e
                if where == lineage.name
            )
            spent = renyi_total(lineage.events(), order)
            _require(true <= spent * (1 + 1e-12), "spent is below what was truly spent")
            _require(spent <= limit, "a filter was exceeded")
        return len(state.charges), len(state.lineages)


def _require(held: bool, what: str) -> None:
    if not held:
        raise RuntimeError(what)


def main(folder: str, seed: str, kills: str, mode: str = "") -> None:
    """Args: mode: "careless" for the planted twin that reads rows before it reserves."""
    rng = random.Random(int(seed))
    shore = Shore(Path(folder), careless=mode == "careless")
    stages, hot = [0] * 5, 0
    for _ in range(int(kills)):
        stage, left = shore.kill(rng)
        stages[stage] += 1
        hot += left
        # Else the next child finds what the kill left. The careless twin is looked at every time:
        # after one more child its row would have been read twice, which is another broken promise.
        if shore.careless or rng.random() < 0.5:
            shore.check()
    charges, lineages = shore.check()
    print(json.dumps({"stages": stages, "hot": hot, "charges": charges, "lineages": lineages}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])

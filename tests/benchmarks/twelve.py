"""Twelve sites on one machine, each mechanism, one study after the other, over real daemons.

As `penstock demo` does for four: for each site the daemon that a hospital runs, with keys, ledger
and certified rows of its own; the coordinator's daemon; Flower and TLS between them on the loopback
interface. Sites have 450 to 6 300 persons, in even steps of the logarithm: the simulated cohorts
(`maf`, `sliced-wasserstein` and `gibbs`, one federation), and clinics whose patients come once a
year until they die or are lost (`trajectory`, another). ε = 3. Settings are the defaults, but for
the demo's dozen of refits in place of forty.

Memory is that of all processes that the daemons and commands started, looked at in `/proc` twice a
second. *Together* is their proportional share (`Pss`), which counts what several of them share
once, looked at every few seconds; *resident, summed* (`VmRSS`) counts it in each of them. A
worker's peak is the kernel's own count (`VmHWM`), beside the largest bound that was planned for one
from public numbers. Least available is the whole machine's (`MemAvailable`), with whatever else ran
on it; cores taken by others are what else was computed meanwhile.

Moments count from the submission to the last of the twelve. A run is *reserved* after its
rehearsal on synthetic rows, in which the machine's crowd is measured too: twelve rehearse and run
at once, so each is planned to be as slow as a twelfth of the machine, and half as long again. How a
run *truly ended* shows at that planned moment and not before (`docs/threat-model.md`), so that the
wait for a *delivery* is the price of a machine that twelve sites share, not of any computation.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from pathlib import Path

import numpy as np
import psutil
from tests.benchmarks.network import parts_of
from tests.support.federation import kind_of
from tests.support.results import Row, write
from tests.support.weighed import MB

from penstock.cli.console import say
from penstock.mechanisms import MECHANISMS
from penstock.mechanisms.plans import plan
from penstock.privacy.request import PrivacyRequest, advised_delta
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import Charge
from penstock_client.site.site_paths import SitePaths
from penstock_server.demo import SCENARIOS, Demo, Scenario
from penstock_server.install.founding import open_coordinator
from penstock_server.simulate import cvd, patients
from penstock_server.simulate.cohort_files import frame

SITES = 12
PERSONS = tuple(round(float(n)) for n in np.geomspace(450, 6300, SITES))
EPSILON, SEED = 3.0, 1
IDLE_SECONDS, SETTLE_SECONDS = 60.0, 60.0
"""Sites look for messages every second for a while after they came, and then every three."""

STUDY_SECONDS = 2400.0
"""After so long a study is given up, and everything ended."""

EVERY_SECONDS, SHARES_EVERY = 0.5, 10
"""Between two looks; and between two at proportional shares, which take the kernel longer."""


class Twelve(Demo):
    """The demo's daemons, with twelve sites of our own sizes.

    Args:
        write_site: a site's rows and dictionary: its place, its folder, its persons.
    """

    write_site: Callable[[int, Path, int], None]
    write_truth: Callable[[Path], None]

    def simulate(self) -> None:
        data = self.work / "data"
        for place, (name, persons) in enumerate(zip(self.scenario.sites, PERSONS, strict=True)):
            self.write_site(place, data / name, persons)
        self.write_truth(data)

    def states(self, study: str) -> dict[str, tuple[str, float]]:
        """Each site's state in a study, and since when, from the coordinator's store."""
        coordinator = open_coordinator(self.work / "coordinator")
        try:
            study_id = coordinator.find(study).id
            found = parts_of(coordinator.store, [study_id])
            return {site: part for (_, site), part in found.items()}
        finally:
            coordinator.store.close()

    def charge(self, site: str, study: str) -> Charge:
        """What a site's ledger says of a study."""
        paths = SitePaths(self.work / site)
        database = Database(paths.database, read_only=True)
        try:
            charges = Ledger(database, None).verify(paths.gate_public()).charges.values()
            return next(c for c in charges if c.study == study)
        finally:
            database.close()


class Hospitals(Twelve):
    """Simulated cardiovascular cohorts."""

    def write_site(self, place: int, folder: Path, persons: int) -> None:
        rng = np.random.default_rng([SEED, place])
        cvd.write_site(cvd.find(folder.name), folder, rng, n=persons)

    def write_truth(self, folder: Path) -> None:
        cvd.write_truth(folder)


class Clinics(Twelve):
    """Simulated clinics whose patients come once a year: four of them, thrice each."""

    def write_site(self, place: int, folder: Path, persons: int) -> None:
        like = patients.PRACTICES[place % len(patients.PRACTICES)]
        practice = replace(like, name=folder.name, n=persons)
        patients.write_site(practice, folder, np.random.default_rng([SEED, place]))

    def write_truth(self, folder: Path) -> None:
        patients.write_truth(folder)


def run() -> Path:
    """Both federations, and all studies."""
    hospitals = [replace(SCENARIOS[m](), study=m) for m in ("gibbs", "maf", "sliced-wasserstein")]
    clinics = replace(
        SCENARIOS["trajectory"](),
        study="trajectory",
        sites=tuple(f"clinic-{place + 1:02}" for place in range(SITES)),
    )
    rows = []
    for row in chain(_federation(Hospitals, hospitals), _federation(Clinics, [clinics])):
        say(f"  {row.what}: {row.ours:.4g}")
        rows.append(row)
    total = psutil.virtual_memory().total / 1e9
    machine = f"{os.cpu_count()} cores, {total:.3g} GB of memory."
    return write("twelve", rows, f"{(__doc__ or '').strip()}\n\n{machine}")


def _federation(kind: type[Twelve], studies: list[Scenario]) -> Iterator[Row]:
    """Start twelve sites, leave them idle for a while, and ask them one study after the other."""
    work = Path(tempfile.mkdtemp(prefix="p12-"))
    try:
        with ExitStack() as stack:
            out = work / "out"
            made = kind(work, out, studies[0], EPSILON, SEED, stack, studies=len(studies))
            began = time.monotonic()
            made.start()
            where = f"{SITES} {kind.__name__.lower()}"
            taken = time.monotonic() - began
            yield Row(f"{where}: simulated, set up and online (s)", taken, None, 1)
            yield from _idle(where)
            for asked in studies:
                yield from _study(made, asked)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _idle(where: str) -> Iterator[Row]:
    """What they take while nothing is asked."""
    time.sleep(SETTLE_SECONDS)
    before = _processor()
    with watched() as seen:
        time.sleep(IDLE_SECONDS)
    taken = {kind: s - before.get(kind, 0.0) for kind, s in _processor().items()}
    for kind, seconds in taken.items():
        yield Row(f"{where}, idle: CPU of {kind} (s per s)", seconds / IDLE_SECONDS, None, 1)
    share = sum(taken.values()) / IDLE_SECONDS
    yield Row(f"{where}, idle: CPU of all (s per s)", share, None, 1)
    yield Row(f"{where}, idle: processes", seen.processes, None, 1)
    yield Row(f"{where}, idle: memory together (MB)", seen.together, None, 1)


def _study(made: Twelve, asked: Scenario) -> Iterator[Row]:
    name = asked.study
    before, machine, submitted = _processor(), _machine(), time.time()
    with watched() as seen:
        made.ask(asked, STUDY_SECONDS)
        made.command("pull", name, "--out", str(made.out / name))
    wall = time.time() - submitted
    ours = sum(s - before.get(kind, 0.0) for kind, s in _processor().items())
    others = (_machine() - machine - ours) / wall
    states = made.states(name)
    delivered = sum(state == "delivered" for state, _ in states.values())
    yield Row(f"{name}: delivered", delivered, None, 1, target=SITES, holds=delivered == SITES)
    charges = [made.charge(site, name) for site in asked.sites]
    moments = {
        "all reserved": [_time(c.time) for c in charges],
        "all runs truly ended": [_time(c.settled_at) for c in charges],
        "all delivered": [moment for _, moment in states.values()],
    }
    for what, found in moments.items():
        yield Row(f"{name}: {what} (s)", max(found) - submitted, None, 1)
    yield Row(f"{name}: report pulled, wall time (s)", wall, None, 1)
    yield Row(f"{name}: CPU of all processes (s)", ours, None, 1)
    yield Row(f"{name}: cores taken by others", others, None, 1)
    report = json.loads((made.out / name / "report.json").read_text())
    pooled = len(report["estimands"][0]["sites"])
    yield Row(f"{name}: sites in the pooled answer", pooled, None, 1)
    yield Row(f"{name}: most processes at once", seen.processes, None, 1)
    yield Row(f"{name}: memory together (MB)", seen.together, None, 1)
    yield Row(f"{name}: memory resident, summed (MB)", seen.resident, None, 1)
    bounds = [_planned(asked, frame(persons)) for persons in PERSONS]
    most = max(bounds)
    holds = seen.worker <= most
    yield Row(f"{name}: largest worker (MB)", seen.worker, None, 1, target=most, holds=holds)
    yield Row(f"{name}: planned bounds of twelve workers, summed (MB)", sum(bounds), None, 1)
    yield Row(f"{name}: least memory available (MB)", seen.free, None, 1)


def _planned(asked: Scenario, persons: int) -> float:
    """MB of a worker at most."""
    privacy = PrivacyRequest(EPSILON, advised_delta(frame(max(PERSONS))))
    planned = plan(asked.mechanism, asked.schema, persons, privacy, asked.estimands)
    return MECHANISMS.of(asked.mechanism).memory(planned, asked.schema).total / MB


# -- looking at processes ----------------------------------------------------------------------


@dataclass
class Seen:
    """MB, each the most but ``free``, the least; and how many processes at most."""

    together: float = 0.0
    resident: float = 0.0
    worker: float = 0.0
    free: float = field(default=float("inf"))
    processes: int = 0

    def look(self, shares: bool) -> None:
        """Once, at everything that this process started."""
        resident, together, count = 0.0, 0.0, 0
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(OSError, psutil.Error):
                status = _fields(process.pid, "status")
                resident += status["VmRSS"]
                count += 1
                if kind_of(process.cmdline()) == "worker":
                    self.worker = max(self.worker, status["VmHWM"])
                if shares:
                    together += _fields(process.pid, "smaps_rollup")["Pss"]
        self.processes = max(self.processes, count)
        self.resident = max(self.resident, resident)
        self.together = max(self.together, together)
        self.free = min(self.free, psutil.virtual_memory().available / MB)


@contextlib.contextmanager
def watched() -> Iterator[Seen]:
    """Look until the block ends."""
    seen, over = Seen(), threading.Event()

    def look() -> None:
        turn = 0
        while not over.is_set():
            seen.look(shares=turn % SHARES_EVERY == 0)
            turn += 1
            over.wait(EVERY_SECONDS)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _fields(pid: int, file: str) -> dict[str, float]:
    """MB of what is counted in kB in a file of a process; nothing of one that has just ended."""
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    words = (line.replace(":", " ").split() for line in lines if line.endswith(" kB"))
    found = {w[0]: int(w[1]) * 1024 / MB for w in words}
    if not found:
        raise ProcessLookupError(pid)
    return found


def _processor() -> dict[str, float]:
    """Seconds of the processor that daemons took so far, by kind, with all that they ended."""
    found: dict[str, float] = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            kind = kind_of(process.cmdline()) or "others"
            t = process.cpu_times()
            own = t.user + t.system + t.children_user + t.children_system
            found[kind] = found.get(kind, 0.0) + own
    return found


def _machine() -> float:
    """Seconds of all processors that were not idle."""
    t = psutil.cpu_times()
    return float(t.user + t.nice + t.system + t.irq + t.softirq)


def _time(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()

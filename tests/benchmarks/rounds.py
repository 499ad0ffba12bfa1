"""What a round of a sum of many sites takes, on its way there and back and at the coordinator.

`penstock server start` and four sites' real network sides on one machine, as for ``network``;
thirty more sites are simulated in one process. Gates answer steps with real secrets, at once and
without rows: a real gate's worker and slots (`round_seconds`) come on top. A round is from one sum
in the store to the next: it takes three exchanges here, since a gate that has an order answers it
at the next fetch. A packet is one site's part of an exchange. CPU is user and system time.

With BEFORE=FOLDER (another checkout), the same is measured there, in turns with this one: its
figures are the peer's. The model: a round's CPU is a + b · sites, drawn through 4 and 34 sites; a
round is no shorter than the SuperLink's and the pump's CPU in it. For 50 and 500 sites it is a
forecast. What the coordinator computes itself (signatures, shares, masks, its store) is measured
in process, the sites' own work left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import sqlalchemy as sa
from tests.benchmarks.network import ANALYST, MANY, REAL, World, begin, running, spent, until, usage
from tests.benchmarks.network_sites import DELTA, FEDERATION, PERSONS, claims, schema
from tests.benchmarks.rounds_sites import LAST, AddingGate, tell
from tests.support.adders import Adder, BadLine
from tests.support.results import Row, write

from penstock.mechanisms import Scoring
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.study.scope import GLOBAL, LEAST_WIRE, Scope, choose_tolerance
from penstock.study.study import Study
from penstock.wire.signatures import generate_key, public_hex
from penstock.wire.signed import SignedStudy, sign_cancel, sign_study
from penstock_server.install.enrolment import enrol_site
from penstock_server.store.database import sqlite_url
from penstock_server.store.folder import Folder
from penstock_server.store.sql_tables import summation_table
from penstock_server.store.store import Store
from penstock_server.studies.coordinator import Coordinator
from penstock_server.transport.pump import Pump

ROUNDS, MANY_ROUNDS, TURNS = 6, 3, 2
EXCHANGES = 3
IN_PROCESS = (4, 12, 50)
FORECAST = (50, 500)
KINDS = ("superlink", "api", "coordinator's runner", "supernode", "site's runner")

Figures = dict[str, list[float]]


def make_study(keys: Mapping[str, str]) -> SignedStudy:
    """A study of one release of these sites, by their gates' keys."""
    sites = tuple(keys)
    persons = tuple((name, PERSONS) for name in sites)
    study = Study(
        name="rounds",
        title="Rounds",
        federation=FEDERATION,
        sites=sites,
        schema=schema(1),
        estimands=(Estimand("x0", "mean", "x0"),),
        privacy=PrivacyRequest(3.0, DELTA),
        mechanism=Scoring(),
        aggregation=Scope(GLOBAL, *choose_tolerance(len(sites)), persons, tuple(keys.items())),
        wire=LEAST_WIRE,
        quorum=2,
        deadline_hours=10.0,
        not_before="2020-01-01T00:00:00Z",
        expires="2099-01-01T00:00:00Z",
    )
    return sign_study(study, ANALYST)


def submit(coordinator: Coordinator, signed: SignedStudy) -> str:
    """Open for more rounds than will be waited for."""
    study = coordinator.submit(signed)
    with coordinator.store.begin() as c:
        c.execute(sa.update(summation_table).values(rounds=LAST))
    return study


# -- over the network --------------------------------------------------------------------------


def time_rounds(world: World, sites: Sequence[str], count: int) -> Figures:
    """Seconds of each of ``count`` rounds of these sites, and each process's CPU in a round."""
    keys = {name: public_hex(AddingGate(world.sites[name]).key) for name in sites}
    study = submit(world.coordinator, make_study(keys))
    summing = world.coordinator.store.summing
    until(lambda: len(summing.sums(study)) >= 1, 200, "the first round", 0.01)
    before, moments = begin(world), [time.monotonic()]
    first = len(summing.sums(study))
    for number in range(count):
        until(lambda n=number: len(summing.sums(study)) > first + n, 120, "a round", 0.01)
        moments.append(time.monotonic())
    cpu = spent(before, usage(world.root))
    world.coordinator.cancel(sign_cancel(study, ANALYST))
    took: Figures = {"round": list(np.diff(moments))}
    return took | {kind: [seconds / count] for kind, seconds in cpu.items()}


def measure() -> dict[str, Figures]:
    """Rounds of the four real sites, and of those with the thirty simulated ones."""
    claims()
    root = Path(tempfile.mkdtemp(prefix="pn"))
    try:
        world = World(root, AddingGate)
        start = ("penstock", "server", "start", "-d", str(world.folder.root))
        with contextlib.ExitStack() as stack:
            stack.enter_context(running(*start, home=world.folder.home, log=root / "server.log"))
            for name in REAL:
                stack.enter_context(world.network(name))
            world.online(REAL, 90)
            found = {"4": time_rounds(world, REAL, ROUNDS)}
            module = "tests.benchmarks.rounds_sites"
            folders = [str(world.sites[n].root) for n in MANY]
            log = root / "many.log"
            stack.enter_context(running(module, *folders, home=root / "home", log=log))
            world.online(MANY, 90)
            found["34"] = time_rounds(world, (*REAL, *MANY), MANY_ROUNDS)
            return found
    finally:
        shutil.rmtree(root, ignore_errors=True)


def measure_at(checkout: Path | None) -> dict[str, Figures]:
    """The same in a process of its own, with this code or another checkout's."""
    here = Path(__file__).parents[2]
    code = here if checkout is None else checkout
    paths = [str(code / part) for part in ("shared", "client", "server")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(here)])}
    command = [sys.executable, "-m", "tests.benchmarks.rounds"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, cwd=here)
    found: dict[str, Figures] = json.loads(done.stdout.splitlines()[-1])
    return found


def join_figures(several: Sequence[dict[str, Figures]]) -> dict[str, Figures]:
    """All values of several turns."""
    return {
        sites: {what: [v for each in several for v in each[sites].get(what, [])] for what in first}
        for sites, first in several[0].items()
    }


# -- in process --------------------------------------------------------------------------------


class Line(BadLine):
    """A line that counts the sites' own work, and loses nothing."""

    spent = 0.0

    def send(self, packets: Mapping[str, bytes]) -> None:
        began = time.process_time()
        super().send(packets)
        self.spent += time.process_time() - began


def time_coordinator(folder: Path, sites: int, rounds: int = 3) -> list[float]:
    """CPU seconds of each round at the coordinator, without what sites do."""
    names = [f"s{i:02}" for i in range(sites)]
    keys = {name: generate_key() for name in names}
    adders = {name: Adder(folder, name, keys[name], tell, LAST) for name in names}
    line = Line(adders, random.Random(1))
    Store.create(sqlite_url(folder)).close()
    Folder(folder).make()
    store = Store(sqlite_url(folder))
    coordinator = Coordinator(store, Folder(folder))
    for name in names:
        join = {"site": name, "federation": FEDERATION, "gate_key": public_hex(keys[name])}
        join |= {"persons": PERSONS, "dictionary": schema(1).to_dict()}
        enrol_site(coordinator, {**join, "node_key": "ecdsa-sha2-nistp384 AAAA"})
    study = submit(coordinator, make_study({n: public_hex(k) for n, k in keys.items()}))
    pump, took, done = Pump(coordinator, line), [], 0
    began, others = time.process_time(), line.spent
    while done < rounds + 1:
        pump.turn()
        now = len(store.summing.sums(study))
        if now > done:
            took.append(time.process_time() - began - (line.spent - others))
            began, others, done = time.process_time(), line.spent, now
        else:
            time.sleep(0.02)
    store.close()
    return took[1:]


# -- rows --------------------------------------------------------------------------------------


def rows_of(sites: str, ours: Figures, peer: Figures | None) -> list[Row]:
    """Seconds of a round, and CPU for a packet of each process."""

    def value(figures: Figures | None, what: str, divided: float) -> float | None:
        return (
            None
            if figures is None or what not in figures
            else float(np.median(figures[what]) / divided)
        )

    packets = EXCHANGES * int(sites)
    count = len(ours["round"])
    spread = float(np.std(ours["round"], ddof=1)) if count > 1 else None
    rows = [
        Row(
            f"{sites} sites: a round (s, median; spread)",
            value(ours, "round", 1.0),
            spread,
            count,
            peer=value(peer, "round", 1.0),
        )
    ]
    return rows + [
        Row(
            f"{sites} sites: CPU of {kind} for a packet (s)",
            value(ours, kind, packets if kind in KINDS[:3] else EXCHANGES * len(REAL)),
            None,
            len(ours[kind]),
            peer=value(peer, kind, packets if kind in KINDS[:3] else EXCHANGES * len(REAL)),
        )
        for kind in KINDS
        if kind in ours
    ]


def forecast(ours: dict[str, Figures], peer: dict[str, Figures] | None) -> list[Row]:
    """A round of more sites, by the CPU of the SuperLink and of the pump in those measured."""

    def reckon(figures: dict[str, Figures], sites: int) -> float:
        cpu = {
            int(n): max(float(np.median(f[kind])) for kind in KINDS[:3]) for n, f in figures.items()
        }
        low, high = min(cpu), max(cpu)
        slope = (cpu[high] - cpu[low]) / (high - low)
        return cpu[high] + slope * (sites - high)

    return [
        Row(
            f"{sites} sites: CPU of the busiest process at the coordinator in a round (s, model)",
            reckon(ours, sites),
            None,
            1,
            peer=None if peer is None else reckon(peer, sites),
        )
        for sites in FORECAST
    ]


def run() -> Path:
    """Measure; with BEFORE in turns."""
    before = os.environ.get("BEFORE")
    ours, peers = [], []
    for _ in range(TURNS if before else 1):
        if before:
            peers.append(measure_at(Path(before)))
        ours.append(measure_at(None))
    own, peer = join_figures(ours), join_figures(peers) if peers else None
    rows = [
        row for sites in own for row in rows_of(sites, own[sites], peer[sites] if peer else None)
    ]
    rows += forecast(own, peer)
    for sites in IN_PROCESS:
        with tempfile.TemporaryDirectory() as folder:
            took = time_coordinator(Path(folder), sites)
        rows.append(
            Row(
                f"{sites} sites: CPU of the coordinator in a round, in process (s)",
                float(np.mean(took)),
                None,
                len(took),
            )
        )
    load = f"Load of the machine at the end: {os.getloadavg()[2]:.1f} over a quarter of an hour."
    return write("rounds", rows, f"{__doc__.strip()}\n\n{os.cpu_count()} cores. {load}")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure()) + "\n")

"""Load on the network, without models: the real coordinator, and gates that serve made-up releases.

`penstock server start` runs in a temporary directory on a free loopback port. Four sites have real
network sides (SuperNode and runner; the gate is a stub), thirty more are simulated in one process,
each on Flower's own connection through the api, at the pace of our SuperNode. Everything shares
one machine, and its few cores. CPU is user and system time of a process, memory its peak.

A packet's way there and back runs from the submission of a study that the gate rejects at once to
the moment at which that stands in the store: what a round of a global method costs. A table counts
from the gate's "delivered" to "checked and in the store". Beside medians of repeated measurements
stands the standard deviation.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import sqlalchemy as sa
from tests.benchmarks.network_sites import (
    COLUMNS,
    DELTA,
    FEDERATION,
    REFUSED,
    Gate,
    SiteFolder,
    claims,
    schema,
    table,
)
from tests.support.results import Row, write

from penstock.mechanisms import Maf
from penstock.privacy.request import PrivacyRequest
from penstock.processes.supervisor import make_flower_environment
from penstock.study.study import Study
from penstock.wire.signatures import generate_key
from penstock.wire.signed import sign_study
from penstock_server.install.enrolment import enrol_site, make_invite
from penstock_server.install.founding import make_coordinator, open_coordinator
from penstock_server.store.folder import Folder
from penstock_server.store.sql_tables import study_site_table
from penstock_server.store.store import Store

REAL = ("r0", "r1", "r2", "r3")
MANY = tuple(f"s{i:02}" for i in range(30))
ANALYST = generate_key()
ROUNDS, QUEUED = 50, 200
PROBES = 12
TICKS = os.sysconf("SC_CLK_TCK")
KINDS = {
    "superlink": "penstock_server.transport.flower.superlink",
    "coordinator's runner": "penstock_server.transport.flower.runner",
    "builder": "penstock_server.operate.builder",
    "results": "penstock_server.results.assembly",
    "api": "penstock_server.api.serve",
    "supernode": "penstock_client.operate.flower.supernode",
    "site's runner": "penstock_client.operate.flower.runner",
    "simulated sites": "tests.benchmarks.network_sites",
    "simulated adders": "tests.benchmarks.rounds_sites",
}


# -- processes ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds of all processes of a kind; peak megabytes of the largest."""

    cpu: float
    peak: float


def usage(root: Path) -> dict[str, Usage]:
    """Of the processes that serve ``root``, by kind."""
    found: dict[str, list[Usage]] = {}
    for pid, kind in _processes(root):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{pid}/status").read_text()
            peak = next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmHWM"))
            cpu = (int(fields[11]) + int(fields[12])) / TICKS
            found.setdefault(kind, []).append(Usage(cpu, peak / 1024))
    return {k: Usage(sum(u.cpu for u in us), max(u.peak for u in us)) for k, us in found.items()}


def forget_peaks(root: Path) -> None:
    """Begin a new peak of memory."""
    for pid, _ in _processes(root):
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def _processes(root: Path) -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            if str(root) in command:
                yield from ((int(entry.name), k) for k, m in KINDS.items() if f"\0{m}\0" in command)


@contextlib.contextmanager
def running(*command: str, home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours, ended when the block ends."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            (sys.executable, "-m", *command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=make_flower_environment(home),
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until(done: Callable[[], bool], seconds: float, what: str, pause: float = 0.05) -> None:
    """Wait for something, and no longer than ``seconds``."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(pause)


# -- the coordinator and its studies -----------------------------------------------------------


def parts_of(store: Store, studies: Sequence[str]) -> dict[tuple[str, str], tuple[str, float]]:
    """State of every site's part in studies, and when it came to be."""
    t = study_site_table.c
    query = sa.select(t.study_id, t.site, t.state, t.updated).where(t.study_id.in_(studies))
    with store.reading() as c:
        rows = c.execute(query).all()
    return {
        (study, site): (state, datetime.fromisoformat(updated).timestamp())
        for study, site, state, updated in rows
    }


class World:
    """A coordinator with all sites enrolled, its studies, and what the store says of them."""

    def __init__(self, root: Path, make_gate: Callable[..., Gate] = Gate) -> None:
        self.root, self.folder = root, Folder(root / "c")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        make_coordinator(self.folder.root, names=("localhost",), port=port, bind="127.0.0.1")
        # Far more open studies than people have: a load is what is measured.
        settings = json.loads(self.folder.settings.read_text()) | {"open_studies": 10_000}
        self.folder.settings.write_text(json.dumps(settings))
        self.coordinator = open_coordinator(self.folder.root)
        self.sites = {name: SiteFolder(root / name) for name in (*REAL, *MANY)}
        for name, site in self.sites.items():
            enrol_site(self.coordinator, site.make())
            site.join(make_invite(self.coordinator, name))
        self.gates = {name: make_gate(self.sites[name]) for name in REAL}
        self._count = 0

    def submit(self, sites: Sequence[str], columns: int, copies: int, name: str = "load") -> str:
        self._count += 1
        study = Study(
            name=f"{name}-{self._count}",
            title="A load",
            federation=FEDERATION,
            sites=tuple(sites),
            schema=schema(columns),
            estimands=(),
            privacy=PrivacyRequest(3.0, DELTA),
            mechanism=Maf(copies=copies, refits=0),
            quorum=1,
            deadline_hours=1.0,
            not_before="2020-01-01T00:00:00Z",
            expires="2099-01-01T00:00:00Z",
        )
        return self.coordinator.submit(sign_study(study, ANALYST))

    def parts(self, studies: Sequence[str]) -> dict[tuple[str, str], tuple[str, float]]:
        """State of every site's part in studies, and when it came to be."""
        return parts_of(self.coordinator.store, studies)

    def delivered(self, studies: Sequence[str], seconds: float) -> dict[tuple[str, str], float]:
        """Wait until all sites have delivered to all of these studies; when each did."""
        found: dict[tuple[str, str], tuple[str, float]] = {}

        def over() -> bool:
            found.update(self.parts(studies))
            return all(state not in ("invited", "running") for state, _ in found.values())

        until(over, seconds, f"{len(studies)} studies", pause=0.25)
        wrong = {state for state, _ in found.values()} - {"delivered"}
        if wrong:
            raise RuntimeError(f"sites ended as {wrong}")
        return {part: moment for part, (_, moment) in found.items()}

    def round_trip(self, site: str = REAL[0], seconds: float = 30.0) -> tuple[float, float]:
        """Seconds to a site's gate, and there and back."""
        began = time.time()
        study = self.submit([site], 1, 1, REFUSED)
        until(lambda: self.parts([study])[study, site][0] == "refused", seconds, "a packet", 0.02)
        ended = self.parts([study])[study, site][1]
        return self.gates[site].asked[study] - began, ended - began

    def online(self, sites: Sequence[str], seconds: float) -> None:
        """Wait until sites have been heard of."""

        def heard() -> bool:
            known = self.coordinator.store.sites.all()
            return all(known[name].seen for name in sites)

        until(heard, seconds, f"{len(sites)} sites online", pause=0.2)

    @contextlib.contextmanager
    def network(self, name: str) -> Iterator[None]:
        """A site's SuperNode and runner, at its stub gate."""
        site = self.sites[name]
        command = ("penstock", "site", "network", str(site.network.root))
        gate = ("--gate", str(site.gate_socket))
        server = self.gates[name].serve()
        log = site.root / "network.log"
        try:
            with running(*command, *gate, home=site.network.home, log=log):
                yield
        finally:
            server.stop(grace=0.5)


def spent(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> dict[str, float]:
    """CPU seconds by kind."""
    return {k: u.cpu - (before[k].cpu if k in before else 0.0) for k, u in after.items()}


def database(folder: Folder) -> float:
    """Megabytes of the SuperLink's database, with its log."""
    path = folder.superlink_database
    return sum(p.stat().st_size for p in path.parent.glob(path.name + "*")) / 1e6


def left(folder: Folder) -> int:
    """Messages and parts of messages that the SuperLink still keeps."""
    uri = f"file:{folder.superlink_database}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
        counts = [
            db.execute(f"select count(*) from {name}").fetchone()[0]
            for name in ("message_ins", "message_res", "objects", "run_objects")
        ]
    return sum(counts)


# -- what is measured --------------------------------------------------------------------------


def rows_of(name: str, values: Sequence[float], unit: str = "s") -> list[Row]:
    """The median with its spread, and the 90% quantile."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return [
        Row(f"{name} ({unit}, median)", float(np.median(values)), spread, len(values)),
        Row(f"{name} ({unit}, 90%)", float(np.quantile(values, 0.9)), None, len(values)),
    ]


def cost_rows(world: World, name: str, before: Mapping[str, Usage]) -> list[Row]:
    after = usage(world.root)
    cpu = spent(before, after)
    return [
        row
        for kind in after
        for row in (
            Row(f"{name}: CPU of {kind} (s)", cpu[kind], None, 1),
            Row(f"{name}: peak memory of {kind} (MB)", after[kind].peak, None, 1),
        )
    ]


def database_rows(world: World, name: str) -> list[Row]:
    return [
        Row(f"{name}: SuperLink's database (MB)", database(world.folder), None, 1),
        Row(f"{name}: messages and parts kept there", left(world.folder), None, 1),
    ]


def begin(world: World) -> dict[str, Usage]:
    forget_peaks(world.root)
    return usage(world.root)


def idle(world: World, name: str, seconds: float = 6.0) -> list[Row]:
    """What it costs to wait."""
    before = usage(world.root)
    time.sleep(seconds)
    cpu = spent(before, usage(world.root))
    return [
        Row(f"{name}: CPU of {k}, idle (s per s)", c / seconds, None, 1) for k, c in cpu.items()
    ]


def rounds(world: World) -> list[Row]:
    """Packets to one site, one after the other."""
    world.round_trip()
    before = begin(world)
    trips = [world.round_trip() for _ in range(ROUNDS)]
    name = f"{ROUNDS} packets to one site"
    return [
        *rows_of("one site: packet to the gate", [there for there, _ in trips]),
        *rows_of("one site: packet there and back", [both for _, both in trips]),
        *cost_rows(world, name, before),
        *database_rows(world, name),
    ]


def queue(world: World) -> list[Row]:
    """Many small studies of one site at once."""
    site, name = REAL[0], f"{QUEUED} studies of one site"
    calls, gate = world.gates[site].calls, world.gates[site]
    before, began = begin(world), time.time()
    studies = [world.submit([site], 1, 1) for _ in range(QUEUED)]
    submitted = time.time() - began
    ended = world.delivered(studies, 240)
    asked = max(gate.asked[s] for s in studies) - began
    polled = max(gate.delivered[s] for s in studies) - began
    return [
        Row(f"{name}: submitted (s)", submitted, None, 1),
        Row(f"{name}: all invited (s)", asked, None, 1),
        Row(f"{name}: all polled and ready (s)", polled, None, 1),
        Row(f"{name}: all delivered and checked (s)", max(ended.values()) - began, None, 1),
        Row(f"{name}: calls", gate.calls - calls, None, 1),
        *cost_rows(world, name, before),
        *database_rows(world, name),
    ]


def large(world: World) -> list[Row]:
    """50 MB from each of four sites at once."""
    size = len(table(COLUMNS, 100)) / 1e6
    name = f"{size:.0f} MB from four sites at once"
    before = begin(world)
    study = world.submit(REAL, COLUMNS, 100)
    ended = world.delivered([study], 120)
    took = [ended[study, s] - world.gates[s].delivered[study] for s in REAL]
    first = min(world.gates[s].delivered[study] for s in REAL)
    whole = max(ended.values()) - first
    return [
        *rows_of(f"{name}: delivered to checked", took),
        Row(f"{name}: all of them (MB/s)", len(REAL) * size / whole, None, 1),
        *cost_rows(world, name, before),
        *database_rows(world, name),
    ]


def many(world: World) -> list[Row]:
    """Thirty sites with a study each, 1 MB a table; a real site's packets meanwhile."""
    size = len(table(6, 10)) / 1e6
    name = f"30 sites, {size:.1f} MB each"
    quiet = [world.round_trip()[1] for _ in range(PROBES)]
    resting = idle(world, "30 sites")
    before, began = begin(world), time.time()
    studies = [world.submit([site], 6, 10) for site in MANY]
    busy = []
    while any(state in ("invited", "running") for state, _ in world.parts(studies).values()):
        busy.append(world.round_trip(seconds=60)[1])
    ended = world.delivered(studies, 1)
    return [
        *rows_of("30 sites idle: packet there and back", quiet),
        *rows_of("30 sites busy: packet there and back", busy),
        Row(f"{name}: all delivered and checked (s)", max(ended.values()) - began, None, 1),
        *resting,
        *cost_rows(world, name, before),
        *database_rows(world, name),
    ]


def run() -> Path:
    """Measure, in under six minutes; Linux only, since /proc says what processes cost."""
    claims()
    root = Path(tempfile.mkdtemp(prefix="pn"))
    try:
        rows = measure(World(root))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return write("network", rows, f"{__doc__.strip()}\n\n{os.cpu_count()} cores.")


def measure(world: World) -> list[Row]:
    table(COLUMNS, 100)
    start = ("penstock", "server", "start", "-d", str(world.folder.root))
    rows, log = [], world.root / "server.log"
    with (
        running(*start, home=world.folder.home, log=log),
        contextlib.ExitStack() as site,
        contextlib.ExitStack() as others,
    ):
        site.enter_context(world.network(REAL[0]))
        world.online(REAL[:1], 60)
        rows += rounds(world) + idle(world, "one site") + queue(world)
        for name in REAL[1:]:
            others.enter_context(world.network(name))
        world.online(REAL, 60)
        rows += large(world)
        others.close()
        folders = [str(world.sites[n].root) for n in MANY]
        log = world.root / "many.log"
        module = "tests.benchmarks.network_sites"
        with running(module, *folders, home=world.root / "home", log=log):
            world.online(MANY, 60)
            rows += many(world)
    return rows

"""The real processes of a coordinator and its sites: killed, stopped, restored, out of disk."""

from __future__ import annotations

import contextlib
import shutil
import socket
import sqlite3
import time
from dataclasses import replace

import psutil
import pyarrow.parquet as pq
import pytest
from tests.benchmarks.network import running
from tests.conftest import FAST
from tests.support.federation import COORDINATOR, Federation, penstock, small_disk

from penstock_client.site.network_paths import NetworkPaths
from penstock_server.store.folder import Folder

SITES = ("a", "b", "c")
ONCE = dict.fromkeys(SITES, 1)
COMMITTED = {name: ["committed"] for name in SITES}


@pytest.fixture(scope="module")
def federation():
    """One federation for the module; its end fails if anything is left running."""
    made = Federation(SITES)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def by_hand(federation):
    """Site c's steward approves by hand: a study stays open until then."""
    federation.policy("c", "by-hand")
    yield
    federation.policy("c", "automatic")


def delivered(federation, study, seconds=180):
    """Every site delivered its only draw, at one charge."""
    status = federation.ended(study, seconds)
    assert {p["site"]: p["state"] for p in status["sites"]} == dict.fromkeys(SITES, "delivered")
    assert status["state"] == "finished"
    assert federation.charges(study) == COMMITTED
    assert federation.draws(study) == ONCE
    assert all(federation.same_bytes(study, name) for name in SITES)
    return status


@pytest.fixture(scope="module")
def trial(federation):
    """The first study of the federation, which ended well; several tests look at it."""
    study = federation.submit("trial")
    delivered(federation, study)
    return study


@pytest.mark.thorough
def test_a_study_over_real_processes(federation, trial, tmp_path):
    study = trial
    files = federation.analyst.pull(study, tmp_path / "out", copies="all")
    assert {f.name for f in files} >= {"report.html", "report.json", "pooled.parquet"}
    pooled = pq.read_table(tmp_path / "out" / "pooled.parquet")
    assert set(pooled["_site"].to_pylist()) == set(SITES)
    assert set(pooled["_copy"].to_pylist()) == set(range(1, FAST.copies + 1))


@pytest.mark.thorough
def test_a_crowd_at_the_port_stops_no_study(federation, tmp_path):
    """Hundreds of slow, silent and forged connections; see `make reproduce NAME=stall`."""
    stranger = NetworkPaths(tmp_path / "stranger")
    stranger.make()
    stranger.make_key()
    crowd = ("tests.studies.stall", str(federation.port), str(stranger.node_key), "20")
    calls = []
    with running(*crowd, home=tmp_path, log=tmp_path / "crowd.log") as process:
        time.sleep(2)
        study = federation.submit("crowd")
        while process.poll() is None:
            began = time.monotonic()
            assert answers(federation)
            calls.append(time.monotonic() - began)
            time.sleep(0.5)
        delivered(federation, study)
    assert int((tmp_path / "crowd.log").read_text().split()[0]) > 900
    assert max(calls) < 2.0


@pytest.mark.thorough
def test_the_coordinators_processes_are_killed_one_after_the_other(federation, by_hand):
    study = federation.submit("kills")
    federation.reached(study, "c", "awaiting-approval")
    for kind in ("superlink", "runner", "builder", "api"):
        old = federation.kill(COORDINATOR, kind)
        federation.pid(COORDINATOR, kind, other_than=old)
    federation.approve("c", "kills")
    delivered(federation, study)
    federation.until(lambda: answers(federation), "the api")
    assert federation.analyst.status(study)["state"] == "finished"


@pytest.mark.thorough
def test_other_studies_and_the_api_go_on_while_one_studys_results_are_made(federation):
    """The first said "open" for minutes, and the others stayed invited."""
    first = federation.submit("first")
    assembly = psutil.Process(federation.pid(COORDINATOR, "assembly"))
    assembly.suspend()
    second = federation.submit("second")
    for name in SITES:
        federation.reached(second, name, "delivered")
    federation.until(lambda: federation.analyst.status(second)["state"] == "pooling", "the second")
    began = time.monotonic()
    shown = federation.analyst.status(first)
    assert time.monotonic() - began < 2.0
    assert (shown["state"], shown["pooling"]["sites"]) == ("pooling", 3)
    assembly.resume()
    delivered(federation, first)
    delivered(federation, second)


@pytest.mark.thorough
def test_a_coordinator_that_is_killed_while_results_are_made_makes_them_later(federation):
    """First the builder, then all of it; neither is the study's fault."""
    study = federation.submit("half-made")
    psutil.Process(federation.pid(COORDINATOR, "assembly")).suspend()
    old = federation.kill(COORDINATOR, "builder")
    federation.pid(COORDINATOR, "builder", other_than=old)
    psutil.Process(federation.pid(COORDINATOR, "assembly")).suspend()
    federation.kill(COORDINATOR, "supervisor")
    federation.until(lambda: not federation.pids(COORDINATOR), "the orphans")
    shown = federation.status_of(study)
    assert (shown["state"], shown["pooling"]) == ("pooling", {"sites": 3, "done": 0})
    federation.start(COORDINATOR)
    delivered(federation, study)
    assert [p.name for p in federation.folder(COORDINATOR).glob("studies/.*")] == []


def answers(federation) -> bool:
    with contextlib.suppress(Exception):
        return bool(federation.analyst.about())
    return False


@pytest.mark.thorough
def test_the_processes_of_sites_are_killed_while_they_work(federation):
    """A killed gate or worker costs its charge; a killed network side costs nothing."""
    # Long enough to be killed between the charge and the release, whoever is asked first.
    study = federation.submit("burns", mechanism=replace(FAST, steps=4000))
    federation.reserved(study, "a")
    worker = federation.kill("a", "worker")
    federation.reserved(study, "b")
    orphan = federation.pid("b", "worker")
    gate = federation.kill("b", "gate")
    federation.reserved(study, "c")
    runner = federation.kill("c", "runner")
    supernode = federation.kill("c", "supernode")
    gone = [psutil.pid_exists(pid) for pid in (worker, gate, runner, supernode)]
    assert gone == [False] * 4
    federation.until(lambda: not psutil.pid_exists(orphan), "the killed gate's worker to end")
    parts = {p["site"]: p for p in federation.ended(study, 300)["sites"]}
    assert {n: p["state"] for n, p in parts.items()} == {
        "a": "failed",
        "b": "failed",
        "c": "delivered",
    }
    assert (parts["a"]["code"], parts["b"]["code"]) == ("failed", "interrupted")
    assert federation.charges(study) == {"a": ["burnt"], "b": ["burnt"], "c": ["committed"]}
    assert federation.draws(study) == ONCE
    # The same signed study again is the same study, and the same request at every gate.
    assert federation.submit("burns", mechanism=replace(FAST, steps=4000)) == study
    assert federation.draws(study) == ONCE


@pytest.mark.thorough
def test_killed_supervisors_leave_no_orphan_and_the_study_goes_on(federation, by_hand):
    study = federation.submit("orphans")
    federation.reached(study, "c", "awaiting-approval")
    machines = (COORDINATOR, "c")
    before = {m: federation.pids(m) for m in machines}
    for machine in machines:
        assert set(before[machine]) >= {"supervisor", "runner"}
        federation.kill(machine, "supervisor")
    for machine in machines:
        federation.until(lambda m=machine: not federation.pids(m), f"the orphans of {machine}")
        assert federation.open_ports(machine) == set()
    federation.start(*machines)
    for machine in machines:
        assert not set(before[machine].values()) & set(federation.pids(machine).values())
    federation.approve("c", "orphans")
    delivered(federation, study)


@pytest.mark.soak  # the same by kill -9 is above
def test_everything_is_stopped_and_started_in_mid_study(federation, by_hand):
    study = federation.submit("restart")
    federation.reached(study, "c", "awaiting-approval")
    for name in "ab":  # to stop a gate that draws costs its charge
        federation.reached(study, name, "delivered")
    federation.stop()
    assert federation.leftovers() == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", federation.port), timeout=5).close()
    assert list(federation.folder(COORDINATOR).glob("run/*.json")) == []
    assert not federation.site("a").paths.gate_socket.exists()
    federation.start()
    assert federation.parts(study)["c"] == "awaiting-approval"
    federation.approve("c", "restart")
    delivered(federation, study)


@pytest.mark.thorough
def test_a_full_disk_at_the_coordinator_delays_a_study_and_loses_nothing(federation):
    uploads = federation.folder(COORDINATOR) / "uploads"
    log = federation.folder(COORDINATOR) / "log" / "runner.log"
    before = log.read_text().count("No space left")
    with small_disk(uploads) as give_room:
        study = federation.submit("full")
        federation.until(lambda: log.read_text().count("No space left") > before, "a full disk")
        assert federation.analyst.status(study)["state"] == "open"
        give_room()
        delivered(federation, study)


@pytest.mark.thorough
def test_a_locked_database_delays_a_study_and_loses_no_answer(federation):
    """A site's answer was dropped, and the site asked again after a quarter of an hour only."""
    database = Folder(federation.folder(COORDINATOR)).superlink_database
    log = federation.folder(COORDINATOR) / "log" / "superlink.log"
    before = log.read_text().count("database is locked")
    study = federation.submit("locked")
    federation.reached(study, "a", "running", "delivered")
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as held:
        held.execute("BEGIN IMMEDIATE")
        federation.until(
            lambda: log.read_text().count("database is locked") > before, "a call to wait"
        )
        held.execute("ROLLBACK")
    delivered(federation, study, 120)


def restore(federation, name):
    """Put a site's ledger and releases back to the copy of before its first study."""
    paths = federation.site(name).paths
    kept = federation.root / "new" / name
    for folder in (paths.database.parent, paths.releases):
        shutil.copytree(folder, kept / folder.name)
        shutil.rmtree(folder)
        shutil.copytree(federation.backup(name) / folder.name, folder)
    return kept / "ledger" / "gate.db"


@pytest.mark.thorough
def test_a_restored_ledger_stops_the_site_until_it_is_recovered(federation, trial):
    """The module's last test: site b has nothing left to spend after it.

    The copies that are put back know nothing of the trial.
    """
    federation.stop("a", "b")
    newer = restore(federation, "a")
    restore(federation, "b")
    federation.start("a", "b")
    study = federation.submit("behind")

    def refused():
        parts = {p["site"]: p for p in federation.status_of(study)["sites"]}
        return [parts[n]["code"] for n in "ab"] == ["rolled-back"] * 2 and parts

    federation.until(refused, "the refusal of both")
    assert "ledger recover" in refused()["a"]["meaning"] + refused()["a"]["remedy"]
    federation.reached(study, "c", "delivered")
    assert federation.charges(study) == {"a": [], "b": [], "c": ["committed"]}
    for name in "ab":
        said = penstock("site", "status", "--dir", federation.folder(name), "--json")
        assert "rolled-back" in said
        assert "penstock site ledger recover" in said
    for name in "ab":
        penstock("site", "stop", "--dir", federation.folder(name))
        federation.await_end(name)
    ledger = ("site", "ledger", "recover", "--dir")
    penstock(*ledger, federation.folder("a"), "--from", newer)
    penstock(*ledger, federation.folder("b"), "--accept-worst-case")
    penstock("site", "check", "--accept", "--dir", federation.folder("b"))
    federation.start("a", "b")
    parts = {p["site"]: p for p in federation.ended(study, 300)["sites"]}
    assert {n: p["state"] for n, p in parts.items()} == {
        "a": "delivered",
        "b": "refused",
        "c": "delivered",
    }
    assert parts["b"]["code"] == "closed"
    assert federation.charges(study) == {"a": ["committed"], "b": [], "c": ["committed"]}
    assert federation.draws(study) == {"a": 1, "b": 0, "c": 1}


# -- every kind at every moment --------------------------------------------------------------------

EVERY = [
    *((COORDINATOR, kind) for kind in ("superlink", "runner", "builder", "api", "supervisor")),
    *(("a", kind) for kind in ("supernode", "runner", "gate", "supervisor")),
]
MOMENTS = ("invited", "awaiting-approval", "running", "collecting", "pooling")
# Enough rows for several pieces.
LARGE = replace(FAST, copies=100)


@pytest.fixture(scope="module")
def soaked():
    made = Federation(("a", "b"), approval="by-hand", n=10_000)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.mark.soak
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("machine", "kind"), EVERY)
def test_every_process_is_killed_at_every_moment(soaked, machine, kind, moment):
    name = f"k-{machine[0]}-{kind}-{moment}"
    study = soaked.submit(name, mechanism=LARGE)
    if moment == "invited":
        soaked.kill(machine, kind)
    soaked.reached(study, "a", "awaiting-approval")
    if moment == "awaiting-approval":
        soaked.kill(machine, kind)
    if kind == "supervisor" and moment in MOMENTS[:2]:
        again(soaked, machine)
    for site in ("a", "b"):
        soaked.approve(site, name)
    if moment == "running":
        soaked.pid("a", "worker")
        soaked.kill(machine, kind)
    elif moment == "collecting":
        piece = soaked.folder(COORDINATOR) / "uploads" / study / "a.part"
        soaked.until(piece.exists, "the first piece")
        soaked.kill(machine, kind)
    elif moment == "pooling":
        soaked.pid(COORDINATOR, "assembly")
        soaked.kill(machine, kind)
    if kind == "supervisor" and moment in MOMENTS[2:]:
        again(soaked, machine)
    status = soaked.ended(study, 600)
    burnt = moment == "running" and machine == "a" and kind in ("gate", "supervisor")
    assert {p["site"]: p["state"] for p in status["sites"]} == {
        "a": "failed" if burnt else "delivered",
        "b": "delivered",
    }
    expected = {"a": ["burnt" if burnt else "committed"], "b": ["committed"]}
    assert soaked.charges(study) == expected
    assert soaked.draws(study) == {"a": 1, "b": 1}
    assert soaked.same_bytes(study, "b")


def again(federation, machine):
    """Start a machine whose supervisor was killed, as soon as its other processes have ended."""
    federation.until(lambda: not federation.pids(machine), f"the orphans of {machine}")
    federation.start(machine)


@pytest.mark.soak
def test_a_killed_worker_burns_its_charge_whenever_it_is_killed(soaked):
    for seconds in (0.0, 0.5, 1.0, 2.0):
        name = f"w-{int(10 * seconds)}"
        study = soaked.submit(name)
        for site in ("a", "b"):
            soaked.approve(site, name)
        soaked.pid("a", "worker")
        time.sleep(seconds)  # not to wait for anything: to kill it elsewhere
        with contextlib.suppress(AssertionError):
            soaked.kill("a", "worker")
        soaked.ended(study)
        assert soaked.charges(study)["a"] in (["burnt"], ["committed"])
        assert soaked.draws(study) == {"a": 1, "b": 1}

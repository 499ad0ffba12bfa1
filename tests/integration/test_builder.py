"""Results are made by a process of their own: killed, held up, two at once, out of disk."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from tests.integration.test_certified_rows import DUMPABLE
from tests.support.federation import penstock, small_disk
from tests.support.local import deliver, hub

from penstock.wire.messages import StudyState
from penstock.wire.signatures import generate_key
from penstock.wire.signed import sign_cancel
from penstock_server.install.founding import open_coordinator
from penstock_server.operate import server_doctor
from penstock_server.operate.builder import MAKING, Builder
from penstock_server.results import material, production
from penstock_server.store.leases import Leases
from penstock_server.store.sql_tables import study_table

pytestmark = pytest.mark.thorough

ANALYST = generate_key()
GOLDEN = Path(__file__).parents[1] / "golden" / "data" / "coordinator-3"
SECRETS = {
    "HTTPS_PROXY": "http://user:proxy-secret@proxy:1",
    "PENSTOCK_TOKEN": "pst_token-secret",
    "PGPASSWORD": "database-secret",
}
# A builder of a process of its own, whose lease ends soon where it is not renewed.
BUILDER = """
import sys
from pathlib import Path
from penstock_server.operate import builder
from penstock_server.store import leases
leases.Leases.__init__.__kwdefaults__["seconds"] = float(sys.argv[2])
builder.Builder.__init__.__kwdefaults__["renew"] = 0.2
builder.main(Path(sys.argv[1]))
"""


@pytest.fixture
def coordinator(tmp_path):
    found = hub(tmp_path / "c")
    yield found
    found.store.close()


def pooling(coordinator, name="trial", mechanism="gibbs"):
    """A study that waits for its results; its id."""
    study = deliver(coordinator, ANALYST, mechanism, name)
    with coordinator.store.begin() as c:
        coordinator.leases.open(c, study, coordinator.clock.stamp(), 2)
    return study


def state(coordinator, study):
    return coordinator.store.studies.find(study).state


@contextlib.contextmanager
def builders(coordinator, count=1, *, lease=15.0, **environment):
    """Builder processes, and the log of each; none is left at the end."""
    root = coordinator.folder.root
    root.joinpath("log").mkdir(exist_ok=True)
    logs = [root / "log" / f"{i}.log" for i in range(count)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **environment}
    started = []
    try:
        for log in logs:
            with log.open("ab") as out:
                command = [sys.executable, "-c", BUILDER, str(root), str(lease)]
                started.append(subprocess.Popen(command, stdout=out, stderr=out, env=env))
        yield [psutil.Process(p.pid) for p in started], logs
    finally:
        for process in started:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        ends = [process.wait(30) for process in started]
        assert set(ends) <= {0, -signal.SIGKILL}


def until(done, seconds=90):
    limit = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < limit, "it takes too long"
        time.sleep(0.02)
    return found


def assembly(builder):
    """What makes the results that a builder has in hand, as soon as it runs."""

    def running():
        with contextlib.suppress(psutil.Error):
            for child in builder.children(recursive=True):
                if "penstock_server.results.assembly" in child.cmdline() and "leash" not in str(
                    child.cmdline()
                ):
                    return child
        return None

    return until(running)


def is_gone(process):
    """Ended, whether or not its parent has heard of it yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def left_behind(coordinator):
    return [p.name for p in (coordinator.folder.root / "studies").glob(f"{MAKING}*")]


def report(coordinator, study):
    return (coordinator.folder.results(study) / "report.json").read_bytes()


def test_a_process_without_secrets_makes_the_bytes_that_were_made_before(coordinator, tmp_path):
    study, since = pooling(coordinator), coordinator.clock.stamp()
    with builders(coordinator, **SECRETS) as ((builder,), _):
        process = assembly(builder)
        process.suspend()
        shown = " ".join([*process.cmdline(), *process.environ().values()])
        assert [s for s in ("proxy-secret", "token-secret", "database-secret") if s in shown] == []
        names = {Path(f.path).name for f in process.open_files()}
        assert not names & {"coordinator.db", "access.key", "secret"}
        process.resume()
        until(lambda: state(coordinator, study) is StudyState.FINISHED)
    row = coordinator.store.studies.find(study)
    assert row.finished < since
    production.build_results(material.gather(coordinator, row, row.finished), tmp_path)
    assert report(coordinator, study) == (tmp_path / "report.json").read_bytes()
    assert left_behind(coordinator) == []


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel")
def test_what_makes_results_leaves_no_core_dump_and_opens_no_socket(tmp_path):
    code = """
from pathlib import Path
from penstock_server.results.assembly import main
found = main(Path(sys.argv[1]))
told()
import socket
try:
    socket.socket()
except PermissionError:
    print(found.end, "no network")
"""
    command = [sys.executable, "-c", DUMPABLE + code, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, input="none"
    )
    assert done.stdout.splitlines()[-2:] == ["0 (0, 0)", "failed no network"]


def test_kill_9_of_a_builder_ends_what_it_started_and_the_next_one_goes_on(coordinator):
    study = pooling(coordinator)
    with builders(coordinator, lease=1.0) as ((builder,), _):
        process = assembly(builder)
        builder.kill()
        until(lambda: is_gone(process))
    assert state(coordinator, study) is StudyState.POOLING
    assert len(left_behind(coordinator)) == 1
    with builders(coordinator, lease=1.0) as (_, (log,)):
        until(lambda: state(coordinator, study) is StudyState.FINISHED)
    assert log.read_text().count("is pooled") == 2  # by each once
    assert coordinator.status(study)["note"] == ""
    assert left_behind(coordinator) == []


def test_a_builder_that_is_held_up_loses_its_study_and_can_end_nothing(coordinator):
    """Its lease runs out while it is stopped; what it made later changes nothing."""
    study = pooling(coordinator)
    with builders(coordinator, lease=1.0) as ((first,), (log,)):
        process = assembly(first)
        process.suspend()
        first.suspend()
        second = Builder(coordinator)
        until(lambda: second.turn() or state(coordinator, study) is StudyState.FINISHED)
        until(lambda: second.turn() is False and state(coordinator, study) is StudyState.FINISHED)
        made = coordinator.folder.results(study).stat()
        first.resume()
        until(lambda: is_gone(process))
        until(lambda: "pooled by another process" in log.read_text())
    assert coordinator.folder.results(study).stat() == made
    assert left_behind(coordinator) == []


def test_two_builders_at_once_make_the_results_of_a_study_once(coordinator):
    studies = [pooling(coordinator, name) for name in ("one", "two")]
    with builders(coordinator, 2) as (_, logs):
        until(lambda: all(state(coordinator, s) is StudyState.FINISHED for s in studies))
    said = "".join(log.read_text() for log in logs)
    assert [said.count(f"study {name} is pooled") for name in ("one", "two")] == [1, 1]
    assert [said.count(f"study {name} has its results") for name in ("one", "two")] == [1, 1]


def test_a_cancellation_ends_the_process_that_makes_results(coordinator):
    study = pooling(coordinator)
    with builders(coordinator) as ((builder,), (log,)):
        process = assembly(builder)
        process.suspend()
        coordinator.cancel(sign_cancel(study, ANALYST))
        until(lambda: is_gone(process))
        until(lambda: "was cancelled" in log.read_text())
        until(lambda: left_behind(coordinator) == [])
    assert state(coordinator, study) is StudyState.CANCELLED
    assert not coordinator.folder.results(study).exists()


def killed(coordinator, study):
    """Kill what makes a study's results, as often as it is tried."""
    coordinator.leases = Leases(coordinator.store, coordinator.clock, waits=(0.0,))
    builder, tries = Builder(coordinator), 0
    while not state(coordinator, study).final:
        builder.turn()
        if builder._try is not None and builder._try.making is not None:
            tries += 1
            os.kill(builder._try.making._process.pid, signal.SIGKILL)
            until(lambda: not builder.turn() or builder._try.making is None)
    return tries


def test_three_kills_fail_a_study_with_what_to_do_and_the_admin_does_it(coordinator):
    study = pooling(coordinator)
    assert killed(coordinator, study) == 3
    shown = coordinator.status(study)
    assert shown["state"] == "failed"
    assert "3 tries broke off, the last because its process was killed (SIGKILL)" in shown["note"]
    assert f"penstock server pool {study[:12]}" in shown["note"]
    assert left_behind(coordinator) == []
    penstock("server", "pool", study[:12], "-d", coordinator.folder.root)
    said = penstock("study", "status", study[:12], "-c", coordinator.folder.root)
    assert "pooling, 0 of 2 sites" in said
    said = penstock("study", "status", study[:12], "-c", coordinator.folder.root, "--json")
    assert json.loads(said)["pooling"] == {"sites": 2, "done": 0}
    said = penstock("study", "list", "-c", coordinator.folder.root)
    assert "pooling, 0 of 2" in " ".join(said.split())
    builder = Builder(coordinator)
    until(lambda: builder.turn() is False and state(coordinator, study).final)
    assert state(coordinator, study) is StudyState.FINISHED
    penstock("server", "pool", study[:12], "-d", coordinator.folder.root, code=9)


def test_a_full_disk_is_told_and_waited_for(coordinator):
    study = pooling(coordinator)
    builder = Builder(coordinator, stuck=0.1)
    with small_disk(coordinator.folder.root / "studies") as give_room:
        filler = coordinator.folder.root / "studies" / "filler"
        with contextlib.suppress(OSError):
            filler.write_bytes(bytes(100_000))
        until(lambda: builder.turn() is False and coordinator.status(study)["note"])
        assert "disk is full" in coordinator.status(study)["note"]
        late = next(
            r
            for r in server_doctor.check_coordinator(coordinator.folder.root)
            if r.check == "results"
        )
        assert (late.state, "disk is full" in late.found) == ("warn", True)
        assert state(coordinator, study) is StudyState.POOLING
        give_room()
        until(lambda: builder.turn() is False and state(coordinator, study).final)
        assert state(coordinator, study) is StudyState.FINISHED
        assert json.loads(report(coordinator, study))["study"]["id"] == study
    assert coordinator.status(study)["note"] == ""


def test_a_table_that_is_gone_fails_its_study_without_naming_places(coordinator):
    study = pooling(coordinator)
    coordinator.folder.table(study, "north").unlink()
    builder = Builder(coordinator)
    until(lambda: builder.turn() is False and state(coordinator, study).final)
    note = coordinator.status(study)["note"]
    assert state(coordinator, study) is StudyState.FAILED
    assert "a delivered table is gone: restore it from a backup" in note
    assert str(coordinator.folder.root) not in note


def test_a_stored_study_that_cannot_be_read_fails_in_one_try_and_holds_nobody_up(coordinator):
    broken, other = pooling(coordinator), pooling(coordinator, "other")
    with coordinator.store.begin() as c:
        unreadable = study_table.update().where(study_table.c.id == broken)
        c.execute(unreadable.values(signed=b"{}"))
    builder = Builder(coordinator)
    until(lambda: builder.turn() is False and state(coordinator, other).final)
    assert state(coordinator, other) is StudyState.FINISHED
    with coordinator.store.begin() as c:
        ended = c.execute(sa.select(study_table).where(study_table.c.id == broken)).one()
    assert ended.state == StudyState.FAILED.value
    assert "3 tries" not in ended.note


def test_a_store_of_format_3_that_was_left_without_results_gets_them(coordinator, tmp_path):
    """A coordinator that was killed while it made results, before they had a state."""
    root = coordinator.folder.root
    coordinator.store.close()
    for file in root.glob("coordinator.db*"):
        file.unlink()
    with contextlib.closing(sqlite3.connect(root / "coordinator.db")) as database:
        database.executescript((GOLDEN / "store.sql").read_text())
    old = open_coordinator(root)
    (row,) = old.store.studies.all()
    assert row.state is StudyState.OPEN
    for site in ("north", "south"):
        path = old.folder.table(row.id, site)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((GOLDEN / f"{site}.arrow").read_bytes())
    old.closing.close_due()
    assert old.status("trial")["state"] == "pooling"
    builder = Builder(old)
    until(lambda: builder.turn() is False and state(old, row.id).final)
    assert old.status("trial")["state"] == "finished"
    assert json.loads(report(old, row.id))["study"]["sites_delivered"] == 2
    old.store.close()

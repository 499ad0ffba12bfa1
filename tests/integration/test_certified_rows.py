"""Rows are compared with the ledger before they are charged, and nobody can change them after.

On earlier versions a table that was replaced, or written in place, under a running gate was
trained on, signed and delivered.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.conftest import rows_csv
from tests.support.timed import Slow, Timed
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.wire.signatures import private_to_pem
from penstock_client.gate.facts import locate_dictionary
from penstock_client.onboarding.inspection import read_dictionary
from penstock_client.rows import sealed as rows_sealed
from penstock_client.rows.sealed import NotCertified, map_rows, require_certified, seal_rows
from penstock_client.site.site_settings import read_settings

linux = pytest.mark.skipif(not rows_sealed.SEALS, reason="no sealed memory here")


def snapshot(site):
    return site.paths.snapshots / "main-1.arrow"


def written_in_place(world, site):
    with open(snapshot(site), "r+b") as file:
        file.seek(-2000, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def replaced(world, site):
    other = world.site("other", csv=rows_csv(200, seed=99))
    os.replace(snapshot(other), snapshot(site))


def cut_off(world, site):
    os.truncate(snapshot(site), 100)


def emptied(world, site):
    os.truncate(snapshot(site), 0)


def gone(world, site):
    snapshot(site).unlink()


def a_link(world, site):
    kept = world.root / "elsewhere.arrow"
    os.replace(snapshot(site), kept)
    snapshot(site).symlink_to(kept)


def its_folder_a_link(world, site):
    kept = world.root / "elsewhere"
    os.replace(site.paths.snapshots, kept)
    site.paths.snapshots.symlink_to(kept)


def a_pipe(world, site):
    snapshot(site).unlink()
    os.mkfifo(snapshot(site), 0o600)


def writable_by_others(world, site):
    snapshot(site).chmod(0o666)


def its_folder_writable_by_others(world, site):
    site.paths.snapshots.chmod(0o777)


def with_another_dictionary(world, site):
    path = locate_dictionary(site.paths)
    text = path.read_text()
    assert "decimals = 3" in text
    path.write_text(text.replace("decimals = 3", "decimals = 2"))


@pytest.mark.parametrize(
    "change",
    [
        written_in_place,
        replaced,
        cut_off,
        emptied,
        gone,
        a_link,
        its_folder_a_link,
        a_pipe,
        writable_by_others,
        its_folder_writable_by_others,
        with_another_dictionary,
    ],
)
def test_rows_that_are_not_as_certified_are_refused_without_a_charge(world, change, caplog):
    site = world.site()
    timed = Timed(site, world.analyst, [(2, "delivered")])
    timed.submit(world.signed())
    change(world, site)
    timed.run(60)
    seen = timed.gate.poll(timed.jobs[0])
    assert str(seen.state) == "failed"
    assert seen.code in ("not-ready", "schema")
    assert not timed.gate.stores.ledger.state().charges
    if change is not with_another_dictionary:
        assert "site check" in caplog.text  # what the steward reads
    timed.gate.stores.database.close()


def test_what_was_certified_is_found_to_be_so(world):
    site = world.site()
    dictionary = read_dictionary(site.paths).schema
    (version,) = site.ledger().lineages["main"].versions
    secret = private_to_pem(site.paths.key())
    with seal_rows(snapshot(site)) as rows:
        assert bytes(map_rows(rows)) == snapshot(site).read_bytes()
        require_certified(rows, dictionary, secret, version.fingerprint)
        with pytest.raises(NotCertified, match="not those that were certified"):
            require_certified(rows, dictionary, secret, "0" * 64)


@linux
def test_nobody_can_write_grow_or_shrink_sealed_rows(world):
    site = world.site()
    with seal_rows(snapshot(site)) as rows:
        for change in (
            lambda: os.write(rows, b"x"),
            lambda: os.pwrite(rows, b"x", 0),
            lambda: os.ftruncate(rows, 10),
            lambda: os.ftruncate(rows, 10**6),
            lambda: os.write(os.open(f"/proc/self/fd/{rows}", os.O_WRONLY), b"x"),
        ):
            with pytest.raises(OSError, match="not permitted"):
                change()


def test_without_sealed_memory_the_copy_has_no_name(world, monkeypatch):
    monkeypatch.setattr(rows_sealed, "SEALS", 0)
    site = world.site()
    before = sorted(site.paths.snapshots.iterdir())
    with seal_rows(snapshot(site)) as rows:
        assert sorted(site.paths.snapshots.iterdir()) == before
        assert os.fstat(rows).st_nlink == 0
        assert bytes(map_rows(rows)) == snapshot(site).read_bytes()


def test_a_write_in_place_during_the_run_does_not_reach_the_worker(world):
    site = world.site()
    good = snapshot(site).read_bytes()
    timed = Timed(site, world.analyst, [(5, "delivered")])
    timed.submit(world.signed())
    look = timed.clock.watch

    def meddle():
        look()
        if timed.ticks == 12:  # reserved at 10
            snapshot(site).write_bytes(bytes(len(good)))

    timed.clock.watch = meddle
    timed.run(60)
    assert Slow.rows == good
    assert timed.gate.poll(timed.jobs[0]).state == "delivered"
    timed.gate.stores.database.close()


def test_an_attack_looks_at_certified_rows_only(world):
    site = world.site(approval="by-hand")
    site.start()
    request = site.submit(world.signed()).request_id
    replaced(world, site)
    done = CliRunner().invoke(
        app, ["site", "preview", request, "--attack", "--dir", str(site.paths.root)]
    )
    assert done.exit_code == 1
    assert "not those that were certified" in done.output


# -- core dumps ------------------------------------------------------------------------------------

DUMPABLE = """
import ctypes, resource, sys
def told():
    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE))
told()
"""
GATE = """
from pathlib import Path
from penstock_client.gate import service
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import read_settings
def made(*_):
    told()
    raise SystemExit
service.Gate = made
paths = SitePaths(Path(sys.argv[1]))
service.serve_gate(paths, read_settings(paths))
"""
WORKER = "from penstock_client.work.worker import isolate\nisolate(4.0)\ntold()\n"
CHECK = """
from penstock.cli.main import app
app(["site", "check", "--dry-run", "--dir", sys.argv[1]], standalone_mode=False)
told()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel")
@pytest.mark.parametrize("process", [GATE, WORKER, CHECK], ids=["gate", "worker", "site check"])
def test_a_process_that_holds_rows_leaves_no_core_dump(world, process):
    site = world.site()
    command = [sys.executable, "-c", DUMPABLE + process, str(site.paths.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    lines = [x for x in done.stdout.splitlines() if x.endswith(")") and x[0] in "01"]
    assert lines[0].startswith("1 ")  # it detects
    assert lines[-1] == "0 (0, 0)"


def test_the_settings_of_a_site_name_no_other_rows(world):
    """What is sealed is the version in the ledger, wherever ``data`` points by now."""
    site = world.site()
    settings = site.paths.settings.read_text()
    (world.root / "a.csv").write_text(rows_csv(200, seed=7))
    assert read_settings(site.paths).data in settings
    timed = Timed(site, world.analyst, [(2, "delivered")])
    timed.submit(world.signed())
    timed.run(40)
    assert Slow.rows == snapshot(site).read_bytes()
    timed.gate.stores.database.close()

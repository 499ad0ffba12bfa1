"""A full disk, a gate killed while it writes, and (in `make soak`) kills over many studies."""

import random
import signal
import time

import pytest

from penstock.base.errors import GateUnavailable, LedgerError, Refused
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import State
from penstock_client.operate.site_daemon import check_before_start

pytestmark = pytest.mark.thorough

# The real service in a process whose files cannot grow: what a full disk looks like to SQLite.
FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from penstock_client.gate import service
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import read_settings

paths = SitePaths(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
size = paths.database.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
service.serve_gate(paths, read_settings(paths))
"""


def test_a_full_disk_is_said_and_loses_nothing(world):
    site = world.site()
    before = site.paths.database.read_bytes()
    gate = site.start(driver=FULL_DISK)
    refused = None
    for i in range(40):  # until the pages that the file has are used up
        try:
            site.submit(world.signed(name=f"s{i}", expires="2099-01-01T00:00:00Z"))
        except Refused as refusal:
            refused = refusal
            break
    assert refused is not None
    assert refused.reason == "ledger"
    gate.terminate()
    gate.wait(60)
    state = site.ledger()  # whole, and verified
    assert len(site.paths.database.read_bytes()) == len(before)
    assert all(c.status in ("reserved", "committed", "burnt") for c in state.charges.values())
    site.start()  # with room again, what was queued runs
    for request_id in state.charges:
        assert site.wait(request_id).state in ("delivered", "failed")
    settled = site.ledger().charges
    assert [i for i in state.charges if settled[i].status == "reserved"] == []


# The real service, killed within a transaction of which pages are in the file already.
KILL_IN_THE_FILE = """
import os, signal, sys
from pathlib import Path
from penstock_client.gate import service
from penstock_client.ledger.ledger import Ledger
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import read_settings

original = Ledger.reserve

def die(self, *args, **kwargs):
    original(self, *args, **kwargs)
    self.database.query("PRAGMA cache_size=1")
    with self.database.transaction() as connection:
        for place in range(100, 200):
            connection.execute(
                "INSERT INTO job VALUES (?, '', ?, '', 1, 'x', '', '', '', ?)",
                (f"{place}", b"x" * 3000, place),
            )
    os.kill(os.getpid(), signal.SIGKILL)

Ledger.reserve = die
paths = SitePaths(Path(sys.argv[1]))
service.serve_gate(paths, read_settings(paths))
"""


def test_a_gate_that_was_killed_while_it_wrote_starts_again(world):
    site = world.site()
    before = site.ledger()
    gate = site.start(driver=KILL_IN_THE_FILE)
    signed = world.signed()
    site.submit(signed)
    assert gate.wait(60) == -signal.SIGKILL
    assert site.paths.database.with_name("gate.db-journal").stat().st_size > 0
    with pytest.raises(LedgerError, match="start the gate"):
        site.ledger()  # a look that may not write
    assert check_before_start(site.paths) == []  # what `site start` does first
    assert site.ledger() == before
    site.start()
    assert site.wait(site.submit(signed).request_id).state == "delivered"


def whole(site) -> State:
    """The verified state of a ledger whose gate was killed: read as the next gate reads it."""
    database = Database(site.paths.database)
    try:
        return Ledger(database, None).verify(site.paths.gate_public())
    finally:
        database.close()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_random_kills_never_lose_a_charge_or_draw_twice(world, seed):
    rng = random.Random(seed)
    site = world.site(total=10.0)
    seen: dict[str, bytes] = {}
    for round_ in range(30):
        gate = site.start()
        signed = world.signed(name=f"s{round_ // 3}", release=1 + round_ % 3)
        try:
            job = site.submit(signed)
            site.submit(signed)
        except (Refused, GateUnavailable):
            job = None
        time.sleep(rng.uniform(0.0, 4.0))
        site.kill(gate)
        state = whole(site)
        lineage = state.lineages["main"]
        assert lineage.filter.spent(lineage.events()) <= lineage.epsilon
        if job is not None and job.request_id in state.charges:
            folder = site.paths.releases / job.request_id
            if (folder / "manifest.json").exists():
                seen.setdefault(job.request_id, (folder / "table.arrow").read_bytes())
    site.start()
    for request_id in site.ledger().charges:
        end = site.wait(request_id)
        status = site.ledger().charges[request_id].status
        assert status == ("committed" if end.state == "delivered" else "burnt")
        if end.state == "delivered" and request_id in seen:
            assert site.collect(request_id)[1] == seen[request_id]

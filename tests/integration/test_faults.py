"""A full disk, and (in `make soak`) kills at random moments over many studies."""

import random
import time

import pytest

from penstock.errors import GateUnavailable, Refused

# The real service in a process whose files cannot grow: what a full disk looks like to SQLite.
FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from penstock_client import service
from penstock_client.site import SitePaths, read_settings

paths = SitePaths(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
size = paths.database.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
service.serve(paths, read_settings(paths))
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
        state = site.ledger()
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

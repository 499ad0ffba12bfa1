"""How long a run takes, and how it ends, may depend on rows: until its slot none of it shows.

Seen on earlier versions: the training time told whether one target was complete (AUC .85 at ε =
.004 a probe), since steps, the end, the ledger's position and the next run's start all showed.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace

import psutil
import pytest
from tests.conftest import rows_csv
from tests.support.timed import AWAY, PLANNED, SLOT, Timed

from penstock.base.errors import Refused
from penstock.privacy.request import PrivacyRequest
from penstock.wire import gate_pb2
from penstock.wire.signed import sign_cancel
from penstock_client.cli.common import call_document
from penstock_client.gate import schedule

DONE = "delivered"
SHOWN = int(SLOT + PLANNED)
"""The tick of the first run's slot: reserved a slot after it was asked for."""


@pytest.fixture
def transcript(world):
    """What showed outside of two studies, by how the first one's run went."""
    made = []

    def show(*first: tuple[float, str], ticks: int = 100, **options):
        site = world.site(name="abcdefghij"[len(made)], csv=rows_csv(60, seed=1), total=100.0)
        policy = site.paths.policy.read_text()
        slots = policy.replace("slot_seconds = 0.25", f"slot_seconds = {SLOT:g}")
        site.paths.policy.write_text(slots)
        timed = Timed(site, world.analyst, [*first, (2, DONE)], **options)
        made.append(timed)
        names = [s.name for s in world.sites]
        timed.submit(*(world.signed(name=n, sites=tuple(names)) for n in ("one", "two")))
        return timed.run(ticks)

    yield show
    for timed in made:
        timed.gate.stores.database.close()


def states(seen, job=0):
    return [view[2 + 2 * job][0] if view[1] != AWAY else AWAY for view in seen]


def test_a_worker_ten_times_slower_looks_the_same_until_its_slot_and_after(transcript):
    fast, slow = transcript((1.8, DONE)), transcript((18, DONE))
    assert fast == slow
    assert states(fast)[SHOWN - 2] == "running"
    assert states(fast)[SHOWN - 1] == "delivered"


def test_the_ledgers_position_and_the_next_run_wait_for_the_slot(transcript):
    seen = transcript((2, DONE))
    reserved, at = seen[int(SLOT)][1], SHOWN - 1
    assert {view[1] for view in seen[int(SLOT) : at]} == {reserved}
    assert seen[at][1] == reserved + 1  # the commit
    assert set(states(seen, job=1)[:SHOWN]) == {"queued"}
    assert states(seen, job=1)[int(SHOWN + SLOT)] == "running"


def test_progress_is_quarters_of_the_planned_time(transcript):
    seen = transcript((2, DONE))
    parts = [view[2][2:] for view in seen if view[2][0] == "running"]
    assert sorted(set(parts)) == [(step, 4) for step in range(4)]
    assert [parts.count((step, 4)) for step in range(4)] == [
        4,
        5,
        5,
        5,
    ]  # from the reservation on, which no tick saw


@pytest.mark.parametrize("end", ["failed", "gate killed"])
def test_whatever_its_end_a_run_looks_the_same_until_its_slot(transcript, end):
    good, bad = transcript((2, DONE)), transcript((7, end))
    before = zip(good[: SHOWN - 1], bad, strict=False)
    assert all(a == b for a, b in before if b[1] != AWAY)
    assert states(good)[SHOWN - 1 :] == ["delivered"] * (101 - SHOWN)
    assert states(bad)[SHOWN - 1 :] == ["failed"] * (101 - SHOWN)
    assert states(good, job=1)[SHOWN:] == states(bad, job=1)[SHOWN:]


def test_a_late_run_shows_at_the_next_doubling_whenever_it_ended(transcript):
    early, late = transcript((22, DONE), ticks=120), transcript((39, DONE), ticks=120)
    assert early == late
    assert states(early).index("delivered") == int(SLOT + 2 * PLANNED) - 1


@pytest.mark.parametrize("at", [12, 25])
def test_a_cancellation_looks_the_same_whether_the_run_was_over_or_not(transcript, at):
    over, running = transcript((1, DONE), cancel=at), transcript((19, DONE), cancel=at)
    failed = transcript((1, "failed"), cancel=at)
    assert over == running == failed
    assert states(over).index("cancelled") == SHOWN - 1
    assert "delivered" not in states(over)


def test_a_release_that_was_made_before_its_cancellation_is_withheld(world):
    site = world.site()
    timed = Timed(site, world.analyst, [(1, DONE)], cancel=4)
    timed.submit(world.signed())
    timed.run(60)
    (charge,) = timed.gate.stores.ledger.state().charges.values()
    assert charge.status == "committed"  # its true end; the charge stays as it would anyway
    assert timed.gate.poll(timed.jobs[0]).state == "cancelled"
    assert not (site.paths.releases / timed.jobs[0]).exists()
    with pytest.raises(Refused, match="no release"):
        timed.gate.collect(timed.jobs[0])
    timed.gate.stores.database.close()


def test_two_worlds_look_the_same_to_the_last_bit(transcript):
    """One target is complete, or nobody is: what differs is how long the work takes."""
    nobody, one = transcript((3, DONE)), transcript((11, DONE))
    assert json.dumps(nobody) == json.dumps(one)


def test_settlements_are_salted_so_that_no_head_tells_their_time(world):
    site = world.site()
    heads = []
    for _ in range(2):
        timed = Timed(site, world.analyst, [(2, DONE)])
        timed.submit(world.signed(name=f"s{len(heads)}", privacy=PrivacyRequest(1.0, 1e-5)))
        timed.run(40)
        last = timed.gate.stores.ledger.records()[-1]
        heads.append(json.loads(last[1])["salt"])
        timed.gate.stores.database.close()
    assert len(set(heads)) == 2
    assert all(len(bytes.fromhex(salt)) == 16 for salt in heads)


def test_a_release_below_the_least_epsilon_is_refused(world):
    site = world.site()
    timed = Timed(site, world.analyst, [])
    with pytest.raises(Refused) as caught:
        timed.gate.submit(world.signed(privacy=PrivacyRequest(0.004, 1e-5)).to_bytes())
    assert caught.value.reason == "least-epsilon"
    timed.gate.stores.database.close()


# -- real processes --------------------------------------------------------------------------------


def slotted(world, seconds):
    site = world.site()
    policy = site.paths.policy.read_text()
    site.paths.policy.write_text(policy.replace("slot_seconds = 0.25", f"slot_seconds = {seconds}"))
    return site


def settled(site, request_id):
    """Wait for the run's true end, by the ledger's file; the charge."""
    deadline = time.monotonic() + 120
    while (charge := site.ledger().charges.get(request_id)) is None or charge.status == "reserved":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return charge


def position(site):
    return json.loads(site.call("Describe", gate_pb2.DescribeRequest()).json)["ledger_seq"]


def shows_at(site, request_id, charge):
    """Wait until the end shows; assert that it did not before its moment."""
    before = position(site)
    assert site.poll(request_id).state == "running"
    assert before < charge.settled_seq
    end = site.wait(request_id, seconds=240)
    now = schedule.add_seconds("1970-01-01T00:00:00Z", time.time())
    assert charge.ready_at <= schedule.find_shown_at(
        charge.time, charge.ready_at, charge.settled_at
    )
    assert now >= schedule.find_shown_at(charge.time, charge.ready_at, charge.settled_at)
    assert position(site) >= charge.settled_seq
    return end


@pytest.mark.thorough
def test_a_real_run_that_is_over_goes_on_outside_and_the_next_one_waits(world):
    site = slotted(world, 3)
    site.start()
    first, second = (
        site.submit(world.signed(name=n, privacy=PrivacyRequest(1.0, 1e-5))) for n in ("a", "b")
    )
    charge = settled(site, first.request_id)
    assert site.poll(second.request_id).state == "queued"
    shown = call_document(site.paths, "Requests")["requests"]  # the steward sees both
    assert [(r["state"], r["outside"]) for r in shown] == [
        ("delivered", "running"),
        ("queued", "queued"),
    ]
    assert list(site.ledger().charges) == [first.request_id]
    assert shows_at(site, first.request_id, charge).state == "delivered"
    assert site.wait(second.request_id).state == "delivered"
    assert site.ledger().charges[second.request_id].time >= charge.ready_at


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["worker killed", "gate killed", "cancelled"])
def test_a_real_run_that_ends_badly_goes_on_outside(world, fast, what):
    site = slotted(world, 3)
    gate = site.start()
    signed = world.signed(mechanism=replace(fast, steps=600))
    job = site.submit(signed)
    site.wait(job.request_id, ("running",))
    if what == "gate killed":
        site.kill(gate)
        site.start()
    elif what == "cancelled":
        mine = sign_cancel(signed.study_id, world.analyst)
        site.call("Cancel", gate_pb2.CancelRequest(signed_cancel=mine.to_bytes()))
    else:
        (worker,) = psutil.Process(gate.pid).children()
        os.kill(worker.pid, signal.SIGKILL)
    charge = settled(site, job.request_id)
    assert charge.status == "burnt"
    end = shows_at(site, job.request_id, charge)
    assert end.state == ("cancelled" if what == "cancelled" else "failed")

"""Real gate processes: killed at every stage, asked twice, asked too much, attacked."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest
from tests.conftest import open_world

from penstock.base.errors import GateUnavailable, Refused
from penstock.mechanisms import SlicedWasserstein
from penstock.privacy.request import PrivacyRequest
from penstock.wire import gate_pb2, gate_pb2_grpc
from penstock.wire.calls import connect
from penstock.wire.signatures import generate_key
from penstock.wire.signed import sign_cancel, sign_study
from penstock_client.cli.common import call_document, call_steward

# The real service, with one function of the gate replaced by a kill -9 of itself.
KILL_AT = """
import os, signal, sys
from pathlib import Path
from penstock_client.gate import gate, release, service
from penstock_client.work import launcher
from penstock_client.ledger.ledger import Ledger
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import read_settings

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

def before(owner, name):
    setattr(owner, name, die)

def after(owner, name):
    original = getattr(owner, name)
    def wrapped(*args, **kwargs):
        original(*args, **kwargs)
        die()
    setattr(owner, name, wrapped)

{patch}
paths = SitePaths(Path(sys.argv[1]))
service.serve_gate(paths, read_settings(paths))
"""

STAGES = {
    "before the reservation": "before(Ledger, 'reserve')",
    "after the reservation, in its transaction": "after(Ledger, 'reserve')",
    "before the worker": "before(launcher.Worker, 'run')",
    "after the worker": "after(launcher.Worker, 'run')",
    "before the release is kept": "before(release, 'keep_release')",
    "after the release is kept": "after(release, 'keep_release')",
    "before the commit": "before(Ledger, 'commit')",
    "after the commit, in its transaction": "after(Ledger, 'commit')",
}


def refused(site, signed):
    with pytest.raises(Refused) as caught:
        site.submit(signed)
    return caught.value


@pytest.mark.thorough
@pytest.mark.parametrize("stage", STAGES)
def test_a_kill_at_any_stage_costs_one_charge_or_a_burnt_one_and_never_two_draws(world, stage):
    site = world.site()
    signed = world.signed()
    gate = site.start(driver=KILL_AT.format(patch=STAGES[stage]))
    try:
        request_id = site.submit(signed).request_id
    except GateUnavailable:
        request_id = ""  # it died before it could answer
    gate.wait(60)
    assert gate.returncode == -signal.SIGKILL
    site.start()
    job = site.submit(signed)  # what a coordinator does: ask again
    assert request_id in ("", job.request_id)
    end = site.wait(job.request_id)
    charges = site.ledger().charges
    assert list(charges) == [job.request_id]
    if end.state == "delivered":
        assert charges[job.request_id].status == "committed"
        assert site.collect(job.request_id) == site.collect(job.request_id)
    else:
        assert (end.state, end.code) == ("failed", "interrupted")
        assert charges[job.request_id].status == "burnt"
        with pytest.raises(Refused, match="no release"):
            site.collect(job.request_id)
    assert not any(site.paths.work.iterdir())


def test_a_killed_worker_burns_its_charge_and_the_gate_lives(world, fast):
    site = world.site()
    gate = site.start()
    signed = world.signed(mechanism=replace(fast, steps=2000))
    job = site.submit(signed)
    site.wait(job.request_id, ("running",))
    deadline = time.monotonic() + 60
    while not (children := psutil.Process(gate.pid).children()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    children[0].send_signal(signal.SIGKILL)
    end = site.wait(job.request_id)
    assert (end.state, end.code) == ("failed", "failed")
    assert site.ledger().charges[job.request_id].status == "burnt"
    again = site.submit(world.signed(release=2))
    assert site.wait(again.request_id).state == "delivered"


def test_the_worker_dies_with_its_gate(world, fast):
    site = world.site()
    gate = site.start()
    job = site.submit(world.signed(mechanism=replace(fast, steps=10_000)))
    site.wait(job.request_id, ("running",))
    (worker,) = psutil.Process(gate.pid).children()
    site.kill(gate)
    psutil.wait_procs([worker], timeout=20)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


@pytest.fixture(scope="module")
def released():
    """One site that has delivered a study and can afford no second, for every test that changes
    nothing: its world, the study and the request."""
    with open_world() as world:
        site = world.site(total=2.5)
        site.start()
        signed = world.signed()
        job = site.submit(signed)
        assert site.wait(job.request_id).state == "delivered"
        yield world, signed, job.request_id


def test_the_same_request_costs_nothing_and_returns_the_same_bytes(released):
    world, signed, first = released
    site = world.sites[0]
    bytes_once = site.collect(first)
    seq = site.ledger().seq
    with connect(site.paths.gate_socket) as channel:
        stub = gate_pb2_grpc.GateStub(channel)
        request = gate_pb2.SubmitRequest(signed_study=signed.to_bytes())
        ids = {stub.Submit(request, timeout=20).request_id for _ in range(1000)}
    assert ids == {first}
    assert site.ledger().seq == seq
    assert site.collect(first) == bytes_once


def test_two_studies_at_once_cannot_overspend(world):
    site = world.site(total=2.5)
    site.start()
    ends = []

    def ask(name):
        try:
            job = site.submit(world.signed(name=name))
            ends.append((end := site.wait(job.request_id)).code or end.state)
        except Refused as refusal:
            ends.append(refusal.reason)  # the other one's reservation came first

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == ["budget", "budget", "delivered"]
    lineage = site.ledger().lineages["main"]
    assert lineage.filter.spent(lineage.events()) <= 2.5


def test_a_refused_study_costs_nothing_and_says_what_is_left(released):
    world, *_ = released
    site = world.sites[0]
    seq = site.ledger().seq
    refusal = refused(site, world.signed(name="other"))
    assert refusal.reason == "budget"
    assert "ask for ε <=" in str(refusal)
    assert site.ledger().seq == seq


def test_approval_by_hand(world):
    site = world.site(approval="by-hand")
    site.start()
    jobs = [site.submit(world.signed(name=n)) for n in ("yes", "no")]
    assert {j.state for j in jobs} == {"awaiting-approval"}
    shown = call_document(
        site.paths, "Preview", gate_pb2.JobRequest(request_id=jobs[0].request_id[:10])
    )
    assert shown["epsilon_autodp"] <= 2.0
    assert shown["left_after"] < shown["left_before"]
    call_steward(site.paths, "Approve", gate_pb2.JobRequest(request_id=jobs[0].request_id))
    call_steward(site.paths, "Reject", gate_pb2.RejectRequest(request_id=jobs[1].request_id))
    assert site.wait(jobs[0].request_id).state == "delivered"
    assert site.wait(jobs[1].request_id).state == "rejected"
    assert list(site.ledger().charges) == [jobs[0].request_id]


def test_a_silent_no_looks_like_no_answer(world):
    site = world.site(approval="by-hand")
    policy = site.paths.policy.read_text()
    site.paths.policy.write_text('reject = "silent"\n' + policy)
    site.start()
    signed = world.signed()
    job = site.submit(signed)
    said = call_steward(site.paths, "Reject", gate_pb2.RejectRequest(request_id=job.request_id))
    assert said.state == "rejected"
    for seen in (site.poll(job.request_id), site.submit(signed)):
        assert seen == job
    (row,) = call_document(site.paths, "Requests")["requests"]
    assert row["state"] == "rejected"
    assert "not told" in row["why"]
    with pytest.raises(Refused) as caught:
        call_steward(site.paths, "Approve", gate_pb2.JobRequest(request_id=job.request_id))
    assert caught.value.reason == "not-awaiting"
    site.paths.policy.write_text(policy)  # what was not told stays so
    assert site.poll(job.request_id).state == "awaiting-approval"
    mine = sign_cancel(signed.study_id, world.analyst)
    site.call("Cancel", gate_pb2.CancelRequest(signed_cancel=mine.to_bytes()))
    assert site.poll(job.request_id).state == "cancelled"


def test_a_release_is_fetched_in_pieces_that_are_always_the_same(released):
    world, _, request = released
    site = world.sites[0]
    manifest, table = site.collect(request)
    size = len(table)
    assert size > 1000
    for offset, length in ((0, 7), (500, 0), (size - 3, 10), (0, size + 1), (17, 1000)):
        end = offset + length if length else size
        assert site.collect(request, offset, length) == (manifest, table[offset:end])
    for beyond in (size, size + 1, 2**63, 2**64 - 1):
        assert site.collect(request, beyond) == (manifest, b"")
    with contextlib.closing(connect(site.paths.gate_socket)) as channel:
        end = gate_pb2.CollectRequest(request_id=request, offset=size)
        (part,) = list(gate_pb2_grpc.GateStub(channel).Collect(end, timeout=20))
    assert part.size == size


def test_cancel_is_free_before_the_run_and_only_for_the_signer(world):
    site = world.site(approval="by-hand")
    site.start()
    signed = world.signed()
    job = site.submit(signed)
    stranger = sign_cancel(signed.study_id, generate_key())
    with pytest.raises(Refused):
        site.call("Cancel", gate_pb2.CancelRequest(signed_cancel=stranger.to_bytes()))
    mine = sign_cancel(signed.study_id, world.analyst)
    site.call("Cancel", gate_pb2.CancelRequest(signed_cancel=mine.to_bytes()))
    assert site.poll(job.request_id).state == "cancelled"
    assert not site.ledger().charges


def test_cancel_during_the_run_burns_the_charge(world, fast):
    site = world.site()
    site.start()
    signed = world.signed(mechanism=replace(fast, steps=2000))
    job = site.submit(signed)
    site.wait(job.request_id, ("running",))
    mine = sign_cancel(signed.study_id, world.analyst)
    site.call("Cancel", gate_pb2.CancelRequest(signed_cancel=mine.to_bytes()))
    assert site.wait(job.request_id).state == "cancelled"
    assert site.ledger().charges[job.request_id].status == "burnt"


@pytest.fixture(scope="module")
def refuser():
    """One site and its gate for every test that is refused: a refusal changes nothing."""
    with open_world() as world:
        world.site().start()
        yield world
        assert not world.sites[0].ledger().charges


REFUSALS = {
    "expired": {"expires": "2021-01-01T00:00:00Z"},
    "not-yet-valid": {"not_before": "2098-01-01T00:00:00Z"},
    "federation": {"federation": "elsewhere"},
    "not-invited": {"sites": ("b",)},
    "study-budget": {"privacy": PrivacyRequest(9.0, 1e-5)},
    "wire-version": {"wire": "9.0"},
}


@pytest.mark.parametrize("code", REFUSALS)
def test_refusals_are_public_and_free(refuser, code):
    site = refuser.sites[0]
    assert refused(site, refuser.signed(**REFUSALS[code])).reason == code
    assert not site.ledger().charges


def test_a_mechanism_that_is_not_allowed_was_refused_without_those_that_are(refuser):
    refusal = refused(refuser.sites[0], refuser.signed(mechanism=SlicedWasserstein(copies=1)))
    assert refusal.reason == "mechanism"
    assert "does not allow this mechanism: it allows maf" in str(refusal)
    assert "ask its steward to add this one to `mechanisms`" in str(refusal)


def test_an_unknown_signer_is_refused(refuser):
    stranger = sign_study(refuser.study(), generate_key())
    assert refused(refuser.sites[0], stranger).reason == "unknown-signer"


def test_a_changed_study_is_refused(refuser):
    body = json.loads(refuser.signed().to_bytes())
    body["study"]["privacy"]["epsilon"] = 2.5
    with pytest.raises(Refused) as caught:
        refuser.sites[0].call(
            "Submit", gate_pb2.SubmitRequest(signed_study=json.dumps(body).encode())
        )
    assert caught.value.reason == "signature"


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"a":' * 5000])
def test_junk_is_refused_without_a_trace(refuser, data):
    with pytest.raises(Refused) as caught:
        refuser.sites[0].call("Submit", gate_pb2.SubmitRequest(signed_study=data))
    assert caught.value.reason in ("malformed", "signature")
    assert "Traceback" not in str(caught.value)


def test_sockets_and_files_have_their_modes(refuser):
    site = refuser.sites[0]
    mode = lambda p: stat.S_IMODE(os.stat(p).st_mode)  # noqa: E731
    assert mode(site.paths.gate_socket) == 0o660
    assert mode(site.paths.steward_socket) == 0o600
    assert mode(site.paths.gate_socket.parent) == 0o750
    for path in (site.paths.gate_key, site.paths.database, site.paths.trust):
        assert mode(path) == 0o600
    for path in site.paths.snapshots.iterdir():
        assert mode(path) == 0o600


NOBODY = 65534
DAEMON_GROUP = 65533

# Drops to a user before it connects, as a captured or a curious account would.
CONNECT = """
import os, socket, sys
path, groups = sys.argv[1], [int(g) for g in sys.argv[2:]]
os.setgroups(groups)
os.setgid(65534)
os.setuid(65534)
try:
    socket.socket(socket.AF_UNIX).connect(path)
    print("answered")
except PermissionError:
    print("refused")
"""


def connects(path, *groups):
    command = [sys.executable, "-I", "-S", "-c", CONNECT, str(path), *map(str, groups)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    return done.stdout.decode().strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")
def test_a_local_user_without_the_group_reaches_no_socket(world, monkeypatch):
    site = world.site()
    world.root.chmod(0o755)
    run = world.root / "run"
    run.mkdir(mode=0o750)
    os.chown(run, 0, DAEMON_GROUP)
    monkeypatch.setenv("PENSTOCK_RUN", str(run))
    assert site.paths.gate_socket == run / "gate.sock"
    site.start()
    assert stat.S_IMODE(site.paths.gate_socket.stat().st_mode) == 0o660
    assert site.paths.gate_socket.stat().st_gid == DAEMON_GROUP
    assert connects(site.paths.gate_socket) == "refused"
    assert connects(site.paths.gate_socket, DAEMON_GROUP) == "answered"
    assert connects(site.paths.steward_socket) == "refused"
    assert connects(site.paths.steward_socket, DAEMON_GROUP) == "refused"


def test_a_second_gate_is_told_who_holds_the_lock(world):
    site = world.site()
    first = site.start()
    second = site.start(wait=False)
    output = second.stdout.read().decode()
    assert second.wait(30) == 7
    assert f"pid {first.pid}" in output
    assert first.poll() is None


def test_a_stale_socket_is_said_and_replaced(world):
    site = world.site()
    site.kill(site.start())
    assert site.paths.gate_socket.exists()
    again = site.start()
    again.terminate()
    assert "left behind" in again.stdout.read().decode()
    assert again.wait(30) == 0
    assert not site.paths.gate_socket.exists()


def test_a_corrupt_ledger_stops_the_gate_and_is_left_alone(world):
    site = world.site()
    data = bytearray(site.paths.database.read_bytes())
    at = data.index(b'"kind":"version"')
    data[at : at + 6] = b"\x00" * 6
    site.paths.database.write_bytes(data)
    gate = site.start(wait=False)
    output = gate.stdout.read().decode()
    assert gate.wait(30) == 7
    assert "nothing was" in output
    assert site.paths.database.read_bytes() == data


def test_a_policy_being_edited_is_no_final_refusal(world):
    site = world.site()
    site.start()
    policy = site.paths.policy.read_text()
    site.paths.policy.write_text("mechanisms = [")
    assert refused(site, world.signed()).reason == "misconfigured"
    site.paths.policy.write_text(policy)
    assert site.wait(site.submit(world.signed()).request_id).state == "delivered"

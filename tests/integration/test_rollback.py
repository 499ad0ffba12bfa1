"""Real gates whose ledger is put back to an older copy, at every moment, and recovered."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import TestSite, rows_csv
from typer.testing import CliRunner

from penstock.base.errors import Refused
from penstock.cli.main import app
from penstock.wire import gate_pb2
from penstock.wire.canonical import canonical
from penstock.wire.manifest import read_manifest, sign_manifest
from penstock.wire.signatures import generate_key, public_hex
from penstock_client.cli.common import call_document, call_steward
from penstock_client.site.site_paths import SitePaths

pytestmark = pytest.mark.thorough


def describe(site, manifest=b""):
    reply = site.call("Describe", gate_pb2.DescribeRequest(seen_manifest=manifest))
    return json.loads(reply.json)


def penstock(*args, code=0):
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, result.output
    return result.output


def stop(site, gate):
    gate.terminate()
    assert gate.wait(60) == 0


def refused(site, signed):
    with pytest.raises(Refused) as caught:
        site.submit(signed)
    return caught.value.reason


_kept: dict[str, Any] = {}


@pytest.fixture(scope="module")
def keep(tmp_path_factory):
    """Where the one site that every test of this file copies is kept."""
    yield tmp_path_factory.mktemp("kept")
    _kept.clear()


@pytest.fixture
def restored(world, keep):
    """A site that released once before its backup and once after, and was then put back.

    The releases are put back too, as whoever restores a whole directory does. It is made once.
    """
    if not _kept:
        _kept.update(_make(world, keep))
    else:
        world.analyst = _kept["analyst"]
        world.sites.append(TestSite(SitePaths(world.root / _kept["name"]), _kept["name"]))
        shutil.copytree(keep / "old", world.sites[0].paths.root)
        shutil.copy(keep / "rows.csv", world.root / f"{_kept['name']}.csv")
    site = world.sites[0]
    site.seen, site.first, site.second = _kept["seen"], _kept["first"], _kept["second"]
    site.export, site.new = keep / "export.json", keep / "new"
    return site


def _make(world, keep):
    site = world.site()
    shutil.copy(world.root / f"{site.name}.csv", keep / "rows.csv")
    gate = site.start()
    first = site.submit(world.signed(name="first"))
    site.wait(first.request_id)
    stop(site, gate)
    shutil.copytree(site.paths.root, keep / "old")
    gate = site.start()
    second = site.submit(world.signed(name="second"))
    site.wait(second.request_id)
    seen = site.collect(second.request_id)
    stop(site, gate)
    penstock("site", "ledger", "export", keep / "export.json", "-d", site.paths.root)
    shutil.copytree(site.paths.root, keep / "new")
    shutil.rmtree(site.paths.root)
    shutil.copytree(keep / "old", site.paths.root)
    return {
        "analyst": world.analyst,
        "name": site.name,
        "seen": seen,
        "first": first.request_id,
        "second": second.request_id,
    }


def test_a_restored_gate_stops_when_it_is_shown_what_it_forgot(world, restored):
    site = restored
    gate = site.start()
    assert "stopped" not in describe(site)
    assert describe(site, site.seen[0])["stopped"] == "rolled-back"
    assert refused(site, world.signed(name="third")) == "rolled-back"
    assert refused(site, world.signed(name="first")) == "rolled-back"
    assert site.poll(site.first).state == "delivered"
    assert site.collect(site.first)[1]
    shown = call_document(site.paths, "Status")
    assert shown["stopped"] == "rolled-back"
    assert "penstock site ledger recover" in shown["remedy"]
    seq = site.ledger().seq
    stop(site, gate)
    assert "restored from an older copy" in site.paths.log.read_text()
    gate = site.start()  # and it stays so, whoever asks
    assert describe(site)["stopped"] == "rolled-back"
    assert refused(site, world.signed(name="third")) == "rolled-back"
    stop(site, gate)
    assert "restored from an older copy" in gate.stdout.read().decode()
    said = penstock("site", "check", "-d", site.paths.root, code=7)
    assert "ledger recover" in said
    assert site.ledger().seq == seq


def test_a_coordinator_cannot_stop_a_gate_by_a_lie(world, restored):
    site = restored
    gate = site.start()
    key = generate_key()
    own = read_manifest(site.seen[0], site.paths.gate_public())
    foreign = sign_manifest(replace(own, gate_key=public_hex(key)), key)
    body = json.loads(site.seen[0])
    body["manifest"]["ledger_seq"] += 1
    old = site.collect(site.first)[0]
    for lie in (foreign, canonical(body), b"junk", b"{}", b"\xff" * 1000, old):
        assert "stopped" not in describe(site, lie)
    log = site.paths.log.read_text()
    assert "a manifest that proves nothing was shown: SignatureError" in log
    assert not site.paths.evidence.exists()
    stop(site, gate)


def test_a_run_that_is_under_way_is_ended_and_burnt(world, restored, fast):
    site = restored
    site.start()
    job = site.submit(world.signed(name="long", mechanism=replace(fast, steps=2000)))
    site.wait(job.request_id, ("running",))
    waiting = site.submit(world.signed(name="next", privacy=world.study().privacy))
    assert describe(site, site.seen[0])["stopped"] == "rolled-back"
    end = site.wait(job.request_id)
    assert (end.state, end.code) == ("failed", "rolled-back")
    assert site.ledger().charges[job.request_id].status == "burnt"
    assert site.poll(waiting.request_id).state == "queued"
    assert waiting.request_id not in site.ledger().charges


def test_nothing_is_approved_while_the_ledger_is_behind(world, restored):
    site = restored
    policy = site.paths.policy.read_text()
    site.paths.policy.write_text(policy.replace('"automatic"', '"by-hand"'))
    site.start()
    job = site.submit(world.signed(name="third"))
    describe(site, site.seen[0])
    with pytest.raises(Refused) as caught:
        call_steward(site.paths, "Approve", gate_pb2.JobRequest(request_id=job.request_id))
    assert caught.value.reason == "rolled-back"
    call_steward(site.paths, "Reject", gate_pb2.RejectRequest(request_id=job.request_id))
    assert site.poll(job.request_id).state == "rejected"


@pytest.mark.parametrize("source", ["export", "database"])
def test_the_lost_records_are_taken_from_another_copy(world, restored, source):
    site = restored
    gate = site.start()
    describe(site, site.seen[0])
    root = site.paths.root
    file = site.export if source == "export" else site.new / "ledger" / "gate.db"
    said = penstock("site", "ledger", "recover", "--from", file, "-d", root, code=7)
    assert "another process holds this site's lock" in said
    stop(site, gate)
    made = json.loads(penstock("site", "ledger", "recover", "--from", file, "--json", "-d", root))
    assert (made["records"], made["burnt"], made["exhausted"]) == (2, 0, [])
    # The second release itself was lost with the directory; its charge is back.
    site.start()
    assert "stopped" not in describe(site, site.seen[0])
    assert list(site.ledger().charges) == [site.first, site.second]
    again = site.submit(world.signed(name="second"))
    assert again.request_id == site.second
    end = site.wait(site.second)
    # An export does not know its job, a database does: in neither case is there a second draw.
    assert (end.state, end.code) == ("failed", "interrupted")
    assert len(site.ledger().charges) == 2
    third = site.submit(world.signed(name="third", privacy=replace(world.study().privacy)))
    assert site.wait(third.request_id).state == "delivered"
    assert site.ledger().charges[third.request_id].status == "committed"


def test_without_another_copy_everything_that_was_left_is_charged(world, restored):
    site = restored
    gate = site.start()
    describe(site, site.seen[0])
    stop(site, gate)
    root = site.paths.root
    said = penstock("site", "ledger", "recover", "-d", root, code=2)
    assert "--accept-worst-case" in said
    penstock("site", "ledger", "recover", "--accept-worst-case", "-d", root)
    assert "records were lost" in penstock("site", "ledger", "show", "-d", root)
    assert "whole" in penstock("site", "ledger", "verify", "-d", root)
    gate = site.start()
    assert refused(site, world.signed(name="third")) == "not-ready"
    stop(site, gate)
    penstock("site", "check", "--accept", "-d", root)
    gate = site.start()
    assert "stopped" not in describe(site, site.seen[0])
    assert refused(site, world.signed(name="third")) == "closed"
    stop(site, gate)
    # Another data set must be declared to be one; then its releases stand after all others.
    settings = site.paths.settings.read_text()
    site.paths.settings.write_text(settings.replace('lineage = "main"', 'lineage = "other"'))
    said = penstock("site", "check", "--accept", "-d", root, code=7)
    assert "--new-data" in said
    # It is no word alone: who was in the lost data set is still known.
    said = penstock("site", "check", "--accept", "--new-data", "-d", root, code=7)
    assert "200 persons of these rows are, or were, in main" in said
    (root.parent / f"{site.name}.csv").write_text(rows_csv(200, seed=77))
    penstock("site", "check", "--accept", "--new-data", "-d", root)
    site.start()
    job = site.submit(world.signed(name="third"))
    assert site.wait(job.request_id).state == "delivered"
    old = read_manifest(site.seen[0], site.paths.gate_public())
    new = read_manifest(site.collect(job.request_id)[0], site.paths.gate_public())
    assert new.ledger_seq > old.ledger_seq
    assert "stopped" not in describe(site, site.collect(job.request_id)[0])


def test_a_ledger_put_back_alone_is_found_out_by_the_kept_releases(world, restored):
    site = restored
    shutil.copytree(site.new / "releases", site.paths.releases, dirs_exist_ok=True)
    site.start()
    assert describe(site)["stopped"] == "rolled-back"


def test_the_gate_is_never_stopped_by_its_own_kills(world):
    site = world.site()
    seen = b""
    for name in ("a", "b", "c"):
        gate = site.start()
        job = site.submit(world.signed(name=name, privacy=replace(world.study().privacy)))
        if site.wait(job.request_id).state == "delivered":
            seen = site.collect(job.request_id)[0]
        site.kill(gate)
        site.start()
        assert "stopped" not in describe(site, seen)
        site.close()


def test_evidence_that_cannot_be_stored_stops_the_gate_all_the_same(world, restored):
    site = restored
    site.start()
    site.paths.evidence.mkdir()  # nothing can be renamed over it
    (site.paths.evidence / "x").touch()
    assert describe(site, site.seen[0])["stopped"] == "rolled-back"
    assert refused(site, world.signed(name="third")) == "rolled-back"
    shutil.rmtree(site.paths.evidence)
    describe(site, site.seen[0])
    assert Path(site.paths.evidence).is_file()

"""Who decided what: a second chain that the ledger names; a silent refusal shows nowhere else."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
from multiprocessing import get_context
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.base.errors import InvalidInput, LedgerCorrupt, LedgerError
from penstock.cli.main import app
from penstock.wire.messages import JobState
from penstock.wire.signatures import generate_key, public_hex
from penstock_client.gate.gate import Gate
from penstock_client.gate.running import Runner
from penstock_client.gate.stores import Stores
from penstock_client.ledger import decisions as kept
from penstock_client.ledger import replay
from penstock_client.ledger.decisions import Decisions, Who
from penstock_client.ledger.sqlite_file import hold_exclusively
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import read_settings

SCRIPT = Path(__file__).parents[4] / "deploy" / "verify_ledger.py"
_spec = importlib.util.spec_from_file_location("verify_ledger", SCRIPT)
script = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)


def kinds(paths: SitePaths) -> list[str]:
    return [one["kind"] for one in kept.read_decisions(paths)]


def command(*words: object, env: dict[str, str] | None = None, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(w) for w in words], env=env)
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture
def site(world):
    return world.site("a", approval="by-hand")


@pytest.fixture
def gate(site):
    """A gate in this process, which no worker is started for."""
    with hold_exclusively(site.paths.lock):
        stores = Stores(site.paths, read_settings(site.paths))
        made = Gate(stores, Runner(stores))
        made.runner.settlement.recover()
        yield made
        stores.database.close()
        stores.decisions.close()


def test_decisions_left_no_trace(world, site, gate):
    first, second = (world.signed(name=name).to_bytes() for name in ("one", "two"))
    one, two = gate.submit(first), gate.submit(second)
    seq = gate.stores.ledger.state().seq
    gate.approve(one.request_id, Who(7, "ann", {"SUDO_USER": "root"}), "asked by the board")
    gate.reject(two.request_id)
    *_, approved, rejected = kept.read_decisions(site.paths)
    assert (approved["kind"], rejected["kind"]) == ("approve", "reject")
    assert approved["request"] == one.request_id
    assert approved["by"] == {"uid": 7, "user": "ann", "claimed": {"SUDO_USER": "root"}}
    assert approved["reason"] == "asked by the board"
    assert rejected["by"]["uid"] == os.getuid()
    assert gate.stores.ledger.state().seq == seq  # nothing of it shows in what is published


def test_a_silent_refusal_is_on_record_and_nowhere_else(world, site, gate):
    policy = site.paths.policy
    policy.write_text(policy.read_text().replace("approval", 'reject = "silent"\napproval'))
    job = gate.submit(world.signed().to_bytes())
    before = gate.describe()
    gate.reject(job.request_id)
    assert gate.describe() == before
    assert gate.poll(job.request_id).state is JobState.AWAITING
    assert kept.read_decisions(site.paths)[-1]["silent"] is True


def test_a_decision_that_cannot_be_recorded_is_not_carried_out(world, site, gate, monkeypatch):
    job = gate.submit(world.signed().to_bytes())

    def full(*_: object, **__: object) -> None:
        raise LedgerError("no space left")

    monkeypatch.setattr(gate.stores.decisions, "append", full)
    for decide in (gate.approve, gate.reject):
        with pytest.raises(LedgerError):
            decide(job.request_id)
    assert gate.stores.jobs.get(job.request_id).state is JobState.AWAITING


def test_what_the_network_asks_reads_nothing_of_how_runs_ended(world, site, gate, monkeypatch):
    """A note is written at a run's true end: not even the time of an answer may tell of it."""
    data, asked = world.signed().to_bytes(), []
    job = gate.submit(data)
    gate.stores.jobs.note(job.request_id, "ran out of memory")
    query = gate.stores.database.query

    def listening(text: str, *values: object):
        asked.append(text)
        return query(text, *values)

    monkeypatch.setattr(gate.stores.database, "query", listening)
    gate.poll(job.request_id)
    gate.submit(data)
    assert asked
    assert not any("job_note" in text for text in asked)
    gate.requests()  # the steward's
    assert any("job_note" in text for text in asked)


def test_a_reservation_names_the_decisions_that_led_to_it(world, site, gate):
    job = gate.submit(world.signed().to_bytes())
    gate.approve(job.request_id)
    head = gate.stores.decisions.head
    gate.runner._reserve(gate.stores.jobs.get(job.request_id), world.signed(), 1.0)
    charge = gate.stores.ledger.state().charges[job.request_id]
    assert charge.decisions == head
    assert charge.study_digest
    assert charge.plan_digest
    assert (
        replay.compare_decisions(gate.stores.ledger.state(), kept.read_decisions(site.paths)) == []
    )
    export = {
        **gate.stores.ledger.export(gate.stores.public_key),
        "decisions": kept.export_decisions(site.paths),
    }
    report = script.verify(export, gate.stores.public_key)
    assert report["ok"], report["problems"]
    assert [one["kind"] for one in report["decisions"]][-1] == "approve"
    # Cut off at the end, changed, or signed by another: all are found.
    short = {**export, "decisions": export["decisions"][:-1]}
    assert "does not hold" in script.verify(short)["problems"][0]["what"]
    for field, value in (("reason", "another"), ("time", "2030-01-01T00:00:00.000000Z")):
        entries = [dict(e) for e in export["decisions"]]
        body = {**json.loads(entries[1]["body"]), field: value}
        entries[1]["body"] = json.dumps(
            body, sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
        assert (
            "decision 2" in script.verify({**export, "decisions": entries})["problems"][0]["what"]
        )
    gone = replay.compare_decisions(
        gate.stores.ledger.state(), kept.read_decisions(site.paths)[:-1]
    )
    assert "not here" in gone[0]


def test_policy_and_trust_are_recorded_as_found(world, site, gate):
    first = kinds(site.paths)
    assert first == ["open", "policy", "certify", "trust"]
    gate.submit(world.signed().to_bytes())
    assert kinds(site.paths) == first  # nothing changed
    policy = site.paths.policy
    policy.write_text(policy.read_text().replace("study_epsilon = 3.0", "study_epsilon = 2.5"))
    gate.submit(world.signed(name="other").to_bytes())
    *_, noticed = kept.read_decisions(site.paths)
    assert noticed["kind"] == "policy"
    assert noticed["digest"] == kept.file_digest(policy.read_bytes())
    assert "study_epsilon = 2.5" in noticed["text"]


def test_trust_is_recorded_while_the_gate_holds_the_sites_lock(world, site, gate, tmp_path):
    public = tmp_path / "bob.pub"
    public.write_text(public_hex(generate_key()) + "\n")
    at = ("-d", site.paths.root)
    asked = ("--label", "bob", "--epsilon", 1, "--expires", "2099-01-01", "--reason", "new here")
    command("site", "trust", "add", public, *asked, *at, env={"SUDO_USER": "eve", "SUDO_UID": "9"})
    command("site", "trust", "revoke", "bob", *at)
    gate.stores.decisions.notice(site.paths)  # the commands' own files are no news
    *_, added, revoked = kept.read_decisions(site.paths)
    assert (added["kind"], revoked["kind"]) == ("trust-add", "trust-revoke")
    assert added["signer"]["label"] == "bob"
    assert added["by"]["claimed"] == {"SUDO_UID": "9", "SUDO_USER": "eve"}
    assert added["reason"] == "new here"
    assert revoked["signers"][0]["label"] == "bob"
    shown = command("site", "ledger", "decisions", *at)
    assert "trust-add" in shown
    assert "(claimed:" in shown
    assert "eve" in shown
    assert "new here" in shown


def test_a_check_is_recorded_with_what_was_declared(site):
    at = ("-d", site.paths.root)
    command("site", "check", "--accept", "--new-frame", "--reason", "again", *at)
    *_, one = kept.read_decisions(site.paths)
    assert (one["kind"], one["reason"], one["declared"]) == ("certify", "again", ["new_frame"])


def test_a_chain_that_was_changed_is_found(site):
    paths = site.paths
    with sqlite3.connect(paths.decisions) as connection:
        connection.execute("DROP TRIGGER decision_no_update")
        connection.execute("UPDATE decision SET body = replace(body, 'main', 'mine')")
    with pytest.raises(LedgerCorrupt, match="decision"):
        kept.read_decisions(paths)
    with hold_exclusively(paths.lock), pytest.raises(LedgerCorrupt):
        Stores(paths, read_settings(paths))


def test_decisions_that_were_lost_are_said_to_be(world, site, gate):
    job = gate.submit(world.signed().to_bytes())
    gate.approve(job.request_id)
    named = gate.stores.decisions.head
    assert gate.stores.decisions.compare(named)
    gate.stores.decisions.close()
    site.paths.decisions.unlink()
    gate.stores.decisions = Decisions(site.paths, site.paths.key())
    assert not gate.stores.decisions.compare(named)
    assert not gate.stores.decisions.compare(named)  # said once
    assert kinds(site.paths) == ["lost"]


def _append(root: Path, count: int) -> None:
    paths = SitePaths(root)
    made = Decisions(paths, paths.key())
    for place in range(count):
        made.append("approve", Who(place))
    made.close()


def test_processes_that_decide_at_once_make_one_chain(site):
    before = len(kept.read_decisions(site.paths))
    context = get_context("fork")
    several = [context.Process(target=_append, args=(site.paths.root, 5)) for _ in range(3)]
    for one in several:
        one.start()
    for one in several:
        one.join()
    assert [p.exitcode for p in several] == [0, 0, 0]
    assert len(kept.read_decisions(site.paths)) == before + 15


def test_a_reason_that_is_none_is_refused(site):
    with pytest.raises(InvalidInput):
        kept.check_reason("x" * 2000)

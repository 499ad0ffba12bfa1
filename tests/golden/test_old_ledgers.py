"""Ledgers of the first format open, verify, are used, and go on in the second.

And so do a site and a coordinator that version 0.1.0 wrote (ledgers of format 2, a store of format
4), which holds later versions, and other orders of the source, against it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import sqlite3
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.golden.mechanisms import differences
from tests.support.here import GateHere
from tests.support.ledgers import DIGESTS
from typer.testing import CliRunner

from penstock.base.errors import BudgetExceeded, InvalidInput, LedgerError
from penstock.cli.main import app
from penstock.privacy.events import Gaussian, NoisyDescent
from penstock.wire.messages import JobState
from penstock.wire.signatures import generate_key, private_from_pem, public_hex
from penstock.wire.signed import read_signed_study, sign_study
from penstock_client.gate.jobs import Jobs
from penstock_client.ledger import decisions as kept
from penstock_client.ledger import replay
from penstock_client.ledger.budget import summarize_budget
from penstock_client.ledger.chain import FORMAT
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import Charge, Unit
from penstock_client.onboarding.certification import Declared, certify_rows
from penstock_client.onboarding.inspection import inspect_rows
from penstock_client.site.signers import Signer, read_trust, write_trust
from penstock_client.site.site_paths import SitePaths
from penstock_client.site.site_settings import read_settings
from penstock_server.install.founding import open_coordinator
from penstock_server.report.composition import FORMAT_VERSION
from penstock_server.results import production
from penstock_server.results.material import gather

DATA = Path(__file__).parent / "data" / "ledger-1"
SITE, HUB = DATA.with_name("ledger-2") / "site", DATA.with_name("coordinator-4")
KEY = private_from_pem((DATA / "gate.pem").read_bytes())
PUBLIC = public_hex(KEY)

_spec = importlib.util.spec_from_file_location(
    "verify_ledger", Path(__file__).parents[2] / "deploy" / "verify_ledger.py"
)
script = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)


@pytest.fixture
def opened(tmp_path):
    def open_(name: str) -> Ledger:
        path = tmp_path / "gate.db"
        shutil.copy(DATA / name, path)
        path.chmod(0o600)
        return Ledger(Database(path), KEY)

    return open_


def charge(name: str, sigma: float, **more) -> Charge:
    values = {"lineage": "main", "version": 2, "study_id": "s", "signer": "ann", "mechanism": "maf"}
    values |= {"events": (Gaussian(sigma),), "delta": 1e-5}
    return Charge(id=name, **{**DIGESTS, **values, **more})


def ok(ledger: Ledger) -> bool:
    """By Penstock and by the auditor's script alike."""
    export = ledger.export(PUBLIC)
    theirs = script.verify(export, PUBLIC)
    ours = replay.verify_ledger(replay.read_records(export), PUBLIC)
    assert theirs["ok"] == (not ours.findings), (theirs["problems"], ours.findings)
    return theirs["ok"]


def test_an_old_ledger_is_opened_verified_and_read_as_it_was(opened):
    ledger = opened("main.db")
    state = ledger.verify(PUBLIC)
    assert (state.format, state.seq) == (1, 9)
    assert {c.id: c.status for c in state.charges.values()} == {
        "kept": "committed",
        "burnt": "burnt",
        "open": "reserved",
    }
    assert state.charges["burnt"].events == (NoisyDescent(30.0, 0.95, 200, label="chain"),)
    assert state.charges["kept"].study_digest == ""
    assert state.lineages["main"].unit is None
    assert [v.persons for v in state.lineages["main"].versions] == [200, 212]
    assert [job.request_id for job in Jobs(ledger.database).all()] == ["kept", "burnt", "open"]
    (row,) = summarize_budget(state)
    assert row["unit"] is None
    assert ok(ledger)


def test_reading_an_old_ledger_writes_nothing(opened, tmp_path):
    before = (DATA / "main.db").read_bytes()
    ledger = opened("main.db")
    ledger.verify(PUBLIC)
    ledger.export(PUBLIC)
    ledger.database.close()
    assert (tmp_path / "gate.db").read_bytes() == before


def test_an_old_ledger_is_used_and_its_format_rises_by_a_record(opened):
    ledger = opened("main.db")
    old = [body for _, body, _, _ in ledger.records()]
    ledger.burn("open", "interrupted")
    state = ledger.reserve(charge("new", 20.0), signer_epsilon=6.0)
    bodies = [body for _, body, _, _ in ledger.records()]
    assert bodies[: len(old)] == old  # records are never rewritten
    kinds = [json.loads(body)["kind"] for body in bodies[len(old) :]]
    assert kinds == ["format", "burn", "reserve"]
    assert state.format == FORMAT == 2
    assert ok(ledger)
    # From here on all is asked for.
    with pytest.raises(LedgerError):
        ledger.add_version("main", 212, "f3")  # without a unit
    ledger.fix_unit("main", Unit("id", 3))
    with pytest.raises(LedgerError, match="another unit"):
        ledger.fix_unit("main", Unit("id", 4))
    with pytest.raises(LedgerError, match="212 persons"):
        ledger.add_version("main", 220, "f3")
    assert ledger.add_version("main", 220, "f3", new_frame=True) == 3
    assert ok(ledger)
    assert ledger.verify(PUBLIC).lineages["main"].unit == Unit("id", 3)


def test_an_older_penstock_refuses_a_ledger_that_rose(opened, tmp_path):
    path = tmp_path / "gate.db"

    def version() -> int:
        with sqlite3.connect(path) as connection:
            return connection.execute("PRAGMA user_version").fetchone()[0]

    ledger = opened("main.db")
    assert version() == 1  # opened is not yet written
    ledger.commit("open")
    ledger.database.close()
    assert version() == 2  # which an older Penstock says it cannot read


def test_renamed_data_sets_that_are_together_over_budget_open_and_are_closed(opened):
    ledger = opened("renamed.db")
    state = ledger.verify(PUBLIC)
    for name, lineage in state.lineages.items():
        assert not lineage.over
        assert state.joint(name).over
        assert state.closed(name)
        with pytest.raises(BudgetExceeded, match="never declared disjoint"):
            ledger.reserve(charge("x", 1e6, version=1, lineage=name), signer_epsilon=3.0)
    rows = summarize_budget(state)
    assert [row["over"] for row in rows] == [True, True]
    assert [row["together_with"] for row in rows] == [["renamed"], ["main"]]
    assert rows[0]["spent_epsilon"] > 3.0
    assert rows[0]["left_epsilon"] == 0


def test_the_verifier_said_ok_of_one_data_set_under_two_names(opened):
    ledger = opened("renamed.db")
    assert not ok(ledger)
    report = script.verify(ledger.export(PUBLIC), PUBLIC)
    (problem,) = report["problems"]
    assert "never declared disjoint" in problem["what"]
    assert [one["together_with"] for one in report["lineages"]] == [["renamed"], ["main"]]
    joint = ledger.state().joint("main")
    whole = joint.filter.spent(joint.events())
    assert report["lineages"][0]["spent_epsilon"] == pytest.approx(whole, rel=1e-6)
    assert "together" in script.show(report)


def test_a_recovered_ledger_goes_on(opened):
    ledger = opened("recovered.db")
    state = ledger.verify(PUBLIC)
    assert state.lineages["main"].exhausted
    assert state.lineages["new"].disjoint  # declared to be in no data set before
    assert not state.closed("new")
    assert ok(ledger)
    ledger.reserve(charge("more", 9.0, version=1, lineage="new"), signer_epsilon=3.0)
    ledger.burn("more", "failed")
    assert ok(ledger)


def test_a_ledger_of_a_format_to_come_is_refused_by_name(opened):
    ledger = opened("main.db")
    with pytest.raises(LedgerError, match="newer Penstock"):
        ledger.append("format", format=3)


def test_a_site_with_an_old_ledger_is_certified_again(world):
    site = world.site("a")
    paths = site.paths
    for name, place in (("gate.pem", paths.gate_key), ("main.db", paths.database)):
        shutil.copy(DATA / name, place)
        place.chmod(0o600)
    paths.decisions.unlink()
    shutil.rmtree(paths.identities)

    def certify(**declared) -> int:
        settings = read_settings(paths)
        new_frame = declared.get("new_frame", False)
        checked, _ = inspect_rows(paths, settings, new_frame=new_frame)
        return certify_rows(paths, settings, checked, accept=True, declared=Declared(**declared))

    with pytest.raises(InvalidInput, match="main has a frame of 212"):
        certify()
    assert site.ledger().format == 1  # what is refused writes nothing
    # Nobody knows who is in it: no second data set before it was certified again.
    text = paths.settings.read_text()
    paths.settings.write_text(text.replace('lineage = "main"', 'lineage = "other"'))
    with pytest.raises(LedgerError, match="nobody knows who is in main"):
        certify(disjoint=True)
    paths.settings.write_text(text)
    assert certify(new_frame=True, reason="the declared frame") == 3
    state = site.ledger()
    assert state.format == 2
    assert state.lineages["main"].unit == Unit(None, 1)
    assert len(state.charges) == 3
    assert kept.read_decisions(paths)[-1]["reason"] == "the declared frame"


# -- a site and a coordinator of version 0.1.0 -------------------------------------------------


@pytest.fixture
def site():
    """A copy of the site; in a short folder, for the sake of its sockets."""
    root = Path(tempfile.mkdtemp(prefix="pk-"))
    paths = SitePaths(root / "site")
    shutil.copytree(SITE, paths.root)
    paths.make()
    for path in (paths.gate_key, paths.database, paths.decisions):
        path.chmod(0o600)  # which git does not keep
    yield paths
    shutil.rmtree(root)


@contextlib.contextmanager
def gate_of(paths: SitePaths):
    here = GateHere(paths)
    try:
        yield here.gate
    finally:
        here.close()


def told(*words: object) -> str:
    done = CliRunner().invoke(app, [str(w) for w in words])
    assert done.exit_code == 0, done.output
    return done.stdout


def verified(paths: SitePaths, tmp_path: Path) -> dict:
    """What `ledger verify` says of a site, and of its export, and the auditor's script likewise."""
    found = json.loads(told("site", "ledger", "verify", "--json", "-d", paths.root))
    export = tmp_path / f"{found['head']}.json"
    told("site", "ledger", "export", export, "--decisions", "-d", paths.root)
    assert "decisions, chain and signatures whole" in told("site", "ledger", "verify", export)
    theirs = script.verify(json.loads(export.read_text()), paths.gate_public())
    assert theirs["ok"], theirs["problems"]
    assert found["ok"]
    return found


def statuses(paths: SitePaths) -> list[str]:
    database = Database(paths.database, read_only=True)
    with contextlib.closing(database):
        state = Ledger(database, None).verify(paths.gate_public())
    return [c.status for c in state.charges.values()]


DECISIONS = ["open", "policy", "certify", "policy", "trust", "reject", "approve"]


def test_a_site_of_0_1_0_is_verified_as_it_was_left(site, tmp_path):
    found = verified(site, tmp_path)
    assert (found["records"], found["charges"], found["decisions"]) == (9, 3, len(DECISIONS))
    assert statuses(site) == ["committed", "burnt", "reserved"]
    assert [d["kind"] for d in kept.read_decisions(site)] == DECISIONS
    reasons = {d["kind"]: d["reason"] for d in kept.read_decisions(site)}
    assert (reasons["approve"], reasons["reject"]) == ("as agreed", "not ours")


def test_a_site_of_0_1_0_answers_as_before_and_is_charged_anew(site, tmp_path):
    (release,) = site.releases.iterdir()
    with contextlib.closing(Database(site.database, read_only=True)) as database:
        (job,) = [j for j in Jobs(database).all() if j.state is JobState.DELIVERED]
    asked = read_signed_study(job.signed).study
    analyst = generate_key()
    signer = Signer(public_hex(analyst), "another", 5.0, "2099-12-31T00:00:00Z")
    write_trust(site.trust, read_trust(site.trust).add(signer))
    with gate_of(site) as gate:
        assert statuses(site) == ["committed", "burnt", "burnt"]  # what a killed gate left open
        # Asked again, it answers with the bytes that it gave then, at no cost.
        assert gate.submit(job.signed).request_id == job.request_id == release.name
        manifest, _, parts = gate.collect(job.request_id)
        assert manifest == (SITE / "releases" / release.name / "manifest.json").read_bytes()
        assert b"".join(parts) == (SITE / "releases" / release.name / "table.arrow").read_bytes()
        # And what is asked for the first time is decided, charged and made.
        again = sign_study(replace(asked, name="again"), analyst)
        request = gate.submit(again.to_bytes()).request_id
        gate.approve(request, reason="once more")
        limit = time.monotonic() + 120
        while gate.poll(request).state is not JobState.DELIVERED:
            assert time.monotonic() < limit, gate.requests()
            time.sleep(0.05)
        assert statuses(site) == ["committed", "burnt", "burnt", "committed"]
    assert verified(site, tmp_path)["charges"] == 4
    assert [d["kind"] for d in kept.read_decisions(site)][len(DECISIONS) :] == ["trust", "approve"]


def test_a_coordinator_of_0_1_0_has_its_study_pulled_and_pools_it_as_before(tmp_path):
    root = tmp_path / "hub"
    shutil.copytree(HUB, root)
    (root / "access.key").chmod(0o600)
    with contextlib.closing(sqlite3.connect(root / "coordinator.db")) as database:
        database.executescript((HUB / "store.sql").read_text())
    hub = open_coordinator(root)  # brought up to date in place
    (row,) = hub.store.studies.all()
    assert (row.name, hub.status("trial")["state"]) == ("trial", "finished")
    told("pull", "trial", "--out", tmp_path / "out", "--refits", "-c", root)
    pulled = json.loads((tmp_path / "out" / "report.json").read_text())
    (known,) = [json.loads(p.read_text()) for p in HUB.glob("studies/*/report.json")]
    assert pulled.pop("format_version") == FORMAT_VERSION
    assert known.pop("format_version") == "1.3"
    known |= {"effects": [], "holds": []}  # 1.4 has them; nothing was planted then
    known |= {"survival": [], "differences": []}  # 1.5 has them, of a report that is made anew
    known |= {"transitions": []}  # and 1.6, which also says on what scale an answer is told
    known |= {
        "changes": [],
        "crosstabs": [],
        "sites": [{**site, "persons": None} for site in known["sites"]],
    }  # 1.8
    known |= {"joint": None, "guarantees": None}  # 1.9: each site made its own release then
    known |= {"between_sites": []}  # 1.10, of one release of all sites
    known |= {"sensitivity_analysis": [], "beside": None, "baseline": None}  # 1.11
    added = {"held": None, "robust": None, "scale": "plain"}
    known["estimands"] = [{**added, **e} for e in known["estimands"]]
    assert pulled == known
    rows = {n: len(pq.read_table(tmp_path / "out" / f"{n}.parquet")) for n in ("pooled", "refits")}
    assert rows == {"pooled": 194, "refits": 113}
    (tmp_path / "again").mkdir()
    built = production.build_results(gather(hub, row, row.finished), tmp_path / "again")
    written = json.loads(json.dumps(built, sort_keys=True))
    assert written.pop("format_version") == FORMAT_VERSION
    # What 1.5 adds to a report that is made anew, of the tables that were kept.
    (apart,) = written["differences"]  # and no curve: no question is about a duration
    assert 0 < apart.pop("copies") < apart.pop("refits")
    exact = apart.pop("exact")  # of 1.7
    assert exact["others"] is None
    assert 0 < exact["halves"] <= exact["largest"]
    assert apart == {"site": "site", "others": None, "columns": []}
    written["differences"] = []
    whole, site = written["baseline"]["groups"]  # of 1.11, of one site
    assert site["site"] == "site"
    assert whole == {**site, "site": None}
    assert 2 * site["rows"] == rows["pooled"]
    written["baseline"] = None
    slope, mean = written["estimands"]
    assert slope["robust"]["ratio"] == pytest.approx(1, abs=0.1)
    slope["robust"] = None
    assert mean["robust"] is None
    for site in [*slope["sites"], *mean["sites"]]:
        assert site.pop("correction") == 0  # of 1.12: nothing is corrected of single refits
    for estimand in known["estimands"]:  # 1.11 pools by REML; of one site that is the same number
        assert estimand["random"].pop("method") == "dl"
        estimand["random"]["method"] = "reml"
    (said,) = (limit for limit in written["limits"] if limit not in known["limits"])
    assert said.startswith("The headline is of sites like these")  # of 1.13
    written["limits"].remove(said)
    assert differences(written, json.loads(json.dumps(known, sort_keys=True))) == []
    hub.store.close()

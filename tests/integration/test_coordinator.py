"""The whole path: real gates, a real pump, and what the analyst pulls."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from importlib.resources import files

import grpc
import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.support.local import ended, network, run

from penstock.analyst import ALWAYS
from penstock.base.errors import CoordinatorError
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.events import from_dict
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.wire import gate_pb2, gate_pb2_grpc
from penstock.wire.calls import connect
from penstock.wire.signed import sign_cancel
from penstock_client.cli.common import call_document
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_server.install.enrolment import enrol_site
from penstock_server.install.founding import make_coordinator, open_coordinator
from penstock_server.results import production
from penstock_server.transport.pump import keep_pumping

PERSONS = {"a": 120, "b": 90}
FORMULA = "=1+1"
SCHEMA = Schema(
    columns=(
        Column("age", "continuous", lower=18, upper=100, decimals=0),
        Column("score", "continuous", lower=-50, upper=50, decimals=3),
        Column("ward", "categorical", levels=(FORMULA, "@b", "-c")),
    )
)
ESTIMAND = Estimand("effect", "ols", "score", "age", per=10.0)
EXAMINED = ("methods.csv", "influence.csv", "cumulative.csv")
FILES = {*ALWAYS, *EXAMINED, "baseline.csv", "pooled.parquet", "pooled.csv"}


def gates(world):
    """The world's gates, reached without Flower's processes."""
    return network({site.name: site.paths.gate_socket for site in world.sites})


def rows(n, seed):
    rng = np.random.default_rng(seed)
    age = rng.integers(30, 80, n)
    score = 0.3 * (age - 55) + rng.normal(0, 3, n)
    ward = rng.choice(SCHEMA["ward"].levels, n)
    lines = [f"{a},{s:.3f},{w}" for a, s, w in zip(age, score, ward, strict=True)]
    return "\n".join(["age,score,ward", *lines]) + "\n"


def prepare(world, folder, **policy):
    """Two gates that run, and a coordinator that knows them."""
    make_coordinator(folder)
    coordinator = open_coordinator(folder)
    for seed, (name, n) in enumerate(PERSONS.items()):
        site = world.site(name, csv=rows(n, seed), schema=SCHEMA, **policy)
        site.start(wait=seed == len(PERSONS) - 1)  # side by side
        enrol_site(coordinator, json.loads(site.paths.join.read_text()))
    for site in world.sites:
        until(lambda site=site: site.paths.gate_socket.exists())
    return coordinator


def study(world, **changes):
    return world.signed(schema=SCHEMA, estimands=(ESTIMAND,), quorum=2, **changes)


def until(done, seconds=120):
    limit = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < limit, "it takes too long"
        time.sleep(0.05)


def export(site):
    """The ledger as `penstock site ledger export` writes it."""
    database = Database(site.paths.database, read_only=True)
    try:
        return json.dumps(Ledger(database, None).export(site.paths.gate_public()))
    finally:
        database.close()


def approve(site, request_id):
    with connect(site.paths.steward_socket) as channel:
        request = gate_pb2.JobRequest(request_id=request_id)
        gate_pb2_grpc.StewardStub(channel).Approve(request, timeout=20)


_made: dict[str, object] = {}


@pytest.fixture
def made(world, tmp_path_factory):
    """One finished study for all tests of this file that only look at results."""
    if not _made:
        folder = tmp_path_factory.mktemp("coordinator") / "c"
        coordinator = prepare(world, folder)
        study_id = coordinator.submit(study(world))
        run(coordinator, gates(world), stop=lambda: ended(coordinator, study_id))
        _made.update(
            coordinator=coordinator,
            study=study_id,
            exports={s.name: export(s) for s in world.sites},
            joins={s.name: json.loads(s.paths.join.read_text()) for s in world.sites},
        )
    return _made


def pull(made, out, *, copies="one"):
    production.pull_results(made["coordinator"], made["study"], out, copies=copies)
    return out


def test_a_study_ends_with_its_files(made, tmp_path):
    status = made["coordinator"].status(made["study"])
    assert status["state"] == "finished", status
    out = pull(made, tmp_path / "out")
    assert {p.name for p in out.iterdir()} == FILES
    assert all(p.stat().st_size > 0 for p in out.iterdir())


def test_the_report_validates(made, tmp_path):
    report = json.loads((pull(made, tmp_path) / "report.json").read_text())
    text = files("penstock_server.report").joinpath("report.schema.json").read_text()
    schema = json.loads(text)
    jsonschema.validators.validator_for(schema)(schema).validate(report)
    assert [s["site"] for s in report["sites"]] == ["a", "b"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**report, "sites": [{}]}, schema)


@pytest.mark.parametrize(("asked", "copies"), [("one", 1), ("all", 3)])
def test_the_pooled_table_holds_every_sites_rows(made, tmp_path, asked, copies):
    table = pq.read_table(pull(made, tmp_path, copies=asked) / "pooled.parquet")
    assert table.column_names == ["_site", "_copy", *SCHEMA.names]
    pairs = list(zip(table["_site"].to_pylist(), table["_copy"].to_pylist(), strict=True))
    report = json.loads((pull(made, tmp_path) / "report.json").read_text())
    counted = {s["site"]: s["rows"] for s in report["sites"]}
    assert all(1 <= rows <= PERSONS[site] for site, rows in counted.items())
    wanted = {(s, c): rows for s, rows in counted.items() for c in range(1, copies + 1)}
    assert {p: pairs.count(p) for p in set(pairs)} == wanted
    assert table.schema.metadata is None or b"pandas" not in table.schema.metadata


def test_the_csv_holds_the_same_rows_without_formulas(made, tmp_path):
    out = pull(made, tmp_path)
    table = pq.read_table(out / "pooled.parquet").to_pylist()
    lines = list(csv.DictReader(io.StringIO((out / "pooled.csv").read_text())))
    report = json.loads((out / "report.json").read_text())
    assert len(lines) == len(table) == sum(s["rows"] for s in report["sites"])
    assert [line["ward"] for line in lines] == [f"'{row['ward']}" for row in table]
    assert [line["_site"] for line in lines] == [row["_site"] for row in table]
    assert [float(line["score"]) for line in lines] == [row["score"] for row in table]


@pytest.mark.parametrize(("asked", "here"), [("one", 1), ("all", 3)])
def test_the_dictionary_says_what_columns_mean_and_how_copies_combine(made, tmp_path, asked, here):
    out = pull(made, tmp_path, copies=asked)
    found = json.loads((out / "dictionary.json").read_text())
    assert [c["name"] for c in found["columns"]] == ["_site", "_copy", *SCHEMA.names]
    assert (found["copies_released"], found["copies_here"]) == (3, here)
    assert "Never stack" in found["combining"]
    assert "(1 + 1/m)" in found["combining"]
    assert found["synthetic"] is True


def recomputed(text, study_id):
    """ε of a study from an exported ledger, by dp-accounting alone: nothing of ours is used."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, pld

    bodies = [json.loads(r["body"]) for r in json.loads(text)["records"]]
    (charge,) = [b for b in bodies if b["kind"] == "reserve" and b["study_id"] == study_id]
    assert charge["relation"] == "zero-out, public n"
    found = []
    for relation in (NeighboringRelation.REPLACE_SPECIAL, NeighboringRelation.REPLACE_ONE):
        accountant = pld.PLDAccountant(relation, value_discretization_interval=1e-4)
        for event in charge["events"]:
            once = GaussianDpEvent(event["noise_multiplier"])
            if event["kind"] == "poisson-gaussian":
                once = PoissonSampledDpEvent(event["rate"], once)
            else:
                # Exact noise on a fine grid costs what continuous noise does, to ten digits.
                assert event["kind"] in ("gaussian", "discrete-gaussian")
            accountant.compose(once, event["count"])
        found.append(accountant.get_epsilon(charge["delta"]))
    return charge, *found


@pytest.mark.parametrize("site", PERSONS)
def test_the_reports_epsilon_is_what_the_ledger_charged(made, tmp_path, site):
    report = json.loads((pull(made, tmp_path) / "report.json").read_text())
    (release,) = [s for s in report["sites"] if s["site"] == site]
    charge, zero_out, replace_one = recomputed(made["exports"][site], made["study"])
    assert release["epsilon_pld"] == pytest.approx(zero_out, rel=1e-6)
    assert release["epsilon_replace_one"] == pytest.approx(replace_one, rel=1e-6)
    assert zero_out <= release["epsilon_autodp"] <= 2.0
    gated = epsilon(tuple(from_dict(e) for e in charge["events"]), charge["delta"])
    assert release["epsilon_autodp"] == pytest.approx(gated, rel=1e-9)


def test_a_new_public_n_leaves_old_results_alone(made, tmp_path):
    before = pull(made, tmp_path / "before")
    coordinator, join = made["coordinator"], made["joins"]["a"]
    enrol_site(coordinator, {**join, "persons": join["persons"] + 5})
    try:
        after = pull(made, tmp_path / "after")
    finally:
        enrol_site(coordinator, join)
    for name in FILES - {"pooled.parquet"}:
        assert (before / name).read_bytes() == (after / name).read_bytes()


def test_two_pumps_never_run_at_once(made):
    coordinator, tried = made["coordinator"], []

    def second():
        if not tried:
            tried.append(1)
            with pytest.raises(CoordinatorError, match="runs already"):
                keep_pumping(coordinator, network({}), stop=lambda: True)
        return True

    keep_pumping(coordinator, network({}), stop=second)
    assert tried


def test_a_study_that_has_not_finished_has_no_results(world, tmp_path):
    make_coordinator(tmp_path / "c")
    coordinator = open_coordinator(tmp_path / "c")
    site = world.site("a", csv=rows(60, 1), schema=SCHEMA)
    enrol_site(coordinator, json.loads(site.paths.join.read_text()))
    study_id = coordinator.submit(world.signed(schema=SCHEMA, estimands=(ESTIMAND,)))
    with pytest.raises(CoordinatorError, match="no results"):
        production.pull_results(coordinator, study_id, tmp_path / "out", copies="one")
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_a_study_is_closed_without_a_site_whose_steward_has_not_looked(world, tmp_path):
    coordinator = prepare(world, tmp_path / "c", approval="by-hand")
    asked = world.signed(schema=SCHEMA, estimands=(ESTIMAND,), quorum=1)
    study_id = coordinator.submit(asked)
    first, second = world.sites
    wish = sign_cancel(study_id, world.analyst)

    def states():
        return {p.site: str(p.state) for p in coordinator.store.studies.parts(study_id)}

    def waits():
        return set(states().values()) == {"awaiting-approval"}

    run(coordinator, gates(world), stop=waits)
    with pytest.raises(CoordinatorError, match="too few sites have delivered"):
        coordinator.close(wish)
    requests = {p.site: p.request_id for p in coordinator.store.studies.parts(study_id)}
    approve(first, requests[first.name])
    run(coordinator, gates(world), stop=lambda: states()[first.name] == "delivered")
    assert states()[second.name] == "awaiting-approval"
    coordinator.close(wish)
    run(coordinator, gates(world), stop=lambda: ended(coordinator, study_id))
    status = coordinator.status(study_id)
    assert status["state"] == "finished", status
    run(coordinator, gates(world), stop=lambda: not coordinator.store.mailbox.due("9"))
    # The site was told: its steward can say yes no more, and nothing was charged there.
    (job,) = call_document(second.paths, "Requests")["requests"]
    assert job["state"] == "cancelled"
    with pytest.raises(grpc.RpcError):
        approve(second, requests[second.name])
    assert second.ledger().charges == {}
    assert len(first.ledger().charges) == 1
    out = tmp_path / "out"
    production.pull_results(coordinator, study_id, out, copies="one")
    report = json.loads((out / "report.json").read_text())
    (late,) = report["missing"]
    assert (late["site"], late["state"], late["code"]) == (second.name, "timed-out", "late")


@pytest.mark.thorough
def test_a_killed_pump_loses_nothing_and_charges_once(world, tmp_path):
    folder = tmp_path / "c"
    coordinator = prepare(world, folder, approval="by-hand")
    study_id = coordinator.submit(study(world))

    def start():
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        places = [f"{s.name}={s.paths.gate_socket}" for s in world.sites]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.local", str(folder), *places], env=env
        )

    def waiting():
        return all(
            str(p.state) == "awaiting-approval" for p in coordinator.store.studies.parts(study_id)
        )

    first = start()
    try:
        until(waiting)
    finally:
        first.kill()
        first.wait()
    for site, part in zip(world.sites, coordinator.store.studies.parts(study_id), strict=True):
        approve(site, part.request_id)
    assert waiting()
    second = start()
    try:
        until(lambda: ended(coordinator, study_id))
    finally:
        second.kill()
        second.wait()
    status = coordinator.status(study_id)
    assert status["state"] == "finished", status
    for site in world.sites:
        (charge,) = site.ledger().charges.values()
        assert charge.status == "committed"
    out = production.pull_results(coordinator, study_id, tmp_path / "out", copies="all")
    assert {p.name for p in out} == FILES

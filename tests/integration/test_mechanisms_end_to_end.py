"""A study by each mechanism: priced, charged, released, collected, pooled and reported.

Real gates with real ledgers and workers, and a real coordinator; only Flower's transport is left
out. Site b has degenerate rows: all alike, all of one visit.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conftest import FAST, World
from tests.support.carried_out import shape_of
from tests.support.local import network, run

from penstock.base.errors import InvalidInput, Refused
from penstock.mechanisms import MECHANISMS, Gibbs, Scoring, SlicedWasserstein, Trajectory
from penstock.mechanisms.gibbs.settings import answer_terms
from penstock.mechanisms.plans import plan
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.events import from_dict
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Schema
from penstock.wire.signed import SignedStudy
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_server.install.enrolment import enrol_site
from penstock_server.install.founding import make_coordinator, open_coordinator
from penstock_server.results import production
from penstock_server.simulate import visits

pytestmark = pytest.mark.thorough

VERIFY = Path(__file__).parents[2] / "deploy" / "verify_ledger.py"
PERSONS = {"a": 600, "b": 60}
"""Enough at a for all nine visits to keep some: with one alone there would be no slope."""
SCHEMA = visits.schema()
SLOPE = visits.estimand()
SWF = SlicedWasserstein(copies=2, refits=2, steps=4, bases=2, bins=8, batch=30)
PATHS = Trajectory("visit", copies=2, refits=2, particles=6, paths=10, path_times=5, steps=4)

DESCRIBED = (
    Estimand("average", "mean", "sbp"),
    Estimand("median", "quantile", "ldl", probability=0.5),
)
"""Asked beside it where answers hold more than a regression."""

STUDIES = {
    "maf": FAST,
    "sketch": SWF,
    "resampled": SlicedWasserstein("resampled", 2, 2, 4, bases=2, batch=30),
    "presampled": SlicedWasserstein("presampled", 2, 2, 4, bases=2),
    "trajectory": PATHS,
    "gibbs": Gibbs(),
    "chain": Gibbs(steps=60, ridge=5.0),
    "scoring": Scoring(),
}
EVERYWHERE = ("maf", "sketch", "trajectory", "gibbs")
"""The others run at site a alone."""

LABELS = {
    "maf": ["margins", "moments", "flow, DP-SGD"],
    "sketch": ["margins", "moments", "sketch"],
    "resampled": ["margins", "moments", "noisy projections of a batch"],
    "presampled": ["margins", "moments", "noisy projections of all rows"],
    "trajectory": ["start", "particles"],
    "gibbs": ["summaries", "curvature", "information", "Langevin chain"],
    "chain": ["summaries", "curvature", "information", "Langevin chain"],
    "scoring": [
        "margins",
        "moments",
        *(f"outcome, round {i}" for i in range(1, 7)),
        "mean",
        "distribution",
    ],
}
KINDS = {"resampled": "fixed-size-gaussian", "trajectory": "poisson-gaussian",
         "chain": "noisy-descent"}  # fmt: skip


@dataclass
class Made:
    """Live gates, a coordinator, and every study once, finished."""

    world: World
    folder: Path
    coordinator: object
    signed: dict[str, SignedStudy] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def sites(self, name: str):
        return [s for s in self.world.sites if s.name in self.signed[name].study.sites]

    def charge(self, name: str, site):
        (found,) = [c for c in site.ledger().charges.values() if c.study_id == self.ids[name]]
        return found

    def pull(self, name: str) -> Path:
        out = self.folder / f"out-{name}"
        production.pull_results(self.coordinator, self.ids[name], out, copies="all")
        return out

    def report(self, name: str) -> dict:
        return json.loads((self.pull(name) / "report.json").read_text())

    def study(self, name: str, **changes):
        sites = tuple(PERSONS) if name in EVERYWHERE else ("a",)
        values = {
            "name": name,
            "schema": SCHEMA,
            "estimands": (SLOPE, *DESCRIBED) if name == "scoring" else (SLOPE,),
            "sites": sites,
            "quorum": len(sites),
            "mechanism": STUDIES.get(name, FAST),
            **changes,
        }
        return self.world.signed(**values)


def table_of(persons: int, seed: int) -> str:
    """Snapshots as a hospital's file; of site b (60 persons), all rows alike."""
    clinic = visits.CLINICS[seed]
    rows = visits.simulate(clinic, np.random.default_rng(seed), n=persons)
    if persons == PERSONS["b"]:
        alike = {"visit": 0.0, "sbp": 150.0, "ldl": 140.0}
        rows |= {name: np.full(persons, value) for name, value in alike.items()}
    names = list(rows)
    lines = [
        ",".join(v if isinstance(v, str) else f"{v:.0f}" for v in row)
        for row in zip(*rows.values(), strict=True)
    ]
    return "\n".join([",".join(names), *lines]) + "\n"


@pytest.fixture(scope="module")
def made():
    root = Path(tempfile.mkdtemp(prefix="pk-"))
    world = World(root)
    try:
        make_coordinator(root / "hub")
        found = Made(world, root, open_coordinator(root / "hub"))
        for seed, (name, persons) in enumerate(PERSONS.items()):
            csv = table_of(persons, seed)
            site = world.site(name, csv=csv, schema=SCHEMA, total=100.0, allowance=100.0)
            policy = site.paths.policy.read_text()
            every = ", ".join(f'"{m}"' for m in MECHANISMS)
            site.paths.policy.write_text(policy.replace('["maf"]', f"[{every}]"))
            enrol_site(found.coordinator, json.loads(site.paths.join.read_text()))
            site.start()
        for name in STUDIES:
            found.signed[name] = found.study(name)
            found.ids[name] = found.coordinator.submit(found.signed[name])
        sockets = {site.name: site.paths.gate_socket for site in world.sites}
        limit = time.monotonic() + 300

        def ended() -> bool:
            assert time.monotonic() < limit, "it takes too long"
            return all(
                found.coordinator.store.studies.find(i).state.final for i in found.ids.values()
            )

        run(found.coordinator, network(sockets), stop=ended)
        yield found
    finally:
        for site in world.sites:
            site.close()
        shutil.rmtree(root, ignore_errors=True)


each = pytest.mark.parametrize("name", STUDIES)


@each
def test_every_site_delivers(made, name):
    status = made.coordinator.status(made.ids[name])
    assert status["state"] == "finished", status
    parts = made.coordinator.store.studies.parts(made.ids[name])
    assert {p.site: str(p.state) for p in parts} == {s.name: "delivered" for s in made.sites(name)}


@each
def test_the_ledger_holds_what_the_plan_said(made, name):
    study = made.signed[name].study
    for site in made.sites(name):
        charge = made.charge(name, site)
        planned = plan(
            study.mechanism, study.schema, PERSONS[site.name], study.privacy, study.estimands
        )
        assert charge.status == "committed"
        assert tuple(charge.events) == planned.events
        assert list(dict.fromkeys(e.label for e in charge.events)) == LABELS[name]
        assert KINDS.get(name, charge.events[-1].kind) in {e.kind for e in charge.events}
        cost = epsilon(planned.events, study.privacy.delta)
        assert 0.95 * study.privacy.epsilon < cost <= study.privacy.epsilon


@each
def test_a_table_has_the_public_shape(made, name):
    study = made.signed[name].study
    for site in made.sites(name):
        shape = shape_of(study, PERSONS[site.name])
        manifest, data = site.collect(made.charge(name, site).id)
        source, rows = pa.BufferReader(data), {}
        for part in shape.parts:
            begins, table = source.tell(), pa.ipc.open_stream(source).read_all()
            assert table.schema.equals(part.arrow())
            rows[part.name] = (len(table), source.tell() - begins)
        assert source.tell() == len(data)
        told = json.loads(manifest)["manifest"]
        assert told["persons"] == PERSONS[site.name]
        assert 1 <= told["rows"] <= shape.first.rows
        listed = {p["name"]: (p["rows"], p["bytes"]) for p in told["parts"]}
        assert rows == listed
        assert shape.counts_fit({name: count for name, (count, _) in rows.items()})
        assert rows[shape.first.name][0] == told["rows"]
        assert tuple(from_dict(e) for e in told["events"]) == tuple(made.charge(name, site).events)


@each
def test_the_same_request_gets_the_same_bytes_at_no_cost(made, name):
    site = made.sites(name)[0]
    request = made.charge(name, site).id
    before, first = len(site.ledger().charges), site.collect(request)
    job = site.submit(made.signed[name])
    assert (job.request_id, job.state) == (request, "delivered")
    assert site.collect(request) == first
    assert len(site.ledger().charges) == before


@each
def test_it_is_pooled_and_reported(made, name):
    report = made.report(name)
    estimand, *described = report["estimands"]
    asked = DESCRIBED if name == "scoring" else ()
    assert [each["name"] for each in described] == [each.name for each in asked]
    assert all(np.isfinite(each["random"]["se"]) for each in described)
    assert {s["site"] for s in report["sites"]} == {s.name for s in made.sites(name)}
    found = {s["site"]: s for s in estimand["sites"]}
    assert set(found) == {s.name for s in made.sites(name)}
    assert all(r["mechanism"] == STUDIES[name].name for r in report["sites"])
    assert all(r["epsilon_autodp"] <= 2.0 for r in report["sites"])
    assert np.isfinite(found["a"]["coefficient"]["estimate"])


@pytest.mark.parametrize("name", ["maf", "sketch", "resampled", "presampled", "trajectory"])
def test_the_pooled_rows_are_all_there(made, name):
    table = pq.read_table(made.pull(name) / "pooled.parquet")
    assert table.column_names == ["_site", "_copy", *SCHEMA.names]
    copies, sites = STUDIES[name].copies, made.report(name)["sites"]
    assert len(table) == copies * sum(s["rows"] for s in sites)
    assert all(1 <= s["rows"] <= s["n_persons"] == PERSONS[s["site"]] for s in sites)


def test_paths_and_particles_are_all_there(made):
    out = made.pull("trajectory")
    paths, particles = (pq.read_table(out / f"{n}.parquet") for n in ("paths", "particles"))
    assert len(paths) == 2 * PATHS.paths * PATHS.path_times
    assert len(particles) == 2 * visits.VISITS * PATHS.particles
    report = made.report("trajectory")
    assert len(report["trajectory"]["figures"]) == 3
    assert "visit" in (out / "report.html").read_text()


def test_an_answer_has_coefficients_and_no_rows(made):
    out = made.pull("gibbs")
    assert not (out / "pooled.parquet").exists()
    answer = json.loads((out / "coefficients.json").read_text())
    assert answer["terms"] == list(answer_terms(SCHEMA, SLOPE, Gibbs()))
    for site in answer["sites"]:
        covariance = np.array(site["covariance"])
        assert np.isfinite(list(site["estimates"].values())).all()
        assert (np.linalg.eigvalsh(covariance) > 0).all()


def test_an_auditor_recomputes_every_charge(made, tmp_path):
    """By the script that shares no line with the package; it must know every kind of event."""
    for site in made.world.sites:
        database = Database(site.paths.database, read_only=True)
        try:
            exported = json.dumps(Ledger(database, None).export(site.paths.gate_public()))
        finally:
            database.close()
        path = tmp_path / f"{site.name}.json"
        path.write_text(exported)
        done = subprocess.run(
            [sys.executable, str(VERIFY), str(path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


# -- what is refused, before anything is charged -----------------------------------------------

ONE_COLUMN = Schema((SCHEMA["sbp"],), person="patient_id")
MEAN = Estimand("mean", "mean", "sbp", "sbp")
TWO = (SLOPE, Estimand("ldl", "ols", "ldl", "visit"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mechanism": Trajectory("ldl")}, "points"),
        ({"mechanism": Trajectory("nowhere")}, "is not a column"),
        ({"mechanism": Trajectory("visit", points=10)}, "more than the column has values"),
        (
            {"mechanism": Trajectory("visit", start="k-means", modes=60)},
            "more than there are particles",
        ),
        ({"mechanism": Gibbs(), "estimands": TWO}, "exactly one question"),
        ({"mechanism": Gibbs(), "estimands": ()}, "exactly one question"),
    ],
)
def test_what_a_study_shows_to_be_wrong_is_refused_when_it_is_made(made, changes, words):
    with pytest.raises(InvalidInput, match=words):
        made.study("wrong", **changes)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Trajectory("visit", points=1),
        lambda: Trajectory("visit", subsample=1),
        lambda: Trajectory("visit", start="k-means", modes=101),
        lambda: SlicedWasserstein(bases=513),
        lambda: SlicedWasserstein(bins=2),
        lambda: Gibbs(pieces=0),
    ],
)
def test_settings_beyond_sense_are_refused(wrong):
    with pytest.raises(InvalidInput):
        wrong()


@pytest.mark.parametrize("name", ["sketch", "trajectory", "gibbs"])
@pytest.mark.parametrize("guarantee", ["public-flow", "empirical"])
def test_only_a_formal_guarantee_is_on_offer(made, name, guarantee):
    """Refused by the coordinator's rules or at the gate; in any case nothing is charged."""
    site = made.world.sites[0]
    before = len(site.ledger().charges)
    with pytest.raises((InvalidInput, Refused)):
        site.submit(made.study(name, privacy=PrivacyRequest(1.0, 1e-5, guarantee)))
    assert len(site.ledger().charges) == before


def test_a_table_of_one_column_gets_a_sliced_flow(made):
    """d = 1: every direction is the same, and the distribution function is the column's own."""
    planned = plan(SWF, ONE_COLUMN, 50, PrivacyRequest(2.0, 1e-5), (MEAN,))
    assert planned.events[-1].label == "sketch"
    assert epsilon(planned.events, 1e-5) <= 2.0

"""What every mechanism really releases is what the coordinator accepts, estimates and exports.

Tiny and quick settings: nothing here asks how good a release is.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from tests.support import made
from tests.support.carried_out import release, shape_of
from tests.support.made import SCHEMA, TRAJECTORY

from penstock.mechanisms import Gibbs, Maf, Settings, SlicedWasserstein, labelled
from penstock.mechanisms.plans import plan
from penstock.mechanisms.released import PARTICLES, PATHS
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.events import RELATION, to_dict
from penstock.privacy.noise.sources import SeededNoise
from penstock.questions.estimands import Estimand
from penstock.schema import Column
from penstock.schema.encoding import Encoding
from penstock.study.study import Study
from penstock.wire.manifest import sign_manifest
from penstock.wire.signatures import public_hex
from penstock_server.intake.uploads import check_manifest
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.registry import kind_of
from penstock_server.mechanisms.trajectory.exports import couplings
from penstock_server.report.composition import ReportInputs, SiteInput, build_report, report_schema
from penstock_server.report.html import render
from penstock_server.results import production
from penstock_server.store.sites import Site

PERSONS = 300
QUICK = replace(TRAJECTORY, steps=4, paths=20, subsample=None)
COLUMNS = (
    *SCHEMA.columns,
    Column("time", "duration", upper=10, decimals=1, event="died"),
    Column("died", "event"),
)
QUESTIONS = {
    "ols": Estimand("q", "ols", "sbp", "ward", adjust=("smoker",), level="b"),
    "logistic": Estimand("q", "logistic", "smoker", "sbp", per=10.0),
    "cox": Estimand("q", "cox", "time", "sbp", per=10.0, adjust=("ward",)),
    "poisson": made.QUESTION,
    "mean": Estimand("q", "mean", "sbp"),
}


def released(study: Study, folder: Path) -> Upload:
    """A worker's stream of one site, through the coordinator's checks."""
    rng, schema = np.random.default_rng(5), study.schema
    coded = made.rows(rng, PERSONS * schema.max_rows_per_person)
    coded["time"] = rng.uniform(0, 10, len(coded["sbp"]))
    coded["died"] = (rng.random(len(coded["sbp"])) < 0.5).astype(float)
    encoding = Encoding(schema)
    rows, present = encoding.encode({n: coded[n] for n in schema.names}, rng)
    rows = rows.reshape(PERSONS, schema.max_rows_per_person, -1)
    planned = plan(study.mechanism, schema, PERSONS, study.privacy, study.estimands)
    shape = shape_of(study, PERSONS)
    parts = release(
        study.mechanism, planned, encoding, rows, present.reshape(rows.shape[:2]), SeededNoise(11)
    )
    table = pa.concat_tables(labelled.join_parts(shape, parts))
    counted = labelled.count_rows(shape, table)
    assert counted is not None
    rows = counted[shape.first.name]
    return made.read(study, table.combine_chunks(), folder, persons=PERSONS, rows=rows)


def reported(study: Study, upload: Upload) -> str:
    sites = (
        SiteInput(
            upload.site,
            "delivered",
            estimates=made.estimates(upload, study),
            release=production._describe_release(upload.manifest),
            summaries=kind_of(study).load_results().summarise(upload),
        ),
    )
    times = {"created": "2026-11-20T08:00:00Z", "finished": "2026-11-21T10:12:00Z"}
    report = build_report(ReportInputs(study, "5" * 64, "finished", sites=sites, **times))
    jsonschema.Draft202012Validator(report_schema()).validate(report)
    described = kind_of(study).load_results().describe(report, "all")
    json.dumps(described, allow_nan=False)
    assert all(e["k"] == 1 for e in report["estimands"]), report["estimands"]
    return render(report)


@pytest.mark.parametrize(
    "mechanism",
    [
        Maf(copies=2, refits=1, steps=20),
        SlicedWasserstein(copies=2, refits=1, steps=5),
        QUICK,
        replace(QUICK, subsample=3, coupling="exact"),
        replace(QUICK, start="public", copies=1, refits=0),
    ],
    ids=lambda m: m.name,
)
def test_tables_are_accepted(mechanism: Settings, tmp_path: Path) -> None:
    study = made.study(mechanism, estimands=made.ESTIMANDS[1:])
    upload = released(study, tmp_path)
    page = reported(study, upload)
    assert mechanism.name in page
    written = kind_of(study).load_results().export(lambda: iter([upload]), tmp_path, "all")
    assert ("couplings.parquet" in {f.name for f in written}) == (mechanism.name == "trajectory")


@pytest.mark.parametrize("dynamics", ["overdamped", "underdamped"])
@pytest.mark.parametrize("model", QUESTIONS)
def test_answers_are_accepted(model: str, dynamics: str, tmp_path: Path) -> None:
    schema = replace(SCHEMA, columns=COLUMNS)
    study = made.study(Gibbs(dynamics), schema=schema, estimands=(QUESTIONS[model],))
    upload = released(study, tmp_path)
    kind_of(study).load_results().export(lambda: iter([upload]), tmp_path, "all")
    assert "fitted at the sites" in reported(study, upload) or model == "mean"


@pytest.mark.parametrize(
    "mechanism",
    [SlicedWasserstein(), QUICK, Gibbs(), Gibbs("underdamped"), Gibbs(steps=50)],
    ids=lambda m: m.name,
)
def test_what_is_charged_is_recomputed(mechanism: Settings) -> None:
    study = made.study(mechanism)
    events = plan(mechanism, SCHEMA, PERSONS, study.privacy, study.estimands).events
    delta = study.privacy.delta
    manifest = replace(
        made.manifest(study, b""),
        events=tuple(to_dict(e) for e in events),
        relation=RELATION,
        epsilon_autodp=epsilon(events, delta),
        epsilon_pld=epsilon_pld(events, delta),
        epsilon_replace_one=epsilon_pld(events, delta, relation="replace-one"),
    )
    found = check_manifest(
        sign_manifest(manifest, made.KEY),
        study,
        manifest.study_id,
        Site("north", "net", public_hex(made.KEY), made.PERSONS, {}),
        ledger_seen={},
        simulation=False,
    )
    assert 0.9 * study.privacy.epsilon < (found.epsilon_autodp or 0) <= study.privacy.epsilon


def test_paths_go_where_the_couplings_lead(tmp_path: Path) -> None:
    """Columns without a grid come back as they were, and so the couplings a site's paths took."""
    columns = (SCHEMA["visit"], *(Column(n, "continuous", lower=0, upper=1) for n in "xy"))
    mechanism = replace(QUICK, path_times=5, paths=200, dependence="inferred")
    study = made.study(mechanism, schema=replace(SCHEMA, columns=columns), estimands=())
    rng = np.random.default_rng(1)
    rows = made.rows

    def flat(generator: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        found = rows(generator, count)
        return found | {n: rng.random(count) for n in "xy"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "rows", flat)
        upload = released(study, tmp_path)
    mass = couplings(upload, study, mechanism)
    particles = np.asarray(upload.part(PARTICLES)["x"]).reshape(5, 6)
    paths = np.asarray(upload.part(PATHS)["x"]).reshape(200, 5)
    distance = np.abs(paths[:, :, None] - particles[None])
    chain = distance.argmin(axis=2)
    assert distance.min(axis=2).max() < 1e-9
    taken = np.array([mass[t, chain[:, t], chain[:, t + 1]] for t in range(4)])
    assert taken.min() > 1e-6
    # Ways are taken as often as they weigh: a chi-square of 4 times at most 30 degrees of freedom.
    for t in range(4):
        counts = np.zeros((6, 6))
        np.add.at(counts, (chain[:, t], chain[:, t + 1]), 1)
        starts = np.bincount(chain[:, t], minlength=6)
        expected = mass[t] * 6 * starts[:, None]
        known = expected > 1e-3
        square = ((counts - expected)[known] ** 2 / expected[known]).sum()
        assert square < 120

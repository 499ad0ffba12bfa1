"""From delivered releases of every mechanism to the files that an analyst has."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import jsonschema
import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from tests.support import made
from tests.support.local import deliver, finish, hub

import penstock
from penstock.analyst import ALWAYS, RESULT_FILES
from penstock.base.errors import CoordinatorError
from penstock.mechanisms import Gibbs
from penstock.questions.estimands import Estimand
from penstock.schema import Column
from penstock.wire.messages import Copies
from penstock.wire.signatures import generate_key
from penstock_server.report.composition import report_schema
from penstock_server.results import production

ANALYST = generate_key()
WRITTEN = {
    "maf": ("pooled.parquet", "pooled.csv"),
    "sliced-wasserstein": ("pooled.parquet", "pooled.csv"),
    "structured": ("pooled.parquet", "pooled.csv"),
    "trajectory": (
        "pooled.parquet",
        "pooled.csv",
        "paths.parquet",
        "paths.csv",
        "particles.parquet",
        "particles.csv",
        "couplings.parquet",
    ),
    "gibbs": ("coefficients.csv", "coefficients.json"),
    "scoring": ("coefficients.csv", "coefficients.json"),
}


EXAMINED = ("methods.csv", "influence.csv", "cumulative.csv")


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    return hub(tmp_path_factory.mktemp("coordinator") / "c")


def finished(coordinator, name: str) -> str:
    """A study that two of its three sites have delivered to."""
    known = [r.id for r in coordinator.store.studies.all() if r.name == name]
    if known:
        return known[0]
    study_id = deliver(coordinator, ANALYST, name, name)
    finish(coordinator, study_id)
    return study_id


@pytest.mark.parametrize("name", WRITTEN)
def test_every_mechanism_has_its_files(coordinator, name, tmp_path):
    files = production.pull_results(
        coordinator, finished(coordinator, name), tmp_path, copies="all"
    )
    report = json.loads((tmp_path / "report.json").read_text())
    examined = EXAMINED if report["sensitivity_analysis"] else ()
    assert bool(examined) == any(e["k"] == 2 for e in report["estimands"])
    assert tuple(f.name for f in files[: len(ALWAYS)]) == ALWAYS
    described = () if report["baseline"] is None else ("baseline.csv",)
    assert bool(described) == (name not in ("gibbs", "scoring"))
    assert {f.name for f in files} == {*ALWAYS, *examined, *described, *WRITTEN[name]}
    assert {f.name for f in tmp_path.iterdir()} == {f.name for f in files} <= set(RESULT_FILES)
    jsonschema.Draft202012Validator(report_schema()).validate(report)
    assert [e["k"] for e in report["estimands"]] == [2] * len(report["estimands"])
    assert [m["site"] for m in report["missing"]] == ["west"]
    assert report["study"]["mechanism"]["name"] == name
    page = (tmp_path / "report.html").read_text()
    assert ("Marginals with paths" in page) == (name == "trajectory")
    described = json.loads((tmp_path / "dictionary.json").read_text())
    assert described["synthetic"] == (name not in ("gibbs", "scoring"))


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_files_come_again(coordinator, name, tmp_path):
    study_id = finished(coordinator, name)
    for folder in ("a", "b"):
        production.pull_results(coordinator, study_id, tmp_path / folder, copies="one")
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def test_couplings_that_cannot_be_made_are_left_out_and_said(coordinator, monkeypatch, tmp_path):
    study_id = finished(coordinator, "trajectory")
    monkeypatch.setattr(
        "penstock_server.mechanisms.trajectory.exports.find_spec", lambda name: None
    )
    files = production.pull_results(coordinator, study_id, tmp_path, copies="one")
    assert "couplings.parquet" not in {f.name for f in files}
    described = json.loads((tmp_path / "dictionary.json").read_text())
    assert "torch" in described["trajectory"]["couplings"]["missing"]


def test_a_client_reads_paths_particles_and_coefficients(coordinator):
    trajectory, answer = (finished(coordinator, n) for n in ("trajectory", "gibbs"))
    with penstock.Client(coordinator.folder.root) as client:
        paths = client.paths(trajectory)
        assert paths.groupby(["_site", "_path"]).size().tolist() == [9] * 10
        assert paths._time.groupby([paths._site, paths._path]).is_monotonic_increasing.all()
        assert client.particles(trajectory).groupby(["_site", "_point"]).size().tolist() == [6] * 6
        assert isinstance(client.pooled(trajectory), pd.DataFrame)
        found = client.coefficients(answer)
        assert np.asarray(found["sites"][0]["covariance"]).shape == (5, 5)
        with pytest.raises(CoordinatorError, match="no such file"):
            client.pooled(answer)
        with pytest.raises(CoordinatorError, match="no such file"):
            client.paths(answer)


def test_a_report_of_the_last_format_can_still_be_pulled(coordinator, tmp_path):
    study_id = finished(coordinator, "maf")
    path = coordinator.folder.root / "studies" / study_id / "report.json"
    kept = path.read_text()
    old = json.loads(kept) | {"format_version": "1.0"}
    old = {k: v for k, v in old.items() if k not in ("mechanism", "trajectory")}
    for estimand in old["estimands"]:
        del estimand["fitted"]
    path.write_text(json.dumps(old))
    try:
        production.pull_results(coordinator, study_id, tmp_path, copies="one")
    finally:
        path.write_text(kept)
    jsonschema.Draft202012Validator(report_schema()).validate(
        json.loads((tmp_path / "report.json").read_text())
    )


def test_the_answer_in_the_report_is_the_last_term_of_the_file(coordinator, tmp_path):
    production.pull_results(coordinator, finished(coordinator, "gibbs"), tmp_path, copies="one")
    report = json.loads((tmp_path / "report.json").read_text())
    found = json.loads((tmp_path / "coefficients.json").read_text())
    assert isinstance(made.MECHANISMS["gibbs"], Gibbs)
    for row, site in zip(report["estimands"][0]["sites"], found["sites"], strict=True):
        assert row["coefficient"]["estimate"] == site["estimates"][found["terms"][-1]]
        assert row["variance"] == site["covariance"][-1][-1]


FOLLOWED = (
    Column("years", "duration", lower=0, upper=6, decimals=1, unit="years", event="died"),
    Column("died", "event", label="death"),
)
CONTRASTS = {
    "rmst": (Estimand("m", "rmst", "years", until=4), "plain", "without death until 4 years"),
    "cumulative-incidence": (
        Estimand("i", "cumulative-incidence", "years", at=4, competing="smoker"),
        "logit",
        "of death by 4 years, with smoker as a competing event",
    ),
    "correlation": (
        Estimand("c", "correlation", "sbp", "visit"),
        "fisher",
        "of pressure with visit",
    ),
    "risk-difference": (
        Estimand("d", "risk-difference", "smoker", "ward", level="b", adjust=("sbp",)),
        "plain",
        "ward: b against a",
    ),
    "risk-ratio": (
        Estimand("r", "risk-ratio", "died", "smoker"),
        "log",
        "smoker: yes against no",
    ),
    "weibull": (
        Estimand("w", "weibull", "years", "sbp", 10, adjust=("smoker",)),
        "log",
        "per 10 mmHg of pressure",
    ),
    "log-normal": (Estimand("l", "log-normal", "years", "smoker"), "log", "smoker: yes against no"),
}


def test_contrasts_of_tables_are_combined_widened_pooled_and_shown(tmp_path, monkeypatch):
    """Each on its own scale, from copies and refits of two sites to the report's page."""
    plain = made.rows

    def followed(rng, count, visit=None):
        found = plain(rng, count, visit)
        time = rng.exponential(5 * np.exp(-0.3 * found["smoker"]))
        return found | {
            "years": np.minimum(time, 6).round(1),
            "died": (time < 6).astype(float),
        }

    monkeypatch.setattr(made, "rows", followed)
    schema = replace(made.SCHEMA, columns=(*made.SCHEMA.columns, *FOLLOWED))
    monkeypatch.setattr(made, "SCHEMA", schema)
    asked = tuple(estimand for estimand, _, _ in CONTRASTS.values())
    coordinator = hub(tmp_path / "c")
    study_id = deliver(coordinator, ANALYST, "maf", "contrasts", estimands=asked)
    finish(coordinator, study_id)
    production.pull_results(coordinator, study_id, tmp_path / "out", copies="one")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    jsonschema.Draft202012Validator(report_schema()).validate(report)
    page = (tmp_path / "out" / "report.html").read_text()
    back = {"plain": float, "log": np.exp, "fisher": np.tanh, "logit": expit}
    compared = set(CONTRASTS) - {"rmst", "cumulative-incidence", "correlation"}
    for found, (model, (_, scale, contrast)) in zip(
        report["estimands"], CONTRASTS.items(), strict=True
    ):
        assert (found["model"], found["scale"], found["k"]) == (model, scale, 2)
        assert found["contrast"] == contrast
        assert contrast in page
        assert bool(found["sides"]) == (model in compared)
        value = found["random"]["value"]
        assert value["low"] < value["estimate"] < value["high"]
        for site in found["sites"]:
            inside = site["coefficient"]
            assert site["value"]["estimate"] == pytest.approx(back[scale](inside["estimate"]))
    within = {e["model"]: e["random"]["value"]["estimate"] for e in report["estimands"]}
    marks = {e["model"]: e["held"] for e in report["estimands"]}
    told = marks["cumulative-incidence"]
    assert (told["mark"], len(told["sites"])) == ("unresolved", 2)
    assert told["text"] in page
    assert marks["rmst"] is None
    assert 0 < within["rmst"] < 4
    assert 0.3 < within["correlation"] < 1


def test_an_analyst_can_pull_refits_and_the_rule_that_combines_them(coordinator, tmp_path):
    """The rule of dictionary.json, followed step by step, gives a single site's own interval."""
    study_id = finished(coordinator, "maf")
    files = production.pull_results(coordinator, study_id, tmp_path / "all", copies="all")
    assert not any(file.name.startswith("refits") for file in files)
    files = production.pull_results(coordinator, study_id, tmp_path, copies="refits")
    assert {"refits.parquet", "refits.csv"} <= {file.name for file in files}
    refits = pd.read_parquet(tmp_path / "refits.parquet")
    assert list(refits.columns[:3]) == ["_site", "_refit", "_fit"]
    assert set(zip(refits._refit, refits._fit, strict=True)) == {(1, 1), (2, 2)}  # one of each
    rule = json.loads((tmp_path / "dictionary.json").read_text())["intervals"]
    assert {"square", "known", "variance", "df", "interval", "pooling"} <= rule.keys()
    with penstock.Client(coordinator.folder.root) as client:
        assert len(client.refits(study_id)) == len(refits)


@pytest.mark.parametrize("copies", get_args(Copies))
def test_all_that_is_made_is_pulled_over_the_network(coordinator, tmp_path, copies):
    """There a file is sent and taken by its name, and no other is."""
    files = production.pull_results(
        coordinator, finished(coordinator, "maf"), tmp_path, copies=copies
    )
    tables = {"one": "pooled", "all": "pooled"}.get(copies, copies)
    assert {f"{tables}.parquet", f"{tables}.csv"} <= {file.name for file in files}
    assert {file.name for file in files} <= set(RESULT_FILES)

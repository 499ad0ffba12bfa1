"""What no regression answers in a report, from tables and from answers of the mechanisms."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from markupsafe import escape
from tests.support import made
from tests.support.carried_out import release
from tests.unit.shared.mechanisms.scoring.test_answers import rows

from penstock.base.errors import InvalidInput
from penstock.inference.refits import widen_sites
from penstock.inference.vectors import pool_vectors
from penstock.mechanisms import Scoring, Settings, Structured
from penstock.mechanisms.plans import plan
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding
from penstock_server.mechanisms.registry import kind_of
from penstock_server.report.composition import ReportInputs, SiteInput, build_report, report_schema
from penstock_server.report.html import render
from penstock_server.results import production

N = 1500
SCHEMA = Schema(
    (
        Column("time", "duration", upper=5, decimals=2, event="died", unit="years"),
        Column("died", "event", label="death"),
        Column("x", "continuous", lower=-4, upper=4, decimals=2, label="score"),
        Column("z", "continuous", lower=20, upper=80, decimals=0, unit="kg", label="weight"),
        Column("group", "categorical", levels=("a", "b", "c")),
    )
)
SAID = {
    "average": "Mean of weight (kg): ",
    "median": "Median of weight (kg): ",
    "heavy": "Share of rows with weight (kg) above 55: 0.",
    "third": "Share of group: c: 0.",
    "alive": "Survival without death at 2.5 years: 0.",
    "among": "Survival without death at 2.5 years, where group == 'b': 0.",
}
ESTIMANDS = (
    Estimand("hazard", "cox", "time", "x", adjust=("z",)),
    Estimand("average", "mean", "z"),
    Estimand("median", "quantile", "z", probability=0.5),
    Estimand("heavy", "share", "z", threshold=55, direction="above"),
    Estimand("third", "share", "group", outcome_level="c"),
    Estimand("alive", "survival", "time", at=2.5),
    Estimand("among", "survival", "time", at=2.5, where="group == 'b'"),
)
MECHANISMS: dict[str, Settings] = {
    "scoring": Scoring(),
    "structured": Structured(copies=3, refits=4, planted=0),
}


def build(
    name: str,
    folder: Path,
    estimands: tuple[Estimand, ...] = ESTIMANDS,
    schema: Schema = SCHEMA,
) -> tuple[dict[str, Any], str]:
    """The report and its page; and in the folder the files that an analyst pulls."""
    mechanism = MECHANISMS[name]
    study = made.study(
        mechanism,
        schema=schema,
        estimands=estimands,
        sites=("north", "south"),
        privacy=PrivacyRequest(4, 1e-5),
    )
    results, uploads = kind_of(study).load_results(), []
    for seed, site in enumerate(study.sites):
        table, encoding = rows(N, seed), Encoding(schema)
        columns = {n: table[n] for n in schema.names}
        encoded, present = encoding.encode(columns, np.random.default_rng(seed))
        asked = plan(mechanism, schema, N, study.privacy, estimands)
        given = (encoded[:, None], present[:, None])
        parts = release(mechanism, asked, encoding, *given, SeededNoise(seed))
        (folder / site).mkdir()
        streams = made.streams(study, parts, N)
        uploads.append(made.read_parts(study, streams, folder / site, site=site, persons=N))
    wide = widen_sites({upload.site: results.measure(upload) for upload in uploads})
    sites = tuple(
        SiteInput(
            upload.site,
            "delivered",
            estimates=wide[upload.site],
            release=production._describe_release(upload.manifest),
            summaries=results.summarise(upload),
        )
        for upload in uploads
    )
    moment = "2026-11-20T08:00:00Z"
    report = build_report(ReportInputs(study, "5" * 64, "finished", moment, moment, sites))
    jsonschema.Draft202012Validator(report_schema()).validate(report)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    results.export(lambda: iter(uploads), folder, "one")
    return report, render(report)


@pytest.fixture(params=MECHANISMS, scope="module")
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    return *build(request.param, folder), folder


@pytest.mark.parametrize("name", SAID)
def test_each_is_said_in_words_and_holds_the_truth(
    built: tuple[dict[str, Any], str, Path], name: str
) -> None:
    report, page, _ = built
    found = next(e for e in report["estimands"] if e["name"] == name)
    assert found["sentence"].startswith(SAID[name]), found["sentence"]
    assert found["measure"] in found["axis_label"].lower()
    assert found["k"] == 2
    pooled, [asked] = found["random"]["coefficient"], [e for e in ESTIMANDS if e.name == name]
    both = [rows(N, seed) for seed in (0, 1)]
    table = {n: np.concatenate([one[n] for one in both]) for n in both[0]}
    own = estimate(table, SCHEMA, asked)
    assert abs(pooled["estimate"] - own.estimate) < 4 * math.sqrt(
        sum(site["variance"] for site in found["sites"]) / 4 + own.variance
    )
    assert str(escape(found["sentence"].split(":")[0])) in page


def test_what_is_no_regression_hangs_on_nobody(
    built: tuple[dict[str, Any], str, Path],
) -> None:
    held = {e["name"]: e["held"] for e in built[0]["estimands"]}
    assert all(held[name] is None for name in SAID)


def test_a_survival_is_between_0_and_1(built: tuple[dict[str, Any], str, Path]) -> None:
    found = next(e for e in built[0]["estimands"] if e["name"] == "alive")
    value = found["random"]["value"]
    assert 0 < value["low"] < value["estimate"] < value["high"] < 1
    assert found["scale"] == "logit"


def test_an_analyst_pulls_them_beside_the_coefficients(tmp_path: Path) -> None:
    build("scoring", tmp_path)
    with open(tmp_path / "coefficients.csv", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["_site"] == "north"]
    assert [line["term"] for line in lines] == [
        "z",
        "x",
        "z: mean",
        "z: quantile 0.5",
        "z > 55",
        "group=c",
        "time: survival at 2.5",
        "time: survival at 2.5",
    ]
    assert [line["estimand"] for line in lines[1:]] == [e.name for e in ESTIMANDS]
    assert lines[-1]["formula"] == "time ~ 1 where group == 'b'"
    assert [line["mark"] != "" for line in lines] == [True] * 2 + [False] * 6
    assert [line["doubt"] == "nan" for line in lines] == [False] * 2 + [True] * 6
    assert all(0 < float(line["se_noise"]) < float(line["se"]) for line in lines)


def test_what_is_pulled_can_be_pooled_together(tmp_path: Path) -> None:
    """Both coefficients of the hazard by their covariance; each by itself is the report's."""
    report, _ = build("scoring", tmp_path)
    answer = json.loads((tmp_path / "coefficients.json").read_text(encoding="utf-8"))
    at = next(i for i, r in enumerate(answer["regressions"]) if "hazard" in r["estimands"])
    terms, told = (
        answer["regressions"][at]["terms"],
        [s["regressions"][at] for s in answer["sites"]],
    )
    y = np.array([[one["estimates"][term] for term in terms] for one in told])
    s = np.array([one["covariance"] for one in told])
    both = pool_vectors(y, s, method="fixed")
    assert len(both.estimates) == 2
    assert both.q_df == 2
    [hazard] = [e for e in report["estimands"] if e["name"] == "hazard"]
    place = terms.index("x")
    y[:, 1 - place] = math.nan
    with pytest.raises(InvalidInput, match="outcome"):
        pool_vectors(y, s, method="fixed")
    alone = pool_vectors(y[:, [place]], s[:, [place]][:, :, [place]], method="fixed")
    assert alone.estimates[0] == pytest.approx(hazard["fixed"]["coefficient"]["estimate"])
    assert alone.errors[0] == pytest.approx(hazard["fixed"]["se"])
    assert both.errors[place] == pytest.approx(alone.errors[0], rel=0.1)

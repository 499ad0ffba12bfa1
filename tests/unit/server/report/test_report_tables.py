"""What a report says of the tables themselves: survival curves, sandwiches, distances."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import made
from tests.unit.server.report.test_report import HOSTILE, SCHEMA, Page, built, inputs, study

from penstock.inference.doubts import Doubts
from penstock.inference.overlap import Overlaps
from penstock.inference.robust import Checked, Robust
from penstock.mechanisms import Maf
from penstock.mechanisms.parts import Part
from penstock.questions.estimands import Estimand
from penstock.schema import Coded, Schema
from penstock.study.study import Study
from penstock_server.analysis.baseline_figures import Baseline
from penstock_server.analysis.ranges import Ranges
from penstock_server.analysis.survival_curves import SiteCurves
from penstock_server.analysis.table_distances import Moved
from penstock_server.mechanisms.registry import kind_of
from penstock_server.report.composition import ReportInputs, complete_report
from penstock_server.report.html import render
from penstock_server.report.sections import survival

PERSONS = 150
SITES = ("a", "b", "c", "d", "e")
ARMS = Estimand("arms", "cox", "time", "smoker")


def rows(rng: np.random.Generator, smokers: float) -> Coded:
    n = PERSONS
    smoker = (rng.random(n) < smokers).astype(float)
    time = np.round(rng.exponential(8 / (1 + smoker)), 2)
    return {
        "time": np.minimum(time, 10.0),
        "dead": (time < 10).astype(float),
        "sbp": np.round(rng.normal(140, 15, n)),
        "chol": np.round(rng.normal(5, 1, n).clip(2, 12), 1),
        "smoker": smoker,
        "ward": rng.integers(0, 3, n).astype(float),
    }


def summarised(of: Study, folder: Path) -> ReportInputs:
    """Every site's release, through all checks, and what is read in it."""
    given, results = inputs(study=of), kind_of(of).load_results()
    sites = []
    for place, site in enumerate(given.sites):
        rng = np.random.default_rng(place)
        smokers = 0.8 if site.name == "e" else 0.4
        parts = [Part(p.name, rows(rng, smokers)) for p in made.shape_of(of, PERSONS).parts]
        found = made.streams(of, parts, PERSONS)
        upload = made.read_parts(of, found, folder, site=site.name, persons=PERSONS)
        sites.append(replace(site, summaries=results.summarise(upload)))
    return replace(given, sites=tuple(sites))


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> ReportInputs:
    asked = (ARMS, *study().estimands[1:])
    of = study(mechanism=Maf(copies=3, refits=3), estimands=asked)
    summed = summarised(of, tmp_path_factory.mktemp("uploads"))
    known = [replace(s, estimates={**s.estimates, "arms": s.estimates["hr"]}) for s in summed.sites]
    return replace(summed, sites=tuple(known))


@pytest.fixture(scope="module")
def report(given: ReportInputs) -> dict[str, Any]:
    return built(given)


def test_a_release_of_tables_has_all_that_is_summarised(given: ReportInputs) -> None:
    for site in given.sites:
        found = {type(summary) for summary in site.summaries}
        assert found == {Ranges, Overlaps, Doubts, SiteCurves, Checked, Moved, Baseline}


def test_arms_have_a_curve_each(report: dict[str, Any]) -> None:
    (curve,) = report["survival"]
    assert (curve["outcome"], curve["event"], curve["by"]) == ("time", "death", "smoker")
    assert [g["level"] for g in curve["groups"]] == ["no", "yes"]
    for group, hazard in zip(curve["groups"], (1 / 8, 2 / 8), strict=True):
        assert [s["site"] for s in group["sites"]] == list(SITES)
        place = len(curve["times"]) // 2
        low, share, high = (group[name][place] for name in ("low", "survival", "high"))
        assert 0 < low < share < high < 1
        assert share == pytest.approx(np.exp(-hazard * curve["times"][place]), abs=0.06)
    page = Page(render(report)).text
    assert "Without death, by smoker" in page
    assert "Kaplan–Meier" in page


def test_below_the_curves_stands_the_number_at_risk(report: dict[str, Any]) -> None:
    (curve,) = report["survival"]
    told = curve["at_risk"]
    assert told["times"] == [0.0, 2.5, 5.0, 7.5, 10.0]
    assert [g["level"] for g in told["groups"]] == ["no", "yes"]
    for group in told["groups"]:
        assert [s["site"] for s in group["sites"]] == list(SITES)
        sums = np.sum([s["numbers"] for s in group["sites"]], axis=0)
        assert group["numbers"] == pytest.approx(sums)
        assert group["numbers"] == sorted(group["numbers"], reverse=True)
    # Everybody is in one of the two groups, and is followed from the beginning.
    assert sum(g["numbers"][0] for g in told["groups"]) == pytest.approx(PERSONS * len(SITES))
    page = Page(render(report)).text
    assert "Number at risk, by time (years)" in page
    (sheet,) = (s for s in survival.SECTION.tabulate(report) if s.name == "survival.csv")
    assert len(sheet.rows) == 2 * (1 + len(SITES)) * 5
    rows = [dict(zip(survival.COLUMNS, row, strict=True)) for row in sheet.rows]
    half = [r for r in rows if (r["level"], r["site"], r["time"]) == ("yes", None, 5.0)]
    (group,) = (g for g in curve["groups"] if g["level"] == "yes")
    place = len(curve["times"]) // 2 - 1
    assert [half[0][name] for name in ("survival", "low", "high", "at_risk")] == [
        group["survival"][place],
        group["low"][place],
        group["high"][place],
        told["groups"][1]["numbers"][2],
    ]


def test_curves_of_the_last_format_have_no_number_at_risk(report: dict[str, Any]) -> None:
    (curve,) = report["survival"]
    kept = {key: value for key, value in curve.items() if key != "at_risk"}
    found = complete_report({**report, "survival": [kept], "format_version": "1.10"})
    assert found["survival"] == [{**kept, "at_risk": None}]
    assert "Number at risk" not in Page(render(found)).text
    (sheet,) = survival.SECTION.tabulate(found)
    assert {row[-1] for row in sheet.rows} == {None}


def test_a_site_of_other_persons_is_told(report: dict[str, Any]) -> None:
    found = {d["site"]: d for d in report["differences"]}
    assert list(found) == list(SITES)
    assert found["e"]["columns"][0]["column"] == "smoker"
    assert all(d["copies"] > 0 and d["refits"] > 0 for d in found.values())
    assert max(found, key=lambda site: found[site]["others"] - found[site]["copies"]) == "e"
    exact = {site: d["exact"] for site, d in found.items()}
    assert all(d["rows"] == PERSONS // 2 and d["halves"] <= d["largest"] for d in exact.values())
    assert max(exact, key=lambda site: exact[site]["others"] - exact[site]["halves"]) == "e"
    page = Page(render(report)).text
    assert "How the tables differ" in page
    assert "(shift" in page
    assert "(chance)" in page


def test_distances_of_the_last_format_are_completed(report: dict[str, Any]) -> None:
    old = {**report, "format_version": "1.6"}
    old["differences"] = [
        {key: value for key, value in site.items() if key != "exact"}
        for site in report["differences"]
    ]
    found = complete_report(old)
    assert [d["exact"] for d in found["differences"]] == [None] * len(SITES)
    assert "(shift" not in Page(render(found)).text


def test_models_that_need_no_event_have_a_sandwich(report: dict[str, Any]) -> None:
    arms, odds, difference = report["estimands"]
    assert arms["robust"] is None
    for estimand in (odds, difference):
        assert estimand["robust"]["ratio"] == pytest.approx(1, abs=0.2)
        assert estimand["robust"]["dispersion"] is None
        assert [s["site"] for s in estimand["robust"]["sites"]] == list(SITES)
    assert Page(render(report)).text.count("(sandwich, HC0)") == 2


def trusting(ratio: float, refits: int, dispersion: float | None = None) -> dict[str, Any]:
    given = inputs(study=study(mechanism=Maf(copies=3, refits=refits)))
    checked = Checked({"or": Robust(ratio, dispersion)})
    return built(replace(given, sites=tuple(replace(s, summaries=(checked,)) for s in given.sites)))


@pytest.mark.parametrize(("ratio", "refits", "warned"), [(1.5, 0, 1), (1.5, 10, 0), (1.1, 0, 0)])
def test_a_reader_is_warned_where_nothing_else_shows_it(
    ratio: float, refits: int, warned: int
) -> None:
    report = trusting(ratio, refits)
    found = [w for w in report["warnings"] if w["code"] == "robust"]
    assert len(found) == warned
    assert all("variance that the tables do not have: or." in w["text"] for w in found)
    robust = report["estimands"][1]["robust"]
    assert robust["ratio"] == pytest.approx(ratio)
    assert ("too narrow" in robust["text"]) == (warned == 1)
    assert ("have that already" in robust["text"]) == (ratio > 1.2 and refits > 0)
    assert (
        "Counts vary 2.25 times" in trusting(ratio, refits, 2.25)["estimands"][1]["robust"]["text"]
    )


def test_a_report_without_tables_is_without_them() -> None:
    report = built(inputs())
    assert (report["survival"], report["differences"]) == ([], [])
    page = render(report)
    assert "Kaplan" not in page
    assert "How the tables differ" not in page


def test_a_report_of_the_last_format_is_completed() -> None:
    report = built(inputs())
    old = {k: v for k, v in report.items() if k not in ("survival", "differences")}
    old["format_version"] = "1.4"
    old["estimands"] = [{k: v for k, v in e.items() if k != "robust"} for e in report["estimands"]]
    assert complete_report(old) == report


def test_labels_are_text(given: ReportInputs) -> None:
    hostile = Schema(
        tuple(
            replace(c, label=HOSTILE[:100].replace("\x00", "").replace("\x1b", ""))
            for c in SCHEMA.columns
        )
    )
    report = built(replace(given, study=replace(given.study, schema=hostile)))
    page = render(json.loads(json.dumps(report)))
    assert "<script" not in page
    assert "&lt;script" in page

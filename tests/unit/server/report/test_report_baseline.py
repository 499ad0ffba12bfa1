"""Who is in the tables: in report.json, on the page, and as a file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.concluded import NAMES, add_up_answers, add_up_tables
from tests.unit.server.report.test_report import HOSTILE, SCHEMA, Page, built, inputs, study
from tests.unit.server.report.test_report_tables import PERSONS, SITES, summarised

from penstock.mechanisms import Maf
from penstock.schema import Schema
from penstock_server.report.composition import ReportInputs, complete_report
from penstock_server.report.html import render
from penstock_server.report.sections.baseline import COLUMNS, MOST_SITES, SECTION


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> ReportInputs:
    of = study(mechanism=Maf(copies=2, refits=0))
    return summarised(of, tmp_path_factory.mktemp("uploads"))


@pytest.fixture(scope="module")
def report(given: ReportInputs) -> dict[str, Any]:
    return built(given)


def rows_of(report: dict[str, Any]) -> dict[str, list[str]]:
    return {row["label"]: row["cells"] for row in SECTION.show(report)["rows"]}


def test_every_site_and_all_together_are_described(report: dict[str, Any]) -> None:
    told = report["baseline"]
    assert [c["column"] for c in told["columns"]] == ["time", "sbp", "chol", "smoker", "ward"]
    assert [g["site"] for g in told["groups"]] == [None, *SITES]
    assert [g["rows"] for g in told["groups"]] == [5 * PERSONS, *[PERSONS] * 5]
    sbp, smokers = ([g["figures"][at] for g in told["groups"]] for at in (1, 3))
    assert sbp[0]["mean"] == pytest.approx(140, abs=2)
    assert sbp[0]["mean"] == pytest.approx(sum(one["mean"] for one in sbp[1:]) / 5)
    assert sbp[0]["sd"] == pytest.approx(15, abs=1.5)
    assert smokers[5]["shares"][1] == pytest.approx(0.8, abs=0.1)
    assert smokers[0]["shares"] == pytest.approx([0.52, 0.48], abs=0.06)
    assert told["groups"][0]["figures"][0]["events"] > 300


def test_the_page_says_that_it_is_synthetic(given: ReportInputs, report: dict[str, Any]) -> None:
    page = re.sub(r"\s+", " ", Page(render(report)).text)
    assert "Who is in the tables" in page
    assert "Synthetic, as the released tables have it" in page
    assert "nothing here has an interval" in page
    # Five sites are too many for a column each.
    assert len(SITES) > MOST_SITES
    assert SECTION.show(report)["heads"] == ["All sites", "Lowest to highest site"]
    assert re.fullmatch(r"13\d\.\d to 14\d\.\d", rows_of(report)["pressure (mmHg), mean (SD)"][1])
    few = built(replace(given, sites=given.sites[:2], study=replace(given.study, quorum=1)))
    assert SECTION.show(few)["heads"] == ["All sites", "a", "b"]
    rows = rows_of(few)
    assert rows["Rows of a copy"] == ["300", "150", "150"]
    assert re.fullmatch(r"1[34]\d\.\d \(1\d\.\d\)", rows["pressure (mmHg), mean (SD)"][0])
    assert re.fullmatch(r"\d+\.\d%", rows["smoker: yes"][1])
    assert re.fullmatch(r"\d+ \(\d+\.\d%\)", rows["death, events (share)"][2])
    follow_up = rows["time (years), median follow-up [quartiles]"][0]
    assert re.fullmatch(r"[\d.]+ \[[\d.]+,\s[\d.]+\]", follow_up)
    followed = rows["time (years), median follow-up without events"]
    assert followed[0] == "–"
    assert all(re.fullmatch(r"[\d.]+", one) for one in followed[1:])
    # Nothing is missing, and no row says so.
    assert not [label for label in rows if "missing" in label]


def test_its_file_has_a_row_for_each_level_of_each_site(report: dict[str, Any]) -> None:
    (sheet,) = SECTION.tabulate(report)
    assert sheet.name == "baseline.csv"
    assert len(sheet.rows) == (1 + len(SITES)) * (3 + 2 + 3)
    found = [dict(zip(COLUMNS, row, strict=True)) for row in sheet.rows]
    assert {row["site"] for row in found} == {None, *SITES}
    wards = [row["share"] for row in found if (row["site"], row["column"]) == ("a", "ward")]
    assert sum(wards) == pytest.approx(1)
    (time,) = [row for row in found if (row["site"], row["column"]) == ("b", "time")]
    assert time["share"] == pytest.approx(time["events"] / time["known"])
    assert time["followed"] >= time["median"]


def test_answers_have_no_table_of_it(tmp_path: Path) -> None:
    found = built(inputs())
    assert found["baseline"] is None
    assert not SECTION.tabulate(found)
    assert "Who is in the tables" not in render(found)
    assert add_up_answers().build(tmp_path)["baseline"] is None


def test_one_release_of_all_sites_says_of_which_each_row_is(tmp_path: Path) -> None:
    told = add_up_tables().build(tmp_path)["baseline"]
    assert [g["site"] for g in told["groups"]] == [None, *NAMES]
    assert "site" not in [c["column"] for c in told["columns"]]
    whole, *sites = told["groups"]
    assert whole["rows"] == pytest.approx(sum(g["rows"] for g in sites))


def test_reports_of_before_have_none(report: dict[str, Any]) -> None:
    old = {key: value for key, value in report.items() if key != "baseline"}
    found = complete_report({**old, "format_version": "1.10"})
    assert found["baseline"] is None
    assert "Who is in the tables" not in render(found)


def test_labels_may_be_any_text(given: ReportInputs, tmp_path: Path) -> None:
    label = HOSTILE.replace("\x00", "").replace("\x1b[31m", "")
    columns = [replace(c, label=label) if c.name == "chol" else c for c in SCHEMA.columns]
    of = replace(given.study, schema=Schema(tuple(columns)))
    page = render(built(summarised(of, tmp_path)))
    assert "<script" not in page
    assert "&lt;script&gt;" in page

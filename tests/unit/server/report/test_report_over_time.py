"""Estimands of persons over time in a report, from releases that the mechanism made."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
from tests.support import made
from tests.support.carried_out import release

from penstock.base.errors import InvalidInput
from penstock.enquiry.holdings import Holdings, read_holdings
from penstock.enquiry.reply import answer_questions
from penstock.inference.refits import Measured, widen_sites
from penstock.mechanisms import Trajectory
from penstock.mechanisms.plans import plan
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding
from penstock.telling import phrases
from penstock_server.analysis.transitions import list_tables
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.registry import kind_of
from penstock_server.report.composition import (
    ReportInputs,
    SiteInput,
    build_report,
    complete_report,
    report_schema,
)
from penstock_server.report.heat import HeatCell, HeatMap, describe_heat, heat_svg
from penstock_server.report.html import render
from penstock_server.report.section import Sheet
from penstock_server.report.sections import changes
from penstock_server.report.sections.estimands import plot_of
from penstock_server.report.sections.transitions import SECTION, title_of
from penstock_server.report.tracks import describe_track, lay_out_track
from penstock_server.results import production

N, VISITS, STAGES = 400, 3, ("I", "II", "<III>")
SCHEMA = Schema(
    (
        Column("visit", "integer", lower=0, upper=VISITS - 1, unit="years"),
        Column("sbp", "continuous", lower=60, upper=240, decimals=0, unit="mmHg", label="pressure"),
        Column("ldl", "continuous", lower=0, upper=12, decimals=1),
        Column("stage", "ordered", levels=STAGES),
    ),
    person="id",
    max_rows_per_person=VISITS,
)
HOW = Trajectory("visit", copies=3, refits=3, particles=10, paths=10, path_times=5)
ESTIMANDS = (
    Estimand("mean", "mean", "sbp", at=1),
    Estimand("median", "quantile", "sbp", at=2, probability=0.5),
    Estimand("upper", "quantile", "sbp", at=2, probability=0.9),
    Estimand("high", "share", "sbp", at=2, threshold=140, direction="above"),
    Estimand("change", "change", "sbp", at=0, until=2),
    Estimand("spread", "change-sd", "sbp", at=0, until=2),
    Estimand("together", "correlation", "sbp", at=0, until=2),
    Estimand("beside", "correlation", "sbp", "ldl", at=1),
    Estimand("worse", "transition", "stage", level="I", outcome_level="II", at=0, until=2),
    Estimand("slope", "mixed", "sbp", "visit"),
)
STUDY = made.study(
    HOW,
    schema=SCHEMA,
    estimands=ESTIMANDS,
    sites=("north", "south"),
    privacy=PrivacyRequest(8, 1e-5),
)


@cache
def cohort(seed: int) -> dict[str, np.ndarray]:
    """(n, T) of each column: pressure rises by 3 a year, and stages never fall."""
    rng, at = np.random.default_rng(seed), np.arange(VISITS)
    level, own = rng.standard_normal((N, 1)), 5 * rng.standard_normal((N, VISITS))
    sbp = 130 + 14 * level + 3 * at + own
    ldl = 3 + 0.5 * level + 0.6 * rng.standard_normal((N, VISITS))
    first = (rng.random((N, 1)) < 0.35) * 1
    stage = np.minimum(first + np.cumsum((rng.random((N, VISITS)) < 0.3) & (at > 0), axis=1), 2)
    return {"visit": np.tile(at * 1.0, (N, 1)), "sbp": sbp, "ldl": ldl, "stage": stage * 1.0}


def make_uploads(make_folder: Callable[[str], Path]) -> list[Upload]:
    """What both sites released, each read in a folder of its own."""
    found = []
    for seed, site in enumerate(STUDY.sites):
        encoding = Encoding(SCHEMA)
        columns = {name: SCHEMA[name].snap(values.ravel()) for name, values in cohort(seed).items()}
        rows, present = encoding.encode(columns, np.random.default_rng(seed))
        asked = plan(HOW, SCHEMA, N, STUDY.privacy)
        parts = release(
            HOW,
            asked,
            encoding,
            rows.reshape(N, VISITS, -1),
            present.reshape(N, VISITS),
            SeededNoise(seed),
        )
        given = made.streams(STUDY, parts, N)
        found.append(made.read_parts(STUDY, given, make_folder(site), site=site, persons=N))
    return found


@pytest.fixture(scope="module")
def uploads(tmp_path_factory: pytest.TempPathFactory) -> list[Upload]:
    return make_uploads(tmp_path_factory.mktemp)


@pytest.fixture(scope="module")
def measured(uploads: list[Upload]) -> dict[str, dict[str, Measured]]:
    results = kind_of(STUDY).load_results()
    return {upload.site: results.measure(upload) for upload in uploads}


@pytest.fixture(scope="module")
def report(uploads: list[Upload], measured: dict[str, dict[str, Measured]]) -> dict[str, Any]:
    wide, results = widen_sites(measured), kind_of(STUDY).load_results()
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
    found = build_report(ReportInputs(STUDY, "5" * 64, "finished", moment, moment, sites))
    jsonschema.Draft202012Validator(report_schema()).validate(found)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


def truth(name: str) -> float:
    """Of both cohorts together, on the reader's scale."""
    all_of = {
        name: np.concatenate([cohort(seed)[name] for seed in range(len(STUDY.sites))])
        for name in SCHEMA.names
    }
    sbp, ldl, stage = all_of["sbp"], all_of["ldl"], all_of["stage"]
    change = sbp[:, 2] - sbp[:, 0]
    return {
        "mean": np.mean(sbp[:, 1]),
        "median": np.median(sbp[:, 2]),
        "upper": np.quantile(sbp[:, 2], 0.9),
        "high": np.mean(sbp[:, 2] > 140.5),  # rows are whole numbers
        "change": np.mean(change),
        "spread": np.std(change),
        "together": np.corrcoef(sbp[:, 0], sbp[:, 2])[0, 1],
        "beside": np.corrcoef(sbp[:, 1], ldl[:, 1])[0, 1],
        "worse": np.mean(stage[stage[:, 0] == 0, 2] == 1),
        "slope": np.polyfit(np.tile(np.arange(VISITS), len(sbp)), sbp.ravel(), 1)[0],
    }[name]


@pytest.fixture(scope="module")
def holdings(
    uploads: list[Upload], report: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Holdings:
    """What an analyst pulls of it."""
    out, results = tmp_path_factory.mktemp("pulled"), kind_of(STUDY).load_results()
    results.export(lambda: iter(uploads), out, "refits")
    asked = {"study_id": "5" * 64, "fresh": 1.0, "per_fit": 1, "study": STUDY.to_dict()}
    (out / "study.json").write_text(json.dumps(asked))
    (out / "report.json").write_text(json.dumps(report))
    return read_holdings(out)


def test_analyse_has_the_reports_own_numbers(holdings: Holdings, report: dict[str, Any]) -> None:
    told = answer_questions(holdings, [])
    assert [each["declared"] for each in told] == [e.name for e in ESTIMANDS]
    for each, own in zip(told, report["estimands"], strict=True):
        assert each["mark"] == (own["held"] and own["held"]["mark"])
        for key in ("coefficient", "se", "df", "tau2"):
            assert each["random"][key] == pytest.approx(own["random"][key], rel=1e-8)


LDL, PRESSURE = (np.concatenate([cohort(seed)[n] for seed in (0, 1)]) for n in ("ldl", "sbp"))
FURTHER = {
    "mean(ldl) at 2": LDL[:, 2].mean(),
    "change(ldl) at 0 until 2": (LDL[:, 2] - LDL[:, 0]).mean(),
    "change-sd(ldl) at 0 until 2": (LDL[:, 2] - LDL[:, 0]).std(),
    "correlation(sbp, ldl) at 2": np.corrcoef(PRESSURE[:, 2], LDL[:, 2])[0, 1],
    "correlation(ldl) at 0 until 2": np.corrcoef(LDL[:, 0], LDL[:, 2])[0, 1],
    "mixed: ldl ~ visit": 0.0,
    "sbp ~ ldl at 1": np.polyfit(LDL[:, 1], PRESSURE[:, 1], 1)[0],
    "sbp ~ ldl at 0 until 2": np.polyfit(LDL[:, 0], PRESSURE[:, 2], 1)[0],
}


@pytest.mark.parametrize("question", FURTHER)
def test_further_questions_of_persons_over_time_are_answered(
    holdings: Holdings, question: str
) -> None:
    (told,) = answer_questions(holdings, [question])
    value = told["random"]["value"]
    width, off = value["high"] - value["low"], value["estimate"] - FURTHER[question]
    assert told["declared"] is None
    assert abs(off) < 2 * width, (value, FURTHER[question])


@pytest.mark.parametrize(
    ("question", "what"),
    [
        ("mean(sbp) at 9", "visit"),
        ("change(sbp) at 0", "second time"),
        ("transition(stage, I, IV) at 0 until 2", "level of the outcome"),
    ],
)
def test_a_time_that_is_none_is_refused(holdings: Holdings, question: str, what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        answer_questions(holdings, [question])


@pytest.mark.parametrize("name", [e.name for e in ESTIMANDS])
def test_an_answer_is_near_what_the_persons_have(report: dict[str, Any], name: str) -> None:
    """Four standard errors of the answer, which holds the noise: 6e-5 each, of one seed."""
    found = next(e for e in report["estimands"] if e["name"] == name)
    random = found["random"]
    assert random["k"] == 2
    half = max(random["value"]["high"] - truth(name), truth(name) - random["value"]["low"])
    width = random["value"]["high"] - random["value"]["low"]
    assert half < 2 * width, (random["value"], truth(name))
    assert random["value"]["low"] < random["value"]["estimate"] < random["value"]["high"]
    back = {"plain": float, "log": math.exp, "fisher": math.tanh}.get(found["scale"])
    back = back or (lambda logit: 1 / (1 + math.exp(-logit)))
    assert random["value"]["low"] == pytest.approx(back(random["coefficient"]["low"]))


def test_each_person_is_once_in_the_first_table(report: dict[str, Any]) -> None:
    """At their first visit."""
    told = report["baseline"]
    assert told["once"]
    whole, *sites = told["groups"]
    assert [g["site"] for g in sites] == [site["site"] for site in report["sites"]]
    for group, site in zip(sites, report["sites"], strict=True):
        assert group["rows"] == pytest.approx(site["persons"], rel=0.02)
        assert 2 * group["rows"] < site["rows"]
    place = [c["column"] for c in told["columns"]].index("sbp")
    assert whole["figures"][place]["mean"] == pytest.approx(truth_at_first("sbp"), abs=3)
    page = re.sub(r"\s+", " ", render(report))
    assert "each person counts once, at their first row" in page


def truth_at_first(name: str) -> float:
    """The mean at the first visit, of both cohorts."""
    return float(np.mean([cohort(seed)[name][:, 0] for seed in range(len(STUDY.sites))]))


def test_refits_widen_what_is_within_persons(
    measured: dict[str, dict[str, Measured]],
) -> None:
    for site in measured.values():
        for name in ("together", "change", "worse", "slope"):
            assert site[name].refits == HOW.refits
            assert site[name].shown is not None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mean", "Mean of pressure (mmHg) at 1: 13"),
        ("median", "Median of pressure (mmHg) at 2: 13"),
        ("upper", "90% quantile of pressure (mmHg) at 2: 1"),
        ("high", "Share of persons with pressure (mmHg) above 140 at 2: 0."),
        ("change", "Mean change of pressure (mmHg) from 0 to 2: "),
        ("spread", "Standard deviation of the change of pressure (mmHg) from 0 to 2: "),
        ("together", "Correlation of pressure at 0 with pressure at 2: 0."),
        ("beside", "Correlation of pressure at 1 with ldl at 1: 0."),
        ("worse", "Probability of stage: II at 2, of those at I at 0: 0."),
        ("slope", "Mean slope of pressure (mmHg) per unit of visit: "),
    ],
)
def test_an_answer_is_said_in_words(report: dict[str, Any], name: str, said: str) -> None:
    found = next(e for e in report["estimands"] if e["name"] == name)
    said = said.replace("per unit of visit", "per 1 years of visit")
    assert found["sentence"].startswith(said), found["sentence"]
    assert "95% interval" in found["sentence"]


def test_the_page_shows_plots_and_the_table_of_transitions(report: dict[str, Any]) -> None:
    page = render(report)
    assert page.count("Forest plot: ") >= len(ESTIMANDS)
    assert "Transitions of stage, from 0 to 2" in page
    assert "(Fisher’s z)" in page
    assert "(logit scale)" in page
    assert "&lt;III&gt;" in page
    assert "<III>" not in page


def test_axes_are_in_what_a_reader_is_told(report: dict[str, Any]) -> None:
    for estimand in report["estimands"]:
        plot = plot_of(estimand)
        scale = plot.scale()
        if estimand["scale"] in ("fisher", "logit"):
            for position, text in scale.ticks():
                value = float(text.replace("−", "-"))
                assert plot.link.show(position) == pytest.approx(value)


def test_every_cell_of_the_table_is_a_share_with_its_interval(report: dict[str, Any]) -> None:
    [table] = report["transitions"]
    assert table["levels"] == list(STAGES)
    all_stage = np.concatenate([cohort(seed)["stage"] for seed in range(2)])
    for i, row in enumerate(table["rows"]):
        own = all_stage[all_stage[:, 0] == i]
        if i == 2:  # nobody begins at the last
            assert all(cell is None for cell in row["cells"]) or row["persons"] < 100
            continue
        assert row["persons"] == pytest.approx(len(own), rel=0.25)
        total = sum(cell["estimate"] for cell in row["cells"])
        assert total == pytest.approx(1, abs=0.05)
        for j, cell in enumerate(row["cells"]):
            assert 0 <= cell["low"] <= cell["estimate"] <= cell["high"] <= 1
            width = cell["high"] - cell["low"]
            assert abs(cell["estimate"] - np.mean(own[:, 2] == j)) < max(1.5 * width, 0.05)
    cell = table["rows"][0]["cells"][1]
    worse = next(e for e in report["estimands"] if e["name"] == "worse")
    assert worse["random"]["value"]["estimate"] == pytest.approx(cell["estimate"], rel=0.05)


def test_a_table_is_asked_for_once(report: dict[str, Any]) -> None:
    again = replace(ESTIMANDS[8], name="back", level="II", outcome_level="I")
    later = replace(again, name="later", at=1)
    assert list_tables(SCHEMA, (*ESTIMANDS, again, later)) == (ESTIMANDS[8], later)
    many = tuple(f"l{i}" for i in range(9))
    wide = Schema((*SCHEMA.columns[:3], Column("stage", "ordered", levels=many)))
    asked = replace(again, level="l1", outcome_level="l2")
    assert list_tables(wide, (asked,)) == ()


def test_a_picture_is_a_file_of_its_own(report: dict[str, Any], tmp_path: Path) -> None:
    [picture] = SECTION.draw(report)
    assert picture.name == "transitions.png"
    picture.save(tmp_path / picture.name)
    assert (tmp_path / picture.name).read_bytes().startswith(b"\x89PNG")


def test_the_table_is_a_file_for_spreadsheets(report: dict[str, Any], tmp_path: Path) -> None:
    [sheet] = SECTION.tabulate(report)
    path = production.write_sheet(sheet, tmp_path)
    assert path.name == "transitions.csv"
    found = pd.read_csv(path, dtype={"at": str, "until": str})
    assert list(found.columns) == list(sheet.columns)
    [table], levels = report["transitions"], len(STAGES)
    together = found[found["site"].isna()]
    assert len(together) == levels**2
    assert len(found) == levels**2 * (1 + len(table["sites"]))
    for (_, row), cell in zip(
        together.iterrows(), (c for r in table["rows"] for c in r["cells"]), strict=True
    ):
        assert (row["at"], row["until"]) == (table["at"], table["until"])
        if cell is None:
            assert np.isnan(row["share"])
            continue
        for name, key in (("share", "estimate"), ("low", "low"), ("high", "high")):
            assert row[name] == pytest.approx(cell[key], rel=1e-12)
        assert row["sites"] == cell["sites"]
    alone = found[found["site"] == table["sites"][0]["site"]]
    shares = np.array(table["sites"][0]["rows"], dtype=float).ravel()
    assert np.allclose(alone["share"], shares, equal_nan=True)


def test_a_level_is_no_formula_in_a_spreadsheet(tmp_path: Path) -> None:
    columns = {"level": ("categorical", "a level"), "share": ("continuous", "a share")}
    path = production.write_sheet(
        Sheet("one.csv", "rows", columns, [("=1+1", 0.5), (None, None)]), tmp_path
    )
    assert path.read_text().splitlines() == ['"level","share"', '"\'=1+1",0.5', ","]


def test_a_study_without_transitions_has_no_such_file(report: dict[str, Any]) -> None:
    assert SECTION.tabulate(report | {"transitions": []}) == []


def test_a_report_of_before_has_no_tables(report: dict[str, Any]) -> None:
    old = {k: v for k, v in report.items() if k != "transitions"} | {"format_version": "1.5"}
    old["estimands"] = [{k: v for k, v in e.items() if k != "scale"} for e in report["estimands"]]
    found = complete_report(old)
    assert found["transitions"] == []
    assert [e["scale"] for e in found["estimands"]] == [e["scale"] for e in report["estimands"]]
    assert "Transitions of" not in render(found)


# The picture -----------------------------------------------------------------------------------

KNOWN = HeatCell(0.432, 0.39, 0.48)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_heat_map_says_what_it_shows(count: int) -> None:
    levels = tuple(f"<{i}> & a very long level's name" for i in range(count))
    rows = tuple(tuple(KNOWN if i != j else None for j in range(count)) for i in range(count))
    plot = HeatMap("t", "before", "after", levels, rows)
    for compact in (False, True):
        text = heat_svg(plot, uid="h", compact=compact)
        assert "<0>" not in text
        assert text.count("43%") >= count * (count - 1)
        assert text.count("–</text>") >= count
        edge = 380 if compact else 880
        places = [float(x) for x in re.findall(r'points="([\d.]+),', text)]
        assert all(0 <= x <= edge for x in places)
    assert "not known" in describe_heat(HeatMap("t", "b", "a", ("x",), ((None,),)))


def test_darker_cells_are_larger_shares() -> None:
    cells = tuple(HeatCell(share, share, share) for share in (0.0, 0.3, 0.5, 0.7, 1.0))
    plot = HeatMap("t", "b", "a", tuple("abcde"), (cells, *((None,) * 5 for _ in range(4))))
    text = heat_svg(plot, uid="h")
    drawn = [int(x) for x in re.findall(r"<polygon[^>]*heat-(\d)", text)]
    assert drawn[:5] == [0, 1, 2, 3, 4]


def test_titles_name_the_subgroup() -> None:
    table = {"title": "stage", "at": "0", "until": "2", "where": "ldl >= 3"}
    assert title_of(table) == "Transitions of stage, from 0 to 2, where ldl >= 3"


# Files -----------------------------------------------------------------------------------------


def test_files_say_whose_a_row_is(
    uploads: list[Upload], measured: dict[str, dict[str, Measured]], tmp_path: Path
) -> None:
    """So that whoever fits a model of their own to a copy has the report's persons."""
    results = kind_of(STUDY).load_results()
    files = results.export(lambda: iter(uploads), tmp_path, "refits")
    assert {"pooled.parquet", "refits.parquet"} <= {f.name for f in files}
    table = pd.read_parquet(tmp_path / "pooled.parquet")
    assert [*table.columns[:3]] == ["_site", "_copy", "_person"]
    for site, copies in measured.items():
        changes = []
        for _, copy in table[table["_site"] == site].groupby("_copy"):
            wide = copy.pivot(index="_person", columns="visit", values="sbp")
            changes.append(float((wide[2] - wide[0]).dropna().mean()))
        assert copies["change"].plain.estimate == pytest.approx(np.mean(changes), abs=1e-9)
    refits = pd.read_parquet(tmp_path / "refits.parquet")
    assert [*refits.columns[:5]] == ["_site", "_refit", "_fit", "_copy", "_person"]
    assert not refits.duplicated(["_site", "_refit", "_person", "visit"]).any()


def test_the_dictionary_says_so(report: dict[str, Any]) -> None:
    described = kind_of(STUDY).load_results().describe(report, "all")
    assert [c["name"] for c in described["columns"][:3]] == ["_site", "_copy", "_person"]
    assert "`_person` says whose a row is" in described["combining"]
    apart = replace(STUDY, mechanism=replace(HOW, dependence="inferred"), estimands=())
    described = kind_of(apart).load_results().describe(report, "all")
    assert [c["name"] for c in described["columns"][:3]] == ["_site", "_copy", "visit"]


def test_a_reader_sees_what_a_slope_is_adjusted_for() -> None:
    slope = ESTIMANDS[-1]
    assert phrases.adjusted_text(slope, SCHEMA) == "not adjusted"
    adjusted = replace(slope, adjust=("stage", "spline(ldl, 3)"))
    assert phrases.adjusted_text(adjusted, SCHEMA) == "adjusted for stage, a spline of ldl (3 df)"
    assert phrases.contrast(adjusted, SCHEMA) == phrases.contrast(slope, SCHEMA)
    assert adjusted.formula == "sbp ~ visit + stage + spline(ldl, 3)"


# Changes ---------------------------------------------------------------------------------------


def test_a_change_is_drawn_of_every_later_time_and_is_the_answer_where_it_is_asked(
    report: dict[str, Any],
) -> None:
    [part] = report["changes"]
    assert (part["outcome"], part["begin"]) == ("sbp", "0")
    assert [step["label"] for step in part["steps"]] == ["1", "2"]
    asked = next(e for e in report["estimands"] if e["name"] == "change")["random"]
    last = part["steps"][-1]
    # What refits show is drawn to what others of the same course do, and weights with it.
    assert last["estimate"] == pytest.approx(asked["value"]["estimate"], abs=0.3)
    width = asked["value"]["high"] - asked["value"]["low"]
    assert last["high"] - last["low"] == pytest.approx(width, rel=0.5)
    assert [len(site["estimates"]) for site in part["sites"]] == [2, 2]
    one = next(e for e in report["estimands"] if e["name"] == "change")["sites"][0]
    assert part["sites"][0]["estimates"][-1] == pytest.approx(one["value"]["estimate"], rel=1e-12)


def test_a_change_is_on_the_page_and_in_words(report: dict[str, Any]) -> None:
    page = render(report)
    assert "Change of pressure (mmHg) since 0" in page
    assert "Mean change" in page
    plot = changes.plot_of(report["changes"][0])
    said = describe_track(plot)
    assert "at 2 " in said
    [picture] = changes.SECTION.draw(report)
    assert picture.name == "changes.png"
    for compact in (False, True):
        drawing = lay_out_track(plot, compact=compact)
        assert all(
            -1 <= y <= drawing.height
            for mark in drawing.marks
            if hasattr(mark, "points")
            for _, y in mark.points
        )


def test_the_sites_table_tells_of_persons_and_visits(report: dict[str, Any]) -> None:
    for site in report["sites"]:
        assert 0.9 * N < site["persons"] < 1.1 * N < site["rows"]
    assert re.search(r"3 × 1,\d{3} visits of 3\d\d persons|visits of 4\d\d persons", render(report))


def test_an_older_report_has_no_changes_and_no_persons(report: dict[str, Any]) -> None:
    old = {key: value for key, value in report.items() if key != "changes"}
    old["format_version"] = "1.7"
    old["sites"] = [{k: v for k, v in s.items() if k != "persons"} for s in report["sites"]]
    found = complete_report(old)
    assert found["changes"] == []
    assert found["sites"][0]["persons"] is None
    jsonschema.Draft202012Validator(report_schema()).validate(found)
    assert "visits" in render(found)

"""Counts, rates and contingency tables in a report, from tables and from answers."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape
from tests.unit.server.report.test_report_rows import MECHANISMS, SCHEMA, N, build
from tests.unit.shared.mechanisms.scoring.test_answers import rows

from penstock.inference.combine import SiteEstimate
from penstock.inference.fourfold import pool_mantel_haenszel
from penstock.inference.refits import Measured
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded, Column
from penstock_server.analysis.crosstabs import SiteCrosstabs, list_crosstabs, pool_odds
from penstock_server.report.composition import complete_report
from penstock_server.report.contents import SECTIONS
from penstock_server.results.production import write_sheet

WIDE = replace(SCHEMA, columns=(*SCHEMA.columns, Column("flag", "binary", label="smoker")))
SAID = {
    "third": "Count of rows with group: c: ",
    "heavy": "Count of rows with weight (kg) above 55: ",
    "died": "Count of rows with death: ",
    "soon": "Count of rows with death, until 2 years, where group == 'b': ",
    "rate": "Rate of death per 100 years: ",
    "early": "Rate of death per 100 years, until 2 years: ",
    "cell": "Share of rows with group: b and smoker: 1: 0.",
}
TOTALS = ("third", "heavy", "died", "soon")
ESTIMANDS = (
    Estimand("third", "count", "group", outcome_level="c"),
    Estimand("heavy", "count", "z", threshold=55, direction="above"),
    Estimand("died", "count", "time"),
    Estimand("soon", "count", "time", until=2, where="group == 'b'"),
    Estimand("rate", "rate", "time", per=100),
    Estimand("early", "rate", "time", per=100, until=2),
    Estimand("cell", "table", "group", term="flag", level="1", outcome_level="b"),
    Estimand("same", "table", "flag", term="group", level="a", outcome_level="0"),
)
Built = tuple[dict[str, Any], str]


@pytest.fixture(params=MECHANISMS, scope="module")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(request.param, tmp_path_factory.mktemp(request.param), ESTIMANDS, WIDE)


def together() -> Coded:
    """The rows of both sites."""
    both = [rows(N, seed) for seed in (0, 1)]
    return {name: np.concatenate([one[name] for one in both]) for name in both[0]}


@pytest.mark.parametrize("name", SAID)
def test_each_is_said_in_words_and_holds_the_truth(built: Built, name: str) -> None:
    report, page = built
    found = next(e for e in report["estimands"] if e["name"] == name)
    assert found["sentence"].startswith(SAID[name]), found["sentence"]
    pooled, [asked] = found["random"]["coefficient"], [e for e in ESTIMANDS if e.name == name]
    own = estimate(together(), WIDE, asked)
    off = 2 * found["random"]["se"] + (0 if name in TOTALS else 4 * math.sqrt(own.variance))
    assert abs(pooled["estimate"] - own.estimate) < 2 * off
    assert str(escape(found["sentence"].split(":")[0])) in page


@pytest.mark.parametrize("name", TOTALS)
def test_counts_are_added_up_and_nothing_is_made_of_how_sites_differ(
    built: Built, name: str
) -> None:
    found = next(e for e in built[0]["estimands"] if e["name"] == name)
    head, sites = found["random"], found["sites"]
    assert head["method"] == "total"
    assert head["coefficient"]["estimate"] == pytest.approx(
        sum(site["coefficient"]["estimate"] for site in sites), rel=1e-12
    )
    assert head["se"] ** 2 == pytest.approx(sum(site["variance"] for site in sites), rel=1e-12)
    assert found["fixed"] is None
    assert found["heterogeneity"] is None
    assert found["sensitivity"] == []
    assert head["prediction"] is None
    assert all(site["influence"] is None for site in sites)
    assert sum(site["weight"] for site in sites) == pytest.approx(1)
    assert "of the number in the rows of 2 sites" in found["sentence"]


def test_a_table_is_one_whichever_cell_is_asked_for(built: Built) -> None:
    assert [one.name for one in list_crosstabs(ESTIMANDS)] == ["cell"]
    report, page = built
    [table] = report["crosstabs"]
    assert [column["levels"] for column in table["columns"]] == [["a", "b", "c"], ["0", "1"]]
    whole = together()
    for cell in table["cells"]:
        group, flag = "abc".index(cell["levels"][0]), float(cell["levels"][1])
        true = float(((whole["group"] == group) & (whole["flag"] == flag)).sum())
        count, share = cell["count"], cell["share"]
        assert abs(count["estimate"] - true) < 2 * (count["high"] - count["low"])
        assert share["low"] < share["estimate"] < share["high"]
        assert count["estimate"] == pytest.approx(sum(s["count"] for s in cell["sites"]))
    shares = [cell["share"]["estimate"] for cell in table["cells"]]
    assert sum(shares) == pytest.approx(1, abs=0.02)
    named = next(e for e in report["estimands"] if e["name"] == "cell")
    [same] = [c for c in table["cells"] if c["levels"] == ["b", "1"]]
    assert same["share"]["estimate"] == pytest.approx(named["random"]["value"]["estimate"])
    assert same["share"]["low"] == pytest.approx(named["random"]["value"]["low"])
    assert "Rows by group and smoker" in page


def test_a_table_is_written_for_spreadsheets(built: Built, tmp_path: Path) -> None:
    sheets = [s for section in SECTIONS for s in section.tabulate(built[0])]
    [sheet] = [s for s in sheets if s.name == "crosstabs.csv"]
    with open(write_sheet(sheet, tmp_path), newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 6 * (1 + 2)
    assert (lines[0]["column_1"], lines[0]["level_1"], lines[0]["column_2"]) == (
        "group",
        "a",
        "flag",
    )
    alone = [line for line in lines if line["site"] and line["level_1"] == "a"]
    assert [line["level_2"] for line in alone] == ["0", "0", "1", "1"]
    [of_all] = [x for x in lines if not x["site"] and (x["level_1"], x["level_2"]) == ("a", "0")]
    assert float(of_all["count"]) == pytest.approx(sum(float(line["count"]) for line in alone[:2]))


def test_a_report_of_before_has_no_tables(built: Built) -> None:
    old = {k: v for k, v in built[0].items() if k != "crosstabs"} | {"format_version": "1.7"}
    assert complete_report(old)["crosstabs"] == []


def test_a_table_of_three_columns_has_a_picture_for_each_level_of_the_last(tmp_path: Path) -> None:
    asked = Estimand("cell", "table", "group", term="flag[1]:died[1]", outcome_level="b")
    report, page = build("scoring", tmp_path, (asked,), WIDE)
    assert len(report["crosstabs"][0]["cells"]) == 12
    for level in ("0", "1"):
        assert f'<p class="quiet">death: {level}</p>' in page


TWICE = Estimand("both", "table", "flag", term="died", level="1", outcome_level="1")


def test_noisy_counts_have_an_odds_ratio_over_sites(tmp_path: Path) -> None:
    report, page = build("scoring", tmp_path, (TWICE,), WIDE)
    [table] = report["crosstabs"]
    told = table["odds_ratio"]
    counts = []
    for seed in (0, 1):
        of = rows(N, seed)
        counts.append(
            [
                float(((of["flag"] == flag) & (of["died"] == died)).sum())
                for flag, died in ((1, 1), (0, 1), (1, 0), (0, 0))
            ]
        )
    exact = pool_mantel_haenszel(*np.array(counts).T)
    assert exact is not None
    assert told["sites"] == 2
    assert 0 < told["se_noise"] < told["se"]
    assert abs(math.log(told["estimate"]) - exact.estimate) < 5 * told["se_noise"]
    assert told["se"] ** 2 - told["se_noise"] ** 2 == pytest.approx(exact.se**2, rel=0.2)
    half = 1.959964 * told["se"]
    assert told["high"] == pytest.approx(told["estimate"] * math.exp(half), rel=1e-6)
    assert "by Mantel and Haenszel, 2 sites each with its own table" in page
    sheets = [s for section in SECTIONS for s in section.tabulate(report)]
    [sheet] = [s for s in sheets if s.name == "odds_ratios.csv"]
    with open(write_sheet(sheet, tmp_path), newline="") as file:
        [line] = csv.DictReader(file)
    assert (line["outcome"], line["outcome_level"], line["term"]) == ("flag", "1", "died")
    assert float(line["odds_ratio"]) == pytest.approx(told["estimate"])


def test_synthetic_tables_have_no_odds_ratio(tmp_path: Path) -> None:
    report, page = build("structured", tmp_path, (TWICE,), WIDE)
    assert "odds_ratio" not in report["crosstabs"][0]
    assert "Mantel" not in page


def test_tables_of_more_levels_have_no_odds_ratio(built: Built) -> None:
    assert "odds_ratio" not in built[0]["crosstabs"][0]


def noisy(counts: list[float], variance: float) -> SiteCrosstabs:
    def one(count: float) -> Measured:
        estimate = SiteEstimate(count, variance, 0.0, None, None, None, 1, 1, variance, total=True)
        return Measured(estimate, 0, None)

    cells = [(0, 0), (0, 1), (1, 0), (1, 1)]
    return SiteCrosstabs(
        {"both": {cell: (one(n), one(n)) for cell, n in zip(cells, counts, strict=True)}}
    )


def test_an_odds_ratio_is_told_where_noise_leaves_every_count() -> None:
    sites = {"north": noisy([90, 30, 40, 60], 9.0), "south": noisy([80, 20, 30, 50], 9.0)}
    found = pool_odds(WIDE, TWICE, sites)
    assert found is not None
    assert found.estimate == pytest.approx(
        math.log((60 * 90 / 220 + 50 * 80 / 180) / (30 * 40 / 220 + 20 * 30 / 180))
    )
    few = sites | {"south": noisy([80, 5, 30, 50], 9.0)}
    assert pool_odds(WIDE, TWICE, few) is None
    assert pool_odds(WIDE, TWICE, {"north": sites["north"]}) is None
    # Persons with several rows each.
    visits = replace(WIDE, person="pid", max_rows_per_person=3)
    assert pool_odds(visits, TWICE, sites) is None

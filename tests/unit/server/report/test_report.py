"""The report: what it says and refuses, that it is valid JSON, and that hostile text is inert."""

from __future__ import annotations

import json
import math
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from penstock.base.documents import Json
from penstock.base.errors import InvalidInput
from penstock.inference import pooling
from penstock.inference.combine import SiteEstimate
from penstock.inference.overlap import Overlaps, find_overlaps
from penstock.mechanisms import Maf
from penstock.privacy.request import PrivacyRequest
from penstock.processes import crew
from penstock.processes.crew import gather_documents
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.study.study import Study
from penstock.telling import axis, forest
from penstock.telling.scales import COUNT, FISHER, LINKS, LOG, LOGIT, PLAIN, Link
from penstock_server.analysis.ranges import Ranges, find_ranges, list_odd
from penstock_server.report.composition import (
    ReportInputs,
    SiteInput,
    SiteRelease,
    build_report,
    report_schema,
)
from penstock_server.report.html import render
from penstock_server.report.sections import sensitivity_analysis
from penstock_server.report.sections.estimands import plot_of

HOSTILE = "<script>alert('x')</script>\"&$\\frac{1}{0}$\x00\x1b[31m"
SCHEMA = Schema(
    (
        Column("time", "duration", upper=10.0, decimals=2, unit="years", event="dead"),
        Column("dead", "event", label="death"),
        Column("sbp", "continuous", lower=80, upper=220, decimals=0, unit="mmHg", label="pressure"),
        Column("chol", "continuous", lower=2, upper=12, decimals=1, unit="mmol/L"),
        Column("smoker", "binary", levels=("no", "yes")),
        Column("ward", "categorical", levels=("a", "b", "c")),
    )
)
ESTIMANDS = (
    Estimand("hr", "cox", "time", "sbp", per=10.0, adjust=("smoker",)),
    Estimand("or", "logistic", "dead", "smoker"),
    Estimand("diff", "ols", "chol", "ward", level="c"),
)
SITES = ("a", "b", "c", "d", "e")
EFFECTS = (0.12, 0.18, 0.15, 0.10, 0.20)


def study(**changed: Any) -> Study:
    values: dict[str, Any] = {
        "name": "cvd",
        "title": "Pressure and death",
        "federation": "net",
        "sites": SITES,
        "schema": SCHEMA,
        "estimands": ESTIMANDS,
        "privacy": PrivacyRequest(3.0, 1e-5),
        "mechanism": Maf(),
        "quorum": 3,
        "deadline_hours": 48.0,
        "not_before": "2026-11-01T00:00:00Z",
        "expires": "2026-12-01T00:00:00Z",
    }
    return Study(**(values | changed))


def release(**changed: Any) -> SiteRelease:
    values: dict[str, Any] = {
        "n_persons": 1000,
        "rows": 1000,
        "copies": 10,
        "guarantee": "formal",
        "mechanism": "maf",
        "epsilon_autodp": 2.97,
        "epsilon_pld": 2.41,
        "epsilon_replace_one": 5.9,
        "delta": 1e-5,
        "released_at": "2026-11-21T10:00:00Z",
        "gate_fingerprint": "SHA256:9f3a",
        "ledger_seq": 3,
    }
    return SiteRelease(**(values | changed))


def site_estimate(value: float, variance: float = 0.001) -> SiteEstimate:
    return SiteEstimate(value, variance, variance / 1.1, variance, 1000, 100, 10, 10)


FAILED = SiteEstimate(math.nan, math.nan, math.nan, None, 0, 0, 10, 0, 0.0, "too few events")


def built(given: ReportInputs) -> dict[str, Any]:
    """Every report of these tests is checked against the published schema."""
    report = build_report(given)
    jsonschema.Draft202012Validator(report_schema()).validate(report)
    return report


def delivered(name: str, value: float = 0.1, **changed: Any) -> SiteInput:
    estimates = {e.name: site_estimate(value) for e in ESTIMANDS}
    return SiteInput(name, "delivered", estimates=estimates, release=release(**changed))


def inputs(*sites: SiteInput, **changed: Any) -> ReportInputs:
    chosen = sites or tuple(
        delivered(name, value) for name, value in zip(SITES, EFFECTS, strict=True)
    )
    values: dict[str, Any] = {
        "study": study(),
        "study_id": "st_1",
        "state": "finished",
        "created": "2026-11-20T08:00:00Z",
        "finished": "2026-11-21T10:12:00Z",
        "sites": chosen,
    }
    return ReportInputs(**(values | changed))


class Page(HTMLParser):
    """Element names, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_schema_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(report_schema())


def test_every_property_of_the_schema_is_described() -> None:
    def undescribed(node: Any, path: str) -> list[str]:
        if not isinstance(node, dict):
            return []
        bad = []
        for name, child in node.get("properties", {}).items():
            plain = not ({"description", "$ref", "const"} & child.keys())
            number = child == {"type": "number"}  # an interval's parts: described by the interval
            bad += [f"{path}.{name}"] if plain and not number else []
        for name, child in node.items():
            children = child if isinstance(child, list) else [child]
            for c in children:
                bad += undescribed(c, f"{path}.{name}")
        return bad

    assert undescribed(report_schema(), "$") == []


def test_report_is_strict_json_and_survives_it() -> None:
    report = built(inputs())
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_a_report_says_what_its_pooled_answers_hang_on() -> None:
    report = built(inputs())
    (told, *_) = report["sensitivity_analysis"]
    (hr, *_) = report["estimands"]
    assert told["estimand"] == hr["name"]
    by_method = {m["method"]: m for m in told["methods"]}
    assert set(by_method) == {*pooling.METHODS, "unweighted"}
    assert by_method["unweighted"] == hr["sensitivity"][-1]
    assert by_method["reml"] == hr["random"]
    assert by_method["fixed"] == hr["fixed"]
    assert [s["site"] for s in told["left_out"]] == [s["site"] for s in hr["sites"]]
    rest = pooling.pool(EFFECTS[1:], [0.001] * 4)
    assert told["left_out"][0]["coefficient"]["high"] == rest.ci_high
    assert told["cumulative"][-1]["coefficient"] == pytest.approx(hr["random"]["coefficient"])
    assert told["asymmetry"] is None  # five sites
    assert 0 <= told["i2"]["low"] <= hr["heterogeneity"]["i2"] <= told["i2"]["high"] <= 1
    assert "What the pooled answers hang on" in render(report)


def test_asymmetry_is_told_from_ten_sites_on() -> None:
    names = [f"s{i}" for i in range(11)]
    sites = [delivered(name, 0.1 * i) for i, name in enumerate(names)]
    assert built(inputs(*sites[:9]))["sensitivity_analysis"][0]["asymmetry"] is None
    report = built(inputs(*sites))
    found = report["sensitivity_analysis"][0]["asymmetry"]
    # All sites are of one size here: two of three tests have nothing to look at.
    assert (found["egger"], found["begg"]) == (None, None)
    assert found["filled"]["missing"] >= 0
    assert "Trim and fill" in render(report)


@pytest.mark.skipif(sys.platform != "linux", reason="crews are Linux'")
def test_of_many_sites_processes_share_the_estimands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred sites on; what they say is the same to the last bit."""
    used: list[int] = []

    def gather(count: int, work: Callable[[int], Json], processes: int) -> list[Json]:
        used.append(processes)
        return gather_documents(count, work, processes)

    monkeypatch.setattr(sensitivity_analysis, "gather_documents", gather)
    monkeypatch.setattr(crew, "count_cores", lambda: 2)
    sites = [delivered(f"s{i}", 0.1 * i) for i in range(11)]
    by_one = built(inputs(*sites))["sensitivity_analysis"]
    monkeypatch.setattr(sensitivity_analysis, "_MANY", 11)
    assert built(inputs(*sites))["sensitivity_analysis"] == by_one
    assert used == [1, 2]


def test_one_site_alone_hangs_on_nothing() -> None:
    report = built(inputs(delivered("one", 0.2)))
    assert report["sensitivity_analysis"] == []
    assert "What the pooled answers hang on" not in render(report)


def test_headline_is_reml_with_floored_knapp_hartung() -> None:
    hr = built(inputs())["estimands"][0]
    want = pooling.pool(EFFECTS, [0.001] * 5, method="reml", test="knapp-hartung-floored")
    assert (hr["random"]["method"], hr["random"]["test"]) == ("reml", "knapp-hartung-floored")
    assert hr["random"]["coefficient"]["estimate"] == want.estimate
    assert hr["random"]["value"]["high"] == math.exp(want.ci_high)
    assert hr["random"]["prediction"]["coefficient"] == {"low": want.pi_low, "high": want.pi_high}
    assert hr["fixed"]["method"] == "fixed"
    assert [s["method"] for s in hr["sensitivity"]] == ["dl", "pm", "unweighted"]
    assert (hr["k"], hr["n"]) == (5, 5000)


def test_a_headline_allows_for_precise_sites_with_another_effect() -> None:
    """REML's own interval stands among the methods; the headline's is wider."""
    y, v = [0.30, 0.32, 0.28, 0.0, 0.05, -0.05], [0.001] * 3 + [0.02] * 3
    sites = [
        SiteInput(
            f"s{i}",
            "delivered",
            estimates={e.name: site_estimate(y[i], v[i]) for e in ESTIMANDS},
            release=release(),
        )
        for i in range(6)
    ]
    report = built(inputs(*sites))
    (told, *_), (hr, *_) = report["sensitivity_analysis"], report["estimands"]
    reml = next(m for m in told["methods"] if m["method"] == "reml")
    assert reml["coefficient"]["high"] == pooling.pool(y, v).ci_high
    assert hr["random"]["coefficient"]["estimate"] == reml["coefficient"]["estimate"]
    assert hr["random"]["coefficient"]["high"] > reml["coefficient"]["high"]
    assert hr["random"]["coefficient"]["low"] < reml["coefficient"]["low"]
    # Of all sites, one after the other, the last row is the headline.
    last = told["cumulative"][-1]["coefficient"]
    assert last == pytest.approx(hr["random"]["coefficient"], rel=1e-9, abs=1e-12)
    page = render(report)
    assert "Each site alike" in page
    times = hr["random"]["se"] / reml["se"]
    assert f"{times:.2f} times as wide as REML" in page
    assert "times as wide as REML" not in render(built(inputs()))


def test_differences_are_not_exponentiated() -> None:
    diff = built(inputs())["estimands"][2]
    assert diff["random"]["value"] == diff["random"]["coefficient"]


@pytest.mark.parametrize(
    ("position", "sentence"),
    [
        (0, r"Hazard ratio for death per 10 mmHg of pressure: 1\.162 \(95% interval "),
        (1, r"Odds ratio for death, smoker: yes against no: 1\.162 \(95% interval "),
        (2, r"Mean difference in chol \(mmol/L\), ward: c against a: 0\.150 \(95% interval "),
    ],
)
def test_answer_is_one_sentence(position: int, sentence: str) -> None:
    got = built(inputs())["estimands"][position]["sentence"]
    assert re.match(sentence, got)
    assert got.endswith("; 5 sites, random effects, n ≈ 5,000).")


def test_one_site_is_not_called_pooled() -> None:
    report = built(inputs(delivered("a")))
    estimand = report["estimands"][0]
    assert "one site only, nothing was pooled" in estimand["sentence"]
    assert estimand["heterogeneity"] is None
    assert plot_of(estimand).summaries == ()
    assert "Filled diamond" not in render(report)


def test_no_delivery_gives_a_page_without_numbers() -> None:
    report = built(inputs(SiteInput("a", "timed out", "deadline", "Ask the steward.")))
    assert report["estimands"][0]["random"] is None
    assert "no site has an estimate" in report["estimands"][0]["sentence"]
    text = Page(render(report)).text
    assert "No site delivered." in text
    assert "Ask the steward." in text


def test_missing_sites_are_named_with_code_and_remedy() -> None:
    gone = SiteInput("z", "refused", "budget", "Ask for less.")
    report = built(inputs(delivered("a"), gone))
    assert report["missing"] == [
        {"site": "z", "state": "refused", "code": "budget", "remedy": "Ask for less."}
    ]
    text = Page(render(report)).text
    assert "budget" in text
    assert "Ask for less." in text


@pytest.mark.parametrize(
    "estimate",
    [FAILED, site_estimate(math.nan), site_estimate(0.1, 0.0), site_estimate(1e200), None],
)
def test_a_failed_site_is_left_out_and_named(estimate: SiteEstimate | None) -> None:
    estimates = {} if estimate is None else {e.name: estimate for e in ESTIMANDS}
    bad = SiteInput("z", "delivered", estimates=estimates, release=release())
    report = built(inputs(delivered("a"), delivered("b"), delivered("c"), bad))
    estimand = report["estimands"][0]
    assert estimand["k"] == 3
    assert estimand["sites"][3]["problem"]
    assert "coefficient" not in estimand["sites"][3]
    [warning] = [w for w in report["warnings"] if w["code"] == "no-estimate"]
    assert warning["sites"] == ["z"]
    assert "z" in Page(render(report)).text


@pytest.mark.parametrize("seed", range(30))
def test_any_finite_estimates_make_a_page(seed: int) -> None:
    """Numbers of any magnitude: no exception, valid strict JSON, and no NaN on the page."""
    rng = np.random.default_rng(seed)
    sites = []
    for name in SITES[: 1 + seed % 5]:
        values = rng.normal(size=3) * 10.0 ** rng.choice([-30, 0, 1, 5, 59], 3)
        variances = 10.0 ** rng.choice([-58, -20, -3, 0, 3, 59], 3)
        estimates = {
            e.name: site_estimate(float(x), float(v))
            for e, x, v in zip(ESTIMANDS, values, variances, strict=True)
        }
        sites.append(SiteInput(name, "delivered", estimates=estimates, release=release()))
    report = built(inputs(*sites, truth={"hr": float(rng.choice([0.0, 1e300, -1e300, 0.1]))}))
    json.dumps(report, allow_nan=False)
    assert not re.search(r"\b(nan|inf)\b", Page(render(report)).text)


def test_infinite_epsilon_is_text_in_json_and_loud_on_the_page() -> None:
    bad = delivered("b", guarantee="empirical", epsilon_autodp=math.inf, epsilon_pld=math.inf)
    report = built(inputs(delivered("a"), bad))
    assert [s["epsilon_autodp"] for s in report["sites"]] == [2.97, "inf"]
    assert report["composed"]["epsilon"] == "inf"
    assert not report["sites"][1]["formal"]
    [warning] = [w for w in report["warnings"] if w["code"] == "empirical"]
    assert (warning["severity"], warning["sites"]) == ("danger", ["b"])
    text = Page(render(report)).text
    assert "No formal guarantee" in text
    assert "∞" in text


def test_an_empirical_release_is_marked_even_with_a_finite_epsilon() -> None:
    report = built(inputs(delivered("a", guarantee="empirical")))
    assert not report["sites"][0]["formal"]
    assert "empirical" in [w["code"] for w in report["warnings"]]


def test_a_test_seed_is_announced_first() -> None:
    report = built(inputs(delivered("a", insecure_seed=True)))
    assert report["warnings"][0]["code"] == "insecure-seed"
    assert not report["sites"][0]["formal"]
    assert "Not private" in Page(render(report)).text


def test_formal_releases_have_no_warning() -> None:
    assert built(inputs())["warnings"] == []


def test_a_missed_quorum_is_a_warning() -> None:
    report = built(inputs(delivered("a"), SiteInput("b", "timed out")))
    assert "quorum" in [w["code"] for w in report["warnings"]]


def test_a_wild_site_is_flagged_and_still_pooled() -> None:
    wild = [*(delivered(s, 0.1 + i / 100) for i, s in enumerate("abcd")), delivered("e", 3.0)]
    report = built(inputs(*wild))
    rows = report["estimands"][0]["sites"]
    assert [r["influence"]["flagged"] for r in rows] == [False] * 4 + [True]
    assert report["estimands"][0]["k"] == 5
    assert {w["code"] for w in report["warnings"]} == {"influence"}


def with_pressure(site: str, low: float, middle: float, high: float) -> SiteInput:
    return replace(delivered(site), summaries=(Ranges({"sbp": (low, middle, high)}),))


def test_a_column_in_another_unit_at_one_site_is_named() -> None:
    """Within wide bounds nobody else could see it: the site's answer is off by a factor of 7.5."""
    usual = [with_pressure("a", 105, 128, 150), with_pressure("b", 112, 137, 165)]
    report = built(inputs(*usual, with_pressure("c", 14, 17, 20)))
    (found,) = report["warnings"]
    assert (found["code"], found["sites"]) == ("odd-column", ["c"])
    assert "sbp is in the middle 17 at c, 128 to 137 elsewhere" in found["text"]
    assert "in the same unit" in Page(render(report)).text
    # Of two sites nobody knows which is which; who differs as cohorts do is not named.
    two = built(inputs(usual[0], with_pressure("c", 14, 17, 20)))["warnings"]
    assert [w["sites"] for w in two if w["code"] == "odd-column"] == [["a", "c"]]
    for sites in (usual, [*usual, with_pressure("c", 160, 190, 230)], [delivered("b"), usual[0]]):
        assert "odd-column" not in {w["code"] for w in built(inputs(*sites))["warnings"]}


@pytest.mark.parametrize(
    ("kpa", "odd"),
    [((14.0, 17.0, 20.0), {"x": ["c"]}), ((-20.0, -17.0, -14.0), {}), ((60.0, 100.0, 140.0), {})],
)
def test_odd_columns_are_those_far_from_every_other(
    kpa: tuple[float, float, float], odd: dict[str, list[str]]
) -> None:
    sites = {"a": Ranges({"x": (105.0, 128.0, 150.0)}), "b": Ranges({"x": (110.0, 135.0, 160.0)})}
    assert list_odd(sites | {"c": Ranges({"x": kpa})}) == odd


def test_columns_that_say_the_same_are_named() -> None:
    """Private tables have them apart further than they are: intervals of .05 for .6."""
    sites = [
        replace(delivered(s), summaries=(Overlaps({"hr": share, "or": 0.1}),))
        for s, share in (("a", 0.9), ("b", 0.39), ("c", 0.41))
    ]
    (found,) = built(inputs(*sites))["warnings"]
    assert (found["code"], found["sites"]) == ("collinear", ["a", "c"])
    assert found["text"].startswith("hr: what it is adjusted for explains up to 90% of")
    assert built(inputs(*sites[1:2], *(delivered(s) for s in "cd")))["warnings"] == []


def test_overlaps_are_r_squared_of_what_is_asked_as_it_is() -> None:
    schema, rng = study().schema, np.random.default_rng(1)
    table = {c.name: np.zeros(4000) for c in schema.columns}
    table["smoker"] = (rng.random(4000) < 0.5) * 1.0
    # Half of its variance between the two.
    table["sbp"] = 130 + 20 * (table["smoker"] - 0.5) + rng.normal(0, 10, 4000)
    table["sbp"][0] = np.nan
    asked = (*ESTIMANDS, Estimand("product", "cox", "time", "sbp:smoker"))
    found = find_overlaps(schema, asked, table).estimands
    assert found == {"hr": pytest.approx(0.5, abs=0.05)}
    few = {name: values[:8] for name, values in table.items()}
    assert find_overlaps(schema, asked, few).estimands == {}


def test_ranges_are_of_numbers_that_are_known() -> None:
    schema = study().schema
    table = {c.name: np.full(4, np.nan) for c in schema.columns}
    table["sbp"] = np.array([100.0, 120.0, np.nan, 140.0])
    assert find_ranges(schema, table).columns == {"sbp": (104.0, 120.0, 136.0)}


@pytest.mark.parametrize(("sites", "epsilon"), [(1, 4.0), (2, 7.0), (9, 9.0)])
def test_losses_of_a_person_in_several_sites_add_up(sites: int, epsilon: float) -> None:
    given = [delivered(s, epsilon_autodp=e) for s, e in (("a", 2.0), ("b", 4.0), ("c", 3.0))]
    report = built(inputs(*given, study=study(max_sites_per_person=sites)))
    assert report["composed"]["epsilon"] == pytest.approx(epsilon)
    assert report["composed"]["delta"] == pytest.approx(min(sites, 3) * 1e-5)


def test_truth_is_on_the_page_where_it_is_given() -> None:
    report = built(inputs(truth={"hr": math.log(1.17)}))
    assert report["estimands"][0]["truth"]["value"] == pytest.approx(1.17)
    assert report["estimands"][0]["truth"]["covered"]
    assert report["estimands"][1]["truth"] is None
    assert "truth 1.17" in render(report)
    assert "truth 1.17" not in render(built(inputs()))


def test_the_page_says_what_is_not_included() -> None:
    text = Page(render(built(inputs()))).text
    assert "do not include the noise that the privacy mechanism added" in text
    assert "zero-out" in text
    assert "in one site only" in text


def hostile_report() -> dict[str, Any]:
    hostile = [
        replace(delivered("a"), name=HOSTILE, state=HOSTILE),
        delivered(
            "b", mechanism=HOSTILE, guarantee=HOSTILE, relation=HOSTILE, gate_fingerprint=HOSTILE
        ),
        SiteInput("c" + HOSTILE, HOSTILE, HOSTILE, HOSTILE),
        SiteInput(
            "d",
            "delivered",
            estimates={"hr": replace(FAILED, problem=HOSTILE)},
            release=release(),
        ),
    ]
    return built(
        inputs(
            *hostile,
            study=study(title="<script>alert('x')</script>"),
            study_id=HOSTILE,
            state=HOSTILE,
        )
    )


def test_hostile_text_stays_text() -> None:
    page = render(hostile_report())
    parsed = Page(page)
    assert "script" not in parsed.tags
    assert "alert('x')" in parsed.text
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]


def test_the_page_fetches_nothing() -> None:
    page = render(built(inputs(truth={"hr": 0.1})))
    parsed = Page(page)
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(parsed.tags)
    assert not {"src", "href", "xlink:href", "action"} & {name for name, _ in parsed.attributes}
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_ids_are_unique_and_tables_have_captions() -> None:
    parsed = Page(render(built(inputs(delivered("a"), SiteInput("b", "timed out")))))
    ids = [value for name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert parsed.tags.count("table") == parsed.tags.count("caption") > 0


PLOT = forest.ForestPlot(
    title=HOSTILE,
    axis_label="Hazard ratio " + HOSTILE * 9,
    short="HR",
    link=LOG,
    rows=(
        forest.ForestRow("a", 0.1, 0.0, 0.2, 0.5, "1,000"),
        forest.ForestRow("b", 0.2, 0.1, 0.3, 0.4, "900"),
        forest.ForestRow(HOSTILE, 50.0, 40.0, 60.0, 0.1, "9", flagged=True),
        forest.ForestRow("d", math.nan, math.nan, math.nan, problem=HOSTILE),
    ),
    summaries=(
        forest.ForestSummary("Random effects", 0.15, -0.1, 0.4, "random"),
        forest.ForestSummary("Fixed effect", 0.15, 0.1, 0.2, "fixed"),
    ),
    prediction=(-800.0, 800.0),
    truth=math.log(1.17),
)


@pytest.mark.parametrize("compact", [False, True])
def test_standalone_svg_is_well_formed_and_described(compact: bool) -> None:
    root = ElementTree.fromstring(forest.forest_svg(PLOT, compact=compact, standalone=True))
    space = "{http://www.w3.org/2000/svg}"
    assert [child.tag for child in root[:2]] == [f"{space}title", f"{space}desc"]
    assert "Known truth 1.17" in (root[1].text or "")
    assert root.findall(f".//{space}script") == []


def numbers_in(svg: str) -> list[float]:
    return [
        float(v)
        for attribute in re.findall(r' (?:x|y|x1|x2|y1|y2|points)="([^"]*)"', svg)
        for v in re.split(r"[ ,]", attribute)
    ]


@pytest.mark.parametrize(("compact", "width"), [(False, 880), (True, 380)])
def test_nothing_is_drawn_outside_the_plot(compact: bool, width: float) -> None:
    svg = forest.forest_svg(PLOT, compact=compact)
    [(wide, high)] = re.findall(r'viewBox="0 0 (\S+) (\S+)"', svg)
    assert float(wide) == width
    drawn = numbers_in(svg)
    assert len(drawn) > 50
    assert all(0 <= value <= max(width, float(high)) for value in drawn)


def test_a_wild_site_does_not_squash_the_others() -> None:
    scale = PLOT.scale()
    assert scale.high < 2.0
    assert scale.share(0.2) - scale.share(0.1) > 0.03


def test_clipped_whiskers_end_in_arrows() -> None:
    tame = replace(PLOT, rows=PLOT.rows[:2], prediction=None)
    wide = replace(tame, rows=(*tame.rows, forest.ForestRow("c", 0.15, -9.0, 9.0, 0.1)))
    extra = forest.forest_svg(wide).count("fp-square") - forest.forest_svg(tame).count("fp-square")
    assert extra == 3  # its square and two arrow heads


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_forest_plots_can_be_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"forest.{suffix}"
    forest.forest_png(path, replace(PLOT, axis_label="Hazard ratio"), dpi=60)
    start = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[suffix]
    assert path.read_bytes().startswith(start)


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
def test_what_is_shown_leads_back(link: Link) -> None:
    # Of a count less than nothing is nothing.
    for coefficient in (0.0, 1.5) if link is COUNT else (-3.0, -0.2, 0.0, 1.5):
        assert link.back(link.show(coefficient)) == pytest.approx(coefficient)
    for far in (-1e4, 1e4):  # a wild site's
        assert math.isfinite(link.show(far))
        assert link.ends[0] <= link.show(far) <= link.ends[1]


@pytest.mark.parametrize(
    ("low", "high", "link"),
    [
        (0.9, 1.3, LOG),
        (0.5, 4.0, LOG),
        (0.01, 200.0, LOG),
        (1e-9, 1e9, LOG),
        (-3.0, 17.0, PLAIN),
        (1.0001, 1.0002, PLAIN),
        (0.001, 0.999, LOGIT),
        (0.41, 0.43, LOGIT),
        (1e-12, 1 - 1e-12, LOGIT),
        (-0.99, 0.99, FISHER),
        (0.7, 0.8, FISHER),
    ],
)
def test_ticks_are_few_round_and_inside(low: float, high: float, link: Link) -> None:
    a, b = link.back(low), link.back(high)
    ticks = axis.Scale(a, b, link, 2).ticks()
    assert 2 <= len(ticks) <= 7
    assert all(a <= value <= b for value, _ in ticks)
    assert len({text for _, text in ticks}) == len(ticks)
    if link.round:  # even steps of a share crowd on a logit's axis
        places = [value for value, _ in ticks]
        assert min(np.diff(places)) >= (b - a) / 8 - 1e-9


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (1.17, 3, "1.170"),
        (-0.5, 1, "−0.5"),
        (-0.0001, 2, "0.00"),
        (-0.048, 0, "0"),
        (-12.3, 0, "−12"),
        (2_500_000.0, 0, "2,500,000"),
        (12345.6, 0, "12,346"),
        (3e9, 2, "3×10⁹"),
        (-1e12, 2, "−10¹²"),
        (math.nan, 2, "not finite"),
    ],
)
def test_numbers_are_written_for_people(value: float, decimals: int, text: str) -> None:
    assert axis.number_text(value, decimals) == text


@pytest.mark.parametrize(
    "changed",
    [
        {"epsilon_autodp": math.nan},
        {"epsilon_autodp": -1.0},
        {"epsilon_pld": math.nan},
        {"delta": math.nan},
        {"delta": 1.0},
        {"n_persons": 0},
        {"copies": 0},
    ],
)
def test_impossible_releases_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        release(**changed)
    assert [p.where for p in caught.value.problems] == list(changed)


def test_a_site_named_twice_is_refused() -> None:
    with pytest.raises(InvalidInput):
        inputs(delivered("a"), delivered("a"))


@pytest.mark.parametrize("truth", [{"nosuch": 0.1}, {"hr": math.nan}])
def test_a_truth_must_fit_the_study(truth: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        inputs(truth=truth)

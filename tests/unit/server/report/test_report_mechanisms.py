"""The report of each mechanism: words, pictures, and that hostile text stays text."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from tests.support import made
from tests.support.made import TRAJECTORY

from penstock.mechanisms import Gibbs, Maf, SlicedWasserstein
from penstock.mechanisms.sliced_wasserstein.settings import VARIANTS
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column
from penstock.telling.draw import to_file
from penstock_server.mechanisms.registry import kind_of
from penstock_server.mechanisms.trajectory import marginals
from penstock_server.report.composition import (
    ReportInputs,
    SiteInput,
    build_report,
    complete_report,
    report_schema,
)
from penstock_server.report.contents import SECTIONS
from penstock_server.report.html import render
from penstock_server.report.panels import Band, Levels, Marginal, describe, layout, marginals_svg
from penstock_server.report.sections.estimands import plot_of
from penstock_server.report.sections.trajectory import panels
from penstock_server.results import production

HOSTILE = "<script>alert('x')</script>\"&$\\frac{1}{0}$"


def built(study: Any, folder: Path, **changed: Any) -> dict[str, Any]:
    sites = tuple(
        SiteInput(
            upload.site,
            "delivered",
            estimates=made.estimates(upload, study),
            release=production._describe_release(upload.manifest),
            summaries=kind_of(study).load_results().summarise(upload),
        )
        for upload in made.uploads(study, folder)
    )
    values: dict[str, Any] = {
        "study": study,
        "study_id": "5" * 64,
        "state": "finished",
        "created": "2026-11-20T08:00:00Z",
        "finished": "2026-11-21T10:12:00Z",
        "sites": sites,
    }
    report = build_report(ReportInputs(**(values | changed)))
    jsonschema.Draft202012Validator(report_schema()).validate(report)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    return report


@pytest.fixture(scope="module")
def trajectory(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return built(made.study(TRAJECTORY), tmp_path_factory.mktemp("made"))


@pytest.mark.parametrize("name", made.MECHANISMS)
def test_every_mechanism_is_explained(name: str, tmp_path: Path) -> None:
    report = built(made.study(made.MECHANISMS[name]), tmp_path)
    page = render(report)
    assert name in report["mechanism"][0]
    assert "What left a site" in report["mechanism"][1]
    assert "How the sites made this" in page
    assert (report["trajectory"] is None) == (name != "trajectory")
    assert ("Marginals with paths" in page) == (name == "trajectory")


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_named(variant: str, tmp_path: Path) -> None:
    schema = replace(made.SCHEMA, person=None, max_rows_per_person=1)
    mechanism = SlicedWasserstein(variant, copies=1, refits=0)
    study = made.study(mechanism, schema=schema, estimands=())
    assert variant in built(study, tmp_path)["mechanism"][0]


@pytest.mark.parametrize(
    ("guarantee", "w", "said", "unsaid"),
    [
        ("formal", 0.0, "noisy sums of its persons only", "latent"),
        ("formal", 0.3, "A share of 0.3", "No bound"),
        ("public-flow", 0.5, "public data only", "noisy sums"),
        ("empirical", 0.0, "No bound holds", "noisy sums"),
    ],
)
def test_a_flow_claims_no_more_than_its_guarantee(
    guarantee: str, w: float, said: str, unsaid: str
) -> None:
    asked = PrivacyRequest(2.0, 1e-5, guarantee)
    text = " ".join(kind_of(made.study(Maf(w=w), privacy=asked)).explain())
    assert said in text
    assert unsaid not in text


@pytest.mark.parametrize("mechanism", [Maf(1, refits=0), TRAJECTORY])
def test_a_study_without_a_question_has_a_page(mechanism: Any, tmp_path: Path) -> None:
    report = built(made.study(mechanism, estimands=()), tmp_path)
    assert report["estimands"] == []
    page = render(report)
    assert 'id="answers"' not in page
    assert "Sites and what they spent" in page


@pytest.mark.parametrize("name", made.MECHANISMS)
def test_a_study_without_a_delivery_has_a_page(name: str, tmp_path: Path) -> None:
    sites = (SiteInput("north", "timed out", "deadline", "Ask."),)
    report = built(made.study(made.MECHANISMS[name]), tmp_path, sites=sites)
    assert report["trajectory"] is None
    assert "No site delivered." in render(report)


# -- means and rates -----------------------------------------------------------------------------


def test_a_mean_has_no_null_value(trajectory: dict[str, Any]) -> None:
    falls, mean, share = trajectory["estimands"]
    assert (falls["measure"], falls["short"], falls["log"]) == ("rate ratio", "RR", True)
    assert re.match(r"Rate ratio for falls, smoker: yes against no: \d", falls["sentence"])
    assert (mean["measure"], mean["short"], mean["log"], mean["sides"]) == (
        "mean",
        "Mean",
        False,
        [],
    )
    assert re.match(r"Mean of pressure \(mmHg\): 12\d", mean["sentence"])
    assert re.match(r"Share of smoker: yes: 0\.\d", share["sentence"])
    assert mean["axis_label"] == "Mean of pressure (mmHg)"
    assert share["axis_label"] == "Share of smoker: yes"
    scale = plot_of(mean).scale()
    assert scale.low > 100
    trajectory = {**trajectory, "sensitivity_analysis": []}
    assert "fp-null" not in render({**trajectory, "estimands": [mean]}).partition("<body>")[2]
    assert "fp-null" in render({**trajectory, "estimands": [falls]}).partition("<body>")[2]


def test_a_mean_around_0_has_no_sides(tmp_path: Path) -> None:
    columns = (*made.SCHEMA.columns, Column("z", "continuous", lower=-1, upper=1))
    study = made.study(
        Gibbs(),
        schema=replace(made.SCHEMA, columns=columns),
        estimands=(Estimand("z", "mean", "z"),),
    )
    page = render(built(study, tmp_path)).partition("<body>")[2]
    assert "fp-null" not in page
    assert "lower" not in page


# -- answers -------------------------------------------------------------------------------------


def test_an_answer_is_called_one(tmp_path: Path) -> None:
    report = built(made.study(Gibbs()), tmp_path)
    page = render(report)
    assert report["estimands"][0]["fitted"] == "Poisson model, fitted at the sites"
    assert "No table was released" in page
    assert "5 coefficients" in page
    assert "Copies" not in page
    assert "synthetic copies" not in page
    assert "Pull the sites" in page
    assert report["sites"][0]["rows"] == 5


def test_a_survival_answer_names_its_baseline(tmp_path: Path) -> None:
    columns = (
        *made.SCHEMA.columns,
        Column("time", "duration", upper=10, event="died"),
        Column("died", "event"),
    )
    for baseline, word in (("piecewise", "piecewise constant"), ("weibull", "Weibull")):
        study = made.study(
            Gibbs(baseline=baseline),
            schema=replace(made.SCHEMA, columns=columns),
            estimands=(Estimand("hr", "cox", "time", "sbp", per=10.0),),
        )
        assert word in built(study, tmp_path)["estimands"][0]["fitted"]


# -- trajectories --------------------------------------------------------------------------------


def test_paths_are_warned_about_and_explained(trajectory: dict[str, Any]) -> None:
    [warning] = [w for w in trajectory["warnings"] if w["code"] == "model-paths"]
    assert "not persons' histories" in warning["text"]
    assert "not observed links between persons' visits" in warning["text"]
    text = " ".join(trajectory["trajectory"]["explained"])
    for word in ("_site", "_path", "_time", "9 rows", "snapshots"):
        assert word in text


def test_the_picture_holds_what_was_released(trajectory: dict[str, Any], tmp_path: Path) -> None:
    part = trajectory["trajectory"]
    assert part["points"] == ["0", "2", "4"]
    assert part["positions"] == [0.0, 0.5, 1.0]
    assert len(part["seen"]) == 9
    assert [c["levels"] for c in part["columns"]] == [None, None, ["yes"], ["a", "b", "=c"], None]
    assert [f["site"] for f in part["figures"]] == [None, *made.SITES]
    north = made.uploads(made.study(TRAJECTORY), tmp_path)[0]
    values = np.asarray(north.part("particles")["sbp"].to_pylist()).reshape(3, 6)
    got = part["figures"][1]["columns"][0]["quantiles"]
    for t in range(3):
        assert got[t][2] == pytest.approx(np.median(values[t]))
        assert values[t].min() <= got[t][0] <= got[t][1] <= got[t][2]
        assert values[t].max() >= got[t][4]
    paths = np.asarray(north.part("paths")["sbp"].to_pylist()).reshape(5, 9)
    assert part["figures"][1]["columns"][0]["paths"] == paths.tolist()
    smokers = np.asarray(north.part("particles")["smoker"].to_pylist()).reshape(3, 6) == "yes"
    assert part["figures"][1]["columns"][2]["shares"] == [pytest.approx(smokers.mean(axis=1))]


def test_all_sites_weigh_by_their_rows() -> None:
    shape = {"x": np.zeros((2, 4))}
    few = marginals.Marginals(10, shape, {}, {"x": np.zeros((3, 2))})
    many = replace(few, rows=990, particles={"x": np.ones((2, 4))},
                   shares={"x": np.ones((3, 2))})  # fmt: skip
    assert marginals.shares([few, many], "x", 2)[0].tolist() == pytest.approx([0.01, 0.99])
    assert marginals.path_shares([few, many], "x")[0].tolist() == pytest.approx([0.99, 0.99])
    five = marginals.quantiles([few, many], "x")[0]
    assert five is not None
    assert five[1:] == [1.0] * 4


def test_weighted_quantiles_are_plain_ones_of_equal_weights() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(1, 400))
    one = marginals.Marginals(7, {"x": values}, {}, {})
    found = marginals.quantiles([one], "x")[0]
    want = np.quantile(values, marginals.QUANTILES, method="hazen")
    assert found == pytest.approx(want.tolist())


def test_missing_values_leave_gaps() -> None:
    values = np.array([[np.nan, np.nan], [1.0, np.nan]])
    one = marginals.Marginals(7, {"x": values}, {}, {})
    assert marginals.quantiles([one], "x") == [None, [1.0] * 5]
    assert marginals.level_shares(values, 2).tolist() == [[0.0, 0.0], [0.0, 1.0]]


def test_a_column_without_any_value_is_drawn_empty() -> None:
    panel = Marginal("x", "t", (0.0, 1.0), ("0", "1"), (0.0, 0.5, 1.0),
                     Band((None, None), ((math.nan,) * 3,), 0.0, 1.0))  # fmt: skip
    assert "no values" in describe(panel)
    svg = marginals_svg((panel,), title="x", uid="u")
    assert "nan" not in svg
    assert "polyline" not in svg


def test_a_missing_value_breaks_a_path() -> None:
    path = (0.1, 0.2, math.nan, 0.3, 0.4)
    panel = Marginal("x", "t", (0.0, 1.0), ("0", "1"), (0.0, 0.25, 0.5, 0.75, 1.0),
                     Band((None, None), (path,), 0.0, 1.0))  # fmt: skip
    assert marginals_svg((panel,), title="x", uid="u").count("<polyline") == 2


def test_many_sites_and_columns_are_not_all_drawn(tmp_path: Path) -> None:
    extra = tuple(Column(f"x{i}", "integer", lower=0, upper=1) for i in range(4))
    names = tuple(f"site-{i}" for i in range(14))
    upload = made.uploads(made.study(TRAJECTORY), tmp_path)[0]
    found = kind_of(made.study(TRAJECTORY)).load_results().summarise(upload)
    release = production._describe_release(upload.manifest)
    study = made.study(TRAJECTORY, sites=names)
    sites = tuple(SiteInput(n, "delivered", release=release, summaries=found) for n in names)
    part = built(study, tmp_path, sites=sites)["trajectory"]
    assert len(part["figures"]) == 13
    assert part["sites_not_drawn"] == 2
    assert part["columns_not_drawn"] == 0
    wide = replace(made.SCHEMA, columns=(*made.SCHEMA.columns, *extra))
    assert len(marginals.drawn(TRAJECTORY, wide)) == marginals.MOST_COLUMNS


def test_one_site_is_drawn_once(tmp_path: Path) -> None:
    report = built(made.study(TRAJECTORY, sites=("north",)), tmp_path)
    assert [f["site"] for f in report["trajectory"]["figures"]] == [None]
    assert "The same for each site" not in render(report)


PANELS = (
    Marginal(HOSTILE * 4, HOSTILE, (0.0, 0.5, 1.0), (HOSTILE, "b", "c"), (0.0, 1.0),
             Band(((1e-9, 2.0, 3.0, 4.0, 1e300), None, (0.0,) * 5), ((-1e300, 1e300),), 0.0, 5.0)),
    Marginal("levels", "t", (0.0, 0.5, 1.0), ("a", "b", "c"), (0.0, 1.0),
             Levels((HOSTILE, "x", "y", "z", "w"), ((0.0,) * 3,) * 5, ((0.0, 0.0),) * 5)),
)  # fmt: skip


@pytest.mark.parametrize(("compact", "width"), [(False, 880), (True, 380)])
def test_nothing_is_drawn_outside_the_picture(compact: bool, width: float) -> None:
    svg = marginals_svg(PANELS, title=HOSTILE, uid="u", compact=compact)
    root = ElementTree.fromstring(svg)
    assert root.findall(".//script") == []
    height = layout(PANELS, compact=compact).height
    for attribute, most in (("x|x1|x2", width), ("y|y1|y2", height)):
        for value in re.findall(rf' (?:{attribute})="([^"]*)"', svg):
            assert -1 <= float(value) <= most
    for points in re.findall(r' points="([^"]*)"', svg):
        for pair in points.split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_labels_of_levels_do_not_lie_on_each_other() -> None:
    svg = marginals_svg(PANELS[1:], title="x", uid="u")
    ys = sorted(float(y) for y in re.findall(r'fp-level-text-\d" x="[^"]*" y="([^"]*)"', svg))
    assert len(ys) == 5
    assert min(np.diff(ys)) >= 12


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_can_be_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"marginals.{suffix}"
    to_file(layout(PANELS[1:]), path, title="x", dpi=50)
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("name", made.MECHANISMS)
def test_pictures_are_files_of_their_own(name: str, tmp_path: Path) -> None:
    report = built(made.study(made.MECHANISMS[name]), tmp_path)
    drawn = [picture for section in SECTIONS for picture in section.draw(report)]
    assert [p.name for p in drawn] == [
        "forest.png",
        "funnel.png",
        *["paths.png"][: name == "trajectory"],
    ]
    for picture in drawn:
        picture.save(tmp_path / picture.name)
        assert (tmp_path / picture.name).stat().st_size > 1000


def test_hostile_names_stay_text(trajectory: dict[str, Any]) -> None:
    part = trajectory["trajectory"]
    changed = {
        **part,
        "time": HOSTILE,
        "points": [HOSTILE] * 3,
        "explained": [HOSTILE],
        "columns": [{**c, "title": HOSTILE} for c in part["columns"]],
        "figures": [{**f, "site": f["site"] and HOSTILE} for f in part["figures"]],
    }
    page = render({**trajectory, "trajectory": changed, "mechanism": [HOSTILE]})
    assert "<script" not in page
    assert "url(" not in page


def test_ids_are_unique(trajectory: dict[str, Any]) -> None:
    ids = re.findall(r' id="([^"]*)"', render(trajectory))
    assert len(ids) == len(set(ids)) > 20


def test_panels_come_back_from_json(trajectory: dict[str, Any]) -> None:
    part = json.loads(json.dumps(trajectory["trajectory"]))
    assert panels(part, part["figures"][0]) == panels(
        trajectory["trajectory"], trajectory["trajectory"]["figures"][0]
    )


def test_a_kept_report_of_an_older_format_still_has_a_page(tmp_path: Path) -> None:
    report = built(made.study(made.MECHANISMS["maf"]), tmp_path)
    old = {k: v for k, v in report.items() if k not in ("mechanism", "trajectory")}
    old["format_version"] = "1.0"
    old["estimands"] = [{k: v for k, v in e.items() if k != "fitted"} for e in report["estimands"]]
    found = complete_report(old)
    jsonschema.Draft202012Validator(report_schema()).validate(found)
    assert found == {**report, "mechanism": []}
    assert "How the sites made this" not in render(found)
    assert complete_report(report) is report

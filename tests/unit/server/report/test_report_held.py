"""What a report says of effects that the tables hold in part, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.server.report.test_report import SITES, Page, built, inputs, study

from penstock.inference.slopes import Held, Mark, Slope
from penstock.mechanisms import Structured
from penstock_server.mechanisms.tables.codebook import describe_held
from penstock_server.report.composition import ReportInputs, complete_report
from penstock_server.report.html import render

HELD = Slope(0.98, 0.05, 0.001, 0.01, 10.0, 12)
HALF = Slope(0.70, 0.05, 0.001, 0.01, 10.0, 12)
LOST = Slope(0.02, 0.08, 0.001, 0.01, 10.0, 12)
VAGUE = Slope(0.60, 0.80, 0.001, 0.10, 10.0, 12)
NONE = Slope(*[float("nan")] * 5, 3)
EFFECT = "time ~ sbp:smoker"


def marked(*slopes: Slope, requested: Slope | None = None, **changed: Any) -> ReportInputs:
    """Each site's slope of the first estimand."""
    given = inputs(**changed)
    asked = {} if requested is None else {EFFECT: requested}
    sites = tuple(
        replace(site, summaries=(Held({"hr": slope, "diff": HELD}, asked),))
        for site, slope in zip(given.sites, slopes, strict=True)
    )
    return replace(given, sites=sites)


@pytest.mark.parametrize(
    ("slope", "mark", "word"),
    [
        (HELD, Mark.HELD, "Held: of effects of known size"),
        (HALF, Mark.ATTENUATED, "Attenuated: of effects of known size"),
        (LOST, Mark.UNSUPPORTED, "Not held: of effects of known size"),
        (Slope(0.7, 3.0, 0, 1, 10.0, 12), Mark.UNRESOLVED, "too uncertain to say"),
        (NONE, Mark.UNRESOLVED, "too few of the planted runs"),
    ],
)
def test_what_came_back_stands_beside_the_estimate(slope: Slope, mark: Mark, word: str) -> None:
    report = built(marked(*[slope] * 5))
    hazard, odds, _ = report["estimands"]
    assert hazard["held"]["mark"] == mark
    assert word in hazard["held"]["text"]
    assert [s["site"] for s in hazard["held"]["sites"]] == list(SITES)
    # Its outcome is a duration's event, which no planted effect moves.
    assert odds["held"]["mark"] == Mark.UNRESOLVED
    assert "no such effect was planted" in odds["sentence"]
    page = Page(render(report)).text
    assert word in page
    assert (hazard["held"]["text"] in hazard["sentence"]) == (mark is not Mark.HELD)
    warned = [w for w in report["warnings"] if w["code"] == "not-held"]
    assert all(w["sites"] == list(SITES) for w in warned)
    named = sorted(w["text"].split(": ")[1].split(". ")[0] for w in warned)
    if mark is Mark.UNRESOLVED:
        assert named == ["hr, or"]
    else:
        assert named == ["hr", "or"] if mark is not Mark.HELD else ["or"]


def test_a_coarse_column_is_named_with_what_would_help() -> None:
    report = built(marked(*[replace(HELD, coarse=("sbp",))] * 5))
    held = report["estimands"][0]["held"]
    assert held["mark"] == Mark.UNSUPPORTED
    assert "of sbp, nearly all values lie in one of the even cells" in held["text"]
    assert "narrower bounds" in Page(render(report)).text
    assert report["estimands"][0]["sentence"].startswith("No answer from these tables")


def test_an_effect_that_is_lost_at_every_site_has_no_answer() -> None:
    lost, kept = built(marked(*[LOST] * 5)), built(marked(*[HALF] * 5))
    value = f"{lost['estimands'][0]['random']['value']['estimate']:.3f}"
    answer = lost["estimands"][0]["sentence"]
    assert answer.startswith("No answer from these tables: hazard ratio for death per 10 mmHg")
    assert "not evidence of none" in answer
    assert value not in answer
    assert value in kept["estimands"][0]["sentence"]
    # The page: no number stands large, and the other two answers do.
    assert [render(r).count('class="value"') for r in (lost, kept)] == [2, 3]
    # Who wants to see what the sites sent still can.
    assert lost["estimands"][0]["random"] is not None


def test_a_site_that_holds_less_is_named() -> None:
    hazard = built(marked(HELD, HELD, HALF, LOST, HELD))["estimands"][0]
    assert "attenuated at c" in hazard["held"]["text"]
    assert "not held at d" in hazard["held"]["text"]
    assert [s["mark"] for s in hazard["held"]["sites"]] == [
        "held",
        "held",
        "attenuated",
        "unsupported",
        "held",
    ]
    weights = [s["weight"] for s in hazard["sites"]]
    slopes = [0.98, 0.98, 0.70, 0.02, 0.98]
    expected = sum(w * b for w, b in zip(weights, slopes, strict=True)) / sum(weights)
    assert hazard["held"]["slope"] == pytest.approx(expected)
    page = render(built(marked(HELD, HELD, HALF, LOST, HELD)))
    assert "0.02 ± 0.08, not held" in page
    assert "0.98 ± 0.05" in page


def test_where_nothing_was_planted_nothing_is_said_of_it() -> None:
    assert [e["held"] for e in built(inputs())["estimands"]] == [None] * 3


def test_a_held_answer_is_as_it_was() -> None:
    assert (
        built(marked(*[HELD] * 5))["estimands"][0]["sentence"]
        == (built(inputs())["estimands"][0]["sentence"])
    )


def test_requested_effects_and_classes_have_a_section() -> None:
    asked = study(mechanism=Structured(effects=(EFFECT,)))
    report = built(marked(*[HELD] * 5, requested=LOST, study=asked))
    [effect] = report["effects"]
    assert (effect["effect"], effect["mark"], effect["runs"]) == (EFFECT, "unsupported", 60)
    held = {c["effects"]: c["held"] for c in report["holds"]}
    assert held["interactions that no estimand declares"] == "no"
    [asked_for] = [effects for effects in held if effects.startswith("what estimands ask for: ")]
    assert held[asked_for] == "yes"
    assert asked_for.split(": ")[1].split(", ")[0] == "hr"
    page = Page(render(report)).text
    assert "What the tables hold" in page
    assert EFFECT in page
    assert "0.02 ± 0.04" in page
    described = describe_held(report)["held"]
    assert [e["estimand"] for e in described["estimands"]] == ["hr", "or", "diff"]
    assert described["effects"] == report["effects"]
    assert described["classes"] == report["holds"]
    json.dumps(described, allow_nan=False)


def test_other_mechanisms_say_nothing_of_it() -> None:
    report = built(inputs())
    assert (report["effects"], report["holds"]) == ([], [])
    assert "What the tables hold" not in render(report)
    assert describe_held(report) == {}


def test_a_report_of_the_last_format_is_completed() -> None:
    report = built(inputs())
    old = {k: v for k, v in report.items() if k not in ("effects", "holds")}
    old["format_version"] = "1.3"
    old["estimands"] = [{k: v for k, v in e.items() if k != "held"} for e in report["estimands"]]
    assert complete_report(old) == report

"""What a report says of hazards by columns that change until the end, in tables of paths."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from tests.support import made
from tests.unit.server.report.test_report import inputs
from tests.unit.shared.questions.test_landmarks import HAZARD, HOW, SCHEMA, SURVIVAL

from penstock.inference.combine import SiteEstimate
from penstock.inference.doubts import Doubts
from penstock.inference.slopes import Mark
from penstock.questions.estimands import Estimand
from penstock_server.report.composition import (
    ReportInputs,
    SiteInput,
    build_report,
    report_schema,
)
from penstock_server.report.html import render

FIXED = Estimand("fixed", "cox", "years", "male")
RELEASE = inputs().sites[0].release
STUDY = made.study(HOW, schema=SCHEMA, estimands=(HAZARD, FIXED), sites=("north", "south"))


def report(doubt: float) -> dict[str, Any]:
    found = SiteEstimate(0.3, 0.01, 0.01, 0.001, 400, 90, 10, 10)
    sites = tuple(
        SiteInput(
            name,
            "delivered",
            estimates={"e": found, "fixed": found},
            release=RELEASE,
            summaries=(Doubts({"e": doubt, "fixed": 0.1}),),
        )
        for name in STUDY.sites
    )
    moment = "2026-11-20T08:00:00Z"
    made_of = build_report(ReportInputs(STUDY, "5" * 64, "finished", moment, moment, sites))
    jsonschema.Draft202012Validator(report_schema()).validate(made_of)
    return made_of


def test_it_is_not_known_what_tables_hold_where_nothing_was_planted() -> None:
    asked, fixed = report(0.1)["estimands"]
    assert asked["held"]["mark"] == Mark.UNRESOLVED
    assert asked["held"]["runs"] == 0
    assert "Not known: sites plant no effects" in asked["sentence"]
    assert [site["site"] for site in asked["held"]["sites"]] == ["north", "south"]
    # What never changes is as it was when a person was first seen, at the end, too.
    assert fixed["held"] is None
    assert "Not known: sites plant no effects" in render(report(0.1))


@pytest.mark.parametrize(("doubt", "mark"), [(0.4, Mark.ATTENUATED), (0.8, Mark.UNSUPPORTED)])
def test_what_hangs_on_few_persons_is_graver(doubt: float, mark: Mark) -> None:
    asked, _ = report(doubt)["estimands"]
    assert asked["held"]["mark"] == mark
    assert "plant" not in asked["held"]["text"]


def test_a_survival_compares_nothing_and_is_not_marked() -> None:
    study = made.study(HOW, schema=SCHEMA, estimands=(SURVIVAL,), sites=("north",))
    found = SiteEstimate(0.3, 0.01, 0.01, 0.001, 400, 90, 10, 10)
    site = SiteInput("north", "delivered", estimates={"e": found}, release=RELEASE)
    moment = "2026-11-20T08:00:00Z"
    [asked] = build_report(ReportInputs(study, "5" * 64, "finished", moment, moment, (site,)))[
        "estimands"
    ]
    assert asked["held"] is None

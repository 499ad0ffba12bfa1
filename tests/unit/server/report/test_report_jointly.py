"""The report of one release of all sites: one interval, nothing pooled, and what is promised."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jsonschema
import pytest
from tests.support.concluded import (
    NAMES,
    PERSONS,
    TRUTH,
    Concluded,
    add_up_answers,
    add_up_chain,
    add_up_tables,
)
from tests.unit.server.report.test_report import Page, built, inputs

from penstock.inference.combine import SiteEstimate
from penstock.inference.pooling import pool
from penstock.mechanisms import MECHANISMS
from penstock.mechanisms.released import ADDED, ESTIMATE, SITES, VARIANCE, name_copy, sites_schema
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.questions.estimation import estimate
from penstock.study.scope import GLOBAL, Scope
from penstock_server.analysis.lost_parts import spread_lost
from penstock_server.analysis.site_effects import SiteEffect, SiteEffects
from penstock_server.mechanisms.answered import read_answer, read_apart
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.registry import kind_of
from penstock_server.report.composition import complete_report, report_schema
from penstock_server.report.html import render
from penstock_server.report.inputs import JointRelease, ReportInputs, SiteInput
from penstock_server.report.sections import answers as answers_section
from penstock_server.report.sections import between, guarantees
from penstock_server.report.sections.estimands import plot_of
from penstock_server.report.sections.warnings import list_warnings
from penstock_server.results.conclusion import RELEASE, join_study, read_conclusion

Report = dict[str, Any]


def make(made: Concluded, folder: Path) -> tuple[Report, Upload]:
    """Its report, and the release that it is of."""
    report = made.build(folder / "results")
    jsonschema.Draft202012Validator(report_schema()).validate(report)
    study, plan = join_study(made.study)
    return report, read_conclusion(study, plan, folder / "results" / RELEASE)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Upload]:
    return make(add_up_answers(), tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Upload]:
    return make(add_up_tables(), tmp_path_factory.mktemp("tables"))


def named(report: Report) -> dict[str, Report]:
    return {e["name"]: e for e in report["estimands"]}


def test_the_answer_is_the_releases(answers: tuple[Report, Upload]) -> None:
    """Estimate, variance and interval are those that were released, and nothing was pooled."""
    report, upload = answers
    asked, (told, whole, noise) = named(report), read_apart(upload)
    odds = asked["odds"]
    [row] = odds["sites"]
    places = [i for i, value in enumerate(told) if value == row["coefficient"]["estimate"]]
    assert len(places) == 1
    [at] = places
    assert row["site"] == "all sites"
    assert row["variance"] == pytest.approx(whole[at, at], rel=1e-12)
    assert row["mechanism_variance"] == pytest.approx(noise[at, at], rel=1e-12)
    half = 1.959963984540054 * math.sqrt(whole[at, at])
    head = odds["random"]
    assert head["method"] == "release"
    assert head["coefficient"]["low"] == pytest.approx(told[at] - half, rel=1e-9)
    assert head["coefficient"]["high"] == pytest.approx(told[at] + half, rel=1e-9)
    assert head["tau2"] is odds["heterogeneity"] is odds["fixed"] is None
    assert odds["sensitivity"] == []
    assert abs(told[at] - TRUTH["odds"]) < 4 * math.sqrt(whole[at, at])
    assert "one release of all 4 sites, compared within sites" in odds["sentence"]
    assert odds["adjusted"].endswith("a baseline for each Site")
    assert asked["ill"]["random"]["method"] == "total"
    assert "of the number in the rows of all 4 sites together" in asked["ill"]["sentence"]


def test_a_chain_of_all_sites_has_one_answer(tmp_path: Path) -> None:
    """Its last term, adjusted for sites; and what is pulled names each site that it is told of."""
    made = add_up_chain()
    report, upload = make(made, tmp_path)
    told, covariance = read_answer(upload)
    hazard, [row] = named(report)["hazard"], named(report)["hazard"]["sites"]
    assert row["coefficient"]["estimate"] == told[-1]
    assert hazard["random"]["se"] == pytest.approx(math.sqrt(covariance[-1, -1]), rel=1e-9)
    assert abs(told[-1] - TRUTH["hazard"]) < 4 * math.sqrt(covariance[-1, -1])
    assert "Site" in hazard["adjusted"]
    [west] = [part for part in report["joint"]["parts"] if part["site"] == "west"]
    assert (west["state"], west["missed"]) == ("timed-out", [*range(15, 20)])
    text = json.dumps(report)
    assert "all sites added up what their rows pull" in text
    assert "All sites together answered this one question" in text
    study, _ = join_study(made.study)
    results = kind_of(study).load_results()
    results.export(lambda: iter([upload]), tmp_path, "all")
    coefficients = (tmp_path / "coefficients.csv").read_text()
    assert {f"site={name}" for name in NAMES[1:]} <= set(re.findall(r"site=\w+", coefficients))
    described = results.describe(report, "all")
    assert "nothing to pool" in described["combining"]


GOLDEN = {
    "answers": {
        "odds": (0.7704359226697196, 0.06532924923608914),
        "level": (0.05638037836163239, 0.02441282832589877),
        "ill": (819.2853546511924, 2.1786824747048743),
    },
    "tables": {
        "hazard": (0.49798265747043824, 0.04057181142573058),
        "odds": (0.7378565812284974, 0.07876938983129955),
        "level": (0.046271875, 0.03040433466230283),
        "ill": (815.0, 15.39555805414887),
    },
}
"""Estimates and standard errors, as last meant to change: of fixed rows, noise and keys."""


@pytest.mark.parametrize("which", GOLDEN)
def test_the_numbers_are_as_recorded(which: str, request: pytest.FixtureRequest) -> None:
    """Of tables within a tenth of the error: on another processor a drawn row may be another."""
    report, _ = request.getfixturevalue(which)
    found = {name: e["random"] for name, e in named(report).items()}
    assert set(found) == set(GOLDEN[which])
    for name, (value, error) in GOLDEN[which].items():
        drift = (1e-6 if which == "answers" else 0.1) * error
        assert found[name]["coefficient"]["estimate"] == pytest.approx(value, abs=drift)
        assert found[name]["se"] == pytest.approx(error, abs=drift)


def test_tables_are_measured_within_sites(tables: tuple[Report, Upload]) -> None:
    """By the model with strata of the drawn column, over copies, with what refits show."""
    report, upload = tables
    study, _ = join_study(add_up_tables().study)
    for name in ("hazard", "odds"):
        [estimand] = [e for e in study.estimands if e.name == name]
        assert estimand.strata == ("site",)
        copies = [
            estimate(upload.coded(name_copy(i), study.schema), study.schema, estimand)
            for i in (1, 2)
        ]
        found = named(report)[name]
        [row] = found["sites"]
        mean = sum(each.estimate for each in copies) / 2
        assert row["coefficient"]["estimate"] == pytest.approx(mean, rel=1e-12)
        within = sum(each.variance for each in copies) / 2
        total = within * 1.5 + row["mechanism_variance"]
        assert row["variance"] == pytest.approx(total, rel=1e-9)
        assert found["random"]["coefficient"] == pytest.approx(row["coefficient"], rel=1e-9)
        assert row["df"] is not None


@pytest.mark.parametrize("which", ["answers", "tables"])
def test_each_loss_is_recomputed(which: str, request: pytest.FixtureRequest) -> None:
    made = add_up_answers() if which == "answers" else add_up_tables()
    report, _ = request.getfixturevalue(which)
    events, delta = made.plan.events, 1e-5
    for part, name, persons in zip(report["joint"]["parts"], NAMES, PERSONS, strict=True):
        assert (part["site"], part["n_persons"]) == (name, persons)
        assert part["epsilon_autodp"] == epsilon(events, delta) == made.plan.epsilon
        assert part["epsilon_pld"] == epsilon_pld(events, delta)
        assert part["epsilon_alone"] == made.plan.epsilon_alone
    told = report["guarantees"]
    assert told["class"] == "formal (distributed)"
    assert told["formal"]
    assert [line["whom"] for line in told["against"]] == [
        *("public", "coordinator", "coalition", "others")
    ]
    for line in told["against"]:
        one = line["one"]
        alone = line["whom"] == "others"
        assert one["epsilon_autodp"] == (made.plan.epsilon_alone if alone else made.plan.epsilon)
        # PLD is the tighter one; who is exchanged is out of the sums, and in again.
        assert one["epsilon_pld"] < one["epsilon_autodp"] < one["epsilon_replace_one_autodp"]
        assert one["epsilon_pld"] < one["epsilon_replace_one"] < one["epsilon_replace_one_autodp"]
        assert (line["several"] is None) == (alone or which == "answers")
    [first, *_] = told["against"]
    if which == "tables":
        assert report["composed"]["epsilon"] == first["several"]["epsilon_autodp"]
        assert report["composed"]["epsilon"] > 2 * made.plan.epsilon
    else:
        assert report["composed"]["epsilon"] == made.plan.epsilon


def test_sites_are_told_apart_and_pooled_beside_the_one_interval(
    answers: tuple[Report, Upload], tables: tuple[Report, Upload]
) -> None:
    """Each site's own effect as it was released, and what the existing pooling makes of them."""
    report, upload = answers
    assert tables[0]["between_sites"] == []
    [told] = report["between_sites"]
    study, _ = join_study(add_up_answers().study)
    coded = upload.coded(SITES, sites_schema(len(NAMES)))
    assert told["estimand"] == "odds"
    assert [site["site"] for site in told["sites"]] == list(study.sites)
    for at, site in enumerate(told["sites"]):
        assert site["problem"] is None
        assert site["coefficient"]["estimate"] == pytest.approx(coded[ESTIMATE][at], rel=1e-12)
        assert site["variance"] == pytest.approx(coded[VARIANCE][at], rel=1e-12)
        assert site["mechanism_variance"] == pytest.approx(coded[ADDED][at], rel=1e-12)
        # All sites have one effect.
        assert abs(site["coefficient"]["estimate"] - TRUTH["odds"]) < 4 * site["variance"] ** 0.5
    pooled = pool(coded[ESTIMATE], coded[VARIANCE])
    assert told["random"]["coefficient"]["low"] == pytest.approx(pooled.ci_low, rel=1e-9)
    assert told["heterogeneity"]["q"] == pytest.approx(pooled.q, rel=1e-9)
    assert told["heterogeneity"]["tau2"] == pytest.approx(pooled.tau2, abs=1e-12)
    assert any("estimated of one step at each site" in limit for limit in report["limits"])
    assert not any("estimated of one step" in limit for limit in tables[0]["limits"])
    [sheet] = [s for s in between.SECTION.tabulate(report) if s.name == "sites.csv"]
    assert len(sheet.rows) == len(NAMES)


def test_a_site_that_noise_hides_or_that_is_lost_is_not_known() -> None:
    """It is in nothing that is pooled; of one site that is left nothing is told."""
    made = add_up_answers()
    study, plan = join_study(made.study)
    numbers = [(0.5, 0.02, 0.01), (0.9, 0.03, 0.01), (9.0, 30.0, 29.0), (0.7, 0.02, 0.01)]
    effects = tuple(SiteEffect(n, *v) for n, v in zip(NAMES, numbers, strict=True))
    found = SiteEffects({"odds": effects}, {"odds": 1})
    shown = add_up_answers_report()["estimands"]
    for survivors, known in ((NAMES, 3), (NAMES[1:], 2), (NAMES[2:], 1)):
        measured = SiteInput("all sites", "delivered", summaries=(found,))
        release = JointRelease(plan, measured, (NAMES, survivors), 1, "", "")
        times = {"created": "2026-11-20T08:00:00Z", "finished": "2026-11-21T10:12:00Z"}
        given = ReportInputs(study, "5" * 64, "finished", sites=(), joint=release, **times)
        written = between.SECTION.write(given, {"estimands": shown})
        [told] = written["between_sites"]
        problems = {site["site"]: site["problem"] for site in told["sites"]}
        assert "hidden by the noise" in problems["south"]
        for name in set(NAMES) - set(survivors) - {"south"}:
            assert "was lost" in problems[name]
        assert (told["random"] is None) == (told["heterogeneity"] is None) == (known < 2)
        if known > 1:
            assert told["random"]["k"] == known
        else:
            page = between.SECTION.show({"estimands": shown, **written})
            assert page["between"][0]["unknown"] == 3


def test_an_interval_allows_for_a_site_that_is_lost() -> None:
    """By what sites' own effects say of how far they differ; and not where the lost round is the
    one that told them apart, in which no answer has a part."""
    study, plan = join_study(add_up_answers().study)
    numbers = [(0.5, 0.01, 0.005), (0.9, 0.01, 0.005), (0.1, 0.01, 0.005), (9.0, 0.01, 0.005)]
    effects = tuple(SiteEffect(n, *v) for n, v in zip(NAMES, numbers, strict=True))
    whole = SiteEstimate(0.5, 0.0025, 0.0025, None, None, None, 1, 1)
    measured = SiteInput(
        "all sites",
        "delivered",
        estimates={"odds": whole},
        summaries=(SiteEffects({"odds": effects}, {"odds": 1}),),
    )
    times = {"created": "2026-11-20T08:00:00Z", "finished": "2026-11-21T10:12:00Z"}
    seen = {}
    for survivors in ((NAMES, NAMES), (NAMES, NAMES[:3]), (NAMES[:3], NAMES[:3])):
        release = JointRelease(plan, measured, survivors, 1, "", "")
        given = ReportInputs(study, "5" * 64, "finished", sites=(), joint=release, **times)
        told = {e["name"]: e for e in answers_section.SECTION.write(given, {})["estimands"]}
        seen[survivors] = told["odds"]["random"]["se"], told["odds"]["sentence"]
        texts = [w["text"] for w in list_warnings(given, []) if w["code"] == "lost-site"]
        assert bool(texts) == (NAMES[:3] in survivors)
        assert all(("odds are wider" in text) == (release.lost != ()) for text in texts)
    (plain, all_four), (apart, the_same), (lost, without) = seen.values()
    assert plain == apart == pytest.approx(0.05)
    assert "all 4 sites" in all_four
    assert the_same == all_four
    persons = dict(zip(NAMES, plan.consortium.persons, strict=True))
    tau2 = pool([0.5, 0.9, 0.1], [0.01] * 3).tau2
    assert lost == pytest.approx(math.sqrt(0.0025 + spread_lost(persons, NAMES[3:]) * tau2))
    assert f"without {NAMES[3]}" in without


@cache
def add_up_answers_report() -> Report:
    with TemporaryDirectory() as folder:
        return make(add_up_answers(), Path(folder))[0]


def test_a_lost_site_is_told(tables: tuple[Report, Upload]) -> None:
    report, _ = tables
    rounds = add_up_tables().plan.rounds
    parts = {part["site"]: part for part in report["joint"]["parts"]}
    assert parts["south"]["missed"] == list(range(rounds // 2 + 1, rounds + 1))
    assert not parts["south"]["signed"]
    assert parts["north"]["signed"]
    assert all(not part["missed"] for name, part in parts.items() if name != "south")
    [warning] = [w for w in report["warnings"] if w["code"] == "lost-site"]
    assert warning["sites"] == ["south"]
    assert f"rounds {rounds // 2 + 1} to {rounds} of {rounds}" in warning["text"]
    # Tables do not tell how far sites differ.
    assert "no interval allows for that" in warning["text"]
    told = named(report)
    for name in ("hazard", "odds"):
        assert "of the 3 of 4 sites without south, compared within" in told[name]["sentence"]
    assert "as if south, lost on the way, were as the others" in told["ill"]["sentence"]
    assert [one["site"] for one in report["missing"]] == ["south"]
    assert [one["site"] for one in report["sites"]] == ["east", "north", "west"]


@pytest.mark.parametrize("which", ["answers", "tables"])
def test_the_page_shows_one_interval(which: str, request: pytest.FixtureRequest) -> None:
    report, _ = request.getfixturevalue(which)
    page = render(json.loads(json.dumps(report)))
    read = Page(page)
    assert "script" not in read.tags
    text = " ".join(read.text.split())
    assert "What is promised, and against whom" in text
    assert "formal (distributed)" in text
    if which == "answers":
        assert "Of one step at each site" in text
        assert "One-step, from one round of this site’s noisy scores" in text
    else:
        assert "Not estimated: there is one release of all sites" in text
    for wrong in (
        "Pooled without it",
        "Weight",
        "random effects",
        "one site only,",
        "Fixed effect",
    ):
        # Where sites are told apart they are pooled: beside the one interval, in their own section.
        if which == "tables" or wrong not in ("Weight", "random effects"):
            assert wrong not in text, wrong
    if which == "tables":
        rounds = add_up_tables().plan.rounds
        assert f"rounds 1 to {rounds // 2}, of {rounds}" in text
        assert "told from the plan" in text
    for estimand in report["estimands"]:
        plot = plot_of(estimand)
        assert len(plot.rows) == 1
        assert plot.summaries == ()
        assert plot.scale().low <= plot.rows[0].low < plot.rows[0].high <= plot.scale().high


def test_local_noise_rests_on_nobody_else() -> None:
    """Its class and its ε are those of a site by itself, whoever colludes."""
    made = add_up_answers()
    scope = replace(made.study.aggregation, colluders=0, noise="local")
    study, plan = join_study(replace(made.study, aggregation=scope, max_sites_per_person=2))
    release = JointRelease(plan, SiteInput("all sites", "delivered"), (), 1, "", "")
    parts = tuple(SiteInput(name, "delivered") for name in study.sites)
    times = {"created": "2026-11-20T08:00:00Z", "finished": "2026-11-21T10:12:00Z"}
    given = ReportInputs(study, "5" * 64, "finished", sites=parts, joint=release, **times)
    told = guarantees.SECTION.write(given, {})["guarantees"]
    assert told["class"] == "formal"
    assert [line["whom"] for line in told["against"]] == ["public", "coordinator", "others"]
    assert {line["one"]["epsilon_autodp"] for line in told["against"]} == {plan.epsilon}
    several = told["against"][0]["several"]["epsilon_autodp"]
    assert several == epsilon(plan.events * 2, 1e-5)
    [promise] = told["promises"]
    assert "does not depend on what other sites do" in promise


@pytest.mark.parametrize("sites", [2, 4])
def test_with_no_colluder_each_other_site_has_a_line_of_its_own(sites: int) -> None:
    """It knows its own noise; of two sites that leaves one's."""
    made = add_up_answers()
    group = [(name, PERSONS[i]) for i, name in enumerate(NAMES[:sites])]
    keys = tuple(pair for pair in made.study.aggregation.keys if pair[0] in dict(group))
    scope = Scope(GLOBAL, 0, 0, tuple(group), keys)
    study, plan = join_study(
        replace(made.study, aggregation=scope, sites=NAMES[:sites], quorum=sites)
    )
    release = JointRelease(plan, SiteInput("all sites", "delivered"), (), 1, "", "")
    parts = tuple(SiteInput(name, "delivered") for name in study.sites)
    times = {"created": "2026-11-20T08:00:00Z", "finished": "2026-11-21T10:12:00Z"}
    given = ReportInputs(study, "5" * 64, "finished", sites=parts, joint=release, **times)
    told = guarantees.SECTION.write(given, {})["guarantees"]
    losses = {line["whom"]: line["one"]["epsilon_autodp"] for line in told["against"]}
    assert list(losses) == ["public", "coordinator", "site", "others"]
    assert losses["coordinator"] == plan.epsilon < losses["site"]
    assert losses["site"] <= losses["others"] * (1 + 1e-9)
    assert (losses["site"] == pytest.approx(losses["others"], rel=1e-9)) == (sites == 2)


def test_one_release_without_refits_warns(tmp_path: Path) -> None:
    """Nothing else shows the mechanism's noise."""
    made = add_up_tables()
    assert MECHANISMS.of(made.settings).answers is False
    plain = Concluded(type(made.settings)(copies=1, refits=0, planted=0))
    report = plain.build(tmp_path / "results")
    assert "no-refits" in {warning["code"] for warning in report["warnings"]}
    assert any("too narrow. Refits would show it" in limit for limit in report["limits"])


def test_reports_of_before_say_nothing_of_it() -> None:
    report = built(inputs())
    assert report["joint"] is report["guarantees"] is None
    new = ("joint", "guarantees", "between_sites")
    old = {k: v for k, v in report.items() if k not in new}
    completed = complete_report(old | {"format_version": "1.8"})
    assert completed == report
    assert list(completed) == list(report)
    assert "What is promised, and against whom" not in render(completed)

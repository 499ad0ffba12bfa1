"""What `analyse` says of one release of all sites: the report's numbers, and further answers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from tests.support.concluded import NAMES, Concluded

from penstock.base.errors import InvalidInput
from penstock.enquiry.holdings import read_holdings
from penstock.enquiry.reply import answer_questions, plot_answer
from penstock.mechanisms import Structured
from penstock_server.results.production import pull_results


@pytest.fixture(scope="module")
def pulled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("together")
    coordinator = Concluded(Structured(copies=2, refits=4, planted=0)).finish(root)
    pull_results(coordinator, "together", root / "out", copies="refits")
    coordinator.store.close()
    return root / "out"


@cache
def ask(folder: Path, *questions: str) -> list[dict]:
    return answer_questions(read_holdings(folder), questions)


def test_declared_estimands_have_the_reports_numbers(pulled: Path) -> None:
    report = json.loads((pulled / "report.json").read_text())
    for told, own in zip(ask(pulled), report["estimands"], strict=True):
        assert told["declared"] == own["name"]
        for key in ("coefficient", "value", "se", "df", "p"):
            assert told["random"][key] == own["random"][key]
        assert [site["site"] for site in told["sites"]] == ["all sites"]


def test_a_regression_is_within_sites_as_the_studys_own_are(pulled: Path) -> None:
    """So that who asks in the study's words has the study's own."""
    own, wider, mean = ask(pulled, "Surv(t, d) ~ a + g", "Surv(t, d) ~ g + y", "mean(a)")[:3]
    assert own["declared"] == "hazard"
    assert "strata(site)" in own["formula"]
    (further, *_) = ask(pulled, "Surv(t, d) ~ y")
    assert further["declared"] is None
    assert "strata(site)" in further["formula"]
    assert further["mark"] in ("unresolved", "attenuated", "unsupported")
    assert further["random"]["tau2"] == 0
    assert {own["joint"], wider["joint"], mean["joint"]} == {True}


def test_who_names_the_sites_has_them_as_a_column(pulled: Path) -> None:
    told = ask(pulled, "a ~ y + site")
    assert len(told) == 1 + len(NAMES) - 1
    assert "strata" not in told[0]["formula"]


def test_its_words_and_its_plot_are_of_one_release(pulled: Path) -> None:
    (told, *_) = ask(pulled, "y ~ a")
    assert "one release of all sites" in told["sentence"]
    assert len(plot_answer(told).rows) == 1


def test_sites_that_are_not_told_apart_are_not_compared(pulled: Path) -> None:
    holdings = read_holdings(pulled)
    with pytest.raises(InvalidInput, match="question 'y ~ a'"):
        answer_questions(holdings, ["y ~ a"], moderators=["mean(a)"])


def test_a_release_that_sites_were_lost_from_is_the_reports_alone(tmp_path: Path) -> None:
    made = Concluded(Structured(copies=2, refits=4, planted=0), lost={"south": {3, 4}})
    coordinator = made.finish(tmp_path)
    pull_results(coordinator, "together", tmp_path / "out", copies="refits")
    coordinator.store.close()
    with pytest.raises(InvalidInput) as refused:
        read_holdings(tmp_path / "out")
    assert [problem.value for problem in refused.value.problems] == ["south"]

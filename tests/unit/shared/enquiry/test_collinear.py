"""Undeclared questions about a column of which others say nearly all already."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from statsmodels.stats.outliers_influence import variance_inflation_factor
from tests.support import made

from penstock.enquiry.holdings import Holding, Holdings
from penstock.enquiry.reply import answer_questions
from penstock.inference.overlap import MOST, find_overlaps
from penstock.questions.estimands import Estimand
from penstock.schema import Coded, Column, Schema
from penstock.telling.marks import tell_overlaps

SCHEMA = Schema(
    (
        Column("girl", "binary", levels=("0", "1")),
        Column("age", "continuous", 0, 21, 2, unit="years"),
        Column("height", "continuous", 40, 220, 1, unit="cm"),
    )
)
DECLARED = (Estimand("tall", "ols", "height", "girl"),)


def hold(spread: float) -> Holdings:
    """Three sites' children, of whose heights age explains more the smaller the spread is."""
    rng = np.random.default_rng(3)

    def draw() -> Coded:
        age, girl = rng.uniform(0, 20, 500), (rng.random(500) < 0.5).astype(np.float64)
        height = 60 + 6 * age - spread * girl + spread * rng.standard_normal(500)
        return {"girl": girl, "age": age.round(2), "height": height.clip(40, 220).round(1)}

    sites = {
        name: Holding(tuple(draw() for _ in range(3)), tuple(draw() for _ in range(3)))
        for name in made.SITES
    }
    mechanism = replace(made.MECHANISMS["maf"], copies=3, refits=3)
    study = made.study(mechanism, schema=SCHEMA, estimands=DECLARED)
    told = [{"name": "tall", "held": {"mark": "held", "text": "Held.", "sites": []}}]
    return Holdings(study, {"estimands": told, "effects": [], "holds": []}, sites)


@pytest.mark.parametrize(("spread", "mark"), [(8.0, "attenuated"), (40.0, "unresolved")])
def test_what_a_column_has_of_its_own_decides_the_mark(spread: float, mark: str) -> None:
    holdings = hold(spread)
    table = holdings.sites[made.SITES[0]].copies[0]
    beside = np.column_stack([np.ones(500), table["age"], table["height"]])
    factor = variance_inflation_factor(beside, 2)
    assert (factor > 5) == (mark == "attenuated")
    told, other, alone = answer_questions(holdings, ["girl ~ height + age", "girl ~ height"])
    # Of two columns each has as much of the other.
    assert (told["mark"], other["mark"], alone["mark"]) == (mark, mark, "unresolved")
    assert ("adjusted for explains" in told["sentence"]) == (mark == "attenuated")
    # An interval is shown all the same.
    assert "95% interval" in told["sentence"]


def test_the_share_is_that_of_the_variance_inflation_factor() -> None:
    table = hold(8.0).sites[made.SITES[0]].copies[0]
    asked = Estimand("own", "logistic", "girl", "height", adjust=("age",))
    [r2] = find_overlaps(SCHEMA, [asked], table).estimands.values()
    beside = np.column_stack([np.ones(500), table["age"], table["height"]])
    assert 1 / (1 - r2) == pytest.approx(variance_inflation_factor(beside, 2), rel=1e-9)


def test_a_study_that_declares_the_question_is_told_by_its_report() -> None:
    holdings = hold(8.0)
    [declared] = answer_questions(holdings, ["tall"])
    assert declared["mark"] == "held"


def test_sites_are_weighed_and_each_has_its_own_mark() -> None:
    shares = {"a": 0.95, "b": 0.5}
    assert tell_overlaps(shares, {"a": 1.0, "b": 9.0}) is None
    told = tell_overlaps(shares, {"a": 9.0, "b": 1.0})
    assert told is not None
    assert told["mark"] == "attenuated"
    assert f"explains {0.9 * 0.95 + 0.1 * 0.5:.0%} of" in told["text"]
    marks = {site["site"]: site["mark"] for site in told["sites"]}
    assert marks == {"a": "attenuated", "b": "unresolved"}
    assert tell_overlaps({}, {}) is None
    assert tell_overlaps({"a": MOST}, {}) is not None

"""What the report says that structured tables hold, and what they do not."""

from __future__ import annotations

import pytest
from tests.support import made

from penstock.mechanisms import Structured
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock_server.mechanisms.registry import kind_of

SCHEMA = Schema(
    (
        Column("time", "duration", upper=10, event="died"),
        Column("died", "event"),
        Column("age", "continuous", 18, 100),
        Column("sex", "binary"),
    )
)


def lacks(**asked: object) -> str:
    estimand = Estimand("e", **({"model": "cox", "outcome": "time", "term": "age"} | asked))  # type: ignore[arg-type]
    study = made.study(Structured(), schema=SCHEMA, estimands=(estimand,))
    _, limits = kind_of(study).list_limits(mechanism_variance=True)
    [found] = [text for text in limits if "do not hold interactions" in text]
    return found


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({}, False),
        ({"adjust": ("sex",)}, False),
        ({"term": "sex", "adjust": ("spline(age, 3)",)}, False),
        ({"strata": ("sex",)}, False),
        ({"term": "age:sex"}, True),
        ({"where": "sex == '1'"}, True),
        # Its outcome has no model of its own.
        ({"model": "logistic", "outcome": "sex", "where": "age > 40"}, False),
    ],
)
def test_interactions_are_said_to_be_lost_but_those_that_are_named(
    asked: dict[str, object], named: bool
) -> None:
    assert ("but those that the study names" in lacks(**asked)) == named

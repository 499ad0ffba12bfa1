"""How the report calls products, splines, strata and subgroups."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.telling import phrases

SCHEMA = Schema(
    (
        Column("time", "duration", upper=25, event="cvd"),
        Column("cvd", "event", label="infarction"),
        Column("age", "continuous", 18, 100, unit="years"),
        Column("sbp", "continuous", 70, 250, unit="mmHg", label="pressure"),
        Column("count", "integer", 0, 9),
        Column("sex", "binary", levels=("F", "M")),
        Column("ward", "categorical", levels=("a", "b", "c")),
        Column("stage", "ordered", levels=("I", "II", "III")),
    )
)


def asked(term: str, **more: Any) -> Estimand:
    return Estimand("e", "cox", "time", term, **more)


@pytest.mark.parametrize(
    ("estimand", "contrast", "axis"),
    [
        (
            asked("age:sbp", per=100),
            "per 100 years·mmHg of age × pressure",
            "Hazard ratio per 100 years·mmHg of age × pressure",
        ),
        (
            asked("sex:age", per=10),
            "per 10 years of sex (M) × age",
            "Hazard ratio per 10 years of sex (M) × age",
        ),
        (asked("ward[b]:count"), "per unit of ward (b) × count", None),
        (asked("count:sex", per=2), "per 2 units of count × sex (M)", None),
        (asked("stage:count"), "per 1 level·unit of stage × count", None),
        (asked("ward[b]:sex"), "ward (b) × sex (M)", "Hazard ratio, ward (b) × sex (M)"),
        (
            asked("sbp", per=10, where="age >= 65 and sex == 'F'"),
            "per 10 mmHg of pressure, where age >= 65 and sex == 'F'",
            None,
        ),
        (asked("sex", where="age < 65"), "sex: M against F, where age < 65", None),
        (
            Estimand("e", "ordinal", "stage", "age", per=10),
            "per 10 years of age",
            "Common odds ratio per 10 years of age",
        ),
        (
            Estimand("e", "mean", "age", where="sex == 'F'"),
            "of age (years), where sex == 'F'",
            "Mean of age (years), where sex == 'F'",
        ),
    ],
)
def test_what_is_compared_is_readable(estimand: Estimand, contrast: str, axis: str | None) -> None:
    assert phrases.contrast(estimand, SCHEMA) == contrast
    if axis is not None:
        assert phrases.axis_label(estimand, SCHEMA) == axis


def test_a_level_of_the_outcome_is_said_with_the_one_it_is_against() -> None:
    asked = Estimand("e", "multinomial", "ward", "age", outcome_level="c")
    assert phrases.outcome_text(asked, SCHEMA) == "ward: c against a"
    assert phrases.axis_label(asked, SCHEMA) == "Relative risk ratio per 1 years of age"


@pytest.mark.parametrize(
    ("exposure", "says"),
    [("", "count"), ("age", "count per years of age"), ("beds", "count per unit of beds")],
)
def test_a_rate_says_per_what(exposure: str, says: str) -> None:
    schema = Schema((*SCHEMA.columns, Column("beds", "integer", 1, 900)))
    for model in ("poisson", "negative-binomial"):
        rate = Estimand("e", model, "count", "sex", exposure=exposure)
        assert phrases.outcome_text(rate, schema) == says


@pytest.mark.parametrize(
    ("estimand", "adjusted"),
    [
        (asked("age"), "not adjusted"),
        (asked("age:sex"), "adjusted for age, sex"),
        (asked("age", strata=("ward", "stage")), "not adjusted; a baseline for each ward, stage"),
        (
            asked("sex", adjust=("spline(age, 3)", "sbp:ward"), strata=("stage",)),
            "adjusted for a spline of age (3 df), pressure × ward, pressure, ward; "
            "a baseline for each stage",
        ),
        (
            asked("sex", adjust=("spline(age, 40, 50, 60)",)),
            "adjusted for a spline of age (2 df)",
        ),
    ],
)
def test_what_is_adjusted_for_is_listed_with_what_was_added(
    estimand: Estimand, adjusted: str
) -> None:
    assert phrases.adjusted_text(estimand, SCHEMA) == adjusted

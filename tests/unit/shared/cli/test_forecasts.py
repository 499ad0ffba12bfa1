"""What a forecast says in words: what cannot be had, and what would do."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from penstock.cli.forecasts import list_remedies, show_forecast
from penstock.forecast.expected import AtSize, Expected, Forecast
from penstock.mechanisms.structured.settings import Structured
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.study.planning import Planning
from penstock.study.study import Study

STUDY = Study(
    "s", "t", "f", ("a", "b"),
    Schema((Column("age", "continuous", 18, 100), Column("sbp", "continuous", 70, 250),
            Column("bmi", "continuous", 10, 60))),
    (Estimand("ageing", "ols", "sbp", "age"),), PrivacyRequest(2.0, 1e-5), Structured(), 1, 24.0,
    "2026-11-21T00:00:00Z", "2026-12-21T00:00:00Z",
)  # fmt: skip
FINE = Expected(sampling=0.1, privacy=0.05, noise=0.04, bias=0.0, failed=0)
NOISY = Expected(sampling=0.1, privacy=0.3, noise=0.25, bias=0.01, failed=1)
LOST = Expected(sampling=0.1, privacy=0.09, noise=0.08, bias=-0.085, failed=0)
NONE = Expected(math.nan, math.nan, math.nan, math.nan, failed=17)


def made(a: Expected, b: Expected | None = None) -> Forecast:
    sites = {"a": AtSize(1000, {"ageing": a})}
    sites |= {} if b is None else {"b": AtSize(3000, {"ageing": b})}
    return Forecast(STUDY, 20, sites, {"ageing": a})


def test_nothing_is_said_of_what_can_be_had() -> None:
    assert list_remedies(made(FINE)) == []


def test_noise_is_named_with_what_would_do() -> None:
    (line,) = list_remedies(made(NOISY, FINE))
    assert line == (
        "ageing at a: the mechanism's noise is 2.5 times the sampling error; about ε = 5, or 6300 "
        "persons would make them equal"
    )


def test_what_is_lost_is_no_noise() -> None:
    (line,) = list_remedies(made(LOST))
    assert line.startswith("ageing at a comes back -0.085 off")


def test_a_site_without_an_estimate_is_named() -> None:
    lines = list_remedies(made(NONE, FINE))
    assert lines == [
        "ageing at a cannot be had: in 17 of 20 runs there was no estimate. Try a larger ε, fewer "
        "columns, or more persons (--persons SITE=NUMBER)"
    ]


def test_columns_that_nobody_needs_are_named_with_what_they_cost() -> None:
    without = AtSize(1000, {"ageing": FINE})
    found = replace(made(NOISY), unneeded=("bmi",), without=without)
    assert list_remedies(found)[-1] == (
        "no estimand needs bmi; without it privacy would add, at 1000 persons: ageing 0.05 for 0.3"
    )


def test_the_table_has_a_line_for_each_site_and_one_for_all(capsys) -> None:  # type: ignore[no-untyped-def]
    planned = replace(STUDY, planning=Planning.from_dict({"effects": {"ageing": 0.3}}))
    show_forecast(replace(made(FINE, NONE), study=planned))
    said = capsys.readouterr().out
    assert "no power" not in said
    rows = [line.split() for line in said.splitlines()]
    assert ["ageing", "a", "1000", "0.1", "0.05", "0.112", "1.12", "0.765"] in rows
    assert ["b", "3000", "no", "estimate"] in rows
    assert any(row[:2] == ["pooled", "1000"] for row in rows)  # of those that have an estimate
    assert "never from rows" in said
    assert "bounds alone" not in said
    show_forecast(made(FINE))
    said = " ".join(capsys.readouterr().out.split())
    assert "bounds alone stand for" in said
    assert "no power without an effect in [planning.effects]: ageing" in said


def test_the_scale_of_standard_errors_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    asked = (
        Estimand("hazard", "cox", "time", "age"),
        Estimand("late", "survival", "time", at=5),
        Estimand("pair", "correlation", "age", "sbp"),
        Estimand("level", "mean", "sbp"),
    )
    timed = (Column("time", "duration", upper=9, event="died"), Column("died", "event"))
    schema = Schema((*STUDY.schema.columns, *timed))
    study = replace(STUDY, schema=schema, estimands=asked)
    expected = {e.name: FINE for e in asked}
    show_forecast(Forecast(study, 20, {"a": AtSize(1000, expected)}, expected))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "on the scale" in line] == [
        "on the scale of log hazard ratio: hazard",
        "on the scale of logit of survival: late",
        "on the scale of Fisher's z of correlation: pair",
    ]

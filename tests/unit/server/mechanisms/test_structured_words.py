"""What the report says that structured tables hold, by what the study asks."""

from __future__ import annotations

from tests.support import made

from penstock.mechanisms import Structured
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock_server.mechanisms.registry import kind_of

SCHEMA = Schema(
    (
        Column("t", "duration", upper=9, event="d"),
        Column("d", "event"),
        Column("sbp", "integer", lower=80, upper=220),
        Column("smoker", "binary"),
        Column("age", "integer", lower=18, upper=100),
    )
)


def said(*estimands: Estimand) -> str:
    study = made.study(Structured(), schema=SCHEMA, estimands=estimands)
    _, last = kind_of(study).list_limits(mechanism_variance=True)
    return "\n".join(last)


def test_regressions_of_every_kind_are_held_and_means_are_not_spoken_of() -> None:
    text = said(
        Estimand("pressure", "ols", "sbp", "smoker"),
        Estimand("smoking", "logistic", "smoker", "age"),
        Estimand("hazard", "cox", "t", "sbp"),
        Estimand("elderly", "mean", "age"),
    )
    assert "study declares (pressure, smoking, hazard), and the main effects" in text
    assert "no model of their own" not in text
    assert "elderly" not in text
    assert "each duration and outcome" in text


def test_an_event_and_a_circle_are_told() -> None:
    text = said(
        Estimand("dying", "logistic", "d", "age"),
        Estimand("pressure", "ols", "sbp", "smoker"),
        Estimand("smoking", "logistic", "smoker", "sbp"),
    )
    assert "study declares (smoking)" in text
    assert "drawn together with its duration" in text
    assert "no more: dying." in text
    assert "say of them: pressure." in text


def test_without_an_outcome_nothing_is_declared() -> None:
    assert "hold the main effects of all other columns on each duration." in said()

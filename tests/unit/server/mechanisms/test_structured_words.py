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


WIDE = Schema((*SCHEMA.columns, Column("town", "categorical", levels=tuple(map(str, range(20))))))


def said(*estimands: Estimand) -> dict[str, str]:
    """What is told of each class of effects."""
    study = made.study(Structured(), schema=SCHEMA, estimands=estimands)
    return {one.effects: one.held for one in kind_of(study).list_classes()}


def test_regressions_of_every_kind_are_held_and_means_are_not_spoken_of() -> None:
    told = said(
        Estimand("pressure", "ols", "sbp", "smoker"),
        Estimand("smoking", "logistic", "smoker", "age"),
        Estimand("hazard", "cox", "t", "sbp"),
        Estimand("elderly", "mean", "age"),
    )
    assert told["what estimands ask for: pressure, smoking, hazard"] == "yes"
    assert told["effects of other columns on a duration or an outcome, one by one"] == "in part"
    assert not any("no model of its own" in effects or "elderly" in effects for effects in told)


def test_an_event_and_a_circle_are_told() -> None:
    told = said(
        Estimand("dying", "logistic", "d", "age"),
        Estimand("pressure", "ols", "sbp", "smoker"),
        Estimand("smoking", "logistic", "smoker", "sbp"),
    )
    assert told["what estimands ask for: smoking"] == "yes"
    assert told["estimands of an event as such: dying"] == "in part"
    assert told["estimands whose outcome has no model of its own: pressure"] == "in part"


def test_a_correction_is_told_where_there_is_one() -> None:
    """Of two refits of each of three fits or more, whose noise is known."""

    def tells(known: bool = True, **settings: int) -> bool:
        kind = kind_of(made.study(Structured(**settings), schema=SCHEMA, estimands=()))
        first, _ = kind.list_limits(mechanism_variance=known)
        return any("bias-corrected" in one for one in first)

    assert tells()
    assert tells(refits=6)
    assert not tells(refits=4)
    assert not tells(refits=6, per_fit=1)
    assert not tells(known=False)


def test_without_an_outcome_nothing_is_declared() -> None:
    told = said()
    assert told["effects of other columns on a duration, one by one"] == "in part"
    assert not any("what estimands ask for" in effects for effects in told)


def test_pairs_are_counted_of_wide_tables_and_where_nobody_asks() -> None:
    asked = (Estimand("smoking", "cox", "t", "smoker"),)
    told = {}
    for case in ((SCHEMA, asked), (WIDE, asked), (SCHEMA, ())):
        kind = kind_of(made.study(Structured(), schema=case[0], estimands=case[1]))
        [pairs] = [c for c in kind.list_classes() if "columns go together" in c.effects]
        told[case] = pairs.text, kind.refitting.fresh
    (copula, sampled), (wide, dealt), (unasked, too) = told.values()
    assert "normal scores" in copula
    assert "counted as a table" in wide
    assert unasked == wide
    # Their rows are dealt, so that hardly anything of a refit is chance.
    assert dealt == too < sampled

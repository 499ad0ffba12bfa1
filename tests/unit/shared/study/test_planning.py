"""Planning values: what they may say, in one order, and never in the bytes of a study without."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.base.errors import InvalidInput
from penstock.mechanisms.structured.settings import Structured
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.study.planning import NOTHING, PlannedColumn, Planning, planning_problems
from penstock.study.study import Study
from penstock.study.toml import parse_study, write_study
from penstock.wire.canonical import canonical

SCHEMA = Schema(
    (
        Column("age", "continuous", 18, 100, decimals=1),
        Column("sbp", "continuous", 70, 250, decimals=0, nullable=True),
        Column("cigarettes", "integer", 0, 80, spike=0),
        Column("ward", "categorical", levels=("a", "b", "c")),
        Column("visits", "integer", 0, 50),
        Column("time", "duration", upper=10, decimals=2, event="died"),
        Column("died", "event"),
    )
)
PLANNED = {
    "columns": {
        "age": {"mean": 62, "sd": 10, "correlations": {"sbp": 0.3, "ward": -0.1}},
        "sbp": {"mean": 130, "missing": 0.05},
        "cigarettes": {"mean": 12, "spike": 0.7},
        "ward": {"shares": [0.5, 0.3, 0.2]},
        "time": {"events": 0.2, "censored": 0.3},
    },
    "effects": {"pressure": 0.16, "ward": 0.2},
    "filled": 0.5,
}


def study(planning: object = None) -> Study:
    values: dict[str, Any] = {
        "name": "s", "title": "t", "federation": "f", "sites": ["a"], "quorum": 1,
        "deadline_hours": 24, "not_before": "2026-11-21T00:00:00Z",
        "expires": "2026-12-21T00:00:00Z", "privacy": {"epsilon": 1, "delta": 1e-5},
        "mechanism": {"name": "structured"}, "schema": SCHEMA.to_dict(),
        "estimands": [
            {"name": "pressure", "model": "cox", "outcome": "time", "term": "sbp", "per": 10},
            {"name": "ward", "model": "cox", "outcome": "time", "term": "ward", "level": "b"},
            {"name": "visits", "model": "poisson", "outcome": "visits", "term": "age"},
            {"name": "later", "model": "ols", "outcome": "age", "term": "visits"},
            {"name": "share", "model": "mean", "outcome": "visits"},
        ],
    }  # fmt: skip
    return Study.from_dict(values if planning is None else values | {"planning": planning})


def test_a_study_that_plans_nothing_has_the_bytes_that_it_always_had() -> None:
    plain = study()
    assert plain.planning == NOTHING
    assert "planning" not in plain.to_dict()
    for empty in ({}, {"columns": {}}, {"effects": {}, "filled": 1.0}, {"columns": {"age": {}}}):
        assert canonical(study(empty).to_dict()) == canonical(plain.to_dict())


def test_what_is_planned_comes_back_by_the_wire_and_by_its_text() -> None:
    planned = study(PLANNED)
    read = Study.from_dict(json.loads(canonical(planned.to_dict())))
    assert read == planned
    assert parse_study(write_study(planned)) == planned
    assert planned.planning.column("age").mean == 62
    assert planned.planning.column("visits") == PlannedColumn("visits")
    assert planned.planning.effect("pressure") == 0.16
    assert planned.planning.effect("share") == 0.0


def test_the_order_in_which_it_is_written_changes_nothing() -> None:
    turned = dict(PLANNED) | {"columns": dict(reversed(list(PLANNED["columns"].items())))}  # type: ignore[attr-defined]
    assert study(turned) == study(PLANNED)


def without_estimands(planning: Planning) -> Study:
    privacy = PrivacyRequest(1.0, 1e-5)
    return Study(
        "s", "t", "f", ("a",), SCHEMA, (Estimand("m", "mean", "visits"),), privacy, Structured(),
        1, 24.0, "2026-11-21T00:00:00Z", "2026-12-21T00:00:00Z", planning=planning,
    )  # fmt: skip


def test_columns_that_nobody_needs_take_what_is_planned_of_them_along() -> None:
    planned = study(PLANNED).planning.without(["ward", "cigarettes"])
    assert [c.name for c in planned.columns] == ["age", "sbp", "time"]
    assert planned.column("age").correlations == (("sbp", 0.3),)


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"columns": {"agee": {"mean": 3}}}, "columns.agee", "Did you mean 'age'"),
    ({"columns": {"age": {"men": 3}}}, "columns.age.men", "Did you mean 'mean'"),
    ({"columns": {"age": {"name": "x"}}}, "columns.age.name", "not a known key"),
    ({"columns": {"age": {"mean": 100}}}, "columns.age.mean", "between the bounds, 18 and 100"),
    ({"columns": {"age": {"mean": "62"}}}, "columns.age.mean", "must be a number"),
    ({"columns": {"age": {"sd": float("nan")}}}, "columns.age.sd", "out of range"),
    ({"columns": {"age": {"mean": 60, "sd": 41}}}, "columns.age.sd", "below 40.99"),
    ({"columns": {"age": {"mean": 20, "sd": 13}}}, "columns.age.sd", "at this mean"),
    ({"columns": {"age": {"shares": [0.5, 0.5]}}}, "columns.age.shares", "no meaning"),
    ({"columns": {"age": {"missing": 0.1}}}, "columns.age.missing", "no meaning"),
    ({"columns": {"age": {"spike": 0.1}}}, "columns.age.spike", "no meaning"),
    ({"columns": {"died": {"events": 0.1}}}, "columns.died.events", "no meaning"),
    ({"columns": {"time": {"mean": 3}}}, "columns.time.mean", "one of events, censored"),
    ({"columns": {"time": {"events": 0}}}, "columns.time.events", "nothing could be estimated"),
    ({"columns": {"time": {"events": 0.8, "censored": 0.3}}}, "columns.time.censored", "without"),
    ({"columns": {"ward": {"shares": [0.5, 0.5]}}}, "columns.ward.shares", "2 shares of 3 levels"),
    ({"columns": {"ward": {"shares": [0.5, 0.4, 0.2]}}}, "columns.ward.shares", "add up to 1"),
    ({"columns": {"ward": {"shares": [1.5, -0.5, 0]}}}, "columns.ward.shares", "from 0 to 1"),
    ({"columns": {"age": {"correlations": {"time": 0.1}}}}, "correlations.time", "than a duration"),
    ({"columns": {"age": {"correlations": {"sbp": 2}}}}, "correlations.sbp", "from -1 to 1"),
    ({"columns": {"age": {"correlations": {"sbp": 1}}}}, "columns", "at once"),
    ({"columns": {"age": {"correlations": {"age": 0.1}}}}, "correlations.age", "no other column"),
    ({"effects": {"presure": 1}}, "effects.presure", "Did you mean 'pressure'"),
    ({"effects": {"share": 1}}, "effects.share", "no meaning for a mean"),
    ({"effects": {"pressure": True}}, "effects.pressure", "must be a number"),
    ({"effects": {"visits": 0.1, "later": 0.1}}, "effects", "in a circle"),
    ({"effects": [1]}, "effects", "must be a table"),
    ({"filled": 0}, "filled", "above 0"),
    ({"sites": 3}, "sites", "not a known key"),
]


@pytest.mark.parametrize(("planning", "where", "says"), WRONG)
def test_what_cannot_be_meant_is_refused_where_it_stands(
    planning: dict[str, Any], where: str, says: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        study(planning)
    found = [p for p in caught.value.problems if p.where.endswith(where)]
    assert found, caught.value.problems
    assert all(p.where.startswith("planning") for p in caught.value.problems)
    assert says in str(caught.value)


def test_a_correlation_is_said_once_and_all_of_them_are_possible() -> None:
    both = {"age": {"correlations": {"sbp": 0.3}}, "sbp": {"correlations": {"age": 0.3}}}
    with pytest.raises(InvalidInput, match="said twice of age and sbp"):
        study({"columns": both})
    never = {"age": {"correlations": {"sbp": 0.9, "visits": 0.9}},
             "sbp": {"correlations": {"visits": -0.9}}}  # fmt: skip
    with pytest.raises(InvalidInput, match="no columns can have at once"):
        study({"columns": never})


def test_problems_have_the_line_of_the_file() -> None:
    text = write_study(study(PLANNED)).replace("mean = 62", "mean = 620")
    line = next(i for i, t in enumerate(text.splitlines(), 1) if "mean = 620" in t)
    with pytest.raises(InvalidInput, match=rf"line {line}: planning\.columns\.age\.mean"):
        parse_study(text)


def test_an_object_is_checked_as_a_file_is() -> None:
    with pytest.raises(InvalidInput, match="not a column"):
        without_estimands(Planning((PlannedColumn("nobody", mean=1.0),)))
    with pytest.raises(InvalidInput, match="appears twice"):
        Planning((PlannedColumn("age"), PlannedColumn("age")))


def test_an_effect_on_one_level_of_an_outcome_has_no_forecast() -> None:
    """Nor may it be taken for one on levels in order; of no effect there is one."""
    schema = Schema(
        (Column("left", "categorical", levels=("home", "died")), Column("sex", "binary"))
    )
    asked = Estimand("e", "multinomial", "left", "sex", outcome_level="died")
    for size in (0.0, 0.4):
        found = planning_problems(Planning(effects=(("e", size),)), schema.columns, (asked,))
        assert [p.where for p in found] == (["effects.e"] if size else [])

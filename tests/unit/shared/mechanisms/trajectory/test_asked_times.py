"""What a study may ask of persons over time is known before anything is charged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support import made

from penstock.base.errors import InvalidInput
from penstock.mechanisms import Trajectory
from penstock.mechanisms.trajectory.time_points import find_point, times_of
from penstock.questions.estimands import Estimand
from penstock.questions.models import LONGITUDINAL
from penstock.schema import Column, Schema
from penstock.study.study import Study
from penstock.study.toml import parse_study, write_study

COLUMNS = (
    Column("visit", "ordered", levels=("m0", "m6", "m12")),
    Column("day", "continuous", lower=0, upper=300),
    Column("sbp", "continuous", lower=60, upper=240, unit="mmHg"),
    Column("ldl", "continuous", lower=0, upper=12),
    Column("height", "continuous", lower=100, upper=220, varies=False),
    Column("stage", "categorical", levels=("a", "b", "c")),
)
SCHEMA = Schema(COLUMNS, person="id", max_rows_per_person=3)
BY_LEVEL, BY_DAY = Trajectory("visit"), Trajectory("day", points=3)
CHANGE = Estimand("e", "change", "sbp", at="m0", until="m12")
LATER = replace(CHANGE, at=10, until=250)
GOOD = {
    "change": CHANGE,
    "change-sd": replace(CHANGE, model="change-sd"),
    "correlation": replace(CHANGE, model="correlation"),
    "quantile": Estimand("e", "quantile", "sbp", at="m6", probability=0.25),
    "share": Estimand("e", "share", "sbp", at="m6", threshold=90, direction="below"),
    "transition": Estimand(
        "e", "transition", "stage", level="a", outcome_level="a", at="m0", until="m6"
    ),
    "mixed": Estimand("e", "mixed", "sbp", "visit"),
    "mean": Estimand("e", "mean", "sbp", at="m6"),
}


def study(estimand: Estimand, mechanism: Any = BY_LEVEL, **changes: Any) -> Study:
    return made.study(mechanism, **{"schema": SCHEMA, "estimands": (estimand,), **changes})


@pytest.mark.parametrize("name", GOOD)
def test_a_study_may_ask_it_and_says_so_in_toml(name: str) -> None:
    asked = study(GOOD[name])
    assert parse_study(write_study(asked)) == asked
    assert Study.from_dict(asked.to_dict()) == asked


def test_every_model_is_among_them() -> None:
    assert set(GOOD) == {*LONGITUDINAL.names, "mean"}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("mechanism", [m for m in made.MECHANISMS if m != "trajectory"])
def test_a_mechanism_that_follows_nobody_refuses_it(name: str, mechanism: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        study(GOOD[name], made.MECHANISMS[mechanism])
    [problem] = refused.value.problems
    assert problem.where == "estimands[1].model"
    assert "whom" in problem.message
    assert problem.remedy == "Set mechanism.name to trajectory"


INFERRED = replace(BY_LEVEL, dependence="inferred")
REFUSED: list[tuple[Estimand, Trajectory, str, str]] = [
    (replace(CHANGE, at="m3"), BY_LEVEL, "at", "is no level of 'visit'"),
    (replace(CHANGE, at=0), BY_LEVEL, "at", "is no level of 'visit'"),
    (replace(CHANGE, at="m12", until="m0"), BY_LEVEL, "until", "is before at"),
    (replace(CHANGE, until="m0"), BY_LEVEL, "until", "same time point"),
    (replace(LATER, until=90), BY_DAY, "until", "same time point"),
    (replace(LATER, until=301), BY_DAY, "until", "lies outside 'day'"),
    (replace(LATER, at="m0"), BY_DAY, "at", "is text, and 'day' a number"),
    (replace(CHANGE, outcome="height", term="height"), BY_LEVEL, "outcome", "does not vary"),
    (replace(LATER, outcome="day", term="day"), BY_DAY, "outcome", "is the time itself"),
    (Estimand("e", "mixed", "sbp", "ldl"), BY_LEVEL, "term", "must be the column of time"),
    (Estimand("e", "mixed", "sbp"), BY_LEVEL, "term", "must be the column of time"),
    (CHANGE, INFERRED, "model", "are not measured here"),
    (GOOD["mixed"], INFERRED, "model", "are not measured here"),
    (GOOD["quantile"], INFERRED, "at", "do not say whose their rows are"),
]


@pytest.mark.parametrize(("estimand", "mechanism", "where", "said"), REFUSED)
def test_what_the_tables_cannot_tell_is_refused(
    estimand: Estimand, mechanism: Trajectory, where: str, said: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        study(estimand, mechanism)
    [problem] = refused.value.problems
    assert problem.where == f"estimands[1].{where}"
    assert said in problem.message


def test_where_everybody_has_one_row_it_is_a_person() -> None:
    alone = replace(SCHEMA, person=None, max_rows_per_person=1)
    study(GOOD["quantile"], schema=alone)
    study(Estimand("e", "correlation", "sbp", "ldl", at="m0"), schema=alone)
    with pytest.raises(InvalidInput, match="not measured here"):
        study(CHANGE, schema=alone)


@pytest.mark.parametrize(("time", "point"), [(0, 0), (99, 0), (101, 1), (300, 2)])
def test_a_time_is_in_its_bin(time: float, point: int) -> None:
    assert find_point(times_of(BY_DAY, SCHEMA), time) == point


def test_a_level_is_its_own_point() -> None:
    times = times_of(BY_LEVEL, SCHEMA)
    assert [find_point(times, level) for level in ("m0", "m6", "m12")] == [0, 1, 2]

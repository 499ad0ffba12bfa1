"""Effects as a study writes them, and which of them its columns can have."""

from __future__ import annotations

import pytest

from penstock.questions.effects import (
    Effect,
    Factor,
    effect_of,
    find_effect_problems,
    read_effect,
)
from penstock.questions.estimands import Estimand
from penstock.schema import Column

LONG = "years ~ " + "a" * 400
COLUMNS = (
    Column("years", "duration", upper=10, event="died"),
    Column("died", "event"),
    Column("age", "integer", lower=18, upper=100),
    Column("sex", "binary"),
    Column("ward", "categorical", levels=("a", "b", "c")),
)


@pytest.mark.parametrize(
    ("text", "factors"),
    [
        ("years ~ age", (Factor("age"),)),
        ("years~age:sex", (Factor("age"), Factor("sex"))),
        (" years ~ ward=b : age ", (Factor("ward", "b"), Factor("age"))),
    ],
)
def test_effects_are_read(text: str, factors: tuple[Factor, ...]) -> None:
    found = read_effect(text)
    assert found == Effect("years", factors)
    assert read_effect(found.text) == found
    assert find_effect_problems(found, COLUMNS, "effects") == []


@pytest.mark.parametrize(
    "text",
    ["", "years", "~ age", "years ~", "years ~ age:sex:ward=b", "a ~ b ~ c", 3, LONG],
)
def test_what_is_none_is_not_read(text: object) -> None:
    assert read_effect(text) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("years ~ agee", "is not a column of the study"),
        ("years ~ died", "cannot be a covariate"),
        ("years ~ years", "cannot be a covariate"),
        ("years ~ ward", "needs a level"),
        ("years ~ ward=a", "needs a level"),
        ("years ~ sex=1", "is not categorical"),
        ("years ~ age:age", "product of a column with itself"),
    ],
)
def test_what_columns_cannot_have_is_said(text: str, said: str) -> None:
    found = read_effect(text)
    assert found is not None
    [problem] = find_effect_problems(found, COLUMNS, "effects")
    assert said in problem.message


def test_an_estimand_asks_for_an_effect() -> None:
    asked = Estimand("e", "cox", "years", "ward", level="c")
    assert effect_of(asked).text == "years ~ ward=c"
    assert effect_of(Estimand("e", "cox", "years", "age", per=10)).text == "years ~ age"

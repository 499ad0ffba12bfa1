"""Effects as a study writes them, and which of them its columns can have."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.base.errors import InvalidInput
from penstock.questions.effects import (
    Effect,
    effect_of,
    find_effect_problems,
    find_rows,
    pose_effect,
    read_effect,
    read_factor,
)
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Factor
from penstock.questions.suitability import estimand_problems
from penstock.schema import Column, Schema

LONG = "years ~ " + "a" * 900
COLUMNS = (
    Column("years", "duration", upper=10, event="died"),
    Column("died", "event"),
    Column("age", "integer", lower=18, upper=100),
    Column("sex", "binary"),
    Column("ward", "categorical", levels=("a", "b", "c")),
)
AGE = Estimand("e", "cox", "years", "age", per=10, adjust=("sex",))


@pytest.mark.parametrize(
    ("text", "factors", "where"),
    [
        ("years ~ age", (Factor("age"),), ""),
        ("years~age:sex", (Factor("age"), Factor("sex")), ""),
        ("years ~ sex:age", (Factor("age"), Factor("sex")), ""),
        (" years ~ ward[b] : age ", (Factor("age"), Factor("ward", "b")), ""),
        (
            "years ~ ward[c] where sex=='1' and age>60",
            (Factor("ward", "c"),),
            "sex == '1' and age > 60",
        ),
    ],
)
def test_effects_are_read(text: str, factors: tuple[Factor, ...], where: str) -> None:
    found = read_effect(text)
    assert found == Effect("years", factors, where)
    assert read_effect(found.text) == found
    assert find_effect_problems(found, COLUMNS, (AGE,)) == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "years", "~ age", "years ~", "years ~ age:sex:ward[b]", "a ~ b ~ c", 3, LONG),
        *("years ~ spline(age, 3)", "years ~ age where", "years ~ age:age"),
    ],
)
def test_what_is_none_is_refused(text: object) -> None:
    with pytest.raises(InvalidInput):
        read_effect(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("years ~ agee", "is not a column of the study"),
        ("years ~ died", "is of kind"),
        ("years ~ ward", "must be a level of the term"),
        ("years ~ ward[a]", "must be a level of the term"),
        ("years ~ ward:age", "must name a level"),
        ("years ~ sex[1]", "has no meaning for a term of kind"),
        ("years ~ age where nobody > 3", "is not a column of the study"),
        ("ward ~ age", "has an outcome without a regression"),
    ],
)
def test_what_columns_cannot_have_is_said(text: str, said: str) -> None:
    problems = find_effect_problems(read_effect(text), COLUMNS, (AGE,))
    assert [p.message for p in problems if said in p.message], problems


def test_an_estimand_asks_for_an_effect() -> None:
    asked = Estimand("e", "cox", "years", "ward", level="c")
    assert effect_of(asked) == read_effect("years ~ ward[c]")
    assert effect_of(AGE).text == "years ~ age"
    product = Estimand("e", "cox", "years", "sex:age", where="ward == 'b'")
    assert effect_of(product).text == "years ~ age:sex where ward == 'b'"


def test_a_requested_effect_is_of_the_same_rate() -> None:
    """And an exposure is adjusted for nowhere: its coefficient is known."""
    asked = Estimand("e", "poisson", "falls", "sex", adjust=("age",), exposure="followed")
    posed = pose_effect(read_effect("falls ~ age"), (), [asked])
    assert (posed.exposure, posed.adjust) == ("followed", ("sex",))
    assert posed.model == "poisson"
    twice = pose_effect(read_effect("falls ~ followed"), (), [asked])
    columns = (
        Column("falls", "integer", 0, 9),
        Column("followed", "continuous", 1, 9),
        Column("sex", "binary"),
        Column("age", "continuous", 18, 100),
    )
    [problem] = estimand_problems(twice, columns)
    assert "twice" in str(problem)


def test_a_requested_effect_is_adjusted_for_what_estimands_name() -> None:
    asked = (AGE, Estimand("other", "cox", "years", "ward", level="b", strata=("sex",)))
    found = pose_effect(read_effect("years ~ ward[c]"), COLUMNS, asked)
    assert (found.model, found.term, found.level) == ("cox", "ward", "c")
    assert set(found.adjust) == {"age", "sex"}
    product = pose_effect(read_effect("years ~ sex:age"), COLUMNS, (AGE,))
    assert (product.term, product.adjust) == ("age:sex", ())
    alone = pose_effect(read_effect("age ~ sex"), COLUMNS, ())
    assert (alone.outcome, alone.adjust) == ("age", ())


def test_values_of_an_effect_are_those_of_its_columns() -> None:
    schema = Schema(COLUMNS)
    coded = {"ward": np.array([0.0, 1.0, 2.0, np.nan]), "age": np.array([50.0, 60.0, 70.0, np.nan])}
    level = read_factor(schema, Factor("ward", "b"), coded)
    assert np.array_equal(level, [0, 1, 0, np.nan], equal_nan=True)
    assert read_factor(schema, Factor("age"), coded) is coded["age"]
    effect = read_effect("years ~ age where age >= 60")
    assert find_rows(schema, effect, coded).tolist() == [False, True, True, False]
    assert find_rows(schema, read_effect("years ~ age"), coded).all()

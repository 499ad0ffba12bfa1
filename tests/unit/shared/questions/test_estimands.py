"""Which estimands a study may ask for: counts and means, and what has no meaning for them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import made

from penstock.base.errors import InvalidInput
from penstock.mechanisms import Gibbs, Maf
from penstock.questions.estimands import Estimand, estimand_problems
from penstock.schema import Column, Schema
from penstock.study.study import Study

COLUMNS = (
    Column("age", "continuous", lower=18, upper=100),
    Column("falls", "integer", lower=0, upper=20),
    Column("change", "integer", lower=-5, upper=5),
    Column("ill", "binary"),
    Column("ward", "categorical", levels=("a", "b")),
    Column("time", "duration", upper=10, event="died"),
    Column("died", "event"),
)


def wheres(*args: Any, **more: Any) -> list[str]:
    return [p.where for p in estimand_problems(Estimand("e", *args, **more), COLUMNS)]


@pytest.mark.parametrize("outcome", ["age", "falls", "ill"])
def test_a_mean_needs_an_outcome_only(outcome: str) -> None:
    estimand = Estimand("e", "mean", outcome)
    assert estimand.term == outcome
    assert estimand == Estimand("e", "mean", outcome, outcome)
    assert estimand_problems(estimand, COLUMNS) == []


@pytest.mark.parametrize("outcome", ["ward", "time", "died", "none"])
def test_other_columns_have_no_mean(outcome: str) -> None:
    assert wheres("mean", outcome) == ["outcome"]


def test_what_has_no_meaning_for_a_mean_is_refused_at_once() -> None:
    found = wheres("mean", "age", "ill", per=10.0, adjust=("ward",), level="b")
    assert found == ["term", "per", "adjust", "level"]


def test_a_count_is_whole_and_not_negative() -> None:
    assert wheres("poisson", "falls", "age", per=10.0, adjust=("ill", "ward")) == []
    assert wheres("poisson", "change", "age") == ["outcome"]
    assert wheres("poisson", "age", "ill") == ["outcome"]
    assert wheres("poisson", "falls", "falls") == ["term"]


def test_only_a_mean_may_leave_its_term_out() -> None:
    with pytest.raises(InvalidInput) as caught:
        Estimand("e", "ols", "age")
    assert [p.where for p in caught.value.problems] == ["term"]


def test_a_mean_survives_the_wire() -> None:
    study = made.study(Maf(), estimands=(Estimand("m", "mean", "sbp"),))
    data = study.to_dict()
    assert data["estimands"][0]["term"] == "sbp"
    assert Study.from_dict(data) == study
    del data["estimands"][0]["term"]
    assert Study.from_dict(data) == study


@pytest.mark.parametrize(("model", "outcome"), [("mean", "sbp"), ("poisson", "falls")])
def test_gibbs_answers_them(model: str, outcome: str) -> None:
    term = "" if model == "mean" else "smoker"
    study = made.study(Gibbs(), estimands=(Estimand("e", model, outcome, term),))
    assert study.estimands[0].model == model


def test_gibbs_says_no_more_of_an_outcome_of_another_kind() -> None:
    """It has no bounds to look at: the study says what is wrong, and nothing breaks."""
    with pytest.raises(InvalidInput) as caught:
        made.study(Gibbs(), estimands=(Estimand("e", "poisson", "smoker", "sbp"),))
    assert [p.where for p in caught.value.problems] == ["estimands[1].outcome"]


def test_an_unknown_model_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="ols, logistic, cox, poisson, mean"):
        Estimand("e", "probit", "ill", "age")


def test_a_schema_without_columns_for_it_names_what_is_there() -> None:
    schema = Schema((Column("age", "continuous", lower=0, upper=1),))
    [problem] = estimand_problems(Estimand("e", "mean", "agee"), schema.columns)
    assert "age" in str(problem.remedy)

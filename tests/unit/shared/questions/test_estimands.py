"""Which estimands a study may ask for: counts and means, and what has no meaning for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support import made

from penstock.base.errors import InvalidInput
from penstock.mechanisms import Gibbs, Maf, Scoring, Structured
from penstock.questions.estimands import Estimand
from penstock.questions.suitability import estimand_problems
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


def test_levels_in_order_have_a_model_of_their_own() -> None:
    columns = (*COLUMNS, Column("pain", "ordered", levels=("none", "some", "much")))

    def problems(**more: Any) -> list[str]:
        asked = {"model": "ordinal", "outcome": "pain", "term": "age", **more}
        return [p.where for p in estimand_problems(Estimand("e", **asked), columns)]

    assert problems(per=10.0, adjust=("ill", "ward"), where="age > 40") == []
    assert problems(strata=("ward",)) == []
    assert problems(outcome="ward") == ["outcome"]
    assert problems(outcome="ill") == ["outcome"]
    assert problems(model="logistic") == ["outcome"]
    assert problems(exposure="falls") == ["exposure"]
    asked = Estimand("e", "ordinal", "pain", "age")
    [problem] = Gibbs().problems(Schema((columns[0], columns[-1])), (asked,))
    assert "has no chain" in str(problem)
    assert "releases tables" in str(problem)


def test_a_level_of_the_outcome_is_asked_about_by_name() -> None:
    columns = (*COLUMNS, Column("left", "categorical", levels=("home", "ward", "died")))

    def problems(**more: Any) -> list[str]:
        asked = {"model": "multinomial", "outcome": "left", "term": "age", **more}
        return [p.where for p in estimand_problems(Estimand("e", **asked), columns)]

    assert problems(outcome_level="died") == problems(outcome_level="ward", adjust=("ill",)) == []
    assert problems() == problems(outcome_level="home") == ["outcome_level"]
    assert problems(outcome_level="dead") == ["outcome_level"]
    assert problems(outcome="ill", outcome_level="1") == ["outcome"]
    assert problems(model="logistic", outcome="ill", outcome_level="1") == ["outcome_level"]
    with pytest.raises(InvalidInput, match="outcome_level"):
        Estimand("e", "multinomial", "left", "age", outcome_level="")
    wide = Column("many", "categorical", levels=tuple(map(str, range(13))))
    asked = Estimand("e", "multinomial", "many", "age", outcome_level="3")
    [problem] = estimand_problems(asked, (*columns, wide))
    assert "too many levels" in str(problem)


def test_a_level_of_the_outcome_is_in_the_bytes_of_those_studies_alone_that_have_one() -> None:
    asked = Estimand("e", "multinomial", "left", "age", outcome_level="died")
    assert asked.to_dict()["outcome_level"] == "died"
    assert Estimand(**asked.to_dict() | {"adjust": ()}) == asked
    assert asked.formula == "left[died] ~ age"
    assert "outcome_level" not in Estimand("e", "ordinal", "left", "age").to_dict()
    schema = Schema((COLUMNS[0], Column("left", "categorical", levels=("home", "died"))))
    [problem] = Gibbs().problems(schema, (asked,))
    assert "has no chain" in str(problem)


PERSON_YEARS = (
    Column("followed", "continuous", lower=0.1, upper=20),
    Column("beds", "integer", lower=1, upper=900, nullable=True),
    Column("since", "continuous", lower=0, upper=20),
)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, []),
        ({"exposure": "beds"}, []),
        ({"model": "negative-binomial"}, []),
        ({"where": "followed >= 1"}, []),
        ({"model": "ols", "outcome": "age", "term": "ill"}, ["has no meaning for a ols"]),
        ({"model": "cox", "outcome": "time"}, ["has no meaning for a cox"]),
        ({"exposure": "since"}, ["'since' may be 0, of which there is no rate"]),
        ({"exposure": "time"}, ["is of kind 'duration'"]),
        ({"exposure": "ill"}, ["is of kind 'binary'"]),
        ({"exposure": "folowed"}, ["Did you mean 'followed'"]),
        ({"adjust": ("ill", "followed")}, ["stands in the regression twice"]),
        ({"term": "followed"}, ["stands in the regression twice"]),
        ({"outcome": "beds", "exposure": "beds"}, ["stands in the regression twice"]),
    ],
)
def test_a_rate_is_of_a_count_per_unit_of_a_number_above_0(
    asked: dict[str, Any], says: list[str]
) -> None:
    given: dict[str, Any] = {"model": "poisson", "outcome": "falls", "term": "age"}
    estimand = Estimand("e", **(given | {"exposure": "followed"} | asked))
    found = estimand_problems(estimand, (*COLUMNS, *PERSON_YEARS))
    assert [p.where for p in found] == ["exposure"] * len(says)
    for problem, text in zip(found, says, strict=True):
        assert text in str(problem)


def test_robust_errors_are_asked_of_a_cox_model_and_written_only_then() -> None:
    asked = Estimand("e", "cox", "time", "age", errors="robust")
    assert asked.to_dict()["errors"] == "robust"
    assert asked.formula == "time ~ age with robust errors"
    assert estimand_problems(asked, COLUMNS) == []
    assert "errors" not in Estimand("e", "cox", "time", "age").to_dict()
    plain = Estimand("e", "cox", "time", "age", errors="model")
    assert plain == Estimand("e", "cox", "time", "age")
    (problem,) = estimand_problems(replace(asked, model="ols", outcome="falls"), COLUMNS)
    assert problem.where == "errors"
    with pytest.raises(InvalidInput, match="errors"):
        Estimand("e", "cox", "time", "age", errors="sandwich")


def test_a_rate_is_written_as_one_and_only_then() -> None:
    asked = Estimand("e", "poisson", "falls", "age", adjust=("ill",), exposure="followed")
    assert asked.formula == "falls ~ age + ill + offset(log(followed))"
    assert asked.to_dict()["exposure"] == "followed"
    assert asked.columns == ("falls", "ill", "age", "followed")
    assert asked.covariates == ("ill", "age")
    assert "exposure" not in Estimand("e", "poisson", "falls", "age").to_dict()
    with pytest.raises(InvalidInput, match="exposure"):
        Estimand("e", "poisson", "falls", "age", exposure="log(followed)")


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


def test_gibbs_refuses_a_negative_binomial_model_and_says_what_would_do() -> None:
    with pytest.raises(InvalidInput, match="mechanism that releases tables") as caught:
        made.study(Gibbs(), estimands=(Estimand("e", "negative-binomial", "falls", "smoker"),))
    assert [p.where for p in caught.value.problems] == ["mechanism.estimand.model"]


def test_gibbs_says_no_more_of_an_outcome_of_another_kind() -> None:
    """It has no bounds to look at: the study says what is wrong, and nothing breaks."""
    with pytest.raises(InvalidInput) as caught:
        made.study(Gibbs(), estimands=(Estimand("e", "poisson", "smoker", "sbp"),))
    assert [p.where for p in caught.value.problems] == ["estimands[1].outcome"]


def test_an_unknown_model_is_refused_by_name() -> None:
    for term in ("age", ""):
        with pytest.raises(InvalidInput, match="ordinal, multinomial, mean") as caught:
            Estimand("e", "probit", "ill", term)
        assert [p.where for p in caught.value.problems] == ["model"]


def test_of_an_unknown_outcome_nothing_else_is_missing() -> None:
    assert wheres("share", "agee") == ["outcome"]
    assert wheres("count", "agee") == ["outcome"]
    assert wheres("share", "age") == ["threshold", "direction"]
    assert wheres("quantile", "agee") == ["outcome", "probability"]


def test_a_level_that_is_none_is_told_the_nearest() -> None:
    kind = Column("kind", "categorical", levels=("none", "haem", "solid"))

    def tell(**more: Any) -> str:
        (problem,) = estimand_problems(Estimand("e", **more), (*COLUMNS, kind))
        return str(problem)

    asked: dict[str, Any] = {"model": "cox", "outcome": "time", "term": "kind"}
    assert "Did you mean 'haem'?" in tell(**asked, level="haemo")
    assert "got" not in tell(**asked)
    assert "Did you mean 'solid'?" in tell(model="share", outcome="kind", outcome_level="solids")
    assert "got" not in tell(model="multinomial", outcome="kind", term="age")


def test_a_schema_without_columns_for_it_names_what_is_there() -> None:
    schema = Schema((Column("age", "continuous", lower=0, upper=1),))
    [problem] = estimand_problems(Estimand("e", "mean", "agee"), schema.columns)
    assert "age" in str(problem.remedy)


# Products, splines, strata, subgroups ----------------------------------------------------------


MORE = (
    *COLUMNS,
    Column("sbp", "continuous", lower=70, upper=250, unit="mmHg"),
    Column("stage", "ordered", levels=("I", "II", "III")),
    Column("site", "categorical", levels=tuple(f"s{i}" for i in range(100))),
    Column("clinic", "categorical", levels=tuple(f"c{i}" for i in range(100))),
)


def found(**asked: Any) -> list[tuple[str, str]]:
    """Where something is wrong, and all that is said of it."""
    given = {"name": "e", "model": "cox", "outcome": "time", "term": "age"} | asked
    return [(p.where, str(p)) for p in estimand_problems(Estimand(**given), MORE)]


@pytest.mark.parametrize(
    "asked",
    [
        {"term": "age:ill"},
        {"term": "ward[b]:age", "per": 10.0, "adjust": ("age", "ill")},
        {"term": "site[s1]:ill"},
        {"term": "sbp:age", "adjust": ("spline(age, 3)", "ward:ill"), "strata": ("stage",)},
        {"adjust": ("spline(sbp, 100, 140, 180)",)},
        {"strata": ("ill", "stage", "ward")},
        {"where": "sbp >= 140 and ill == 1 and ward != 'a'"},
        {"where": "age < 65"},
        {"where": "stage >= 'II' and ill == '0'"},
        {"model": "mean", "outcome": "sbp", "term": "", "where": "ill == 1"},
    ],
)
def test_what_suits_the_columns_is_asked(asked: dict[str, Any]) -> None:
    assert found(**asked) == []


@pytest.mark.parametrize(
    ("asked", "where", "says"),
    [
        ({"term": "age:il"}, "term", "Did you mean 'ill'"),
        ({"term": "age:died"}, "term", "is of kind 'event'"),
        ({"model": "ols", "outcome": "sbp", "term": "sbp:age"}, "term", "has the outcome in it"),
        ({"term": "ward:age"}, "term", "Write ward[b]"),
        ({"term": "ward[a]:age"}, "term", "other than its first"),
        ({"term": "ward[z]:age"}, "term", "one of b"),
        ({"term": "ill[1]:age"}, "term", "Write ill"),
        ({"term": "ward[b]"}, "term", "level = 'b'"),
        ({"term": "ward[b]:age", "level": "b"}, "level", "stands in the product"),
        ({"term": "ward[b]:ill", "per": 2.0}, "per", "product of levels"),
        ({"term": "spline(age, 3)"}, "term", "no one coefficient"),
        ({"adjust": ("spline(age, 3)",)}, "adjust", "appears twice"),
        ({"adjust": ("spline(ill, 3)",)}, "adjust", "is of kind 'binary'"),
        ({"adjust": ("spline(sbp, 10, 100, 150)",)}, "adjust", "70 to 250"),
        ({"adjust": ("spline(spb, 3)",)}, "adjust", "Did you mean 'sbp'"),
        ({"adjust": ("sbp:ill", "ill:sbp")}, "adjust", "appears twice"),
        ({"adjust": ("ward[b]:ill",)}, "adjust", "Write ward"),
        ({"adjust": ("age:ill",)}, "adjust", "where ill is 0"),
        ({"term": "site[s1]:clinic[c1]"}, "adjust", "got 9801"),
        ({"strata": ("age",)}, "strata", "is of kind"),
        ({"strata": ("stag",)}, "strata", "Did you mean 'stage'"),
        ({"strata": ("ill",), "adjust": ("ill",)}, "strata", "appears twice"),
        ({"strata": ("site", "ill")}, "strata", "at most 100"),
        ({"where": "bp > 3"}, "where", "Did you mean 'sbp'"),
        ({"where": "died == 1"}, "where", "is of kind 'event'"),
        ({"where": "sbp > 300"}, "where", "70 to 250"),
        ({"where": "sbp > '140'"}, "where", "without quotes"),
        ({"where": "ward == 'c'"}, "where", "no level of 'ward'"),
        ({"where": "ward < 'b'"}, "where", "have no order"),
        ({"term": "ill", "where": "ill == 1"}, "where", "leaves one value"),
        ({"model": "ols", "outcome": "sbp", "where": "sbp > 140"}, "where", "by the outcome"),
        ({"model": "mean", "outcome": "sbp", "term": "", "strata": ("ill",)}, "strata", "meaning"),
    ],
)
def test_what_does_not_suit_is_said_once_with_what_to_do(
    asked: dict[str, Any], where: str, says: str
) -> None:
    [(place, text)] = [f for f in found(**asked)][:1]
    assert place == where
    assert says in text
    assert len({p for p, _ in found(**asked)}) == 1


def test_columns_of_a_product_are_adjusted_for() -> None:
    asked = Estimand("e", "cox", "time", "sbp:age", adjust=("ward:ill", "spline(age, 3)", "ill"))
    assert [str(r) for r in asked.regressors] == [
        *asked.adjust,
        "ward",
        "sbp",
        "sbp:age",
    ]
    strata = Estimand("e", "cox", "time", "ill:age", strata=("ill",))
    assert strata.formula == "time ~ ill:age + age + strata(ill)"
    assert strata.covariates == ("age", "ill")


def test_texts_are_kept_in_one_way() -> None:
    one = Estimand("e", "cox", "time", "sbp : age", adjust=("spline(age,3)",), where="ill==1")
    two = Estimand("e", "cox", "time", "sbp:age", adjust=("spline(age, 3)",), where="ill == 1")
    assert one == two


def test_what_is_not_asked_is_not_written() -> None:
    """Studies from before there were strata and subgroups keep their bytes."""
    plain = Estimand("e", "cox", "time", "age", adjust=("ill",))
    fields = ["name", "model", "outcome", "term", "per", "adjust", "level"]
    assert list(plain.to_dict()) == fields
    more = Estimand("e", "cox", "time", "age", strata=("ill",), where="sbp > 140")
    assert list(more.to_dict()) == [*fields, "strata", "where"]
    rate = Estimand("e", "poisson", "falls", "age", exposure="followed")
    assert list(rate.to_dict()) == [*fields, "exposure"]


def test_it_survives_the_wire() -> None:
    asked = Estimand("e", "ols", "sbp", "chol:smoker", 10, ("spline(chol, 4)",), where="chol > 4")
    study = made.study(Maf(), estimands=(asked,))
    assert Study.from_dict(study.to_dict()) == study
    assert study.to_dict()["estimands"][0]["where"] == "chol > 4"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"term": "chol:smoker"}, "got chol:smoker"),
        ({"adjust": ("spline(chol, 3)",)}, "got spline"),
        ({"strata": ("smoker",), "term": "chol"}, r"got strata\(smoker\)"),
        ({"where": "chol > 4"}, "asks of a subgroup"),
        (
            {"model": "poisson", "outcome": "falls", "exposure": "sbp"},
            r"got offset\(log\(sbp\)\)",
        ),
    ],
)
def test_gibbs_refuses_what_a_chain_has_no_part_for(more: dict[str, Any], says: str) -> None:
    asked = {"name": "e", "model": "ols", "outcome": "sbp", "term": "smoker"} | more
    with pytest.raises(InvalidInput, match=says) as caught:
        made.study(Gibbs(), estimands=(Estimand(**asked),))
    assert {p.where for p in caught.value.problems} == {"mechanism.estimand"}


def test_sums_and_chains_refuse_robust_errors_and_tables_do_not() -> None:
    schema, asked = Schema(COLUMNS), Estimand("e", "cox", "time", "age", errors="robust")
    [refused] = Scoring().problems(schema, [asked])
    assert (refused.where, refused.value) == ("estimands.e.errors", "robust")
    [refused] = Gibbs().problems(schema, [asked])
    assert (refused.where, refused.value) == ("estimand.errors", "robust")
    for mechanism in (Scoring(), Gibbs()):
        assert not mechanism.problems(schema, [replace(asked, errors="model")])
    assert not Maf().problems(schema, [asked])
    assert not Structured().problems(schema, [asked])


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"model": "mean", "outcome": "y"}, "mean of y"),
        (
            {"model": "share", "outcome": "y", "threshold": 60, "direction": "above"},
            "share of y above 60",
        ),
        ({"model": "share", "outcome": "y", "outcome_level": "b"}, "share of y = b"),
        ({"model": "correlation", "outcome": "y", "term": "z"}, "correlation of y and z"),
        (
            {"model": "transition", "outcome": "y", "level": "a", "outcome_level": "b"}
            | {"at": 0, "until": 6, "where": "z > 1"},
            "transition of y from a to b at 0 until 6 where z > 1",
        ),
        (
            {"model": "table", "outcome": "y", "outcome_level": "b", "term": "u[c]:v[d]"},
            "table of y = b and u = c and v = d",
        ),
        (
            {"model": "cumulative-incidence", "outcome": "y", "competing": "z", "at": 5},
            "cumulative-incidence of y at 5 with z competing",
        ),
        ({"model": "rate", "outcome": "y", "per": 10}, "rate of y, per 10"),
        (
            {"model": "cox", "outcome": "y", "term": "z", "adjust": ("u",), "level": "b"},
            "cox y ~ z + u, level b",
        ),
        ({"model": "ols", "outcome": "y", "term": "z", "per": 10}, "ols y ~ z, per 10"),
    ],
)
def test_all_that_is_asked_is_said_on_one_line(asked: dict[str, Any], told: str) -> None:
    assert Estimand("one", **asked).question == told

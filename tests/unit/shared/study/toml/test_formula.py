"""Estimands by formula, and studies with products, splines, strata and subgroups, as TOML."""

from __future__ import annotations

import pytest
from tests.support.dictionaries import problems

from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.study.toml import draft_study, parse_study, write_study

SCHEMA = Schema(
    (
        Column("age", "continuous", 18, 100, 0),
        Column("sex", "binary", levels=("F", "M")),
        Column("ward", "categorical", levels=("a", "b+", "c")),
        Column("stage", "ordered", levels=("I", "II")),
        Column("time", "duration", upper=25, event="cvd"),
        Column("cvd", "event"),
    )
)


def draft(*estimands: Estimand) -> str:
    return draft_study(
        SCHEMA,
        name="s",
        sites=("north",),
        federation="f",
        not_before="2026-11-21T00:00:00Z",
        expires="2026-12-21T00:00:00Z",
        estimands=estimands,
    )


def asking(formula: str, term: str, more: str = "") -> str:
    lines = [f'formula = "{formula}"', f'term = "{term}"', more]
    return "\n".join([draft(), "[[estimands]]", 'name = "e"', 'model = "cox"', *lines])


def parsed(formula: str, term: str, more: str = "") -> Estimand:
    [estimand] = parse_study(asking(formula, term, more)).estimands
    return estimand


def asked(term: str, *adjust: str, strata: tuple[str, ...] = ()) -> Estimand:
    return Estimand("e", "cox", "time", term, adjust=adjust, strata=strata)


@pytest.mark.parametrize(
    ("formula", "term", "means"),
    [
        ("time ~ age", "age", asked("age")),
        ("time~age+sex", "sex", asked("sex", "age")),
        ("time ~ age + sex + age:sex", "age:sex", asked("age:sex", "age", "sex")),
        ("time ~ age*sex", "age:sex", asked("age:sex", "age", "sex")),
        (
            "time ~ age*sex + age*stage",
            "sex:age",
            asked("sex:age", "age", "sex", "stage", "age:stage"),
        ),
        (
            "time ~ spline(age, 40, +55, 70) + sex + strata(ward, stage)",
            "sex",
            asked("sex", "spline(age, 40, 55, 70)", strata=("ward", "stage")),
        ),
        ("time ~ ward:age", "ward[b+]:age", asked("ward[b+]:age")),
        ("time ~ ward[b+]:age + sex", "ward[b+]:age", asked("ward[b+]:age", "sex")),
    ],
)
def test_a_formula_means_its_fields(formula: str, term: str, means: Estimand) -> None:
    assert parsed(formula, term) == means


def test_level_per_and_subgroup_stand_beside_it() -> None:
    found = parsed("time ~ age + sex", "age", "per = 10\nwhere = \"ward != 'a'\"\n")
    assert (found.per, found.where) == (10, "ward != 'a'")


@pytest.mark.parametrize(
    ("formula", "term", "where", "says"),
    [
        ("age + sex", "age", "formula", "has no outcome"),
        ("Surv(time, cvd) ~ age", "age", "formula", "write the duration alone"),
        ("time ~ age +", "age", "formula", "is blank"),
        ("time ~ log(age)", "age", "formula", "one function"),
        ("time ~ age + offset(sex)", "age", "formula", "one function"),
        ("time ~ age + offset(log(a)) + offset(log(b))", "age", "formula", "several offsets"),
        ("time ~ age + offset(log(sex))", "age", "exposure", "has no meaning for a cox"),
        ("time ~ age - sex", "age", "formula", "a product such as"),
        ("time ~ age*sex*ward", "age", "formula", "with ':'"),
        ("time ~ age", "sex", "term", "is not in the formula"),
        ("time ~ spline(age, 3)", "ages", "term", "is not in the formula"),
        ("tim ~ age", "age", "outcome", "Did you mean 'time'"),
        ("time ~ age + strata(age)", "age", "strata", "is of kind"),
    ],
)
def test_a_formula_that_is_none_is_one_problem_with_its_line(
    formula: str, term: str, where: str, says: str
) -> None:
    text = asking(formula, term)
    first = problems(parse_study, text)[0]
    assert first.where == f"estimands[1].{where}"
    assert says in str(first)
    assert first.line is not None
    assert "[[estimands]]" in "".join(text.splitlines()[: first.line])
    if where in ("formula", "term"):
        assert len(problems(parse_study, text)) == 1


def test_what_a_formula_says_is_said_once() -> None:
    [one, two] = problems(parse_study, asking("time ~ age", "age", 'outcome = "time"\nadjust = []'))
    assert (one.where, two.where) == ("estimands[1].outcome", "estimands[1].adjust")


def test_problems_of_other_estimands_are_said_with_those_of_a_formula() -> None:
    text = asking("time ~ log(age)", "age") + (
        '[[estimands]]\nname = "f"\nmodel = "cox"\noutcome = "time"\nterm = "agee"\n'
    )
    assert [p.where for p in problems(parse_study, text)] == [
        "estimands[1].formula",
        "estimands[2].term",
    ]


@pytest.mark.parametrize(("old", "new"), [("time ~ age", "time ~ age +"), ('"cox"', '"coxx"')])
def test_the_effect_of_an_estimand_that_cannot_be_read_is_no_second_problem(
    old: str, new: str
) -> None:
    text = asking("time ~ age", "age") + "[planning.effects]\ne = 0.1\n"
    parse_study(text)
    found = problems(parse_study, text.replace(old, new))
    assert len(found) == 1, found
    found = problems(parse_study, text.replace("\ne = 0.1", "\nf = 0.1"))
    assert [p.where for p in found] == ["planning.effects.f"]


def test_studies_are_written_with_fields_and_read_back() -> None:
    rich = Estimand(
        "e",
        "cox",
        "time",
        "ward[b+]:age",
        adjust=("spline(age, 3)", "sex:stage"),
        strata=("stage",),
        where="age >= 40 and sex == 'M'",
    )
    text = draft(rich)
    study = parse_study(text)
    assert study.estimands == (rich,)
    assert parse_study(write_study(study)) == study
    for said in ('"spline(age, 3)"', 'strata = ["stage"]', "age >= 40 and sex == 'M'"):
        assert said in text


def test_a_plain_study_is_written_without_them() -> None:
    text = draft(asked("age", "sex"))
    assert not any(line.startswith(("strata", "where", "formula")) for line in text.splitlines())


def test_a_draft_without_a_question_shows_what_may_be_asked() -> None:
    for word in ("formula = ", "strata = ", "where = ", "spline("):
        assert word in draft()

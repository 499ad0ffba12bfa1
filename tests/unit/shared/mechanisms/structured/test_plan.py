"""What a structured study may ask, and what its plan is made of."""

from __future__ import annotations

import pytest

from penstock.base.errors import InvalidInput
from penstock.mechanisms import MECHANISMS, Structured
from penstock.mechanisms.protocol import Asked
from penstock.mechanisms.structured.plan import list_durations, make_grids, most_score, plan
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema

OUTCOME = (Column("t", "duration", upper=10, event="d"), Column("d", "event"))
AGE, SEX = Column("age", "integer", lower=18, upper=100), Column("sex", "binary")
ASKED = PrivacyRequest(1.0, 1e-5)


@pytest.mark.parametrize(
    "wrong", [{"copies": 0}, {"copies": 101}, {"refits": -1}, {"refits": 101}, {"copies": 1.5}]
)
def test_settings_out_of_their_bounds_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Structured(**wrong)  # type: ignore[arg-type]


def test_a_table_of_outcomes_alone_is_refused_and_says_what_would_do() -> None:
    [problem] = Structured().problems(Schema(OUTCOME), ())
    assert "given other columns" in str(problem)
    assert "choose another mechanism" in str(problem)
    with pytest.raises(InvalidInput, match="given other columns"):
        plan(Structured(), Schema(OUTCOME), 100, ASKED)
    assert Structured().problems(Schema((*OUTCOME, AGE)), ()) == []


@pytest.mark.parametrize("guarantee", ["public-flow", "empirical"])
def test_no_other_guarantee_is_on_offer(guarantee: str) -> None:
    with pytest.raises(InvalidInput, match=r"guarantee.*formal"):
        plan(Structured(), Schema((*OUTCOME, AGE)), 100, PrivacyRequest(1.0, 1e-5, guarantee))


def test_a_site_without_persons_is_refused() -> None:
    with pytest.raises(InvalidInput, match="persons"):
        plan(Structured(), Schema((*OUTCOME, AGE)), 0, ASKED)


def test_what_estimands_name_is_declared_once_each() -> None:
    schema = Schema((*OUTCOME, AGE, SEX))
    asked = (
        Estimand("one", "cox", "t", "age"),
        Estimand("two", "cox", "t", "sex", adjust=("age",)),
        Estimand("three", "mean", "age"),
    )
    found = plan(Structured(), schema, 100, ASKED, asked)
    assert found.outcomes[0].terms == ("age", "sex")
    assert found.outcomes[0].adjusted == ("age",)
    assert found.covariates == ("age", "sex")


def test_what_nobody_models_is_a_covariate_and_nothing_is_asked_of_its_outcome() -> None:
    found = plan(
        Structured(), Schema((AGE, SEX)), 100, ASKED, (Estimand("e", "ols", "age", "sex"),)
    )
    assert found.outcomes == ()
    assert [event.label for event in found.events] == ["margins", "moments"]


def test_the_plan_and_its_sizes_follow_from_public_numbers_alone() -> None:
    schema = Schema((*OUTCOME, AGE, SEX, Column("w", "categorical", levels=("a", "b", "c"))))
    asked = Asked(Structured(), schema, ASKED, ())
    mechanism = MECHANISMS["structured"]
    one, other = mechanism.plan(asked, 200), mechanism.plan(asked, 200)
    assert one == other
    assert len(list_durations(schema)) == 1
    # Four columns, one of them a number that may be bent; four blocks; four of censoring.
    assert most_score(make_grids(schema)) == 5 + 4 + 4


def test_a_rehearsal_leaves_out_copies_and_refits() -> None:
    mechanism = MECHANISMS["structured"]
    assert mechanism.shortened(Structured(), 1, 2, 1) == Structured(2, 1)
    assert mechanism.shortened(Structured(1, 0), 1, 2, 1) == Structured(1, 0)


def test_memory_grows_with_persons_copies_and_columns() -> None:
    mechanism = MECHANISMS["structured"]

    def total(persons: int, schema: Schema, settings: Structured, threads: int = 1) -> int:
        asked = Asked(settings, schema, ASKED, ())
        return mechanism.memory(mechanism.plan(asked, persons), schema, None, threads).total

    small, few = Schema((*OUTCOME, AGE)), Structured(1, 1)
    wide = Schema((*OUTCOME, AGE, *(Column(f"x{i}", "binary") for i in range(40))))
    least = total(1000, small, few)
    assert total(100_000, small, few) > least + 50e6
    assert total(1000, wide, few) > least + 50e6
    assert total(1000, small, Structured(1, 4), threads=4) > least + 50e6
    assert total(100_000, small, Structured(10, 10)) > total(100_000, small, few)


def test_products_splines_strata_and_subgroups_are_declared_with_their_columns() -> None:
    ward = Column("ward", "categorical", levels=("a", "b", "c"))
    schema = Schema((*OUTCOME, AGE, SEX, ward))
    asked = (
        Estimand("one", "cox", "t", "age:sex", strata=("ward",)),
        Estimand("two", "cox", "t", "sex:age", where="ward == 'b'"),
        Estimand("three", "cox", "t", "sex", adjust=("spline(age, 3)",), where="ward == 'b'"),
    )
    [drawn] = plan(Structured(), schema, 100, ASKED, asked).outcomes
    assert drawn.terms == ("sex",)
    assert set(drawn.adjusted) == {"age", "sex", "ward"}
    named = [(str(e.regressor), " and ".join(map(str, e.subgroup)), e.asked) for e in drawn.extras]
    members = "ward == 'b'"
    assert named == [
        ("age:sex", "", True),
        ("None", members, False),
        ("sex", members, True),
        ("age", members, False),
        ("sex:age", members, True),
        ("spline(age, 3)", "", False),
    ]


def test_a_score_has_room_for_what_is_declared_whatever_is_released() -> None:
    """Of events and of censoring: six columns of products of levels, and two bends."""
    wide = [Column(n, "categorical", levels=tuple("abcd"[:k])) for n, k in (("v", 3), ("w", 4))]
    grids = make_grids(Schema((*OUTCOME, AGE, *wide)))
    asked = Estimand("e", "cox", "t", "v[b]:w[c]", adjust=("spline(age, 3)",))
    found = plan(Structured(), Schema((*OUTCOME, AGE, *wide)), 100, ASKED, (asked,))
    assert most_score(grids, found.outcomes) == most_score(grids) + 2 * (6 + 2)
    assert {m.size for m in found.rounds} == {most_score(grids, found.outcomes)}


def test_memory_grows_with_products() -> None:
    mechanism = MECHANISMS["structured"]
    wide = [Column(n, "categorical", levels=tuple("abcdefghijk")) for n in ("v", "w")]
    schema = Schema((*OUTCOME, AGE, *wide))

    def total(term: str, *adjust: str) -> int:
        asked = Asked(
            Structured(1, 1), schema, ASKED, (Estimand("e", "cox", "t", term, 1, adjust),)
        )
        return mechanism.memory(mechanism.plan(asked, 20_000), schema, None, 1).total

    assert total("v[b]:w[c]") > total("age", "v", "w") + 100 * 2 * 8 * 20_000

"""What a structured study may ask, and what its plan is made of."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from penstock.base.errors import InvalidInput
from penstock.mechanisms import MECHANISMS, Structured
from penstock.mechanisms.copula.told_means import Meant
from penstock.mechanisms.protocol import Asked, settings_to_dict
from penstock.mechanisms.structured.declared import list_durations, list_outcomes
from penstock.mechanisms.structured.outcomes.baselines import count_deviations
from penstock.mechanisms.structured.plan import (
    MEANS,
    list_given,
    make_grids,
    most_score,
    most_scores,
    plan,
)
from penstock.mechanisms.structured.regressors import most_columns
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


LARGE = Schema((Column("x", "continuous", lower=0, upper=9), AGE, SEX))


@pytest.mark.parametrize(
    ("persons", "epsilon", "fine", "groups"),
    [
        (1_000, 1.0, False, 12),
        (9_000, 0.5, True, 12),
        (9_000, 1.0, True, 16),
        (9_000, 8.0, True, 24),
        (5_700, 30.0, True, 16),
        (2_500, 30.0, True, 12),
    ],
)
def test_bins_are_divided_where_the_noise_is_small_beside_the_rows(
    persons: int, epsilon: float, fine: bool, groups: int
) -> None:
    """By public numbers alone. Parts of a number without a grid are counted at a quarter, whether
    they are narrow or, of wide ones, few."""
    made = plan(Structured(), LARGE, persons, PrivacyRequest(epsilon, 1e-5))
    assert (made.fine, made.groups) == (fine, groups)
    assert made.margins.squared == Fraction(3 + 1) + Fraction(2, 4)
    assert made.margins.size == 32 + 32 + 2 + 83 + 1 + (1024 if fine else 256)
    assert made.pairs is not None
    [x, age, sex] = [groups + 3, min(32 + 51 * fine, groups + 3), 2]
    assert made.pairs.size == x * age + x * sex + age * sex
    assert made.of_tables() == made


def test_bins_are_not_divided_where_somebody_asks() -> None:
    towns = Column("town", "categorical", levels=tuple("abcdefghijklmn"))
    schema, asked = Schema((*OUTCOME, AGE, SEX, towns)), Estimand("e", "cox", "t", "age")
    for estimands, effects in (((asked,), ()), ((), ("t ~ age",))):
        settings = Structured(planted=2, effects=effects)
        made = plan(settings, schema, 50_000, PrivacyRequest(8.0, 1e-5), estimands)
        assert made.pairs is not None
        assert (made.fine, made.groups) == (False, 12)
    made = plan(Structured(most_rows=5_000), schema, 50_000, PrivacyRequest(8.0, 1e-5))
    assert made.fine
    assert made.of_tables().groups == made.groups == 24


@pytest.mark.parametrize("refits", [3, 19])
def test_refits_are_so_many_for_each_fit(refits: int) -> None:
    with pytest.raises(InvalidInput, match=rf"refits.*multiple of per_fit = 2.*{refits + 1}"):
        Structured(refits=refits)
    assert Structured(refits=refits, per_fit=1).refits == refits
    for wrong in (0, 3):
        with pytest.raises(InvalidInput, match="per_fit"):
            Structured(per_fit=wrong)


def test_what_was_signed_before_has_a_refit_of_each_fit_and_the_same_bytes() -> None:
    """A setting that came later: absent it means what there was before, whatever is written now."""
    before = {"name": "structured", "copies": 10, "refits": 19, "planted": 12, "effects": []}
    read = MECHANISMS.read(before)
    assert read == Structured(refits=19, per_fit=1)
    assert settings_to_dict(read) == before
    assert settings_to_dict(Structured())["per_fit"] == 2
    assert MECHANISMS.read(MECHANISMS.complete({"name": "structured"})) == Structured()
    assert MECHANISMS.complete(before | {"per_fit": 1})["per_fit"] == 1
    # Of another name there is nothing to complete, and reading says so.
    assert "per_fit" not in MECHANISMS.complete({"name": "maf"})
    assert MECHANISMS.complete({"name": 7})["name"] == 7


@pytest.mark.parametrize(
    ("settings", "fits", "each"),
    [
        (Structured(), 10, 2),
        (Structured(per_fit=1), 20, 1),
        (Structured(refits=1), 1, 1),
        (Structured(refits=0), 0, 1),
    ],
)
def test_a_plan_has_as_many_fits_as_its_refits_need(
    settings: Structured, fits: int, each: int
) -> None:
    made = plan(settings, Schema((*OUTCOME, AGE)), 100, ASKED)
    assert (made.fits, made.per_fit) == (fits, each)


def test_large_sites_have_tables_of_a_share_of_their_rows_at_the_same_price() -> None:
    """By public numbers alone; nothing that is asked of rows changes, nor its noise."""
    schema = Schema((*OUTCOME, AGE), person="id", max_rows_per_person=2)
    few = Structured(most_rows=101)
    whole, made = plan(Structured(), schema, 1000, ASKED), plan(few, schema, 1000, ASKED)
    assert (made.drawn, made.room, made.share) == (50, 100, 0.05)
    assert made.measurements == whole.measurements
    assert (whole.room, whole.share, whole.of_tables()) == (2000, 1.0, whole)
    again = made.of_tables()
    assert (again.persons, again.room, again.share) == (50, 100, 1.0)
    assert again.margins.sd == pytest.approx(0.05 * made.margins.sd)
    asked = Asked(few, schema, ASKED, ())
    mechanism = MECHANISMS.of(few)
    assert mechanism.share_rows(asked, 1000) == made.share
    assert mechanism.shape(asked, 1000).first.rows == made.room
    # A small site has what it would have without.
    small = plan(few, schema, 40, ASKED)
    assert (small.room, small.share, small.of_tables()) == (80, 1.0, small)
    assert mechanism.share_rows(asked, 40) == 1.0
    assert "most_rows" not in settings_to_dict(Structured())
    assert MECHANISMS.read(settings_to_dict(few)) == few
    for wrong in (99, 0, 1.5, True, 2 * 10**9):
        with pytest.raises(InvalidInput, match="most_rows"):
            Structured(most_rows=wrong)  # type: ignore[arg-type]


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


def test_what_no_regression_asks_of_is_a_covariate() -> None:
    found = plan(Structured(), Schema((AGE, SEX)), 100, ASKED, (Estimand("e", "mean", "age"),))
    assert found.outcomes == ()
    assert found.covariates == ("age", "sex")
    assert [event.label for event in found.events] == ["margins", "means", "moments", "pairs"]


def test_declared_means_of_covariates_are_a_release_of_their_own() -> None:
    ward = Column("ward", "categorical", levels=("a", "b", "c"))
    schema = Schema((*OUTCOME, AGE, SEX, ward, Column("x", "continuous", 0, 1)))
    asked = (
        Estimand("e", "cox", "t", "age"),
        Estimand("m", "mean", "age"),
        Estimand("n", "mean", "age"),
        Estimand("s", "mean", "sex"),
        Estimand("o", "share", "age", threshold=65.0, direction="above"),
        Estimand("w", "count", "ward", outcome_level="b"),
    )
    of_outcome = (Estimand("f", "ols", "x", "age"), Estimand("g", "mean", "x"))
    # Among some rows, or of another kind.
    others = (
        Estimand("h", "mean", "age", where="sex == '1'"),
        Estimand("i", "quantile", "age", probability=0.5),
        Estimand("j", "survival", "t", at=5.0),
        Estimand("k", "table", "ward", term="sex", level="1", outcome_level="b"),
    )
    found = plan(Structured(), schema, 100, ASKED, asked)
    every = plan(Structured(), schema, 100, ASKED, (*asked, *of_outcome, *others))
    outcome = plan(Structured(), schema, 100, ASKED, of_outcome[:1])
    none = plan(Structured(), schema, 100, ASKED, (asked[0], *others))
    assert found.meant == (
        Meant("age"),
        Meant("sex", "level", 1),
        Meant("age", "above", 65.0),
        Meant("ward", "level", 1),
    )
    # The mean of a number that is an outcome is told whether or not it is declared.
    assert every.meant == (*found.meant, Meant("x"))
    assert outcome.meant == (Meant("x"),)
    # Of levels counts and scores know it.
    level = (Estimand("l", "logistic", "sex", "age"), Estimand("s", "mean", "sex"))
    assert plan(Structured(), schema, 100, ASKED, level).meant == ()
    assert none.meant == ()
    assert none.means is None
    assert found.means is not None
    assert (found.means.sensitivity, found.means.squared, found.means.size) == (1.0, 1, 4)
    spent = [m.count / m.noise_multiplier**2 for m in found.measurements]
    assert spent[1] / sum(spent) == pytest.approx(MEANS)
    assert 0.999 < found.epsilon <= 1.0
    # Noise for tables of fewer rows is smaller in the same way.
    assert found.with_noise(0.5).means == found.means.with_noise(0.5)


NUMBER, VISITS = Column("sbp", "continuous", 60, 240), Column("visits", "integer", 0, 30)
EVERY = Schema((VISITS, *OUTCOME, NUMBER, AGE, SEX, Column("x", "continuous", 0, 1)))


def ordered(*asked: Estimand) -> list[tuple[str, str]]:
    return [(drawn.column, drawn.regression) for drawn in list_outcomes(EVERY, asked)]


def test_each_regressions_outcome_has_a_model_of_its_kind_and_durations_are_last() -> None:
    asked = (
        Estimand("a", "poisson", "visits", "age"),
        Estimand("b", "ols", "sbp", "age"),
        Estimand("c", "logistic", "sex", "x"),
    )
    by = [("visits", "poisson"), ("sbp", "ols"), ("sex", "logistic"), ("t", "cox")]
    assert ordered(*asked) == by
    found = plan(Structured(), EVERY, 100, ASKED, asked)
    assert found.covariates == ("age", "x")
    # Nobody asks of the duration, which has a part in the first rounds alone.
    assert [m.count for m in found.rounds] == [4, 4, 3, 3]
    # A column counts once, whoever draws it: five columns, the duration's times in four widths,
    # and the rows; and at half the weight the values of one number, and the parts of another.
    assert found.margins.squared == Fraction(42, 4)


def test_an_outcome_that_another_one_names_is_drawn_before_it() -> None:
    chain = (
        Estimand("a", "poisson", "visits", "sbp", adjust=("age",)),
        Estimand("b", "ols", "sbp", "sex"),
        Estimand("c", "logistic", "sex", "age"),
        Estimand("d", "cox", "t", "visits"),
    )
    found = plan(Structured(), EVERY, 100, ASKED, chain)
    assert [drawn.column for drawn in found.outcomes] == ["sex", "sbp", "visits", "t"]
    assert found.covariates == ("age", "x")
    given = [[g.column.name for g in list_given(EVERY, found.outcomes, i)] for i in range(4)]
    assert given[0] == ["age", "x"]
    assert given[2:] == [["age", "x", "sex", "sbp"], ["age", "x", "sex", "sbp", "visits"]]


def test_of_columns_that_are_asked_about_in_a_circle_one_stays_a_covariate() -> None:
    circle = (
        Estimand("a", "ols", "sbp", "x", adjust=("visits",)),
        Estimand("b", "poisson", "visits", "sbp"),
        Estimand("c", "logistic", "sex", "sbp"),
    )
    assert ordered(*circle) == [("sbp", "ols"), ("sex", "logistic"), ("t", "cox")]
    found = plan(Structured(), EVERY, 100, ASKED, circle)
    assert found.covariates == ("visits", "age", "x")


def test_a_count_that_two_regressions_ask_of_is_drawn_as_a_count_for_both() -> None:
    both = (Estimand("a", "ols", "visits", "age"), Estimand("b", "poisson", "visits", "x"))
    [found, _] = list_outcomes(EVERY, both)
    assert (found.column, found.regression, found.terms) == ("visits", "poisson", ("age", "x"))
    assert ordered(both[0])[0] == ("visits", "ols")


def test_an_event_that_a_logistic_regression_asks_of_is_drawn_with_its_duration() -> None:
    assert ordered(Estimand("a", "logistic", "d", "age")) == [("t", "cox")]


def test_the_plan_and_its_sizes_follow_from_public_numbers_alone() -> None:
    schema = Schema((*OUTCOME, AGE, SEX, Column("w", "categorical", levels=("a", "b", "c"))))
    asked = Asked(Structured(), schema, ASKED, ())
    mechanism = MECHANISMS["structured"]
    one, other = mechanism.plan(asked, 200), mechanism.plan(asked, 200)
    assert one == other
    assert len(list_durations(schema)) == 1
    # Four columns, one of them a number that may be bent; four blocks; four of censoring.
    assert most_scores(schema, one.outcomes) == 5 + 4 + 4
    # Of a number, given three columns: a correction of its mean, and of its spread.
    asked_of = list_outcomes(schema, (Estimand("e", "ols", "age", "sex"),))
    assert most_score(make_grids(schema, asked_of), asked_of[0]) == 3 + 2


def test_a_rehearsal_leaves_out_copies_and_refits() -> None:
    mechanism = MECHANISMS["structured"]
    assert mechanism.shortened(Structured(), 1, 2, 1) == Structured(2, 1, 1)
    assert mechanism.shortened(Structured(1, 0), 1, 2, 1) == Structured(1, 0, 1)


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


VISITS, YEARS = Column("visits", "integer", 0, 60), Column("years", "continuous", 0.1, 20, 1)


def rate(name: str, term: str, exposure: str = "years", **more: Any) -> Estimand:
    return Estimand(name, "negative-binomial", "visits", term, exposure=exposure, **more)


def test_an_exposure_is_drawn_before_what_is_counted_in_it() -> None:
    """It has no coefficient that is asked for, and is a covariate, or an outcome of its own."""
    schema = Schema((VISITS, YEARS, AGE, SEX))
    [drawn] = plan(Structured(), schema, 100, ASKED, (rate("e", "age", adjust=("sex",)),)).outcomes
    assert (drawn.regression, drawn.exposure, drawn.twice) == ("negative-binomial", "years", 0)
    assert (drawn.terms, drawn.adjusted) == (("age",), ("sex",))
    long = Estimand("long", "ols", "years", "sex")
    both = list_outcomes(schema, (rate("e", "age"), long))
    assert [outcome.column for outcome in both] == ["years", "visits"]
    [within] = list_outcomes(schema, (rate("e", "age", where="years >= 1"),))
    assert within.twice == 1
    grids = make_grids(schema, (within,))
    assert most_score(grids, within) == most_score(grids, replace(within, exposure="")) + 1


def test_levels_that_are_asked_of_are_no_covariate() -> None:
    """One score of each of their design's columns, and one of their level."""
    stage = Column("stage", "ordered", levels=("i", "ii", "iii"))
    schema = Schema((stage, AGE, SEX))
    asked = Estimand("e", "ordinal", "stage", "age", adjust=("sex",))
    found = plan(Structured(), schema, 100, ASKED, (asked,))
    [drawn] = found.outcomes
    assert (drawn.column, drawn.regression) == ("stage", "ordinal")
    assert found.covariates == ("age", "sex")
    grids = make_grids(schema, (drawn,))
    alike = replace(drawn, regression="logistic")
    assert most_score(grids, drawn) == most_score(grids, alike)
    assert found.rounds[0].size == most_score(grids, drawn)
    # Nobody asks a regression of them: they are among the covariates, with all their neighbours.
    assert plan(Structured(), schema, 100, ASKED).covariates == ("stage", "age", "sex")


def test_each_level_that_is_asked_of_has_coefficients() -> None:
    left = Column("left", "categorical", levels=("home", "ward", "moved", "died"))
    schema = Schema((left, AGE, SEX))
    asked = tuple(
        Estimand(level, "multinomial", "left", "age", adjust=("sex",), outcome_level=level)
        for level in ("died", "ward")
    )
    found = plan(Structured(), schema, 100, ASKED, asked)
    [drawn] = found.outcomes
    assert (drawn.levels, drawn.contrasts) == (("died", "ward"), 3)
    assert found.covariates == ("age", "sex")
    grids = make_grids(schema, (drawn,))
    alike = replace(drawn, contrasts=1)
    assert most_score(grids, drawn) == most_score(grids, alike) + 2 * most_columns(grids)
    # Both levels' estimands plant the same, into the logits of all levels against the first.
    assert [effect.text for effect in found.effects] == ["left ~ age"]


def test_a_count_has_one_exposure() -> None:
    schema = Schema((VISITS, YEARS, AGE, SEX, Column("beds", "integer", 1, 99)))
    one = rate("one", "age")
    assert Structured().problems(schema, (one, rate("two", "sex"))) == []
    for other in ("", "beds"):
        [problem] = Structured().problems(schema, (one, rate("two", "sex", other)))
        assert "differ" in str(problem)
        with pytest.raises(InvalidInput, match="differ"):
            plan(Structured(), schema, 100, ASKED, (one, rate("two", "sex", other)))


def test_strata_have_baselines_of_their_own_where_all_estimands_name_the_same() -> None:
    ward = Column("ward", "categorical", levels=("a", "b", "c"))
    schema, strata = Schema((*OUTCOME, AGE, SEX, ward)), ("sex", "ward")

    def drawn(*named: tuple[str, ...]) -> tuple[str, ...]:
        asked = tuple(
            Estimand(f"e{i}", "cox", "t", "age", strata=names) for i, names in enumerate(named)
        )
        [found] = list_outcomes(schema, asked)
        return found.strata

    assert drawn(strata) == drawn(strata, ("ward", "sex")) == ("sex", "ward")
    assert drawn(strata, ("ward",)) == drawn(strata, ()) == drawn(()) == ()
    # An intercept of its own is no baseline.
    [number, time] = list_outcomes(schema, (Estimand("e", "ols", "age", "sex", strata=("ward",)),))
    assert (number.column, number.strata, time.strata) == ("age", (), ())


def test_a_score_has_room_for_baselines_of_strata_unless_they_are_too_many() -> None:
    wide = [Column(n, "categorical", levels=tuple("abcdefg")) for n in ("v", "w")]
    schema = Schema((*OUTCOME, AGE, *wide))

    def size(*strata: str) -> int:
        asked = Estimand("e", "cox", "t", "age", strata=strata)
        [found] = plan(Structured(), schema, 100, ASKED, (asked,)).outcomes
        return most_score(make_grids(schema), found)

    assert size("v") == size() + 7 * 4
    assert size("v", "w") == size()


def test_how_many_baselines_follows_from_public_numbers() -> None:
    assert count_deviations(1) == 0
    assert count_deviations(2) == count_deviations(20) == 4
    assert count_deviations(21) == 0
    assert count_deviations(3, 3000, 4.0) == 4
    assert count_deviations(3, 300, 4.0) == count_deviations(3, 3000, 40.0) == 0


def test_a_score_has_room_for_what_is_declared_whatever_is_released() -> None:
    """Of events and of censoring: six columns of products of levels, and two bends."""
    wide = [Column(n, "categorical", levels=tuple("abcd"[:k])) for n, k in (("v", 3), ("w", 4))]
    grids = make_grids(Schema((*OUTCOME, AGE, *wide)))
    asked = Estimand("e", "cox", "t", "v[b]:w[c]", adjust=("spline(age, 3)",))
    found = plan(Structured(), Schema((*OUTCOME, AGE, *wide)), 100, ASKED, (asked,))
    [drawn] = found.outcomes
    plain = most_score(grids, replace(drawn, extras=()))
    assert most_score(grids, drawn) == plain + 2 * (6 + 2)
    assert {m.size for m in found.rounds} == {most_score(grids, drawn)}


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

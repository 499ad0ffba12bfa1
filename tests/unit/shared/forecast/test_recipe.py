"""A cohort drawn from planning values has the shares, means and effects that were planned.

Draws have a fixed seed; tolerances are six standard errors of 40 000 rows, or wider.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.base.errors import InvalidInput
from penstock.forecast.recipe import CENSORED, EVENTS, SPIKED, make_recipe
from penstock.mechanisms.structured.settings import Structured
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Column, Schema
from penstock.study.planning import NOTHING, Planning
from penstock.study.study import Study

ROWS = 40_000
SCHEMA = Schema(
    (
        Column("age", "continuous", 18, 100, decimals=1),
        Column("sbp", "continuous", 70, 250, decimals=0, nullable=True),
        Column("crp", "continuous", 0, 500, decimals=1, scale="log"),
        Column("cigarettes", "integer", 0, 80, spike=0),
        Column("smoker", "binary"),
        Column("ward", "categorical", levels=("a", "b", "c")),
        Column("grade", "ordered", levels=("1", "2", "3", "4")),
        Column("visits", "integer", 0, 200),
        Column("ill", "binary"),
        Column("score", "continuous", -100, 100, decimals=3),
        Column("time", "duration", upper=10, decimals=3, event="died"),
        Column("died", "event"),
    )
)
EFFECTS = {
    "cox": (Estimand("cox", "cox", "time", "sbp", per=10, adjust=("smoker",)), 0.2),
    "level": (Estimand("level", "cox", "time", "ward", adjust=("sbp", "smoker"), level="c"), -0.5),
    "smoking": (Estimand("smoking", "cox", "time", "smoker", adjust=("sbp", "ward")), 0.6),
    "logistic": (Estimand("logistic", "logistic", "ill", "score", per=10, adjust=("age",)), 0.4),
    "poisson": (Estimand("poisson", "poisson", "visits", "smoker", adjust=("age",)), 0.5),
    "ols": (Estimand("ols", "ols", "score", "age", per=10, adjust=("smoker",)), 3.0),
}
PLANNED = {
    "columns": {
        "age": {"mean": 62, "sd": 10, "correlations": {"sbp": 0.4, "smoker": -0.3}},
        "sbp": {"mean": 130, "sd": 18, "missing": 0.1},
        "crp": {"mean": 6, "sd": 12},
        "cigarettes": {"mean": 15, "sd": 8, "spike": 0.7},
        "smoker": {"shares": [0.8, 0.2]},
        "ward": {"shares": [0.5, 0.3, 0.2]},
        "grade": {"shares": [0.1, 0.2, 0.3, 0.4]},
        "visits": {"mean": 4, "sd": 4},
        "ill": {"shares": [0.9, 0.1]},
        "score": {"mean": 5, "sd": 12},
        "time": {"events": 0.25, "censored": 0.3},
    },
    "effects": {name: size for name, (_, size) in EFFECTS.items()},
}


def study(planning: Planning) -> Study:
    return Study(
        "s", "t", "f", ("a",), SCHEMA, tuple(e for e, _ in EFFECTS.values()),
        PrivacyRequest(1.0, 1e-5), Structured(), 1, 24.0, "2026-11-21T00:00:00Z",
        "2026-12-21T00:00:00Z", planning=planning,
    )  # fmt: skip


def drawn(planning: Planning, seed: int = 1) -> dict[str, np.ndarray]:
    return make_recipe(study(planning)).draw(ROWS, np.random.default_rng(seed))


TABLE = drawn(Planning.from_dict(PLANNED))


def test_every_value_is_one_that_its_column_can_hold() -> None:
    for table in (TABLE, drawn(NOTHING)):
        assert tuple(table) == SCHEMA.names
        for column in SCHEMA.columns:
            values = table[column.name]
            np.testing.assert_array_equal(values, column.snap(values))
            assert np.isnan(values).any() == (column.name == "sbp" and table is TABLE)


@pytest.mark.parametrize(
    ("name", "mean", "sd"),
    [("age", 62, 10), ("sbp", 130, 18), ("crp", 6, 12), ("visits", 4, 4), ("score", 5, 12)],
)
def test_numbers_have_their_mean_and_sd(name: str, mean: float, sd: float) -> None:
    values = TABLE[name][~np.isnan(TABLE[name])]
    assert values.mean() == pytest.approx(mean, abs=6 * sd / 200 + 0.02)
    assert values.std() == pytest.approx(sd, rel=0.15 if name == "crp" else 0.06)


def test_a_spike_stands_beside_the_other_values() -> None:
    held = TABLE["cigarettes"] == 0
    assert held.mean() == pytest.approx(0.7, abs=0.02)
    assert TABLE["cigarettes"][~held].mean() == pytest.approx(15, abs=0.5)


@pytest.mark.parametrize("name", ["smoker", "ward", "grade", "ill"])
def test_levels_have_their_shares(name: str) -> None:
    planned = PLANNED["columns"][name]["shares"]  # type: ignore[index]
    found = np.bincount(TABLE[name].astype(int), minlength=len(planned)) / ROWS
    np.testing.assert_allclose(found, planned, atol=0.02)


def test_who_has_the_event_who_is_lost_and_who_is_followed_to_the_end() -> None:
    time, died = TABLE["time"], TABLE["died"] == 1
    assert died.mean() == pytest.approx(0.25, abs=0.015)
    assert (~died & (time < 10)).mean() == pytest.approx(0.3, abs=0.015)
    assert (~died & (time == 10)).mean() == pytest.approx(0.45, abs=0.015)


def test_correlations_are_of_normal_scores() -> None:
    there = ~np.isnan(TABLE["sbp"])
    found = np.corrcoef(TABLE["age"][there], TABLE["sbp"][there])[0, 1]
    assert found == pytest.approx(0.4, abs=0.03)
    assert np.corrcoef(TABLE["age"], TABLE["smoker"])[0, 1] < -0.15
    assert abs(np.corrcoef(TABLE["age"], TABLE["grade"])[0, 1]) < 0.03


@pytest.mark.parametrize("name", EFFECTS)
def test_a_fit_finds_the_planned_effect(name: str) -> None:
    asked, size = EFFECTS[name]
    found = estimate(TABLE, SCHEMA, asked)
    # A factor on the counts makes their errors larger than a Poisson model's, about twice here.
    assert abs(found.estimate - size) < 6 * 2 * found.variance**0.5
    assert found.variance**0.5 < abs(size) / 5


@pytest.mark.parametrize("name", EFFECTS)
def test_an_effect_that_nobody_plans_is_none(name: str) -> None:
    found = estimate(drawn(NOTHING, 2), SCHEMA, EFFECTS[name][0])
    assert abs(found.estimate) < 6 * 2 * found.variance**0.5


def test_what_stands_for_values_that_are_not_said() -> None:
    table = drawn(NOTHING)
    assert table["age"].mean() == pytest.approx(59, abs=0.5)
    assert table["age"].std() == pytest.approx(82 / 6, rel=0.05)
    assert np.median(table["crp"]) < 0.1 * table["crp"].max()
    assert table["grade"].mean() == pytest.approx(1.5, abs=0.05)
    assert (table["cigarettes"] == 0).mean() == pytest.approx(SPIKED, abs=0.03)
    assert table["died"].mean() == pytest.approx(EVENTS, abs=0.015)
    lost = (table["died"] == 0) & (table["time"] < 10)
    assert lost.mean() == pytest.approx(CENSORED, abs=0.015)


def test_nobody_needs_to_reach_the_end() -> None:
    planned = Planning.from_dict({"columns": {"time": {"events": 0.4, "censored": 0.6}}})
    table = drawn(replace(planned))
    assert table["died"].mean() == pytest.approx(0.4, abs=0.02)
    assert (table["time"] == 10).mean() < 0.005


def test_a_product_and_a_subgroup_have_effects_of_their_own() -> None:
    asked = {
        "both": (Estimand("both", "ols", "score", "age:smoker", adjust=("sbp",)), 0.4),
        "all": (Estimand("all", "cox", "time", "sbp", per=10, adjust=("age",)), 0.1),
        "few": (Estimand("few", "cox", "time", "sbp", per=10, where="ward == 'c'"), 0.4),
    }
    planned = Planning.from_dict(
        {
            "columns": {**PLANNED["columns"], "score": {"sd": 12}},  # type: ignore[dict-item]
            "effects": {name: size for name, (_, size) in asked.items()},
        }
    )
    made = replace(study(NOTHING), estimands=tuple(e for e, _ in asked.values()), planning=planned)
    table = make_recipe(made).draw(ROWS, np.random.default_rng(3))
    for name in ("both", "few"):
        found = estimate(table, SCHEMA, asked[name][0])
        assert abs(found.estimate - asked[name][1]) < 6 * found.variance**0.5
        assert found.variance**0.5 < asked[name][1] / 5
    others = Estimand("others", "cox", "time", "sbp", per=10, where="ward != 'c'")
    found = estimate(table, SCHEMA, others)
    assert abs(found.estimate - 0.1) < 6 * found.variance**0.5


def test_what_is_planned_of_a_subgroup_may_differ_from_all_rows_alone() -> None:
    twice = tuple(
        Estimand(name, "cox", "time", "sbp", adjust=adjust)
        for name, adjust in (("one", ()), ("two", ("age",)))
    )
    with pytest.raises(InvalidInput, match="another estimand of the same outcome and term"):
        replace(
            study(NOTHING),
            estimands=twice,
            planning=Planning.from_dict({"effects": {"one": 0.1, "two": 0.2}}),
        )


def test_a_ratio_beyond_all_that_exists_is_refused_by_name() -> None:
    """It was an overflow, and an error of Penstock's own. Per 10 mmHg, 900 was meant as a mean."""
    effects = {"cox": 900.0, "ols": 3.0}
    with pytest.raises(InvalidInput) as caught:
        make_recipe(study(Planning.from_dict({"effects": effects})))
    (found,) = caught.value.problems
    assert (found.where, found.value) == ("planning.effects.cox", "900")
    assert "logarithm of the ratio" in (found.remedy or "")


def test_a_count_is_in_proportion_to_its_exposure() -> None:
    """With an effect and without one; its mean stays as planned."""
    schema = Schema((*SCHEMA.columns, Column("years", "continuous", 0.5, 10, decimals=1)))
    asked = Estimand("rate", "negative-binomial", "visits", "smoker", exposure="years")
    for effect in (0.0, 0.5):
        planned = PLANNED["columns"] | {"years": {"mean": 4, "sd": 2}}
        planning = Planning.from_dict({"columns": planned, "effects": {"rate": effect}})
        made = replace(study(NOTHING), schema=schema, estimands=(asked,), planning=planning)
        table = make_recipe(made).draw(ROWS, np.random.default_rng(3))
        assert table["visits"].mean() == pytest.approx(4, rel=0.05)
        found = estimate(table, schema, asked)
        assert found.estimate == pytest.approx(effect, abs=6 * found.variance**0.5)
        long = table["years"] > 5
        rates = [table["visits"][of].sum() / table["years"][of].sum() for of in (long, ~long)]
        assert rates[0] / rates[1] == pytest.approx(1, abs=0.06)

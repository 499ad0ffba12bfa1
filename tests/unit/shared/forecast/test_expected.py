"""What a forecast says is what the mechanism does, and it follows from a study and sizes alone."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.base.errors import InvalidInput
from penstock.forecast.expected import AtSize, Expected, Forecast, forecast, pool, suggest
from penstock.mechanisms import Gibbs, Maf, Trajectory
from penstock.mechanisms.parts import Part
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.mechanisms.released import name_copy
from penstock.mechanisms.structured.mechanism import STRUCTURED
from penstock.mechanisms.structured.settings import Structured
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.study.planning import Planning
from penstock.study.study import Study

SCHEMA = Schema(
    (
        Column("age", "continuous", 18, 100, decimals=1),
        Column("smoker", "binary"),
        Column("score", "continuous", -100, 100, decimals=3),
        Column("bmi", "continuous", 10, 60, decimals=1),
    )
)
ASKED = Estimand("ageing", "ols", "score", "age", per=10, adjust=("smoker",))
COPIES = 2


def study(**changes: Any) -> Study:
    planned = {
        "columns": {"score": {"mean": 0, "sd": 10}, "age": {"mean": 60, "sd": 8}},
        "effects": {"ageing": 2.0},
    }
    made = Study(
        "s", "t", "f", ("a", "b", "c"), SCHEMA, (ASKED,), PrivacyRequest(1.0, 1e-5),
        Structured(copies=COPIES, refits=1), 1, 24.0, "2026-11-21T00:00:00Z",
        "2026-12-21T00:00:00Z", planning=Planning.from_dict(planned),
    )  # fmt: skip
    return replace(made, **changes)


class Toy(type(STRUCTURED)):  # type: ignore[misc]
    """Releases the rows themselves, drawn again; ``kept``: what it keeps of an effect of age."""

    kept = 1.0
    rounds = 0

    def run(
        self, plan: Any, encoding: Any, rows: Any, present: Any, noise: Any, **_: object
    ) -> Iterator[Part]:
        there = rows.reshape(-1, encoding.d)[present.ravel()]
        coded = encoding.decode(there)
        rng = noise.generator()
        for copy in range(plan.copies):
            self.rounds += 1
            at = rng.integers(len(there), size=len(there))
            table = {name: values[at] for name, values in coded.items()}
            table["score"] = table["score"] - 0.2 * (1 - self.kept) * (table["age"] - 60)
            for half in np.array_split(np.arange(len(there)), 2):  # a part may come in pieces
                piece = {name: values[half] for name, values in table.items()}
                yield Part(name_copy(copy + 1), piece)
        if plan.refits or plan.planted or plan.effects:
            raise AssertionError("a forecast waits for what it does not need")


def toys(toy: Toy) -> Registry:
    return Registry(toy, default=toy.name)


RUNS = 300
"""A root mean square of so many is known to 4 %; tolerances are six of these."""


def test_what_is_released_is_compared_with_the_rows_own_estimates() -> None:
    """Rows that are drawn again m times are off by s/√m, and by nothing on one side."""
    made = forecast(study(), {"a": 400}, runs=RUNS, mechanisms=toys(Toy()))
    found = made.sites["a"].expected["ageing"]
    residual = math.sqrt(10**2 - (2.0 * 0.8) ** 2)
    assert found.sampling == pytest.approx(residual / math.sqrt(400) / 0.8, rel=0.02)
    assert found.privacy / found.sampling == pytest.approx(1 / math.sqrt(COPIES), rel=0.24)
    assert abs(found.bias) < 6 * found.privacy / math.sqrt(RUNS)
    assert not found.bias_found(RUNS)
    assert found.times < 0.45  # it is all the drawing of copies
    assert found.failed == 0
    assert made.precision == pytest.approx(1 / math.sqrt(2 * RUNS))


def test_an_effect_that_is_lost_shows() -> None:
    toy = Toy()
    toy.kept = 0.25
    found = forecast(study(), {"a": 2000}, runs=40, mechanisms=toys(toy)).sites["a"]
    lost = found.expected["ageing"]
    assert lost.bias == pytest.approx(-0.75 * 2.0, abs=0.3)
    assert lost.privacy == pytest.approx(0.75 * 2.0, abs=0.3)
    assert lost.bias_found(40)
    assert not lost.had


def test_sites_of_one_size_are_looked_at_once_and_all_are_pooled() -> None:
    toy, told = Toy(), []
    made = forecast(
        study(), {"a": 400, "b": 400, "c": 900}, runs=10, mechanisms=toys(toy),
        progress=lambda done, of: told.append((done, of)),
    )  # fmt: skip
    assert told == [(i, 20) for i in range(1, 21)]
    assert toy.rounds == 20 * COPIES
    assert made.sites["a"] is made.sites["b"]
    first, last = (made.sites[site].expected["ageing"] for site in "ac")
    all_of = made.pooled["ageing"]
    assert all_of.total == pytest.approx(1 / math.sqrt(2 / first.total**2 + 1 / last.total**2))
    assert all_of.sampling == pytest.approx(
        1 / math.sqrt(2 / first.sampling**2 + 1 / last.sampling**2)
    )
    shown = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert list(shown["estimands"]["ageing"]["sites"]) == ["a", "b", "c"]
    assert shown["estimands"]["ageing"]["pooled"]["total"] == all_of.total


def test_a_forecast_follows_from_a_study_and_sizes_alone() -> None:
    """Nothing else goes in; and the same gives the same, whoever asks, at whatever site."""
    taken = list(inspect.signature(forecast).parameters)
    assert taken == ["study", "persons", "runs", "progress", "mechanisms"]
    once = forecast(study(), {"a": 300}, runs=4)
    again = forecast(study(), {"b": 300}, runs=4)
    assert once.sites["a"] == again.sites["b"]
    assert (
        once.to_dict()["estimands"]["ageing"]["pooled"]
        == (again.to_dict()["estimands"]["ageing"]["pooled"])
    )


def test_a_frame_that_is_half_full_holds_half_as_many() -> None:
    half = replace(study().planning, filled=0.5)
    full = forecast(study(), {"a": 400}, runs=40, mechanisms=toys(Toy()))
    less = forecast(study(planning=half), {"a": 800}, runs=40, mechanisms=toys(Toy()))
    ratio = (
        less.sites["a"].expected["ageing"].sampling / full.sites["a"].expected["ageing"].sampling
    )
    assert ratio == pytest.approx(1, rel=0.03)


def test_columns_that_no_estimand_needs_are_left_out_where_noise_is_large() -> None:
    toy = Toy()
    toy.kept = 0.0
    made = forecast(study(), {"a": 2000}, runs=4, mechanisms=toys(toy))
    assert made.unneeded == ("bmi",)
    assert made.without is not None
    assert made.without.persons == 2000
    assert toy.rounds == 2 * 4 * COPIES
    assert made.to_dict()["unneeded"]["columns"] == ["bmi"]
    assert forecast(study(), {"a": 400}, runs=10, mechanisms=toys(Toy())).without is None


LIVES = Schema(
    (
        Column("years", "duration", 0, 10, decimals=2, event="died"),
        Column("died", "event"),
        Column("age", "continuous", 18, 100, decimals=1),
        Column("smoker", "binary"),
        Column("bmi", "continuous", 10, 60, decimals=1),
    )
)
HAZARD = Estimand("hazard", "cox", "years", "age", per=10)


def test_what_is_planted_changes_no_forecast_and_needs_its_columns() -> None:
    planned = Planning.from_dict({"effects": {"hazard": 0.3}})
    plain = study(
        schema=LIVES,
        estimands=(HAZARD,),
        planning=planned,
        mechanism=Structured(copies=COPIES, refits=0, planted=0),
    )
    planting = Structured(copies=COPIES, refits=0, planted=12, effects=("years ~ age:smoker",))
    planted = replace(plain, mechanism=planting)
    without, found = forecast(plain, {"a": 300}, runs=4), forecast(planted, {"a": 300}, runs=4)
    assert found.sites == without.sites
    assert (without.unneeded, found.unneeded) == (("smoker", "bmi"), ("bmi",))


def test_what_a_site_repeats_is_left_out_and_costs_the_same() -> None:
    asked = study(schema=LIVES, estimands=(HAZARD,), planning=Planning()).asked
    whole = [Maf(copies=COPIES), Structured(copies=COPIES, effects=("years ~ bmi",)), Gibbs()]
    for settings in whole:
        mechanism = MECHANISMS.of(settings)
        brief = mechanism.without_repeats(settings)
        assert (brief.copies, brief.refits) == (settings.copies, 0)
        priced = [mechanism.plan(replace(asked, settings=s), 500).events for s in (settings, brief)]
        assert priced[0] == priced[1]


def test_tables_of_a_share_of_the_rows_are_foreseen_as_such() -> None:
    """A count is of all rows; what is drawn of fewer rows is no part of the mechanism's noise."""
    asked = Estimand("smokers", "count", "smoker", outcome_level="1")
    whole = study(
        schema=LIVES,
        estimands=(asked, HAZARD),
        planning=Planning.from_dict({"effects": {"hazard": 0.3}}),
        mechanism=Structured(copies=COPIES, refits=0, planted=0),
        privacy=PrivacyRequest(20.0, 1e-5),
    )
    fewer = replace(whole, mechanism=replace(whole.mechanism, most_rows=150))
    found = {s.mechanism: forecast(s, {"a": 600}, runs=8).sites["a"] for s in (whole, fewer)}
    for at in found.values():
        assert abs(at.expected["smokers"].bias) < 40, "of about 300"
    own, other = (found[s.mechanism].expected["hazard"] for s in (whole, fewer))
    assert other.privacy > own.privacy
    assert other.noise < other.privacy


def one(sampling: float, privacy: float, **more: Any) -> Expected:
    return Expected(sampling, privacy, more.get("noise", privacy), 0.0, more.get("failed", 0))


def test_what_would_do_is_the_law_of_noise_and_sampling() -> None:
    """Noise k times as large as the sampling error: k ε, or k² n, and never rounded down."""
    found = one(0.1, 0.25, noise=0.24)
    assert suggest(found, 1.0, 1000) == {"epsilon": 2.4, "persons": 5800}
    assert suggest(one(0.1, 0.1), 1.0, 1000) is None
    # With so many more persons both fall to one size.
    k, n = found.times, 1000 * found.times**2
    assert 0.24 * 1000 / n == pytest.approx(0.1 * math.sqrt(1000 / n))
    assert k == pytest.approx(2.4)


def test_power_is_the_chance_that_an_interval_does_not_hold_nothing() -> None:
    assert one(0.1, 0.0).power(0.0) == pytest.approx(0.05, abs=1e-6)
    assert one(0.1, 0.0).power(0.196) == pytest.approx(0.5, abs=1e-3)
    assert one(0.06, 0.08).power(-0.28) == one(0.1, 0.0).power(0.28) > 0.79


def test_a_site_without_an_estimate_is_left_out_of_the_pool() -> None:
    nan = math.nan
    none = AtSize(50, {"e": Expected(nan, nan, nan, nan, 4)})
    some = AtSize(500, {"e": one(0.1, 0.1)})
    assert pool([none], "e") is None
    found = pool([none, some], "e")
    assert found is not None
    assert found.total == pytest.approx(math.hypot(0.1, 0.1))
    made = Forecast(study(estimands=(replace(ASKED, name="e"),), planning=Planning()), 4,
                    {"a": none}, {})  # fmt: skip
    shown = made.to_dict()["estimands"]["e"]
    assert shown["sites"]["a"] == {"persons": 50, "failed": 4, "sampling": None}
    assert shown["pooled"]["sampling"] is None
    json.dumps(made.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "persons", "runs", "says"),
    [
        ({}, {}, 10, "no site's size is known"),
        ({}, {"nobody": 10}, 10, "not a site of the study"),
        ({}, {"a": 0}, 10, "whole number from 1"),
        ({}, {"a": 100}, 3, "whole number from 4"),
        ({"estimands": (), "planning": Planning()}, {"a": 100}, 4, "nothing can be expected"),
        ({"mechanism": Gibbs()}, {"a": 100}, 4, "no tables"),
    ],
)
def test_what_cannot_be_forecast_is_refused(
    changes: dict[str, Any], persons: dict[str, int], runs: int, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        forecast(study(**changes), persons, runs=runs)


@pytest.mark.parametrize(
    ("privacy", "epsilon"),
    [
        (PrivacyRequest(math.inf, 1e-5, "empirical"), None),
        (PrivacyRequest(8.0, 1e-5, "public-flow"), 8),
    ],
)
def test_every_class_of_guarantee_has_a_forecast(
    privacy: PrivacyRequest, epsilon: float | None
) -> None:
    """Where the flow comes from public rows, these are made up, too."""
    small = Maf(copies=COPIES, refits=1, steps=4, flows=1, hidden=(4,), w=0.1)
    made = forecast(study(mechanism=small, privacy=privacy), {"a": 100}, runs=4)
    shown = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert shown["epsilon"] == epsilon
    assert made.sites["a"].expected["ageing"].estimated
    assert suggest(one(0.1, 0.2), math.inf, 100) == {"epsilon": None, "persons": 400}


def test_persons_over_time_are_not_forecast_and_named() -> None:
    """Planning values say nothing of what a person's rows have in common."""
    visit = Column("visit", "integer", 0, 2)
    schema = replace(SCHEMA, columns=(visit, *SCHEMA.columns), person="id", max_rows_per_person=3)
    change = Estimand("change", "change", "score", at=0, until=2)
    paths = Trajectory("visit", copies=COPIES, refits=0, particles=4, paths=2, path_times=3)
    asked = study(schema=schema, mechanism=paths, estimands=(ASKED, change))
    found = forecast(asked, {"a": 200}, runs=4)
    assert found.to_dict()["not_forecast"] == ["change"]
    assert [*found.to_dict()["estimands"]] == ["ageing"]
    assert "visit" in found.unneeded
    assert "score" not in found.unneeded
    alone = replace(asked, estimands=(change,), planning=Planning())
    with pytest.raises(InvalidInput, match="all of persons over time"):
        forecast(alone, {"a": 200}, runs=4)

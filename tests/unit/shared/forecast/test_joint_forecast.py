"""A forecast of one release of all sites: one place with all rows, the noise of all, and strata."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.support import made

from penstock.forecast.expected import TOGETHER, Forecast, forecast
from penstock.mechanisms import Scoring, Structured
from penstock.mechanisms.joint.plan import JointPlan
from penstock.study.charges import plan_study
from penstock.study.scope import GLOBAL, LEAST_WIRE, Scope
from penstock.study.study import Study

RUNS = 6
NAMES = ("east", "north", "south", "west")
KEYS = tuple((name, f"{i + 1:064x}") for i, name in enumerate(NAMES))


def make(settings: Any, persons: int = 500, noise: str = "shared", **changes: Any) -> Study:
    sizes = tuple((name, persons) for name in NAMES)
    scope = Scope(GLOBAL, 1, 0 if noise == "local" else 1, sizes, KEYS, noise)
    study = made.study(settings)
    return replace(study, sites=NAMES, quorum=3, aggregation=scope, wire=LEAST_WIRE, **changes)


def expect(found: Forecast) -> Any:
    assert list(found.sites) == [TOGETHER]
    return found.sites[TOGETHER].expected["falls"]


@pytest.mark.parametrize(
    "settings", [Scoring(), Structured(copies=2, refits=0, planted=0)], ids=lambda s: s.name
)
def test_one_release_is_forecast_as_one_place_with_all_rows(settings: Any) -> None:
    study = make(settings)
    found = forecast(study, {}, runs=RUNS)
    planned = plan_study(study, 1)
    assert isinstance(planned, JointPlan)
    assert found.joint is not None
    assert found.joint.events == planned.events
    assert found.sites[TOGETHER].persons == 2000
    joint = expect(found)
    apart = forecast(made.study(settings), {"north": 2000}, runs=RUNS).sites["north"]
    # Sampling is that of as many persons in one place; strata cost next to nothing.
    assert joint.sampling == pytest.approx(apart.expected["falls"].sampling, rel=0.1)
    assert 0 < joint.privacy < math.inf
    shown = found.to_dict()["joint"]
    assert shown["rounds"] == planned.rounds
    assert shown["alone_epsilon"] == planned.epsilon_alone > shown["epsilon"]


def test_noise_falls_with_persons_and_grows_with_what_is_not_trusted() -> None:
    """The same cohorts: local noise is √S, and shared noise √(S/2) times that of one place."""
    shared = forecast(make(Scoring()), {}, runs=RUNS)
    local = forecast(make(Scoring(), noise="local"), {}, runs=RUNS)
    assert expect(local).noise > expect(shared).noise
    larger = forecast(make(Scoring()), dict.fromkeys(NAMES, 4000), runs=RUNS)
    assert larger.sites[TOGETHER].persons == 16000
    assert expect(larger).noise < expect(shared).noise
    assert local.to_dict()["joint"]["alone_epsilon"] == local.to_dict()["joint"]["epsilon"]


def test_each_frame_is_filled_as_far_as_is_planned() -> None:
    """Not the first sites whole and the last ones empty: each site has its share of persons."""
    study = make(Scoring())
    half = replace(study, planning=replace(study.planning, filled=0.5))
    full = expect(forecast(study, {}, runs=RUNS)).sampling
    assert expect(forecast(half, {}, runs=RUNS)).sampling == pytest.approx(
        full * math.sqrt(2), rel=0.15
    )

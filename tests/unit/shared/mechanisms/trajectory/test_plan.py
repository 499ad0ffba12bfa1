"""Trajectories before any row is read: settings, time points, noise and charges."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from penstock.base.errors import InvalidInput
from penstock.mechanisms import Trajectory
from penstock.mechanisms.trajectory.plan import plan, plan_whole
from penstock.mechanisms.trajectory.time_points import times_of
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.events import DiscreteGaussian, Gaussian, PoissonGaussian
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Column, Schema

VISIT = Column("visit", "integer", lower=0, upper=9)
YEARS = Column("years", "continuous", lower=0, upper=5, decimals=1)
WAVE = Column("wave", "ordered", levels=("first", "second", "third"))
HEIGHT = Column("height", "continuous", lower=50, upper=200)
SEX = Column("sex", "binary")
PRIVACY = PrivacyRequest(2.0, 1e-3)
GOLDEN = (2.542963795681222, 11.372479822928199)


def schema(time: Column, *others: Column, rows: int = 1) -> Schema:
    return Schema((time, *(others or (HEIGHT, SEX))), "id" if rows > 1 else None, rows)


@pytest.mark.parametrize(
    ("time", "settings", "count"),
    [
        (VISIT, {}, 10),
        (VISIT, {"points": 5}, 5),
        (YEARS, {"points": 12}, 12),
        (WAVE, {}, 3),
        (VISIT, {"subsample": 4}, 10),
    ],
)
def test_sound_studies_have_no_problems(time: Column, settings: Any, count: int) -> None:
    mechanism = Trajectory(time=time.name, **settings)
    assert mechanism.problems(schema(time), ()) == []
    assert times_of(mechanism, schema(time)).count == count


@pytest.mark.parametrize(
    ("columns", "settings", "where", "words"),
    [
        ((VISIT, HEIGHT), {"time": "vist"}, "time", "is not a column"),
        ((SEX, HEIGHT), {"time": "sex"}, "time", "is of kind 'binary'"),
        ((Column("visit", "integer", lower=0, upper=9, nullable=True), HEIGHT), {}, "time", "miss"),
        ((VISIT,), {}, "time", "only column"),
        ((YEARS, HEIGHT), {"time": "years"}, "points", "is missing"),
        ((Column("visit", "integer", lower=0, upper=900), HEIGHT), {}, "points", "is missing"),
        ((YEARS, HEIGHT), {"time": "years", "points": 52}, "points", "more than the column has"),
        ((WAVE, HEIGHT), {"time": "wave", "points": 3}, "points", "its levels"),
        ((VISIT, HEIGHT), {"subsample": 11}, "subsample", "more than there are time points"),
        (
            (VISIT, HEIGHT),
            {"start": "k-means", "modes": 60},
            "modes",
            "more than there are particles",
        ),
        (
            (
                Column("visit", "integer", lower=1, upper=200),
                *(Column(f"x{i}", "continuous", lower=0, upper=1) for i in range(60)),
            ),
            {"particles": 2000},
            "particles",
            "too many",
        ),
    ],
)
def test_what_study_and_schema_show_wrong_is_refused(
    columns: tuple[Column, ...], settings: Any, where: str, words: str
) -> None:
    mechanism = Trajectory(**{"time": "visit", **settings})
    problems = mechanism.problems(Schema(columns), ())
    assert any(p.where == where and words in p.message for p in problems), problems
    with pytest.raises(InvalidInput):
        plan(mechanism, Schema(columns), 100, PRIVACY)


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"points": 1}, "points"),
        ({"subsample": 1}, "subsample"),
        ({"modes": 3}, "modes"),
        ({"start": "k-means"}, "modes"),
        ({"start": "k-means", "modes": 101}, "modes"),
        ({"start": "wishful"}, "start"),
        ({"start_share": 1.0}, "start_share"),
        ({"start_share": math.nan}, "start_share"),
        ({"rate": 0.0}, "rate"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"particles": 1}, "particles"),
        ({"coupling": "loose"}, "coupling"),
        ({"time": ""}, "time"),
    ],
)
def test_settings_out_of_range_are_refused(settings: Any, where: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Trajectory(**{"time": "visit", **settings})
    assert where in {p.where for p in error.value.problems}


@pytest.mark.parametrize(("persons", "guarantee"), [(0, "formal"), (100, "public-flow")])
def test_a_plan_refuses_what_it_cannot_do(persons: int, guarantee: str) -> None:
    with pytest.raises(InvalidInput):
        plan(Trajectory(time="visit"), schema(VISIT), persons, PrivacyRequest(2, 1e-3, guarantee))


def test_fewer_persons_than_modes_are_refused() -> None:
    mechanism = Trajectory(time="visit", start="k-means", modes=5)
    with pytest.raises(InvalidInput):
        plan(mechanism, schema(VISIT), 4, PRIVACY)


@pytest.mark.parametrize(
    "settings",
    [{}, {"start": "public"}, {"start": "k-means", "modes": 3}, {"rate": 1.0}, {"steps": 7}],
)
def test_a_plan_costs_what_was_asked_and_little_less(settings: Any) -> None:
    made = plan(Trajectory(time="visit", **settings), schema(VISIT, rows=3), 500, PRIVACY)
    assert made.epsilon == epsilon(made.events, PRIVACY.delta)
    assert PRIVACY.epsilon * 0.999 < made.epsilon <= PRIVACY.epsilon


def test_the_events_are_the_noise_that_is_added() -> None:
    made = plan(Trajectory(time="visit"), schema(VISIT, rows=3), 500, PRIVACY)
    start, steps = made.events
    assert isinstance(start, DiscreteGaussian)
    assert isinstance(steps, PoissonGaussian)
    variance = (start.noise_multiplier * start.sensitivity) ** 2
    assert made.start.measurement is not None
    assert float(made.start.measurement.variance) == pytest.approx(variance)
    assert (steps.rate, steps.count) == (0.2, 60)
    assert steps.noise_multiplier == made.dynamics.sigma
    assert steps.sensitivity == made.dynamics.clip


def test_a_public_start_and_full_batches_are_one_gaussian() -> None:
    settings = {"start": "public", "rate": 1.0}
    made = plan(Trajectory(time="visit", **settings), schema(VISIT), 500, PRIVACY)
    (event,) = made.events
    assert isinstance(event, Gaussian)
    assert event.count == 60


def test_a_plan_of_whole_sums_is_one_gaussian_whatever_the_rate() -> None:
    """Golden: noise multipliers at (2, .001), by the accountant that gates; and the whole, as one
    Gaussian of μ² = 1/σ₀² + K/σ², by its exact curve."""
    made = plan_whole(Trajectory(time="visit", steps=30), schema(VISIT, rows=3), 500, PRIVACY)
    start, steps = made.events
    assert isinstance(start, DiscreteGaussian)
    assert isinstance(steps, DiscreteGaussian)
    assert (steps.count, made.dynamics.rate) == (30, 1.0)
    assert start.noise_multiplier == pytest.approx(GOLDEN[0], rel=1e-6)
    assert steps.noise_multiplier == pytest.approx(GOLDEN[1], rel=1e-6)
    mu = math.sqrt(1 / start.noise_multiplier**2 + 30 / steps.noise_multiplier**2)
    exact = ndtr(mu / 2 - 2 / mu) - math.exp(2.0) * ndtr(-mu / 2 - 2 / mu)
    assert 0.25 * PRIVACY.delta < exact <= PRIVACY.delta
    assert steps.size == 10 * 50 * made.start.dimension
    assert PRIVACY.epsilon * 0.999 < made.epsilon == epsilon(made.events, PRIVACY.delta) <= 2.0


def test_a_plan_is_pure_and_noise_does_not_depend_on_the_number_of_persons() -> None:
    few, many = (plan(Trajectory(time="visit"), schema(VISIT), n, PRIVACY) for n in (50, 5000))
    assert few.events == many.events
    assert few == plan(Trajectory(time="visit"), schema(VISIT), 50, PRIVACY)


def test_another_accountant_may_set_the_noise() -> None:
    settings = Trajectory(time="visit", rate=1.0)
    gate = plan(settings, schema(VISIT), 500, PRIVACY)
    tight = plan(settings, schema(VISIT), 500, PRIVACY, epsilon_pld)
    assert tight.dynamics.sigma < gate.dynamics.sigma
    assert tight.epsilon == epsilon_pld(tight.events, PRIVACY.delta) <= PRIVACY.epsilon


def test_planning_needs_no_torch() -> None:
    code = "import sys, penstock.mechanisms.trajectory.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Time points --------------------------------------------------------------------------------------


def test_whole_numbers_have_a_bin_each() -> None:
    times = times_of(Trajectory(time="visit"), schema(VISIT))
    np.testing.assert_array_equal(times.bins(np.arange(10.0)), np.arange(10))
    np.testing.assert_array_equal(times.bins(np.array([-3.0, 99.0, np.nan])), [0, 9, 0])
    np.testing.assert_array_equal(times.at(times.positions), np.arange(10))


def test_levels_are_their_own_bins_and_values_between_are_rounded() -> None:
    times = times_of(Trajectory(time="wave"), schema(WAVE))
    np.testing.assert_array_equal(times.bins(np.array([0.0, 1.0, 2.0])), [0, 1, 2])
    np.testing.assert_array_equal(times.at(np.array([0, 0.3, 0.5, 1.0])), [0, 1, 1, 2])


@pytest.mark.parametrize("points", [2, 7, 51])
def test_values_drawn_within_a_bin_are_of_it_and_on_the_grid(points: int) -> None:
    times = times_of(Trajectory(time="years", points=points), schema(YEARS))
    bins = np.repeat(np.arange(points), 200)
    values = times.within(bins, np.random.default_rng(0))
    np.testing.assert_array_equal(times.bins(values), bins)
    np.testing.assert_array_equal(values, YEARS.snap(values))
    assert values.min() >= 0
    assert values.max() <= 5


def test_subsampled_times_keep_both_ends() -> None:
    times = times_of(Trajectory(time="visit", subsample=4), schema(VISIT))
    assert times.used == (0, 3, 6, 9)
    np.testing.assert_allclose(times.positions, [0, 1 / 3, 2 / 3, 1])

"""Laws of measured dependence: each sensitivity holds, in whole numbers, and is attained."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from penstock.mechanisms.copula.grids import make_grid
from penstock.mechanisms.plans import plan
from penstock.mechanisms.tables.moments import whole_moments
from penstock.mechanisms.trajectory.coordinates import Places
from penstock.mechanisms.trajectory.followed import Followed, follow
from penstock.mechanisms.trajectory.headcounts import count_persons
from penstock.mechanisms.trajectory.repeats import RepeatsPlan
from penstock.mechanisms.trajectory.settings import Trajectory
from penstock.privacy.request import PrivacyRequest
from penstock.schema import Column, Schema

COLUMNS = (
    Column("visit", "integer", 0, 4),
    Column("x", "continuous", -2, 2),
    Column("g", "categorical", levels=("u", "v", "w"), nullable=True),
    Column("c", "integer", 0, 60, spike=0, scale="log"),
    Column("sex", "binary", varies=False),
    Column("born", "integer", 1920, 2000, varies=False),
)
TIMES = 5


def planned(k: int, epsilon: float = 1.0) -> RepeatsPlan:
    schema = Schema(COLUMNS, "id", k)
    found = plan(Trajectory("visit"), schema, 100, PrivacyRequest(epsilon, 1e-5))
    assert isinstance(found, RepeatsPlan)
    return found


def places() -> Places:
    grids = {c.name: make_grid(c) for c in COLUMNS}
    return Places([grids["sex"], grids["born"]], [grids[n] for n in ("x", "g", "c")], TIMES)


def persons(count: int, k: int, rng: np.random.Generator) -> Followed:
    """Persons with up to k rows, at whatever times."""
    rows = {
        "x": rng.uniform(-2, 2, (count, k)),
        "g": np.where(rng.random((count, k)) < 0.2, np.nan, rng.integers(0, 3, (count, k))),
        "c": rng.integers(0, 61, (count, k)) * 1.0,
        "sex": rng.integers(0, 2, (count, k)) * 1.0,
        "born": rng.integers(1920, 2001, (count, k)) * 1.0,
    }
    present, bins = rng.random((count, k)) < 0.8, rng.integers(0, TIMES, (count, k))
    return follow(rows, present, bins, TIMES, ("x", "g", "c"), ("sex", "born"))


@pytest.mark.parametrize("k", [2, 4, 9])
def test_a_persons_visits_move_the_counts_by_what_is_charged(k: int) -> None:
    """√(K(d + 1) + c + 3), attained by whoever is there as often as can be."""
    rng, charged, most = np.random.default_rng(1), planned(k).margins, 0
    for _ in range(60):
        many = persons(20, k, rng)
        counts = np.concatenate(count_persons(places(), many))
        many.there[0] = False
        moved = counts - np.concatenate(count_persons(places(), many))
        assert len(counts) == charged.size
        most = max(most, int((moved**2).sum()))
        assert most <= charged.squared
    assert charged.squared == min(k, TIMES) * 4 + 2 + 3
    if k == 9:  # of few rows some are often absent
        assert most == charged.squared


ENDED = (
    *COLUMNS,
    Column("years", "duration", upper=6, decimals=1, event="died", varies=False),
    Column("died", "event", varies=False),
)


def planned_end(k: int) -> RepeatsPlan:
    asked = Trajectory("visit", end="years")
    found = plan(asked, Schema(ENDED, "id", k), 100, PrivacyRequest(1.0, 1e-5))
    assert isinstance(found, RepeatsPlan)
    return found


@pytest.mark.parametrize("k", [2, 9])
def test_a_persons_end_moves_the_counts_by_what_is_charged(k: int) -> None:
    """√(K(d + 1) + c + 3 + 2·2²), attained by whoever is followed to the last visit."""
    rng, made, most = np.random.default_rng(4), planned_end(k), 0
    assert made.follow_up is not None
    laid = replace(places(), follow_up=made.follow_up)
    for _ in range(60):
        many = persons(20, k, rng)
        many.constants["years"] = rng.integers(0, 61, 20) / 10
        many.constants["died"] = rng.integers(0, 2, 20) * 1.0
        many = made.follow_up.cut(many)
        counts = np.concatenate(count_persons(laid, many))
        many.there[0] = False
        moved = counts - np.concatenate(count_persons(laid, many))
        assert len(counts) == made.margins.size
        most = max(most, int((moved**2).sum()))
        assert most <= made.margins.squared
    assert made.margins.squared == min(k, TIMES) * 4 + 2 + 3 + 8
    if k == 9:
        assert most == made.margins.squared
    assert made.told == planned(k).told + 2


def test_who_has_one_row_moves_the_counts_by_what_is_charged() -> None:
    """√(d + 2): one cell of each column, of the time point, and of all persons."""
    schema = Schema(COLUMNS, "id", 1)
    made = plan(Trajectory("visit", start="counts"), schema, 100, PrivacyRequest(1.0, 1e-5))
    assert isinstance(made, RepeatsPlan)
    grids = [make_grid(c) for c in COLUMNS[1:]]
    laid, rng, most = Places([], grids, TIMES, once=True), np.random.default_rng(5), 0
    for _ in range(20):
        many = persons(20, 1, rng)
        each = {n: np.repeat(x[:, None], TIMES, axis=1) for n, x in many.constants.items()}
        many = Followed(many.there, {**many.varying, **each}, {})
        counts = np.concatenate(count_persons(laid, many))
        many.there[0] = False
        moved = counts - np.concatenate(count_persons(laid, many))
        assert len(counts) == made.margins.size
        most = max(most, int((moved**2).sum()))
    assert most == made.margins.squared == len(grids) + 2


@pytest.mark.parametrize("k", [2, 9])
def test_a_person_is_one_vector_however_many_rows_it_has(k: int) -> None:
    """R² in the Frobenius norm, reached to .01 %."""
    made, rng, most = planned(k), np.random.default_rng(2), 0.0
    assert made.told == places().size
    for spread in (0.1, 1.0, 1e3):
        scores = rng.standard_normal((1, 1, made.told)) * spread
        total, unit = whole_moments(scores, np.ones((1, 1), bool), made.radius)
        moved = sum(int(v) ** 2 for v in total.ravel()) * Fraction(unit) ** 2
        assert moved <= made.moments.squared
        most = max(most, math.sqrt(moved / made.moments.squared))
    assert most > 1 - 1e-4
    assert math.isclose(made.moments.sensitivity, made.radius**2, rel_tol=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 30.0])
def test_a_plan_costs_what_is_asked_and_hardly_less(epsilon: float) -> None:
    assert 0.999 * epsilon < planned(4, epsilon).epsilon <= epsilon

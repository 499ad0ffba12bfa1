"""Aalen and Johansen's cumulative incidence against R's survival (tests/golden/data/
competing_risks.R), lifelines, and sums by hand.

Relative tolerance 1e-10: the largest deviation seen is 2e-14. lifelines moves times at which events
of both kinds lie by chance, and is compared where there are none.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lifelines import AalenJohansenFitter

from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.questions.fits.competing_risks import find_incidence
from penstock.questions.fits.kaplan_meier import SurvivalCourse
from penstock.questions.fits.table_model import Degenerate
from penstock.schema import Column, Schema

DATA = Path(__file__).parent / "data"
ORACLE: dict[str, Any] = json.loads((DATA / "competing_risks.json").read_text(encoding="utf-8"))
REL = 1e-10
SCHEMA = Schema(
    (
        Column("years", "duration", upper=10, event="ill"),
        Column("ill", "event"),
        Column("died", "binary"),
        Column("male", "binary"),
    )
)


def split(kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (kind == 1).astype(float), (kind == 2).astype(float)


@pytest.mark.parametrize("place", range(3))
def test_it_is_the_share_and_the_error_of_r_with_many_ties(place: int) -> None:
    time, kind = np.array(ORACLE["time"], dtype=float), np.array(ORACLE["kind"])
    share, variance = find_incidence(time, *split(kind), ORACLE["at"][place])
    assert share == pytest.approx(ORACLE["share"][place], rel=REL)
    assert math.sqrt(variance) == pytest.approx(ORACLE["error"][place], rel=REL)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("at", [1.0, 4.0, 9.0])
def test_it_is_that_of_lifelines_where_no_time_has_both_events(ties: bool, at: float) -> None:
    rng = np.random.default_rng(int(at))
    time, kind = rng.exponential(5, 300), rng.choice([0, 1, 2], 300, p=[0.3, 0.4, 0.3])
    if ties:  # of one kind: events at even tenths, competing ones at odd ones, others anywhere
        time = np.where(kind == 0, time, np.ceil(time * 5) / 5 + 0.1 * (kind == 2))
    fitted = AalenJohansenFitter().fit(time, kind, event_of_interest=1)
    curve = fitted.cumulative_density_.iloc[:, 0]
    row = curve.index[curve.index <= at].max()
    share, variance = find_incidence(time, *split(kind), at)
    assert share == pytest.approx(curve[row], rel=REL)
    assert variance == pytest.approx(fitted.variance_[row], rel=REL)


def test_ties_by_hand() -> None:
    """Six persons: at 1 an event, a competing one and one who leaves; at 2 an event; then two."""
    time = np.array([1.0, 1.0, 1.0, 2.0, 3.0, 3.0])
    event, other = np.array([1.0, 0, 0, 1, 0, 0]), np.array([0.0, 1, 0, 0, 0, 0])
    share, variance = find_incidence(time, event, other, 2.5)
    # S(1-) = 1, S(1) = 4/6; at 2 one of three: F = 1/6 + 4/6 · 1/3.
    assert share == pytest.approx(1 / 6 + 2 / 9, rel=REL)
    p = (2 / 9) / (4 / 6)
    first = ((1 - p) ** 2 * 5 + p**2 * 5 + 2 * p * (1 - p)) / 6**3
    second = (4 / 6) ** 2 * 2 / 3**3
    assert variance == pytest.approx(first + second, rel=REL)


def test_the_variance_is_the_delta_methods_of_multinomial_times() -> None:
    """F as a function of each time's shares of events, and its derivatives by differences."""
    rng = np.random.default_rng(7)
    time, kind = rng.integers(1, 9, 200) * 1.0, rng.choice([0, 1, 2], 200, p=[0.4, 0.4, 0.2])
    times = np.arange(1.0, 7.0)
    risk = np.array([(time >= t).sum() for t in times])
    hazards = np.array([[((time == t) & (kind == k)).sum() for k in (1, 2)] for t in times])
    hazards = hazards / risk[:, None]

    def find_share(each: np.ndarray) -> float:
        before = np.append(1.0, np.cumprod(1 - each.sum(axis=1))[:-1])
        return float((before * each[:, 0]).sum())

    variance = 0.0
    for row, n in enumerate(risk):
        slopes = np.zeros(2)
        for column in range(2):
            step = np.zeros_like(hazards)
            step[row, column] = 1e-6
            slopes[column] = (find_share(hazards + step) - find_share(hazards - step)) / 2e-6
        own = hazards[row]
        variance += slopes @ ((np.diag(own) - np.outer(own, own)) / n) @ slopes
    share, found = find_incidence(time, *split(kind), 6.5)
    assert share == pytest.approx(find_share(hazards), rel=REL)
    assert found == pytest.approx(variance, rel=1e-7)


def test_without_a_competing_event_it_is_what_survival_leaves() -> None:
    rng = np.random.default_rng(3)
    time, event = np.ceil(rng.exponential(5, 300)), (rng.random(300) < 0.6).astype(float)
    share, variance = find_incidence(time, event, np.zeros(300), 4.0)
    survived = SurvivalCourse().fit(
        (time, event), Estimand("s", "survival", "years", at=4.0), SCHEMA
    )
    assert math.log(share / (1 - share)) == pytest.approx(-survived.coefficient, rel=REL)
    assert variance / (share * (1 - share)) ** 2 == pytest.approx(survived.variance, rel=REL)


def test_of_everybody_followed_it_is_a_share() -> None:
    rng = np.random.default_rng(5)
    time, kind = rng.integers(1, 9, 200) * 1.0, rng.choice([1, 2], 200)
    share, variance = find_incidence(time, *split(kind), 5.0)
    plain = float(((time <= 5) & (kind == 1)).mean())
    assert share == pytest.approx(plain, rel=REL)
    assert variance == pytest.approx(plain * (1 - plain) / 200, rel=REL)


def test_a_row_with_both_events_has_had_the_event() -> None:
    rng = np.random.default_rng(6)
    time, kind = rng.exponential(5, 100), rng.choice([0, 1, 2], 100)
    event, other = split(kind)
    both = find_incidence(time, event, np.maximum(other, event), 4.0)
    assert both == find_incidence(time, event, other, 4.0)


def test_an_estimand_is_of_complete_rows_of_its_subgroup_on_the_logit() -> None:
    rng = np.random.default_rng(8)
    kind = rng.choice([0, 1, 2], 400)
    event, other = split(kind)
    male = rng.integers(0, 2, 400) * 1.0
    other[:20] = np.nan
    table = {"years": rng.exponential(4, 400), "ill": event, "died": other, "male": male}
    asked = Estimand(
        "i", "cumulative-incidence", "years", competing="died", at=3, where="male == '1'"
    )
    found = estimate(table, SCHEMA, asked)
    kept = (male == 1) & np.isfinite(other)
    share, variance = find_incidence(table["years"][kept], event[kept], other[kept], 3.0)
    assert found.estimate == pytest.approx(math.log(share / (1 - share)), rel=REL)
    assert found.variance == pytest.approx(variance / (share * (1 - share)) ** 2, rel=REL)
    assert (found.n, found.events) == (
        kept.sum(),
        (event[kept] * (table["years"][kept] <= 3)).sum(),
    )


@pytest.mark.parametrize(
    ("time", "event", "problem"),
    [
        ([1.0, 2, 3, 4], [0.0, 0, 0, 1], "nobody has the event until then"),
        ([1.0, 2, 2.5, 2.9], [1.0, 0, 0, 0], "nobody is followed until the time"),
        ([1.0, 2, 2.5, 2.9], [1.0, 1, 1, 1], "everybody who was followed has the event"),
        ([-1.0, 2, 2.5, 4], [1.0, 0, 0, 0], "a duration is negative"),
    ],
)
def test_what_identifies_no_incidence_is_said(
    time: list[float], event: list[float], problem: str
) -> None:
    with pytest.raises(Degenerate, match=problem):
        find_incidence(np.array(time), np.array(event), np.zeros(4), 3.0)

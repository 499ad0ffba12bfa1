"""Landmarks and regressions at a time, against lifelines and statsmodels; what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from lifelines import CoxPHFitter, KaplanMeierFitter
from numpy.typing import NDArray

from penstock.inference.floored import choose_rows, estimate_floored
from penstock.mechanisms import Trajectory
from penstock.mechanisms.trajectory.histories import order_persons, read_courses
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import Estimate
from penstock.questions.persons import estimate_courses
from penstock.questions.suitability import estimand_problems
from penstock.schema import Coded, Column, Schema
from penstock.telling.phrases import contrast

Array = NDArray[np.float64]
EXACT = 1e-8
VISITS = 5
SCHEMA = Schema(
    (
        Column("visit", "integer", lower=0, upper=VISITS - 1, unit="years"),
        Column("sbp", "continuous", lower=60, upper=240, unit="mmHg", nullable=True),
        Column("oedema", "binary"),
        Column("male", "binary", varies=False),
        Column("years", "duration", upper=6, unit="years", event="died", varies=False),
        Column("died", "event", varies=False),
    ),
    person="id",
    max_rows_per_person=VISITS,
)
HOW = Trajectory("visit", end="years")
HAZARD = Estimand("e", "cox", "years", "sbp", per=10, adjust=("male", "oedema"), at=2)
SURVIVAL = Estimand("e", "survival", "years", at=2, until=4)
LATER = Estimand("e", "logistic", "oedema", "sbp", per=10, at=1, until=3)
NOW = Estimand("e", "ols", "sbp", "oedema", adjust=("male",), at=2)


def persons(n: int = 800) -> pd.DataFrame:
    """Visits, one person's after the other; durations are coarse, so that there are ties."""
    rng = np.random.default_rng(4)
    frames = []
    for i in range(n):
        level, male = rng.normal(130, 12), float(rng.random() < 0.5)
        hazard = 0.1 * math.exp(0.03 * (level - 130) + 0.4 * male)
        years = min(math.ceil(4 * rng.exponential(1 / hazard)) / 4, 6.0)
        left = math.ceil(4 * rng.uniform(1, 9)) / 4
        frame = pd.DataFrame({"visit": np.arange(VISITS, dtype=float)})
        frame["sbp"] = np.clip(level + rng.normal(0, 8, VISITS), 61, 239)
        frame.loc[rng.random(VISITS) < 0.1, "sbp"] = math.nan
        frame["oedema"] = (rng.random(VISITS) < 0.3) * 1.0
        frame["male"], frame["id"] = male, i
        frame["years"], frame["died"] = min(years, left), float(years <= left and years < 6)
        seen = (frame["visit"] <= min(years, left)) & (rng.random(VISITS) < 0.8)
        frames.append(frame[seen])
    return pd.concat(frames)


ROWS = persons()


def lay_out(rows: pd.DataFrame) -> Coded:
    """As a released table has them."""
    person = np.unique(rows["id"], return_inverse=True)[1]
    order = order_persons(person, rows["visit"].to_numpy().astype(int))
    return {name: rows[name].to_numpy(float)[order] for name in SCHEMA.names}


TABLE = lay_out(ROWS)


def ask(estimand: Estimand, table: Coded = TABLE) -> Estimate:
    assert estimand_problems(estimand, SCHEMA.columns) == []
    assert HOW.problems_over_time(SCHEMA, estimand) == []
    return estimate_courses(table, SCHEMA, estimand, read_courses(HOW, SCHEMA, table))


def from_two() -> pd.DataFrame:
    """By pandas: each column as last seen by 2, of those followed beyond it."""
    seen = ROWS[ROWS["visit"] <= 2].groupby("id").last()  # the last that is known
    return seen[seen["years"] > 2].assign(years=lambda each: each["years"] - 2)


def test_a_hazard_from_a_landmark_is_lifelines() -> None:
    """Efron's ties, of which there are many."""
    given = from_two()[["years", "died", "male", "oedema", "sbp"]].dropna()
    fitted = CoxPHFitter().fit(
        given, "years", "died", fit_options={"precision": 1e-16, "r_precision": 1e-16}
    )
    found = ask(HAZARD)
    assert found.n == len(given)
    assert found.events == given["died"].sum() > len(given["years"].unique())
    assert found.estimate == pytest.approx(10 * fitted.params_["sbp"], abs=EXACT)
    assert found.variance == pytest.approx(
        100 * fitted.variance_matrix_.loc["sbp", "sbp"], rel=1e-6
    )


def test_what_is_seen_after_the_landmark_makes_no_difference() -> None:
    """And what is seen before it does: the twin of a fit that looks ahead."""
    later, moved = ROWS["visit"] > 2, ROWS.copy()
    moved.loc[later, "sbp"] = 100.0
    assert ask(HAZARD, lay_out(moved)) == ask(HAZARD)
    moved = ROWS.copy()
    moved.loc[~later, "sbp"] = 300 - moved.loc[~later, "sbp"]
    assert ask(HAZARD, lay_out(moved)).estimate != pytest.approx(ask(HAZARD).estimate, abs=0.1)


def test_a_landmark_at_zero_is_of_those_who_were_there_first() -> None:
    first = ROWS[(ROWS["visit"] == 0) & (ROWS["years"] > 0)].dropna()
    given = first[["years", "died", "male", "oedema", "sbp"]]
    fitted = CoxPHFitter().fit(
        given, "years", "died", fit_options={"precision": 1e-16, "r_precision": 1e-16}
    )
    found = ask(replace(HAZARD, at=0))
    assert found.n == len(given)
    assert found.estimate == pytest.approx(10 * fitted.params_["sbp"], abs=EXACT)


def test_survival_from_a_landmark_is_kaplan_and_meiers() -> None:
    given = from_two()
    fitted = KaplanMeierFitter().fit(given["years"], given["died"])
    share = float(fitted.survival_function_at_times(2.0).iloc[0])
    found = ask(SURVIVAL)
    assert found.estimate == pytest.approx(math.log(share / (1 - share)), abs=EXACT)
    assert found.n == len(given)


def test_a_subgroup_is_as_last_seen() -> None:
    given = from_two()
    given = given[given["oedema"] == 1][["years", "died", "sbp"]].dropna()
    fitted = CoxPHFitter().fit(
        given, "years", "died", fit_options={"precision": 1e-16, "r_precision": 1e-16}
    )
    found = ask(replace(HAZARD, adjust=(), where="oedema == '1'"))
    assert found.n == len(given)
    assert found.estimate == pytest.approx(10 * fitted.params_["sbp"], abs=EXACT)


def test_an_outcome_later_by_what_was_before() -> None:
    before, after = (ROWS[ROWS["visit"] == visit].set_index("id") for visit in (1, 3))
    given = before.join(after["oedema"].rename("later"), how="inner").dropna()
    fitted = sm.Logit(given["later"], sm.add_constant(given["sbp"])).fit(disp=0, tol=1e-12)
    found = ask(LATER)
    assert found.n == len(given)
    assert found.estimate == pytest.approx(10 * fitted.params["sbp"], abs=EXACT)
    assert found.variance == pytest.approx(100 * fitted.cov_params().loc["sbp", "sbp"], rel=1e-6)


def test_a_regression_at_a_time_is_of_its_rows() -> None:
    given = ROWS[ROWS["visit"] == 2].dropna()
    fitted = sm.OLS(given["sbp"], sm.add_constant(given[["male", "oedema"]])).fit()
    found = ask(NOW)
    assert (found.n, found.estimate) == (
        len(given),
        pytest.approx(fitted.params["oedema"], abs=EXACT),
    )


def test_visits_of_levels_are_taken_when_their_time_points_begin() -> None:
    """The same persons, whose visits are numbered, and begin at twice the number of years."""
    how = replace(HOW, visit_times=(0, 1, 2, 3, 4))
    found = estimate_courses(TABLE, SCHEMA, HAZARD, read_courses(how, SCHEMA, TABLE))
    assert found == ask(HAZARD)
    late = replace(HOW, visit_times=(0, 2.5, 3, 3.5, 4))
    found = estimate_courses(TABLE, SCHEMA, HAZARD, read_courses(late, SCHEMA, TABLE))
    first = ROWS[(ROWS["visit"] == 0) & (ROWS["years"] > 2)].dropna()
    assert found.n == len(first)


@pytest.mark.parametrize("estimand", [HAZARD, SURVIVAL, LATER, NOW])
@pytest.mark.parametrize("spoil", ["nothing", "one", "unordered", "missing"])
def test_a_hostile_table_gets_a_reason(estimand: Estimand, spoil: str) -> None:
    spoiled = {
        "nothing": {name: values[:0] for name, values in TABLE.items()},
        "one": {name: values[:1] for name, values in TABLE.items()},
        "unordered": {name: values[::-1] for name, values in TABLE.items()},
        "missing": {name: values for name, values in TABLE.items() if name != estimand.outcome},
    }[spoil]
    if spoil == "unordered" and estimand is NOW:
        return  # of one time, which needs no order
    found = estimate_courses(spoiled, SCHEMA, estimand, read_courses(HOW, SCHEMA, spoiled))
    assert found.problem is not None
    assert math.isnan(found.estimate)


def test_what_a_report_checks_are_the_rows_that_are_fitted() -> None:
    read = partial(read_courses, HOW, SCHEMA)
    asked, rows = choose_rows(SCHEMA, read, HAZARD, TABLE)
    assert (asked.at, len(rows["years"])) == (None, len(from_two()))
    assert rows["years"].min() > 0
    one = {name: values[::-1] for name, values in TABLE.items()}
    assert len(choose_rows(SCHEMA, read, HAZARD, one)[1]["years"]) == 0
    assert estimate_floored(SCHEMA, HAZARD, TABLE, read) == ask(HAZARD)


def test_it_is_said_from_when_on() -> None:
    assert contrast(HAZARD, SCHEMA) == "per 10 mmHg of sbp, from 2 years on"
    assert contrast(SURVIVAL, SCHEMA) == "without died at 4 years, of those followed at 2 years"
    assert contrast(LATER, SCHEMA) == "per 10 mmHg of sbp, at 1, for oedema at 3"


# What is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimand", "message"),
    [
        (replace(HAZARD, at=6), "at: must be a time of the duration"),
        (replace(HAZARD, at=-1), "at: must be a time of the duration"),
        (replace(HAZARD, at="two"), "at: must be a time of the duration"),
        (replace(HAZARD, until=4), "until: has no meaning for a cox"),
        (replace(SURVIVAL, until=2), "until: is not after at"),
        (replace(SURVIVAL, until=7), "until: must be a time of the duration"),
    ],
)
def test_what_no_landmark_can_be_is_said(estimand: Estimand, message: str) -> None:
    found = [f"{p.where}: {p.message}" for p in estimand_problems(estimand, SCHEMA.columns)]
    assert any(message in text for text in found), found


DAYS = Schema(
    (
        Column("day", "continuous", lower=0, upper=1200, unit="days"),
        Column("sbp", "continuous", lower=60, upper=240),
        Column("days", "duration", upper=1500, unit="days", event="died", varies=False),
        Column("died", "event", varies=False),
    ),
    person="id",
    max_rows_per_person=4,
)
BINNED = Trajectory("day", points=4, end="days")
OF_DAYS = Estimand("e", "cox", "days", "sbp", at=300)


@pytest.mark.parametrize(
    ("how", "schema", "estimand", "message"),
    [
        (replace(HOW, end=None), SCHEMA, HAZARD, "does not end visits"),
        (replace(HOW, end=None), SCHEMA, SURVIVAL, "does not end visits"),
        (BINNED, DAYS, replace(OF_DAYS, at=100), "is within the first time point"),
        (HOW, SCHEMA, Estimand("e", "mean", "sbp", at=1.5), "at which nobody was seen"),
        (HOW, SCHEMA, Estimand("e", "ols", "sbp", "visit", at=1), "is the time"),
        (HOW, SCHEMA, Estimand("e", "logistic", "died", "sbp", at=1), "is an event"),
        (HOW, SCHEMA, replace(LATER, until=1), "is at the same time point"),
        (
            replace(HOW, dependence="inferred", end=None),
            SCHEMA,
            LATER,
            "is of the same persons at several times",
        ),
    ],
)
def test_what_tables_cannot_tell_is_refused(
    how: Trajectory, schema: Schema, estimand: Estimand, message: str
) -> None:
    assert estimand_problems(estimand, schema.columns) == []
    found = [p.message for p in how.problems_over_time(schema, estimand)]
    assert any(message in text for text in found), found


def test_a_landmark_at_a_time_points_beginning_can_be_asked() -> None:
    assert BINNED.problems_over_time(DAYS, OF_DAYS) == []

"""Estimands of persons over time: against numpy, scipy and statsmodels, and on hostile tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from numpy.typing import NDArray
from scipy import stats
from statsmodels.regression.mixed_linear_model import MixedLMParams

from penstock.base.errors import InvalidInput, PenstockError
from penstock.mechanisms import Trajectory
from penstock.mechanisms.trajectory.histories import number_persons, order_persons, read_courses
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import Estimate, estimate
from penstock.questions.fits import COURSE_MODELS
from penstock.questions.fits.random_intercept import fit_random_intercept
from penstock.questions.models import DESCRIPTIVE, LONGITUDINAL
from penstock.questions.persons import Courses, estimate_courses
from penstock.questions.suitability import estimand_problems
from penstock.schema import Coded, Column, Schema

Array = NDArray[np.float64]
EXACT = 1e-8
VISITS = 4
SCHEMA = Schema(
    (
        Column("visit", "integer", lower=0, upper=VISITS - 1, unit="years"),
        Column("sbp", "continuous", lower=60, upper=240, unit="mmHg", label="pressure"),
        Column("ldl", "continuous", lower=0, upper=12),
        Column("stage", "ordered", levels=("I", "II", "III")),
        Column("male", "binary", varies=False),
    ),
    person="id",
    max_rows_per_person=VISITS,
)
HOW = Trajectory("visit")
ASKED = {
    "mean": Estimand("e", "mean", "sbp", at=2),
    "quantile": Estimand("e", "quantile", "sbp", at=2, probability=0.9),
    "share": Estimand("e", "share", "sbp", at=2, threshold=140, direction="above"),
    "change": Estimand("e", "change", "sbp", at=0, until=3),
    "change-sd": Estimand("e", "change-sd", "sbp", at=0, until=3),
    "correlation": Estimand("e", "correlation", "sbp", at=1, until=2),
    "two columns": Estimand("e", "correlation", "sbp", "ldl", at=1),
    "transition": Estimand(
        "e", "transition", "stage", level="I", outcome_level="II", at=0, until=2
    ),
    "mixed": Estimand("e", "mixed", "sbp", "visit", per=10),
    "adjusted": Estimand(
        "e", "mixed", "sbp", "visit", per=10, adjust=("male:stage", "spline(ldl, 3)")
    ),
}


def persons(n: int = 300, seed: int = 0) -> tuple[Array, dict[str, Array]]:
    """(n, T) who is there, and of each column (n, T)."""
    rng = np.random.default_rng(seed)
    there = rng.random((n, VISITS)) < 0.8
    there[~there.any(axis=1), 1] = True
    level, slope = 12 * rng.standard_normal((n, 1)), 2 * rng.standard_normal((n, 1))
    at = np.arange(VISITS)
    sbp = np.clip(130 + level + (1.5 + slope) * at + 8 * rng.standard_normal((n, VISITS)), 61, 239)
    ldl = np.clip(3 + 0.02 * (sbp - 130) + rng.standard_normal((n, VISITS)), 0, 12)
    stage = np.clip(rng.integers(0, 2, (n, 1)) + np.cumsum(rng.random((n, VISITS)) < 0.3, 1), 0, 2)
    male = np.repeat(rng.integers(0, 2, (n, 1)), VISITS, axis=1)
    columns = {"sbp": sbp, "ldl": ldl, "stage": stage * 1.0, "male": male * 1.0}
    return there.astype(float), columns


def rows(there: Array, columns: dict[str, Array]) -> Coded:
    """As a released table has them: the latest persons first."""
    who, when = np.nonzero(there)
    order = order_persons(who, when)
    who, when = who[order], when[order]
    found = {name: values[who, when] for name, values in columns.items()}
    return found | {"visit": when * 1.0}


THERE, COLUMNS = persons()
TABLE = rows(THERE, COLUMNS)


def ask(estimand: Estimand, table: Coded = TABLE) -> Estimate:
    assert estimand_problems(estimand, SCHEMA.columns) == []
    assert HOW.problems_over_time(SCHEMA, estimand) == []
    return estimate_courses(table, SCHEMA, estimand, read_courses(HOW, SCHEMA, table))


def at(name: str, *visits: int) -> list[Array]:
    """A column at visits, of those who were there at all of them."""
    known = (THERE[:, visits] > 0).all(axis=1)
    return [COLUMNS[name][known, visit] for visit in visits]


# The numbers -----------------------------------------------------------------------------------


def test_every_model_is_asked() -> None:
    assert {e.model for e in ASKED.values()} == {*LONGITUDINAL.names, "mean"}
    assert COURSE_MODELS.names == (*LONGITUDINAL.names, *DESCRIPTIVE.names)


def test_a_mean_at_a_time_is_of_those_who_are_there() -> None:
    [y] = at("sbp", 2)
    found = ask(ASKED["mean"])
    assert found.estimate == pytest.approx(np.mean(y), abs=EXACT)
    assert found.variance == pytest.approx(np.var(y, ddof=1) / len(y), rel=EXACT)
    assert found.n == len(y) < len(THERE)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_a_quantile_and_woodruffs_error(probability: float) -> None:
    [y] = at("sbp", 2)
    found = ask(replace(ASKED["quantile"], probability=probability))
    assert found.estimate == pytest.approx(np.quantile(y, probability), abs=EXACT)
    z = stats.norm.ppf(0.975)
    ends = probability + z * np.array([-1, 1]) * math.sqrt(probability * (1 - probability) / len(y))
    width = float(np.diff(np.quantile(y, ends))[0])
    assert found.variance == pytest.approx((width / (2 * z)) ** 2, rel=1e-5)


@pytest.mark.parametrize("direction", ["above", "below"])
def test_a_share_is_an_empirical_logit(direction: str) -> None:
    [y] = at("sbp", 2)
    found = ask(replace(ASKED["share"], direction=direction))
    k = int((y > 140).sum() if direction == "above" else (y < 140).sum())
    assert found.estimate == pytest.approx(math.log((k + 0.5) / (len(y) - k + 0.5)), abs=EXACT)
    assert found.variance == pytest.approx(1 / (k + 0.5) + 1 / (len(y) - k + 0.5), rel=EXACT)


def test_a_change_is_of_the_same_persons() -> None:
    before, after = at("sbp", 0, 3)
    change, found = after - before, ask(ASKED["change"])
    assert found.estimate == pytest.approx(np.mean(change), abs=EXACT)
    assert found.variance == pytest.approx(np.var(change, ddof=1) / len(change), rel=EXACT)
    assert found.n == len(change)
    apart = at("sbp", 0)[0].var() / len(change) + at("sbp", 3)[0].var() / len(change)
    assert found.variance < 0.8 * apart  # what independent rows would say


def test_the_spread_of_change_is_on_a_logarithmic_scale() -> None:
    before, after = at("sbp", 0, 3)
    change, found = after - before, ask(ASKED["change-sd"])
    n, z = len(change), (change - change.mean()) / change.std(ddof=1)
    assert math.exp(found.estimate) == pytest.approx(np.std(change, ddof=1), rel=EXACT)
    assert found.variance == pytest.approx((np.mean(z**4) - (n - 3) / (n - 1)) / (4 * n), rel=EXACT)
    assert found.variance == pytest.approx(1 / (2 * n), rel=0.35)  # of normal changes


@pytest.mark.parametrize("name", ["correlation", "two columns"])
def test_a_correlation_is_on_fishers_scale(name: str) -> None:
    if name == "correlation":
        u, v = at("sbp", 1, 2)
    else:
        [u], [v] = at("sbp", 1), at("ldl", 1)
    found = ask(ASKED[name])
    assert math.tanh(found.estimate) == pytest.approx(np.corrcoef(u, v)[0, 1], abs=EXACT)
    assert found.variance == pytest.approx(1 / (len(u) - 3), rel=0.25)  # near normal
    u, v = stats.zscore(u), stats.zscore(v)
    r = float(np.mean(u * v))
    moved = (u * v - r * (u * u + v * v) / 2) / (1 - r * r)
    assert found.variance == pytest.approx(np.mean(moved**2) / (len(u) - 3), rel=EXACT)


def test_a_transition_is_of_those_at_the_level_before() -> None:
    before, after = at("stage", 0, 2)
    own, found = after[before == 0], ask(ASKED["transition"])
    k, n = int((own == 1).sum()), len(own)
    assert 0 < k < n < len(before)
    assert found.estimate == pytest.approx(math.log((k + 0.5) / (n - k + 0.5)), abs=EXACT)
    assert found.variance == pytest.approx(1 / (k + 0.5) + 1 / (n - k + 0.5), rel=EXACT)
    nobody = ask(replace(ASKED["transition"], level="III", outcome_level="I"))
    assert -math.inf < nobody.estimate < -2  # stages never fall: 0 of some


def test_a_slope_is_statsmodels_mixed_model_with_a_sandwich() -> None:
    data = pd.DataFrame(
        {"y": TABLE["sbp"], "t": TABLE["visit"], "person": number_persons(_points(TABLE))}
    )
    design = sm.add_constant(data["t"])
    fitted = sm.MixedLM(data["y"], design, groups=data["person"]).fit(reml=True, method="lbfgs")
    found = ask(ASKED["mixed"])
    assert found.n == data["person"].nunique()
    assert found.estimate == pytest.approx(10 * fitted.params["t"], rel=1e-6)
    exact = fit_random_intercept(data["y"].to_numpy(), design.to_numpy(), data["person"].to_numpy())
    ratio = float(fitted.cov_re.iloc[0, 0] / fitted.scale)
    assert exact.ratio == pytest.approx(ratio, rel=1e-4)  # their search ends before ours
    assert exact.residual == pytest.approx(fitted.scale, rel=1e-4)
    assert exact.covariance[1, 1] == pytest.approx(fitted.bse_fe["t"] ** 2, rel=1e-4)
    # At their ratio, where nothing is searched for, everything by hand.
    first, meat = np.zeros((2, 2)), np.zeros((2, 2))
    for _, own in data.groupby("person"):
        x = np.column_stack([np.ones(len(own)), own["t"]])
        inverse = np.linalg.inv(np.eye(len(own)) + exact.ratio)
        first += x.T @ inverse @ x
        part = x.T @ inverse @ (own["y"].to_numpy() - x @ exact.coefficients)
        meat += np.outer(part, part)
    sandwich = np.linalg.inv(first) @ meat @ np.linalg.inv(first)
    assert found.variance == pytest.approx(100 * sandwich[1, 1], rel=EXACT)
    assert found.variance > 100 * exact.covariance[1, 1]  # persons differ in their slopes


@pytest.mark.parametrize(
    ("adjust", "columns"),
    [
        (("male",), "male"),  # the same in all rows of a person
        (("ldl", "stage"), "ldl + stage"),  # from visit to visit
        (("male", "ldl", "male:ldl"), "male * ldl"),
        (("ward",), "C(ward)"),
    ],
)
def test_an_adjusted_slope_is_that_of_statsmodels(adjust: tuple[str, ...], columns: str) -> None:
    rng = np.random.default_rng(5)
    column = Column("ward", "categorical", levels=("a", "b", "c"))
    schema = replace(SCHEMA, columns=(*SCHEMA.columns, column))
    n = len(TABLE["sbp"])
    drift = TABLE["visit"] + rng.integers(0, 3, n)  # which goes with the time
    table = TABLE | {"ward": np.minimum(drift // 2, 2.0), "ldl": TABLE["ldl"] + 0.3 * drift}
    table["ldl"][rng.random(n) < 0.1] = np.nan
    data = pd.DataFrame(table)
    data["person"] = number_persons(_points(TABLE))
    if "ldl" in adjust:
        data = data.dropna()
    fitted = smf.mixedlm(f"sbp ~ visit + {columns}", data, groups=data["person"])
    theirs = fitted.fit(reml=True, method=["bfgs", "lbfgs"], gtol=1e-9)
    estimand = replace(ASKED["mixed"], adjust=adjust)
    assert estimand_problems(estimand, schema.columns) == []
    found = estimate_courses(table, schema, estimand, read_courses(HOW, schema, table))
    assert found.estimate == pytest.approx(10 * theirs.params["visit"], rel=1e-6)
    assert found.n == data["person"].nunique()
    plain = estimate_courses(table, schema, ASKED["mixed"], read_courses(HOW, schema, table))
    assert plain.estimate != pytest.approx(found.estimate, rel=1e-4)
    # The sandwich over persons, at their ratio of variances.
    x = np.asarray(fitted.exog)
    ratio = float(theirs.cov_re.iloc[0, 0] / theirs.scale)
    at, first, meat = fitted.exog_names.index("visit"), 0.0, 0.0
    for own in (np.flatnonzero(data["person"] == who) for who in data["person"].unique()):
        inverse = np.linalg.inv(np.eye(len(own)) + ratio)
        first = first + x[own].T @ inverse @ x[own]
        rest = data["sbp"].to_numpy()[own] - x[own] @ theirs.fe_params.to_numpy()
        part = x[own].T @ inverse @ rest
        meat = meat + np.outer(part, part)
    sandwich = np.linalg.inv(first) @ meat @ np.linalg.inv(first)
    assert found.variance == pytest.approx(100 * sandwich[at, at], rel=1e-4)


def test_a_slope_beside_what_is_the_time_itself_has_no_estimate() -> None:
    schema = replace(SCHEMA, columns=(*SCHEMA.columns, Column("age", "integer", lower=0, upper=99)))
    estimand = replace(ASKED["mixed"], adjust=("age",))
    table = TABLE | {"age": 50 + 2 * TABLE["visit"]}
    found = estimate_courses(table, schema, estimand, read_courses(HOW, schema, table))
    assert found.problem == "the term is constant or a linear combination of other columns"


def test_what_is_constant_is_left_out_of_what_is_adjusted_for() -> None:
    table = TABLE | {"male": np.ones(len(TABLE["sbp"]))}
    found = ask(replace(ASKED["mixed"], adjust=("male",)), table)
    assert found == ask(ASKED["mixed"], table)


def test_the_ratio_is_where_the_restricted_likelihood_is_largest() -> None:
    data = TABLE["sbp"], TABLE["visit"]
    person = number_persons(_points(TABLE))
    assert person is not None
    design = sm.add_constant(data[1])
    found = fit_random_intercept(data[0], design, person)
    model = sm.MixedLM(data[0], design, groups=person)
    model.fit(reml=True, method="lbfgs")  # which sets by what likelihood it goes

    def likelihood(ratio: float) -> float:
        given = MixedLMParams.from_components(found.coefficients, np.array([[ratio]]))
        return float(model.loglike(given, profile_fe=True))

    at_best = likelihood(found.ratio)
    assert at_best > max(likelihood(found.ratio * 1.001), likelihood(found.ratio / 1.001))


def test_without_persons_of_their_own_the_slope_is_that_of_least_squares() -> None:
    rng = np.random.default_rng(3)
    person = np.repeat(np.arange(80), 3)
    design = np.column_stack([np.ones(240), np.tile(np.arange(3.0), 80)])
    y = design @ [1.0, 2.0] + rng.standard_normal(240)
    y -= 0.3 * np.bincount(person, y - design @ [1.0, 2.0])[person]  # negatively together
    found = fit_random_intercept(y, design, person)
    assert found.ratio == 0
    np.testing.assert_allclose(found.coefficients, np.linalg.lstsq(design, y, rcond=None)[0])


# Persons ---------------------------------------------------------------------------------------


def _points(table: Coded) -> NDArray[np.int64]:
    return table["visit"].astype(np.int64)


@pytest.mark.parametrize("seed", range(5))
def test_persons_in_order_are_told_apart_whoever_they_are(seed: int) -> None:
    there, _ = persons(200, seed)
    there[::3, 0] = 0
    who, when = np.nonzero(there)
    found = number_persons(when[order_persons(who, when)])
    assert found is not None
    assert found.max() + 1 == len(np.unique(who))
    mine = who[order_persons(who, when)]
    assert len(np.unique(np.stack([found, mine]), axis=1).T) == len(np.unique(who))
    # As they came before there was an order.
    assert number_persons(when) is None


def test_of_persons_in_no_order_nothing_is_said_of_their_changes() -> None:
    who, when = np.nonzero(THERE)
    table = {name: values[who, when] for name, values in COLUMNS.items()} | {"visit": when * 1.0}
    courses = read_courses(HOW, SCHEMA, table)
    assert courses.person is None
    found = estimate_courses(table, SCHEMA, ASKED["change"], courses)
    assert "do not say which rows" in str(found.problem)
    assert estimate_courses(table, SCHEMA, ASKED["mean"], courses) == ask(ASKED["mean"])


def test_a_subgroup_is_of_those_who_are_in_it_at_both_times() -> None:
    found = ask(replace(ASKED["change"], where="male == '1'"))
    known = (THERE[:, [0, 3]] > 0).all(axis=1) & (COLUMNS["male"][:, 0] == 1)
    change = (COLUMNS["sbp"][:, 3] - COLUMNS["sbp"][:, 0])[known]
    assert found.estimate == pytest.approx(change.mean(), abs=EXACT)


def test_who_is_missing_at_one_time_has_no_change() -> None:
    columns = {**COLUMNS, "sbp": COLUMNS["sbp"].copy()}
    columns["sbp"][:50, 3] = np.nan
    found = ask(ASKED["change"], rows(THERE, columns))
    known = (THERE[:, [0, 3]] > 0).all(axis=1)
    known[:50] = False
    assert found.n == known.sum()


def test_more_rows_a_person_are_not_more_persons() -> None:
    """A median's error depends on how many persons are at its time, whatever else is known."""
    alone = THERE.copy()
    alone[:, [0, 1, 3]] = 0
    assert ask(ASKED["quantile"], rows(alone, COLUMNS)).variance == ask(ASKED["quantile"]).variance


# Hostile tables --------------------------------------------------------------------------------

SPOILT: dict[str, Callable[[Coded], Coded]] = {
    "empty": lambda t: {name: values[:0] for name, values in t.items()},
    "three rows": lambda t: {name: values[:3] for name, values in t.items()},
    "all alike": lambda t: {n: v if n == "visit" else np.ones(len(v)) for n, v in t.items()},
    "missing": lambda t: {n: v if n == "visit" else np.full(len(v), np.nan) for n, v in t.items()},
    "huge": lambda t: {n: v if n == "visit" else v * 1e300 for n, v in t.items()},
    "infinite": lambda t: {n: v if n == "visit" else np.full(len(v), np.inf) for n, v in t.items()},
    "one time": lambda t: t | {"visit": np.zeros(len(t["visit"]))},
    "in reverse": lambda t: {name: values[::-1] for name, values in t.items()},
    "lines": lambda t: t | {"sbp": t["visit"], "ldl": t["visit"]},
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("spoil", SPOILT)
def test_a_hostile_table_gets_an_estimate_or_a_reason(name: str, spoil: str) -> None:
    found = ask(ASKED[name], SPOILT[spoil](TABLE))
    if found.problem is None:
        assert math.isfinite(found.estimate)
        assert 0 < found.variance < math.inf
    else:
        assert math.isnan(found.estimate)
        assert not found.converged


@pytest.mark.parametrize("name", ASKED)
def test_estimates_are_no_surer_than_their_floor(name: str) -> None:
    estimand = ASKED[name]
    if estimand.model in LONGITUDINAL.names:
        least = COURSE_MODELS.of(estimand.model).least_variance(SCHEMA, estimand, len(TABLE["sbp"]))
        assert 0 <= least <= ask(estimand).variance


def test_a_plain_fit_refuses_persons_over_time() -> None:
    with pytest.raises(PenstockError, match="persons over time"):
        estimate(TABLE, SCHEMA, ASKED["mean"])


# What is refused -------------------------------------------------------------------------------

WRONG = [
    ({"model": "quantile", "at": 1}, "probability: is missing"),
    ({"model": "change"}, "at: is missing: a change is of a time"),
    ({"model": "quantile", "probability": 0.5, "at": 0, "until": 1}, "until: has no meaning"),
    ({"model": "share", "at": 1, "threshold": 140}, "direction: is missing"),
    ({"model": "share", "at": 1, "direction": "above"}, "threshold: is missing"),
    ({"model": "share", "at": 1, "direction": "above", "threshold": 300}, "outside the outcome"),
    ({"model": "change", "at": 1}, "until: is missing: a change is of a second time"),
    ({"model": "change", "until": 1}, "until: is the second of two times"),
    ({"model": "change", "at": 0, "until": 1, "per": 10}, "per: has no meaning"),
    ({"model": "change", "at": 0, "until": 1, "term": "ldl"}, "term: has no meaning"),
    ({"model": "change", "at": 0, "until": 1, "outcome": "stage"}, "is of kind 'ordered'"),
    ({"model": "correlation", "at": 0}, "not correlated with itself"),
    ({"model": "correlation", "at": 0, "term": "stage"}, "term: column 'stage' is of kind"),
    ({"model": "transition", "outcome": "stage", "at": 0, "until": 1}, "level: must be a level"),
    ({"model": "mixed", "at": 0, "term": "visit"}, "at: has no meaning for a mixed"),
    ({"model": "mixed", "term": "visit", "adjust": ("visit",)}, "adjust: appears twice"),
    ({"model": "mixed", "term": "visit", "adjust": ("weight",)}, "adjust: is not a column"),
    ({"model": "mixed", "term": "visit", "adjust": ("male:visit",)}, "a product with the term"),
    ({"model": "mixed", "term": "visit", "strata": ("stage",)}, "strata: has no meaning"),
    ({"model": "change", "at": 0, "until": 2, "adjust": ("male",)}, "adjust: has no meaning"),
    ({"model": "mean", "at": 0, "until": 2}, "until: has no meaning for a mean"),
    ({"model": "ols", "term": "ldl", "until": 1}, "until: is the second of two times"),
    ({"model": "mean", "probability": 0.5}, "probability: has no meaning"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_what_does_not_suit_a_model_is_said(given: dict[str, object], message: str) -> None:
    estimand = Estimand(**{"name": "e", "outcome": "sbp", **given})  # type: ignore[arg-type]
    found = [f"{p.where}: {p.message}" for p in estimand_problems(estimand, SCHEMA.columns)]
    assert any(message in text for text in found), found


@pytest.mark.parametrize(
    "given",
    [
        {"probability": 0},
        {"probability": 1},
        {"probability": math.nan},
        {"at": math.inf},
        {"at": True},
        {"at": ""},
        {"threshold": "high"},
        {"direction": "beyond"},
    ],
)
def test_what_is_no_time_or_threshold_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        Estimand("e", "quantile", "sbp", **given)  # type: ignore[arg-type]


def test_later_fields_are_in_the_canonical_form_only_where_they_are_said() -> None:
    assert "at" not in Estimand("e", "mean", "sbp").to_dict()
    found = Estimand("e", "change", "sbp", at=0, until=3).to_dict()
    assert (found["at"], found["until"]) == (0, 3)
    assert "threshold" not in found
    assert Estimand(**{**found, "adjust": ()}) == Estimand("e", "change", "sbp", at=0, until=3)


def test_courses_are_of_the_tables_rows() -> None:
    courses = read_courses(HOW, SCHEMA, TABLE)
    assert isinstance(courses, Courses)
    assert courses.person is not None
    assert len(courses.person) == len(TABLE["sbp"])
    np.testing.assert_array_equal(courses.middles, np.arange(VISITS))

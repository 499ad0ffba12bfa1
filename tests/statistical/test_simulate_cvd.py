"""The simulated cardiovascular cohorts have the published moments and the stated truth.

False alarms: seeds are fixed, so a run is deterministic; over seeds, each moment or coefficient
fails with probability 2e-8 (|z| > 5.6, 180 comparisons), the pooled effect with 6e-5
(|z| > 4), homogeneity with 1e-6. The planted twins lie 19 standard errors from the truth, that is
14 beyond the bound.
"""

from __future__ import annotations

import csv
import json
import math
import pathlib
import tomllib
from functools import cache

import numpy as np
import pandas as pd
import pytest
from lifelines import CoxPHFitter
from scipy import stats

from penstock.base.errors import InvalidInput
from penstock.study.planning import planning_problems
from penstock_server.simulate import cvd

Z = 5.6
SIZE = 12_000
COVARIATES = ["age", "cholesterol", "hdl", "sbp"]
TRUTH = dict(zip(COVARIATES, (*cvd.EFFECTS, cvd.LOG_HR / cvd.PER), strict=True))

each_cohort = pytest.mark.parametrize("cohort", cvd.COHORTS, ids=lambda c: c.name)


@cache
def draw(cohort: cvd.Cohort, log_hr: float = cvd.LOG_HR, tau: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng([20_251, cvd.COHORTS.index(cohort)])
    table = cvd.simulate(cohort, rng, n=SIZE, log_hr_per_10=log_hr, tau=tau)
    return pd.DataFrame(table)


@cache
def cox(cohort: cvd.Cohort, log_hr: float = cvd.LOG_HR, tau: float = 0.0) -> pd.DataFrame:
    """Coefficients and standard errors, per unit of each covariate."""
    frame = draw(cohort, log_hr, tau).drop(columns="patient_id")
    return CoxPHFitter().fit(frame, "time", "cvd").summary[["coef", "se(coef)"]]


def pooled(log_hr: float, tau: float = 0.0) -> tuple[float, float, float]:
    """Inverse-variance mean log HR per 10 mmHg of the twelve cohorts, its se, and Cochran's Q."""
    rows = np.array([cox(c, log_hr, tau).loc["sbp"] for c in cvd.COHORTS]) * cvd.PER
    weight = rows[:, 1] ** -2
    mean = float(np.average(rows[:, 0], weights=weight))
    return mean, float(weight.sum() ** -0.5), float((weight * (rows[:, 0] - mean) ** 2).sum())


@each_cohort
def test_calibration_meets_the_published_follow_up(cohort: cvd.Cohort) -> None:
    fit = cvd.calibrate(cohort)
    assert fit.event_rate == pytest.approx(cohort.event_rate, abs=5e-4)
    assert fit.time == pytest.approx(cohort.time, abs=0.02)
    assert fit.end < cvd.FOLLOW_UP


@each_cohort
def test_event_share_is_the_published_one(cohort: cvd.Cohort) -> None:
    rate = cohort.event_rate
    observed = float(draw(cohort)["cvd"].mean())
    # 0.001: 1,024 quasi-random points stand for the covariates in the calibration.
    assert abs(observed - rate) < Z * math.sqrt(rate * (1 - rate) / SIZE) + 1e-3


@each_cohort
@pytest.mark.parametrize("column", ["time", *COVARIATES])
def test_mean_and_sd_are_the_published_ones(cohort: cvd.Cohort, column: str) -> None:
    mean, sd = getattr(cohort, column)
    values = draw(cohort)[column].to_numpy()
    slack = 0.005 * sd  # rounding adds 1/12 to a variance; clamping takes a little off the tails
    assert abs(values.mean() - mean) < Z * sd / math.sqrt(SIZE) + slack
    kurtosis = stats.kurtosis(values, fisher=False)
    assert abs(values.std() - sd) < Z * sd * math.sqrt((kurtosis - 1) / (4 * SIZE)) + slack


@each_cohort
def test_cox_recovers_every_coefficient(cohort: cvd.Cohort) -> None:
    fit = cox(cohort)
    z = {name: (fit["coef"][name] - TRUTH[name]) / fit["se(coef)"][name] for name in COVARIATES}
    assert max(map(abs, z.values())) < Z, z


def test_pooled_cox_recovers_the_stated_hazard_ratio() -> None:
    mean, se, _ = pooled(cvd.LOG_HR)
    assert se < 0.006  # sharp enough to matter: 0.6 % of the hazard ratio
    assert abs(mean - cvd.LOG_HR) < 4 * se


@pytest.mark.parametrize("shift", [-0.06, 0.06])
def test_a_wrong_hazard_ratio_is_caught(shift: float) -> None:
    mean, se, _ = pooled(cvd.LOG_HR + shift)
    assert abs(mean - cvd.LOG_HR) > 4 * se
    assert abs(mean - cvd.LOG_HR - shift) < 4 * se  # and the asked-for one is what was simulated


def test_the_effect_is_the_same_in_every_cohort_by_default() -> None:
    *_, q = pooled(cvd.LOG_HR)
    assert q < stats.chi2.isf(1e-6, len(cvd.COHORTS) - 1)


def test_tau_makes_cohorts_differ() -> None:
    *_, q = pooled(cvd.LOG_HR, tau=0.2)
    assert q > stats.chi2.isf(1e-6, len(cvd.COHORTS) - 1)


def test_without_adjustment_the_effect_is_confounded() -> None:
    cohort = cvd.find("framingham-m")
    crude = CoxPHFitter().fit(draw(cohort)[["sbp", "time", "cvd"]], "time", "cvd").summary
    assert crude["coef"]["sbp"] - TRUTH["sbp"] > Z * crude["se(coef)"]["sbp"]


def test_what_is_expected_of_cohorts_is_what_was_published_of_them() -> None:
    """A forecast for one cohort is for rows like its own; for several, for a site between them."""
    alone = cvd.planning([cvd.find("chs-m")])
    assert [(c.mean, c.sd) for c in alone.columns if c.name == "sbp"] == [(136.0, 21.0)]
    assert alone.column("time").events == 0.5
    assert alone.effect(cvd.estimand().name) == pytest.approx(cvd.LOG_HR, rel=0.05)
    several = cvd.planning(cvd.DEMO_SITES)
    assert 122 < (several.column("sbp").mean or 0.0) < 137
    assert planning_problems(several, cvd.schema().columns, (cvd.estimand(),)) == []


@each_cohort
def test_schema_encloses_every_value(cohort: cvd.Cohort) -> None:
    table, schema = draw(cohort), cvd.schema()
    assert tuple(table.columns) == (schema.person, *schema.names)
    for name in ["time", *COVARIATES]:
        column, values = schema[name], table[name].to_numpy()
        assert column.lower is not None
        assert column.upper is not None
        assert column.lower <= values.min()
        assert values.max() <= column.upper
        assert column.decimals is not None
        np.testing.assert_array_equal(values, np.round(values, column.decimals))
    assert set(table["cvd"]) == {0.0, 1.0}
    assert table["time"].min() > 0
    assert table["patient_id"].is_unique


@each_cohort
def test_public_bounds_hardly_truncate(cohort: cvd.Cohort) -> None:
    for name in ["cholesterol", "hdl", "sbp"]:
        column, values = cvd.schema()[name], draw(cohort)[name]
        assert ((values == column.lower) | (values == column.upper)).mean() < 2e-3


def test_same_seed_same_cohort() -> None:
    cohort = cvd.COHORTS[0]
    first, second, other = (
        cvd.simulate(cohort, np.random.default_rng(seed), n=50) for seed in (1, 1, 2)
    )
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name])
    assert not np.array_equal(first["sbp"], other["sbp"])


def test_size_defaults_to_the_cohorts_own() -> None:
    table = cvd.simulate(cvd.find("jackson-m"), np.random.default_rng(0))
    assert {len(values) for values in table.values()} == {1196}
    assert table["patient_id"][122] == "JACKSON-M-000123"


def test_estimand_speaks_of_columns_of_the_schema() -> None:
    estimand, schema = cvd.estimand(), cvd.schema()
    assert {estimand.outcome, estimand.term, *estimand.adjust} <= set(schema.names)
    assert schema[estimand.outcome].event == "cvd"


def test_site_holds_what_was_simulated(tmp_path: pathlib.Path) -> None:
    cohort = cvd.find("chs-m")
    cvd.write_site(cohort, tmp_path / "site", np.random.default_rng(3), n=40)
    expected = cvd.simulate(cohort, np.random.default_rng(3), n=40)
    with (tmp_path / "site" / "data.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0].keys() == expected.keys()
    for name, values in expected.items():
        assert [type(values[0])(row[name]) for row in rows] == values.tolist()


def test_site_holds_the_common_dictionary(tmp_path: pathlib.Path) -> None:
    cvd.write_site(cvd.COHORTS[0], tmp_path / "a", np.random.default_rng(3), n=5)
    cvd.write_site(cvd.COHORTS[5], tmp_path / "b", np.random.default_rng(4), n=5)
    text = (tmp_path / "a" / "dictionary.toml").read_text(encoding="utf-8")
    assert text == (tmp_path / "b" / "dictionary.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)


@pytest.mark.parametrize(("tau", "spread"), [(0.0, "the same in every"), (0.05, "sd 0.05")])
def test_truth_names_the_effect(tmp_path: pathlib.Path, tau: float, spread: str) -> None:
    cvd.write_truth(tmp_path, log_hr_per_10=0.2, tau=tau)
    truth = json.loads((tmp_path / "truth.json").read_text(encoding="utf-8"))
    assert (truth["estimand"], truth["log_hazard_ratio"], truth["per"]) == ("sbp", 0.2, 10)
    assert spread in truth["note"]


def test_unknown_cohort_names_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="aric-f"):
        cvd.find("arc-f")


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 0},
        {"tau": -0.1},
        {"tau": math.nan},
        {"tau": math.inf},
        {"log_hr_per_10": math.nan},
        {"log_hr_per_10": 1.5},
    ],
    ids=str,
)
def test_impossible_arguments_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        cvd.simulate(cvd.COHORTS[0], np.random.default_rng(0), **wrong)  # type: ignore[arg-type]

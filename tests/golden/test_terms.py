"""Products, splines, strata and subgroups on tables: against R's survival, lifelines, statsmodels
and patsy, each given raw columns, as its users write them.

Tolerance 1e-8 relative, but where lifelines stops its steps earlier (1e-7) and where an iteration
of statsmodels' does (variances 1e-7).
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from lifelines import CoxPHFitter
from numpy.typing import NDArray
from patsy import dmatrix
from statsmodels.duration.hazard_regression import PHReg
from statsmodels.genmod.families import Poisson

from penstock.inference.floor import variance_floor
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import Estimate, estimate
from penstock.questions.grammar import Spline
from penstock.questions.terms import bend_column, design_terms, place_knots
from penstock.schema import Column, Schema

Array = NDArray[np.float64]
DATA = Path(__file__).parent / "data"

SCHEMA = Schema(
    (
        Column("time", "duration", upper=20.0, event="dead"),
        Column("dead", "event"),
        Column("score", "continuous", lower=-100.0, upper=100.0),
        Column("ill", "binary"),
        Column("visits", "integer", lower=0.0, upper=100.0),
        Column("age", "continuous", lower=20.0, upper=100.0),
        Column("sbp", "continuous", lower=70.0, upper=250.0),
        Column("sex", "binary", levels=("F", "M")),
        Column("ward", "categorical", levels=("a", "b", "c")),
        Column("stage", "ordered", levels=("I", "II", "III")),
    )
)
OUTCOMES = {"ols": "score", "logistic": "ill", "poisson": "visits", "cox": "time"}


def cohort(n: int = 900) -> dict[str, Array]:
    rng = np.random.default_rng(16)
    age, sbp = rng.normal(60, 9, n).clip(20, 100), rng.normal(130, 17, n).clip(70, 250)
    sex, ward = (rng.random(n) < 0.4) * 1.0, rng.integers(0, 3, n) * 1.0
    stage = rng.integers(0, 3, n) * 1.0
    linear = 0.03 * (age - 60) + 0.004 * (age - 60) * (sbp - 130) / 10 + 0.3 * sex * (ward == 1)
    dies, leaves = rng.exponential(8 * np.exp(-linear)), rng.uniform(2, 20, n)
    return {
        "time": np.ceil(10 * np.minimum(dies, leaves)) / 10,  # ties
        "dead": (dies <= leaves) * 1.0,
        "score": 3 * linear + rng.normal(0, 4, n),
        "ill": (rng.random(n) < 1 / (1 + np.exp(0.5 - linear))) * 1.0,
        "visits": rng.poisson(np.exp(0.5 + 0.3 * linear)) * 1.0,
        "age": age,
        "sbp": sbp,
        "sex": sex,
        "ward": ward,
        "stage": stage,
    }


TABLE = cohort()
FRAME = pd.DataFrame(TABLE)


def ask(model: str, term: str, *adjust: str, **more: Any) -> Estimate:
    found = estimate(TABLE, SCHEMA, Estimand("x", model, OUTCOMES[model], term, 1, adjust, **more))
    assert found.problem is None
    return found


def fit_formula(model: str, right: str, frame: pd.DataFrame = FRAME) -> Any:
    """By statsmodels, from a formula of raw columns."""
    formula = f"{OUTCOMES[model]} ~ {right}"
    if model == "ols":
        return smf.ols(formula, frame).fit()
    if model == "logistic":
        return smf.logit(formula, frame).fit(method="newton", disp=0, maxiter=100, tol=1e-12)
    return smf.glm(formula, frame, family=Poisson()).fit(tol=1e-14, maxiter=100)


def fit_hazard(columns: str, strata: Any = None, frame: pd.DataFrame = FRAME) -> tuple[Any, Any]:
    """By statsmodels' PHReg on a patsy design of raw columns: coefficients and variances."""
    design = dmatrix(f"{columns} - 1", frame, return_type="dataframe")
    # Of a constant beside a factor nothing is left in a partial likelihood.
    design = design.drop(columns=[c for c in design if c == "C(ward)[0.0]"])
    found = PHReg(frame["time"], design, status=frame["dead"], ties="efron", strata=strata)
    fitted = found.fit(maxiter=100, disp=0)
    return (
        dict(zip(design, fitted.params, strict=True)),
        dict(zip(design, np.diag(fitted.cov_params()), strict=True)),
    )


def same(got: Estimate, coefficient: float, variance: float, rel: float = 1e-8) -> None:
    assert got.estimate == pytest.approx(coefficient, rel=rel)
    assert got.variance == pytest.approx(variance, rel=10 * rel)


PRODUCTS = (
    ("age:sbp", ("sex",), "age + sbp + sex + age:sbp", "age:sbp"),
    ("sex:age", (), "age + sex + sex:age", "sex:age"),
    ("ward[c]:age", ("sbp",), "C(ward) + age + C(ward):age + sbp", "C(ward)[T.2.0]:age"),
    ("sex:ward[b]", ("age",), "age + sex + C(ward) + sex:C(ward)", "sex:C(ward)[T.1.0]"),
    ("stage:age", ("sex:sbp",), "age + stage + stage:age + sex*sbp", "stage:age"),
)


@pytest.mark.parametrize(("term", "adjust", "right", "name"), PRODUCTS)
@pytest.mark.parametrize("model", ["ols", "logistic", "poisson"])
def test_a_product_is_that_of_raw_columns(
    model: str, term: str, adjust: tuple[str, ...], right: str, name: str
) -> None:
    peer = fit_formula(model, right)
    same(ask(model, term, *adjust), peer.params[name], peer.bse[name] ** 2)


@pytest.mark.parametrize(("term", "adjust", "right", "name"), PRODUCTS)
def test_a_product_of_a_hazard_is_that_of_raw_columns(
    term: str, adjust: tuple[str, ...], right: str, name: str
) -> None:
    coefficients, variances = fit_hazard(right)
    same(ask("cox", term, *adjust), coefficients[name], variances[name])


def test_per_is_of_the_product() -> None:
    one = ask("ols", "age:sbp", "sex")
    asked = Estimand("x", "ols", "score", "age:sbp", per=100, adjust=("sex",))
    hundred = estimate(TABLE, SCHEMA, asked)
    assert hundred.estimate == pytest.approx(100 * one.estimate, rel=1e-12)
    assert hundred.variance == pytest.approx(1e4 * one.variance, rel=1e-12)


@pytest.mark.parametrize("model", ["ols", "logistic", "poisson"])
@pytest.mark.parametrize("strata", [("stage",), ("ward", "stage")])
def test_strata_are_an_intercept_for_each_combination(model: str, strata: tuple[str, ...]) -> None:
    peer = fit_formula(model, f"{' : '.join(f'C({s})' for s in strata)} + sex + age")
    same(ask(model, "age", "sex", strata=strata), peer.params["age"], peer.bse["age"] ** 2)


@pytest.mark.parametrize("strata", [("stage",), ("ward", "stage")])
def test_strata_of_a_hazard_are_baselines(strata: tuple[str, ...]) -> None:
    codes = FRAME[list(strata)].astype(int).astype(str).agg("".join, axis=1)
    coefficients, variances = fit_hazard("sex + age + sex:age", strata=codes)
    got = ask("cox", "sex:age", strata=strata)
    same(got, coefficients["sex:age"], variances["sex:age"])
    frame = FRAME.drop(columns=["score", "ill", "visits", "sbp"])
    frame = frame.drop(columns={"ward", "stage"} - {*strata}).assign(both=FRAME.sex * FRAME.age)
    peer = CoxPHFitter().fit(
        frame, "time", "dead", strata=list(strata), fit_options={"precision": 1e-12}
    )
    same(got, peer.params_["both"], peer.standard_errors_["both"] ** 2, 1e-7)


def test_strata_agree_with_r() -> None:
    """coxph(Surv(time, status) ~ age + sex + ph.ecog + strata(inst), lung, ties = "efron")."""
    with (DATA / "lung.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    oracle = json.loads((DATA / "meta_analysis.json").read_text(encoding="utf-8"))
    gold = oracle["cox_lung"]["efron"]["age_sex_phecog_strata_inst"]
    places = sorted({r["inst"] for r in rows if r["inst"]}, key=int)

    def column(name: str) -> Array:
        return np.array([float(r[name]) if r[name] else math.nan for r in rows])

    table = {
        "time": column("time"),
        "dead": column("status") - 1,
        "age": column("age"),
        "sex": column("sex") - 1,
        "ecog": column("ph.ecog"),
        "inst": np.array([places.index(r["inst"]) if r["inst"] else math.nan for r in rows]),
    }
    schema = Schema(
        (
            Column("time", "duration", upper=1100.0, decimals=0, event="dead"),
            Column("dead", "event"),
            Column("age", "integer", lower=0.0, upper=120.0),
            Column("sex", "binary"),
            Column("ecog", "ordered", levels=("0", "1", "2", "3")),
            Column("inst", "categorical", levels=tuple(places)),
        )
    )
    terms = {"age": "age", "sex": "sex", "ecog": "ph.ecog"}
    for i, (term, name) in enumerate(terms.items()):
        others = tuple(t for t in terms if t != term)
        asked = Estimand("x", "cox", "time", term, adjust=others, strata=("inst",))
        got = estimate(table, schema, asked)
        assert (got.n, got.events) == (gold["n"], gold["nevent"])
        same(got, gold["coef"][name], gold["vcov"][i][i])


KNOTS = {"spline(age, 3)": (30, 50, 70, 90), "spline(age, 45, 55, 60, 75)": (45, 55, 60, 75)}


def natural(column: str, knots: tuple[float, ...]) -> str:
    """The same space by patsy: another basis, with the same knots."""
    first, *inner, last = knots
    return f"cr({column}, knots={inner}, lower_bound={first}, upper_bound={last})"


@pytest.mark.parametrize("spline", KNOTS)
@pytest.mark.parametrize("model", ["ols", "logistic", "poisson"])
def test_a_spline_is_the_natural_one(model: str, spline: str) -> None:
    """What it adjusts for is the space that its columns span, and not which columns they are."""
    peer = fit_formula(model, f"{natural('age', KNOTS[spline])} + sex - 1")
    same(ask(model, "sex", spline), peer.params["sex"], peer.bse["sex"] ** 2)


@pytest.mark.parametrize("spline", KNOTS)
def test_a_spline_of_a_hazard_is_the_natural_one(spline: str) -> None:
    design = np.asarray(dmatrix(f"{natural('age', KNOTS[spline])} - 1", FRAME))[:, 1:]
    peer = PHReg(
        FRAME["time"], np.column_stack([design, FRAME["sex"]]), status=FRAME["dead"], ties="efron"
    )
    fitted = peer.fit(maxiter=100, disp=0)
    same(ask("cox", "sex", spline), fitted.params[-1], fitted.cov_params()[-1, -1])


def test_a_spline_is_straight_beyond_its_knots_and_smooth_between() -> None:
    knots, x = (1.0, 2.0, 4.0, 7.0), np.linspace(-3, 12, 30001)
    for number in (1, 2):
        y = bend_column(x, knots, number)
        slope = np.gradient(y, x)
        bend = np.gradient(slope, x)
        assert np.abs(bend[x < 0.99]).max() < 1e-6
        assert np.abs(bend[5:-5][x[5:-5] > 7.01]).max() < 1e-6
        assert np.abs(np.diff(bend[5:-5])).max() < 1e-2
        assert np.abs(bend).max() > 0.1


def test_knots_follow_from_public_bounds_alone() -> None:
    linear, logs = (
        Column("x", "continuous", 0, 80),
        Column("x", "continuous", 1, 10**4, scale="log"),
    )
    counts = Column("x", "integer", 0, 255, scale="log")
    assert place_knots(linear, Spline("x", 3)) == (10, 30, 50, 70)
    assert place_knots(logs, Spline("x", 3)) == pytest.approx([10**0.5, 10**1.5, 10**2.5, 10**3.5])
    assert place_knots(counts, Spline("x", 3)) == pytest.approx([1, 7, 31, 127])
    assert place_knots(counts, Spline("x", None, (1, 2, 9))) == (1, 2, 9)


SUBGROUPS = (
    ("sex == 'M'", lambda t: t["sex"] == 1),
    ("age >= 60", lambda t: t["age"] >= 60),
    ("ward != 'b' and stage > 'I'", lambda t: (t["ward"] != 1) & (t["stage"] > 0)),
    ("stage <= 'II' and sbp < 140.5", lambda t: (t["stage"] <= 1) & (t["sbp"] < 140.5)),
)


@pytest.mark.parametrize("model", [*OUTCOMES, "mean"])
@pytest.mark.parametrize(("where", "members"), SUBGROUPS)
def test_a_subgroup_is_the_table_without_the_others(model: str, where: str, members: Any) -> None:
    more = ("sbp", 10.0, ("age",)) if model != "mean" else ("", 1.0, ())
    outcome = OUTCOMES.get(model, "score")
    alone = {name: values[members(TABLE)] for name, values in TABLE.items()}
    got = estimate(TABLE, SCHEMA, Estimand("x", model, outcome, *more, where=where))
    assert got == estimate(alone, SCHEMA, Estimand("x", model, outcome, *more))
    assert got.problem is None
    assert got.n < len(TABLE["age"])


def test_a_row_of_which_the_subgroup_is_unknown_is_in_none() -> None:
    unknown = TABLE | {"sex": np.where(np.arange(900) < 100, math.nan, TABLE["sex"])}
    counts = [
        estimate(unknown, SCHEMA, Estimand("x", "ols", "score", "age", where=f"sex {sign} 'M'")).n
        for sign in ("==", "!=")
    ]
    assert sum(counts) == 800


@pytest.mark.parametrize("where", ["age > 99.9", "sex == 'M' and sex == 'F'"])
def test_an_empty_subgroup_is_a_problem_of_the_table(where: str) -> None:
    found = estimate(TABLE, SCHEMA, Estimand("x", "ols", "score", "sbp", where=where))
    assert found.problem is not None
    assert found.problem.startswith("too few complete rows")


@pytest.mark.parametrize("model", OUTCOMES)
def test_a_term_that_strata_say_all_of_is_a_problem(model: str) -> None:
    same_in_each = TABLE | {"sbp": 100 + 10 * TABLE["stage"]}
    asked = Estimand("x", model, OUTCOMES[model], "sbp", strata=("stage",))
    found = estimate(same_in_each, SCHEMA, asked)
    assert found.problem == "the term is constant or a linear combination of other columns"


@pytest.mark.parametrize("model", OUTCOMES)
@pytest.mark.parametrize("seed", range(10))
def test_no_table_raises(model: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    odd = np.array([0.0, 1.0, -1.0, 2.0, 0.5, np.nan, np.inf, 1e300, -1e300, 1e-300, 60.0])
    table = {name: values[:200].copy() for name, values in TABLE.items()}
    for name in rng.permutation(list(table))[:3]:
        table[name] = np.where(rng.random(200) < 0.3, rng.choice(odd, 200), table[name])
    more: dict[str, Any] = {"adjust": ("spline(sbp, 4)", "ward"), "strata": ("stage",)}
    for where in ("", "age > 50"):
        asked = Estimand("x", model, OUTCOMES[model], "sex:age", 10.0, where=where, **more)
        got = estimate(table, SCHEMA, asked)
        usable = math.isfinite(got.estimate) and 0 < got.variance < math.inf
        assert usable == (got.problem is None) == got.converged


@pytest.mark.parametrize("model", OUTCOMES)
@pytest.mark.parametrize("term", ["age:sbp", "sex:age", "ward[b]:sex", "stage:age"])
def test_no_table_has_less_variance_than_the_floor(model: str, term: str) -> None:
    """Tables at the corners of public bounds come near it."""
    rng, asked = np.random.default_rng(7), Estimand("x", model, OUTCOMES[model], term)
    least = math.inf
    for _ in range(40):
        n = 400
        ends = {c.name: c.bounds if c.kind == "continuous" else (0.0, 1.0) for c in SCHEMA.columns}
        ends["stage"] = (0.0, 2.0)
        table = {name: rng.choice(both, n) for name, both in ends.items()}
        table["time"], table["dead"] = rng.uniform(1, 2, n), np.ones(n)
        table["score"] = rng.normal(0, 1e-3, n).round(1)
        table["visits"] = np.full(n, 100.0) - (rng.random(n) < 0.01)
        got = estimate(table, SCHEMA, asked)
        if got.problem is None:
            floor = variance_floor(SCHEMA, asked, n)
            assert got.variance >= floor * (1 - 1e-9)
            least = min(least, got.variance / floor if floor else math.inf)
    if model in ("logistic", "cox"):
        assert least < 3


def test_a_design_has_all_levels_of_a_product_and_the_term_last() -> None:
    asked = Estimand("x", "ols", "score", "ward[b]:stage", adjust=("spline(age, 3)",))
    assert [t.name for t in design_terms(SCHEMA, asked)] == [
        "age",
        "spline(age)1",
        "spline(age)2",
        "ward=b",
        "ward=c",
        "stage",
        "ward=c:stage",
        "ward=b:stage",
    ]

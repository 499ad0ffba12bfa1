"""Contrasts by a term that are no coefficients of sums: against other libraries, and their law."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from lifelines import LogNormalAFTFitter, WeibullAFTFitter
from lifelines.datasets import load_gbsg2
from scipy import optimize, stats

from penstock.mechanisms import Gibbs, Maf, Scoring
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import Estimate, estimate
from penstock.questions.suitability import estimand_problems
from penstock.schema import Coded, Column, Schema

EXACT = 1e-8
SCHEMA = Schema(
    (
        Column("years", "duration", upper=10, decimals=3, event="relapsed"),
        Column("relapsed", "event"),
        Column("early", "binary"),
        Column("therapy", "binary", levels=("no", "yes")),
        Column("grade", "categorical", levels=("I", "II", "III")),
        Column("stage", "ordered", levels=("I", "II", "III")),
        Column("age", "integer", lower=18, upper=99),
        Column("size", "integer", lower=0, upper=200),
    )
)
DIFFERENCE = Estimand("d", "risk-difference", "early", "therapy")
RATIO = Estimand("r", "risk-ratio", "early", "therapy")
ADJUST = ("age", "size", "grade")
BOTH = [DIFFERENCE, RATIO]


@cache
def cohort() -> Coded:
    """686 women of the German Breast Cancer Study Group, as lifelines has them."""
    read = load_gbsg2()
    grade = read["tgrade"].map({"I": 0.0, "II": 1.0, "III": 2.0}).to_numpy()
    time, relapsed = read["time"].to_numpy() / 365.25, read["cens"].to_numpy(dtype=float)
    return {
        "years": time,
        "relapsed": relapsed,
        "early": ((relapsed > 0) & (time < 3)) * 1.0,
        "therapy": (read["horTh"] == "yes").to_numpy() * 1.0,
        "grade": grade,
        "stage": grade,
        "age": read["age"].to_numpy(dtype=float),
        "size": read["tsize"].to_numpy(dtype=float),
    }


def ask(asked: Estimand, table: Coded | None = None) -> Estimate:
    assert estimand_problems(asked, SCHEMA.columns) == []
    return estimate(cohort() if table is None else table, SCHEMA, asked)


# Risks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", BOTH)
@pytest.mark.parametrize("where", ["", "age >= 50"])
def test_without_covariates_a_risk_is_a_share(asked: Estimand, where: str) -> None:
    found, table = ask(replace(asked, where=where)), cohort()
    kept = table["age"] >= (50 if where else 0)
    arms = [table["early"][kept & (table["therapy"] == arm)] for arm in (0, 1)]
    (p0, n0), (p1, n1) = ((arm.mean(), len(arm)) for arm in arms)
    if asked is DIFFERENCE:
        value, variance = p1 - p0, p1 * (1 - p1) / n1 + p0 * (1 - p0) / n0
    else:
        value, variance = math.log(p1 / p0), (1 - p1) / (p1 * n1) + (1 - p0) / (p0 * n0)
    assert found.estimate == pytest.approx(value, abs=EXACT)
    assert found.variance == pytest.approx(variance, rel=EXACT)
    assert (found.n, found.events) == (kept.sum(), table["early"][kept].sum())


def standardise(asked: Estimand, level: float) -> tuple[float, float]:
    """By statsmodels' fit, and a gradient by differences of the estimate itself."""
    table = cohort()

    def design(term: np.ndarray) -> np.ndarray:
        with_term = {**table, asked.term: term}
        columns = [with_term["age"] / 10, with_term["size"] / 10]
        columns += [(with_term["grade"] == k) * 1.0 for k in (1, 2)] + [with_term["therapy"]]
        return np.column_stack([np.ones(len(term)), *columns])

    fitted = sm.GLM(table["early"], design(table[asked.term]), sm.families.Binomial())
    fitted = fitted.fit(tol=1e-14, maxiter=100)
    arms = [design(np.full(686, value)) for value in (0.0, level)]

    def contrast(beta: np.ndarray) -> float:
        low, high = ((1 / (1 + np.exp(-(arm @ beta)))).mean() for arm in arms)
        return float(high - low if "difference" in asked.model else math.log(high / low))

    # Richardson's of central differences: its error is of the order h⁴.
    steps = np.eye(len(fitted.params))
    slopes = [
        [
            (contrast(fitted.params + h * s) - contrast(fitted.params - h * s)) / (2 * h)
            for s in steps
        ]
        for h in (1e-3, 2e-3)
    ]
    gradient = (4 * np.array(slopes[0]) - np.array(slopes[1])) / 3
    return contrast(fitted.params), float(gradient @ fitted.cov_params() @ gradient)


@pytest.mark.parametrize("asked", BOTH)
@pytest.mark.parametrize(("term", "level", "place"), [("therapy", None, 1), ("grade", "III", 2)])
def test_standardised_risks_agree_with_statsmodels(
    asked: Estimand, term: str, level: str | None, place: int
) -> None:
    adjust = tuple(x for x in (*ADJUST, "therapy") if x != term)
    asked = replace(asked, term=term, level=level, adjust=adjust)
    found, (value, variance) = ask(asked), standardise(asked, place)
    assert found.estimate == pytest.approx(value, abs=EXACT)
    assert found.variance == pytest.approx(variance, rel=EXACT)


def test_strata_are_intercepts_of_their_own() -> None:
    by_strata = ask(replace(DIFFERENCE, adjust=("age",), strata=("grade",)))
    adjusted = ask(replace(DIFFERENCE, adjust=("age", "grade")))
    assert by_strata.estimate == pytest.approx(adjusted.estimate, abs=EXACT)
    assert by_strata.variance == pytest.approx(adjusted.variance, rel=EXACT)


@pytest.mark.parametrize("asked", BOTH)
def test_an_arm_without_an_event_has_no_risk(asked: Estimand) -> None:
    table = cohort()
    never = {**table, "early": table["early"] * (table["therapy"] == 0)}
    assert ask(asked, never).problem is not None
    assert "constant" in str(ask(asked, {**table, "therapy": np.zeros(686)}).problem)


# Failure times ---------------------------------------------------------------------------------

WEIBULL = Estimand("w", "weibull", "years", "therapy")
LOG_NORMAL = replace(WEIBULL, model="log-normal")
TIMES = [WEIBULL, LOG_NORMAL]


def likelihood(asked: Estimand, design: np.ndarray, theta: np.ndarray) -> float:
    """By scipy's laws, in (β, log σ)."""
    table = cohort()
    z = (np.log(table["years"]) - design @ theta[:-1]) / math.exp(theta[-1])
    law = stats.gumbel_l if asked.model == "weibull" else stats.norm
    ended = table["relapsed"] > 0
    return float((law.logpdf(z[ended]) - theta[-1]).sum() + law.logsf(z[~ended]).sum())


@pytest.mark.parametrize("asked", TIMES)
@pytest.mark.parametrize("per", [1.0, 10.0])
def test_failure_times_agree_with_lifelines(asked: Estimand, per: float) -> None:
    """As near as lifelines ends its search: of the log-normal 1e-8 of likelihood short, which is
    about 1e-4 of a standard error. What is exact, the next test says."""
    asked = replace(asked, term="age", adjust=("therapy", "size", "grade"), per=per)
    table = cohort()
    rows = {name: table[name] for name in ("years", "relapsed", "age", "therapy", "size")}
    rows |= {f"grade{k}": (table["grade"] == k) * 1.0 for k in (1, 2)}
    fitter = (WeibullAFTFitter if asked.model == "weibull" else LogNormalAFTFitter)()
    fitter.fit(pd.DataFrame(rows), "years", "relapsed")
    found, name = ask(asked), "lambda_" if asked.model == "weibull" else "mu_"
    their = fitter.params_[name]["age"] * per
    assert found.estimate == pytest.approx(their, abs=1e-3 * math.sqrt(found.variance))
    error = fitter.standard_errors_[name]["age"] * per
    assert math.sqrt(found.variance) == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize("asked", TIMES)
def test_failure_times_are_at_the_maximum_of_scipys_likelihood(asked: Estimand) -> None:
    """Of a 0/1 term, by a search of its own, from least squares on."""
    table = cohort()
    design = np.column_stack([np.ones(686), (table["age"] - 53) / 10, table["therapy"]])
    found = ask(replace(asked, adjust=("age",)))
    y = np.log(table["years"])
    start = np.append(np.linalg.lstsq(design, y, rcond=None)[0], math.log(y.std()))

    def slopes(theta: np.ndarray) -> np.ndarray:
        z = (np.log(table["years"]) - design @ theta[:-1]) / math.exp(theta[-1])
        ended = table["relapsed"]
        if asked.model == "weibull":
            bent = ended - np.exp(z)
        else:
            bent = np.where(ended > 0, -z, -np.exp(stats.norm.logpdf(z) - stats.norm.logsf(z)))
        return np.append(-(design.T @ bent) / math.exp(theta[-1]), -(z @ bent) - ended.sum())

    near = optimize.minimize(
        lambda theta: -likelihood(asked, design, theta), start, jac=lambda theta: -slopes(theta)
    )
    there = optimize.root(slopes, near.x, tol=1e-13).x
    assert np.abs(slopes(there)).max() < 1e-9
    assert found.estimate == pytest.approx(there[2], abs=EXACT)
    step = np.eye(4) * 1e-4
    bends = [
        [(slopes(there + h * s) - slopes(there - h * s)) / (2 * h) for s in np.eye(4)]
        for h in (1e-3, 2e-3)
    ]
    information = -(4 * np.array(bends[0]) - np.array(bends[1])) / 3
    assert found.variance == pytest.approx(np.linalg.inv(information)[2, 2], rel=EXACT)
    peak = likelihood(asked, design, there)
    assert all(likelihood(asked, design, there + s) < peak for s in (*step, *-step))


@pytest.mark.parametrize("asked", TIMES)
def test_a_time_of_0_is_the_middle_of_what_is_rounded_to_it(asked: Estimand) -> None:
    table = cohort()
    shortest = table["years"].argmin()
    with_zero, with_quarter = table["years"].copy(), table["years"].copy()
    with_zero[shortest], with_quarter[shortest] = 0.0, 0.00025
    found = ask(asked, {**table, "years": with_zero})
    assert found == ask(asked, {**table, "years": with_quarter})
    plain = replace(SCHEMA, columns=(replace(SCHEMA["years"], decimals=None), *SCHEMA.columns[1:]))
    refused = estimate({**table, "years": with_zero}, plain, asked)
    assert "is 0, which has no logarithm" in str(refused.problem)


@pytest.mark.parametrize("asked", TIMES)
@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"relapsed": np.zeros(686)}, "too few events"),
        ({"years": np.full(686, -1.0)}, "a duration is negative"),
        ({"years": np.full(686, 2.0)}, "constant"),
        ({"therapy": np.ones(686)}, "constant"),
    ],
)
def test_a_table_without_failure_times_has_a_problem(
    asked: Estimand, changed: Coded, problem: str
) -> None:
    assert problem in str(ask(asked, {**cohort(), **changed}).problem)


# Law -------------------------------------------------------------------------------------------

LAW = [
    replace(DIFFERENCE, adjust=ADJUST),
    replace(RATIO, adjust=ADJUST),
    Estimand("m", "rmst", "years", until=4),
    Estimand("c", "correlation", "age", "size"),
    replace(LOG_NORMAL, adjust=ADJUST),
]
DRAWN, TABLES = 400, 300


@pytest.mark.parametrize("asked", LAW, ids=lambda asked: asked.model)
def test_intervals_hold_the_truth_of_the_table_that_rows_are_drawn_from(asked: Estimand) -> None:
    """Of 300 tables .95 has an sd of .0126: .879 is 5.6 of them below. Half the error holds .67."""
    table, rng = cohort(), np.random.default_rng(11)
    truth, held, held_by_half = ask(asked).estimate, 0, 0
    for _ in range(TABLES):
        chosen = rng.integers(0, 686, DRAWN)
        found = ask(asked, {name: values[chosen] for name, values in table.items()})
        off = abs(found.estimate - truth) / math.sqrt(found.variance)
        held, held_by_half = held + (off < 1.959964), held_by_half + (off < 0.979982)
    assert 0.879 < held / TABLES < 0.995
    assert held_by_half / TABLES < 0.879


# What does not suit ----------------------------------------------------------------------------

EVERY = [*BOTH, *TIMES]
WRONG = [
    ({"model": "risk-ratio", "outcome": "early"}, "term: is missing"),
    ({"model": "weibull", "outcome": "age", "term": "size"}, "outcome: column 'age' is of kind"),
    ({"model": "weibull", "outcome": "years"}, "term: is missing"),
    ({"model": "weibull", "outcome": "years", "term": "grade"}, "level: must be a level"),
    ({"model": "log-normal", "outcome": "years", "term": "age", "at": 2}, "at: has no meaning"),
    ({"model": "log-normal", "outcome": "years", "term": "years"}, "term: appears twice"),
    ({"term": "age"}, "term: must be one column with levels that have no order"),
    ({"term": "stage"}, "term: must be one column with levels that have no order"),
    ({"term": "therapy:grade[II]"}, "term: must be one column with levels"),
    ({"term": "grade"}, "level: must be a level of the term other than its first"),
    ({"term": "therapy", "per": 10}, "per: has no meaning for a term with levels"),
    ({"term": "therapy", "adjust": ("therapy:age",)}, "adjust: has a product with the term"),
    ({"term": "therapy", "outcome": "age"}, "outcome: column 'age' is of kind"),
    ({"term": "therapy", "at": 3}, "at: has no meaning for a risk-difference"),
    ({"term": "therapy", "exposure": "age"}, "exposure: has no meaning for a risk-difference"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_what_does_not_suit_is_said(given: dict[str, object], message: str) -> None:
    plain = {"name": "e", "model": "risk-difference", "outcome": "early"}
    try:
        asked = Estimand(**{**plain, **given})  # type: ignore[arg-type]
        problems = estimand_problems(asked, SCHEMA.columns)
    except Exception as error:
        problems = error.problems  # type: ignore[attr-defined]
    found = [f"{p.where}: {p.message}" for p in problems]
    assert any(message in text for text in found), found


@pytest.mark.parametrize("asked", EVERY, ids=lambda asked: asked.model)
def test_sums_and_chains_refuse_them_and_tables_do_not(asked: Estimand) -> None:
    [refused] = Scoring().problems(SCHEMA, [asked])
    assert (refused.message, refused.value) == ("is no number that noisy sums hold", asked.model)
    assert "has no coefficient" in [p.message for p in Gibbs().problems(SCHEMA, [asked])]
    assert not Maf().problems(SCHEMA, [asked])


@pytest.mark.parametrize("asked", EVERY, ids=lambda asked: asked.model)
@pytest.mark.parametrize("seed", range(5))
def test_no_table_raises(asked: Estimand, seed: int) -> None:
    rng = np.random.default_rng(seed)
    wild = np.array([-np.inf, -1e300, -1.0, 0.0, 0.5, 1.0, 7.0, 1e300, np.inf, np.nan])
    found = ask(asked, {name: rng.choice(wild, 200) for name in SCHEMA.names})
    assert found.problem is not None or 0 < found.variance < math.inf

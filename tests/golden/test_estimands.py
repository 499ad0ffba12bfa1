"""Estimands against R's survival, glm and lm on the lung data (tests/golden/data/meta_analysis.R),
and what becomes of tables that identify nothing.

Tolerance 1e-10 relative for coefficients and 1e-8 for variances: the largest deviations seen are
5e-15 and 3e-12 (logistic: statsmodels' covariance comes from the step before the last).
"""

from __future__ import annotations

import csv
import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lifelines import CoxPHFitter
from numpy.typing import NDArray
from statsmodels.discrete.discrete_model import MNLogit, NegativeBinomial, Poisson
from statsmodels.miscmodels.ordinal_model import OrderedModel

from penstock.base.errors import PenstockError
from penstock.inference.combine import combine
from penstock.inference.refits import Spread, spread, widened
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import Estimate, estimate
from penstock.questions.fits import TABLE_MODELS
from penstock.schema import Column, Schema

Array = NDArray[np.float64]
DATA = Path(__file__).parent / "data"
ORACLE: dict[str, Any] = json.loads((DATA / "meta_analysis.json").read_text(encoding="utf-8"))

SCHEMA = Schema(
    (
        Column("time", "duration", upper=1100.0, decimals=0, event="dead"),
        Column("dead", "event"),
        Column("age", "integer", lower=0.0, upper=120.0),
        Column("sex", "binary"),
        Column("ecog", "ordered", levels=("0", "1", "2", "3"), nullable=True),
        Column("ward", "categorical", levels=("a", "b", "c")),
        Column("visits", "integer", lower=0.0, upper=100.0),
        Column("pain", "ordered", levels=("none", "some", "much", "most")),
    )
)
OUTCOMES = {
    "ols": "time",
    "logistic": "dead",
    "cox": "time",
    "poisson": "visits",
    "negative-binomial": "visits",
    "ordinal": "pain",
}
COUNTS = ("poisson", "negative-binomial")


def lung() -> dict[str, Array]:
    with (DATA / "lung.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))

    def column(name: str) -> Array:
        return np.array([float(r[name]) if r[name] else math.nan for r in rows])

    return {
        "time": column("time"),
        "dead": column("status") - 1,
        "age": column("age"),
        "sex": column("sex") - 1,
        "ecog": column("ph.ecog"),
        "ward": (np.arange(len(rows)) % 3).astype(float),
        "visits": (np.arange(len(rows)) * 7 % 11).astype(float),
        "pain": (np.arange(len(rows)) * 5 % 7 // 2).astype(float),
    }


def cohort(**changed: Array) -> dict[str, Array]:
    rng = np.random.default_rng(20261121)
    n = 200
    return {
        "time": rng.exponential(size=n),
        "dead": (rng.random(n) < 0.5).astype(float),
        "age": rng.normal(60, 5, n),
        "sex": (rng.random(n) < 0.5).astype(float),
        "ecog": rng.integers(0, 4, n).astype(float),
        "ward": rng.integers(0, 3, n).astype(float),
        "visits": rng.poisson(2.0, n).astype(float),
        "pain": rng.integers(0, 4, n).astype(float),
        **changed,
    }


def ask(
    model: str, term: str, *adjust: str, per: float = 1.0, level: str | None = None
) -> Estimand:
    return Estimand("x", model, OUTCOMES[model], term, per=per, adjust=adjust, level=level)


GOLDEN = (
    ("cox", ("age", "sex"), ORACLE["cox_lung"]["efron"]["age_sex"], 0),
    ("cox", ("age", "sex", "ecog"), ORACLE["cox_lung"]["efron"]["age_sex_phecog"], 0),
    ("logistic", ("age", "sex", "ecog"), ORACLE["glm_logistic_lung"], 1),
    ("ols", ("age", "sex"), ORACLE["ols_lung_time"], 1),
)


@pytest.mark.parametrize(("model", "terms", "gold", "offset"), GOLDEN)
def test_estimates_agree_with_r(
    model: str, terms: tuple[str, ...], gold: dict[str, Any], offset: int
) -> None:
    frame = lung()
    for i, term in enumerate(terms):
        got = estimate(frame, SCHEMA, ask(model, term, *(t for t in terms if t != term)))
        name = "ph.ecog" if term == "ecog" else term
        assert got.estimate == pytest.approx(gold["coef"][name], rel=1e-10)
        variance = gold["vcov"][i + offset][i + offset]
        assert got.variance == pytest.approx(variance, rel=1e-8)


@pytest.mark.parametrize(("gold", "strata"), [("plain", ()), ("strata", ("ward",))])
def test_robust_errors_agree_with_r(gold: str, strata: tuple[str, ...]) -> None:
    """Of the estimand, in its units, beside the same coefficient."""
    told = json.loads((DATA / "robust_cox.json").read_text(encoding="utf-8"))[gold]
    asked = replace(ask("cox", "sex", "age", per=1.0), strata=strata)
    plain = estimate(lung(), SCHEMA, asked)
    robust = estimate(lung(), SCHEMA, replace(asked, errors="robust"))
    assert robust.estimate == plain.estimate == pytest.approx(told["coef"]["sex"], rel=1e-9)
    assert plain.variance == pytest.approx(told["model"][1][1], rel=1e-9)
    assert robust.variance == pytest.approx(told["robust"][1][1], rel=1e-9)
    ten = estimate(lung(), SCHEMA, ask("cox", "age", "sex", per=10.0))
    more = replace(ask("cox", "age", "sex", per=10.0), errors="robust")
    assert estimate(lung(), SCHEMA, more).estimate == ten.estimate


def test_a_term_that_separates_is_not_identified_with_robust_errors_either() -> None:
    """Its sandwich is small: only the model's variance shows it."""
    time = np.arange(1.0, 201.0)
    sex = (time <= 100).astype(float)
    frame = cohort(time=time, dead=sex, sex=sex)
    asked = replace(ask("cox", "sex"), errors="robust")
    assert estimate(frame, SCHEMA, asked).problem is not None


def test_counts_agree_with_r() -> None:
    got = estimate(lung(), SCHEMA, ask("cox", "age", "sex", "ecog"))
    gold = ORACLE["cox_lung"]["efron"]["age_sex_phecog"]
    assert (got.n, got.events, got.converged) == (gold["n"], gold["nevent"], True)


@pytest.mark.parametrize("model", OUTCOMES)
def test_per_scales_the_coefficient(model: str) -> None:
    one = estimate(lung(), SCHEMA, ask(model, "age", "sex"))
    ten = estimate(lung(), SCHEMA, ask(model, "age", "sex", per=10.0))
    assert ten.estimate == pytest.approx(10 * one.estimate, rel=1e-12)
    assert ten.variance == pytest.approx(100 * one.variance, rel=1e-12)


@pytest.mark.parametrize("model", OUTCOMES)
def test_a_level_is_compared_with_the_first_one(model: str) -> None:
    frame = cohort()
    got = estimate(frame, SCHEMA, ask(model, "ward", "age", level="b"))
    dummies = Schema((*SCHEMA.columns, Column("b", "binary"), Column("c", "binary")))
    frame |= {level: (frame["ward"] == i).astype(float) for i, level in ((1, "b"), (2, "c"))}
    want = estimate(frame, dummies, ask(model, "b", "c", "age"))
    assert got.problem is None
    assert got.estimate == pytest.approx(want.estimate, rel=1e-9)
    assert got.variance == pytest.approx(want.variance, rel=1e-9)


@pytest.mark.parametrize("model", OUTCOMES)
def test_an_empty_level_of_an_adjustment_column_is_left_out(model: str) -> None:
    frame = cohort(ward=np.ones(200))
    got = estimate(frame, SCHEMA, ask(model, "age", "ward"))
    want = estimate(frame, SCHEMA, ask(model, "age"))
    assert got.problem is None
    assert (got.estimate, got.variance) == pytest.approx((want.estimate, want.variance), rel=1e-9)


def test_missing_values_are_dropped_row_by_row() -> None:
    frame = cohort()
    holes = frame["age"].copy()
    holes[:30] = np.nan
    holes[30:40] = np.inf
    got = estimate(frame | {"age": holes}, SCHEMA, ask("ols", "age", "sex"))
    want = estimate({k: v[40:] for k, v in frame.items()}, SCHEMA, ask("ols", "age", "sex"))
    assert got == want
    assert got.n == 160


N = 200
LINE = np.linspace(0.0, 1.0, N)
DEGENERATE: list[tuple[str, str, dict[str, Array]]] = [
    ("cox", "too few events", {"dead": np.zeros(N)}),
    ("logistic", "too few events", {"dead": np.zeros(N)}),
    ("logistic", "too few events or non-events", {"dead": np.ones(N)}),
    ("cox", "other values than 0 and 1", {"dead": LINE}),
    ("logistic", "other values than 0 and 1", {"dead": LINE}),
    ("cox", "negative", {"time": -LINE}),
    ("ols", "outcome is constant", {"time": np.ones(N)}),
    ("ols", "linear function", {"time": LINE, "age": LINE}),
    *(
        (model, problem, {"visits": visits})
        for model in COUNTS
        for problem, visits in (
            ("too few events: 0", np.zeros(N)),
            ("not a count", LINE),
            ("not a count", -np.ones(N)),
            ("not a count", np.full(N, 1e300)),
        )
    ),
    ("ordinal", "too few rows beside one level: 0", {"pain": np.ones(N)}),
    ("ordinal", "other values than levels", {"pain": LINE}),
    ("ordinal", "other values than levels", {"pain": -np.ones(N)}),
    ("ordinal", "other values than levels", {"pain": np.arange(N) * 1e6}),
    ("ordinal", "separation", {"age": LINE, "pain": np.floor(LINE * 3.99)}),
    ("logistic", "separation", {"age": LINE, "dead": (LINE > 0.5).astype(float)}),
    ("cox", "separation", {"age": LINE, "time": 2 - LINE, "dead": np.ones(N)}),
    *(
        (model, problem, changed)
        for model in OUTCOMES
        for problem, changed in (
            ("term is constant", {"age": np.full(N, 60.0)}),
            ("linear combination", {"age": LINE, "ecog": 3 * LINE}),
            ("too few complete rows", {"age": np.full(N, np.nan)}),
            ("too few complete rows", {"age": np.full(N, -np.inf)}),
            ("linear combination", {"age": LINE * 1e300}),
            ("differ in length", {"age": np.zeros(3)}),
            ("differ in length", {"age": np.zeros((N, 2))}),
        )
    ),
]


@pytest.mark.parametrize(("model", "problem", "changed"), DEGENERATE)
def test_a_degenerate_table_has_a_problem_and_no_number(
    model: str, problem: str, changed: dict[str, Array]
) -> None:
    got = estimate(cohort(**changed), SCHEMA, ask(model, "age", "sex", "ecog"))
    assert got.problem is not None
    assert problem in got.problem
    assert math.isnan(got.estimate)
    assert math.isnan(got.variance)
    assert not got.converged


def newton(y: Array, x: Array) -> tuple[Array, Array]:
    """Poisson regression by Newton's method on the log likelihood, in long doubles."""
    x, y = x.astype(np.longdouble), y.astype(np.longdouble)
    theta = np.zeros(x.shape[1], dtype=np.longdouble)
    theta[0] = np.log(y.mean())
    for _ in range(50):
        mean = np.exp(x @ theta)
        hessian = (x.T * mean) @ x
        step = np.linalg.solve(hessian.astype(float), (x.T @ (y - mean)).astype(float))
        theta = theta + step
    return theta.astype(float), np.linalg.inv(hessian.astype(float))


def test_poisson_agrees_with_newtons_method() -> None:
    frame = cohort()
    x = np.column_stack([np.ones(N), frame["age"] - 60, frame["ward"] == 1, frame["ward"] == 2])
    theta, covariance = newton(frame["visits"], x)
    got = estimate(frame, SCHEMA, ask("poisson", "ward", "age", level="c"))
    assert got.estimate == pytest.approx(theta[-1], rel=1e-9)
    assert got.variance == pytest.approx(covariance[-1, -1], rel=1e-8)
    assert got.events == frame["visits"].sum()


def test_poisson_of_two_groups_is_a_ratio_of_counts() -> None:
    """A log rate ratio is log(ȳ₁/ȳ₀), with variance 1/Σy₁ + 1/Σy₀."""
    frame = cohort()
    one, zero = (frame["visits"][frame["sex"] == s] for s in (1, 0))
    got = estimate(frame, SCHEMA, ask("poisson", "sex"))
    assert got.estimate == pytest.approx(math.log(one.mean() / zero.mean()), rel=1e-10)
    assert got.variance == pytest.approx(1 / one.sum() + 1 / zero.sum(), rel=1e-9)


def test_poisson_agrees_with_dobsons_trial() -> None:
    """Dobson 1990, "An Introduction to Generalized Linear Models", as R prints it (``?glm``):
    outcome2 -4.543e-01 (2.022e-01), outcome3 -2.930e-01 (1.927e-01). Its nine rows come twice here,
    which halves variances."""
    counts = np.array([18, 17, 15, 20, 10, 20, 25, 13, 12] * 2, dtype=float)
    frame = {
        "visits": counts,
        "ward": np.tile([0.0, 1, 2], 6),
        "ecog": np.tile(np.repeat([0.0, 1, 2], 3), 2),
    }
    schema = Schema(
        (SCHEMA["ward"], SCHEMA["visits"], Column("ecog", "categorical", levels=tuple("012")))
    )
    for level, coefficient, se in (("b", -0.4543, 0.2022), ("c", -0.2930, 0.1927)):
        got = estimate(frame, schema, ask("poisson", "ward", "ecog", level=level))
        assert got.estimate == pytest.approx(coefficient, abs=5e-5)
        assert math.sqrt(2 * got.variance) == pytest.approx(se, abs=5e-5)


# Rates, and counts that vary more ----------------------------------------------------------------


def falls(more: float, seed: int = 3) -> dict[str, Array]:
    """Counts of 200 persons over ``time``; ``more``: the variance of a rate."""
    frame, rng = cohort(), np.random.default_rng(seed)
    rate = np.exp(0.03 * (frame["age"] - 60) - 0.4 * frame["sex"])
    rate = rate * (rng.gamma(1 / more, more, N) if more else 1.0)
    frame["time"] = frame["time"] + 0.1
    frame["visits"] = rng.poisson(3 * frame["time"] * rate).astype(float)
    return frame


@pytest.mark.parametrize("exposure", ["", "time"])
@pytest.mark.parametrize("model", COUNTS)
@pytest.mark.parametrize("more", [0.05, 0.5, 3.0])
def test_counts_and_rates_agree_with_statsmodels(model: str, more: float, exposure: str) -> None:
    frame = falls(more)
    x = np.column_stack([np.ones(N), frame["sex"], frame["age"] - 60])
    made = {"poisson": Poisson, "negative-binomial": NegativeBinomial}[model]
    peer = made(frame["visits"], x, exposure=frame["time"] if exposure else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Its own steps, from near its maximum until they no longer move.
        first = peer.fit(disp=0, maxiter=1000)
        found = peer.fit(start_params=first.params, method="newton", tol=1e-15, disp=0)
    asked = Estimand("x", model, "visits", "age", adjust=("sex",), exposure=exposure)
    got = estimate(frame, SCHEMA, asked)
    assert got.problem is None
    assert got.estimate == pytest.approx(found.params[2], rel=1e-8)
    assert got.variance == pytest.approx(found.cov_params()[2, 2], rel=1e-8)
    assert got.events == frame["visits"].sum()


def test_a_rate_ratio_of_two_groups_is_a_ratio_of_rates() -> None:
    """log(Σy₁/Σt₁) − log(Σy₀/Σt₀), with variance 1/Σy₁ + 1/Σy₀; and none without an exposure."""
    frame = falls(0.0)
    (y1, t1), (y0, t0) = (
        (frame["visits"][frame["sex"] == s].sum(), frame["time"][frame["sex"] == s].sum())
        for s in (1, 0)
    )
    got = estimate(frame, SCHEMA, Estimand("x", "poisson", "visits", "sex", exposure="time"))
    assert got.estimate == pytest.approx(math.log(y1 / t1 / (y0 / t0)), rel=1e-10)
    assert got.variance == pytest.approx(1 / y1 + 1 / y0, rel=1e-9)
    other = estimate(frame, SCHEMA, ask("poisson", "sex"))
    assert abs(other.estimate - got.estimate) > 0.05


@pytest.mark.parametrize("exposure", ["", "time"])
def test_counts_that_vary_no_more_have_the_poisson_fit(exposure: str) -> None:
    """α's maximum is 0, with words in the report and the same numbers here."""
    frame = falls(0.0)
    frame["visits"] = np.round(3 * frame["time"]) if exposure else np.arange(N) % 2 + 1.0
    own, plain = (
        estimate(frame, SCHEMA, Estimand("x", model, "visits", "age", exposure=exposure))
        for model in ("negative-binomial", "poisson")
    )
    assert plain.problem is None
    assert own == plain


def test_a_rate_whose_times_are_left_out_varies_more() -> None:
    frame = falls(0.0)
    one, other = (
        estimate(frame, SCHEMA, Estimand("x", "negative-binomial", "visits", "age", exposure=by))
        for by in ("time", "")
    )
    assert other.variance > 1.5 * one.variance


@pytest.mark.parametrize("model", COUNTS)
@pytest.mark.parametrize("wrong", [0.0, -1.0])
def test_a_row_without_an_exposure_has_no_rate(model: str, wrong: float) -> None:
    frame = falls(0.5)
    asked = Estimand("x", model, "visits", "age", exposure="time")
    frame["time"][3] = np.nan
    assert estimate(frame, SCHEMA, asked).n == N - 1
    frame["time"][3] = wrong
    assert estimate(frame, SCHEMA, asked).problem == "an exposure is not above 0"


def test_counts_that_are_nearly_all_nothing_have_no_dispersion() -> None:
    """One person has all of them: α grows without limit, or the term is not identified."""
    counts = np.zeros(N)
    counts[5] = 4000.0
    got = estimate(cohort(visits=counts), SCHEMA, ask("negative-binomial", "age", "sex"))
    assert got.problem is not None


@pytest.mark.parametrize("more", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("model", COUNTS)
def test_no_table_of_counts_has_less_variance_than_is_believed(model: str, more: float) -> None:
    """The bound is of any table within the bounds; one that comes near it: a term at its ends, and
    as many events as there can be."""
    asked = ask(model, "sex")
    for seed in range(5):
        frame = falls(more, seed) | {"sex": (np.arange(N) % 2).astype(float)}
        frame["visits"] = np.minimum(frame["visits"], 100)
        least = TABLE_MODELS.of(model).least_variance(SCHEMA, asked, N)
        assert estimate(frame, SCHEMA, asked).variance > least
        full = frame | {"visits": np.full(N, 100.0)}
        assert estimate(full, SCHEMA, asked).variance == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("outcome", ["age", "time", "dead"])
def test_a_mean_has_the_variance_of_a_mean(outcome: str) -> None:
    frame = cohort()
    frame[outcome][:10] = np.nan
    known = frame[outcome][10:]
    got = estimate(frame, SCHEMA, Estimand("x", "mean", outcome))
    assert got.estimate == pytest.approx(known.mean(), rel=1e-14)
    assert got.variance == pytest.approx(known.var(ddof=1) / 190, rel=1e-12)
    assert (got.n, got.events, got.converged, got.problem) == (190, None, True, None)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (np.ones(N), "constant"),
        (np.zeros(N), "constant"),
        (np.full(N, np.nan), "too few"),
        (LINE * 1e300, "overflows"),
    ],
)
def test_a_mean_of_a_degenerate_column_is_a_problem(values: Array, problem: str) -> None:
    got = estimate({"age": values}, SCHEMA, Estimand("x", "mean", "age"))
    assert got.problem is not None
    assert problem in got.problem
    assert math.isnan(got.estimate)


@pytest.mark.parametrize("model", ["logistic", "cox"])
def test_a_level_without_events_is_a_problem(model: str) -> None:
    """Quasi-separation: the fit may stop on its flat likelihood and call itself converged."""
    frame = cohort()
    frame["sex"] = np.where(frame["dead"] == 1, 1.0, frame["sex"])
    got = estimate(frame, SCHEMA, ask(model, "sex", "age"))
    assert got.problem is not None
    assert "separation" in got.problem


def test_a_nearly_collinear_term_is_a_problem() -> None:
    """The fit converges here, to a variance of 1e6 times that of an unrelated term."""
    frame = cohort()
    rng = np.random.default_rng(1)
    frame["ecog"] = frame["age"] + 1e-3 * rng.normal(size=N)
    got = estimate(frame, SCHEMA, ask("logistic", "age", "ecog"))
    assert got.problem == "the term is hardly identified (separation or collinearity)"


@pytest.mark.parametrize("model", OUTCOMES)
@pytest.mark.parametrize("seed", range(20))
def test_no_table_raises(model: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    odd = np.array([0.0, 1.0, -1.0, 2.0, 0.5, np.nan, np.inf, 1e300, -1e300, 1e-300, 60.0])
    frame = cohort()
    for name in rng.permutation(list(frame))[:3]:
        frame[name] = np.where(rng.random(N) < 0.3, rng.choice(odd, N), frame[name])
    got = estimate(frame, SCHEMA, ask(model, "age", "sex", "ecog", "ward"))
    usable = math.isfinite(got.estimate) and 0 < got.variance < math.inf
    assert usable == (got.problem is None) == got.converged


@pytest.mark.parametrize("model", OUTCOMES)
@pytest.mark.parametrize("rows", [0, 1, 4, 9])
def test_a_short_table_has_a_problem(model: str, rows: int) -> None:
    frame = {name: values[:rows] for name, values in cohort().items()}
    got = estimate(frame, SCHEMA, ask(model, "age", "sex", "ecog"))
    assert got.problem == f"too few complete rows: {rows}"


def test_a_missing_column_is_a_problem_of_the_table() -> None:
    frame = cohort()
    del frame["sex"]
    assert estimate(frame, SCHEMA, ask("ols", "age", "sex")).problem == "the table lacks sex"


@pytest.mark.parametrize(
    ("model", "outcome", "term", "level"),
    [
        ("probit", "dead", "age", None),
        ("cox", "age", "sex", None),
        ("ols", "time", "ward", "a"),
        ("ols", "time", "ward", "z"),
    ],
)
def test_an_estimand_that_does_not_fit_the_schema_is_an_error(
    model: str, outcome: str, term: str, level: str | None
) -> None:
    with pytest.raises(PenstockError):
        estimate(cohort(), SCHEMA, Estimand("x", model, outcome, term, level=level))


def copy(value: float, variance: float = 0.04, problem: str | None = None) -> Estimate:
    return Estimate(value, variance, 100, 40, problem is None, problem)


FAILED = copy(math.nan, math.nan, "the fit did not converge")


def test_copies_combine_by_plug_in_synthesis() -> None:
    got = combine([copy(0.1, 0.03), copy(0.2, 0.04), copy(0.3, 0.05)])
    assert got.estimate == pytest.approx(0.2)
    assert got.within == pytest.approx(0.04)
    assert got.variance == pytest.approx(0.04 * (1 + 1 / 3))
    assert got.between == pytest.approx(0.01)
    assert (got.n, got.events, got.copies, got.copies_used) == (100, 40, 3, 3)


def test_a_mechanism_variance_that_refits_show_is_added() -> None:
    plain = combine([copy(0.1), copy(0.2)])
    assert plain.mechanism_variance == 0
    got = widened(plain, Spread(0.54, 0.04, 1e12, 100))
    assert got.variance == pytest.approx(0.04 * 1.5 + 0.5)
    assert got.mechanism_variance == pytest.approx(0.5)


@pytest.mark.parametrize(("failed", "usable"), [(0, True), (2, True), (3, False), (4, False)])
def test_at_least_half_of_the_copies_must_have_an_estimate(failed: int, usable: bool) -> None:
    got = combine([FAILED] * failed + [copy(0.1)] * (4 - failed))
    assert got.copies_used == 4 - failed
    assert math.isfinite(got.estimate) == math.isfinite(got.variance) == usable
    assert (got.problem is None) == usable


def test_the_reason_of_a_failed_site_is_kept() -> None:
    got = combine([FAILED, FAILED])
    assert got.problem == "2 of 2 copies have no estimate: the fit did not converge"


@pytest.mark.parametrize("square", [0.0, 0.02, 0.04])
def test_a_mechanism_variance_is_never_negative(square: float) -> None:
    plain = combine([copy(0.1)])
    got = widened(plain, Spread(square, 0.04, 40.0, 100))
    assert (got.mechanism_variance, got.variance) == (0.0, plain.variance)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_mechanism_variance_is_finite_or_a_problem(value: float) -> None:
    copies = [copy(0.1), copy(0.2)]
    for failed, known in ((1, True), (2, False)):
        refits = [copy(value)] * failed + [copy(0.3)] * (2 - failed)
        got = widened(combine(copies), spread(combine(copies), refits, copies))
        assert math.isfinite(got.mechanism_variance)
        assert math.isfinite(got.variance) == known
        assert (got.problem is None) == known


def test_no_copies_are_an_error() -> None:
    with pytest.raises(PenstockError):
        combine([])


def test_a_cox_fit_climbs_where_a_covariate_has_a_long_tail() -> None:
    """Newton's whole steps jump over the maximum and never come back: light chains of 20 where
    most have 1, and other tables of R's. The peer halves its steps, too."""
    rng = np.random.default_rng(0)
    n = 2000
    x = rng.lognormal(0.0, 1.2, n).clip(0, 60)
    failure = 12 * rng.exponential(1, n) * np.exp(-0.7 * np.log(x))
    time, died = np.minimum(failure, 5.0), (failure <= 5.0) * 1.0
    schema = Schema(
        (
            Column("t", "duration", upper=5, event="e"),
            Column("e", "event"),
            Column("x", "continuous", lower=0, upper=60),
        )
    )
    found = estimate({"t": time, "e": died, "x": x}, schema, Estimand("a", "cox", "t", "x"))
    assert found.problem is None
    frame = pd.DataFrame({"t": time, "e": died, "x": x})
    fit = CoxPHFitter().fit(frame, "t", "e", fit_options={"step_size": 0.2, "precision": 1e-10})
    assert found.estimate == pytest.approx(fit.params_["x"], rel=1e-5)
    assert found.variance == pytest.approx(fit.variance_matrix_.to_numpy()[0, 0], rel=1e-4)


# Levels ------------------------------------------------------------------------------------------


def pains(seed: int = 4, cuts: tuple[float, ...] = (-1.0, 0.2, 1.5)) -> dict[str, Array]:
    frame, rng = cohort(), np.random.default_rng(seed)
    latent = 0.08 * (frame["age"] - 60) - 0.6 * frame["sex"] + rng.logistic(size=N)
    frame["pain"] = np.searchsorted(cuts, latent).astype(float)
    return frame


def logits(theta: Array, level: Array, x: Array) -> tuple[Array, Array]:
    """Score and information of a proportional odds model as it is defined, P = F(τ) − F(τ′), by
    differences that complex numbers make exact, then by differences of these."""
    cuts, count = len(theta) - x.shape[1], x.shape[1]

    def score(at: Array) -> Array:
        found = []
        for j in range(len(at)):
            moved = at + 1e-30j * np.eye(len(at))[j]
            upper = np.concatenate([moved[:cuts], [300.0]])[level] - x @ moved[cuts:]
            lower = np.concatenate([[-300.0], moved[:cuts]])[level] - x @ moved[cuts:]
            value = np.log(1 / (1 + np.exp(-upper)) - 1 / (1 + np.exp(-lower))).sum()
            found.append(value.imag / 1e-30)
        return np.array(found)

    steps = 1e-5 * np.eye(len(theta))
    bent = [(score(theta - s) - score(theta + s)) / 2e-5 for s in steps]
    assert cuts + count == len(theta)
    return score(theta), (np.array(bent) + np.array(bent).T) / 2


@pytest.mark.parametrize("seed", [4, 5])
def test_a_common_odds_ratio_agrees_with_statsmodels(seed: int) -> None:
    """Its own steps end where differences no longer tell, so two of Newton's follow, with the
    likelihood's derivatives as it is defined."""
    frame = pains(seed)
    x = np.column_stack([frame["sex"], frame["age"] - 60])
    peer = OrderedModel(frame["pain"], x, distr="logit")
    found = peer.fit(method="bfgs", disp=0, maxiter=500)
    cuts = np.asarray(peer.transform_threshold_params(found.params))[1:-1]
    theta, level = np.concatenate([cuts, found.params[:2]]), frame["pain"].astype(int)
    for _ in range(2):
        score, information = logits(theta, level, x)
        theta = theta + np.linalg.solve(information, score)
    assert np.abs(theta[3:] / found.params[:2] - 1).max() < 1e-3
    for at, term, other in ((4, "age", "sex"), (3, "sex", "age")):
        got = estimate(frame, SCHEMA, ask("ordinal", term, other))
        assert got.problem is None
        assert got.events is None
        assert got.estimate == pytest.approx(theta[at], rel=1e-8)
        assert got.variance == pytest.approx(np.linalg.inv(information)[at, at], rel=1e-8)


def test_levels_that_nobody_has_change_nothing() -> None:
    """They have no cutpoint: the others are numbered anew."""
    frame = pains(cuts=(-1.0, 0.2))
    apart = frame | {"pain": np.array([0.0, 2.0, 3.0])[frame["pain"].astype(int)]}
    one, other = (estimate(f, SCHEMA, ask("ordinal", "age", "sex")) for f in (frame, apart))
    assert one.problem is None
    assert one == other


def test_two_levels_have_the_logistic_fit() -> None:
    frame = pains(cuts=(0.3,))
    frame["dead"] = frame["pain"]
    one, other = (
        estimate(frame, SCHEMA, ask(model, "age", "sex")) for model in ("ordinal", "logistic")
    )
    assert one.estimate == pytest.approx(other.estimate, rel=1e-9)
    assert one.variance == pytest.approx(other.variance, rel=1e-9)


@pytest.mark.parametrize(
    "cuts", [(0.0,), (-1.0, 1.0), (-1.0, 0.2, 1.5), (-0.01, 0.0, 0.01)], ids=str
)
def test_no_table_of_levels_has_less_variance_than_is_believed(cuts: tuple[float, ...]) -> None:
    """A term at its ends, half of the rows at either."""
    asked = ask("ordinal", "sex")
    for seed in range(5):
        frame = pains(seed, cuts) | {"sex": (np.arange(N) % 2).astype(float)}
        got, least = (
            estimate(frame, SCHEMA, asked),
            TABLE_MODELS.of("ordinal").least_variance(SCHEMA, asked, N),
        )
        assert got.problem is None
        assert least <= got.variance <= 8 * least


@pytest.mark.parametrize("level", ["b", "c", "d"])
def test_a_relative_risk_ratio_agrees_with_statsmodels(level: str) -> None:
    """Whichever level is asked about, all have coefficients."""
    frame, rng = cohort(), np.random.default_rng(6)
    x = np.column_stack([np.ones(N), frame["sex"], (frame["age"] - 60) / 5])
    truth = np.array([[0, 0, 0], [0.2, -0.6, 0.3], [-0.3, 0.5, 0.0], [-0.5, 0.0, -0.5]])
    frame["left"] = (x @ truth.T + rng.gumbel(size=(N, 4))).argmax(axis=1).astype(float)
    peer = MNLogit(frame["left"], x).fit(method="newton", tol=1e-15, disp=0)
    schema = Schema((*SCHEMA.columns, Column("left", "categorical", levels=tuple("abcd"))))
    place = "abcd".index(level) - 1
    variance = np.asarray(peer.cov_params())[3 * place + 2, 3 * place + 2]
    asked = Estimand("x", "multinomial", "left", "age", 5.0, ("sex",), outcome_level=level)
    got = estimate(frame, schema, asked)
    assert got.problem is None
    assert got.estimate == pytest.approx(peer.params[2, place], rel=1e-8)
    assert got.variance == pytest.approx(variance, rel=1e-8)
    assert TABLE_MODELS.of("multinomial").least_variance(schema, asked, N) < got.variance
    few = frame | {"left": np.where(frame["left"] == place + 1, 0.0, frame["left"])}
    assert "too few rows of the level" in str(estimate(few, schema, asked).problem)
    spread = frame | {"left": frame["age"]}
    assert estimate(spread, schema, asked).problem == "the outcome has other values than levels"


def test_a_level_of_two_has_the_logistic_fit() -> None:
    frame = pains(cuts=(0.3,))
    schema = Schema((*SCHEMA.columns, Column("left", "categorical", levels=tuple("ab"))))
    frame["dead"] = frame["left"] = frame["pain"]
    one = Estimand("x", "multinomial", "left", "age", adjust=("sex",), outcome_level="b")
    found = estimate(frame, schema, one)
    other = estimate(frame, schema, ask("logistic", "age", "sex"))
    assert found.estimate == pytest.approx(other.estimate, rel=1e-9)
    assert found.variance == pytest.approx(other.variance, rel=1e-9)
    least = (
        TABLE_MODELS.of(e.model).least_variance(schema, e, N) for e in (one, ask("logistic", "age"))
    )
    assert len(set(least)) == 1

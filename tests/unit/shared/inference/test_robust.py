"""Sandwich variances: the formula written out, and what they catch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.inference.posed import LEAST_COPIES, MOST_COPIES, pose_copies
from penstock.inference.robust import LARGE, Robust, check_variances
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate, pose_regression
from penstock.schema import Coded, Column, Schema
from penstock_server.report.sandwich import tell_robust

Array = NDArray[np.float64]
SCHEMA = Schema(
    (
        Column("time", "duration", upper=10.0, decimals=2, event="dead"),
        Column("dead", "event"),
        Column("x", "continuous", lower=-10, upper=10),
        Column("z", "continuous", lower=-10, upper=10),
        Column("y", "continuous", lower=-1000, upper=1000),
        Column("ill", "binary"),
        Column("falls", "integer", lower=0, upper=1000),
        Column("followed", "continuous", lower=0.1, upper=10),
        Column("ward", "categorical", levels=("a", "b", "c")),
    )
)
OLS = Estimand("diff", "ols", "y", "x", per=2.0, adjust=("z", "ward"))
LOGISTIC = Estimand("or", "logistic", "ill", "x", adjust=("z",), strata=("ward",))
POISSON = Estimand("rr", "poisson", "falls", "x", adjust=("z",), where="z > -2")
RATE = Estimand("rr", "poisson", "falls", "x", adjust=("z",), exposure="followed")
DISPERSED = Estimand("rr", "negative-binomial", "falls", "x", adjust=("z",), exposure="followed")
OTHERS = (Estimand("hr", "cox", "time", "x"), Estimand("mean", "mean", "y"))


def table(n: int, seed: int = 0, *, spread: float = 0.0, more: float = 0.0) -> Coded:
    """``spread``: by how much residuals grow with x; ``more``: variance of a rate."""
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=n), rng.normal(size=n)
    rate = np.exp(0.3 * x) * (rng.gamma(1 / more, more, n) if more else 1.0)
    followed = np.random.default_rng([seed, 1]).uniform(0.5, 1.5, n)
    return {
        "followed": followed,
        "time": rng.uniform(0.1, 10, n),
        "dead": (rng.random(n) < 0.5).astype(float),
        "x": x,
        "z": z,
        "y": x + z + rng.normal(size=n) * np.exp(spread * np.abs(x)),
        "ill": (rng.random(n) < 1 / (1 + np.exp(-0.5 * x))).astype(float),
        "falls": rng.poisson(rate).astype(float),
        "ward": rng.integers(0, 3, n).astype(float),
    }


def checked(asked: Estimand, *tables: Coded) -> Robust | None:
    found = check_variances(pose_copies(SCHEMA, [asked], tables))
    return None if found is None else found.estimands[asked.name]


def sandwich(asked: Estimand, frame: Coded) -> tuple[float, float]:
    """The model's variance of the standardised term and the sandwich's, by numpy."""
    posed = pose_regression(frame, SCHEMA, asked)
    assert posed is not None
    x, y = posed.design, posed.outcome
    n, p = x.shape
    beta = np.zeros(p)
    for _ in range(50):
        eta = x @ beta
        if asked.model == "ols":
            mean, weight = eta, np.ones(n)
        elif asked.model == "logistic":
            mean = 1 / (1 + np.exp(-eta))
            weight = mean * (1 - mean)
        else:
            mean = weight = np.exp(eta)
        bread = np.linalg.inv((x * weight[:, None]).T @ x)
        beta = beta + bread @ (x.T @ (y - mean))
    rest = y - mean
    meat = (x * (rest**2)[:, None]).T @ x
    scale = rest @ rest / (n - p) if asked.model == "ols" else 1.0
    robust = bread @ meat @ bread
    return float(scale * bread[-1, -1]), float(robust[-1, -1])


@pytest.mark.parametrize("asked", [OLS, LOGISTIC, POISSON], ids=lambda e: e.model)
def test_a_ratio_is_the_formula_and_of_the_answers_own_variance(asked: Estimand) -> None:
    frame = table(400, spread=0.3, more=0.5)
    own, robust = sandwich(asked, frame)
    found = checked(asked, frame)
    assert found is not None
    # statsmodels' covariances are those of the step before the last.
    assert found.ratio == pytest.approx(math.sqrt(robust / own), rel=1e-6)
    # What the answer has for a variance is what the sandwich is held against.
    kept = frame["z"] > -2 if asked.where else np.ones(400, bool)
    factor = (asked.per / float(np.std(frame["x"][kept]))) ** 2
    answer = estimate(frame, SCHEMA, asked)
    assert answer.variance == pytest.approx(own * factor, rel=1e-8)


@pytest.mark.parametrize("asked", [OLS, LOGISTIC, POISSON], ids=lambda e: e.model)
def test_a_model_that_holds_is_left_alone(asked: Estimand) -> None:
    """At n = 4000 a ratio's standard error is about .03 (of four copies): .12 is 4 of them."""
    found = checked(asked, *(table(4000, seed) for seed in range(4)))
    assert found is not None
    assert found.ratio == pytest.approx(1, abs=0.12)
    assert (found.dispersion is not None) == (asked is POISSON)
    if found.dispersion is not None:
        assert found.dispersion == pytest.approx(1, abs=0.06)


def test_counts_that_vary_more_and_residuals_that_grow_are_caught() -> None:
    counts = checked(POISSON, *(table(2000, seed, more=1.0) for seed in range(3)))
    assert counts is not None
    assert counts.dispersion is not None
    assert counts.dispersion > 1.7
    assert counts.ratio > LARGE
    growing = checked(OLS, *(table(2000, seed, spread=0.8) for seed in range(3)))
    assert growing is not None
    assert growing.ratio > 1.5
    assert growing.dispersion is None


def test_other_models_have_none() -> None:
    assert check_variances(pose_copies(SCHEMA, OTHERS, [table(200)])) is None
    found = check_variances(pose_copies(SCHEMA, [*OTHERS, OLS], [table(200)]))
    assert found is not None
    assert set(found.estimands) == {"diff"}


@pytest.mark.parametrize("asked", [OLS, LOGISTIC, POISSON], ids=lambda e: e.model)
def test_a_hostile_table_has_none(asked: Estimand) -> None:
    frame = table(100)
    rows = {name: values[:5] for name, values in frame.items()}
    constant = {**frame, "x": np.zeros(100)}
    gone = {**frame, "x": np.full(100, np.nan)}
    split = {**frame, "ill": (frame["x"] > 0).astype(float), "falls": np.zeros(100)}
    assert checked(asked, rows) is None
    assert checked(asked, constant) is None
    assert checked(asked, gone) is None
    if asked is not OLS:
        assert checked(asked, split) is None
    # Most copies must have one; what has none is left out.
    assert checked(asked, constant, constant, frame) is None
    assert checked(asked, frame, frame, constant) == checked(asked, frame, frame)
    # And no more than some are fitted.
    same = [frame] * MOST_COPIES
    assert checked(asked, *same, constant) == checked(asked, *same)
    large = {name: np.tile(values, 70) for name, values in frame.items()}
    few = [large] * LEAST_COPIES
    assert checked(asked, *few, constant) == checked(asked, *few)


def test_a_rates_sandwich_has_the_offset() -> None:
    """By the formula written out, of a fit that has it in the linear predictor."""
    frame = table(400, more=0.5)
    frame["falls"] = np.random.default_rng(4).poisson(frame["followed"] * np.exp(0.3 * frame["x"]))
    found, posed = checked(RATE, frame), pose_regression(frame, SCHEMA, RATE)
    assert found is not None
    assert posed is not None
    x, y = posed.design, posed.outcome
    beta = np.zeros(x.shape[1])
    for _ in range(50):
        mean = np.exp(x @ beta) * frame["followed"]
        bread = np.linalg.inv((x * mean[:, None]).T @ x)
        beta = beta + bread @ (x.T @ (y - mean))
    meat = (x * ((y - mean) ** 2)[:, None]).T @ x
    ratio = np.sqrt((bread @ meat @ bread)[-1, -1] / bread[-1, -1])
    assert found.ratio == pytest.approx(ratio, rel=1e-6)
    pearson = ((y - mean) ** 2 / mean).sum() / (400 - x.shape[1])
    assert found.dispersion == pytest.approx(pearson, rel=1e-6)
    assert found.alpha is None


def test_a_negative_binomial_model_holds_what_a_poisson_model_does_not() -> None:
    tables = []
    for seed in range(4):
        frame = table(4000, seed)
        rng = np.random.default_rng([seed, 2])
        rate = frame["followed"] * np.exp(0.3 * frame["x"]) * rng.gamma(1, 1, 4000)
        tables.append(frame | {"falls": rng.poisson(3 * rate).astype(float)})
    found, plain = checked(DISPERSED, *tables), checked(RATE, *tables)
    assert found is not None
    assert plain is not None
    assert plain.ratio > 1.7
    assert found.ratio == pytest.approx(1, abs=0.1)
    assert found.dispersion == pytest.approx(1, abs=0.1)
    assert found.alpha == pytest.approx(1, abs=0.1)


def test_counts_that_vary_no_more_are_said_to() -> None:
    frame = table(500)
    frame["falls"] = np.arange(500) % 2 + 1.0
    found = checked(DISPERSED, frame | {"followed": np.ones(500)})
    assert found is not None
    assert found.alpha == 0
    said = tell_robust({"a": found}, {"a": 1.0}, title=DISPERSED.regression.title, refitted=True)
    assert said is not None
    assert "as much as a negative binomial model has it" in said["text"]
    assert said["text"].endswith("no more than a Poisson model has it, which is what was fitted.")
    more = tell_robust(
        {"a": Robust(1.0, 1.0, 0.5)}, {}, title=DISPERSED.regression.title, refitted=True
    )
    assert more is not None
    assert more["text"].endswith("Their variance is μ + 0.50 μ².")

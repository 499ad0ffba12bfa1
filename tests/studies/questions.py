"""Simulated tables whose regression coefficients are known, one question for each model."""

from __future__ import annotations

import numpy as np
import statsmodels.api as sm
from numpy.typing import NDArray

from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema

Array = NDArray[np.float64]

SCHEMA = Schema(
    columns=(
        Column("age", "continuous", lower=18, upper=100),
        Column("sbp", "continuous", lower=70, upper=250),
        Column("sex", "binary"),
        Column("area", "categorical", levels=("north", "south", "west")),
        Column("score", "continuous", lower=-50, upper=50),
        Column("ill", "binary"),
        Column("visits", "integer", lower=0, upper=30),
        Column("grade", "ordered", levels=("none", "mild", "severe")),
        Column("place", "categorical", levels=("home", "ward", "other")),
        Column("time", "duration", upper=10, event="died"),
        Column("died", "event"),
    )
)
_ADJUST = ("age", "sex", "area")
ESTIMANDS = {
    "ols": Estimand("score", "ols", "score", "sbp", 10.0, _ADJUST),
    "logistic": Estimand("ill", "logistic", "ill", "sbp", 10.0, _ADJUST),
    "poisson": Estimand("visits", "poisson", "visits", "sbp", 10.0, _ADJUST),
    "negative-binomial": Estimand("rate", "negative-binomial", "visits", "sbp", 10.0, _ADJUST),
    "ordinal": Estimand("grade", "ordinal", "grade", "sbp", 10.0, _ADJUST),
    "multinomial": Estimand(
        "place", "multinomial", "place", "sbp", 10.0, _ADJUST, outcome_level="ward"
    ),
    "cox": Estimand("death", "cox", "time", "sbp", 10.0, _ADJUST),
    "mean": Estimand("mean", "mean", "score", "score"),
}
_EFFECTS = {"ols": 1.0, "logistic": 0.2, "poisson": 0.1, "cox": 0.2}
_AGE, _SBP = 55.0, 122.0


def truth(model: str) -> float:
    """The coefficient per 10 mmHg; of the mean, E[score]: .5 for those in the south."""
    return _EFFECTS.get(model, 0.5)


def simulate(n: int, rng: np.random.Generator) -> dict[str, Array]:
    """A coded table; pressure rises with age, a Weibull baseline, censoring at ten years."""
    age = np.clip(rng.normal(_AGE, 9, n), 18, 100)
    sbp = np.clip(rng.normal(_SBP + 0.3 * (age - _AGE), 17, n), 70, 250)
    sex = (rng.random(n) < 0.45).astype(np.float64)
    area = rng.integers(0, 3, n).astype(np.float64)
    linear = 0.02 * (sbp - _SBP) + 0.04 * (age - _AGE) - 0.4 * (sex - 0.45) + 0.3 * (area == 1)
    hazard = np.exp(-linear) / 0.03
    time = 10 / 8 * (-np.log(rng.random(n)) * hazard) ** (1 / 1.3)
    censored = np.minimum(10, rng.exponential(40, n))
    score = np.clip(5 * linear + rng.normal(0, 5, n), -50, 50)
    return {
        "age": age,
        "sbp": sbp,
        "sex": sex,
        "area": area,
        "score": score,
        "grade": np.searchsorted([-4.0, 4.0], score).astype(np.float64),
        "place": np.searchsorted([-4.0, 4.0], score).astype(np.float64)[::-1].copy(),
        "ill": (rng.random(n) < 1 / (1 + np.exp(1.2 - linear))).astype(np.float64),
        "visits": np.clip(rng.poisson(np.exp(0.7 + 0.5 * linear)), 0, 30).astype(np.float64),
        "time": np.minimum(time, censored),
        "died": (time <= censored).astype(np.float64),
    }


def fitted(model: str, table: dict[str, Array]) -> float:
    """The rows' own estimate: statsmodels', and Cox's partial likelihood."""
    if model == "mean":
        return float(table["score"].mean())
    area = table["area"]
    columns = [table["age"], table["sex"], area == 1, area == 2, table["sbp"] / 10]
    x = np.column_stack(columns).astype(np.float64)
    with_one = sm.add_constant(x)
    if model == "ols":
        found = sm.OLS(table["score"], with_one).fit()
    elif model == "logistic":
        found = sm.Logit(table["ill"], with_one).fit(disp=0)
    elif model == "poisson":
        found = sm.GLM(table["visits"], with_one, family=sm.families.Poisson()).fit()
    else:
        return float(_cox(x, table["time"], table["died"] > 0)[-1])
    return float(found.params[-1])


def _cox(x: Array, time: Array, died: NDArray[np.bool_]) -> Array:
    """Newton's steps on the partial likelihood; no two times are equal but censored ones."""
    order = np.argsort(-time, kind="stable")
    z, event = (x - x.mean(axis=0))[order], died[order]
    beta = np.zeros(x.shape[1])
    for _ in range(12):
        risk = np.exp(z @ beta)
        at_risk = np.cumsum(risk)
        mean = np.cumsum(z * risk[:, None], axis=0) / at_risk[:, None]
        hazard = np.cumsum((event / at_risk)[::-1])[::-1]
        information = (z * (risk * hazard)[:, None]).T @ z - mean[event].T @ mean[event]
        beta = beta + np.linalg.solve(information, (z - mean)[event].sum(axis=0))
    return beta

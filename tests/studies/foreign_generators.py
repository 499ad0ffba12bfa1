"""Simulated tables whose laws are not the package's own: accelerated failure, thresholds, crossing
hazards, censoring that depends on covariates, rare events, interactions, cures.

Two families that share no law and no parameter. What is built may be looked at, and tuned, on the
*tuning* ones; the *frozen* ones are the test, and are not changed once they have been run. Columns
have a newcomer's dictionary: bounds and units as a codebook has them, no scales and no spikes.

At n = 3000 about 500 persons have the event, but where it is rare. Declared are the coefficients
that a study would name, and the interactions in ``products``; those in ``undeclared`` are there
too, in the law, and nobody asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from tests.studies.foreign_tables import Table, binary, finish, outcome

from penstock.schema import Column, Schema

Array = NDArray[np.float64]
Generator = Callable[[int, np.random.Generator], Table]

YEAR = 365.25


# -- parts of which laws are made ------------------------------------------------------------------


def _scores(n: int, rng: np.random.Generator, d: int, shared: float) -> Array:
    """(d, n) normal scores of which any two correlate by ``shared``."""
    common = rng.standard_normal(n)
    return math.sqrt(shared) * common + math.sqrt(1 - shared) * rng.standard_normal((d, n))


def _flags(share: float | Array, scores: Array) -> Array:
    """1 for about this share of persons, those of the highest scores first."""
    return np.asarray(scores > _quantile(1 - np.asarray(share)), dtype=np.float64)


def _quantile(p: Array) -> Array:
    from scipy.special import ndtri

    return np.asarray(ndtri(p), dtype=np.float64)


def _uniform(scores: Array) -> Array:
    from scipy.special import ndtr

    return np.clip(np.asarray(ndtr(scores), dtype=np.float64), 1e-9, 1 - 1e-9)


def _two(
    scores: Array,
    rng: np.random.Generator,
    share: float,
    low: tuple[float, float],
    high: tuple[float, float],
) -> Array:
    """A mixture of two normals (mean, sd); the score says where in its own one a person is, and
    partly which."""
    upper = rng.random(len(scores)) < share * np.exp(0.4 * scores) / math.exp(0.08)
    return np.where(upper, high[0] + high[1] * scores, low[0] + low[1] * scores)


def _gamma(scores: Array, shape: float, scale: float) -> Array:
    from scipy.stats import gamma

    return np.asarray(gamma.ppf(_uniform(scores), shape, scale=scale), dtype=np.float64)


def _counts(scores: Array, mean: float, size: float) -> Array:
    """Negative binomial: its variance is mean + mean²/size."""
    from scipy.stats import nbinom

    p = size / (size + mean)
    return np.asarray(nbinom.ppf(_uniform(scores), size, p), dtype=np.float64)


def _steps(scores: Array, *shares: float) -> Array:
    """Levels 0, 1, … with these shares, the last one the rest."""
    cuts = _quantile(np.cumsum(shares))
    return np.asarray(np.searchsorted(cuts, scores), dtype=np.float64)


def _piecewise(rng: np.random.Generator, cuts: tuple[float, ...], rates: Array) -> Array:
    """Times with the hazard rates[k] between cuts[k-1] and cuts[k]; rates (len(cuts) + 1, n)."""
    left, time = rng.exponential(size=rates.shape[1]), np.zeros(rates.shape[1])
    over = np.zeros(rates.shape[1], dtype=np.bool_)
    for k in range(len(rates)):
        width = cuts[k] - (cuts[k - 1] if k else 0.0) if k < len(cuts) else math.inf
        here = ~over & (left <= rates[k] * width)
        time = np.where(here, time + left / rates[k], time)
        time = np.where(~here & ~over, time + (width if math.isfinite(width) else 0.0), time)
        left, over = np.where(over | here, left, left - rates[k] * min(width, 1e12)), over | here
    return time


def _seen(time: Array, censored: Array) -> dict[str, Array]:
    """Whole days, the first one is day 1."""
    return {
        "time": np.ceil(np.clip(np.minimum(time, censored), 0.5, 1e6)),
        "event": (time <= censored).astype(np.float64),
    }


def _number(
    name: str, low: float, high: float, decimals: int, unit: str = "", label: str = ""
) -> Column:
    if decimals == 0:
        return Column(name, "integer", low, high, unit=unit, label=label)
    return Column(name, "continuous", low, high, decimals, unit=unit, label=label)


# -- frozen ----------------------------------------------------------------------------------------


def _weibull(n: int, rng: np.random.Generator) -> Table:
    """Weibull accelerated failure (shape 1.4) in logarithms of skewed columns."""
    z = _scores(n, rng, 7, 0.2)
    crp = np.exp(1.1 + 1.1 * z[0])
    nodes = _counts(z[1], 2.5, 0.5)
    age = _two(z[2], rng, 0.55, (44, 7), (71, 6))
    sbp, sex = 134 + 19 * z[3] + 0.25 * (age - 60), _flags(0.48, rng.standard_normal(n))
    smoker = _flags(0.22 + 0.14 * sex, z[4])
    treated = (rng.random(n) < 0.5).astype(float)
    stage = _steps(z[5], 0.35, 0.3, 0.22)
    score = (
        0.28 * np.log(crp / 3)
        + 0.32 * np.log1p(nodes)
        + 0.022 * (age - 60)
        + 0.15 * smoker
        - 0.38 * treated
        + 0.17 * stage
        + 0.004 * (sbp - 134)
    )
    time = 22 * YEAR * rng.exponential(size=n) ** (1 / 1.4) * np.exp(-score)
    censored = rng.uniform(2.0 * YEAR, 6.5 * YEAR, n)
    columns = (
        *outcome(1826, "days", "event"),
        _number("crp", 0, 300, 1, "mg/l", "C-reactive protein"),
        _number("nodes", 0, 80, 0, "", "Positive lymph nodes"),
        _number("age", 18, 100, 0, "years"),
        _number("sbp", 70, 250, 0, "mmHg"),
        *binary("sex", "smoker", "treated"),
        Column("stage", "ordered", levels=("I", "II", "III", "IV")),
    )
    rows = _seen(time, censored) | {
        "crp": crp,
        "nodes": nodes,
        "age": age,
        "sbp": sbp,
        "sex": sex,
        "smoker": smoker,
        "treated": treated,
        "stage": stage,
    }
    return finish(rows, Schema(columns), ("crp", "nodes", "age", "treated"))


def _lognormal(n: int, rng: np.random.Generator) -> Table:
    """Log-normal accelerated failure (sd 1.1) in bimodal and heavy-tailed columns."""
    z = _scores(n, rng, 8, 0.25)
    hgb = _two(z[0], rng, 0.7, (9.8, 1.1), (14.2, 1.2))
    creatinine = 0.9 * np.exp(0.45 * z[1] + 0.5 * np.maximum(z[1] - 1.2, 0))
    age = 66 + 11 * z[2]
    bmi = 26 + 3.2 * np.sinh(0.55 * z[3]) / 0.55
    diabetes, female = _flags(0.18, z[4]), (rng.random(n) < 0.41).astype(float)
    arm = rng.integers(0, 3, n).astype(float)
    ferritin = np.exp(4.6 + 0.9 * z[5])
    score = (
        -0.17 * (hgb - 12.5)
        + 0.55 * np.log(creatinine)
        + 0.035 * (age - 66)
        + 0.3 * diabetes
        - 0.25 * female
        - 0.4 * (arm == 2)
        - 0.15 * (arm == 1)
        + 0.1 * z[5]
    )
    time = np.exp(7.86 - score + 1.1 * rng.standard_normal(n))
    censored = np.minimum(rng.exponential(14 * YEAR, n), rng.uniform(1.2 * YEAR, 5 * YEAR, n))
    columns = (
        *outcome(1461, "days", "event"),
        _number("hgb", 3, 22, 1, "g/dl", "Hemoglobin"),
        _number("creatinine", 0.2, 20, 2, "mg/dl"),
        _number("age", 18, 105, 0, "years"),
        _number("bmi", 10, 80, 1, "kg/m2"),
        _number("ferritin", 1, 5000, 0, "ng/ml"),
        Column("arm", "categorical", levels=("placebo", "low", "high")),
        *binary("diabetes", "female"),
    )
    rows = _seen(time, censored) | {
        "hgb": hgb,
        "creatinine": creatinine,
        "age": age,
        "bmi": bmi,
        "ferritin": ferritin,
        "arm": arm,
        "diabetes": diabetes,
        "female": female,
    }
    return finish(rows, Schema(columns), ("hgb", "creatinine", "age", "arm=high", "diabetes"))


def _thresholds(n: int, rng: np.random.Generator) -> Table:
    """Hazards that jump: above an age, below and above a weight, above a concentration."""
    z = _scores(n, rng, 6, 0.15)
    age, bmi = 58 + 14 * z[0], 25.5 + 4.5 * z[1] + 1.2 * z[1] ** 2
    glucose = 92 + _gamma(z[2], 0.9, 28)
    pulse = 74 + 12 * z[3]
    statin, male = _flags(0.3, 0.5 * z[0] + 0.87 * z[4]), (rng.random(n) < 0.5).astype(float)
    visits = _counts(z[5], 4, 1.2)
    score = (
        0.9 * (age > 67)
        + 0.6 * ((bmi < 21) | (bmi > 34))
        + 0.75 * (glucose > 140)
        - 0.4 * statin
        + 0.3 * male
        + 0.25 * (visits > 8)
        + 0.3 * (pulse > 90)
    )
    time = 34 * YEAR * rng.exponential(size=n) * np.exp(-score)
    censored = np.where(rng.random(n) < 0.3, rng.uniform(0, 4 * YEAR, n), 9e4)
    columns = (
        *outcome(1461, "days", "event"),
        _number("age", 18, 105, 0, "years"),
        _number("bmi", 10, 80, 1, "kg/m2"),
        _number("glucose", 40, 700, 0, "mg/dl"),
        _number("pulse", 30, 200, 0, "bpm"),
        _number("visits", 0, 100, 0, "", "Visits in the year before"),
        *binary("statin", "male"),
    )
    rows = _seen(time, censored) | {
        "age": age,
        "bmi": bmi,
        "glucose": glucose,
        "pulse": pulse,
        "visits": visits,
        "statin": statin,
        "male": male,
    }
    return finish(rows, Schema(columns), ("age", "bmi", "glucose", "statin", "male"))


def _crossing(n: int, rng: np.random.Generator) -> Table:
    """Hazards that are not proportional: surgery harms at first and helps later; a marker fades."""
    z = _scores(n, rng, 6, 0.2)
    surgery = (rng.random(n) < 0.5).astype(float)
    marker, age = np.exp(2.2 + 0.8 * z[0]), 62 + 10 * z[1]
    frail, male = _flags(0.24, 0.6 * z[1] + 0.8 * z[2]), (rng.random(n) < 0.6).astype(float)
    platelets, grade = 240 + 70 * z[3], _steps(z[4], 0.25, 0.45)
    common = 0.03 * (age - 62) + 0.35 * frail + 0.1 * male + 0.2 * grade - 0.001 * (platelets - 240)
    x = np.log(marker / 9)
    rates = np.stack(
        [
            0.00031 * np.exp(common + 0.85 * surgery + 0.55 * x),
            0.00010 * np.exp(common - 0.25 * surgery + 0.30 * x),
            0.00008 * np.exp(common - 0.80 * surgery + 0.05 * x),
        ]
    )
    time = _piecewise(rng, (100.0, 540.0), rates)
    censored = rng.uniform(1.5 * YEAR, 4.5 * YEAR, n)
    columns = (
        *outcome(1096, "days", "event"),
        _number("marker", 0, 500, 1, "U/ml", "CA 125"),
        _number("age", 18, 105, 0, "years"),
        _number("platelets", 5, 1500, 0, "10^9/l"),
        Column("grade", "ordered", levels=("low", "middle", "high")),
        *binary("surgery", "frail", "male"),
    )
    rows = _seen(time, censored) | {
        "marker": marker,
        "age": age,
        "platelets": platelets,
        "grade": grade,
        "surgery": surgery,
        "frail": frail,
        "male": male,
    }
    return finish(rows, Schema(columns), ("surgery", "marker", "age", "frail"))


def _leaving(n: int, rng: np.random.Generator) -> Table:
    """Who is old, poor or untreated leaves earlier; late entry leaves few at the end."""
    z = _scores(n, rng, 7, 0.3)
    age, income = 49 + 15 * z[0], np.exp(10.1 + 0.6 * z[1])
    cd4 = _gamma(z[2], 2.2, 170)
    load = np.where(rng.random(n) < 0.35, 0.0, np.exp(8.5 + 1.8 * z[3]))
    therapy = _flags(0.55, 0.4 * z[1] + 0.9 * z[4])
    rural, male = _flags(0.3, -0.5 * z[1] + 0.87 * z[5]), (rng.random(n) < 0.66).astype(float)
    score = (
        0.03 * (age - 49)
        - 0.0018 * (cd4 - 370)
        + 0.09 * np.log1p(load)
        - 0.55 * therapy
        + 0.2 * rural
    )
    leaving = 0.6 * z[0] - 0.5 * z[1] - 0.7 * therapy + 0.5 * rural
    time = 29 * YEAR * rng.exponential(size=n) ** (1 / 0.85) * np.exp(-score / 0.85)
    censored = np.minimum(
        5.2 * YEAR * rng.exponential(size=n) * np.exp(-leaving),
        rng.uniform(0.3 * YEAR, 8.5 * YEAR, n),
    )
    columns = (
        *outcome(2557, "days", "event"),
        _number("age", 16, 100, 0, "years"),
        _number("income", 0, 1_000_000, 0, "EUR"),
        _number("cd4", 0, 3000, 0, "cells/ul", "CD4"),
        _number("load", 0, 10_000_000, 0, "copies/ml", "Viral load"),
        *binary("therapy", "rural", "male"),
    )
    rows = _seen(time, censored) | {
        "age": age,
        "income": income,
        "cd4": cd4,
        "load": load,
        "therapy": therapy,
        "rural": rural,
        "male": male,
    }
    return finish(rows, Schema(columns), ("age", "cd4", "therapy", "rural"))


def _rare(n: int, rng: np.random.Generator) -> Table:
    """Some 3 in 100 have the event, and one of the exposures is rare, too."""
    z = _scores(n, rng, 6, 0.1)
    age, exposed = 41 + 12 * z[0], _flags(0.06, z[1])
    dose = np.where(exposed > 0, _gamma(z[2], 1.3, 40), 0.0)
    parity, bmi = _counts(z[3], 1.6, 4), 24 + 4 * z[4] + 0.8 * z[4] ** 2
    smoker, family = _flags(0.25, z[5]), (rng.random(n) < 0.11).astype(float)
    score = 0.05 * (age - 41) + 0.9 * exposed + 0.004 * dose + 0.6 * family + 0.4 * smoker
    time = 330 * YEAR * rng.exponential(size=n) ** (1 / 1.1) * np.exp(-score)
    censored = np.where(rng.random(n) < 0.15, rng.uniform(0, 8 * YEAR, n), 9e4)
    columns = (
        *outcome(2922, "days", "event"),
        _number("age", 18, 100, 0, "years"),
        _number("dose", 0, 600, 1, "mg/day", "Cumulative dose"),
        _number("parity", 0, 15, 0),
        _number("bmi", 10, 80, 1, "kg/m2"),
        *binary("exposed", "smoker", "family"),
    )
    rows = _seen(time, censored) | {
        "age": age,
        "dose": dose,
        "parity": parity,
        "bmi": bmi,
        "exposed": exposed,
        "smoker": smoker,
        "family": family,
    }
    return finish(rows, Schema(columns), ("age", "exposed", "smoker", "family"))


def _interactions(n: int, rng: np.random.Generator) -> Table:
    """Treatment works in one sex, age matters in smokers; unasked: weight in diabetics."""
    z = _scores(n, rng, 6, 0.15)
    age, ldl = 61 + 11 * z[0], 128 + 32 * z[1] + 5 * z[1] ** 2
    bmi = 27 + 4.6 * z[2] + 0.9 * z[2] ** 2
    treated, female = (rng.random(n) < 0.5).astype(float), (rng.random(n) < 0.45).astype(float)
    smoker, diabetes = _flags(0.3, z[3]), _flags(0.25, 0.5 * z[2] + 0.87 * z[4])
    creatinine = np.exp(0.35 * z[5])
    score = (
        -0.55 * treated
        + 0.85 * treated * female
        - 0.3 * female
        + 0.012 * (age - 61)
        + 0.035 * (age - 61) * smoker
        + 0.3 * smoker
        + 0.02 * (bmi - 27)
        + 0.08 * (bmi - 27) * diabetes
        + 0.25 * diabetes
        + 0.004 * (ldl - 128)
        + 0.6 * np.log(creatinine)
    )
    time = 24 * YEAR * rng.exponential(size=n) ** (1 / 1.15) * np.exp(-score / 1.15)
    censored = np.where(rng.random(n) < 0.25, rng.uniform(0, 5 * YEAR, n), 9e4)
    columns = (
        *outcome(1826, "days", "event"),
        _number("age", 18, 105, 0, "years"),
        _number("ldl", 20, 500, 0, "mg/dl"),
        _number("bmi", 10, 80, 1, "kg/m2"),
        _number("creatinine", 0.2, 20, 2, "mg/dl"),
        *binary("treated", "female", "smoker", "diabetes"),
    )
    rows = _seen(time, censored) | {
        "age": age,
        "ldl": ldl,
        "bmi": bmi,
        "creatinine": creatinine,
        "treated": treated,
        "female": female,
        "smoker": smoker,
        "diabetes": diabetes,
    }
    named = ("treated", "female", "smoker", "age")
    return finish(rows, Schema(columns), named, ("treated:female", "smoker:age"), ("diabetes:bmi",))


def _cured(n: int, rng: np.random.Generator) -> Table:
    """Most are cured by their stage and therapy; the others' times are log-logistic."""
    z = _scores(n, rng, 7, 0.25)
    size = np.exp(2.9 + 0.6 * z[0])
    stage, age = _steps(0.5 * z[0] + 0.87 * z[1], 0.4, 0.3, 0.2), 8 + _gamma(z[2], 1.5, 9)
    therapy = rng.integers(0, 2, n).astype(float)
    margin, marker = _flags(0.15, z[3]), np.where(rng.random(n) < 0.5, 0.0, np.exp(3 + 1.4 * z[4]))
    female, albumin = (rng.random(n) < 0.5).astype(float), 4.1 + 0.45 * z[5]
    odds = -2.4 + 0.6 * stage + 0.5 * np.log(size / 18) - 0.5 * therapy + 0.7 * margin
    odds = odds + 0.9 * therapy * margin - 0.4 * (albumin - 4.1)
    u = rng.uniform(1e-6, 1, n)
    time = 500 * np.exp(-0.15 * stage - 0.2 * np.log1p(marker) / 3) * ((1 - u) / u) ** (1 / 1.8)
    time = np.where(rng.random(n) < 1 / (1 + np.exp(-odds)), time, 9e5)
    censored = rng.uniform(2 * YEAR, 10 * YEAR, n)
    columns = (
        *outcome(1826, "days", "event"),
        _number("size", 0, 300, 0, "mm", "Tumour size"),
        _number("age", 0, 100, 0, "years"),
        _number("marker", 0, 50_000, 0, "ng/ml", "Alpha-fetoprotein"),
        _number("albumin", 1, 7, 1, "g/dl"),
        Column("stage", "ordered", levels=("I", "II", "III", "IV")),
        *binary("therapy", "margin", "female"),
    )
    rows = _seen(time, censored) | {
        "size": size,
        "age": age,
        "marker": marker,
        "albumin": albumin,
        "stage": stage,
        "therapy": therapy,
        "margin": margin,
        "female": female,
    }
    return finish(
        rows, Schema(columns), ("stage", "size", "therapy", "margin"), (), ("therapy:margin",)
    )


FROZEN: dict[str, Generator] = {
    "weibull": _weibull,
    "log-normal": _lognormal,
    "thresholds": _thresholds,
    "crossing": _crossing,
    "leaving": _leaving,
    "rare": _rare,
    "interactions": _interactions,
    "cured": _cured,
}


# -- for tuning ------------------------------------------------------------------------------------


def _gompertz_ages(n: int, rng: np.random.Generator) -> Table:
    """Weibull accelerated failure with a falling hazard (shape .8) and gamma-skewed columns."""
    z = _scores(n, rng, 6, 0.3)
    bnp, age = _gamma(z[0], 0.6, 420), 72 + 9 * z[1]
    ef = _two(z[2], rng, 0.5, (29, 6), (56, 6))
    sodium, nyha = 139 + 3.5 * z[3] - 0.8 * np.exp(0.7 * z[3]), _steps(z[4], 0.2, 0.4, 0.3)
    beta, male = _flags(0.7, z[5]), (rng.random(n) < 0.55).astype(float)
    score = (
        0.22 * np.log1p(bnp / 50)
        + 0.03 * (age - 72)
        - 0.014 * (ef - 43)
        + 0.25 * nyha
        - 0.45 * beta
        - 0.02 * (sodium - 138)
    )
    time = 29 * YEAR * rng.exponential(size=n) ** (1 / 0.8) * np.exp(-score / 0.8)
    censored = rng.uniform(0.8 * YEAR, 4 * YEAR, n)
    columns = (
        *outcome(1096, "days", "event"),
        _number("bnp", 0, 10_000, 0, "pg/ml"),
        _number("age", 18, 110, 0, "years"),
        _number("ef", 5, 90, 0, "%", "Ejection fraction"),
        _number("sodium", 100, 170, 0, "mmol/l"),
        Column("nyha", "ordered", levels=("I", "II", "III", "IV")),
        *binary("beta", "male"),
    )
    rows = _seen(time, censored) | {
        "bnp": bnp,
        "age": age,
        "ef": ef,
        "sodium": sodium,
        "nyha": nyha,
        "beta": beta,
        "male": male,
    }
    return finish(rows, Schema(columns), ("bnp", "age", "ef", "beta"))


def _heavy_tails(n: int, rng: np.random.Generator) -> Table:
    """Log-normal accelerated failure (sd .8) in columns with tails of Student's t and of Pareto."""
    z = _scores(n, rng, 6, 0.2)
    troponin = 5 * (1 - _uniform(z[0])) ** -0.7
    score_a = 20 + 6 * rng.standard_t(3, n)
    age, urea = 60 + 16 * np.tanh(z[1]) + 4 * rng.standard_normal(n), np.exp(3.4 + 0.5 * z[2])
    icu, female = _flags(0.35, z[3]), (rng.random(n) < 0.44).astype(float)
    lactate = 1 + _gamma(z[4], 1.1, 1.3)
    pulls = (
        0.25 * np.log(troponin / 5)
        + 0.015 * (np.clip(score_a, 0, 60) - 20)
        + 0.02 * (age - 60)
        + 0.2 * np.log(urea / 30)
        + 0.12 * (lactate - 2.4)
        + 0.3 * icu
    )
    time = np.exp(6.15 - pulls + 0.8 * rng.standard_normal(n))
    censored = np.where(rng.random(n) < 0.2, rng.uniform(0, 180, n), 9e4)
    columns = (
        *outcome(180, "days", "event"),
        _number("troponin", 0, 20_000, 0, "ng/l"),
        _number("sofa", 0, 60, 0, "points", "Score"),
        _number("age", 16, 110, 0, "years"),
        _number("urea", 1, 400, 0, "mg/dl"),
        _number("lactate", 0, 30, 1, "mmol/l"),
        *binary("icu", "female"),
    )
    rows = _seen(time, censored) | {
        "troponin": troponin,
        "sofa": score_a,
        "age": age,
        "urea": urea,
        "lactate": lactate,
        "icu": icu,
        "female": female,
    }
    return finish(rows, Schema(columns), ("troponin", "sofa", "age", "icu"))


def _u_shapes(n: int, rng: np.random.Generator) -> Table:
    """Hazards that are least in the middle of two columns, and level off in a third."""
    z = _scores(n, rng, 6, 0.1)
    potassium, sleep = 4.3 + 0.5 * z[0], 7 + 1.3 * z[1]
    packs = np.where(rng.random(n) < 0.55, 0.0, _gamma(z[2], 1.2, 14))
    age, drug = 55 + 10 * z[3], (rng.random(n) < 0.5).astype(float)
    male, work = (rng.random(n) < 0.5).astype(float), _steps(z[4], 0.5, 0.35)
    score = (
        0.8 * np.minimum((potassium - 4.3) ** 2, 1.5)
        + 0.15 * np.minimum((sleep - 7) ** 2, 9)
        + 0.5 * np.minimum(packs, 20) / 20
        + 0.04 * (age - 55)
        - 0.35 * drug
        + 0.1 * work
    )
    time = 44 * YEAR * rng.exponential(size=n) ** (1 / 1.3) * np.exp(-score / 1.3)
    censored = np.where(rng.random(n) < 0.4, rng.uniform(0, 10 * YEAR, n), 9e4)
    columns = (
        *outcome(3652, "days", "event"),
        _number("potassium", 1.5, 9, 1, "mmol/l"),
        _number("sleep", 0, 24, 1, "hours"),
        _number("packs", 0, 200, 0, "", "Pack-years"),
        _number("age", 18, 100, 0, "years"),
        Column("work", "categorical", levels=("office", "manual", "none")),
        *binary("drug", "male"),
    )
    rows = _seen(time, censored) | {
        "potassium": potassium,
        "sleep": sleep,
        "packs": packs,
        "age": age,
        "work": work,
        "drug": drug,
        "male": male,
    }
    return finish(rows, Schema(columns), ("packs", "age", "drug", "potassium"))


def _waning(n: int, rng: np.random.Generator) -> Table:
    """A vaccine whose effect wanes; age acts late; half of the hazard is in the first season."""
    z = _scores(n, rng, 5, 0.2)
    vaccine, age = _flags(0.6, 0.4 * z[0] + 0.92 * z[4]), 45 + 18 * z[0]
    contacts, crowded = _counts(z[1], 7, 0.9), _flags(0.2, z[2])
    antibody = np.exp(4 + 1.2 * z[3])
    flat = 0.03 * np.minimum(contacts, 40) + 0.3 * crowded
    rates = np.stack(
        [
            0.00115 * np.exp(flat - 1.3 * vaccine - 0.1 * (z[3])),
            0.00025 * np.exp(flat - 0.6 * vaccine + 0.015 * (age - 45)),
            0.00045 * np.exp(flat + 0.0 * vaccine + 0.030 * (age - 45)),
        ]
    )
    time = _piecewise(rng, (90.0, 250.0), rates)
    censored = np.where(rng.random(n) < 0.1, rng.uniform(0, 365, n), 9e4)
    columns = (
        *outcome(365, "days", "event"),
        _number("age", 0, 110, 0, "years"),
        _number("contacts", 0, 200, 0, "", "Contacts a day"),
        _number("antibody", 0, 50_000, 0, "U/ml", "Titre"),
        *binary("vaccine", "crowded"),
    )
    rows = _seen(time, censored) | {
        "age": age,
        "contacts": contacts,
        "antibody": antibody,
        "vaccine": vaccine,
        "crowded": crowded,
    }
    return finish(rows, Schema(columns), ("vaccine", "contacts", "crowded", "age"))


def _drop_outs(n: int, rng: np.random.Generator) -> Table:
    """The ill leave for other hospitals, early; nobody is followed to the end."""
    z = _scores(n, rng, 6, 0.35)
    bilirubin, albumin = np.exp(0.3 + 0.95 * z[0]), 3.5 - 0.4 * z[1]
    age, copper = 50 + 10.5 * z[2], np.exp(4.3 + 0.8 * z[3])
    spiders, trial = _flags(0.29, z[4]), (rng.random(n) < 0.5).astype(float)
    edema = _steps(z[5], 0.85, 0.1)
    score = (
        0.75 * np.log(bilirubin)
        - 0.7 * (albumin - 3.5)
        + 0.03 * (age - 50)
        + 0.3 * edema
        + 0.2 * np.log(copper / 74)
        - 0.15 * trial
    )
    time = 13.5 * YEAR * rng.exponential(size=n) ** (1 / 1.5) * np.exp(-score / 1.5)
    censored = 4.2 * YEAR * rng.gamma(2, 0.5, n) * np.exp(-0.5 * z[0] - 0.3 * trial)
    columns = (
        *outcome(4383, "days", "event"),
        _number("bilirubin", 0.1, 50, 1, "mg/dl"),
        _number("albumin", 1, 7, 2, "g/dl"),
        _number("age", 18, 100, 0, "years"),
        _number("copper", 1, 1000, 0, "ug/day"),
        Column("edema", "ordered", levels=("no", "treated", "yes")),
        *binary("spiders", "trial"),
    )
    rows = _seen(time, censored) | {
        "bilirubin": bilirubin,
        "albumin": albumin,
        "age": age,
        "copper": copper,
        "edema": edema,
        "spiders": spiders,
        "trial": trial,
    }
    return finish(rows, Schema(columns), ("bilirubin", "albumin", "age", "trial"))


def _seldom(n: int, rng: np.random.Generator) -> Table:
    """Some 4 in 100 have the event, mostly early."""
    z = _scores(n, rng, 5, 0.15)
    age, asa = 63 + 13 * z[0], _steps(0.5 * z[0] + 0.87 * z[1], 0.3, 0.45, 0.2)
    blood = np.where(rng.random(n) < 0.4, 0.0, _gamma(z[2], 0.9, 420))
    urgent, open_ = _flags(0.12, z[3]), (rng.random(n) < 0.4).astype(float)
    minutes = np.exp(4.7 + 0.5 * z[4])
    score = 0.04 * (age - 63) + 0.5 * asa + 0.7 * urgent + 0.35 * open_ + 0.0006 * blood
    time = 4200 * rng.exponential(size=n) ** (1 / 0.6) * np.exp(-score / 0.6) * 30
    columns = (
        *outcome(90, "days", "event"),
        _number("age", 18, 110, 0, "years"),
        _number("blood", 0, 20_000, 0, "ml", "Blood loss"),
        _number("minutes", 5, 1500, 0, "minutes"),
        Column("asa", "ordered", levels=("1", "2", "3", "4")),
        *binary("urgent", "open"),
    )
    rows = _seen(time, np.full(n, 9e4)) | {
        "age": age,
        "blood": blood,
        "minutes": minutes,
        "asa": asa,
        "urgent": urgent,
        "open": open_,
    }
    return finish(rows, Schema(columns), ("age", "urgent", "asa", "open"))


def _modifiers(n: int, rng: np.random.Generator) -> Table:
    """A drug that harms carriers, a dose that matters with failing kidneys; and one that is not
    asked."""
    z = _scores(n, rng, 6, 0.2)
    carrier, drug = (rng.random(n) < 0.28).astype(float), (rng.random(n) < 0.5).astype(float)
    egfr, dose = 82 - 22 * z[0] + 4 * np.minimum(z[0], 0), 10 + _gamma(z[1], 2, 10)
    age, frail = 68 + 8 * z[2], _flags(0.3, z[3])
    weight, female = 78 + 15 * z[4], (rng.random(n) < 0.52).astype(float)
    score = (
        -0.45 * drug
        + 1.0 * drug * carrier
        - 0.1 * carrier
        - 0.012 * (egfr - 80)
        - 0.0007 * (egfr - 80) * (dose - 30)
        + 0.008 * (dose - 30)
        + 0.03 * (age - 68)
        + 0.3 * frail
        + 0.6 * frail * female
        - 0.2 * female
    )
    time = 9.5 * YEAR * rng.exponential(size=n) ** (1 / 1.0) * np.exp(-score)
    censored = rng.uniform(0.5 * YEAR, 3.5 * YEAR, n)
    columns = (
        *outcome(1096, "days", "event"),
        _number("egfr", 0, 200, 0, "ml/min"),
        _number("dose", 0, 200, 1, "mg/day", "Dose"),
        _number("age", 18, 110, 0, "years"),
        _number("weight", 30, 250, 0, "kg"),
        *binary("drug", "carrier", "frail", "female"),
    )
    rows = _seen(time, censored) | {
        "egfr": egfr,
        "dose": dose,
        "age": age,
        "weight": weight,
        "drug": drug,
        "carrier": carrier,
        "frail": frail,
        "female": female,
    }
    named = ("drug", "carrier", "egfr", "dose", "age")
    return finish(rows, Schema(columns), named, ("drug:carrier", "egfr:dose"), ("frail:female",))


TUNING: dict[str, Generator] = {
    "t-weibull": _gompertz_ages,
    "t-tails": _heavy_tails,
    "t-shapes": _u_shapes,
    "t-waning": _waning,
    "t-drop-outs": _drop_outs,
    "t-seldom": _seldom,
    "t-modifiers": _modifiers,
}

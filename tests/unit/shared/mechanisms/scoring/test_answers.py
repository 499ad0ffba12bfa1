"""Answers without noise are the rows' own coefficients, of every model, and say how well they do.

The oracle is what tables are fitted by (:func:`penstock.questions.estimation.estimate`), held
itself against statsmodels and lifelines in tests/golden/test_estimands.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from penstock.mechanisms.released import ANSWER, COVARIANCE, DOUBT, ESTIMATE, NOISE
from penstock.mechanisms.scoring.blocks import count_told, find_places
from penstock.mechanisms.scoring.plan import ScoringPlan, plan_at
from penstock.mechanisms.scoring.run import UNTOLD, answer, run
from penstock.mechanisms.scoring.settings import Scoring
from penstock.privacy.noise.sources import SeededNoise
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import Estimate, estimate
from penstock.questions.outliers import MOST_BESIDE
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding

SCHEMA = Schema(
    (
        Column("time", "duration", upper=5, decimals=2, event="died"),
        Column("died", "event"),
        Column("x", "continuous", lower=-4, upper=4, decimals=2),
        Column("z", "continuous", lower=20, upper=80, decimals=0),
        Column("group", "categorical", levels=("a", "b", "c")),
        Column("flag", "binary"),
        Column("count", "integer", lower=0, upper=30),
        Column("size", "continuous", lower=0, upper=200, decimals=1),
    )
)
EACH = (
    Estimand("hazard", "cox", "time", "x", adjust=("z", "group")),
    Estimand("level", "cox", "time", "group", level="c", adjust=("x", "z")),
    Estimand("odds", "logistic", "flag", "x", adjust=("z",)),
    Estimand("rate", "poisson", "count", "z", per=10, adjust=("x",)),
    Estimand("slope", "ols", "size", "x", adjust=("z", "group")),
)
PRODUCT = Estimand("product", "ols", "size", "x:z", adjust=("group",))
FEWER = Estimand("fewer", "ols", "size", "x")
MEMBERS = Estimand("members", "ols", "size", "x", adjust=("z",), where="group == 'a'")
SILENT = 1e-3
"""A noise multiplier that nobody would be asked for."""


def rows(n: int, seed: int = 0) -> Coded:
    rng = np.random.default_rng(seed)
    x = np.clip(rng.normal(size=n), -4, 4)
    z = np.clip(50 + 10 * (0.3 * x + rng.normal(size=n)), 20, 80)
    group = rng.integers(0, 3, n).astype(float)
    line = 0.4 * x + 0.02 * (z - 50) + 0.3 * (group == 2)
    time = rng.exponential(np.exp(-line) * 6)
    ended = np.minimum(time, 5.0)
    values = {
        "time": ended,
        "died": (time < 5).astype(float),
        "x": x,
        "z": z,
        "group": group,
        "flag": (rng.random(n) < 1 / (1 + np.exp(1 - line))).astype(float),
        # More spread than a Poisson law has.
        "count": np.minimum(rng.poisson(np.exp(0.5 * line) * rng.gamma(1.0, 1.0, n)), 30) * 1.0,
        "size": np.clip(100 + 8 * line + 2 * x * (z - 50) / 10 + 10 * rng.normal(size=n), 0, 200),
    }
    return {c.name: c.snap(values[c.name]) for c in SCHEMA.columns}


def planned(asked: tuple[Estimand, ...], persons: int, scale: float) -> ScoringPlan:
    return plan_at(Scoring(), SCHEMA, persons, asked, scale)


def answered(
    asked: tuple[Estimand, ...], n: int, scale: float, seed: int = 0
) -> dict[str, tuple[float, float, float]]:
    """Of each estimand its estimate, and the variances of noise and of sampling, per its units."""
    found = answer(
        planned(asked, n, scale), rows(n, seed), np.ones(n, dtype=np.bool_), SeededNoise(seed)
    )
    whole = [np.concatenate([a.coefficients for a in found])]
    whole += [
        np.concatenate([np.diag(m) for m in ms])
        for ms in zip(*((a.noise, a.sampling) for a in found), strict=True)
    ]
    places = find_places(SCHEMA, asked)
    return {
        e.name: tuple(
            float(values[places[e.name]]) * e.per**power
            for values, power in zip(whole, (1, 2, 2), strict=True)
        )
        for e in asked
    }  # type: ignore[return-value]


def fitted(asked: tuple[Estimand, ...], n: int, seed: int = 0) -> dict[str, Estimate]:
    return {e.name: estimate(rows(n, seed), SCHEMA, e) for e in asked}


def test_without_noise_they_are_the_rows_own_coefficients() -> None:
    asked, n = (*EACH, PRODUCT), 3000
    own = fitted(asked, n)
    for name, (value, noise, sampling) in answered(asked, n, SILENT).items():
        real, se = own[name].estimate, math.sqrt(own[name].variance)
        assert abs(value - real) < 0.2 * se, name
        assert math.sqrt(noise) < 0.5 * se, name
        # Overdispersed counts have a larger error than a Poisson law's.
        least = 1.15 if name == "rate" else 0.85
        assert least * se < math.sqrt(sampling) < (1.9 if name == "rate" else 1.2) * se, name


@pytest.mark.parametrize("asked", [FEWER, MEMBERS])
def test_a_smaller_regression_follows_from_the_larger_one(asked: Estimand) -> None:
    [own] = fitted((asked,), 3000).values()
    value, _, sampling = answered((EACH[4], asked), 3000, SILENT)[asked.name]
    assert abs(value - own.estimate) < math.sqrt(own.variance)
    assert math.sqrt(sampling) == pytest.approx(math.sqrt(own.variance), rel=0.2)


def test_noise_is_told_apart_and_is_as_large_as_they_err_by_it() -> None:
    seeds, n, asked = range(12), 2000, EACH[:3]
    off = []
    for seed in seeds:
        own = fitted(asked, n, seed)
        for name, (value, noise, _) in answered(asked, n, 3.0, seed).items():
            off.append((value - own[name].estimate) / math.sqrt(noise))
    spread = math.sqrt(float(np.mean(np.square(off))))
    assert 0.5 < spread < 1.4


def test_what_is_released_is_one_part_of_all_regressions() -> None:
    n, asked = 60, EACH
    encoding = Encoding(SCHEMA)
    x, there = encoding.encode(rows(n), np.random.default_rng(0))
    plan = planned(asked, n, 2.0)
    [part] = run(plan, encoding, x[:, None], there[:, None], SeededNoise(1))
    count = count_told(SCHEMA, asked)
    assert count == 4 + 2 + 2 + 4  # two estimands are of one regression
    assert part.name == ANSWER
    names = [f.format(i + 1) for f in (COVARIANCE, NOISE) for i in range(count)]
    assert list(part.columns) == ["term", ESTIMATE, DOUBT, *names]
    whole, noise = (
        np.column_stack([part.columns[f.format(i + 1)] for i in range(count)])
        for f in (COVARIANCE, NOISE)
    )
    assert np.linalg.eigvalsh(noise).min() > 0
    # Of what nobody can tell the variance is so large that its rounding hides others' sampling.
    size = np.sqrt(np.diag(whole))
    assert np.linalg.eigvalsh((whole - noise) / np.outer(size, size)).min() > -1e-14
    told = np.diag(whole) < UNTOLD**2
    assert told.sum() >= count - 2
    assert (np.diag(whole) > np.diag(noise))[told].all()
    assert not whole[:4, 4:].any()


def test_nobody_there_is_an_answer_too() -> None:
    n = 40
    gone = np.zeros(n, dtype=np.bool_)
    found = answer(planned(EACH, n, 2.0), rows(n), gone, SeededNoise(0))
    for told in found:
        assert np.isfinite(told.coefficients).all()
        assert (np.diag(told.noise + told.sampling) > 0).all()


def doubts(asked: tuple[Estimand, ...], table: Coded) -> dict[str, float]:
    """Of each estimand, without noise."""
    n = len(table["x"])
    found = answer(planned(asked, n, SILENT), table, np.ones(n, dtype=np.bool_), SeededNoise(0))
    whole, places = np.concatenate([told.doubt for told in found]), find_places(SCHEMA, asked)
    return {e.name: float(whole[places[e.name]]) for e in asked}


def test_what_hangs_on_few_persons_is_doubted_and_nothing_else() -> None:
    n, rng = 3000, np.random.default_rng(3)
    table = rows(n)
    assert max(doubts(EACH, table).values()) < 0.3
    # Light chains, creatinine: one person in two hundred has most of the variance.
    table["z"] = np.clip(20 + 0.3 * np.exp(1.8 * rng.standard_normal(n)), 20, 80)
    found = doubts((EACH[0], replace(EACH[0], name="tail", term="z", adjust=("x", "group"))), table)
    assert found["tail"] > 0.5
    # What is adjusted for it may be off as well; what has nothing to do with it is not.
    assert 0.35 < found["hazard"] <= MOST_BESIDE
    without = doubts((replace(EACH[0], adjust=("group",)),), table)
    assert without["hazard"] < 0.3


def test_a_rare_event_is_no_reason_to_doubt() -> None:
    """Those who have it have all there is to know; a fixed share of all persons would be them."""
    table = rows(4000)
    common = doubts(EACH[:1], table)["hazard"]
    late = table["time"] > 0.12
    table["time"], table["died"] = np.minimum(table["time"], 0.12), np.where(late, 0, table["died"])
    assert 0 < table["died"].mean() < 0.04
    assert doubts(EACH[:1], table)["hazard"] < common + 0.1


def test_of_nothing_there_is_no_doubt() -> None:
    n = 40
    found = answer(planned(EACH, n, 2.0), rows(n), np.zeros(n, dtype=np.bool_), SeededNoise(0))
    for told in found:
        assert ((told.doubt >= 0) & (told.doubt <= 1)).all()


@pytest.mark.parametrize("model", ["poisson", "negative-binomial"])
def test_a_rates_answer_is_that_of_the_offset(model: str) -> None:
    """The exposure is missing in some rows, and goes along with what is asked."""
    years = Column("years", "continuous", lower=0.25, upper=10, decimals=2, nullable=True)
    schema = replace(SCHEMA, columns=(*SCHEMA.columns, years))
    n, rng, table = 3000, np.random.default_rng(4), rows(3000)
    followed = np.clip(rng.gamma(2, 1.5, n) * np.exp(0.3 * table["x"]), 0.25, 10).round(2)
    rate = np.exp(0.3 * table["x"] - 0.5 + 0.1 * (table["group"] == 2))
    table["count"] = np.minimum(rng.poisson(rate * followed), 30) * 1.0
    table["years"] = np.where(rng.random(n) < 0.1, np.nan, followed)
    of = {"model": model, "outcome": "count", "term": "x", "exposure": "years"}
    asked = (
        Estimand("all", adjust=("z", "group"), **of),  # type: ignore[arg-type]
        Estimand("some", adjust=("z",), where="group == 'a'", **of),  # type: ignore[arg-type]
    )
    assert Scoring().problems(schema, asked) == []
    planned = plan_at(Scoring(), schema, n, asked, SILENT)
    found = answer(planned, table, np.ones(n, dtype=np.bool_), SeededNoise(1))
    told = np.concatenate([each.coefficients for each in found])
    places = find_places(schema, asked)
    for each in asked:
        own = estimate(table, schema, each)
        plain = estimate(table, schema, replace(each, exposure=""))
        assert abs(told[places[each.name]] - own.estimate) < 0.3 * math.sqrt(own.variance)
        assert abs(plain.estimate - own.estimate) > 5 * math.sqrt(own.variance)

"""Of few rows a declared mean is in the tables as it is in the rows, and not as their counts have
it, with regressions beside it and without; and the mean of a number that is an outcome."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from tests.studies.foreign_real import read_table
from tests.studies.foreign_tables import estimands
from tests.support.carried_out import release

from penstock.mechanisms import Structured
from penstock.mechanisms.plans import plan
from penstock.mechanisms.structured import plan as structured_plan
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding

N, SEEDS, EPSILON = 800, 10, 3.0
SCHEMA = Schema(
    (
        Column("time", "duration", upper=10, decimals=1, event="died"),
        Column("died", "event"),
        Column("age", "integer", lower=0, upper=110),
        Column("costs", "continuous", lower=0, upper=5000, decimals=0, nullable=True),
        Column("ward", "categorical", levels=("n", "s", "w", "e")),
        Column("smoker", "binary"),
    )
)
MEANS = (
    Estimand("age", "mean", "age"),
    Estimand("costs", "mean", "costs"),
    Estimand("ward", "share", "ward", outcome_level="w"),
)
HAZARD = Estimand("hazard", "cox", "time", "age", adjust=("smoker",))


def rows(rng: np.random.Generator) -> Coded:
    age = rng.normal(62, 9, N).round()
    leaves = rng.exponential(8, N)
    costs = np.minimum(rng.gamma(1.2, 300, N).round(), 5000)
    return {
        "time": np.minimum(leaves, 10).round(1),
        "died": ((leaves < 10) & (rng.random(N) < 0.5)) * 1.0,
        "age": age,
        "costs": np.where(rng.random(N) < 0.1, np.nan, costs),
        "ward": rng.choice(4, N, p=[0.4, 0.3, 0.2, 0.1]) * 1.0,
        "smoker": (rng.random(N) < 0.4) * 1.0,
    }


def see_errors(asked: tuple[Estimand, ...], seed: int) -> np.ndarray:
    """Of each mean, by how many of the rows' sds the tables' is off."""
    rng = np.random.default_rng(seed)
    real, encoding = rows(rng), Encoding(SCHEMA)
    settings = Structured(copies=4, refits=0, planted=0)
    planned = plan(settings, SCHEMA, N, PrivacyRequest(EPSILON, 1e-5), asked)
    laid, present = encoding.encode(real, rng)
    given = (encoding, laid[:, None], present[:, None], SeededNoise(seed))
    copies = [part.columns for part in release(settings, planned, *given)]

    def read(table: Coded) -> np.ndarray:
        return np.array(
            [table["age"].mean(), np.nanmean(table["costs"]), (table["ward"] == 2).mean()]
        )

    sds = [real["age"].std(), np.nanstd(real["costs"]), (real["ward"] == 2).std()]
    return np.asarray((np.mean([read(dict(c)) for c in copies], axis=0) - read(real)) / sds)


@pytest.mark.parametrize("beside", [(), (HAZARD,)], ids=["alone", "beside a hazard"])
def test_declared_means_of_few_rows_err_less_than_counts_do(
    beside: tuple[Estimand, ...],
) -> None:
    asked = (*beside, *MEANS)
    told = [see_errors(asked, seed) for seed in range(SEEDS)]
    with patch.object(structured_plan, "list_meant", lambda *_: ()):
        counted = [see_errors(asked, seed) for seed in range(SEEDS)]
    [told_rms, counted_rms] = [np.sqrt(np.mean(np.square(e), axis=0)) for e in (told, counted)]
    assert (told_rms < [0.06, 0.16, 0.03]).all()
    assert told_rms.sum() < 0.75 * counted_rms.sum()


def test_a_persons_many_rows_are_clipped_as_rows_of_the_model_are() -> None:
    """Of a number that few have, at little noise: no mean is drawn towards the middle."""
    rng, k = np.random.default_rng(0), 3
    schema = Schema(
        (Column("packs", "integer", lower=0, upper=900, spike=0), Column("smoker", "binary")),
        person="id",
        max_rows_per_person=k,
    )
    real: Coded = {
        "packs": np.where(rng.random(k * N) < 0.9, 0, rng.integers(1, 900, k * N)) * 1.0,
        "smoker": (rng.random(k * N) < 0.4) * 1.0,
    }
    asked = (
        Estimand("packs", "mean", "packs"),
        Estimand("any", "share", "packs", threshold=0.0, direction="above"),
        Estimand("smoker", "mean", "smoker"),
    )
    settings, encoding = Structured(copies=4, refits=0, planted=0), Encoding(schema)
    planned = plan(settings, schema, N, PrivacyRequest(30.0, 1e-5), asked)
    laid, present = encoding.encode(real, rng)
    handed = (laid.reshape(N, k, -1), present.reshape(N, k))
    copies = [
        dict(p.columns) for p in release(settings, planned, encoding, *handed, SeededNoise(1))
    ]
    for read in (
        lambda t: t["packs"].mean(),
        lambda t: (t["packs"] > 0).mean(),
        lambda t: t["smoker"].mean(),
    ):
        assert np.mean([read(copy) for copy in copies]) == pytest.approx(read(real), rel=0.03)


VISITS, PATIENTS = "mdvis", 2000


def see_visits(seed: int) -> tuple[float, float]:
    """Of 2,000 persons of `randhie`, by how many standard errors of the rows the tables are off in
    the mean number of visits, and in the rate ratio of who is in fair health."""
    table = read_table("randhie")
    assert table is not None
    rng = np.random.default_rng(seed)
    own, schema = table.take(rng.choice(table.n, PATIENTS)), table.suggested()
    asked, encoding = estimands(table), Encoding(schema)
    settings = Structured(copies=4, refits=0, planted=0)
    planned = plan(settings, schema, PATIENTS, PrivacyRequest(EPSILON, 1e-5), asked)
    laid, present = encoding.encode(own.rows, rng)
    given = (encoding, laid[:, None], present[:, None], SeededNoise(seed))
    copies = [dict(part.columns) for part in release(settings, planned, *given)]
    real = own.rows[VISITS]
    off = float(np.mean([copy[VISITS].mean() for copy in copies]) - real.mean())
    rate = estimate(own.rows, schema, asked[-1])
    found = float(np.mean([estimate(copy, schema, asked[-1]).estimate for copy in copies]))
    return off / (real.std() / PATIENTS**0.5), (found - rate.estimate) / rate.variance**0.5


def test_how_many_visits_there_are_is_in_tables_of_a_regression_on_them() -> None:
    """Nobody declares the mean: counts of a tail are mostly noise, and so was what scores told of
    it, and rate ratios with it."""
    told = np.array([see_visits(seed) for seed in range(SEEDS)])
    with patch.object(structured_plan, "list_meant", lambda *_: ()):
        counted = np.array([see_visits(seed) for seed in range(SEEDS)])
    [told_rms, counted_rms] = [np.sqrt(np.mean(found**2, axis=0)) for found in (told, counted)]
    assert told_rms[0] < 5
    assert (told_rms < [0.6, 0.9] * counted_rms).all(), (told, counted)

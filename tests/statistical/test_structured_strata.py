"""Strata whose hazards cross are in structured tables: their curves, and what a stratified
regression says.

Times are Weibull with a shape for each ward, which no piecewise baseline makes, and age differs
between wards. Seeds are fixed: no alarm is by chance. The control is a ward that is adjusted for,
as every other covariate: its curves cannot cross, and what they cannot do is laid on the
coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
from tests.support.carried_out import release

from penstock.inference.combine import combine
from penstock.mechanisms import Structured
from penstock.mechanisms.plans import plan
from penstock.mechanisms.structured import declared
from penstock.mechanisms.structured import run as structured
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding

N, SEEDS, WARDS = 3000, 16, ("n", "s", "w")
SHAPES, SHARES = np.array([0.6, 1.4, 2.2]), (0.5, 0.3, 0.2)
TIMES = np.array([1.0, 2.5, 5.0, 7.5, 9.5])
SCHEMA = Schema(
    (
        Column("time", "duration", upper=10, decimals=2, event="died"),
        Column("died", "event"),
        Column("age", "integer", lower=18, upper=100),
        Column("sbp", "continuous", lower=80, upper=220, decimals=0),
        Column("ward", "categorical", levels=WARDS, nullable=True),
    )
)
ASKED = tuple(
    Estimand(term, "cox", "time", term, adjust=(other,), strata=("ward",))
    for term, other in (("age", "sbp"), ("sbp", "age"))
)


def cohort(seed: int) -> Coded:
    rng = np.random.default_rng(seed)
    ward = rng.choice(3, N, p=SHARES)
    age = (47 + 8 * ward + rng.normal(0, 10, N)).clip(18, 100).round()
    sbp = (125 + 0.5 * (age - 55) + rng.normal(0, 15, N)).clip(80, 220).round()
    risk = 0.03 * (sbp - 125) + 0.03 * (age - 55)
    dies = 8 * (rng.exponential(size=N) * np.exp(-risk)) ** (1 / SHAPES[ward])
    leaves = rng.exponential(30, N)
    return {
        "time": np.minimum(np.minimum(dies, leaves), 10.0).round(2),
        "died": (dies <= np.minimum(leaves, 10)) * 1.0,
        "age": age,
        "sbp": sbp,
        "ward": np.where(rng.random(N) < 0.03, np.nan, ward),
    }


def tables(seed: int, epsilon: float) -> tuple[Coded, list[Coded]]:
    """The cohort, and its copies."""
    real, encoding, asked = cohort(seed), Encoding(SCHEMA), Structured(5, 0, planted=0)
    rows, present = encoding.encode(real, np.random.default_rng(1))
    planned = plan(asked, SCHEMA, N, PrivacyRequest(epsilon, 1e-5), ASKED)
    given = (encoding, rows[:, None], present[:, None], SeededNoise(seed))
    return real, [dict(part.columns) for part in release(asked, planned, *given)]


def curve(table: Coded, ward: int) -> np.ndarray:
    """Kaplan and Meier's, of a ward."""
    mine = table["ward"] == ward
    time, died = table["time"][mine], table["died"][mine]
    at, events = np.unique(time[died > 0], return_counts=True)
    risk = (time[:, None] >= at).sum(axis=0)
    alive = np.append(1.0, np.cumprod(1 - events / risk))
    return np.asarray(alive[np.searchsorted(at, TIMES, side="right")])


def errors(epsilon: float) -> tuple[float, float]:
    """Root mean squares: of coefficients, in standard errors, and of the wards' curves."""
    coefficients, curves = [], []
    for seed in range(SEEDS):
        real, copies = tables(seed, epsilon)
        for asked in ASKED:
            own, ours = (
                combine([estimate(t, SCHEMA, asked) for t in of]) for of in ([real], copies)
            )
            coefficients.append((ours.estimate - own.estimate) / own.within**0.5)
        for ward in range(3):
            curves.append(np.mean([curve(t, ward) for t in copies], axis=0) - curve(real, ward))
    size = [float(np.sqrt(np.mean(np.square(found)))) for found in (coefficients, curves)]
    return size[0], size[1]


@contextmanager
def adjusted() -> Iterator[None]:
    """Strata are covariates."""
    with patch.object(declared, "_list_strata", lambda asked: ()):
        yield


@pytest.mark.parametrize("epsilon", [3000.0, 3.0])
def test_crossing_strata_are_in_the_tables_and_so_is_the_stratified_coefficient(
    epsilon: float,
) -> None:
    own, curves = errors(epsilon)
    assert own < 0.8
    assert curves < 0.035
    with adjusted():
        twin, curves = errors(epsilon)
    assert twin > 1.5 * own
    assert curves > 0.07


def test_a_stratified_regression_alone_holds_the_coefficient_better_and_no_curves() -> None:
    """As where strata are too many, or noise is too much, for baselines of their own."""
    with patch.object(structured, "count_deviations", lambda *given: 0):
        coefficients, curves = errors(3.0)
    with adjusted():
        worse, _ = errors(3.0)
    assert coefficients < worse
    assert curves > 0.07

"""What no regression answers errs as it says, by noise and in all; half the noise is caught, and so
is twice as much.

Noise: 150 releases of one table; the mean square of z has mean 1 and sd √(2/150) = .115, so that
.35 and 1.65 are 5.6 sds away: a false alarm in 2e-8 of each of the answers. All: 150 tables of 800
rows, eight answers each; a coverage of .95 has an sd of .018 of a single answer.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from tests.support.faults import less_discrete_noise
from tests.unit.shared.mechanisms.scoring.test_answers import SCHEMA, rows

from penstock.mechanisms import Scoring
from penstock.mechanisms.scoring import cumulatives
from penstock.mechanisms.scoring.blocks import find_places
from penstock.mechanisms.scoring.plan import ScoringPlan, plan, plan_at
from penstock.mechanisms.scoring.run import answer
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded

ASKED = (
    Estimand("age", "mean", "z"),
    Estimand("inside", "mean", "x", where="group == 'a'"),
    Estimand("flagged", "mean", "flag"),
    Estimand("level", "share", "group", outcome_level="c"),
    Estimand("above", "share", "x", threshold=0.5, direction="above"),
    Estimand("half", "survival", "time", at=2.5),
    Estimand("end", "survival", "time", at=5),
    Estimand("they", "survival", "time", at=3, where="x > 0"),
    Estimand("rate", "rate", "time", per=10),
    Estimand("early", "rate", "time", until=2, where="x > 0"),
    Estimand("cell", "table", "group", term="flag", level="1", outcome_level="b"),
)
COUNTED = (
    Estimand("level", "count", "group", outcome_level="c"),
    Estimand("above", "count", "x", threshold=0.5, direction="above", where="flag == '1'"),
    Estimand("died", "count", "time"),
    Estimand("soon", "count", "time", until=2),
)
"""Of these very rows: what they err by is the noise alone."""
RELEASES, LOW, HIGH = 150, 0.35, 1.65
N, TABLES = 800, 150


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is drawn number by number: fewer do here."""
    monkeypatch.setattr(cumulatives, "BINS", 64)


def told(planned: ScoringPlan, table: Coded, seed: int) -> tuple[np.ndarray, ...]:
    """Estimates, and the variances of noise and of sampling."""
    present = np.ones(len(table["x"]), dtype=np.bool_)
    found = answer(planned, table, present, SeededNoise(seed))
    return (
        np.concatenate([each.coefficients for each in found]),
        np.concatenate([np.diag(each.noise) for each in found]),
        np.concatenate([np.diag(each.sampling) for each in found]),
    )


def squares() -> np.ndarray:
    """Mean squares of each answer's noise over what it says of it; of a table all its cells."""
    table, asked = rows(4000), (*ASKED, *COUNTED)
    exact, *_ = told(plan_at(Scoring(), SCHEMA, 4000, asked, 1e-3), table, 0)
    planned = plan_at(Scoring(), SCHEMA, 4000, asked, 3.0)
    drawn = [told(planned, table, seed) for seed in range(RELEASES)]
    return np.mean([(value - exact) ** 2 / noise for value, noise, _ in drawn], axis=0)


def test_noise_is_as_large_as_is_told() -> None:
    found = squares()
    assert ((found > LOW) & (found < HIGH)).all(), found


@pytest.mark.parametrize("share", [Fraction(1, 4), Fraction(4)])
def test_other_noise_is_caught(share: Fraction) -> None:
    with less_discrete_noise(share)():
        found = squares()
    assert not ((found > LOW) & (found < HIGH)).any(), found


def test_intervals_hold_the_truth_and_without_noise_they_do_not() -> None:
    population = rows(40_000, 7)
    truth = np.array([estimate(population, SCHEMA, each).estimate for each in ASKED])
    planned = plan(Scoring(), SCHEMA, N, PrivacyRequest(1.0, 1e-5), ASKED)
    places = [find_places(SCHEMA, ASKED)[each.name] for each in ASKED]
    held, held_alone = [], []
    for seed in range(TABLES):
        chosen = np.random.default_rng(seed).integers(0, 40_000, N)
        table = {name: values[chosen] for name, values in population.items()}
        value, noise, sampling = (part[places] for part in told(planned, table, seed))
        held.append(np.abs(value - truth) < 1.959964 * np.sqrt(noise + sampling))
        held_alone.append(np.abs(value - truth) < 1.959964 * np.sqrt(sampling))
    assert 0.92 < np.mean(held) < 0.985
    assert np.mean(held, axis=0).min() > 0.95 - 5.6 * math.sqrt(0.95 * 0.05 / TABLES)
    assert np.mean(held_alone) < 0.85


def test_a_counts_interval_holds_the_number_of_these_rows() -> None:
    """Whatever rows they are: nothing is said of those that they were drawn from."""
    table = rows(N, 3)
    truth = np.array([estimate(table, SCHEMA, each).estimate for each in COUNTED])
    planned = plan(Scoring(), SCHEMA, N, PrivacyRequest(1.0, 1e-5), COUNTED)
    places = [find_places(SCHEMA, COUNTED)[each.name] for each in COUNTED]
    held = []
    for seed in range(RELEASES):
        value, noise, sampling = (part[places] for part in told(planned, table, seed))
        assert not sampling.any()
        held.append(np.abs(value - truth) < 1.959964 * np.sqrt(noise))
    assert np.mean(held, axis=0).min() > 0.95 - 5.6 * math.sqrt(0.95 * 0.05 / RELEASES)

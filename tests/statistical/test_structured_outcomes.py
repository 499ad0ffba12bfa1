"""Every regression that a study asks of is in structured tables: with hardly any noise its own fit.

A cohort that the mechanism's models did not make: covariates are skewed and go together, outcomes
have residuals of their own, and one of them is a covariate of others. Seeds are fixed: no alarm is
by chance. Planted faults are seen on either side.
"""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from tests.support.carried_out import release

from penstock.inference.combine import combine
from penstock.mechanisms import Structured
from penstock.mechanisms.plans import plan
from penstock.mechanisms.structured import run as structured
from penstock.mechanisms.structured.outcomes.protocol import Regression, World
from penstock.mechanisms.structured.regressors import Design
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding

N, COPIES, EXACT = 3000, 60, 3000.0
SCHEMA = Schema(
    (
        Column("time", "duration", upper=10, decimals=2, event="died"),
        Column("died", "event"),
        Column("nodes", "integer", lower=0, upper=60, spike=0, scale="log"),
        Column("crp", "continuous", lower=0.1, upper=300, decimals=1, scale="log"),
        Column("age", "integer", lower=18, upper=100),
        Column("arm", "binary"),
        Column("sbp", "continuous", lower=60, upper=260, decimals=0),
        Column("relapse", "binary"),
        Column("visits", "integer", lower=0, upper=60),
        Column("cost", "continuous", lower=0, upper=5000, decimals=0, spike=0, nullable=True),
    )
)
ASKED = (
    Estimand("sbp-crp", "ols", "sbp", "crp", adjust=("age", "arm")),
    Estimand("sbp-arm", "ols", "sbp", "arm", adjust=("crp", "age")),
    Estimand("relapse-nodes", "logistic", "relapse", "nodes", adjust=("age", "sbp")),
    Estimand("relapse-sbp", "logistic", "relapse", "sbp", adjust=("age", "nodes")),
    Estimand("visits-age", "poisson", "visits", "age", adjust=("arm", "crp")),
    Estimand("visits-arm", "poisson", "visits", "arm", adjust=("age", "crp")),
    Estimand("cost-age", "ols", "cost", "age", adjust=("arm", "nodes")),
    Estimand("time-nodes", "cox", "time", "nodes", adjust=("age", "arm", "sbp")),
    Estimand("time-sbp", "cox", "time", "sbp", adjust=("age", "arm", "nodes")),
)


def cohort(seed: int) -> Coded:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(N)
    b = 0.5 * a + np.sqrt(0.75) * rng.standard_normal(N)
    age = np.rint(58 + 12 * a - 3 * (a > 1)).clip(18, 100) - 58
    nodes = np.where(rng.random(N) < 0.4, 0, np.exp(0.8 + 0.9 * b).round().clip(1, 60))
    crp = np.exp(1.2 + 0.4 * b + 0.9 * rng.standard_normal(N)).round(1).clip(0.1, 300)
    arm = (rng.random(N) < 0.5) * 1.0
    far = np.minimum(crp, 60)
    sbp = 100 + 0.6 * age + 0.25 * far - 4 * arm + rng.gamma(4, 7, N)
    sbp = np.rint(sbp).clip(60, 260)
    odds = np.exp(0.1 * nodes + 0.02 * age + 0.015 * (sbp - 130) - 1.8)
    visits = rng.poisson(
        np.exp(1.2 + 0.015 * age + 0.25 * arm + 0.003 * far) * rng.gamma(4, 0.25, N)
    )
    cost = np.exp(5 + 0.02 * age + 0.3 * arm + 0.04 * nodes + 0.8 * rng.standard_normal(N))
    cost = np.where(rng.random(N) < 0.3, 0, np.rint(cost).clip(0, 5000))
    risk = 0.06 * nodes + 0.03 * age - 0.4 * arm + 0.008 * (sbp - 130)
    dies, leaves = rng.weibull(1.3, N) * 14 * np.exp(-risk / 1.3), rng.exponential(40, N)
    return {
        "time": np.minimum(np.minimum(dies, leaves), 10.0).round(2),
        "died": (dies <= np.minimum(leaves, 10)) * 1.0,
        "nodes": nodes,
        "crp": crp,
        "age": age + 58,
        "arm": arm,
        "sbp": sbp,
        "relapse": (rng.random(N) < odds / (1 + odds)) * 1.0,
        "visits": visits.clip(0, 60) * 1.0,
        "cost": np.where(rng.random(N) < 0.1, np.nan, cost),
    }


def tables(seed: int, epsilon: float) -> tuple[Coded, list[Coded]]:
    """The cohort, and its copies."""
    real, encoding, asked = cohort(seed), Encoding(SCHEMA), Structured(COPIES, 0)
    rows, present = encoding.encode(real, np.random.default_rng(1))
    planned = plan(asked, SCHEMA, N, PrivacyRequest(epsilon, 1e-5), ASKED)
    given = (encoding, rows[:, None], present[:, None], SeededNoise(seed))
    return real, [dict(part.columns) for part in release(asked, planned, *given)]


def errors(seed: int, epsilon: float) -> np.ndarray:
    """Of each estimand, how many standard errors the copies' coefficient is from the cohort's."""
    real, copies = tables(seed, epsilon)
    found = []
    for asked in ASKED:
        [own, ours] = (combine([estimate(t, SCHEMA, asked) for t in of]) for of in ([real], copies))
        found.append((ours.estimate - own.estimate) / own.within**0.5)
    return np.array(found)


BESIDE = (
    Estimand("age", "logistic", "relapse", "age", adjust=("arm",)),
    Estimand("arm", "logistic", "relapse", "arm", adjust=("age",)),
    Estimand("both", "logistic", "relapse", "age:arm", adjust=("age", "arm")),
)
"""Main effects, and how much they differ; where a copula does not know who has which arm."""


def bent_cohort(seed: int) -> tuple[Schema, Coded]:
    """The older have the arm more often, up to an age; beyond it, less: what age and arm have in
    common with their product is in no correlation."""
    rng = np.random.default_rng(seed)
    age = np.rint(58 + 12 * rng.standard_normal(N)).clip(18, 100)
    z = (age - 58) / 12
    arm = (rng.random(N) < 0.15 + 0.7 * (z > -0.3) * (z < 1.2)) * 1.0
    odds = np.exp(-0.5 + 0.3 * z + 0.2 * arm + 0.8 * z * arm)
    relapse = (rng.random(N) < odds / (1 + odds)) * 1.0
    columns = tuple(SCHEMA[name] for name in ("age", "arm", "relapse"))
    return Schema(columns), {"age": age, "arm": arm, "relapse": relapse}


def miss_main_effects(seed: int) -> np.ndarray:
    """(3,) how many standard errors the copies' coefficients are from the cohort's."""
    schema, real = bent_cohort(seed)
    encoding, asked = Encoding(schema), Structured(COPIES, 0)
    rows, present = encoding.encode(real, np.random.default_rng(1))
    planned = plan(asked, schema, N, PrivacyRequest(EXACT, 1e-5), BESIDE)
    given = (encoding, rows[:, None], present[:, None], SeededNoise(seed))
    copies = [dict(part.columns) for part in release(asked, planned, *given)]
    found = []
    for one in BESIDE:
        [own, ours] = (combine([estimate(t, schema, one) for t in of]) for of in ([real], copies))
        found.append((ours.estimate - own.estimate) / own.within**0.5)
    return np.array(found)


def test_a_products_main_effects_are_those_of_the_regression_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And were not, while all were asked in the one that has it."""
    assert np.abs(miss_main_effects(4))[:2].max() < 0.4
    monkeypatch.setattr(World, "list_regressions", _ask_all_in_one)
    assert np.abs(miss_main_effects(4))[:2].max() > 1.0


def test_how_far_a_product_goes_with_what_it_is_made_of_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In rows it goes with age, in the world it does not. The tables' copula does not know who has
    which arm, so that not all of the product is there; but more than where nobody asks."""
    asked = np.abs(miss_main_effects(4))[2]
    monkeypatch.setattr(Design, "_list_crossed", lambda _: [])
    assert asked < np.abs(miss_main_effects(4))[2] - 0.6


def _ask_all_in_one(world: World) -> tuple[Regression, ...]:
    return (Regression(world.declared, world.declared, world.declared & False),)


def far(found: np.ndarray) -> bool:
    """The mean of sixty copies has a standard error of .13 itself."""
    return bool(np.sqrt((found**2).mean()) > 0.6 or np.abs(found).max() > 1.2)


def test_without_noise_every_regressions_coefficient_is_the_cohorts() -> None:
    assert not far(errors(0, EXACT))


@pytest.mark.parametrize("by", [0.0, 2.0])
def test_outcomes_with_other_coefficients_are_seen(by: float) -> None:
    match = structured.match_outcome
    with patch.object(structured, "match_outcome", lambda *given: by * match(*given)):
        assert far(errors(0, EXACT))


def test_with_noise_outcomes_have_the_cohorts_shapes_and_what_they_share() -> None:
    names = ("sbp", "relapse", "visits", "cost")
    off: dict[str, list[float]] = {name: [] for name in names}
    wide: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(1, 7):
        real, copies = tables(seed, 3.0)
        for table in copies[:5]:
            for name in names:
                own, ours = (t[name][~np.isnan(t[name])] for t in (real, table))
                off[name].append((ours.mean() - own.mean()) / own.std())
                wide[name].append(np.log(ours.std() / own.std()))
    for name in names:  # over six sites: of one alone noise takes a mean further
        assert np.sqrt(np.mean(np.square(off[name]))) < 0.15, name
        assert np.sqrt(np.mean(np.square(wide[name]))) < 0.3, name
    real, copies = tables(1, 3.0)
    for table in copies[:5]:
        assert abs((table["cost"] == 0).mean() - (real["cost"] == 0).mean()) < 0.06
        assert abs(np.isnan(table["cost"]).mean() - 0.1) < 0.04
        # Nobody asked of it; it is held since one outcome is drawn given the other.
        both = [np.corrcoef(t["age"], t["sbp"])[0, 1] for t in (table, real)]
        assert abs(both[0] - both[1]) < 0.15


def test_who_is_lost_after_the_last_events_is_lost_when_rows_are() -> None:
    """Events end early, and one of two groups is lost evenly over the years after: in the tables,
    too, and not all at once."""
    schema = Schema(
        (
            Column("t", "duration", upper=10, decimals=2, event="d"),
            Column("d", "event"),
            Column("g", "binary"),
        )
    )
    rng, count = np.random.default_rng(3), 4000
    g = (rng.random(count) < 0.5).astype(float)
    event = np.where(rng.random(count) < 0.14, rng.uniform(0, 2, count), np.inf)
    lost = np.where((g > 0) | (rng.random(count) < 0.1), rng.uniform(2, 8, count), np.inf)
    time = np.minimum(np.minimum(event, lost), 10).round(2)
    rows = {"t": time, "d": (event <= lost).astype(float) * (event < 10), "g": g}
    asked = (Estimand("hazard", "cox", "t", "g"),)
    settings = Structured(copies=4, refits=0, planted=0)
    made = plan(settings, schema, count, PrivacyRequest(20.0, 1e-5), asked)
    encoding = Encoding(schema)
    encoded, present = encoding.encode(rows, rng)
    parts = release(settings, made, encoding, encoded[:, None], present[:, None], SeededNoise(4))
    found = np.concatenate([np.asarray(part.columns["t"]) for part in parts])
    assert found.mean() == pytest.approx(time.mean(), rel=0.03)
    for at in (3.0, 4.0, 5.0, 6.0, 7.0):
        assert np.mean(found > at) == pytest.approx(np.mean(time > at), abs=0.03)

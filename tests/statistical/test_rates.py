"""Rate ratios come back from a noisy structured run, of persons who were followed for as long as
they were, with counts that vary more than a Poisson model has it.

The cohort is made by another law than the mechanism's: a gamma factor on each person's rate, and a
follow-up that hangs together with what is asked. Seeds are fixed: no alarm is by chance. Ignoring
the exposure, in the question or in the mechanism, is seen.
"""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from tests.support.carried_out import release

from penstock.mechanisms import Structured
from penstock.mechanisms.plans import plan
from penstock.mechanisms.structured.outcomes.protocol import World
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding

N, COPIES, EPSILON = 4000, 6, 3.0
SCHEMA = Schema(
    (
        Column("years", "continuous", lower=0.1, upper=12, decimals=2),
        Column("age", "integer", lower=18, upper=100),
        Column("arm", "binary"),
        Column("falls", "integer", lower=0, upper=60),
    )
)
TRUE = {"age": 0.2, "arm": 0.3}
"""Per ten years, and of the arm: logarithms of rate ratios."""


def ask(model: str, exposure: str = "years") -> tuple[Estimand, ...]:
    return (
        Estimand("age", model, "falls", "age", per=10, adjust=("arm",), exposure=exposure),
        Estimand("arm", model, "falls", "arm", adjust=("age",), exposure=exposure),
    )


def cohort(seed: int) -> Coded:
    rng = np.random.default_rng(seed)
    a, arm = rng.standard_normal(N), (rng.random(N) < 0.5) * 1.0
    age = np.rint(58 + 12 * a).clip(18, 100)
    # Who is old, or in the arm, is followed for a shorter time.
    years = rng.gamma(2, 1.6, N) * np.exp(-0.3 * a - 0.4 * arm)
    years = years.clip(0.1, 12).round(2)
    rate = np.exp(-0.2 + TRUE["age"] * (age - 58) / 10 + TRUE["arm"] * arm)
    falls = rng.poisson(years * rate * rng.gamma(1 / 0.7, 0.7, N))
    return {"years": years, "age": age, "arm": arm, "falls": falls.clip(0, 60) * 1.0}


def tables(seed: int, asked: tuple[Estimand, ...]) -> tuple[Coded, list[Coded]]:
    """The cohort, and its copies."""
    real, encoding, mechanism = cohort(seed), Encoding(SCHEMA), Structured(COPIES, 0, 0)
    rows, present = encoding.encode(real, np.random.default_rng(1))
    planned = plan(mechanism, SCHEMA, N, PrivacyRequest(EPSILON, 1e-5), asked)
    given = (encoding, rows[:, None], present[:, None], SeededNoise(seed))
    return real, [dict(part.columns) for part in release(mechanism, planned, *given)]


def errors(
    seed: int, declared: tuple[Estimand, ...], asked: tuple[Estimand, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Of the copies' mean, from the cohort's own and from the truth, in standard errors of a
    negative binomial regression of the cohort."""
    real, copies = tables(seed, declared)
    found = []
    for one, of, exact in zip(asked, ask("negative-binomial"), ask(declared[0].model), strict=True):
        mean = np.mean([estimate(copy, SCHEMA, one).estimate for copy in copies])
        error = estimate(real, SCHEMA, of).variance ** 0.5
        found.append(
            [
                (mean - estimate(real, SCHEMA, exact).estimate) / error,
                (mean - TRUE[of.name]) / error,
            ]
        )
    own, true = np.array(found).T
    return own, true


NEAR, SEEDS, MORE = 1.0, (0, 1, 2), range(8)
"""Root mean square, from the cohort's own: noise is about .2. From the truth sampling adds 1 and
1.3."""


def far(found: np.ndarray, most: float = 2.5) -> bool:
    return bool(np.sqrt((found**2).mean()) > most or np.abs(found).max() > 2 * most)


@pytest.mark.parametrize("model", ["poisson", "negative-binomial"])
@pytest.mark.parametrize("seed", SEEDS)
def test_rate_ratios_come_back_from_a_noisy_run(model: str, seed: int) -> None:
    own, true = errors(seed, ask(model), ask(model))
    assert not far(own, NEAR), own
    assert not far(true), true


@pytest.mark.parametrize("model", ["poisson", "negative-binomial"])
def test_a_question_that_ignores_the_exposure_is_another_one(model: str) -> None:
    _, true = errors(0, ask(model), ask(model, ""))
    assert far(true), true


@pytest.mark.parametrize("model", ["poisson", "negative-binomial"])
def test_tables_that_ignore_the_exposure_are_seen(model: str) -> None:
    """A reference without the offset has counts for rates, and tables are made to hold these."""
    own = [errors(seed, ask(model), ask(model))[0] for seed in MORE]
    with patch.object(World, "held", lambda world, narrow: 0 * world.fixed):
        twin = [errors(seed, ask(model), ask(model))[0] for seed in MORE]
    assert np.square(twin).mean() > 2.5**2 * np.square(own).mean(), (own, twin)

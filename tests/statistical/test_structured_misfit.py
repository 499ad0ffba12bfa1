"""What a study asks is in the tables where the model that they are drawn from is not the rows' own.

Votes change in one step between two levels of an item, and 5 % vote against their side: no
coefficient of a logistic model does that. Rows that the released world hardly has, of those who
vote against, lie far out; a bound that is drawn where few of the world's lie cuts them off, and the
regression comes back by four standard errors too steep.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tests.support.carried_out import release

from penstock.mechanisms import Structured
from penstock.mechanisms.plans import plan
from penstock.mechanisms.released import name_copy
from penstock.mechanisms.structured import matching
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding

SCHEMA = Schema(
    (
        Column("vote", "binary"),
        Column("side", "integer", 1, 7),
        Column("wealth", "integer", 1, 24),
    )
)
ASKED = (
    Estimand("side", "logistic", "vote", "side", adjust=("wealth",)),
    Estimand("wealth", "logistic", "vote", "wealth", adjust=("side",)),
)
SHARES = np.array([0.04, 0.05, 0.06, 0.15, 0.85, 0.92, 0.95])
COPIES, N = 4, 6000


@cache
def cohort(seed: int) -> Coded:
    rng = np.random.default_rng(seed)
    side = np.clip(np.rint(rng.normal(4, 1.5, N)), 1, 7)
    wealth = np.clip(np.rint(12 + 6 * rng.normal(size=N)), 1, 24)
    share = 0.9 * SHARES[(side - 1).astype(int)] + 0.1 * (wealth > 12)
    return {"vote": (rng.random(N) < share) * 1.0, "side": side, "wealth": wealth}


def errors(seed: int, epsilon: float) -> np.ndarray:
    """Of each coefficient in the tables, in the cohort's own standard errors."""
    rows, encoding = cohort(seed), Encoding(SCHEMA)
    x, there = encoding.encode(rows, np.random.default_rng(seed))
    settings = Structured(copies=COPIES, refits=0, planted=0)
    planned = plan(settings, SCHEMA, N, PrivacyRequest(epsilon, 1e-6), ASKED)
    noise = SeededNoise(seed)
    parts = release(settings, planned, encoding, x[:, None], there[:, None], noise)
    found = {p.name: {k: np.asarray(v, float) for k, v in p.columns.items()} for p in parts}
    tables = [found[name_copy(number)] for number in range(1, COPIES + 1)]
    off = []
    for asked in ASKED:
        own = estimate(rows, SCHEMA, asked)
        mean = np.mean([estimate(table, SCHEMA, asked).estimate for table in tables])
        off.append((mean - own.estimate) / np.sqrt(own.variance))
    return np.array(off)


@pytest.mark.parametrize("epsilon", [3.0, 1000.0])
def test_a_step_in_the_odds_makes_no_coefficient_steeper(epsilon: float) -> None:
    assert np.abs([errors(seed, epsilon) for seed in (0, 1)]).max() < 1.2


def test_a_bound_where_few_of_the_world_lie_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def weigh(
        sizes: object, question: object, sd: float, unseen: float
    ) -> tuple[np.ndarray, np.ndarray]:
        weights = sizes.choose_weights(question.importance, 0.95)  # type: ignore[attr-defined]
        return weights, np.zeros(weights.shape)

    monkeypatch.setattr(matching, "weigh_reach", weigh)
    assert min(errors(seed, 3.0)[0] for seed in (0, 1)) > 2

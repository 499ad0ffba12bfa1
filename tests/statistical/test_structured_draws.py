"""Tables of one model: each of several varies as one of independent rows does, their mean less, and
a single one less. What is drawn by independent points instead is seen.
"""

from __future__ import annotations

from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
from tests.statistical.test_structured_tables import EPSILON, HAZARD, SCHEMA, N, cohort

from penstock.mechanisms import Structured
from penstock.mechanisms.plans import plan
from penstock.mechanisms.structured import run as structured
from penstock.mechanisms.structured.settings import FRESH
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimation import estimate
from penstock.schema import Coded
from penstock.schema.encoding import Encoding

COPIES, TIMES = 4, 96

MOST_FRESH, LEAST_OWN = 0.6, 0.5
"""Shares of a table's sampling: what independent rows have more of, and even ones less than half of
it; and what one of several has, whose sd here is about .1."""

ERROR = 0.15
"""Of a variance of so many estimates: an sd, as a share."""


@cache
def fitted() -> structured.Model:
    encoding = Encoding(SCHEMA)
    rows, present = encoding.encode(cohort(0), np.random.default_rng(1))
    planned = plan(Structured(), SCHEMA, N, PrivacyRequest(EPSILON, 1e-5), (HAZARD,))
    coded = encoding.decode(rows)
    return structured.fit(planned, SCHEMA, coded, present, SeededNoise(1))


def draw_tables(tables: int, rng: np.random.Generator) -> list[Coded]:
    return [table.unpack() for table in fitted().draw_packed(N, N, rng, tables=tables)]


def shares() -> tuple[float, float, float]:
    """By the variance of one table's estimate, as its own fits say it: of a single table's, of each
    of several, and of these ones' mean times their number."""
    rng, single, several, within = np.random.default_rng(3), [], [], []
    for _ in range(TIMES):
        alone = fitted().draw(N, N, rng)
        single.append(estimate(alone, SCHEMA, HAZARD).estimate)
        fits = [estimate(t, SCHEMA, HAZARD) for t in draw_tables(COPIES, rng)]
        several.append([fit.estimate for fit in fits])
        within += [fit.variance for fit in fits]
    together, one = np.array(several), float(np.mean(within))
    mean = float(together.mean(axis=1).var(ddof=1)) * COPIES
    own = float(together.var(axis=1, ddof=1).mean())
    return float(np.var(single, ddof=1)) / one, own / one, mean / one


def test_tables_together_are_even_and_each_alone_is_not() -> None:
    single, own, mean = shares()
    assert FRESH * (1 - 2 * ERROR) < single < MOST_FRESH / 2
    assert LEAST_OWN < own < 1 / LEAST_OWN
    assert mean < MOST_FRESH / 2


def test_independent_points_are_seen() -> None:
    def independent(count: int, width: int, rng: np.random.Generator) -> np.ndarray:
        return rng.random((count, width))

    with patch.object(structured, "_spread_points", independent):
        single, own, mean = shares()
    assert single > MOST_FRESH
    assert mean > MOST_FRESH
    assert LEAST_OWN < own < 1 / LEAST_OWN


def test_tables_of_one_net_in_turn_would_not_be_like_cohorts() -> None:
    """Without a shuffle each one is even by itself: its own spread says so."""
    with patch.object(structured, "_shuffle", lambda points, rng: points):
        _, own, _ = shares()
    assert own < LEAST_OWN


@pytest.mark.parametrize("tables", [1, 3])
@pytest.mark.parametrize("kept", [0, 1, 499, 500, 700])
def test_blocks_make_no_difference_to_how_many_rows_there_are(tables: int, kept: int) -> None:
    with patch.object(structured, "ROWS_AT_ONCE", 500):
        found = fitted().draw_packed(700, kept, np.random.default_rng(2), tables=tables)
    assert len(found) == tables
    for table in (each.unpack() for each in found):
        assert {len(values) for values in table.values()} == {kept}
        check_grid(table)


def check_grid(table: Coded) -> None:
    """Values are as the dictionary has them."""
    for column in SCHEMA.columns:
        values = table[column.name]
        assert np.array_equal(column.snap(values), values, equal_nan=True), column.name

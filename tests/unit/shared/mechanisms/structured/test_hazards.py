"""Shorter ways to the same numbers: sums of intervals, of products, and the end of few."""

import numpy as np
import pytest

from penstock.mechanisms.structured import score_clipping
from penstock.mechanisms.structured.outcomes import hazards
from penstock.mechanisms.structured.outcomes.courses import sum_after, sum_before

PAIRS = [(0, 0), (0, 2), (1, 2)]


@pytest.mark.parametrize("shape", [(16,), (16, 50), (16, 50, 3), (1, 4)])
def test_sums_of_rows_above_and_below(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).normal(size=shape)
    before = np.stack([values[:at].sum(axis=0) for at in range(len(values))])
    after = np.stack([values[at + 1 :].sum(axis=0) for at in range(len(values))])
    assert np.allclose(sum_before(values), before, rtol=0, atol=1e-12)
    assert np.allclose(sum_after(values, 2.0), after + 2, rtol=0, atol=1e-12)


@pytest.mark.parametrize("strata", [1, 3])
def test_curvatures_are_sums_of_products_of_distances(strata: int) -> None:
    rng = np.random.default_rng(2)
    design, means = rng.normal(size=(50, 4)), rng.normal(size=(strata, 16, 4))
    mine = rng.integers(0, strata, 50) if strata > 1 else slice(None)
    weights = rng.random((16, 50))
    found = hazards._curve(weights, design, means, PAIRS, mine)
    laid = [(weights * hazards._products(design, means, pair, mine)).sum(axis=0) for pair in PAIRS]
    assert np.allclose(found, np.column_stack(laid), rtol=0, atol=1e-11)
    assert not np.allclose(found, hazards._curve(weights, design, -means, PAIRS, mine), atol=0.1)


def test_who_is_left_is_what_hazards_integrate_to() -> None:
    """Whether a hazard is tiny or huge; and so is how that changes with each."""
    hazard = np.geomspace(1e-14, 30, 64).reshape(16, 4)
    left, stays = hazards._leave(-hazard)
    passed = np.concatenate([np.zeros((1, 4)), np.cumsum(hazard, axis=0)])
    assert np.allclose(left, np.exp(-passed), rtol=1e-12, atol=1e-15)
    at = (np.arange(4000) + 0.5) / 4000
    spent = np.exp(-hazard[..., None] * at).mean(axis=-1)
    assert np.allclose(stays, left[:-1] * spent, rtol=1e-5, atol=0)
    slope = -(at * np.exp(-hazard[..., None] * at)).mean(axis=-1)
    assert np.allclose(hazards._bend_stays(left, stays, hazard), left[:-1] * slope, rtol=1e-3)


@pytest.mark.parametrize("reach", [0.3, 0.95, 0.998, 1.0])
@pytest.mark.parametrize("size", [1, 3, 4000])
def test_few_are_beyond_a_quantile(size: int, reach: float) -> None:
    rng = np.random.default_rng(size)
    for values in (rng.gamma(0.3, size=size), rng.integers(0, 4, size) * 1.0, np.zeros(size)):
        chances = rng.random(size) ** 4
        found = score_clipping._quantile(values, chances, reach)
        most = (1 - reach) * chances.sum() + 1e-9
        assert found in values
        assert chances[values > found].sum() <= most
        lower = values[values < found]
        assert not len(lower) or chances[values > lower.max()].sum() > most - 2e-9

"""Dealt rows: of each class and of each cell as many as are expected, up to rounding."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

from penstock.mechanisms.classes import even_draws
from penstock.mechanisms.classes.even_draws import (
    deal_cells,
    deal_classes,
    hand_out,
    spread_inside,
)

CELLS = (2, 5, 41)


def chances(seed: int, classes: int) -> list[np.ndarray]:
    """(classes, cells) of each column: from even to nearly certain."""
    rng = np.random.default_rng(seed)
    return [rng.dirichlet(np.full(cells, 0.3), classes) for cells in CELLS]


def risen(of: list[np.ndarray]) -> list[np.ndarray]:
    return [np.cumsum(each, axis=1)[:, :-1] for each in of]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("classes", "rows"), [(1, 1), (7, 100), (100, 300), (400, 10_000)])
def test_counts_are_those_expected(seed: int, classes: int, rows: int) -> None:
    rng, theta = np.random.default_rng(seed), chances(seed, classes)
    weights = np.random.default_rng(seed).dirichlet(np.ones(classes))
    member, sizes = deal_classes(np.cumsum(weights), rng.random(rows), rng)
    assert sizes.sum() == rows
    assert np.abs(sizes - rows * weights).max() < 2
    assert np.array_equal(np.bincount(member, minlength=classes), sizes)
    for each, count in zip(theta, deal_cells(risen(theta), sizes, rng), strict=True):
        expected = sizes[:, None] * each
        assert count.min() >= 0
        assert np.array_equal(count.sum(axis=1), sizes)
        # What a class hardly has is not made up for by another's rounding.
        assert np.abs(count - expected).max() < 1
        # Of each column's cells in the whole table.
        assert np.sqrt(np.mean((count.sum(axis=0) - expected.sum(axis=0)) ** 2)) < 3
        place = hand_out(count, member, rng.random(rows))
        found = np.zeros_like(count)
        np.add.at(found, (member, place), 1)
        assert np.array_equal(found, count)


def test_columns_are_off_by_less_than_classes_that_know_nothing_of_each_other() -> None:
    theta, sizes = chances(3, 400), np.full(400, 25)

    def miss() -> float:
        dealt = deal_cells(risen(theta), sizes, np.random.default_rng(0))
        off = [c.sum(axis=0) - sizes @ each for c, each in zip(dealt, theta, strict=True)]
        return float(np.sqrt(np.mean(np.concatenate(off) ** 2)))

    steady = miss()
    with patch.object(even_draws, "_STEADY", 1e9):
        assert miss() > 2 * steady


def test_nobody_is_rounded_one_way() -> None:
    """Over many tables each class's cells have what is expected, within a tenth of a row."""
    theta, sizes = chances(1, 6), np.array([0, 1, 2, 5, 1, 30])
    runs, total = 4_000, [np.zeros(each.shape) for each in theta]
    for seed in range(runs):
        for at, count in enumerate(deal_cells(risen(theta), sizes, np.random.default_rng(seed))):
            total[at] += count
    for each, found in zip(theta, total, strict=True):
        expected = sizes[:, None] * each
        assert np.abs(found / runs - expected).max() < 0.1


def test_a_higher_point_has_no_lower_cell() -> None:
    rng, member = np.random.default_rng(0), np.array([0] * 6 + [1] * 4)
    points = rng.random(10)
    place = hand_out(np.array([[3, 2, 1], [0, 4, 0]]), member, points)
    for one in (0, 1):
        own = np.argsort(points[member == one])
        assert np.all(np.diff(place[member == one][own]) >= 0)


def test_rows_of_a_cell_are_spread_in_it() -> None:
    place = np.repeat([0, 2, 3], [1, 50, 9])
    inside = spread_inside(place, np.random.default_rng(0))
    for cell, count in ((0, 1), (2, 50), (3, 9)):
        own = np.sort(inside[place == cell])
        assert np.all(np.floor(own * count) == np.arange(count))
    # In an order of chance: else a column would tell of who is next to whom.
    assert not np.all(np.diff(inside[place == 2]) > 0)

"""Cells hold every value, and give values back."""

import numpy as np
import pytest

from penstock.mechanisms.structured.grids import draw_values, make_grid, middle_of, place_of
from penstock.schema import Column

COLUMNS = [
    Column("age", "integer", 18, 100),
    Column("nodes", "integer", 0, 60, spike=0, scale="log"),
    Column("receptors", "integer", 0, 10_000, spike=0, scale="log"),
    Column("ratio", "continuous", 0, 50),
    Column("stage", "ordered", levels=("I", "II", "III")),
    Column("ward", "categorical", levels=("a", "b", "c")),
    Column("weight", "continuous", 30, 200, 1, nullable=True),
    Column("smokes", "binary", nullable=True),
]


def values_of(column: Column, n: int = 4000) -> np.ndarray:
    rng = np.random.default_rng(1)
    if column.levels:
        found = rng.integers(0, len(column.levels), n).astype(float)
    else:
        low, high = column.bounds
        found = column.snap(low + (high - low) * rng.beta(1.2, 6, n))
        if column.spike is not None:
            found = np.where(rng.random(n) < 0.3, column.spike, found)
    return np.where(rng.random(n) < 0.1, np.nan, found) if column.nullable else found


@pytest.mark.parametrize("column", COLUMNS, ids=lambda c: c.name)
def test_what_is_drawn_has_the_shares_that_were_counted(column: Column) -> None:
    grid, values = make_grid(column), values_of(column)
    counts = np.bincount(place_of(grid, values), minlength=grid.count)
    assert len(counts) == grid.count
    latents = np.random.default_rng(2).normal(size=(40_000, grid.latents))
    drawn = draw_values(grid, counts / counts.sum(), latents)
    again = np.bincount(place_of(grid, drawn), minlength=grid.count) / len(drawn)
    assert np.abs(again - counts / counts.sum()).max() < 0.012
    known = drawn[~np.isnan(drawn)]
    assert column.nullable or len(known) == len(drawn)
    if not column.levels:
        assert np.array_equal(known, column.snap(known))


@pytest.mark.parametrize("column", COLUMNS, ids=lambda c: c.name)
def test_what_a_cell_stands_for_lies_in_it(column: Column) -> None:
    grid = make_grid(column)
    middles = middle_of(grid)
    known = np.flatnonzero(~np.isnan(middles))
    place = place_of(grid, middles[known])
    # A spike's neighbours may stand for the spike itself.
    assert np.mean(place == known) > 0.9


def test_no_bin_lies_between_two_values_of_a_column() -> None:
    grid = make_grid(Column("nodes", "integer", 0, 60, scale="log"))
    place = place_of(grid, np.arange(61.0))
    assert set(place) == set(grid.bins)

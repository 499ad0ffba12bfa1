"""Pairs of columns are counted in cells that are joined by what was released of each."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.mechanisms.classes.pair_counts import (
    GROUPS,
    Groups,
    count_pairs,
    measure_pairs,
    most_groups,
    release_pairs,
)
from penstock.mechanisms.copula.grids import make_grid, place_of
from penstock.privacy.noise.sources import SeededNoise
from penstock.schema import Coded, Column

COLUMNS = (
    Column("ward", "categorical", levels=tuple("abcdef"), nullable=True),
    Column("cost", "integer", 0, 5000, spike=0, scale="log", nullable=True),
    Column("age", "integer", 18, 100),
    Column("sex", "binary"),
)


def draw_rows(n: int, seed: int) -> Coded:
    rng = np.random.default_rng(seed)
    cost = np.where(rng.random(n) < 0.3, 0, np.exp(rng.normal(5, 1.5, n)))
    return {
        "ward": np.where(rng.random(n) < 0.1, np.nan, rng.integers(0, 6, n)),
        "cost": COLUMNS[1].snap(np.where(rng.random(n) < 0.1, np.nan, cost)),
        "age": COLUMNS[2].snap(rng.normal(60, 12, n)),
        "sex": rng.integers(0, 2, n).astype(float),
    }


@pytest.mark.parametrize("column", COLUMNS, ids=lambda c: c.name)
@pytest.mark.parametrize("alike", [0.02, 0.3, 5.0])
def test_groups_are_runs_of_cells_of_about_as_many_rows(column: Column, alike: float) -> None:
    grid = make_grid(column)
    shares = np.random.default_rng(3).dirichlet(np.full(grid.count, alike))
    found = Groups.make(grid, shares)
    assert np.all(np.diff(found.of) >= 0)
    assert found.of[0] == 0
    assert found.count == found.of[-1] + 1 <= most_groups(grid, 12, fine=False)
    assert np.allclose(found.add_up(found.within), 1, atol=1e-6)
    whole = found.add_up(shares)
    assert whole.sum() == pytest.approx(1)
    for cell in (grid.spike, grid.missing):
        if cell >= 0:
            assert (found.of == found.of[cell]).sum() == 1
    if grid.numeric:
        # Only what is in one bin may be more than a group's share.
        wide = np.flatnonzero(whole > 2.1 / GROUPS)
        assert all((shares[found.of == g] > 0.9 / GROUPS).any() for g in wide)


def test_tables_are_those_of_pandas_and_are_where_their_columns_are() -> None:
    rows, rng = draw_rows(500, 1), np.random.default_rng(2)
    grids = [make_grid(column) for column in COLUMNS]
    groups = [Groups.make(grid, rng.dirichlet(np.ones(grid.count))) for grid in grids]
    there = rng.random(500) < 0.8
    found = release_pairs(groups, rows, there, None, SeededNoise(0))
    starts = np.append(0, np.cumsum([one.count for one in groups]))
    assert np.array_equal(found, found.T)
    for a, one in enumerate(groups):
        for b, other in enumerate(groups):
            part = found[starts[a] : starts[a + 1], starts[b] : starts[b + 1]]
            if a == b:
                assert not part.any()
                continue
            places = [g.of[place_of(g.grid, rows[g.grid.column.name])][there] for g in (one, other)]
            table = np.zeros_like(part)
            np.add.at(table, tuple(places), 1)
            assert np.array_equal(part, table)


def test_noise_is_that_of_the_measurement() -> None:
    rows = draw_rows(300, 1)
    grids = [make_grid(column) for column in COLUMNS]
    groups = [Groups.make(grid, np.full(grid.count, 1 / grid.count)) for grid in grids]
    measurement = measure_pairs(4.0, grids, 1)
    there = np.ones(300, dtype=np.bool_)
    assert sum(t.size for t in count_pairs(groups, rows, there)) <= measurement.size
    bare = release_pairs(groups, rows, there, None, SeededNoise(0))
    noisy = release_pairs(groups, rows, there, measurement, SeededNoise(0))
    off = (noisy - bare)[np.triu(noisy != bare)]
    assert off.std() == pytest.approx(4 * 6**0.5, rel=0.15)

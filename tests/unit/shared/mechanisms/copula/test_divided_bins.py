"""Bins are divided where rows are, and as far as counts stand out of the noise."""

import numpy as np
import pytest

from penstock.mechanisms.classes.pair_counts import Groups
from penstock.mechanisms.copula.densities import STIFFNESSES
from penstock.mechanisms.copula.divided_bins import Margin, _choose_starts, divide_bins
from penstock.mechanisms.copula.grids import (
    MOST_DIVIDED,
    Grid,
    make_grid,
    part,
    place_of,
    value_of,
)
from penstock.schema import Column

LENGTH = Column("length", "continuous", 0, 60, 2)
"""5 891 values and more are not counted one by one; most of them lie in four bins."""

WAITED = Column("waited", "integer", 0, 1000, spike=0, nullable=True)


def count(
    grid: Grid, values: np.ndarray, sd: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Of cells, and of values or parts with twice the noise."""
    cells = np.bincount(place_of(grid, values), minlength=grid.count)
    within = np.bincount(value_of(grid, values), minlength=len(grid.homes) + 1)[:-1]
    return cells + sd * rng.normal(size=len(cells)), within + 2 * sd * rng.normal(size=len(within))


def read(
    grid: Grid, counts: np.ndarray, values: np.ndarray, sd: float, rows: float
) -> tuple[Grid, np.ndarray]:
    """The cells, and their shares."""
    margin = divide_bins(Margin(grid, grid, counts, values, sd, rows, STIFFNESSES), True)
    return margin.grid, margin.read()


def lengths(rows: int, rng: np.random.Generator) -> np.ndarray:
    two = np.where(rng.random(rows) < 0.4, rng.normal(4.3, 0.2, rows), rng.normal(6.5, 0.6, rows))
    return LENGTH.snap(two)


def waits(rows: int, rng: np.random.Generator) -> np.ndarray:
    values = WAITED.snap(np.clip(rng.gamma(4.0, 8.0, rows), 0, 1000))
    values[rng.random(rows) < 0.3] = 0.0
    values[rng.random(rows) < 0.2] = np.nan
    return values


@pytest.mark.parametrize(("column", "draw"), [(LENGTH, lengths), (WAITED, waits)])
def test_cells_are_where_rows_are(column: Column, draw: object) -> None:
    rng, rows = np.random.default_rng(1), 40_000
    grid, values = part(make_grid(column)), draw(rows, rng)  # type: ignore[operator]
    counts, within = count(grid, values, 10.0, rng)
    fine, shares = read(grid, counts, within, 10.0, rows)
    assert shares.sum() == pytest.approx(1)
    assert len(grid.edges) < len(fine.edges) <= MOST_DIVIDED + len(grid.edges)
    # Bins that hold hardly anybody stay as they are.
    assert np.array_equal(fine.edges[-8:-1], grid.edges[-8:-1])
    truth = np.bincount(place_of(fine, values), minlength=fine.count) / rows
    assert np.abs(shares - truth).sum() / 2 < 0.03
    for own in (fine.spike, fine.missing):
        if own >= 0:
            assert abs(shares[own] - truth[own]) < 0.003


def test_who_lies_below_a_value_in_a_bin_is_known() -> None:
    """Which the bins alone say by the density of their neighbours."""
    rng, rows = np.random.default_rng(2), 40_000
    grid, values = part(make_grid(LENGTH)), lengths(rows, rng)
    errors = {}
    for told in (True, False):
        counts, within = count(grid, values, 10.0, rng)
        heard = within if told else within[:0]
        fine, shares = read(grid, counts, heard, 10.0, rows)
        assert told or fine is grid
        below, risen = np.linspace(3.5, 8.5, 101), np.append(0, np.cumsum(shares))
        found = np.interp(below, fine.edges * 60.01 - 0.005, risen)
        errors[told] = np.abs(found - (values[:, None] < below).mean(axis=0)).mean()
    assert errors[True] < 0.1 * errors[False]


@pytest.mark.parametrize("noise", [1e-12, 1.0, 30.0, 1e6])
def test_cells_are_no_more_than_stand_out(noise: float) -> None:
    homes = np.repeat(np.arange(32), np.random.default_rng(3).integers(1, 60, 32))
    rows = 10_000.0 * np.random.default_rng(4).dirichlet(np.full(32, 0.1))
    starts = _choose_starts(homes, rows, noise, MOST_DIVIDED)
    assert np.array_equal(starts, np.unique(starts))
    assert starts[0] == 0
    # Each bin has one at its first value.
    assert set(np.flatnonzero(np.append(True, np.diff(homes) > 0))) <= set(starts)
    cells, each = np.bincount(homes[starts], minlength=32), np.bincount(homes, minlength=32)
    assert np.all(cells <= each)
    assert len(starts) <= MOST_DIVIDED + 32
    divided = cells > 1
    assert np.all((rows / cells >= 3 * noise * np.sqrt(each / cells) - 1e-6)[divided])
    assert divided.any() == (noise < 1e6)


def test_without_noise_each_value_that_somebody_has_may_be_a_cell() -> None:
    homes = np.repeat(np.arange(8), 40)
    starts = _choose_starts(homes, np.where(np.arange(8) == 5, 0.0, 100.0), 0.0, MOST_DIVIDED)
    assert np.array_equal(starts, [at for at in range(320) if homes[at] != 5 or at == 200])


def test_of_noise_alone_nothing_is_divided() -> None:
    grid = part(make_grid(LENGTH))
    values = LENGTH.snap(np.random.default_rng(5).uniform(0, 60, 2000))
    counts, within = count(grid, values, 20.0, np.random.default_rng(6))
    fine, _ = read(grid, counts, within, 20.0, 2000)
    assert fine is grid


def test_cells_of_one_value_can_be_joined_to_groups() -> None:
    """Of a density that is nothing but there: all cells before the last have 1, or more by
    rounding."""
    grid, rng = part(make_grid(LENGTH)), np.random.default_rng(7)
    for value in (0.0, 31.4, 60.0):
        counts, within = count(grid, np.full(3_000, value), 0.01, rng)
        fine, shares = read(grid, counts, within, 0.01, 3_000)
        assert fine is not grid
        assert shares.min() > 0
        with np.errstate(invalid="raise"):
            groups = Groups.make(fine, shares, 24)
        assert groups.add_up(shares).max() > 0.99


SCHOOLED = Column("schooled", "continuous", 7, 18, 4)
"""Years, of which most are whole; more than 100,000 values are not counted one by one."""


def schooling(rows: int, rng: np.random.Generator) -> np.ndarray:
    return rng.choice([7.0, 10.0, 10.5, 11.0, 11.5, 18.0], rows, p=[0.1, 0.2, 0.4, 0.15, 0.1, 0.05])


def test_a_pile_is_a_cell_of_its_own_in_a_bin_that_is_too_thin_to_be_divided() -> None:
    rng, rows, sd = np.random.default_rng(8), 20_000, 50.0
    grid, values = part(make_grid(SCHOOLED)), schooling(rows, rng)
    counts, within = count(grid, values, sd, rng)
    fine, shares = read(grid, counts, within, sd, rows)
    width = np.diff(fine.edges)
    for value, there in zip(*np.unique(values, return_counts=True), strict=True):
        cell = place_of(fine, np.array([value]))[0]
        assert width[cell] == pytest.approx(1 / 1024, rel=0.05)
        assert shares[cell] == pytest.approx(there / rows, abs=6 * sd / rows)
    # Its bin is else as thin as it was: no cell has a pile by noise alone.
    assert len(fine.edges) <= len(grid.edges) + 2 * 6 + 2


def test_of_piles_no_more_are_cells_than_there_may_be() -> None:
    """All parts of every third bin, which stand out of it, and no noise that would hide one."""
    rng = np.random.default_rng(9)
    grid = part(make_grid(LENGTH))
    values = rng.integers(0, 400, len(grid.homes)) ** 2.0
    counts = np.bincount(grid.homes, values, grid.count)
    for sd in (1e-3, 10.0, 1e4):
        fine, shares = read(grid, counts, values, sd, counts.sum())
        assert fine.count <= grid.most_cells(True)
        assert shares.sum() == pytest.approx(1)

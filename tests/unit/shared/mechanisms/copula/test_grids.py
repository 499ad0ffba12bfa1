"""Cells hold every value, and give values back."""

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import lognorm

from penstock.mechanisms.copula.grids import (
    PARTS,
    divide,
    draw_values,
    list_coarse,
    list_ends,
    make_grid,
    middle_of,
    part,
    place_of,
    read_within,
    value_of,
)
from penstock.schema import Column, Schema

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


EVEN = ndtri((np.arange(50_000) + 0.5) / 50_000)[:, None]
"""Latents of persons who are spread evenly."""


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


def test_a_higher_latent_makes_a_level_without_order_likelier() -> None:
    """A match of covariances goes the way of its correlations: against them it would run away."""
    grid = make_grid(Column("w", "categorical", levels=("a", "b", "c"), nullable=True))
    shares = np.array([0.1, 0.4, 0.3, 0.2])
    for k in range(grid.latents):
        chosen = []
        for at in (-1.0, 1.0):
            latents = np.random.default_rng(k).standard_normal((4000, grid.latents))
            latents[:, k] += at
            drawn = draw_values(grid, shares, latents)
            chosen.append(np.mean(place_of(grid, drawn) == k))
        assert chosen[1] > chosen[0] + 0.05


def test_a_column_that_lies_in_one_bin_is_coarse() -> None:
    rng = np.random.default_rng(7)
    skewed = np.exp(3 + rng.standard_normal(2000))
    columns = (
        Column("titre", "continuous", 0, 1_000_000, 0),
        Column("fine", "continuous", 0, 200, 0),
        Column("scaled", "continuous", 0, 1_000_000, 0, scale="log"),
        Column("dose", "continuous", 0, 1_000_000, 0),
        Column("spiked", "continuous", 0, 1_000_000, 0, spike=0),
        Column("parity", "integer", 0, 20),
        Column("gone", "continuous", 0, 10, 0, nullable=True),
    )
    some = np.where(rng.random(2000) < 0.1, 1e5 * rng.random(2000), 0.0)
    table = {
        "titre": skewed, "fine": skewed, "scaled": skewed, "dose": some, "spiked": some,
        "parity": np.zeros(2000), "gone": np.full(2000, np.nan),
    }  # fmt: skip
    assert list_coarse(Schema(columns), table) == ("titre",)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_share_within_a_bin_is_told_by_the_bins_beside_it(scale: str) -> None:
    column = Column("bmi", "continuous", 15, 80, 1, scale=scale)
    grid, law = make_grid(column), lognorm(0.13, scale=33)
    values = column.snap(law.ppf((np.arange(200_000) + 0.5) / 200_000))
    counts = np.bincount(place_of(grid, values), minlength=grid.count)
    drawn = draw_values(grid, counts / len(values), EVEN)
    thresholds = np.arange(22, 50) + 0.45
    off = [np.mean(drawn < at) - np.mean(values < at) for at in thresholds]
    assert np.abs(off).max() < 0.0015
    assert abs(drawn.std() / values.std() - 1) < 0.003


def test_a_pile_stays_in_its_bin_and_draws_its_neighbours_to_no_side() -> None:
    column = Column("hours", "continuous", 0, 96, 2)
    grid = make_grid(column)
    shares = np.full(grid.count, 0.5 / (grid.count - 1))
    shares[12] = 0.5
    drawn = draw_values(grid, shares, EVEN)
    edges = 96 * grid.edges
    for place in (11, 12, 13):
        inside = drawn[(drawn > edges[place]) & (drawn < edges[place + 1])]
        assert abs(inside.mean() - (edges[place] + edges[place + 1]) / 2) < 0.05


# What is in a bin ---------------------------------------------------------------------------------

VALUED = [
    Column("hours", "integer", 0, 99),
    Column("sbp", "integer", 60, 260),
    Column("visits", "integer", 0, 200, spike=0, scale="log", nullable=True),
    Column("bmi", "continuous", 15, 40, 1),
]


def heap(column: Column, n: int, seed: int) -> np.ndarray:
    """Four in ten at one value, and the others as they come."""
    rng, (low, high) = np.random.default_rng(seed), column.bounds
    found = column.snap(low + (high - low) * rng.beta(2, 3, n))
    found = np.where(rng.random(n) < 0.4, column.snap(low + 0.4 * (high - low)), found)
    if column.spike is not None:
        found = np.where(rng.random(n) < 0.2, column.spike, found)
    return np.where(rng.random(n) < 0.1, np.nan, found) if column.nullable else found


@pytest.mark.parametrize("column", VALUED, ids=lambda c: c.name)
@pytest.mark.parametrize("noise", [0.0, 20.0])
def test_what_many_have_the_same_is_drawn_as_it_is(column: Column, noise: float) -> None:
    """And all else as wide bins say; without counts of values the pile is spread over its bin."""
    grid, n, rng = make_grid(column), 5000, np.random.default_rng(2)
    values = heap(column, n, 1)
    pile = column.snap(column.bounds[0] + 0.4 * (column.bounds[1] - column.bounds[0]))
    shares = np.bincount(place_of(grid, values), minlength=grid.count) / n
    last = len(grid.homes)
    counts = np.bincount(value_of(grid, values), minlength=last + 1)[:last]
    assert counts.sum() == (~np.isnan(values) & (values != column.spike)).sum()
    within = read_within(grid, shares, counts + noise * rng.standard_normal(last), noise, n)
    assert within is not None
    assert np.allclose(np.bincount(grid.homes, within), 1)
    drawn = draw_values(grid, shares, EVEN, within)
    known = drawn[~np.isnan(drawn)]
    assert np.array_equal(known, column.snap(known))
    places = np.bincount(place_of(grid, drawn), minlength=grid.count) / len(drawn)
    assert np.abs(places - shares).max() < 1e-3
    real = (values == pile).mean()
    assert abs((drawn == pile).mean() - real) < 0.02 + 5 * noise / n
    plain = draw_values(grid, shares, EVEN)
    assert (plain == pile).mean() < 0.75 * real
    if not noise:
        return
    # Noise by itself makes no pile.
    flat = read_within(grid, shares, noise * rng.standard_normal(last), noise, n)
    smooth = read_within(grid, shares, np.zeros(last), noise, n)
    assert flat is not None
    assert smooth is not None
    assert (np.abs(flat - smooth) > 0.02).sum() <= 1


@pytest.mark.parametrize("column", VALUED, ids=lambda c: c.name)
def test_without_a_pile_values_are_as_likely_as_the_density_says(column: Column) -> None:
    grid = make_grid(column)
    shares = np.random.default_rng(3).dirichlet(np.full(grid.count, 8.0))
    within = read_within(grid, shares, np.zeros(len(grid.homes)), 50.0, 1000.0)
    ours, plain = (draw_values(grid, shares, EVEN, one) for one in (within, None))
    known = ~np.isnan(plain)
    assert np.array_equal(np.isnan(ours), ~known)
    step = 10.0 ** -(column.decimals or 0)
    assert np.abs(ours[known] - plain[known]).max() < 1.01 * step
    assert abs(ours[known].mean() - plain[known].mean()) < 0.02 * step


def test_only_numbers_of_few_values_are_counted_by_value() -> None:
    assert not len(make_grid(Column("age", "integer", 0, 60)).homes)
    assert len(make_grid(Column("age", "integer", 0, 110)).homes) == 111
    assert not len(make_grid(Column("cost", "integer", 0, 5000)).homes)
    assert not len(make_grid(Column("x", "continuous", 0, 1)).homes)
    assert (
        read_within(make_grid(Column("age", "integer", 0, 60)), np.ones(1), np.zeros(0), 1, 1)
        is None
    )


NUMBERS = [column for column in COLUMNS if not column.levels]


@pytest.mark.parametrize("column", NUMBERS, ids=lambda c: c.name)
def test_a_value_or_a_part_is_counted_in_the_bin_that_it_is_in(column: Column) -> None:
    grid, values = part(make_grid(column)), values_of(column)
    if grid.steps:
        assert not len(grid.homes)
        return
    assert len(list_ends(grid)) == len(grid.homes) + 1
    assert np.all(np.diff(list_ends(grid)) > 0)
    assert np.all(np.diff(grid.homes) >= 0)
    within = value_of(grid, values)
    outside = np.isnan(values) | (values == column.spike)
    assert np.array_equal(within == len(grid.homes), outside)
    places = place_of(grid, values[~outside])
    assert np.array_equal(grid.bins[grid.homes[within[~outside]]], places)


def test_parts_are_of_bins_that_have_too_many_values_and_of_no_others() -> None:
    for column in NUMBERS:
        grid = make_grid(column)
        few = grid.steps or len(grid.homes) > 0
        assert (part(grid) is grid) == few
        assert few or np.bincount(part(grid).homes).max() == PARTS


@pytest.mark.parametrize("column", NUMBERS, ids=lambda c: c.name)
@pytest.mark.parametrize("each", [1, 3])
def test_a_column_in_other_cells_gives_values_back(column: Column, each: int) -> None:
    coarse, values = part(make_grid(column)), values_of(column)
    if coarse.steps:
        return
    bins = np.flatnonzero(np.append(True, np.diff(coarse.homes) > 0))
    starts = np.union1d(bins, np.arange(0, len(coarse.homes), each))
    grid = divide(coarse, starts)
    assert grid.count == coarse.count + len(starts) - len(bins) > coarse.count
    assert grid.count - len(grid.bins) == coarse.count - len(coarse.bins)
    counts = np.bincount(place_of(grid, values), minlength=grid.count)
    drawn = draw_values(grid, counts / counts.sum(), EVEN)
    again = np.bincount(place_of(grid, drawn), minlength=grid.count) / len(drawn)
    # A value that is drawn in a cell may be its neighbour's spike.
    assert np.abs(again - counts / counts.sum()).sum() < 0.01 + 0.05 * (column.spike is not None)
    # Whoever was in one bin is in one of its cells.
    own = middle_of(grid)[place_of(grid, values)]
    assert np.array_equal(place_of(coarse, own), place_of(coarse, values))

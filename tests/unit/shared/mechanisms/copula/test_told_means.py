"""Of a column whose counts are mostly noise a declared mean is known by a sum of its own."""

import numpy as np
import pytest

from penstock.mechanisms.copula.column_shares import read_shares
from penstock.mechanisms.copula.densities import Known
from penstock.mechanisms.copula.grids import draw_values, make_grid, part, place_of
from penstock.mechanisms.copula.told_means import MeanScores, Meant, ToldMeans, recall_means
from penstock.mechanisms.tables.moments import clip_rows
from penstock.schema import Column

COSTS = Column("costs", "continuous", lower=0, upper=100, nullable=True)
PAIN = Column("pain", "integer", lower=0, upper=10)
PACKS = Column("packs", "integer", lower=0, upper=900, spike=0)
WARD = Column("ward", "categorical", levels=("a", "b", "c"), nullable=True)


@pytest.mark.parametrize(
    "meant",
    [
        Meant("costs"),
        Meant("costs", "above", 33.3),
        Meant("costs", "below", 0.0),
        Meant("pain"),
        Meant("pain", "above", 4),
        Meant("pain", "below", 4),
        Meant("packs", "above", 0),
        Meant("packs", "below", 333),
        Meant("packs", "above", 333),
        Meant("ward", "level", 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("parted", [False, True])
def test_a_cell_stands_for_what_even_values_in_it_have_on_average(
    meant: Meant, parted: bool
) -> None:
    column = next(c for c in (COSTS, PAIN, PACKS, WARD) if c.name == meant.column)
    grid = part(make_grid(column)) if parted else make_grid(column)
    values = np.arange(len(column.levels)) * 1.0
    if not column.levels:
        step = 10.0 ** -(column.decimals or 0) if column.grid else 0.001
        values = np.arange(column.bounds[0], column.bounds[1] + step / 2, step)
    if column.nullable:
        values = np.append(values, np.nan)
    place, points = place_of(grid, values), meant.points(grid)
    each = meant(values)
    assert np.isnan(points).sum() == np.isnan(each).sum() == column.nullable
    for cell in np.unique(place[~np.isnan(values)]):
        mine = each[place == cell]
        width = (grid.edges[1] - grid.edges[0]) * column.bounds[1] if not column.levels else 0.0
        # Of a value its cell's middle, which is one of its grid's.
        near = 0.01 * width + 0.51 * (column.grid is not None) if meant.of == "value" else 0.02
        assert mine.mean() == pytest.approx(points[cell], abs=near)


def test_a_level_that_rows_may_lack_is_not_scaled_up_without_end() -> None:
    grid, one = make_grid(WARD), Meant("ward", "level", 2)
    scores = MeanScores.of((one,), {"ward": (grid, np.eye(4)[1])}, 0.1, 0.1)
    assert scores.middles[0] == 0.02
    assert scores.weights[0] * 0.98 == pytest.approx(1)  # who has it is at the end


def test_a_number_that_nearly_all_have_alike_leaves_room_for_others() -> None:
    """As of costs that hardly anybody has; of which noise may say that nobody has any."""
    grids = [make_grid(PACKS), make_grid(PAIN)]
    for share in (0.05, 0.0):
        packs = np.full(grids[0].count, share / (grids[0].count - 1))
        packs[grids[0].spike] = 1 - share
        pain = np.full(grids[1].count, 1 / grids[1].count)
        columns = {"packs": (grids[0], packs), "pain": (grids[1], pain)}
        scores = MeanScores.of((Meant("packs"), Meant("pain")), columns, 0.01, 0.01)
        assert scores.weights[0] > 0.5 / 900
        assert scores.weights[1] > 0.5 / 10


@pytest.mark.parametrize(
    ("counted", "told", "least", "most"), [(0.05, 0.01, 40, 99), (1e-6, 0.1, 16, 17)]
)
def test_the_more_counts_know_of_a_tail_the_nearer_a_number_is_clipped(
    counted: float, told: float, least: float, most: float
) -> None:
    grid = make_grid(COSTS)
    p = np.exp(-np.arange(grid.count) / 4.0) / np.exp(-np.arange(grid.count) / 4.0).sum()
    scores = MeanScores.of((Meant("costs"),), {"costs": (grid, p)}, counted, told)
    assert least < 1 / scores.weights[0] < most


MEANT = (Meant("costs"), Meant("costs", "above", 40.0), Meant("ward", "level", 1))


def see_wards(seed: int, sd: float, meant: tuple[Meant, ...] = MEANT) -> dict[str, np.ndarray]:
    """Of rows and of shares, which were read with what is known of means and without: the mean of
    each; and how many rows were clipped."""
    rng, n, found = np.random.default_rng(seed), 1000, {}
    costs = np.where(rng.random(n) < 0.1, np.nan, np.minimum(rng.gamma(0.8, 12, n), 100))
    ward = np.where(rng.random(n) < 0.1, np.nan, rng.choice(3, n, p=[0.7, 0.2, 0.1]))
    rows: dict[str, np.ndarray] = {"costs": costs, "ward": ward}
    grids = {name: make_grid(column) for name, column in (("costs", COSTS), ("ward", WARD))}
    counts, shares, latents, persons = {}, {}, {}, {}
    for name, grid in grids.items():
        counts[name] = np.bincount(place_of(grid, rows[name]), minlength=grid.count) * 1.0
        counts[name] += rng.normal(size=grid.count) * sd
        shares[name] = read_shares(grid, counts[name], sd, n)
        latents[name] = rng.standard_normal((20_000, grid.latents))
        persons[name] = draw_values(grid, shares[name], latents[name])
    columns = {name: (grid, shares[name]) for name, grid in grids.items()}
    scores = MeanScores.of(meant, columns, sd / n, 2 * sd / n)
    clipped = clip_rows(scores(rows), 1.0)
    told = ToldMeans(scores, clipped.mean(axis=0), 0.0, n, persons)
    again = {
        name: read_shares(grid, counts[name], sd, n, told.recall(grid))
        for name, grid in grids.items()
    }
    for which, held in (("counts", shares), ("told", again)):
        drawn = {name: draw_values(grid, held[name], latents[name]) for name, grid in grids.items()}
        found[which] = np.array([np.nanmean(one(drawn[one.column])) for one in meant])
    found["rows"] = np.array([np.nanmean(one(rows[one.column])) for one in meant])
    found["shortened"] = np.mean(np.abs(clipped - scores(rows)).max(axis=1) > 1e-9)
    return found


def test_shares_have_the_means_of_rows_though_some_are_clipped_and_counts_are_noise() -> None:
    every = [see_wards(seed, 30.0) for seed in range(10)]
    assert min(one["shortened"] for one in every) > 0.001
    errors = {
        which: np.sqrt(np.mean([(one[which] - one["rows"]) ** 2 for one in every], axis=0))
        for which in ("counts", "told")
    }
    assert (errors["counts"] > [3.0, 0.02, 0.015]).all()
    assert (errors["told"] < [0.8, 0.004, 0.006]).all()


def test_what_is_not_asked_about_is_left_alone() -> None:
    grid = make_grid(WARD)
    assert recall_means(None, grid) == []
    counts = np.array([10.0, 40.0, 30.0, 20.0])
    plain = read_shares(grid, counts, 5.0, 100.0)
    nothing = Known(np.array([0.0, 1.0, 0.0, 0.0]), 0.9, 1e9)
    assert np.allclose(read_shares(grid, counts, 5.0, 100.0, [nothing]), plain)
    firmly = Known(np.array([0.0, 1.0, 0.0, 0.0]), 0.5, 1e-9)
    found = read_shares(grid, counts, 5.0, 100.0, [firmly])
    assert found[1] == pytest.approx(0.5)
    # The others make room alike.
    assert np.diff(found[[0, 2, 3]]) == pytest.approx(np.diff(plain[[0, 2, 3]]))

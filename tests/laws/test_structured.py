"""Laws of the structured mechanism's sums: each sensitivity holds, and is attained.

In whole numbers, by exact arithmetic: what a person moves is measured against what is charged, with
no noise and no statistics.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.support.carried_out import release

from penstock.mechanisms import MECHANISMS
from penstock.mechanisms.classes.pair_counts import Groups, count_pairs, measure_pairs
from penstock.mechanisms.copula.grids import Grid, divide, make_grid
from penstock.mechanisms.released import name_refit
from penstock.mechanisms.structured import score_clipping
from penstock.mechanisms.structured.counting import count_margins, measure_margins
from penstock.mechanisms.structured.declared import list_covariates
from penstock.mechanisms.structured.plan import StructuredPlan, make_grids, plan
from penstock.mechanisms.structured.settings import Structured
from penstock.mechanisms.tables.moments import measure_moments, whole_moments
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding

ATTAINED = 1 - 1e-4

COLUMNS = (
    Column("t", "duration", upper=10, decimals=1, event="d", nullable=True),
    Column("d", "event"),
    Column("a", "continuous", lower=-3, upper=3),
    Column("g", "categorical", levels=("u", "v", "w"), nullable=True),
    Column("c", "integer", lower=0, upper=20, spike=0),
)
COX = Estimand("e", "cox", "t", "a", adjust=("g",))


def schema(k: int) -> Schema:
    return Schema(COLUMNS, person="id" if k > 1 else None, max_rows_per_person=k)


def rows(count: int, rng: np.random.Generator) -> dict[str, Any]:
    return {
        "t": np.where(rng.random(count) < 0.2, np.nan, rng.integers(0, 101, count) / 10),
        "d": rng.integers(0, 2, count).astype(float),
        "a": rng.uniform(-3, 3, count),
        "g": np.where(rng.random(count) < 0.2, np.nan, rng.integers(0, 3, count)),
        "c": rng.integers(0, 21, count).astype(float),
    }


@pytest.mark.parametrize("k", [1, 3])
def test_a_persons_rows_move_the_counts_by_what_is_charged(k: int) -> None:
    """k·√(columns + 4 durations + 1), attained by equal rows, whatever is missing of them, of
    columns whose values are steps."""
    given, rng = schema(k), np.random.default_rng(1)
    grids, [duration] = [make_grid(c) for c in list_covariates(given, ())], [given["t"]]
    charged = measure_margins(1.0, grids, 1, k)
    most = Fraction(0)
    for same in (True, False):
        for _ in range(20):
            coded = rows(50 * k, rng)
            if same:
                coded = {n: np.append(v[:-k], np.repeat(v[-1], k)) for n, v in coded.items()}
            present = np.ones(50 * k, dtype=bool)
            whole = np.concatenate(count_margins(grids, [duration], coded, present))
            present[-k:] = False
            moved = whole - np.concatenate(count_margins(grids, [duration], coded, present))
            found = Fraction(int((moved**2).sum()))
            assert found <= charged.squared
            assert len(whole) == charged.size
            most = max(most, found)
    assert most == charged.squared == k**2 * 8


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("valued", [0, 1, 2])
@pytest.mark.parametrize("parted", [False, True])
def test_counts_of_values_are_charged_at_a_quarter(k: int, valued: int, parted: bool) -> None:
    """k·√(columns + 4 durations + 1 + v/4): a value, or a part of a bin, is counted once where all
    else is twice."""
    hours = tuple(Column(f"hours{i}", "integer", lower=0, upper=99) for i in range(valued))
    given, rng = (
        Schema((*COLUMNS, *hours), person="id", max_rows_per_person=k),
        np.random.default_rng(1),
    )
    if k == 1:
        given = Schema((*COLUMNS, *hours))
    grids, [duration] = make_grids(given, fine=parted), [given["t"]]
    counted = sum(len(grid.homes) > 0 for grid in grids)
    # "a" has no grid: of it parts are counted, wide or narrow.
    assert counted == valued + 1
    assert {len(grid.parts) for grid in grids} - {0} == {1025 if parted else 257}
    charged, most = measure_margins(1.0, grids, 1, k), Fraction(0)
    for _ in range(10):
        coded = rows(50 * k, rng)
        coded |= {c.name: rng.integers(0, 100, 50 * k).astype(float) for c in hours}
        coded = {n: np.append(v[:-k], np.repeat(v[-1], k)) for n, v in coded.items()}
        present = np.ones(50 * k, dtype=bool)
        whole = np.concatenate(count_margins(grids, [duration], coded, present))
        present[-k:] = False
        moved = whole - np.concatenate(count_margins(grids, [duration], coded, present))
        found = Fraction(int((moved**2).sum())) * Fraction(charged.unit) ** 2
        assert found <= charged.squared
        assert len(whole) == charged.size
        most = max(most, found)
    assert most == charged.squared == Fraction(k**2) * (8 + valued + Fraction(counted, 4))


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("number", [12, 24])
def test_a_persons_rows_move_the_pairs_by_what_is_charged(k: int, seed: int, number: int) -> None:
    """k·√(d(d - 1)/2), attained by equal rows, however bins are divided and joined."""
    rng, grids = np.random.default_rng(seed), make_grids(schema(k), fine=number > 12)
    charged, most = measure_pairs(1.0, grids, k, number, number > 12), Fraction(0)
    grids = [cut(grid, rng) for grid in grids]
    shares = [rng.dirichlet(np.full(grid.count, 0.3)) for grid in grids]
    groups = [Groups.make(*each, number) for each in zip(grids, shares, strict=True)]
    for same in (True, False):
        for _ in range(20):
            coded = rows(50 * k, rng)
            if same:
                coded = {n: np.append(v[:-k], np.repeat(v[-1], k)) for n, v in coded.items()}
            present = np.ones(50 * k, dtype=bool)
            tables = count_pairs(groups, coded, present)
            present[-k:] = False
            others = count_pairs(groups, coded, present)
            moved = [(a - b) ** 2 for a, b in zip(tables, others, strict=True)]
            found = Fraction(int(sum(each.sum() for each in moved)))
            assert found <= charged.squared
            assert sum(table.size for table in tables) <= charged.size
            most = max(most, found)
    assert most == charged.squared == k**2 * 3


def cut(grid: Grid, rng: np.random.Generator) -> Grid:
    """Bins of a number divided anyhow."""
    if not len(grid.homes):
        return grid
    first = np.flatnonzero(np.append(True, np.diff(grid.homes) > 0))
    return divide(grid, np.union1d(first, rng.integers(0, len(grid.homes), 300)))


@pytest.mark.parametrize("k", [1, 3])
def test_a_persons_rows_move_the_moments_by_what_is_charged(k: int) -> None:
    """k·R² in the Frobenius norm: reached to .01 % by equal rows beyond the radius."""
    made = plan(Structured(), schema(k), 100, PrivacyRequest(1.0, 1e-5), (COX,))
    # A score for each latent, and the number that is asked for as it is.
    size = sum(grid.latents for grid in make_grids(schema(k))) + 1
    assert made.moments == measure_moments(made.moments.noise_multiplier, made.radius, size, k)
    rng, most = np.random.default_rng(2), 0.0
    for spread in (0.1, 1.0, 1e3):
        for same in (True, False):
            scores = rng.standard_normal((1, k, size)) * spread
            if same:
                scores[:] = scores[:, :1]
            total, unit = whole_moments(scores, np.ones((1, k), bool), made.radius)
            moved = sum(int(v) ** 2 for v in total.ravel()) * Fraction(unit) ** 2
            assert moved <= made.moments.squared
            most = max(most, math.sqrt(moved / made.moments.squared))
    assert most > ATTAINED


class Kept:
    """A measurement that gives back what it is asked about, in whole numbers."""

    sd = 1.0

    def __call__(self, total: Any, noise: Any) -> Any:
        return total


@pytest.mark.parametrize("k", [1, 3])
def test_a_persons_rows_move_an_outcomes_scores_by_one(k: int) -> None:
    """All rows of a person together, whatever their scores are: 1 exactly, reached to .01 %."""
    rng, unit, most = np.random.default_rng(3), Fraction(score_clipping.UNIT), Fraction(0)
    kept: Any = Kept()
    for spread in (1e-3, 1.0, 1e6):
        for _ in range(10):
            scores = rng.standard_normal((40 * k, 7)) * spread
            present = rng.random(40 * k) < 0.7
            present[:k] = True
            given = (k, kept, SeededNoise(0))
            with_person = score_clipping.release_scores(scores, present, *given)
            present[:k] = False
            apart = with_person - score_clipping.release_scores(scores, present, *given)
            moved = sum(int(v) ** 2 for v in apart) * unit**2
            assert moved <= 1
            most = max(most, moved)
    assert float(most) > ATTAINED**2


def made(k: int, epsilon: float, estimands: tuple[Estimand, ...] = (COX,)) -> StructuredPlan:
    return plan(Structured(), schema(k), 500, PrivacyRequest(epsilon, 1e-5), estimands)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 30.0])
def test_a_plan_costs_what_is_asked_and_hardly_less(k: int, epsilon: float) -> None:
    found = made(k, epsilon)
    assert 0.999 * epsilon < found.epsilon <= epsilon


def test_the_charge_is_the_sum_of_what_is_measured() -> None:
    """As one Gaussian of the root of all squared: σ⁻² adds up to the scale's."""
    found = made(1, 1.0)
    spent = sum(m.count / m.noise_multiplier**2 for m in found.measurements)
    shares = [m.count / m.noise_multiplier**2 / spent for m in found.measurements]
    assert np.allclose(shares, [0.18, 0.15, 0.14, 0.18, 0.15, 0.20])
    assert all(isinstance(m, WholeSum) for m in found.measurements)


def test_every_outcome_is_a_release_of_its_own() -> None:
    second = (Column("t2", "duration", upper=5, event="d2"), Column("d2", "event"))
    both = Schema((*COLUMNS, *second))
    found = plan(Structured(), both, 500, PrivacyRequest(1.0, 1e-5), (COX,))
    assert [drawn.terms for drawn in found.outcomes] == [("a",), ()]
    assert [drawn.adjusted for drawn in found.outcomes] == [("g",), ()]
    # Nobody asks of the second: the last rounds are the first one's alone.
    assert [m.event.count for m in found.rounds] == [2, 2, 1, 1]
    assert [len(found.rounds_of(drawn)) for drawn in found.outcomes] == [4, 2]
    alone = made(1, 1.0)
    for both_asked, one_asked in zip(found.rounds, alone.rounds, strict=True):
        ratio = both_asked.noise_multiplier / one_asked.noise_multiplier
        assert ratio == pytest.approx(math.sqrt(both_asked.event.count), rel=1e-3)
    spent = [m.event.count / m.noise_multiplier**2 for m in (*found.rounds, *alone.rounds)]
    assert sum(spent[:4]) == pytest.approx(sum(spent[4:]), rel=1e-3)


def test_where_nobody_asks_of_any_outcome_only_the_first_rounds_are_there() -> None:
    """And most of the budget is for columns and what they have in common."""
    found, asked = made(1, 1.0, ()), made(1, 1.0, (COX,))
    assert [m.event.count for m in found.rounds] == [1, 1]
    assert [len(found.rounds_of(drawn)) for drawn in found.outcomes] == [2]

    def share_of_rounds(plan: StructuredPlan) -> float:
        spent = [m.event.count / m.noise_multiplier**2 for m in plan.measurements]
        return sum(spent[-len(plan.rounds) :]) / sum(spent)

    assert share_of_rounds(found) < 0.2 < 0.6 < share_of_rounds(asked)
    assert found.margins.noise_multiplier < asked.margins.noise_multiplier
    assert found.pairs is not None
    assert asked.pairs is None


def test_cells_cover_whatever_a_column_may_hold() -> None:
    for column in COLUMNS[2:]:
        grid = make_grid(column)
        assert grid.count >= 2
        assert grid.latents >= 1


def test_refits_of_a_fit_are_two_tables_of_one_model() -> None:
    """They have its one noisy count, and nothing else in common; of another fit it is another. How
    many threads there are moves no number."""
    given, count = schema(1), 300
    settings = Structured(copies=2, refits=6, planted=0)
    planned = plan(settings, given, 2 * count, PrivacyRequest(0.2, 1e-5), (COX,))
    encoding = MECHANISMS.of(settings).lay_out(given)
    coded = rows(2 * count, np.random.default_rng(2))
    x, _ = encoding.encode(coded, np.random.default_rng(3))
    there = np.arange(2 * count) < count
    handed = (planned, encoding, x[:, None], there[:, None])
    found = []
    for threads in (1, 2, 3):
        parts = MECHANISMS.of(settings).run(*handed, SeededNoise(4), threads=threads)
        tables = {part.name: np.asarray(part.columns["a"]) for part in parts}
        found.append([tables[name_refit(b)] for b in range(1, 7)])
    for others in found[1:]:
        assert all(map(np.array_equal, found[0], others))
    sizes = [len(table) for table in found[0]]
    assert sizes[::2] == sizes[1::2]
    assert len(set(sizes)) == 3
    for one, other in zip(found[0][::2], found[0][1::2], strict=True):
        assert not np.array_equal(np.sort(one), np.sort(other))


@pytest.mark.parametrize("k", [1, 3])
def test_a_release_is_the_same_of_points_and_of_columns(k: int) -> None:
    """A gate lays rows out plainly: laws of rows as points are laws of what it does."""
    given, count = schema(k), 40
    coded = rows(count * k, np.random.default_rng(2))
    settings = Structured(copies=2, refits=1, planted=0)
    planned = plan(settings, given, count, PrivacyRequest(1.0, 1e-5), (COX,))
    [points, plain] = (Encoding(given), MECHANISMS.of(settings).lay_out(given))
    assert points.d > plain.d == len(given.columns)
    found = []
    for encoding in (points, plain):
        x, there = encoding.encode(coded, np.random.default_rng(3))
        handed = (x.reshape(count, k, encoding.d), there.reshape(count, k))
        parts = release(settings, planned, encoding, *handed, SeededNoise(4))
        found.append({part.name: part.columns for part in parts})
    assert list(found[0]) == list(found[1])
    for name, columns in found[0].items():
        for column, values in columns.items():
            assert np.array_equal(values, found[1][name][column], equal_nan=True), (name, column)

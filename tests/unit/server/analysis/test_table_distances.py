"""Distances between tables: what they are where it is known, and what they tell apart."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from ot import emd2
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from penstock.mechanisms.released import EACH, Refitting
from penstock.schema import Coded, Column, Schema
from penstock_server.analysis import table_distances
from penstock_server.analysis.table_distances import (
    MOST_MATCHED,
    MOST_ROWS,
    Apart,
    Comparison,
    Moved,
    measure_exact,
    measure_moved,
    measure_sliced,
)

SCHEMA = Schema(
    (
        Column("age", "continuous", lower=0, upper=120),
        Column("sbp", "continuous", lower=50, upper=250, nullable=True),
        Column("sex", "binary"),
        Column("stage", "ordered", levels=("1", "2", "3")),
        Column("ward", "categorical", levels=("a", "b", "c")),
    )
)


def table(
    n: int, seed: int, *, older: float = 0.0, ward: float = 0.3, missing: float = 0.1
) -> Coded:
    rng = np.random.default_rng(seed)
    age = rng.normal(60 + older, 10, n)
    return {
        "age": age,
        "sbp": np.where(rng.random(n) < missing, np.nan, rng.normal(130, 15, n) + 0.4 * (age - 60)),
        "sex": (rng.random(n) < 0.5).astype(float),
        "stage": rng.integers(0, 3, n).astype(float),
        "ward": np.where(rng.random(n) < ward, 2.0, rng.integers(0, 2, n)),
    }


def moved(*copies: Coded, refits: tuple[Coded, ...] = ()) -> Moved:
    found = measure_moved(SCHEMA, copies, refits, made=EACH)
    assert found is not None
    return found


def compare_site(site: str, sites: dict[str, Moved]) -> Apart | None:
    return Comparison(SCHEMA, sites).compare_site(site)


@pytest.mark.parametrize("dimensions", [1, 4, 12])
def test_a_shift_is_as_far_as_it_is_long(dimensions: int) -> None:
    """Exact in one dimension. In more directions are drawn: fifty of them, which are off by √(2/50)
    of the square at most, and 4 of these standard errors are allowed."""
    rng = np.random.default_rng(1)
    cloud, shift = rng.normal(size=(300, dimensions)), np.zeros(dimensions)
    shift[0] = 2.0
    tolerance = 1e-9 if dimensions == 1 else 4 * math.sqrt(2 / 50)
    assert measure_sliced(cloud, cloud + shift) ** 2 == pytest.approx(4.0, rel=tolerance)
    assert measure_sliced(cloud, cloud) == pytest.approx(0, abs=1e-7)


def test_in_one_dimension_it_is_between_sorted_values() -> None:
    rng = np.random.default_rng(2)
    one, other = rng.normal(size=500), rng.exponential(size=500)
    exact = math.sqrt(np.mean((np.sort(one) - np.sort(other)) ** 2))
    assert measure_sliced(one[:, None], other[:, None]) == pytest.approx(exact)


def test_the_exact_distance_is_that_of_the_best_assignment() -> None:
    rng = np.random.default_rng(3)
    one, other = rng.normal(size=(60, 5)), 1 + rng.exponential(size=(60, 5))
    costs = cdist(one, other, "sqeuclidean")
    best = math.sqrt(costs[linear_sum_assignment(costs)].mean())
    assert measure_exact(one, other) == pytest.approx(best, rel=1e-9)
    # Of unequal numbers of rows it is the same where each row is there as often again.
    assert measure_exact(np.repeat(one, 3, axis=0), other) == pytest.approx(best, rel=1e-9)
    # And of equal numbers it is what the network simplex finds.
    assert measure_exact(one, other) ** 2 == pytest.approx(emd2([], [], costs), rel=1e-12)


@pytest.mark.parametrize("dimensions", [1, 4, 12])
def test_by_the_exact_distance_a_shift_is_as_far_as_it_is_long(dimensions: int) -> None:
    cloud = np.random.default_rng(1).normal(size=(300, dimensions))
    shift = np.full(dimensions, 2.0 / math.sqrt(dimensions))
    assert measure_exact(cloud, cloud + shift) == pytest.approx(2.0, rel=1e-9)
    assert measure_exact(cloud, cloud) == pytest.approx(0, abs=1e-6)


def test_the_exact_distance_sees_two_columns_of_many_that_no_longer_go_together() -> None:
    """Correlations of .9 and 0, every column as before: the law of the directions' distance hardly
    changes, since few of these have much of both columns."""

    def drawn(seed: int, r: float) -> Coded:
        z = np.random.default_rng(seed).normal(size=(8, 1000))
        z[1] = r * z[0] + math.sqrt(1 - r * r) * z[1]
        return {f"x{i}": values for i, values in enumerate(z)}

    schema = Schema(tuple(Column(f"x{i}", "continuous", lower=-9, upper=9) for i in range(8)))
    copies = [drawn(seed, 0.9) for seed in range(4)]
    found = measure_moved(schema, copies, [drawn(9, 0.0), drawn(10, 0.0)], made=EACH)
    same = measure_moved(schema, copies, [drawn(9, 0.9), drawn(10, 0.9)], made=EACH)
    assert found is not None
    assert same is not None
    assert found.exact is not None
    assert same.exact is not None
    assert found.exact.rows == MOST_MATCHED
    assert (same.exact.halves, same.exact.largest) == (found.exact.halves, found.exact.largest)
    assert found.exact.refits is not None
    assert same.exact.refits is not None
    assert same.exact.refits <= same.exact.largest < found.exact.refits
    assert same.exact.copies is not None
    assert same.exact.copies <= same.exact.largest


def test_what_chance_does_stands_beside_a_shift_and_does_not_hide_it() -> None:
    """A shift by .8 of a standard deviation in age, and by .21 in pressure: .83. The root of what
    is above the halves is off by .15 or so, of tables of 500 rows and as many columns."""
    copies = [table(1200, seed) for seed in range(3)]
    found = moved(*copies, refits=tuple(table(1200, 10 + i, older=8.0) for i in range(2))).exact
    assert found is not None
    assert found.refits is not None
    assert found.refits > found.largest
    assert math.sqrt(found.refits**2 - found.halves**2) == pytest.approx(0.83, abs=0.2)


def test_sites_are_compared_by_as_many_rows_as_halves_have() -> None:
    sites = {name: moved(table(300, i)) for i, name in enumerate(("a", "b", "c"))}
    alike = compare_site("a", sites)
    other = compare_site("d", {**sites, "d": moved(table(300, 7, older=10.0))})
    own = sites["a"].exact
    assert own is not None
    assert own.rows == 150
    assert alike is not None
    assert alike.exact is not None
    assert other is not None
    assert other.exact is not None
    assert 0.8 * own.halves < alike.exact < 1.2 * own.largest < other.exact


def test_the_same_tables_give_the_same_numbers() -> None:
    copies = [table(1500, seed) for seed in range(3)]
    again = [dict(copy) for copy in copies]
    first, second = moved(*copies), moved(*again)
    assert (first.copies, first.size) == (second.copies, 1500)
    assert first.exact == second.exact
    assert len(first.rows["age"]) == MOST_ROWS


def test_refits_that_were_moved_lie_further_than_copies() -> None:
    copies = [table(1000, seed) for seed in range(3)]
    near = moved(*copies, refits=tuple(table(1000, 10 + i) for i in range(3)))
    far = moved(*copies, refits=tuple(table(1000, 10 + i, older=8.0) for i in range(3)))
    assert near.copies is not None
    assert near.refits is not None
    assert far.refits is not None
    assert near.copies == far.copies
    # Of one law: as far as chance brings tables of 500 rows.
    assert near.refits == pytest.approx(near.copies, rel=0.4)
    assert far.refits > 3 * near.refits
    # A shift by .8 of a standard deviation in age, which brings pressure along by .2.
    assert 0.6 < far.refits < 1.2


def test_what_there_is_none_of_is_none() -> None:
    alone = moved(table(50, 0))
    assert (alone.copies, alone.refits) == (None, None)
    assert alone.exact is not None
    assert (alone.exact.rows, alone.exact.copies, alone.exact.refits) == (25, None, None)
    assert moved(table(1, 0)).exact is None
    assert compare_site("north", {"north": alone}) is None
    empty = {name: values[:0] for name, values in table(5, 0).items()}
    assert measure_moved(SCHEMA, [empty], [], made=EACH) is None
    old = measure_moved(SCHEMA, [table(50, 0)] * 2, [table(50, 1)], made=Refitting(of_copies=False))
    assert old is not None
    assert old.refits is None


def test_a_site_of_other_persons_is_told_by_the_column() -> None:
    sites = {name: moved(table(800, i)) for i, name in enumerate(("a", "b", "c"))}
    alike = compare_site("a", sites)
    older = {**sites, "d": moved(table(800, 7, older=10.0))}
    other = compare_site("d", older)
    wards = compare_site("d", {**sites, "d": moved(table(800, 8, ward=0.9))})
    assert alike is not None
    assert other is not None
    assert wards is not None
    assert other.distance > 3 * alike.distance
    assert list(other.columns)[:2] == ["age", "sbp"]
    assert other.columns["age"] == pytest.approx(1.0, abs=0.15)
    assert next(iter(wards.columns)) == "ward"
    assert wards.columns["ward"] == pytest.approx(0.6, abs=0.08)
    assert list(alike.columns.values()) == sorted(alike.columns.values(), reverse=True)


def test_a_site_weighs_among_the_others_by_its_rows() -> None:
    large, small = moved(table(4000, 1)), moved(table(100, 2, older=40.0))
    found = compare_site("own", {"own": moved(table(500, 3)), "l": large, "s": small})
    assert found is not None
    assert found.columns["age"] == pytest.approx(4 * 100 / 4100, abs=0.1)


def test_of_more_sites_than_rows_some_stand_for_the_others() -> None:
    """As many rows as are asked for, or there is no assignment; from first sites to last ones."""
    ages = {f"s{i:02d}": moved(table(4, i, older=float(i))) for i in range(90)}
    sites = {"own": moved(table(40, 1)), **ages}
    gathered = Comparison(SCHEMA, sites)._gather("own", 20)
    assert {len(values) for values in gathered.values()} == {20}
    assert gathered["age"].mean() == pytest.approx(table(4000, 1)["age"].mean() + 44.5, abs=7)
    found = compare_site("own", sites)
    assert found is not None
    assert found.exact is not None


def test_missing_values_and_columns_that_do_not_vary_are_compared() -> None:
    own, gone = moved(table(500, 1)), moved(table(500, 2, missing=0.9))
    found = compare_site("own", {"own": own, "gone": gone})
    near = compare_site("own", {"own": own, "near": moved(table(500, 3))})
    assert found is not None
    assert near is not None
    assert found.distance > 3 * near.distance
    constant = {**table(500, 4), "age": np.full(500, 60.0), "stage": np.zeros(500)}
    constant["sbp"] = np.full(500, np.nan)
    flat = compare_site("flat", {"flat": moved(constant), "own": own})
    assert flat is not None
    assert math.isfinite(flat.distance)
    # A quarter of the range is the unit: E|N(0, 10)| / 30, a mean of 500 (4 standard errors).
    assert flat.columns["age"] == pytest.approx(10 * math.sqrt(2 / math.pi) / 30, abs=0.04)
    assert flat.columns["sbp"] == 0  # nothing to compare; that it is missing counts in the whole


@pytest.mark.skipif(sys.platform != "linux", reason="crews are Linux'")
def test_all_sites_are_compared_by_as_many_processes_as_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the bit; and whichever sites stood beside which before."""
    sites = {f"s{i}": moved(table(60 + 7 * i, i)) for i in range(6)}
    alone = {name: compare_site(name, sites) for name in sites}
    for processes in (1, 3):
        monkeypatch.setattr(table_distances, "count_processes", lambda *_, n=processes, **__: n)
        found = Comparison(SCHEMA, sites).compare_all()
        assert found == alone
        assert list(found) == list(sites)
        assert [[*a.columns] for a in found.values() if a] == [
            [*a.columns] for a in alone.values() if a
        ]

"""Distances between tables: what they are where it is known, and what they tell apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.schema import Coded, Column, Schema
from penstock_server.analysis.sliced_distance import (
    MOST_ROWS,
    Moved,
    compare_site,
    measure_distance,
    measure_moved,
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
    found = measure_moved(SCHEMA, copies, refits, of_copies=True)
    assert found is not None
    return found


@pytest.mark.parametrize("dimensions", [1, 4, 12])
def test_a_shift_is_as_far_as_it_is_long(dimensions: int) -> None:
    """Exact in one dimension. In more directions are drawn: fifty of them, which are off by √(2/50)
    of the square at most, and 4 of these standard errors are allowed."""
    rng = np.random.default_rng(1)
    cloud, shift = rng.normal(size=(300, dimensions)), np.zeros(dimensions)
    shift[0] = 2.0
    tolerance = 1e-9 if dimensions == 1 else 4 * math.sqrt(2 / 50)
    assert measure_distance(cloud, cloud + shift) ** 2 == pytest.approx(4.0, rel=tolerance)
    assert measure_distance(cloud, cloud) == pytest.approx(0, abs=1e-7)


def test_in_one_dimension_it_is_between_sorted_values() -> None:
    rng = np.random.default_rng(2)
    one, other = rng.normal(size=500), rng.exponential(size=500)
    exact = math.sqrt(np.mean((np.sort(one) - np.sort(other)) ** 2))
    assert measure_distance(one[:, None], other[:, None]) == pytest.approx(exact)


def test_the_same_tables_give_the_same_numbers() -> None:
    copies = [table(1500, seed) for seed in range(3)]
    again = [dict(copy) for copy in copies]
    first, second = moved(*copies), moved(*again)
    assert (first.copies, first.size) == (second.copies, 1500)
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
    assert compare_site(SCHEMA, "north", {"north": alone}) is None
    empty = {name: values[:0] for name, values in table(5, 0).items()}
    assert measure_moved(SCHEMA, [empty], [], of_copies=True) is None
    old = measure_moved(SCHEMA, [table(50, 0)] * 2, [table(50, 1)], of_copies=False)
    assert old is not None
    assert old.refits is None


def test_a_site_of_other_persons_is_told_by_the_column() -> None:
    sites = {name: moved(table(800, i)) for i, name in enumerate(("a", "b", "c"))}
    alike = compare_site(SCHEMA, "a", sites)
    older = {**sites, "d": moved(table(800, 7, older=10.0))}
    other = compare_site(SCHEMA, "d", older)
    wards = compare_site(SCHEMA, "d", {**sites, "d": moved(table(800, 8, ward=0.9))})
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
    found = compare_site(SCHEMA, "own", {"own": moved(table(500, 3)), "l": large, "s": small})
    assert found is not None
    assert found.columns["age"] == pytest.approx(4 * 100 / 4100, abs=0.1)


def test_missing_values_and_columns_that_do_not_vary_are_compared() -> None:
    own, gone = moved(table(500, 1)), moved(table(500, 2, missing=0.9))
    found = compare_site(SCHEMA, "own", {"own": own, "gone": gone})
    near = compare_site(SCHEMA, "own", {"own": own, "near": moved(table(500, 3))})
    assert found is not None
    assert near is not None
    assert found.distance > 3 * near.distance
    constant = {**table(500, 4), "age": np.full(500, 60.0), "stage": np.zeros(500)}
    constant["sbp"] = np.full(500, np.nan)
    flat = compare_site(SCHEMA, "flat", {"flat": moved(constant), "own": own})
    assert flat is not None
    assert math.isfinite(flat.distance)
    # A quarter of the range is the unit: E|N(0, 10)| / 30, a mean of 500 (4 standard errors).
    assert flat.columns["age"] == pytest.approx(10 * math.sqrt(2 / math.pi) / 30, abs=0.04)
    assert flat.columns["sbp"] == 0  # nothing to compare; that it is missing counts in the whole

"""Certified rows: kept exactly, read in the study's order of levels, laid out by person."""

from __future__ import annotations

import math
import stat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding
from penstock_client.rows.snapshot import (
    arrange_by_person,
    encode_rows,
    keyed_fingerprint,
    load_rows,
    recode_levels,
    save_rows,
)
from penstock_client.rows.validation import Checked

X = Column("x", "continuous", lower=-1, upper=1)
"""Encoded without noise: no decimals, bounds [-1, 1], so that a row is its own coordinate."""


def checked(coded: dict[str, list[float]], person: list[int], schema: Schema) -> Checked:
    arrays = {k: np.array(v, dtype=np.float64) for k, v in coded.items()}
    persons = np.array(person, dtype=np.int64)
    return Checked((), len(person), len(set(person)), arrays, persons, schema)


def test_rows_come_back_as_they_were(tmp_path):
    coded = {"x": [0.1 + 0.2, -1.0, math.nan], "lon\u0301g name": [0.0, 1.0, 2.0]}
    rows = checked(coded, [0, 1, 0], Schema((X,)))
    path = save_rows(tmp_path, "main", 3, encode_rows(rows))
    again, person = load_rows(path.read_bytes())
    assert path.name == "main-3.arrow"
    assert person.tolist() == [0, 1, 0]
    assert list(again) == list(coded)
    for name, values in coded.items():
        np.testing.assert_array_equal(again[name], np.array(values))


def test_only_the_owner_may_read_rows(tmp_path):
    path = save_rows(tmp_path, "main", 1, encode_rows(checked({"x": [0.5]}, [0], Schema((X,)))))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_same_rows_are_the_same_bytes():
    rows = [checked({"x": [0.5, math.nan]}, [0, 1], Schema((X,))) for _ in range(2)]
    assert encode_rows(rows[0]) == encode_rows(rows[1])


@pytest.mark.parametrize(("data", "secret"), [(b"rows", b"k2"), (b"rowz", b"k"), (b"rows", b"")])
def test_the_fingerprint_depends_on_rows_and_key(data, secret):
    assert keyed_fingerprint(data, secret) != keyed_fingerprint(b"rows", b"k")


# -- levels in another order -------------------------------------------------------------------

LEVELS = ("a", "b", "c", "d")


@settings(deadline=None, derandomize=True)
@given(
    st.permutations(LEVELS),
    st.permutations(LEVELS),
    st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, math.nan]), min_size=1, max_size=20),
)
def test_a_level_keeps_its_label_in_any_order(mine, theirs, values):
    site = Schema((Column("g", "categorical", levels=tuple(mine)),))
    study = Schema((Column("g", "categorical", levels=tuple(theirs)),))
    got = recode_levels({"g": np.array(values)}, site, study)["g"]
    for before, after in zip(values, got, strict=True):
        if math.isnan(before):
            assert math.isnan(after)
        else:
            assert theirs[int(after)] == mine[int(before)]


def test_the_sites_rows_are_not_changed_by_a_study():
    values = np.array([0.0, 1.0, math.nan])
    site = Schema((Column("g", "categorical", levels=("a", "b")),))
    study = Schema((Column("g", "categorical", levels=("b", "a")),))
    recode_levels({"g": values}, site, study)
    np.testing.assert_array_equal(values, [0.0, 1.0, math.nan])


def test_only_the_studys_columns_are_taken_in_its_order():
    site = Schema((X, Column("y", "binary"), Column("z", "binary")))
    study = Schema((Column("z", "binary"), X))
    coded = {"x": np.array([0.5]), "y": np.array([0.0]), "z": np.array([1.0])}
    assert list(recode_levels(coded, site, study)) == ["z", "x"]


# -- by person ---------------------------------------------------------------------------------


def laid_out(x: list[float], person: list[int], persons: int, k: int, column: Column = X):
    coded = {column.name: np.array(x)}
    schema = Schema((column,), "id" if k > 1 else None, k)
    rng = np.random.default_rng(0)
    return arrange_by_person(
        coded, np.array(person, dtype=np.int64), persons, Encoding(schema), rng
    )


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_first_k_rows_of_each_person_are_used(k):
    values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    rows, mask = laid_out(values, [1, 0, 1, 1, 1, 0], 3, k)
    assert rows.shape == (3, k, 1)
    expected = {0: [0.2, 0.6], 1: [0.1, 0.3, 0.4, 0.5], 2: []}
    for who, theirs in expected.items():
        assert mask[who].sum() == min(k, len(theirs))
        np.testing.assert_allclose(rows[who, mask[who], 0], theirs[:k], rtol=0, atol=1e-12)


def test_absent_rows_are_null_and_zero():
    rows, mask = laid_out([0.5], [0], 2, 3)
    assert mask.tolist() == [[True, False, False], [False, False, False]]
    assert not rows[~mask].any()


@pytest.mark.parametrize("k", [1, 2])
def test_a_frame_twice_the_cohort_is_filled_up_with_null_persons(k):
    """Without a person column, too: there each row is a person."""
    rows, mask = laid_out([0.2, 0.4, 0.6], [0, 1, 2], 6, k)
    assert rows.shape == (6, k, 1)
    assert mask.sum(axis=1).tolist() == [1, 1, 1, 0, 0, 0]
    assert not rows[~mask].any()


def test_a_row_with_a_missing_value_is_null_and_keeps_its_place():
    rows, mask = laid_out([math.nan, 0.5], [0, 0], 1, 2)
    assert mask.tolist() == [[False, True]]
    np.testing.assert_allclose(rows[0, :, 0], [0.0, 0.5])


def test_a_null_row_counts_towards_the_limit():
    # Otherwise whether a third row is used would depend on another row's value.
    _, mask = laid_out([math.nan, 0.5, 0.7], [0, 0, 0], 1, 1)
    assert mask.tolist() == [[False]]


def test_a_missing_value_in_a_nullable_column_is_no_null_row():
    column = Column("x", "continuous", lower=-1, upper=1, nullable=True)
    _, mask = laid_out([math.nan, 0.5], [0, 1], 2, 1, column)
    assert mask.all()


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(-1, 1)), min_size=1, max_size=15),
    st.randoms(use_true_random=False),
)
def test_the_order_of_rows_does_not_matter_where_all_of_them_are_used(rows, random):
    k = max(sum(p == q for q, _ in rows) for p, _ in rows)
    shuffled = random.sample(rows, len(rows))
    sets = []
    for given_rows in (rows, shuffled):
        x, mask = laid_out([v for _, v in given_rows], [p for p, _ in given_rows], 6, k)
        sets.append([sorted(x[who, mask[who], 0]) for who in range(6)])
    assert sets[0] == sets[1]


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(-1, 1)), min_size=1, max_size=15),
    st.integers(1, 3),
)
def test_one_persons_rows_change_that_persons_slots_only(rows, k):
    """The neighbouring relation: person 0 is replaced by nulls."""
    person = [p for p, _ in rows]
    x, mask = laid_out([v for _, v in rows], person, 4, k)
    y, present = laid_out([math.nan if p == 0 else v for p, v in rows], person, 4, k)
    np.testing.assert_array_equal(x[1:], y[1:])
    np.testing.assert_array_equal(mask[1:], present[1:])
    assert not present[0].any()
    assert not y[0].any()


def test_what_does_not_vary_is_the_first_value_that_is_known_of_a_person():
    y = Column("y", "continuous", lower=-1, upper=1, varies=False)
    coded = {"x": np.array([0.1, 0.2, 0.3, 0.4]), "y": np.array([math.nan, 0.5, -0.5, math.nan])}
    schema = Schema((X, y), "id", 3)
    person = np.array([0, 0, 0, 1])
    rows, present = arrange_by_person(coded, person, 2, Encoding(schema), np.random.default_rng(0))
    assert present.tolist() == [[True, True, True], [False] * 3]
    assert rows[0] == pytest.approx(np.array([[0.1, 0.5], [0.2, 0.5], [0.3, 0.5]]))


def test_rows_that_are_not_used_tell_nothing_of_what_does_not_vary():
    y = Column("y", "continuous", lower=-1, upper=1, varies=False)
    coded = {"x": np.array([0.1, 0.2]), "y": np.array([math.nan, 0.5])}
    person = np.array([0, 0])
    given = (coded, person, 1, Encoding(Schema((X, y), "id", 1)), np.random.default_rng(0))
    assert not arrange_by_person(*given)[1].any()

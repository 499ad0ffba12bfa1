"""Rows as columns: what is encoded comes back, as it does from points."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding
from penstock.schema.plain_encoding import PlainEncoding

SCHEMA = Schema(
    (
        Column("time", "duration", upper=10, decimals=1, event="died", nullable=True),
        Column("died", "event", nullable=True),
        Column("age", "integer", 18, 100),
        Column("ward", "categorical", levels=("a", "b", "c"), nullable=True),
        Column("dose", "continuous", 0, 5, 2, spike=0),
    )
)
GIVEN = {
    "time": [3.14, 12, 10, np.nan, 4, 10],
    "died": [1, 1, 0, np.nan, np.nan, 1],
    "age": [40, 17, np.nan, 50, 60, 130],
    "ward": [2, np.nan, 0, 1, 5, 0],
    "dose": [0, 1.239, 2, 7, 0.004, 3],
}


def test_what_is_encoded_comes_back_as_from_points() -> None:
    plain, points = PlainEncoding(SCHEMA), Encoding(SCHEMA)
    x, there = plain.encode(GIVEN)
    y, also = points.encode(GIVEN, np.random.default_rng(0))
    assert x.shape == (6, 5)
    assert np.array_equal(there, also)
    assert not there[2]
    assert np.all(x[2] == 0)
    ours, theirs = plain.decode(x[there]), points.decode(y[there])
    assert list(ours) == list(theirs)
    for name, values in ours.items():
        assert np.array_equal(values, theirs[name], equal_nan=True), name
    again, _ = plain.encode(ours)
    assert np.array_equal(again, x[there], equal_nan=True)


def test_any_number_is_decoded_to_what_the_schema_has() -> None:
    plain = PlainEncoding(SCHEMA)
    wild = np.array([[np.inf] * 5, [-np.inf] * 5, [np.nan] * 5, [1e300, 0.6, -1e300, 1.4, 0.123]])
    decoded = plain.decode(wild)
    for column in SCHEMA.columns:
        values = decoded[column.name]
        assert np.array_equal(column.snap(values), values, equal_nan=True)
        assert column.nullable or not np.isnan(values).any()
    with pytest.raises(ValueError, match="expected shape"):
        plain.decode(wild[:, 1:])


def test_columns_lie_one_after_the_other() -> None:
    x, _ = PlainEncoding(SCHEMA).encode(GIVEN)
    assert x[:, 2].flags["C_CONTIGUOUS"]
    # So do those of persons with several rows.
    assert np.shares_memory(x.reshape(3, 2, 5), x)

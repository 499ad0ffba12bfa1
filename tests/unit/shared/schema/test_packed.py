"""Packed columns come back to the bit, in as few bytes as their steps need."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.schema import Column
from penstock.schema.packed import PackedTable, count_bytes, pack_column, unpack_column

COLUMNS = [
    (Column("sex", "binary"), 1),
    (Column("ward", "categorical", levels=tuple(map(str, range(100))), nullable=True), 1),
    (Column("stage", "ordered", levels=("i", "ii", "iii")), 1),
    (Column("age", "integer", 18, 100), 1),
    # 255 steps leave no number for what is missing; 254 do.
    (Column("most", "integer", 0, 253), 1),
    (Column("more", "integer", 0, 255), 2),
    (Column("below", "integer", -400, -100, nullable=True), 2),
    (Column("share", "continuous", -0.3, 0.7, 1), 1),
    (Column("income", "continuous", 0, 1000, 3), 4),
    (Column("far", "continuous", 0, 1e9, 3), 8),
    (Column("score", "continuous", -4, 4, nullable=True), 8),
    (Column("time", "duration", upper=9.5, decimals=2, event="died"), 2),
]


def draw(column: Column, rows: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    low, high = (0, len(column.levels) - 1) if column.levels else column.bounds
    values = rng.uniform(low, high, rows)
    values[:2] = low, high
    values = column.snap(np.rint(values) if column.levels else values)
    return np.where(rng.random(rows) < 0.2, np.nan, values) if column.nullable else values


@pytest.mark.parametrize(("column", "size"), COLUMNS, ids=[c.name for c, _ in COLUMNS])
def test_values_come_back_to_the_bit(column: Column, size: int) -> None:
    values = draw(column, 5_000)
    packed = pack_column(column, values)
    assert packed.dtype.itemsize == count_bytes(column) == size
    back = unpack_column(column, packed)
    assert back.dtype == np.float64
    assert np.array_equal(back, values, equal_nan=True)
    assert np.array_equal(np.signbit(back[back == 0]), np.signbit(values[values == 0]))


def test_a_table_is_put_together_of_parts_that_are_snapped() -> None:
    columns = [column for column, _ in COLUMNS]
    rows = {column.name: draw(column, 100) for column in columns}
    table = PackedTable.of(columns, 100)
    rough = dict(rows, age=rows["age"] + 0.2)
    for at in range(0, 120, 40):
        table.put(at, {name: values[at : at + 40] for name, values in rough.items()})
    for name, values in table.unpack().items():
        assert np.array_equal(values, rows[name], equal_nan=True), name

"""Arrow tables of coded rows: there and back, and what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.support.cohort_columns import AGE, SCHEMA, STAGE, WARD, refused

from penstock.base.errors import InvalidInput
from penstock.schema import Column, Schema, from_arrow, to_arrow

CODED = {
    "age": np.array([18.0, 55.0, 100.0]),
    "time": np.array([0.0, 12.34, 25.0]),
    "cvd": np.array([0.0, 1.0, 0.0]),
    "ward": np.array([2.0, np.nan, 0.0]),
    "stage": np.array([0.0, 1.0, 2.0]),
    "visits": np.array([3.0, np.nan, 20.0]),
}


def test_arrow_holds_labels_and_types() -> None:
    table = to_arrow(CODED, SCHEMA)
    kinds = [pa.float64(), pa.float64(), pa.int64(), pa.string(), pa.int64(), pa.int64()]
    assert table.schema.types == kinds
    assert table["ward"].to_pylist() == ["c", None, "a"]
    assert table["stage"].to_pylist() == [1, 2, 3]
    assert table["visits"].to_pylist() == [3, None, 20]
    assert table["time"].to_pylist() == [0.0, 12.34, 25.0]


def test_arrow_round_trip() -> None:
    coded = from_arrow(to_arrow(CODED, SCHEMA), SCHEMA)
    for name, values in CODED.items():
        np.testing.assert_array_equal(coded[name], values)


def test_arrow_of_no_rows() -> None:
    empty = {name: np.empty(0) for name in SCHEMA.names}
    assert from_arrow(to_arrow(empty, SCHEMA), SCHEMA)["ward"].size == 0


@pytest.mark.parametrize(
    ("column", "values", "coded"),
    [
        (WARD, pa.array(["b", "x", None]), [1, np.nan, np.nan]),
        (WARD, pa.array(["b", "a"]).dictionary_encode(), [1, 0]),
        (STAGE, pa.array(["2", "9"]), [1, np.nan]),
        (STAGE, pa.array([3.0, 1.5, None]), [2, np.nan, np.nan]),
        (Column("b", "binary"), pa.array([True, False, None]), [1, 0, np.nan]),
        (AGE, pa.array([3, 2000, None]), [3, 2000, np.nan]),
        (AGE, pa.array([float("inf")], pa.float32()), [np.inf]),
        (AGE, pa.nulls(2), [np.nan, np.nan]),
    ],
)
def test_from_arrow_reads_what_people_write(
    column: Column, values: pa.Array, coded: list[float]
) -> None:
    table = pa.table({column.name: values})
    np.testing.assert_array_equal(from_arrow(table, Schema((column,)))[column.name], coded)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (AGE, pa.array(["44"])),
        (AGE, pa.array([True])),
        (AGE, pa.array([[1.0]])),
        (AGE, pa.array([0], pa.timestamp("s"))),
        (WARD, pa.array([1])),
        (WARD, pa.array([b"a"])),
    ],
)
def test_from_arrow_refuses_types_that_do_not_fit(column: Column, values: pa.Array) -> None:
    table = pa.table({column.name: values})
    assert refused(from_arrow, table, Schema((column,))) == [column.name]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({}),
        pa.table({"age": [1.0], "more": [1.0]}),
        pa.Table.from_arrays([pa.array([1.0])] * 2, names=["age", "age"]),
    ],
)
def test_from_arrow_refuses_other_columns(table: pa.Table) -> None:
    assert refused(from_arrow, table, Schema((AGE,)))


def test_errors_hold_no_values_of_rows() -> None:
    with pytest.raises(InvalidInput) as caught:
        from_arrow(pa.table({"age": ["secret"]}), Schema((AGE,)))
    assert "secret" not in str(caught.value)

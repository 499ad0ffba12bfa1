"""Coded tables and Arrow tables.

Rows are in reach here, so errors name columns of the schema and types, never values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.base.checks import Checks, nearest
from penstock.schema.columns import LEVEL_KINDS, Coded, Column, Floats, Schema

if TYPE_CHECKING:
    import pyarrow as pa

# At most 12 digits, so that a label survives a detour through float64.
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,11}")


def check_coded(coded: Mapping[str, npt.ArrayLike], schema: Schema) -> Coded:
    """The same table with exactly the schema's columns, in its order, as float64 arrays.

    Values are not looked at: clamping is :meth:`Column.snap`.

    Raises:
        InvalidInput: a column is missing, unknown or not one-dimensional numbers, or lengths
            differ.
    """
    check = _names(list(coded), schema)
    check.done()
    arrays: Coded = {}
    for name in schema.names:
        try:
            arrays[name] = np.asarray(coded[name], dtype=np.float64)
        except (TypeError, ValueError):
            check.add(name, "must hold numbers")
            continue
        if arrays[name].ndim != 1:
            check.add(name, "must be one-dimensional", value=f"{arrays[name].ndim} dimensions")
    if len({a.size for a in arrays.values()}) > 1:
        check.add("", "columns differ in length")
    check.done()
    return arrays


END_WIDTH = 1e-9
"""Share of the follow-up, in a duration without decimals, that is its end: times are computed."""


def end_follow_up(coded: Mapping[str, npt.ArrayLike], schema: Schema) -> Coded:
    """The same table, seen no longer than each duration's follow-up.

    Who is followed for longer than ``upper`` (by more than rounding to the column's decimals
    explains) has the time ``upper`` and no event: what happens later has not happened yet, known or
    not. All else stays as it is; rows do not depend on each other.
    """
    seen = {name: np.asarray(values, dtype=np.float64) for name, values in coded.items()}
    for column in schema.columns:
        if column.event is None or column.event not in seen or column.name not in seen:
            continue
        upper = column.bounds[1]
        slack = END_WIDTH * upper if column.decimals is None else 0.5 / 10.0**column.decimals
        later = seen[column.name] > upper + slack
        seen[column.name] = np.where(later, upper, seen[column.name])
        seen[column.event] = np.where(later, 0.0, seen[column.event])
    return seen


def to_arrow(coded: Mapping[str, npt.ArrayLike], schema: Schema) -> pa.Table:
    """A coded table as people read it.

    Numbers are clamped to the bounds and the decimal grid (:meth:`Column.snap`): integers as
    int64, others as float64. Levels become their labels: int64 where every label of the column
    is an integer literal, else string. NaN, and an index that is no level, becomes null.

    Raises:
        InvalidInput: as :func:`check_coded`.
    """
    import pyarrow as pa

    arrays = check_coded(coded, schema)
    return pa.table({c.name: _column_to_arrow(c.snap(arrays[c.name]), c) for c in schema.columns})


def from_arrow(table: pa.Table, schema: Schema) -> Coded:
    """The coded table of an Arrow table: labels become indices, null becomes NaN.

    Numbers stay as they are (out of bounds, infinite); labels that are no level become NaN.
    A column of numbers is matched with labels that are integer literals, so that 1, 1.0 and
    "1" are the level "1", and booleans are 0 and 1.

    Raises:
        InvalidInput: a column is missing, unknown, or of a type that cannot hold its kind.

    Example:
        >>> from penstock.schema import Column
        >>> ward = Schema((Column("ward", "categorical", levels=("a", "b", "c")),))
        >>> to_arrow({"ward": [2, np.nan]}, ward).to_pydict()
        {'ward': ['c', None]}
        >>> from_arrow(to_arrow({"ward": [2, np.nan]}, ward), ward)["ward"].tolist()
        [2.0, nan]
    """
    check = _names(list(table.column_names), schema)
    check.done()
    coded: Coded = {}
    for column in schema.columns:
        array = table.column(column.name)
        try:
            coded[column.name] = _column_from_arrow(array, column)
        except (TypeError, ValueError, NotImplementedError):  # pyarrow's errors derive from these
            check.add(
                column.name,
                f"cannot be read as a column of kind {column.kind!r}",
                value=str(array.type)[:40],
            )
    check.done()
    return coded


def _names(found: list[str], schema: Schema) -> Checks:
    check = Checks("table")
    check.distinct("", found)
    for name in schema.names:
        if name not in found:
            check.add(name, "is missing from the table", remedy=nearest(name, found))
    for name in found:
        if name not in schema.names:
            check.add(str(name)[:64], "is not a column of the schema")
    return check


def _integer_levels(column: Column) -> list[int] | None:
    if all(_INTEGER.fullmatch(level) for level in column.levels):
        return [int(level) for level in column.levels]
    return None


def _column_to_arrow(values: Floats, column: Column) -> pa.Array:
    import pyarrow as pa

    missing = np.isnan(values)
    if column.kind in LEVEL_KINDS:
        integers = _integer_levels(column)
        labels = pa.array(list(column.levels) if integers is None else integers)
        return labels.take(pa.array(np.where(missing, 0, values).astype(np.int64), mask=missing))
    if column.kind == "integer":
        return pa.array(np.where(missing, 0, values).astype(np.int64), mask=missing)
    return pa.array(values, mask=missing)


def _column_from_arrow(array: pa.Array, column: Column) -> Floats:
    """Raises: TypeError, ValueError or NotImplementedError where the types do not fit."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), np.nan)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if column.kind in LEVEL_KINDS and text:
        index = pc.index_in(array.cast(pa.string()), value_set=pa.array(list(column.levels)))
        return _floats(index)
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if text or not (number or pa.types.is_boolean(kind)):
        raise TypeError("not numbers")
    if column.kind not in LEVEL_KINDS:
        if pa.types.is_boolean(kind):
            raise TypeError("not numbers")
        return _floats(array)
    levels = _integer_levels(column)
    if levels is None:
        raise TypeError("numbers where labels are text")
    values = _floats(array.cast(pa.int8()) if pa.types.is_boolean(kind) else array)
    index = np.full(values.shape, np.nan)
    for i, level in enumerate(levels):
        index[values == level] = i
    return index


def _floats(array: pa.Array) -> Floats:
    import pyarrow as pa
    import pyarrow.compute as pc

    cast = pc.cast(array, pa.float64(), safe=False)
    return np.array(cast.to_numpy(zero_copy_only=False), dtype=np.float64)

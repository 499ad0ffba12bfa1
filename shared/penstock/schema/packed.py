"""Coded tables in as few bytes as their columns need, for who holds many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.schema.columns import Coded, Column

Array = NDArray[np.float64]
Packed: TypeAlias = (
    "NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32] | NDArray[np.float64]"
)

_SIZES = ("uint8", "uint16", "uint32")


@dataclass(frozen=True, slots=True)
class PackedTable:
    """A table of snapped columns.

    Attributes:
        columns: of the schema; packed: each as of :func:`pack_column`.
    """

    columns: Sequence[Column]
    packed: Sequence[Packed]

    @classmethod
    def of(cls, columns: Sequence[Column], rows: int) -> PackedTable:
        """So many rows, to be :meth:`put`."""
        return cls(columns, [np.empty(rows, _find_size(column) or "float64") for column in columns])

    def put(self, at: int, rows: Mapping[str, Array]) -> None:
        """Snap these rows' values, and put them in place, the first at ``at``."""
        for column, packed in zip(self.columns, self.packed, strict=True):
            values = pack_column(column, column.snap(rows[column.name]))
            packed[at : at + len(values)] = values

    def unpack(self) -> Coded:
        """The table, to the bit."""
        each = zip(self.columns, self.packed, strict=True)
        return {column.name: unpack_column(column, values) for column, values in each}


def pack_column(column: Column, values: Array) -> Packed:
    """Snapped values (:meth:`~penstock.schema.columns.Column.snap`) as steps from the first, the
    last number being what is missing; of a column without steps as they are."""
    first, _, scale = _steps(column)
    if (small := _find_size(column)) is None:
        return values
    gone = np.isnan(values)
    steps = np.rint(np.where(gone, 0.0, values) * scale) - first
    packed: Packed = np.where(gone, np.iinfo(small).max, steps).astype(small)
    return packed


def unpack_column(column: Column, packed: Packed) -> Array:
    """The inverse of :func:`pack_column`."""
    if (small := _find_size(column)) is None:
        return np.asarray(packed, dtype=np.float64)
    first, _, scale = _steps(column)
    gone = packed == np.iinfo(small).max
    return np.where(gone, np.nan, (packed.astype(np.float64) + first) / scale + 0.0)


def count_bytes(column: Column) -> int:
    """Of one packed value."""
    return np.dtype(_find_size(column) or "float64").itemsize


def _find_size(column: Column) -> str | None:
    """The smallest number that tells all steps, and what is missing, apart."""
    _, count, _ = _steps(column)
    return next((size for size in _SIZES if 0 < count <= np.iinfo(size).max), None)


def _steps(column: Column) -> tuple[int, int, float]:
    """The first step, how many there are (0: there are none), and steps in 1."""
    if column.levels:
        return 0, len(column.levels), 1.0
    if column.grid is None:
        return 0, 0, 1.0
    first, last = column.grid
    return first, last - first + 1, 10.0 ** (column.decimals or 0)

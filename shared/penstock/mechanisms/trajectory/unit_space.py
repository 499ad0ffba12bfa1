"""The unit space, in which particles move: encoded columns but the time's, centred and halved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.schema import Coded, Column
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]


def to_unit(encoding: Encoding, space: Sequence[int], rows: Array) -> Array:
    """(..., s) points of encoded rows (..., d), within the public box.

    Args:
        space: which coordinates move.
    """
    at = list(space)
    low, high = encoding.low[at], encoding.high[at]
    return np.asarray((np.clip(rows[..., at], low, high) - (low + high) / 2) / 2)


def from_unit(
    encoding: Encoding, space: Sequence[int], z: Array, column: Column, times: Array
) -> Coded:
    """Coded columns of points (N, s) at given values (N,) of the time column."""
    at = list(space)
    low, high = encoding.low[at], encoding.high[at]
    encoded = np.zeros((len(z), encoding.d))
    encoded[:, at] = 2 * z + (low + high) / 2
    coded = dict(encoding.decode(encoded))
    coded[column.name] = times
    return coded


def hold_constants(encoding: Encoding, columns: Coded, each: int) -> Coded:
    """Columns of whole paths of ``each`` times: what does not vary is all along a path as it is
    where it begins."""
    for column in encoding.schema.columns:
        if not column.varies:
            columns[column.name] = np.repeat(columns[column.name][::each], each)
    return columns

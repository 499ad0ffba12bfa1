"""Rows as coded columns, one coordinate each: for mechanisms that count, and train nothing.

A mechanism that sees rows as points wants levels apart and noise between them
(:mod:`penstock.schema.encoding`); of 15 columns of twenty levels that is 300 coordinates. One that
decodes rows before it counts them needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from penstock.schema import Coded, Floats, Schema, check_coded, end_follow_up
from penstock.schema.encoding import Bools, Dim, Dither, Encoding


class PlainEncoding(Encoding):
    """Each column as it is coded; NaN is missing, of a column that is nullable.

    Attributes:
        schema, d, dims, low, high: as of :class:`~penstock.schema.encoding.Encoding`; no coordinate
            is of a part of a column, so that ``outcomes`` and ``levels`` are empty.

    Example:
        >>> from penstock.schema import Column
        >>> ward = Column("ward", "categorical", levels=("a", "b", "c"), nullable=True)
        >>> encoding = PlainEncoding(Schema((Column("age", "integer", 18, 100), ward)))
        >>> x, present = encoding.encode({"age": [40, 120], "ward": [2, np.nan]})
        >>> x.tolist(), present.tolist()
        ([[40.0, 2.0], [100.0, nan]], [True, True])
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.dims = tuple(Dim(column.name, column.name, "value") for column in schema.columns)
        self.d = len(self.dims)
        bounds = [c.bounds if not c.levels else (0, len(c.levels) - 1) for c in schema.columns]
        self.low, self.high = (
            np.array(ends, dtype=np.float64) for ends in zip(*bounds, strict=True)
        )
        self.outcomes = ()
        self.levels = {}
        self.low.setflags(write=False)
        self.high.setflags(write=False)

    def encode(
        self,
        coded: Mapping[str, npt.ArrayLike],
        rng: np.random.Generator | Dither | None = None,
    ) -> tuple[Floats, Bools]:
        """As of :class:`~penstock.schema.encoding.Encoding`, with no noise: ``rng`` is not needed.

        Columns lie one after the other in memory: each is read by itself.
        """
        arrays = end_follow_up(check_coded(coded, self.schema), self.schema)
        n = len(next(iter(arrays.values())))
        x, present = np.empty((self.d, n)).T, np.ones(n, dtype=np.bool_)
        for j, column in enumerate(self.schema.columns):
            x[:, j] = column.snap(arrays[column.name])
            if not column.nullable:
                present &= ~np.isnan(x[:, j])
        for j in range(self.d):
            x[:, j] = np.where(present, x[:, j], 0.0)
        return x, present

    def decode(self, x: npt.ArrayLike) -> Coded:
        """As of :class:`~penstock.schema.encoding.Encoding`: the inverse for what was encoded."""
        rows = np.asarray(x, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.d:
            raise ValueError(f"expected shape (n, {self.d}), got {rows.shape}")
        coded: Coded = {}
        for j, column in enumerate(self.schema.columns):
            values = rows[:, j]
            if column.levels:
                values = np.rint(np.clip(values, self.low[j], self.high[j]))
            if not column.nullable:
                middle = np.rint((self.low[j] + self.high[j]) / 2)
                values = np.where(np.isnan(values), middle, values)
            coded[column.name] = column.snap(values)
        return coded

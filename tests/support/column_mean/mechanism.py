"""What the rest of the package knows of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tests.support.column_mean.plan import Plan, plan
from tests.support.column_mean.settings import ColumnMean

from penstock.mechanisms.memory import NUMBER, PROGRAM, Memory, rows_memory, threads_memory
from penstock.mechanisms.parts import Part
from penstock.mechanisms.protocol import Array, Asked, Bools, Mechanism
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.mechanisms.released import Kind, PartShape, Shape
from penstock.schema import NUMBER_KINDS, Column, Schema
from penstock.schema.encoding import Encoding


class _Mechanism(Mechanism[ColumnMean, Plan]):
    settings = ColumnMean
    head = "releases the mean of one column."
    notes = {"column": "whose mean"}  # noqa: RUF012
    leaves = "no rows: one number"
    product = "one mean"

    def plan(self, asked: Asked[ColumnMean], persons: int) -> Plan:
        return plan(asked.settings, asked.schema, persons, asked.privacy)

    def memory(
        self, plan: Plan, schema: Schema, dictionary: Schema | None = None, threads: int = 1
    ) -> Memory:
        d = Encoding(schema).d
        laid_out = rows_memory(plan, schema, dictionary or schema, d)
        work = NUMBER * 2 * plan.persons * plan.rows * len(schema.columns)
        return Memory(PROGRAM + threads_memory(threads), laid_out, NUMBER, work)

    def shape(self, asked: Asked[ColumnMean], persons: int) -> Shape:
        low, high = asked.schema[asked.settings.column].bounds
        mean = Schema((Column("mean", "continuous", low, high),))
        spread = Schema(
            (
                Column("of", "categorical", levels=("sum", "count")),
                Column("sd", "continuous", 0.0, 1e6),
            )
        )
        return Shape(
            (
                PartShape("mean", Kind.ONCE, mean, 1),
                PartShape("calibration", Kind.ONCE, spread, 2),
            )
        )

    def counts_rows(self, asked: Asked[ColumnMean]) -> bool:
        return False

    def run(
        self,
        plan: Plan,
        encoding: Encoding,
        rows: Array,
        present: Bools,
        noise: Any,
        **_: object,
    ) -> Iterator[Part]:
        values = encoding.decode(rows.reshape(-1, encoding.d))[plan.column]
        units = np.clip((values - plan.middle) / plan.half, -1.0, 1.0)
        there = present.reshape(-1)
        exact = np.array([np.where(there, units, 0.0).sum(), there.sum()])
        total, count = exact + plan.sd * noise.normal(2)
        mean = np.clip(total / max(count, 1.0), -1.0, 1.0)
        yield Part("mean", {"mean": np.array([plan.middle + plan.half * mean])})
        yield Part("calibration", {"of": np.arange(2.0), "sd": np.full(2, plan.sd)})

    def draft(self, schema: Schema, time: str | None = None) -> ColumnMean:
        return ColumnMean(next(c.name for c in schema.columns if c.kind in NUMBER_KINDS))

    def returned(self, asked: Asked[ColumnMean]) -> list[str]:
        return [f"comes back: the mean of {asked.settings.column}"]


COLUMN_MEAN = _Mechanism()

WITH_MEAN = Registry(*MECHANISMS.values(), COLUMN_MEAN, default=MECHANISMS.default.name)
"""What a test hands to a gate, to a worker in its own process, and to whatever reads a study."""

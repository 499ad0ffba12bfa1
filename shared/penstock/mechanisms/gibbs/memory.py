"""How much memory an answer takes at most; :mod:`penstock.mechanisms.memory` has the sum."""

from __future__ import annotations

from penstock.mechanisms.gibbs.plan import Plan
from penstock.mechanisms.memory import (
    BIG,
    NUMBER,
    PROGRAM,
    Memory,
    rows_memory,
    threads_memory,
)
from penstock.schema import Schema
from penstock.schema.encoding import Encoding

_SUMMED = 1 << 19
"""Numbers of exact sums that are computed at once."""


def release_memory(plan: Plan, schema: Schema, dictionary: Schema, threads: int) -> Memory:
    """Of a worker that carries the plan out on a CPU."""
    places = plan.persons * plan.rows
    return Memory(
        program=PROGRAM + threads_memory(threads),
        rows=rows_memory(plan, schema, dictionary, Encoding(schema).d),
        released=NUMBER * places * len(schema.columns) * 2,
        work=_answer(plan),
    )


def _answer(plan: Plan) -> int:
    """A design, and sums of triangles of it, as many numbers at once as are summed."""
    places, p = plan.persons * plan.rows, plan.dimension
    design = NUMBER * places * (4 * p + 4 * plan.asked.pieces + 8)
    sizes = (plan.summary_size, plan.curvature_size, plan.information_size)
    at_once = min(places * max(sizes), max(_SUMMED, max(sizes)))
    return design + 9 * NUMBER * at_once + BIG * max(sizes)

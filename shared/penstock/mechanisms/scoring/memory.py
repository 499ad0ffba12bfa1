"""How much memory answers take at most; :mod:`penstock.mechanisms.memory` has the sum."""

from __future__ import annotations

from penstock.mechanisms.memory import (
    NUMBER,
    PROGRAM,
    Memory,
    rows_memory,
    threads_memory,
)
from penstock.mechanisms.scoring.plan import ScoringPlan
from penstock.mechanisms.structured.memory import fit_memory
from penstock.mechanisms.structured.outcomes.hazards import INTERVALS
from penstock.mechanisms.structured.plan import list_counted
from penstock.mechanisms.structured.regressors import most_linear
from penstock.schema import Schema
from penstock.schema.encoding import Encoding

_LAID_OUT = 2 * (1 << 11) * (2 * INTERVALS + 1)
"""All quasi-random persons with all that may come of each, and the same weighted by chances."""

_TALLIED = 16
"""Numbers of a row that a tally holds at once."""


def release_memory(plan: ScoringPlan, schema: Schema, dictionary: Schema, threads: int) -> Memory:
    """Of a worker that carries the plan out on a CPU: one fit, then the scores' variance; or
    the largest tally."""
    places = plan.persons * plan.rows
    work = _TALLIED * NUMBER * places
    if plan.sums is not None:
        grids = list_counted(plan.schema, plan.outcomes)
        linear = max(most_linear(grids, outcome.extras) for outcome in plan.outcomes)
        fitted = fit_memory(plan.sums, plan.schema, columns=len(schema.columns))
        work = max(work, fitted + NUMBER * _LAID_OUT * linear)
    return Memory(
        program=PROGRAM + threads_memory(threads),
        rows=rows_memory(plan, schema, dictionary, Encoding(schema).d),
        released=NUMBER * places * len(schema.columns) * 2,
        work=work,
    )

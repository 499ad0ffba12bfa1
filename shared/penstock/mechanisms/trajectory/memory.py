"""How much memory a trajectory takes at most; :mod:`penstock.mechanisms.memory` has the sum."""

from __future__ import annotations

from penstock.mechanisms.memory import (
    BIG,
    NUMBER,
    PROGRAM,
    TORCH,
    Memory,
    copies_memory,
    rows_memory,
    tables_memory,
    threads_memory,
)
from penstock.mechanisms.trajectory.plan import Plan
from penstock.mechanisms.trajectory.repeats import RepeatsPlan
from penstock.schema import Schema
from penstock.schema.encoding import Encoding

_PULLED = 1 << 19
"""Numbers of particles' pulls that are computed at once."""

_SUMMED = 80
"""Bytes of a number of a sum that is known, as it was read and as it is kept."""

_IMAGINED, _DRAWN = 1 << 11, 1 << 19
"""Persons by whom a match goes; and numbers of persons that are drawn together."""


def release_memory(plan: Plan, schema: Schema, dictionary: Schema, threads: int) -> Memory:
    """Of a worker that carries the plan out on a CPU."""
    d = Encoding(schema).d
    paths = 2 * min(plan.paths * plan.path_times * d, 1 << 20)
    paths += 14 * max(plan.path_times * d, 1 << 17)
    return Memory(
        program=PROGRAM + TORCH + threads_memory(threads),
        rows=rows_memory(plan, schema, dictionary, d),
        released=tables_memory(plan, schema, d) + NUMBER * paths,
        work=_dynamics(plan) + _sums(plan) + copies_memory(plan, d),
    )


def _sums(plan: Plan) -> int:
    """A step's sum in whole numbers, with its noise; and what was summed in the steps before."""
    numbers = plan.dynamics.numbers or 0
    return numbers * (3 * BIG + _SUMMED * plan.dynamics.steps)


def _dynamics(plan: Plan) -> int:
    """The rows in the unit space, and the largest of start, dynamics, couplings and paths."""
    places, d, m = plan.persons * plan.rows, len(plan.space), plan.particles
    times, cells = len(plan.times.used), plan.times.count * plan.start.modes
    rows = NUMBER * places * (8 * d + 6 + plan.rows + 2 * plan.start.modes)
    start = BIG * cells * (d + 1) ** 2
    block = max(_PULLED, 16 * plan.rows * m * d)
    pulls = 4 * 3 * block + NUMBER * 8 * max(1 << 17, 16 * plan.rows * m)
    particles = NUMBER * 12 * times * m * d
    couplings = NUMBER * 14 * (times - 1) * m * m
    return rows + start + pulls + particles + couplings


def repeats_memory(plan: RepeatsPlan, schema: Schema, dictionary: Schema, threads: int) -> Memory:
    """The same where dependence is measured: without torch, but for couplings of a start by
    counts."""
    d, count, told = Encoding(schema).d, plan.times.count, plan.told
    columns = len(plan.varying) * count + len(plan.constants) + count
    columns += 0 if plan.follow_up is None else 2
    drawn = NUMBER * (11 * plan.persons // 10 + 64) * columns
    # Scores of rows, floats and whole numbers, and of imagined persons; moments with exact noise.
    scores = NUMBER * 6 * (plan.persons + _IMAGINED) * (told + count)
    moments = BIG * (told + 1) ** 2 + NUMBER * 14 * (told + 1) ** 2
    laid = NUMBER * 3 * plan.persons * columns
    paths = NUMBER * 8 * max(_DRAWN, plan.path_times * len(schema.columns), told)
    kept = min(plan.copies, plan.refits) + 2
    if plan.coupling is not None:
        joined, m = plan.times.count, plan.particles
        paths += NUMBER * 14 * (joined - 1) * m * m + NUMBER * 12 * joined * m * d
    program = PROGRAM + (TORCH if plan.coupling == "entropic" else 0)
    return Memory(
        program=program + threads_memory(threads),
        rows=rows_memory(plan, schema, dictionary, d),
        released=tables_memory(plan, schema, d) + paths,
        work=laid + scores + moments + kept * drawn,
    )

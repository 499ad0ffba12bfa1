"""How much memory a release of tables takes at most; :mod:`penstock.mechanisms.memory` has the sum.

T = fits that run at once, each with its rows, its match and its body, and one model besides.
"""

from __future__ import annotations

from penstock.mechanisms.memory import (
    MB,
    NUMBER,
    PROGRAM,
    Memory,
    copies_memory,
    rows_memory,
    tables_memory,
    threads_memory,
)
from penstock.mechanisms.tables.plan import Plan
from penstock.schema import Schema

_SAMPLE = 1 << 14
"""Quasi-random rows at which a table's matches look."""

_SCORED, _SCORES = 8, 20 * MB
"""Of an attack: tables of rows and latents that are held besides a fit's, and what does not grow
with them: distances and likelihoods of a part at a time, and the libraries that compute them."""


def release_memory(plan: Plan, schema: Schema, dictionary: Schema, threads: int) -> Memory:
    """Of a worker that carries the plan out on a CPU; as many fits as threads are held at once."""
    return Memory(
        program=PROGRAM + threads_memory(threads),
        rows=rows_memory(plan, schema, dictionary, plan.d),
        released=tables_memory(plan, schema, plan.d),
        work=_fits(plan, threads) + copies_memory(plan, plan.d),
    )


def attack_memory(plan: Plan, schema: Schema, dictionary: Schema, threads: int) -> Memory:
    """Of the process that attacks such a release, at however many w: one fit is held at once."""
    scored = NUMBER * _SCORED * plan.persons * plan.rows * plan.d + _SCORES
    return Memory(
        program=PROGRAM + threads_memory(threads),
        rows=rows_memory(plan, schema, dictionary, plan.d),
        released=0,
        work=_fits(plan, 1) + scored,
    )


def _fits(plan: Plan, threads: int) -> int:
    places, d = plan.persons * plan.rows, plan.d
    kept, fitted = plan.stages.body.memory(places)
    fit = NUMBER * (11 * places * d + 24 * _SAMPLE * d)
    at_once = max(1, min(threads, plan.refits))
    return at_once * (fit + fitted + kept) + kept

"""A run on synthetic rows before the charge: what would fail fails here, and shows how long it is.

A rehearsal is the same code in the same process, on rows drawn from the public dictionary, for the
public n: a plan that cannot be carried out, a missing package, too little memory or an error of
ours ends a job before anything was charged. It is short by what makes a release long, its steps
(two short runs tell what one step takes, and a third, without refits, what a refit takes),
copies and refits; all other settings are the study's.

What it measures plans the release's time, from public numbers alone: no row was read yet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from penstock.mechanisms import Gibbs
from penstock.schema import LEVEL_KINDS, Column, Floats, Schema
from penstock.study import Study
from penstock_client.rows.snapshot import PERSON

FEW_PERSONS = 50
"""Of the first try, which also loads what is loaded lazily."""

SHORT, LONG = 1, 65
"""Steps of the two runs that are timed."""

_MISSING = 0.2
"""Share of rows in which a value is missing."""

_SPIKED = 0.2
_NOBODY = 20
"""Every so many-th person has no row."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds that the whole of a short release took, with the fewer and with the more steps.

    ``prepared`` of them went into what is done once: plan and encoding. ``bare``: of a release
    with the fewer steps and without refits; 0 where that was not timed.
    """

    prepared: float
    short: float
    long: float
    bare: float = 0.0


def shortened(study: Study, steps: int, refits: int = 1) -> Study:
    """The study with one copy, and at most so many refits and steps.

    A chain (``gibbs``) is kept whole: it has neither copies nor refits, and its plan depends on
    its length.
    """
    mechanism = study.mechanism
    if isinstance(mechanism, Gibbs):
        return study
    short = replace(
        mechanism,
        steps=min(steps, mechanism.steps),
        copies=1,
        refits=min(refits, mechanism.refits),
    )
    return replace(study, mechanism=short)


def seconds(study: Study, measured: Measured) -> float:
    """What the whole release takes, on the safe side of what was measured.

    T = short + (steps - 1)·s + (refits - 1 + copies - 1)(again + (steps - 1)·s/2), with again =
    short - bare, what one refit and its table take, and s the step of a fit and a refit together,
    each of which has half of it. A copy, which is a table only, counts as a refit; ``again`` counts
    as a quarter of a release at least, lest noise in a difference make refits free. Without refits
    T = prepared + copies · (short - prepared + (steps - 1)·s).
    """
    mechanism = study.mechanism
    if isinstance(mechanism, Gibbs):
        return max(measured.short, measured.long)
    low, high = (min(steps, mechanism.steps) for steps in (SHORT, LONG))
    step = max(0.0, measured.long - measured.short) / (high - low) if high > low else 0.0
    once, more = min(measured.prepared, measured.short), (mechanism.steps - low) * step
    if mechanism.refits == 0:
        return once + mechanism.copies * (measured.short - once + more)
    again = max(measured.short - measured.bare, (measured.short - once) / 4)
    repeats = mechanism.refits - 1 + mechanism.copies - 1
    return measured.short + more + repeats * (again + more / 2)


def synthetic_rows(dictionary: Schema, persons: int, k: int, seed: int = 0) -> bytes:
    """Rows of nobody, in a snapshot's form: within the bounds, of all levels, some values missing.

    Args:
        k: rows of each person who has any; some have none.
    """
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(persons), k)
    who = who[who % _NOBODY != _NOBODY - 1]
    columns = {PERSON: pa.array(who)}
    missing = _MISSING / len(dictionary.columns)
    for column in dictionary.columns:
        values = _values(column, len(who), rng)
        columns[column.name] = pa.array(np.where(rng.random(len(who)) < missing, math.nan, values))
    sink = pa.BufferOutputStream()
    table = pa.table(columns)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _values(column: Column, count: int, rng: np.random.Generator) -> Floats:
    if column.kind in LEVEL_KINDS:
        return rng.integers(0, len(column.levels), count).astype(np.float64)
    values = rng.uniform(*column.bounds, count)
    if column.spike is not None:
        values = np.where(rng.random(count) < _SPIKED, column.spike, values)
    return column.snap(values)

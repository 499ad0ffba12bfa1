"""A run on synthetic rows before the charge: what would fail fails here, and shows how long it is.

A rehearsal is the same code in the same process, on rows drawn from the public dictionary, for the
public n: a plan that cannot be carried out, a missing package, too little memory or an error of
ours ends a job before anything was charged. It is short by what makes a release long: steps, copies
and refits, each of which is timed as it is made. All other settings are the study's.

What it measures plans the release's time, from public numbers alone: no row was read yet.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from penstock.mechanisms.protocol import AnyMechanism
from penstock.mechanisms.released import Kind
from penstock.schema import LEVEL_KINDS, Column, Floats, Schema
from penstock.study.study import Study
from penstock_client.rows.snapshot import PERSON

FEW_PERSONS = 50
"""Of the first try, which also loads what is loaded lazily."""

SHORT, LONG = 1, 65
"""Steps of the runs that are timed. A study of no more than the longer is run with all of them."""

COPIES, REFITS, PLANTED = 2, 1, 1
"""Of the run that times them: a first copy, a further one, a refit, a planted run where there are
any."""

_MISSING = 0.2
"""Share of rows in which a value is missing."""

_SPIKED = 0.2
_NOBODY = 20
"""Every so many-th person has no row."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the parts of short releases took, in seconds of the processor.

    What a busy machine adds to the clock's time here and there would be multiplied with the part
    it falls upon. So parts are told by processor time, and what the clock makes of them by one
    ratio of the whole.

    Attributes:
        first: from the start to the first copy, with :data:`SHORT` steps: all that is done once.
        step: of a fit.
        copy: a further copy; refit: a fit on the rows of a copy, and its table; planted: a table
            with effects planted, a fit on its rows, and the table of that.
        rest: all else that is done once, such as paths and the end of the file.
        pace: seconds of the clock for one of the processor (all its cores).
        checked: looking through the short release again, at the gate: by the clock.
    """

    first: float
    step: float = 0.0
    copy: float = 0.0
    refit: float = 0.0
    planted: float = 0.0
    rest: float = 0.0
    pace: float = 1.0
    checked: float = 0.0


def shortened(
    study: Study,
    mechanism: AnyMechanism,
    steps: int = SHORT,
    copies: int = COPIES,
    refits: int = REFITS,
) -> Study:
    """The study with at most so many steps, copies and refits, where any can be left out."""
    short = mechanism.shortened(study.mechanism, steps, copies, refits)
    return replace(study, mechanism=short)


def few_steps(study: Study, mechanism: AnyMechanism) -> bool:
    """Whether a short run has all steps of the study."""
    steps = mechanism.steps(study.mechanism)
    return steps is None or steps <= LONG


def seconds(study: Study, mechanism: AnyMechanism, measured: Measured) -> float:
    """What the whole release takes, by what its parts took.

    T = pace (first + rest + (c - 1) · copy + r · refit + (1 + r)(s - SHORT) · step + p · planted)
    + t · checked for c copies, r refits, s steps and p planted runs, where t is how many times the
    tables of the short release they are. With few steps there is no term of them.
    """
    once = measured.first + measured.rest
    c, r = study.mechanism.copies, study.mechanism.refits
    p = len(mechanism.shape(study.asked, 1).of_kind(Kind.PLANTED))
    steps = mechanism.steps(study.mechanism)
    more = 0 if steps is None or steps <= LONG else steps - SHORT
    fits = r * measured.refit + (1 + r) * more * measured.step
    times = (c + r + 2 * p) / (min(COPIES, c) + min(REFITS, r) + 2 * min(PLANTED, p))
    parts = once + (c - 1) * measured.copy + fits + p * measured.planted
    return measured.pace * parts + times * measured.checked


class Timing:
    """The moments at which a short release's steps and parts were made, by processor time."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._began = clock()
        self._parts: list[tuple[Kind, float]] = []
        self._steps: list[tuple[int, float]] = []

    def step(self, done: int, _of: int) -> None:
        """So many steps are done: a mechanism's progress."""
        self._steps.append((done, self._clock()))

    def part(self, kind: Kind) -> None:
        """A part of the release was made; one that is made once also at the end."""
        self._parts.append((kind, self._clock()))

    @property
    def first(self) -> float:
        """Seconds to the first part."""
        return self._parts[0][1] - self._began

    def measured(self, long: Timing | None = None) -> Measured:
        """What the parts took.

        Args:
            long: of a run that differs in its steps: :data:`LONG` in place of :data:`SHORT`. Where
                it told of its steps one by one, they are what is measured; elsewhere it is the
                difference of the two runs.
        """
        took = dict.fromkeys(Kind, 0.0)
        (_, before), *others = self._parts
        for kind, moment in others:
            took[kind] += moment - before
            before = moment
        step = 0.0 if long is None else long._between_steps()
        if long is not None and step is None:
            step = max(0.0, long.first - self.first) / (LONG - SHORT)
        planted = took[Kind.PLANTED] + took[Kind.RECOVERED]
        made = (took[Kind.COPY], took[Kind.REFIT], planted, took[Kind.ONCE])
        return Measured(self.first, step or 0.0, *made)

    def _between_steps(self) -> float | None:
        """Seconds of a step; None where they were not told of one by one."""
        if not self._steps or self._steps[-1][0] <= self._steps[0][0]:
            return None
        (one, then), (last, now) = self._steps[0], self._steps[-1]
        return (now - then) / (last - one)


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

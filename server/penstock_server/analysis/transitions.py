"""Tables of transitions: of those at a level before, the share at each level after.

A study asks for one cell of such a table; the others cost nothing, and are read from the same
copies. Each cell is an estimand of its own (:mod:`penstock.questions.fits.over_time`): copies are
combined (:mod:`penstock.inference.combine`), refits add what the mechanism does
(:mod:`penstock.inference.refits`), and sites are pooled
(:mod:`penstock.inference.pooling`), all on the scale of the logit, so that an interval stays
within 0 and 1. A row's cells are pooled one by one, and add up to nearly 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.inference.pooling import Pooled, pool, poolable
from penstock.inference.refits import Measured, widen_sites
from penstock.mechanisms.released import Refitting
from penstock.questions.estimands import Estimand
from penstock.questions.models.longitudinal import LongitudinalModel
from penstock.questions.persons import Courses, estimate_courses
from penstock.schema import Coded, Schema

MOST_LEVELS = 8
"""Of a column with more, a table is not for the eye; the cell that is asked for is reported."""

LEVEL = 0.95

Cell = tuple[int, int]
"""From which level, to which."""


@dataclass(frozen=True, slots=True)
class SiteTransitions:
    """One site's tables, by the first estimand that asks for a cell of each; every cell."""

    tables: Mapping[str, Mapping[Cell, Measured]]


@dataclass(frozen=True, slots=True)
class PooledTransitions:
    """A table of all sites together, on the scale of the logit.

    Attributes:
        cells: None where no site can be read; sites: by name, the cells that can be, alone.
        persons: of each level before, how many persons of a copy begin there, all sites together.
    """

    cells: Mapping[Cell, Pooled | None]
    sites: Mapping[str, Mapping[Cell, float]]
    persons: Sequence[int]


def list_tables(schema: Schema, estimands: Sequence[Estimand]) -> tuple[Estimand, ...]:
    """The first estimand of each table: of an outcome, two times and a subgroup."""
    found: dict[tuple[object, ...], Estimand] = {}
    for estimand in estimands:
        model = estimand.regression
        if not (isinstance(model, LongitudinalModel) and model.cells):
            continue
        if len(schema[estimand.outcome].levels) <= MOST_LEVELS:
            found.setdefault((estimand.outcome, estimand.times, estimand.where), estimand)
    return tuple(found.values())


def measure_transitions(
    schema: Schema,
    estimands: Sequence[Estimand],
    copies: Sequence[Coded],
    refits: Sequence[Coded],
    read_courses: Callable[[Coded], Courses],
    *,
    made: Refitting,
) -> SiteTransitions | None:
    """The tables of one site's copies and refits; None where none is asked for.

    Args:
        made: how refits were made.
    """
    asked = list_tables(schema, estimands)
    if not asked:
        return None
    read, again = ([(t, read_courses(t)) for t in tables] for tables in (copies, refits))

    def measure(estimand: Estimand) -> Measured:
        fitted, refitted = (
            [estimate_courses(table, schema, estimand, courses) for table, courses in tables]
            for tables in (read, again)
        )
        return Measured.of(fitted, refitted, made=made)

    return SiteTransitions(
        {
            one.name: {
                cell: measure(cell_of(one, schema, cell)) for cell in list_cells(schema, one)
            }
            for one in asked
        }
    )


def list_cells(schema: Schema, asked: Estimand) -> list[Cell]:
    """Row by row."""
    count = range(len(schema[asked.outcome].levels))
    return [(i, j) for i in count for j in count]


def cell_of(asked: Estimand, schema: Schema, cell: Cell) -> Estimand:
    """The estimand of one cell."""
    levels = schema[asked.outcome].levels
    return replace(asked, level=levels[cell[0]], outcome_level=levels[cell[1]])


def pool_transitions(
    schema: Schema, asked: Estimand, sites: Mapping[str, SiteTransitions]
) -> PooledTransitions:
    """One table of all sites together: each cell of the sites at which it can be read."""
    cells = list_cells(schema, asked)
    measured = {
        site: {str(cell): found.tables[asked.name][cell] for cell in cells}
        for site, found in sites.items()
    }
    wide = widen_sites(measured)
    known = {
        cell: {
            site: e
            for site, found in wide.items()
            if (e := found[str(cell)]).problem is None and poolable(e.estimate, e.variance)
        }
        for cell in cells
    }
    pooled = {
        cell: pool(
            [e.estimate for e in found.values()],
            [e.variance for e in found.values()],
            degrees=[e.df for e in found.values()],
            level=LEVEL,
        )
        if found
        else None
        for cell, found in known.items()
    }
    alone = {
        site: {cell: known[cell][site].estimate for cell in cells if site in known[cell]}
        for site in wide
    }
    levels = range(len(schema[asked.outcome].levels))
    persons = [int(np.sum([found[str((i, 0))].n or 0 for found in wide.values()])) for i in levels]
    return PooledTransitions(pooled, alone, persons)

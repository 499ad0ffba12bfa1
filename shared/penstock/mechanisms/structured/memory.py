"""How much memory a release takes at most; :mod:`penstock.mechanisms.memory` has the sum.

T = fits that run at once, each with its rows' scores, one outcome at a time, and with those of the
quasi-random persons, and of a planted run its two tables; and the copies, which are drawn together.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.mechanisms.classes.mixture import count_classes
from penstock.mechanisms.classes.pair_counts import most_groups, share_error
from penstock.mechanisms.copula.grids import Grid
from penstock.mechanisms.memory import (
    NUMBER,
    PROGRAM,
    Memory,
    rows_memory,
    tables_memory,
    threads_memory,
)
from penstock.mechanisms.structured.outcomes.hazards import INTERVALS
from penstock.mechanisms.structured.plan import (
    ROWS_AT_ONCE,
    UNIFORMS,
    StructuredPlan,
    list_counted,
    make_grids,
    most_scores,
)
from penstock.mechanisms.structured.regressors import most_columns
from penstock.schema import Schema
from penstock.schema.packed import count_bytes

_IMAGINED, _HELD = (1 << 9) * (2 * INTERVALS + 1), 12
"""A quarter of the quasi-random persons, by whom weights are chosen, with all that may come of
each; and how often as much as their scores is held, sums over all persons among it."""

_ARENA = 100_000_000
"""What each further fit at once keeps of arrays that come and go, measured: threads have their own
arenas, and a large array that is freed leaves a hole."""

_OF_PAIRS, _OF_CLASSES = 8, 12
"""How often a mixture's fit holds a number for each pair of groups, and for each group and
class."""

_OF_POINTS, _OF_ROWS, _OF_COUNTS = 4, 3, 7
"""How often drawing holds a number for each coordinate of the points by which rows are drawn, these
being up to twice as many as rows; for each of the rows' values; and for each class's each cell."""

_OF_DIVIDED = 8
"""How often dividing bins holds a number for each pair of a column's cells."""

_LEAST_ENTRIES = 40
"""Of a score, below which chances and slopes by interval take as much."""


def release_memory(
    plan: StructuredPlan, schema: Schema, dictionary: Schema, threads: int
) -> Memory:
    """Of a worker that carries the plan out on a CPU; as many fits as threads are held at once."""
    d = len(schema.columns)  # of rows that are laid out plainly
    columns, at_once = len(schema.columns), max(1, min(threads, plan.fits))
    # Of the rows one fit is made, and of tables some at once.
    fits = max(fit_memory(plan, schema), at_once * fit_memory(plan.of_tables(), schema))
    # Of a planted run its table, and the one that came of it; these are made one by one.
    table = NUMBER * plan.room * columns
    planted = 2 * table if plan.planted else 0
    packed = plan.room * sum(map(count_bytes, schema.columns))
    # Of fits at once all tables wait until the last of them is drawn.
    drawn = plan.copies + (at_once * plan.per_fit if plan.refits else 0)
    return Memory(
        program=PROGRAM + threads_memory(threads),
        rows=rows_memory(plan, schema, dictionary, d),
        released=tables_memory(plan.of_tables(), schema, d),
        work=fits + (at_once - 1) * _ARENA + planted + drawn * packed + _draw_memory(plan, schema),
    )


def fit_memory(plan: StructuredPlan, schema: Schema, columns: int | None = None) -> int:
    """Bytes of one fit.

    Args:
        schema: of what is fitted; columns: that rows have, if these are more.
    """
    grids = list_counted(schema, plan.outcomes, plan.fine)
    score = most_scores(schema, plan.outcomes)
    design = max((most_columns(grids, o.extras, o.twice) for o in plan.outcomes), default=0)
    if plan.pairs is None:
        width = max(design, most_columns(grids)) + sum(grid.latents for grid in grids)
    else:  # levels have no scores; each column's groups are counted
        width = design + sum(grid.ordered for grid in grids)
    intervals = INTERVALS if plan.outcomes or plan.pairs is None else 0
    # Arrays of a row's design, scores and declared means, and of a row's time in each interval.
    row = (
        4 * (width + score + len(plan.meant)) + 8 * intervals + 4 * (columns or len(schema.columns))
    )
    entries = max(score, _LEAST_ENTRIES)
    classes = _mixture_numbers(plan, make_grids(schema, plan.outcomes, plan.fine))
    return NUMBER * (row * plan.persons * plan.rows + _HELD * _IMAGINED * entries + classes)


def _draw_memory(plan: StructuredPlan, schema: Schema) -> int:
    """Bytes of what is drawn at once, of all copies together."""
    grids = make_grids(schema, plan.outcomes, plan.fine)
    rows = min(ROWS_AT_ONCE, plan.room * plan.copies)
    latents = sum(grid.latents for grid in grids) if plan.pairs is None else 1 + len(grids)
    width = _OF_POINTS * (latents + UNIFORMS * len(plan.outcomes))
    counts = 0
    if plan.pairs is not None:
        most = max(grid.most_cells(plan.fine) for grid in grids)
        cells = len(grids) * (1 + most)
        counts = _OF_COUNTS * _most_classes(plan) * cells
    return NUMBER * (rows * (width + _OF_ROWS * len(schema.columns)) + counts)


def _mixture_numbers(plan: StructuredPlan, grids: Sequence[Grid]) -> int:
    """Of dividing bins; and of a mixture's fit: of each pair of groups, and of each group in each
    class."""
    divided = _OF_DIVIDED * max((grid.most_cells(plan.fine) for grid in grids), default=0) ** 2
    if plan.pairs is None:
        return divided
    groups = sum(most_groups(grid, plan.groups, plan.fine) for grid in grids)
    return divided + groups * (_OF_PAIRS * groups + _OF_CLASSES * _most_classes(plan))


def _most_classes(plan: StructuredPlan) -> int:
    """Of a mixture: there are no more rows than public ones, and fewer rows have fewer classes."""
    sd = 0.0 if plan.pairs is None else plan.pairs.sd
    return count_classes(share_error(sd, plan.persons * plan.rows))

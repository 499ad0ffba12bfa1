"""Contingency tables: of all rows, how many are in each cell, and which share of them.

A study names one cell of such a table; the others cost nothing, and are read from the same release.
Counts are of the sites' own rows, and are added up (:mod:`penstock.inference.totals`). Shares
are of persons such as these: copies, refits and sites are combined as of any other estimand, on the
scale of the logit, each cell by itself, so that they add up to nearly 1.

Of tables two by two of noisy counts there is Mantel and Haenszel's odds ratio, too, whose interval
holds the noise. Of synthetic tables there is none: refits show noise, but not whether the model
behind the tables holds how two columns go together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.inference.combine import SiteEstimate
from penstock.inference.fourfold import Stratified, pool_mantel_haenszel
from penstock.inference.pooling import Pooled, pool, poolable
from penstock.inference.refits import Measured, widen_sites
from penstock.inference.totals import add_up
from penstock.mechanisms.released import Refitting
from penstock.questions.contingency import Cell, find_cell, list_cells, list_margins
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import MIN_ROWS, Estimate
from penstock.questions.fits.over_time import fit_logit
from penstock.questions.fits.row_counts import fit_count
from penstock.questions.fits.table_model import Fit
from penstock.questions.models.longitudinal import LongitudinalModel
from penstock.questions.terms import find_subgroup
from penstock.schema import Coded, Column, Schema

LEVEL = 0.95
SEEN = 2.0
"""Standard deviations of its noise that every count of every site must be, for an odds ratio:
nearer to 0 a first order says too little of what noise does."""

Whole = NDArray[np.int64]
_Table = tuple[frozenset[str], str]
"""Columns, in whatever order, and a subgroup."""


@dataclass(frozen=True, slots=True)
class SiteCrosstabs:
    """One site's tables, by the first estimand that asks for a cell of each: of each cell the count
    and the share."""

    tables: Mapping[str, Mapping[Cell, tuple[Measured, Measured]]]


@dataclass(frozen=True, slots=True)
class PooledCell:
    """A cell of all sites together: the count, and the logit of the share; None where no site can
    be read. By site both alone."""

    count: Pooled | None
    share: Pooled | None
    sites: Mapping[str, tuple[SiteEstimate, SiteEstimate]]


def list_crosstabs(estimands: Sequence[Estimand]) -> tuple[Estimand, ...]:
    """The first estimand of each table: of its columns, in whatever order, and a subgroup."""
    found: dict[_Table, Estimand] = {}
    for estimand in estimands:
        if (table := _find_table(estimand)) is not None:
            found.setdefault(table, estimand)
    return tuple(found.values())


def list_named(
    schema: Schema, asked: Estimand, estimands: Sequence[Estimand]
) -> dict[Cell, Estimand]:
    """The cells of one's table that estimands ask for: these are answered with the others."""
    columns, table = list_crossed(schema, asked), _find_table(asked)
    return {find_cell(one, columns): one for one in estimands if _find_table(one) == table}


def _find_table(estimand: Estimand) -> _Table | None:
    """Its columns and subgroup; None of an estimand that asks for no cell."""
    model = estimand.regression
    if not (isinstance(model, LongitudinalModel) and model.crossed):
        return None
    return frozenset(name for name, _ in list_margins(estimand)), estimand.where


def list_crossed(schema: Schema, asked: Estimand) -> list[Column]:
    """Its columns, the outcome first."""
    return [schema[name] for name, _ in list_margins(asked)]


def measure_crosstabs(
    schema: Schema,
    estimands: Sequence[Estimand],
    copies: Sequence[Coded],
    refits: Sequence[Coded],
    *,
    made: Refitting,
) -> SiteCrosstabs | None:
    """The tables of one site's copies and refits; None where none is asked for.

    Args:
        made: how refits were made.
    """
    asked = list_crosstabs(estimands)
    if not asked:
        return None

    def measure(read: Callable[[Whole, int], list[Estimate]], one: Estimand) -> list[Measured]:
        of = [[read(*_count(schema, one, table)) for table in of] for of in (copies, refits)]
        found = []
        for at in range(len(list_cells(list_crossed(schema, one)))):
            fitted, again = ([table[at] for table in tables] for tables in of)
            total = read is _read_counts
            found.append(Measured.of(fitted, again, made=made, total=total))
        return found

    return SiteCrosstabs(
        {
            one.name: dict(
                zip(
                    list_cells(list_crossed(schema, one)),
                    zip(measure(_read_counts, one), measure(_read_shares, one), strict=True),
                    strict=True,
                )
            )
            for one in asked
        }
    )


def _count(schema: Schema, asked: Estimand, table: Coded) -> tuple[Whole, int]:
    """Rows of each cell (c,), and of the table."""
    columns = list_crossed(schema, asked)
    rows = len(table[asked.outcome])
    kept, place = np.ones(rows, dtype=np.bool_), np.zeros(rows, dtype=np.intp)
    for column in columns:
        level = table[column.name]
        kept &= np.isin(level, np.arange(len(column.levels)))
        place = place * len(column.levels) + np.where(kept, level, 0.0).astype(np.intp)
    if asked.subgroup:
        kept &= find_subgroup({c.name: c for c in schema.columns}, asked.subgroup, table)
    size = len(list_cells(columns))
    return np.bincount(place[kept], minlength=size)[:size], rows


def _read_counts(counts: Whole, rows: int) -> list[Estimate]:
    return [_tell(fit_count(int(count), rows), rows) for count in counts]


def _read_shares(counts: Whole, rows: int) -> list[Estimate]:
    n = int(counts.sum())
    if n < MIN_ROWS:
        problem = f"too few complete rows: {n}"
        return [Estimate(math.nan, math.nan, n, None, False, problem)] * len(counts)
    return [_tell(fit_logit(int(count), n), n) for count in counts]


def _tell(fit: Fit, n: int) -> Estimate:
    return Estimate(fit.coefficient, fit.variance, n, None, converged=True)


def pool_crosstabs(
    schema: Schema, asked: Estimand, sites: Mapping[str, SiteCrosstabs]
) -> dict[Cell, PooledCell]:
    """One table of all sites together: each cell of the sites at which it can be read."""
    cells = list_cells(list_crossed(schema, asked))
    wide = widen_sites(
        {
            site: {
                f"{what} {cell}": one
                for cell in cells
                for what, one in zip(
                    ("count", "share"), found.tables[asked.name][cell], strict=True
                )
            }
            for site, found in sites.items()
        }
    )
    return {
        cell: _pool_cell(
            {site: (of[f"count {cell}"], of[f"share {cell}"]) for site, of in wide.items()}
        )
        for cell in cells
    }


def _pool_cell(sites: Mapping[str, tuple[SiteEstimate, SiteEstimate]]) -> PooledCell:
    counts, shares = (
        [e for e in of if e.problem is None and poolable(e.estimate, e.variance)]
        for of in ([both[at] for both in sites.values()] for at in range(2))
    )
    share = None
    if shares:
        share = pool(
            [e.estimate for e in shares],
            [e.variance for e in shares],
            degrees=[e.df for e in shares],
            level=LEVEL,
        )
    return PooledCell(add_up(counts, LEVEL) if counts else None, share, sites)


def pool_odds(
    schema: Schema, asked: Estimand, sites: Mapping[str, SiteCrosstabs]
) -> Stratified | None:
    """The odds ratio of a table two by two, by Mantel and Haenszel over sites: of noisy counts,
    each with noise of its own.

    The exposed have the last column's second level, events are the first column's. None of other
    tables, of fewer than two sites, where a person may have several rows (which no variance of
    counts knows), where a count is below :data:`SEEN` standard deviations of its noise, and where
    the counts have no odds ratio.
    """
    columns = list_crossed(schema, asked)
    shape = [len(column.levels) for column in columns]
    if shape != [2, 2] or schema.max_rows_per_person > 1 or len(sites) < 2:
        return None
    # a, b, c and d.
    cells = ((1, 1), (0, 1), (1, 0), (0, 0))
    told = [[of.tables[asked.name][cell][0].plain for cell in cells] for of in sites.values()]
    if any(
        one.problem is not None or not one.estimate >= SEEN * math.sqrt(one.mechanism_variance)
        for site in told
        for one in site
    ):
        return None
    counts = np.array([[one.estimate for one in site] for site in told]).T
    noise = np.stack([np.diag([one.mechanism_variance for one in site]) for site in told])
    return pool_mantel_haenszel(*counts, level=LEVEL, noise=noise)

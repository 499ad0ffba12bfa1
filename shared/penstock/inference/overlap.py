"""How much of what is asked about the columns that are adjusted for say already.

Where that is nearly all, a regression can hardly tell them apart, and its standard error says so.
In private tables it says so too little: noise, and a bound on correlations, make columns that go
together go together less than they do, and a coefficient looks more certain than rows could make
it. Refits do not see that, for the model that they are drawn from has lost it already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Factor
from penstock.questions.terms import design_terms, find_subgroup
from penstock.schema import Coded, Schema

MUCH = 0.4
"""R² in a table from which on an estimate is warned of. Of simulated persons, by `structured`: .36
where it was .40 (n = 3 000, ε = 3); .39 where it was .75 (n = 1 000, ε = 1), and an s.e. of
.036 where it was .059."""

MOST = 0.8
"""From which on an undeclared answer is marked: a variance inflation factor of 5, where columns are
usually called collinear. Of 158 regressions by two columns on nine real tables, of eight sites each
at ε = 3, twelve had more, all of them by two of children's heights, weights and ages. Where the
outcome was a number their intervals were wide, and held what all rows have; of six logistic ones
four missed it, by 1.5 to 3.2 times their half-widths."""


@dataclass(frozen=True, slots=True)
class Overlaps:
    """R² of the asked column on those that are adjusted for, by the estimand's name."""

    estimands: Mapping[str, float]


def find_overlaps(schema: Schema, estimands: Sequence[Estimand], table: Coded) -> Overlaps:
    """Those of one table: of a column that is asked about as it is, beside others.

    A product overlaps with its own columns whatever the rows are, and that is no trouble.
    """
    found = {}
    for estimand in estimands:
        if estimand.regression.compares and isinstance(estimand.target, Factor):
            share = _explain(schema, estimand, table)
            if share is not None:
                found[estimand.name] = share
    return Overlaps(found)


def _explain(schema: Schema, estimand: Estimand, table: Coded) -> float | None:
    """R², by least squares; None without other columns, spread or rows enough."""
    columns = [term.of(table) for term in design_terms(schema, estimand)]
    chosen = np.isfinite(np.column_stack(columns)).all(axis=1)
    if estimand.subgroup:
        by_name = {column.name: column for column in schema.columns}
        chosen &= find_subgroup(by_name, estimand.subgroup, table)
    *others, asked = (column[chosen] - column[chosen].mean() for column in columns)
    if not others or len(asked) <= 10 * len(columns) or not asked @ asked > 0:
        return None
    design = np.column_stack(others)
    fitted = design @ np.linalg.lstsq(design, asked, rcond=None)[0]
    return float(min(fitted @ fitted / (asked @ asked), 1.0))

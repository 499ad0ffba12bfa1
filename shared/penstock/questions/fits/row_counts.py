r"""Rows that are counted: how many there are of a kind, and one cell's share of a table.

A count is of the rows at hand, and no estimate of anything else: its variance is that of *drawing*
a table of as many rows,

.. math:: \mathrm{var} = \frac{(k + ½)(n - k + ½)}{n + 1},

with k of n rows. A site's own rows were not drawn, so that where copies are combined it counts
once for each copy, and not for the site (:func:`penstock.inference.combine.combine`).
"""

from __future__ import annotations

import numpy as np

from penstock.questions.contingency import find_cell, list_margins
from penstock.questions.estimands import Estimand
from penstock.questions.fits.course_model import CourseModel
from penstock.questions.fits.over_time import fit_logit, logit_floor
from penstock.questions.fits.table_model import Array, Degenerate, Fit
from penstock.questions.models.longitudinal import COUNT, TABLE
from penstock.schema import Schema


class CountCourse(CourseModel):
    """Values are those of all rows, NaN in rows that the estimand is not of."""

    model = COUNT

    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        y, outcome = values[0], schema[estimand.outcome]
        if not len(y):
            raise Degenerate("the table has no rows")
        if outcome.kind == "duration":
            until = outcome.bounds[1] if estimand.until is None else float(estimand.until)
            has = (y <= until) & (values[1] > 0)
        elif estimand.outcome_level is not None:
            has = y == outcome.levels.index(estimand.outcome_level)
        else:
            threshold = estimand.threshold or 0.0
            has = y > threshold if estimand.direction == "above" else y < threshold
        return fit_count(int(has.sum()), len(y))

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        """None: sites are added up, so that no variance buys weight."""
        return 0.0


def fit_count(count: int, rows: int) -> Fit:
    """The count itself, and the variance of drawing as many rows; above 0 of none and of all."""
    return Fit(float(count), (count + 0.5) * (rows - count + 0.5) / (rows + 1), True, None)


class TableCourse(CourseModel):
    """Values are the columns that are crossed, the outcome first."""

    model = TABLE

    def fit(self, values: tuple[Array, ...], estimand: Estimand, schema: Schema) -> Fit:
        cell = find_cell(estimand, [schema[name] for name, _ in list_margins(estimand)])
        inside = [y == at for y, at in zip(values, cell, strict=True)]
        return fit_logit(int(np.logical_and.reduce(inside).sum()), len(values[0]))

    def least_variance(self, schema: Schema, estimand: Estimand, rows: int) -> float:
        return logit_floor(rows)

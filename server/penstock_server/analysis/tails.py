"""Whether what is asked about a number hangs on few persons.

A regression on a number with a long tail is decided by those who are far out: in creatinine, or
light chains, one person in two hundred has half of all its variance. Privacy hides just these, and
a model of them errs by more than its refits show, since a refit's rows have the model's own tail.
Its errors go into what goes together with such a column, too: adjusted for creatinine, age may be
further off than creatinine is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Factor, read_regressor
from penstock.schema import NUMBER_KINDS, Coded, Schema

FEW = 200
"""One row in so many is a few."""

MUCH = 0.4
"""Of the variance, from which on an estimate is warned of. In tables of `structured` at ε = 3 it
was .41 and more where coefficients were off by 3 real standard errors or more, and .02 to .35 in
nearly all where they were not (tables and generators of `tests/studies/foreign_tuning.py`)."""


@dataclass(frozen=True, slots=True)
class Tails:
    """The asked column, or one that is adjusted for, of whose variance few rows have most, and what
    share they have; by the estimand's name."""

    estimands: Mapping[str, tuple[str, float]]


def find_tails(schema: Schema, estimands: Sequence[Estimand], table: Coded) -> Tails:
    """Those of one table: of numbers that stand in a regression as they are."""
    numbers = {column.name for column in schema.columns if column.kind in NUMBER_KINDS}
    found = {}
    for estimand in estimands:
        if not estimand.regression.compares:
            continue
        standing = (estimand.target, *map(read_regressor, estimand.adjust))
        plain = [r.column for r in standing if isinstance(r, Factor) and r.column in numbers]
        shares = [(share, name) for name in plain if (share := _weigh(table[name])) is not None]
        if shares:
            share, name = max(shares)
            found[estimand.name] = (name, share)
    return Tails(found)


def _weigh(values: NDArray[np.float64]) -> float | None:
    """The share of the few that are furthest from the mean; None where there is no spread."""
    known = values[~np.isnan(values)]
    if len(known) < FEW:
        return None
    squares = np.sort((known - known.mean()) ** 2)[::-1]
    whole = float(squares.sum())
    return float(squares[: len(known) // FEW].sum()) / whole if whole > 0 else None

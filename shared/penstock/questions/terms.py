"""The one order of a design's columns: of fits to tables, of chains, and of answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.base.errors import PenstockError
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Floats, Schema

INTERCEPT = "(intercept)"


@dataclass(frozen=True, slots=True)
class Term:
    """One column of the design.

    Attributes:
        name: as the answer calls it; ``column=level`` for a level against the first one.
        column: of the schema.
        level: index of the level that a 0/1 column stands for, or None.
    """

    name: str
    column: str
    level: int | None = None

    def of(self, table: Mapping[str, Floats]) -> Floats:
        """The design's column of a coded table, not standardised."""
        values = table[self.column]
        return values if self.level is None else (values == self.level).astype(np.float64)


def design_terms(schema: Schema, estimand: Estimand) -> tuple[Term, ...]:
    """Columns of the design beside the intercept: adjustment columns, then the term, last.

    Numbers as they are, binary columns as 0/1, ordered ones as their level's index, categorical
    ones as 0/1 columns against the first level; the term's own level comes last. None for a mean.

    Raises:
        PenstockError: the term has no such level, or it is the first (a study has checked that).
    """
    terms: list[Term] = []
    for name in estimand.covariates:
        column = schema[name]
        if column.kind != "categorical":
            terms.append(Term(name, name))
            continue
        last = estimand.level if name == estimand.term else None
        terms += [Term(f"{name}={column.levels[i]}", name, i) for i in _levels(column, last)]
    return tuple(terms)


def count_terms(schema: Schema, estimand: Estimand) -> int:
    """How many columns the design has beside the intercept, whatever the term's level is."""
    columns = [schema[name] for name in estimand.covariates]
    return sum(len(c.levels) - 1 if c.kind == "categorical" else 1 for c in columns)


def _levels(column: Column, last: str | None) -> list[int]:
    """The levels that have a column of their own; ``last`` comes last."""
    levels = list(range(1, len(column.levels)))
    if last is None:
        return levels
    if last not in column.levels[1:]:
        raise PenstockError(
            "not a level that can be compared with the first one",
            value=last,
            bound=", ".join(column.levels[1:]),
        )
    target = column.levels.index(last)
    levels.remove(target)
    return [*levels, target]

"""Which columns a contingency table crosses, and which of its cells an estimand asks for.

A study names one cell: the outcome's level by ``outcome_level``, a further column as ``term`` with
its ``level``, or two of them as a product that has both: ``ward[b]:sex[1]``. Any level may be
named, the first one, too. All cells follow from the same release, and the report shows them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Protocol

from penstock.base.checks import Checks, shown
from penstock.questions.grammar import Product, Regressor, Spline
from penstock.questions.roles import find_role, refuse_level
from penstock.schema import LEVEL_KINDS, Column

MOST_CELLS = 64
"""Of one table: each has its noise, and a page has to show them."""

Cell = tuple[int, ...]
"""The place of its level in each column."""


class Crossed(Protocol):
    """What is looked at here of an estimand."""

    @property
    def outcome(self) -> str: ...
    @property
    def outcome_level(self) -> str | None: ...
    @property
    def level(self) -> str | None: ...
    @property
    def target(self) -> Regressor: ...


def list_margins(estimand: Crossed) -> tuple[tuple[str, str | None], ...]:
    """The columns of the table, the outcome first, each with its level in the cell."""
    target = estimand.target
    first = (estimand.outcome, estimand.outcome_level)
    if isinstance(target, Product):
        return (first, *((factor.column, factor.level) for factor in target.factors))
    return (first, (target.columns[0], estimand.level))


def list_cells(columns: Sequence[Column]) -> list[Cell]:
    """All of a table of these columns; the last column's level changes first."""
    return list(product(*(range(len(column.levels)) for column in columns)))


def find_cell(estimand: Crossed, columns: Sequence[Column]) -> Cell:
    """The cell that is asked for, of the table's columns in this order."""
    asked = dict(list_margins(estimand))
    return tuple(column.levels.index(asked[column.name] or "") for column in columns)


def name_cell(columns: Sequence[Column], cell: Cell) -> str:
    """Its levels: "stage=II, ward=b"."""
    return ", ".join(f"{c.name}={c.levels[at]}" for c, at in zip(columns, cell, strict=True))


def check_margins(
    check: Checks, estimand: Crossed, known: Mapping[str, Column], broken: Collection[str]
) -> None:
    """Whether the columns are two or three with levels, and each level is one of its column's."""
    target = estimand.target
    if isinstance(target, Spline) or target.columns == (estimand.outcome,):
        remedy = "Name another column, or two of them as a product such as ward[b]:sex[1]"
        check.add(
            "term", "must be the table's other column", value=shown(str(target)), remedy=remedy
        )
        return
    if not isinstance(target, Product) and target.level is not None:
        remedy = f"Write level = {shown(target.level)}"
        check.add("term", "has a level, which stands in a product only", remedy=remedy)
    if isinstance(target, Product) and estimand.level is not None:
        remedy = "A level stands in the product, such as ward[b]:sex[1]"
        check.add("level", "has no meaning for a product", remedy=remedy)
    margins = list_margins(estimand)
    check.distinct("term", [name for name, _ in margins])
    fields = ["outcome_level", *(["term"] * 2 if isinstance(target, Product) else ["level"])]
    sizes = []
    for field, (name, level) in zip(fields, margins, strict=True):
        role = "outcome" if field == "outcome_level" else "term"
        # What is wrong with the outcome is said already.
        found = known.get(name) if role == "outcome" else None
        column = found or find_role(check, role, name, known, broken, LEVEL_KINDS)
        if column is None or column.kind not in LEVEL_KINDS:
            continue
        sizes.append(len(column.levels))
        if level not in column.levels:
            message = f"must say a level of {name!r}: that of the cell"
            refuse_level(check, field, message, level, column.levels)
    if math.prod(sizes) > MOST_CELLS:
        bound, remedy = f"at most {MOST_CELLS}", "Join rare levels in the dictionary"
        check.add(
            "term", "makes too many cells", value=str(math.prod(sizes)), bound=bound, remedy=remedy
        )

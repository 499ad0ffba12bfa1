"""A table of the study of tables that nobody here simulated, and what a study would ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidInput
from penstock.questions.estimands import Estimand
from penstock.schema import Coded, Column, Schema, end_follow_up, follow_suggestions

Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Table:
    """A table in codes, a newcomer's dictionary, and what a study would ask of it.

    Args:
        schema: its first column is the outcome; of a Cox model the second one is the event.
        named: the declared coefficients of one model, ``column`` or ``column=level``.
        products: declared interactions, ``a:b`` of two columns that are named.
        undeclared: interactions that nobody declares, of any two columns.
    """

    rows: Coded
    schema: Schema
    named: tuple[str, ...]
    products: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()
    model: str = "cox"

    @property
    def n(self) -> int:
        return len(self.rows[self.outcome])

    @property
    def outcome(self) -> str:
        """The column whose model it is."""
        return self.schema.names[0]

    @property
    def covariates(self) -> tuple[str, ...]:
        """All other columns but the event."""
        return self.schema.names[2 if self.model == "cox" else 1 :]

    def ask(self, name: str, term: str, adjust: Sequence[str], level: str = "") -> Estimand:
        """One coefficient of the outcome's model."""
        of = (name, self.model, self.outcome, term)
        return Estimand(*of, adjust=tuple(adjust), level=level or None)

    def suggested(self) -> Schema:
        """The dictionary as `site check` suggests it: scales, spikes, decimals."""
        return replace(self.schema, columns=tuple(map(follow_suggestions, self.schema.columns)))

    def take(self, places: Places) -> Table:
        """Some of its rows, each as often as it is named."""
        return replace(self, rows={name: values[places] for name, values in self.rows.items()})


def estimands(table: Table, *, products: bool = False) -> tuple[Estimand, ...]:
    """As a study declares them: each named coefficient, adjusted for the others.

    Args:
        products: the declared interactions, too, each adjusted for all that is named.
    """
    named, asked = [name.partition("=") for name in table.named], []
    for number, (term, _, level) in enumerate(named):
        others = [other for other, _, _ in named if other != term]
        asked.append(table.ask(f"effect{number}", term, others, level))
    if products:
        terms = [term for term, _, _ in named]
        for number, name in enumerate(table.products):
            asked.append(table.ask(f"product{number}", name, terms))
    return tuple(asked)


@cache
def can_declare_products() -> bool:
    """Whether an estimand's term may be an interaction, ``a:b``, in this version of the package."""
    try:
        Estimand("product", "cox", "time", "a:b", adjust=("a", "b"))
    except InvalidInput:
        return False
    return True


def finish(
    coded: Coded,
    schema: Schema,
    named: tuple[str, ...],
    products: tuple[str, ...] = (),
    undeclared: tuple[str, ...] = (),
    model: str = "cox",
) -> Table:
    """What follows the end of follow-up has not happened, and values are as a site takes them."""
    ended = end_follow_up(coded, schema)
    rows = {c.name: c.snap(ended[c.name]) for c in schema.columns}
    return Table(rows, schema, named, products, undeclared, model)


def outcome(upper: float, unit: str, event: str = "death") -> tuple[Column, Column]:
    decimals = 0 if unit in ("weeks", "days", "months") else 2
    time = Column("time", "duration", upper=upper, decimals=decimals, event=event, unit=unit)
    return time, Column(event, "event")


def binary(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "binary") for name in names)

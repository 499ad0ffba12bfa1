"""What a study asks that no regression answers: means, shares, quantiles, counts; of whom.

Estimands that one histogram answers share it and its price: of one column and one subgroup all
shares and counts of levels; all quantiles, and shares and counts beyond thresholds; all times of
one survival; all times until which events are counted; a mean. So do all cells of one table, and
rates until one time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from penstock.questions.contingency import find_cell, list_cells, name_cell
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import read_where
from penstock.questions.models.longitudinal import LongitudinalModel
from penstock.questions.occasions import Time, tell_time
from penstock.questions.terms import find_subgroup
from penstock.schema import LEVEL_KINDS, Coded, Column, Schema

Bools = NDArray[np.bool_]


class Way(StrEnum):
    """By which sums of rows an estimand is answered; as a ledger calls their release."""

    MEAN = "mean"
    LEVELS = "levels"
    DISTRIBUTION = "distribution"
    SURVIVAL = "survival"
    EVENTS = "events"
    RATE = "rate"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Description:
    """Estimands of one column, among the same rows, that the same sums answer.

    Attributes:
        outcome, event: the column, and of a duration its event; crossed: of a table, the columns
            behind the first; compared: those of the subgroup.
        where: the subgroup, as estimands have it; empty: all rows.
        estimands: at least one, in the study's order.
    """

    way: Way
    outcome: Column
    event: Column | None
    crossed: tuple[Column, ...]
    compared: tuple[Column, ...]
    where: str
    estimands: tuple[Estimand, ...]

    @property
    def model(self) -> str:
        """The names of the models that ask, each once."""
        return ", ".join(dict.fromkeys(e.model for e in self.estimands))

    @property
    def columns(self) -> tuple[Column, ...]:
        """Of a table, those that are crossed; else the one."""
        return (self.outcome, *self.crossed)

    @property
    def names(self) -> tuple[str, ...]:
        """Of what is told, one of each estimand; of a table the count of each cell, then each
        one's share."""
        if not self.crossed:
            return tuple(map(_name_told, self.estimands))
        cells = [name_cell(self.columns, cell) for cell in list_cells(self.columns)]
        return (*(f"{cell}: count" for cell in cells), *(f"{cell}: share" for cell in cells))

    @property
    def formula(self) -> str:
        """Of what it is, on one line."""
        where = f" where {self.where}" if self.where else ""
        return f"{':'.join(column.name for column in self.columns)} ~ 1{where}"

    @property
    def asked(self) -> Mapping[str, int]:
        """Of each estimand, by name, its place among what is told."""
        if not self.crossed:
            return {e.name: at for at, e in enumerate(self.estimands)}
        cells = list_cells(self.columns)
        # Another estimand may name the columns in another order.
        places = {e.name: cells.index(find_cell(e, self.columns)) for e in self.estimands}
        return {name: len(cells) + at for name, at in places.items()}

    def find_members(self, coded: Coded, present: Bools) -> Bools:
        """(N,) rows of which all is known that is asked, and that are in the subgroup."""
        there = present & np.isfinite(coded[self.outcome.name])
        for column in (*self.crossed, *(() if self.event is None else (self.event,))):
            there &= np.isfinite(coded[column.name])
        if subgroup := read_where(self.where):
            there &= find_subgroup({c.name: c for c in self.compared}, subgroup, coded)
        return there


def list_descriptions(schema: Schema, estimands: Sequence[Estimand]) -> tuple[Description, ...]:
    """All of a study, in the order in which the estimands first name them."""
    found: dict[tuple[Way, frozenset[str], str, Time | None], list[Estimand]] = {}
    for estimand in estimands:
        if not estimand.regression.compares:
            way = _find_way(schema, estimand)
            columns = frozenset((estimand.outcome, *estimand.target.columns))
            # Time until which rows are followed is added up anew for each end.
            until = estimand.until if way is Way.RATE else None
            found.setdefault((way, columns, estimand.where, until), []).append(estimand)
    return tuple(_make(schema, way, asked) for (way, *_), asked in found.items())


def _find_way(schema: Schema, estimand: Estimand) -> Way:
    model = estimand.regression
    if isinstance(model, LongitudinalModel) and model.crossed:
        return Way.TABLE
    if isinstance(model, LongitudinalModel) and model.rates:
        return Way.RATE
    if model.needs_event:
        return Way.SURVIVAL
    if schema[estimand.outcome].kind == "duration":
        return Way.EVENTS
    if schema[estimand.outcome].kind in LEVEL_KINDS:
        return Way.LEVELS
    beyond = estimand.probability is not None or estimand.threshold is not None
    return Way.DISTRIBUTION if beyond else Way.MEAN


def _make(schema: Schema, way: Way, asked: Sequence[Estimand]) -> Description:
    outcome = schema[asked[0].outcome]
    event = schema[outcome.event] if outcome.kind == "duration" and outcome.event else None
    crossed = tuple(schema[name] for name in asked[0].target.columns if name != outcome.name)
    compared = tuple(schema[comparison.column] for comparison in asked[0].subgroup)
    return Description(way, outcome, event, crossed, compared, asked[0].where, tuple(asked))


def _name_told(estimand: Estimand) -> str:
    """ "sbp: quantile 0.5", "sbp > 140", "stage=III", "time: survival at 5"; of a count with
    ": count" behind it."""
    told = _name_described(estimand)
    return f"{told}: count" if estimand.regression.total else told


def _name_described(estimand: Estimand) -> str:
    outcome = estimand.outcome
    if estimand.probability is not None:
        return f"{outcome}: quantile {estimand.probability:g}"
    if estimand.threshold is not None:
        return f"{outcome} {'>' if estimand.direction == 'above' else '<'} {estimand.threshold:g}"
    if estimand.outcome_level is not None:
        return f"{outcome}={estimand.outcome_level}"
    if estimand.at is not None:
        return f"{outcome}: survival at {tell_time(estimand.at)}"
    model = estimand.regression
    if isinstance(model, LongitudinalModel) and model.ends:
        rate = f": rate per {estimand.per:g}" if model.rates else ""
        return f"{outcome}{rate}{estimand.when}"
    return f"{outcome}: mean"

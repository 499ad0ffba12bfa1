"""What a study asks that no regression answers: means, shares, quantiles, survival; of whom.

Estimands that one histogram answers share it and its price: of one column and one subgroup all
shares of levels; all quantiles and shares beyond thresholds; all times of one survival; a mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from penstock.questions.estimands import Estimand
from penstock.questions.grammar import read_where
from penstock.questions.occasions import tell_time
from penstock.questions.terms import find_subgroup
from penstock.schema import LEVEL_KINDS, Coded, Column, Schema

Bools = NDArray[np.bool_]


class Way(StrEnum):
    """By which sums of rows an estimand is answered; as a ledger calls their release."""

    MEAN = "mean"
    LEVELS = "levels"
    DISTRIBUTION = "distribution"
    SURVIVAL = "survival"


@dataclass(frozen=True, slots=True)
class Description:
    """Estimands of one column, among the same rows, that the same sums answer.

    Attributes:
        outcome, event: the column, and of a duration its event; compared: those of the subgroup.
        where: the subgroup, as estimands have it; empty: all rows.
        estimands: at least one, in the study's order.
    """

    way: Way
    outcome: Column
    event: Column | None
    compared: tuple[Column, ...]
    where: str
    estimands: tuple[Estimand, ...]

    @property
    def model(self) -> str:
        """The names of the models that ask, each once."""
        return ", ".join(dict.fromkeys(e.model for e in self.estimands))

    @property
    def names(self) -> tuple[str, ...]:
        """Of what is told, one of each estimand."""
        return tuple(map(_name_told, self.estimands))

    @property
    def formula(self) -> str:
        """Of what it is, on one line."""
        where = f" where {self.where}" if self.where else ""
        return f"{self.outcome.name} ~ 1{where}"

    @property
    def asked(self) -> Mapping[str, int]:
        """Of each estimand, by name, its place among what is told."""
        return {e.name: at for at, e in enumerate(self.estimands)}

    def find_members(self, coded: Coded, present: Bools) -> Bools:
        """(N,) rows of which all is known that is asked, and that are in the subgroup."""
        there = present & np.isfinite(coded[self.outcome.name])
        if self.event is not None:
            there &= np.isfinite(coded[self.event.name])
        if subgroup := read_where(self.where):
            there &= find_subgroup({c.name: c for c in self.compared}, subgroup, coded)
        return there


def list_descriptions(schema: Schema, estimands: Sequence[Estimand]) -> tuple[Description, ...]:
    """All of a study, in the order in which the estimands first name them."""
    found: dict[tuple[Way, str, str], list[Estimand]] = {}
    for estimand in estimands:
        if not estimand.regression.compares:
            way = _find_way(schema, estimand)
            found.setdefault((way, estimand.outcome, estimand.where), []).append(estimand)
    return tuple(_make(schema, way, asked) for (way, _, _), asked in found.items())


def _find_way(schema: Schema, estimand: Estimand) -> Way:
    if estimand.regression.needs_event:
        return Way.SURVIVAL
    if schema[estimand.outcome].kind in LEVEL_KINDS:
        return Way.LEVELS
    beyond = estimand.probability is not None or estimand.threshold is not None
    return Way.DISTRIBUTION if beyond else Way.MEAN


def _make(schema: Schema, way: Way, asked: Sequence[Estimand]) -> Description:
    outcome = schema[asked[0].outcome]
    event = schema[outcome.event] if way is Way.SURVIVAL and outcome.event else None
    compared = tuple(schema[comparison.column] for comparison in asked[0].subgroup)
    return Description(way, outcome, event, compared, asked[0].where, tuple(asked))


def _name_told(estimand: Estimand) -> str:
    """ "sbp: median", "sbp > 140", "stage=III", "time: survival at 5"."""
    outcome = estimand.outcome
    if estimand.probability is not None:
        return f"{outcome}: quantile {estimand.probability:g}"
    if estimand.threshold is not None:
        return f"{outcome} {'>' if estimand.direction == 'above' else '<'} {estimand.threshold:g}"
    if estimand.outcome_level is not None:
        return f"{outcome}={estimand.outcome_level}"
    if estimand.at is not None:
        return f"{outcome}: survival at {tell_time(estimand.at)}"
    return f"{outcome}: mean"

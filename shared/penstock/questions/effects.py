"""Effects that are planted on request: the coefficient of a column, or of a product of two.

A study asks for them in words, ``"years ~ age:smoker"``: the outcome, then the columns, a level of
a categorical one behind ``=``. What estimands ask for are effects, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.base.checks import NAME, nearest, shown
from penstock.base.errors import Problem
from penstock.questions.estimands import COVARIATES, Estimand
from penstock.schema import Coded, Column, Floats

FORM = "outcome ~ column, or outcome ~ column:column; column=level of a categorical one"
_LONGEST = 300
_FACTOR = re.compile(rf"({NAME.pattern})(?:=([^:=~]{{1,64}}))?")


@dataclass(frozen=True, slots=True)
class Factor:
    """A column; of a categorical one a level, against all others."""

    column: str
    level: str | None = None

    @property
    def text(self) -> str:
        return self.column if self.level is None else f"{self.column}={self.level}"

    def read(self, column: Column, coded: Coded) -> Floats:
        """Its values: numbers as they are, a level as 0/1; NaN where missing."""
        values = coded[self.column]
        if self.level is None:
            return values
        there = (values == column.levels.index(self.level)).astype(np.float64)
        return np.where(np.isnan(values), np.nan, there)


@dataclass(frozen=True, slots=True)
class Effect:
    """What a coefficient says: an outcome, and what it changes with; a product of two or one."""

    outcome: str
    factors: tuple[Factor, ...]

    @property
    def term(self) -> str:
        return ":".join(factor.text for factor in self.factors)

    @property
    def text(self) -> str:
        """As a study writes it."""
        return f"{self.outcome} ~ {self.term}"


def read_effect(text: object) -> Effect | None:
    """An effect as a study writes it; None where it is none."""
    if not (isinstance(text, str) and len(text) <= _LONGEST):
        return None
    outcome, _, term = (part.strip() for part in text.partition("~"))
    found = [_FACTOR.fullmatch(part.strip()) for part in term.split(":")]
    factors = tuple(Factor(match[1], match[2]) for match in found if match is not None)
    if not NAME.fullmatch(outcome) or len(factors) < len(found) or len(factors) > 2:
        return None
    return Effect(outcome, factors)


def effect_of(estimand: Estimand) -> Effect:
    """What an estimand asks for."""
    names = estimand.term.split(":")
    levels = [estimand.level] if len(names) == 1 else [None] * len(names)
    return Effect(estimand.outcome, tuple(map(Factor, names, levels)))


def tell_effects(effects: Sequence[Effect]) -> str:
    """A few of them, for a line."""
    first = ", ".join(effect.text for effect in effects[:3])
    return first if len(effects) <= 3 else f"{first} and {len(effects) - 3} more"


def find_effect_problems(effect: Effect, columns: Sequence[Column], where: str) -> list[Problem]:
    """Whether its columns exist, and suit."""
    known: Mapping[str, Column] = {column.name: column for column in columns}
    problems = []

    def add(message: str, value: str, bound: str | None = None, remedy: str | None = None) -> None:
        problems.append(Problem(where, message, value=shown(value), bound=bound, remedy=remedy))

    own = {effect.outcome, known[effect.outcome].event if effect.outcome in known else None}
    for factor in effect.factors:
        column = known.get(factor.column)
        if column is None:
            add("is not a column of the study", factor.column, remedy=nearest(factor.column, known))
        elif factor.column in own or column.kind not in COVARIATES:
            bound = f"another column than the outcome's, of kind {', '.join(COVARIATES)}"
            add("cannot be a covariate of this outcome", factor.column, bound)
        elif column.kind == "categorical" and factor.level not in column.levels[1:]:
            levels = ", ".join(f"{column.name}={level}" for level in column.levels[1:])[:200]
            add("needs a level other than the first", factor.text, f"one of {levels}")
        elif column.kind != "categorical" and factor.level is not None:
            add("is not categorical, and has no levels to choose", factor.text, factor.column)
    if len({factor.column for factor in effect.factors}) < len(effect.factors):
        add("is the product of a column with itself", effect.term, "two different columns")
    return problems

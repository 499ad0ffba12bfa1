"""Effects that are planted on request: the coefficient of a column, or of a product of two.

A study asks for them in words, ``"years ~ age:smoker"``: the outcome, then what an estimand could
have as its term (:mod:`penstock.questions.grammar`), of a subgroup behind ``where``. What estimands
ask for are effects, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.base.checks import NAME, shown
from penstock.base.errors import InvalidInput, Problem
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Factor, Product, read_regressor, read_where
from penstock.questions.models import MODELS
from penstock.questions.suitability import estimand_problems
from penstock.questions.terms import find_subgroup
from penstock.schema import Coded, Column, Floats, Schema

Bools = NDArray[np.bool_]

FORM = "outcome ~ column, or outcome ~ column:column; column[level] of a categorical one"
_LONGEST = 900


@dataclass(frozen=True, slots=True)
class Effect:
    """What a coefficient says.

    Args:
        factors: a column, or two whose product it is; of a categorical one with a level.
        where: of which rows, as an estimand has it; empty: of all.
    """

    outcome: str
    factors: tuple[Factor, ...]
    where: str = ""

    @property
    def text(self) -> str:
        """As a study writes it."""
        term = ":".join(map(str, self.factors))
        return f"{self.outcome} ~ {term}" + (f" where {self.where}" if self.where else "")

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(factor.column for factor in self.factors)


def read_effect(text: object) -> Effect:
    """An effect as a study writes it.

    Raises:
        InvalidInput: it is none, with what could be done.

    Example:
        >>> read_effect("years ~ ward[b]:age where sex == 'F'").columns
        ('ward', 'age')
    """
    if not (isinstance(text, str) and len(text) <= _LONGEST):
        raise InvalidInput("effect", [Problem("", "is none", value=shown(text), bound=FORM)])
    outcome, _, rest = text.partition("~")
    term, _, where = rest.partition(" where ")
    found = read_regressor(term)
    if not NAME.fullmatch(outcome.strip()) or not isinstance(found, Factor | Product):
        raise InvalidInput("effect", [Problem("", "is none", value=shown(text), bound=FORM)])
    where = " and ".join(map(str, read_where(where)))
    return Effect(outcome.strip(), _in_order(found), where)


def effect_of(estimand: Estimand) -> Effect:
    """What an estimand of a regression asks for."""
    target = estimand.target
    if not isinstance(target, Product):
        target = Factor(estimand.term, estimand.level)
    return Effect(estimand.outcome, _in_order(target), estimand.where)


def _in_order(regressor: Factor | Product) -> tuple[Factor, ...]:
    """Which of two stands first says nothing."""
    factors = regressor.factors if isinstance(regressor, Product) else (regressor,)
    return tuple(sorted(factors, key=lambda factor: factor.column))


def pose_effect(effect: Effect, columns: Sequence[Column], asked: Sequence[Estimand]) -> Estimand:
    """A requested effect as an estimand: by the model of its outcome's estimands, adjusted for
    what these name.

    Raises:
        InvalidInput: no regression is of such an outcome.
    """
    alike = [e for e in asked if e.outcome == effect.outcome and e.regression.compares]
    kind = next((column.kind for column in columns if column.name == effect.outcome), "")
    # Of which level of an outcome an effect would be, estimands say.
    suited = [m for m in MODELS if m.compares and kind in m.outcomes and not m.names_level]
    if not alike and not suited:
        problem = Problem("", "has an outcome without a regression", value=effect.outcome)
        raise InvalidInput("effect", [problem])
    exposure = alike[0].exposure if alike else ""
    named = dict.fromkeys(name for e in alike for name in e.covariates)
    single = len(effect.factors) == 1
    return Estimand(
        "requested",
        alike[0].model if alike else suited[0].name,
        effect.outcome,
        effect.factors[0].column if single else ":".join(map(str, effect.factors)),
        adjust=tuple(name for name in named if name not in (*effect.columns, exposure)),
        level=effect.factors[0].level if single else None,
        where=effect.where,
        exposure=exposure,
        outcome_level=alike[0].outcome_level if alike else None,
    )


def find_effect_problems(
    effect: Effect, columns: Sequence[Column], asked: Sequence[Estimand]
) -> list[Problem]:
    """Whether a requested effect's columns exist, and suit."""
    try:
        return estimand_problems(pose_effect(effect, columns, asked), columns)
    except InvalidInput as error:
        return list(error.problems)


def read_factor(schema: Schema, factor: Factor, coded: Coded) -> Floats:
    """A factor's values: numbers as they are, a level as 0/1; NaN where missing."""
    column, values = schema[factor.column], coded[factor.column]
    if factor.level is None:
        return values
    there = (values == column.levels.index(factor.level)).astype(np.float64)
    return np.where(np.isnan(values), np.nan, there)


def find_rows(schema: Schema, effect: Effect, coded: Coded) -> Bools:
    """(n,) of which rows an effect is."""
    if not effect.where:
        return np.ones(len(next(iter(coded.values()))), dtype=np.bool_)
    compared = read_where(effect.where)
    columns = {comparison.column: schema[comparison.column] for comparison in compared}
    return find_subgroup(columns, compared, coded)


def tell_effects(effects: Sequence[Effect]) -> str:
    """A few of them, for a line."""
    first = ", ".join(effect.text for effect in effects[:3])
    return first if len(effects) <= 3 else f"{first} and {len(effects) - 3} more"

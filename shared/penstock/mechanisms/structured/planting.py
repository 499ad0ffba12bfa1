r"""Effects that are planted into a released model, to see what of them comes back.

To the linear predictor of each outcome's law, of everybody, is added

.. math:: \sum_j x_{ij} Δ_j z_j,

z_j the effect's column (or product of two), standardised among persons of the released model;
x_ij = ±1 or ±2, public (:mod:`penstock.mechanisms.planted`); Δ_j so many standard errors that one
table's coefficient would have without privacy, by its number of rows and what each tells.
All of it is made from the released model: post-processing, and free. The effects are of the
model's own persons: what is lost by clipping tails that the model does not have is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.planted import choose_sizes
from penstock.questions.effects import Effect, find_rows, read_factor
from penstock.questions.grammar import Factor
from penstock.schema import Coded, Schema

if TYPE_CHECKING:
    from penstock.mechanisms.structured.declared import Drawn
    from penstock.mechanisms.structured.run import Outcome

Array = NDArray[np.float64]

STANDARD_ERRORS = 2.5
"""Δ, so that the slope of what comes back is known to about ± .1 after 12 runs (±2 in half of them)
where the mechanism adds twice as much variance as sampling."""

_MOST = 0.75
"""All effects together move a linear predictor by so many sds of a person at most: what is planted
is to be an effect that the model's own could have."""

_LEAST_OWN = 0.05
"""Of a column's variance that others do not explain: more is not planted for collinear ones."""

_LEAST_SPREAD = 1e-6
_FURTHEST = 8.0
"""Standardised columns are cut here, so that one person's hazard does not become everybody's."""


@dataclass(frozen=True, slots=True)
class _Regressor:
    """A column, or a product of two, standardised; missing values count as the mean, and outside
    of a subgroup nothing is.

    Args:
        scales: mean and sd of each factor; scale: of the product of standardised factors.
    """

    schema: Schema
    effect: Effect
    scales: tuple[tuple[float, float], ...]
    scale: tuple[float, float]

    @classmethod
    def of(cls, schema: Schema, effect: Effect, persons: Coded) -> _Regressor:
        inside = find_rows(schema, effect, persons)
        values = [read_factor(schema, factor, persons)[inside] for factor in effect.factors]
        raw = cls(schema, effect, tuple(map(_scale_of, values)), (0.0, 1.0))
        return cls(schema, effect, raw.scales, _scale_of(raw._multiply(persons)[inside]))

    def __call__(self, persons: Coded) -> Array:
        found = (self._multiply(persons) - self.scale[0]) / self.scale[1]
        known = find_rows(self.schema, self.effect, persons) & ~np.isnan(found)
        return np.asarray(np.clip(np.where(known, found, 0.0), -_FURTHEST, _FURTHEST))

    def _multiply(self, persons: Coded) -> Array:
        product = np.ones(len(next(iter(persons.values()))))
        for factor, (mean, sd) in zip(self.effect.factors, self.scales, strict=True):
            product = product * ((read_factor(self.schema, factor, persons) - mean) / sd)
        return product


@dataclass(frozen=True, slots=True)
class Planting:
    """What is added in each run, by outcome: columns with their Δ x_i."""

    by_outcome: Mapping[str, Sequence[tuple[_Regressor, Array]]]

    def add(self, run: int, outcome: str, persons: Coded) -> Array | None:
        """To each person's linear predictor, in planted run ``run`` (from 1); None: nothing."""
        planted = self.by_outcome.get(outcome, ())
        if not planted:
            return None
        return np.asarray(sum(sizes[run - 1] * column(persons) for column, sizes in planted))


def make_planting(
    effects: Sequence[Effect],
    runs: int,
    schema: Schema,
    persons: Coded,
    outcomes: Sequence[tuple[Drawn, Outcome]],
    rows: float,
) -> Planting:
    """How large each effect is in each run, by what was released.

    Args:
        persons: drawn from the released model, by whom columns are standardised.
        outcomes: each as planned, with its model; rows: of a table, about.
    """
    found = {}
    for drawn, outcome in outcomes:
        own = [effect for effect in effects if effect.outcome == drawn.column]
        if not own:
            continue
        columns = [_Regressor.of(schema, effect, persons) for effect in own]
        told = rows * max(outcome.model.inform(outcome.parameters), 1e-9)
        shares = [
            _own_share(column, _list_others(schema, drawn, effect), persons)
            for effect, column in zip(own, columns, strict=True)
        ]
        each = STANDARD_ERRORS / np.sqrt(told * np.array(shares))
        # Of the larger size, all together.
        fewer = min(1.0, _MOST / (2 * float(np.sqrt(each @ each))))
        sizes = choose_sizes(runs, len(own)) * (each * fewer * outcome.model.unit)[:, None]
        found[drawn.column] = list(zip(columns, sizes, strict=True))
    return Planting(found)


def _list_others(schema: Schema, drawn: Drawn, effect: Effect) -> list[Effect]:
    """What else is in the regression: what is declared of the outcome, and a product's columns."""
    names = [*drawn.terms, *drawn.adjusted]
    if len(effect.factors) > 1:
        names += effect.columns
    found: dict[tuple[Factor, ...], None] = {}
    for column in (schema[name] for name in dict.fromkeys(names)):
        levels = column.levels[1:] if column.kind == "categorical" else (None,)
        found |= dict.fromkeys((Factor(column.name, level),) for level in levels)
    found.pop(effect.factors, None)
    return [Effect(effect.outcome, factors, effect.where) for factors in found]


def _own_share(column: _Regressor, others: Sequence[Effect], persons: Coded) -> float:
    """How much of everybody's information is the column's own: what the regression's other columns
    do not explain of it, among the rows that it is of."""
    z, inside = column(persons), find_rows(column.schema, column.effect, persons)
    rest = [_Regressor.of(column.schema, effect, persons)(persons) for effect in others]
    design = np.column_stack([inside.astype(np.float64), *rest])
    fitted, *_ = np.linalg.lstsq(design, z, rcond=None)
    return min(max(float(np.mean((z - design @ fitted) ** 2)), _LEAST_OWN), 1.0)


def _scale_of(values: Array) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    if not len(known):
        return 0.0, 1.0
    return float(known.mean()), max(float(known.std()), _LEAST_SPREAD * (1 + abs(known.mean())))

r"""Effects that are planted into a released model, to see what of them comes back.

To the linear predictor of each outcome's law, of everybody, is added

.. math:: \sum_j x_{ij} Δ_j z_j,

z_j the effect's column (or product of two), standardised among persons of the released population;
x_ij = ±1 or ±2, public (:mod:`penstock.mechanisms.planted`); Δ_j so many standard errors that one
site's coefficient would have without privacy, by the released number of rows and what each tells.
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
from penstock.mechanisms.structured.population import Population, quasi_random
from penstock.questions.effects import Effect, Factor
from penstock.schema import Coded, Schema

if TYPE_CHECKING:
    from penstock.mechanisms.structured.plan import Drawn
    from penstock.mechanisms.structured.run import Outcome

Array = NDArray[np.float64]

STANDARD_ERRORS = 2.5
"""Δ, so that the slope of what comes back is known to about ± .1 after 12 runs (±2 in half of them)
where the mechanism adds as much variance as sampling."""

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
    """A column, or a product of two, standardised; missing values count as the mean.

    Args:
        scales: (2,) mean and sd of each factor; scale: of the product of standardised factors.
    """

    schema: Schema
    factors: tuple[Factor, ...]
    scales: tuple[tuple[float, float], ...]
    scale: tuple[float, float]

    @classmethod
    def of(cls, schema: Schema, factors: tuple[Factor, ...], persons: Coded) -> _Regressor:
        values = [_factor(schema, factor, persons) for factor in factors]
        raw = cls(schema, factors, tuple(map(_scale_of, values)), (0.0, 1.0))
        scale = _scale_of(raw(persons))
        return cls(schema, factors, raw.scales, scale)

    def __call__(self, persons: Coded) -> Array:
        product = np.ones(len(next(iter(persons.values()))))
        for factor, (mean, sd) in zip(self.factors, self.scales, strict=True):
            product = product * ((_factor(self.schema, factor, persons) - mean) / sd)
        found = (product - self.scale[0]) / self.scale[1]
        return np.asarray(np.clip(np.where(np.isnan(found), 0.0, found), -_FURTHEST, _FURTHEST))


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
    population: Population,
    outcomes: Sequence[tuple[Drawn, Outcome]],
    rows: float,
    power: int,
) -> Planting:
    """How large each effect is in each run, by what was released.

    Args:
        outcomes: each as planned, with its model; rows: how many were present, as released.
        power: 2^power quasi-random persons are looked at.
    """
    persons = population.draw(quasi_random(population.latents, power))
    found = {}
    for drawn, outcome in outcomes:
        own = [effect for effect in effects if effect.outcome == drawn.column]
        if not own:
            continue
        columns = [_Regressor.of(schema, effect.factors, persons) for effect in own]
        told = rows * max(outcome.model.information(outcome.parameters), 1e-9)
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


def _list_others(schema: Schema, drawn: Drawn, effect: Effect) -> list[tuple[Factor, ...]]:
    """What else is in the regression: what is declared of the outcome, and a product's columns."""
    names = [name for term in (*drawn.terms, *drawn.adjusted) for name in term.split(":")]
    if len(effect.factors) > 1:
        names += [factor.column for factor in effect.factors]
    found: dict[tuple[Factor, ...], None] = {}
    for column in (schema[name] for name in dict.fromkeys(names)):
        levels = column.levels[1:] if column.kind == "categorical" else (None,)
        found |= dict.fromkeys((Factor(column.name, level),) for level in levels)
    found.pop(effect.factors, None)
    return list(found)


def _own_share(column: _Regressor, others: Sequence[tuple[Factor, ...]], persons: Coded) -> float:
    """The share of a column's variance that the regression's other columns do not explain."""
    z = column(persons)
    rest = [_Regressor.of(column.schema, factors, persons)(persons) for factors in others]
    design = np.column_stack([np.ones(len(z)), *rest])
    fitted, *_ = np.linalg.lstsq(design, z, rcond=None)
    return min(max(float(np.mean((z - design @ fitted) ** 2)), _LEAST_OWN), 1.0)


def _factor(schema: Schema, factor: Factor, persons: Coded) -> Array:
    return np.asarray(factor.read(schema[factor.column], persons))


def _scale_of(values: Array) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    if not len(known):
        return 0.0, 1.0
    return float(known.mean()), max(float(known.std()), _LEAST_SPREAD * (1 + abs(known.mean())))

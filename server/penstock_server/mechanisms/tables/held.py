"""What a site's planted runs show of each effect: estimates before and after, and their slope."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.planted import choose_sizes
from penstock.mechanisms.registry import MECHANISMS
from penstock.mechanisms.released import Kind, name_planted, name_recovered
from penstock.questions.effects import Effect, effect_of
from penstock.questions.estimands import Estimand
from penstock.questions.models import MODELS
from penstock.schema import LARGEST, Coded, Column, Schema
from penstock.study.study import Study
from penstock_server.analysis.estimation import estimate
from penstock_server.analysis.slopes import Held, Slope, find_slope
from penstock_server.mechanisms.delivery import Upload

Array = NDArray[np.float64]


def measure_held(study: Study, upload: Upload) -> Held | None:
    """The slopes of a release; None where it has no planted runs."""
    mechanism, schema = MECHANISMS.of(study.mechanism), study.schema
    runs = len(mechanism.shape(study.asked, 1).of_kind(Kind.PLANTED))
    effects = mechanism.list_effects(study.asked)
    if not runs or not effects:
        return None
    numbers = range(1, runs + 1)
    before = [upload.coded(name_planted(i), schema) for i in numbers]
    after = [upload.coded(name_recovered(i), schema) for i in numbers]
    sizes: dict[Effect, Array] = {}
    for outcome in dict.fromkeys(effect.outcome for effect in effects):
        own = [effect for effect in effects if effect.outcome == outcome]
        sizes |= dict(zip(own, choose_sizes(runs, len(own)), strict=True))

    def look(effect: Effect, question: Question) -> Slope:
        seen = [list(map(question.estimate, tables)) for tables in (before, after)]
        return find_slope(sizes[effect], *seen)

    declared = {
        e.name: look(effect, Question(schema, e))
        for e in study.estimands
        if e.regression.compares and (effect := effect_of(e)) in sizes
    }
    asked = {effect_of(e) for e in study.estimands if e.regression.compares}
    requested = {
        effect.text: look(effect, pose(effect, schema, study.estimands))
        for effect in effects
        if effect not in asked
    }
    return Held(declared, requested)


@dataclass(frozen=True, slots=True)
class Question:
    """An estimand over tables that may need a column more: a product.

    Args:
        schema: with that column; product: its name, and of what.
    """

    schema: Schema
    estimand: Estimand
    product: tuple[str, Effect] | None = None

    def estimate(self, table: Coded) -> float:
        """The coefficient; NaN where there is none."""
        if self.product is not None:
            name, effect = self.product
            factors = [f.read(self.schema[f.column], table) for f in effect.factors]
            table = {**table, name: np.prod(factors, axis=0)}
        return estimate(table, self.schema, self.estimand).estimate


def pose(effect: Effect, schema: Schema, estimands: tuple[Estimand, ...]) -> Question:
    """A requested effect as a question: adjusted for what the outcome's estimands name, and a
    product for its columns."""
    alike = [e for e in estimands if e.outcome == effect.outcome and e.regression.compares]
    model = alike[0].model if alike else _choose_model(schema[effect.outcome])
    named = [name for e in alike for name in e.covariates if name in schema.names]
    columns = [factor.column for factor in effect.factors]
    given = partial(Estimand, "requested", model, effect.outcome)
    if len(columns) == 1:
        adjust = tuple(dict.fromkeys(name for name in named if name != columns[0]))
        return Question(schema, given(columns[0], adjust=adjust, level=effect.factors[0].level))
    name = "product"
    while name in schema.names:
        name += "-"
    wide = Column(name, "continuous", lower=-LARGEST, upper=LARGEST)
    adjust = tuple(dict.fromkeys([*named, *columns]))
    more = replace(schema, columns=(*schema.columns, wide))
    return Question(more, given(name, adjust=adjust), (name, effect))


def _choose_model(outcome: Column) -> str:
    """The model of an outcome of which no estimand is: the first draft that suits its kind."""
    suited = [m for m in MODELS if m.compares and outcome.kind in m.outcomes]
    return min(suited, key=lambda m: math.inf if m.draft is None else m.draft).name

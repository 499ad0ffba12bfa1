"""What a site's planted runs show of each effect: estimates before and after, and their slope."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from penstock.inference.slopes import Held, Slope, find_slope
from penstock.mechanisms.planted import choose_sizes
from penstock.mechanisms.registry import MECHANISMS
from penstock.mechanisms.released import Kind, name_copy, name_planted, name_recovered
from penstock.questions.effects import Effect, effect_of, pose_effect
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.study.study import Study
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

    coarse = mechanism.list_coarse(study.asked, upload.coded(name_copy(1), schema))

    def look(effect: Effect, estimand: Estimand) -> Slope:
        seen = [
            [estimate(table, schema, estimand).estimate for table in tables]
            for tables in (before, after)
        ]
        own = tuple(name for name in coarse if name in effect.columns)
        return replace(find_slope(sizes[effect], *seen), coarse=own)

    # A standardised risk or a time ratio moves with the coefficient that was planted.
    asked = {e.name: effect_of(e) for e in study.estimands if e.regression.contrasts}
    declared = {
        e.name: look(asked[e.name], e) for e in study.estimands if asked.get(e.name) in sizes
    }
    requested = {
        effect.text: look(effect, pose_effect(effect, schema.columns, study.estimands))
        for effect in effects
        if effect not in asked.values()
    }
    return Held(declared, requested)

"""What comes back of effects that were planted into a structured release: all of a declared one,
and nothing of an interaction that the model does not have.

With next to no noise, so that it is the model that is seen. Seeds are fixed: no alarm is by chance.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from tests.statistical.test_structured_tables import HAZARD, SCHEMA, cohort
from tests.support import made
from tests.support.carried_out import release

from penstock.inference.slopes import Held, Mark
from penstock.mechanisms import Structured
from penstock.mechanisms.plans import plan
from penstock.mechanisms.planted import choose_sizes
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.effects import pose_effect
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema.encoding import Encoding
from penstock.study.study import Study
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.tables.held import measure_held

N, RUNS, INTERACTION, WARD = 600, 8, "time ~ sbp:smoker", "time ~ ward[s]"
ASKED = Structured(copies=1, refits=0, planted=RUNS, effects=(INTERACTION, WARD))
PRODUCT = Estimand("product", "cox", "time", "sbp:smoker", per=10.0, adjust=("age",))
OLDER = Estimand("older", "cox", "time", "sbp", per=10.0, where="age >= 50")
TIME_RATIO = Estimand("ratio", "weibull", "time", "sbp", per=10.0, adjust=HAZARD.adjust)
OTHER_RATIO = Estimand("other", "weibull", "time", "age", per=10.0, adjust=("sbp",))


def asked(*estimands: Estimand) -> Study:
    given = {"schema": SCHEMA, "estimands": estimands or (HAZARD,)}
    return made.study(ASKED, **given, privacy=PrivacyRequest(1000.0, 1e-5))


@cache
def parts(*estimands: Estimand) -> dict[str, dict[str, np.ndarray]]:
    """The release of a site, by part."""
    study, encoding = asked(*estimands), Encoding(SCHEMA)
    real = {name: values[:N] for name, values in cohort(4).items()}
    rows, present = encoding.encode(real, np.random.default_rng(1))
    planned = plan(ASKED, SCHEMA, N, study.privacy, study.estimands)
    given = (encoding, rows[:, None], present[:, None], SeededNoise(2))
    return {part.name: dict(part.columns) for part in release(ASKED, planned, *given)}


@cache
def held(*estimands: Estimand, swapped: bool = False) -> Held:
    """What a coordinator makes of it; ``swapped``: of a site that sends back what it planted."""
    study, found = asked(*estimands), parts(*estimands)
    form = {part.name: part for part in made.shape_of(study, N).parts}
    sent = {name: found[name.replace("recovered", "planted") if swapped else name] for name in form}
    tables = {name: form[name].table(columns) for name, columns in sent.items()}
    seen = measure_held(study, Upload("north", made.manifest(study, b"", persons=N), tables))
    assert seen is not None
    return seen


def test_a_declared_effect_comes_back() -> None:
    slope = held().estimands["hazard"]
    assert slope.runs == RUNS
    assert abs(slope.slope - 1) < 0.2
    assert slope.slope_error < 0.15
    assert slope.mark is Mark.HELD


def test_so_does_a_time_ratio_of_what_was_planted_and_of_another_column_nothing_is_said() -> None:
    """It moves with the hazard's coefficient; by itself it has none to plant."""
    slope = held(HAZARD, TIME_RATIO, OTHER_RATIO).estimands["ratio"]
    assert abs(slope.slope - 1) < 0.2
    assert slope.mark is Mark.HELD
    assert "other" not in held(HAZARD, TIME_RATIO, OTHER_RATIO).estimands


def test_an_interaction_does_not() -> None:
    slope = held().requested[INTERACTION]
    assert abs(slope.slope) < 0.3
    assert slope.mark is Mark.UNSUPPORTED


def test_an_interaction_that_is_declared_comes_back_and_so_does_an_effect_in_a_subgroup() -> None:
    found = held(PRODUCT, OLDER)
    assert INTERACTION not in found.requested
    for name in ("product", "older"):
        slope = found.estimands[name]
        assert abs(slope.slope - 1) < 0.3, name
        assert slope.mark is Mark.HELD, name


def test_a_procedure_that_gives_back_what_it_gets_has_slope_one() -> None:
    found = held(swapped=True)
    for slope in (found.estimands["hazard"], *found.requested.values()):
        assert slope.slope == 1 or abs(slope.slope - 1) < 1e-9
        assert slope.mark is Mark.HELD


def test_effects_are_planted_as_large_as_was_meant() -> None:
    """By ±1 and ±2 times about two and a half standard errors: the planted tables show it."""
    schema, study = SCHEMA, asked()
    effects = ASKED.list_effects(SCHEMA, study.estimands)
    sizes = choose_sizes(RUNS, len(effects))
    tables = [parts()[f"planted/{i + 1}"] for i in range(RUNS)]
    questions = [HAZARD, *(pose_effect(e, schema.columns, (HAZARD,)) for e in effects[1:])]
    error = estimate(parts()["tables/copy-1"], schema, HAZARD).variance ** 0.5
    for row, effect, question in zip(sizes, effects, questions, strict=True):
        found = np.array([estimate(table, schema, question).estimate for table in tables])
        each = float(row @ found / (row @ row))
        assert each > 0, effect
        if effect is effects[0]:
            assert 1.5 < each / error < 4, effect

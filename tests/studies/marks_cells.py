"""The cells of the study of marks, and what is measured in each of them with one seed.

Frozen by a commit before the first run on frozen generators, as ``VERSION``: cells, seeds, effects,
sizes and what is measured. Whoever changes one of them counts the version up and says here why.

1. November 2026: as first run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import hadamard
from tests.studies import foreign_generators
from tests.studies.foreign_arms import seed_of
from tests.studies.foreign_generators import FROZEN, TUNING
from tests.studies.foreign_tables import Table, binary, estimands, finish
from tests.studies.kept import RELEASED, Answer, Store
from tests.support import made
from tests.support.delivered import deliver

from penstock.inference.pooling import quantile
from penstock.inference.refits import widen_sites
from penstock.inference.slopes import Mark
from penstock.mechanisms import Structured
from penstock.mechanisms.released import name_copy
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.effects import (
    Effect,
    effect_of,
    find_rows,
    pose_effect,
    read_effect,
    read_factor,
)
from penstock.questions.estimands import Estimand
from penstock.questions.estimation import estimate
from penstock.schema import Coded, Column
from penstock.study.study import Study
from penstock_server.mechanisms.registry import kind_of
from penstock_server.mechanisms.tables.held import measure_held

Array = NDArray[np.float64]

VERSION = 1

REQUESTED: Mapping[str, tuple[str, ...]] = {
    "weibull": ("age:treated", "crp:nodes", "sbp", "age where age > 65"),
    "log-normal": ("hgb:age", "creatinine:diabetes", "ferritin", "hgb where hgb < 11"),
    "thresholds": ("age:male", "bmi", "bmi where bmi > 30", "glucose where glucose > 140"),
    "crossing": ("surgery:age", "frail:marker", "platelets", "age where age > 70"),
    "leaving": ("therapy:cd4", "age:rural", "income", "cd4 where cd4 < 200"),
    "rare": ("exposed:smoker", "age:family", "dose", "age where age > 50"),
    "interactions": ("diabetes:bmi", "treated:smoker", "creatinine", "age where age > 70"),
    "cured": ("therapy:margin", "size:stage", "marker", "size where size > 25"),
    "t-weibull": ("beta:nyha", "age:ef", "sodium", "ef where ef < 40"),
    "t-tails": ("icu:age", "troponin:sofa", "urea", "age where age > 70"),
    "t-shapes": ("drug:age", "packs:age", "sleep", "packs where packs > 10"),
    "t-waning": ("vaccine:age", "crowded:contacts", "antibody", "age where age > 60"),
    "t-drop-outs": ("trial:age", "bilirubin:albumin", "copper", "albumin where albumin < 3.3"),
    "t-seldom": ("urgent:age", "asa:open", "minutes", "age where age > 70"),
    "t-modifiers": ("frail:female", "drug:age", "weight", "egfr where egfr < 60"),
}
"""What a study asks to be tried beside what it declares: interactions, a column that no estimand
names, and the part of a straight line that lies beyond a threshold."""

TITRE = Column("titre", "continuous", 0, 1_000_000, 0, unit="U/ml", label="Titre")


@dataclass(frozen=True, slots=True)
class Cell:
    """A study of one generator's tables at one site.

    Args:
        plain: by a newcomer's dictionary; else with what `site check` suggests.
        tail: sd of the logarithm of a column that is declared, too; 0: there is none.
    """

    table: str
    n: int = 3000
    epsilon: float = 3.0
    plain: bool = False
    tail: float = 0.0

    def __str__(self) -> str:
        plain = ", plain" if self.plain else ""
        tail = f", tail {self.tail:g}" if self.tail else ""
        return f"{self.table} (n = {self.n}), ε = {self.epsilon:g}{plain}{tail}"


CELLS = (
    Cell("weibull"),
    Cell("weibull", plain=True, tail=1.5),
    Cell("log-normal"),
    Cell("log-normal", epsilon=1.0, plain=True, tail=1.8),
    Cell("thresholds", n=800),
    Cell("thresholds", plain=True, tail=1.2),
    Cell("crossing", epsilon=1.0),
    Cell("crossing", n=800, epsilon=1.0),
    Cell("leaving"),
    Cell("leaving", plain=True, tail=2.0),
    Cell("rare"),
    Cell("interactions"),
    Cell("interactions", n=800, epsilon=1.0),
    Cell("cured"),
    Cell("cured", n=1500, epsilon=1.0, tail=1.5),
)
TUNED_ON = (
    Cell("t-weibull"),
    Cell("t-weibull", plain=True, tail=1.5),
    Cell("t-tails"),
    Cell("t-tails", plain=True),
    Cell("t-drop-outs", n=800, epsilon=1.0),
    Cell("t-modifiers"),
    Cell("t-modifiers", epsilon=1.0),
    Cell("t-shapes", n=800),
)
NULLS = tuple(cell for cell in CELLS if not cell.plain)
"""Where intervals are looked at."""


# -- tables ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class World:
    """A table, and when each of its persons would have the event and be lost, follow-up or not."""

    table: Table
    happens: Array
    lost: Array

    def shift(self, log_hazard: Array) -> Table:
        """The table if each person's time to the event were exp(-log_hazard) times as long."""
        time = self.happens * np.exp(-np.clip(log_hazard, -30.0, 30.0))
        rows = self.table.rows | foreign_generators._seen(time, self.lost)
        same = (self.table.named, self.table.products, self.table.undeclared)
        return finish(rows, self.table.schema, *same)


def draw_world(cell: Cell, seed: int) -> World:
    """A generator's table with columns that nothing comes of: ``coin``, which is declared, and
    ``luck`` and ``draw``, which are not; and one with a long tail, where the cell has it."""
    rng = np.random.default_rng(seed_of(VERSION, cell.table, cell.n, seed))
    own, found = foreign_generators._seen, list[tuple[Array, Array]]()

    def hear(time: Array, lost: Array) -> dict[str, Array]:
        found.append((time, lost))
        return own(time, lost)

    with patch.object(foreign_generators, "_seen", hear):
        table = (FROZEN | TUNING)[cell.table](cell.n, rng)
    [(happens, lost)] = found
    columns = [*binary("coin", "draw"), Column("luck", "continuous", 0, 100, 1)]
    rows = table.rows | {
        "coin": (rng.random(cell.n) < 0.4).astype(float),
        "draw": (rng.random(cell.n) < 0.15).astype(float),
        "luck": rng.gamma(1.5, 6.0, cell.n),
    }
    named = (*table.named, "coin")
    if cell.tail:
        columns.append(TITRE)
        rows["titre"] = 20 * np.exp(cell.tail * rng.standard_normal(cell.n))
        named = (*named, "titre")
    schema = replace(table.schema, columns=(*table.schema.columns, *columns))
    products = (*table.products, f"coin:{_first_number(table)}")
    whole = finish(rows, schema, named, products, table.undeclared)
    return World(whole, happens, lost)


def _first_number(table: Table) -> str:
    """The first declared column that is a number."""
    kinds = ("continuous", "integer")
    terms = [name.partition("=")[0] for name in table.named]
    return next(name for name in terms if table.schema[name].kind in kinds)


def pose_study(cell: Cell, table: Table, settings: Structured) -> Study:
    """What is asked of the table."""
    schema = table.schema if cell.plain else table.suggested()
    return made.study(
        settings,
        sites=("here",),
        schema=schema,
        estimands=estimands(table, products=True),
        privacy=PrivacyRequest(cell.epsilon, min(1e-5, 1 / (10 * table.n))),
    )


def list_requested(cell: Cell) -> tuple[str, ...]:
    """As settings have them, and effects say them of themselves."""
    return tuple(read_effect(f"time ~ {text}").text for text in REQUESTED[cell.table])


def name_effects(study: Study) -> dict[str, tuple[Effect, Estimand]]:
    """All that is planted, by its text, with the regression that has it."""
    asked = {effect_of(e): e for e in study.estimands}
    effects = study.mechanism.list_effects(study.schema, study.estimands)
    columns, given = study.schema.columns, study.estimands
    return {e.text: (e, asked.get(e) or pose_effect(e, columns, given)) for e in effects}


# -- the true slope --------------------------------------------------------------------------------

_STEP, _MOST = 3.3, 0.75
"""Each effect is changed by so many standard errors, about; all of them together by so many sds of
a logarithm at most."""


def measure_slopes(cell: Cell, seed: int) -> Answer:
    """How much of a change of each effect in the *private* table comes back, in one block.

    A block is one draw of persons and of noise, and as many tables as a Hadamard matrix has rows:
    in each every effect is moved up or down, in the persons' own times to the event, balanced and
    uncorrelated with every other. ``own/…`` and ``back/…``: Σ ±estimate, in the private tables
    and in what is released of them; their ratio over blocks is the slope.
    """
    world = draw_world(cell, seed)
    study = pose_study(cell, world.table, Structured(1, 0, 0))
    # Effects can be requested only where something is planted.
    tried = replace(study, mechanism=Structured(1, 0, 8, list_requested(cell)))
    effects = name_effects(tried)
    size = 1 << (len(effects)).bit_length()
    signs = hadamard(size)[:, 1 : len(effects) + 1]
    z = np.column_stack([_standardise(tried, e, world.table.rows) for e, _ in effects.values()])
    step = min(_STEP / math.sqrt(world.table.rows["event"].sum()), _MOST / math.sqrt(len(effects)))
    found = np.empty((size, len(effects), 2))
    for number, sign in enumerate(signs):
        table = world.shift(z @ (step * sign))
        # The same noise and the same draws in all of them: what differs is the effects' doing.
        rng, noise = np.random.default_rng([seed, 3]), SeededNoise(seed_of("slopes", cell, seed))
        copy = deliver(study, table.rows, noise, rng).coded(name_copy(1), study.schema)
        for at, (_, asked) in enumerate(effects.values()):
            both = [estimate(rows, study.schema, asked).estimate for rows in (table.rows, copy)]
            found[number, at] = both
    answer: Answer = {}
    for at, text in enumerate(effects):
        good = np.isfinite(found[:, at]).all(axis=1)
        turned = signs[good, at] - signs[good, at].mean()
        own, back = turned @ found[good, at]
        answer |= {f"own/{text}": float(own), f"back/{text}": float(back)}
        answer[f"failed/{text}"] = float((~good).sum())
    return answer


def _standardise(study: Study, effect: Effect, rows: Coded) -> Array:
    """An effect's column among the persons themselves; 0 outside of its subgroup."""
    inside = find_rows(study.schema, effect, rows)
    product = np.ones(len(inside))
    for factor in effect.factors:
        product = product * _scale(read_factor(study.schema, factor, rows), inside)
    return np.where(inside, _scale(product, inside), 0.0)


def _scale(values: Array, inside: NDArray[np.bool_]) -> Array:
    return np.asarray((values - values[inside].mean()) / values[inside].std())


# -- what planted runs say, and what is significant ------------------------------------------------

PLANTED, COPIES, REFITS = 12, 10, 40


def measure_marks(cell: Cell, seed: int) -> Answer:
    """``slope/…`` and ``error/…`` of each effect, and its ``mark/…``, as one release has them."""
    world = draw_world(cell, seed)
    study = pose_study(cell, world.table, Structured(1, 0, PLANTED, list_requested(cell)))
    rng, noise = np.random.default_rng([seed, 4]), SeededNoise(seed_of("marks", cell, seed))
    held = measure_held(study, deliver(study, world.table.rows, noise, rng))
    if held is None:
        raise RuntimeError("a release without planted runs")
    answer: Answer = {}
    named = {e.name: effect_of(e).text for e in study.estimands}
    found = {named[name]: slope for name, slope in held.estimands.items()} | dict(held.requested)
    for text, slope in found.items():
        answer |= {f"slope/{text}": slope.slope, f"error/{text}": slope.slope_error}
        answer[f"mark/{text}"] = float(MARKS.index(slope.mark))
    return answer


MARKS = tuple(Mark)


def measure_nulls(cell: Cell, seed: int) -> Answer:
    """``null/…``: whether the interval of an effect that is none leaves 0 out, as the report makes
    it of ten copies and forty refits; ``width/…``: its half-width over the table's own.

    Declared are the coin and its product; beside it, in regressions of the same kind, what nobody
    declared.
    """
    world = draw_world(cell, seed)
    study = pose_study(cell, world.table, Structured(COPIES, REFITS, 0))
    rng, noise = np.random.default_rng([seed, 5]), SeededNoise(seed_of("nulls", cell, seed))
    upload = deliver(study, world.table.rows, noise, rng)
    declared = {
        effect_of(e).text: e for e in study.estimands if {"coin", "titre"} & {*e.target.columns}
    }
    others = {
        text: pose_effect(read_effect(text), study.schema.columns, study.estimands)
        for text in ("time ~ luck", "time ~ draw")
    }
    asked = {
        name: replace(e, name=f"null{number}")
        for number, (name, e) in enumerate((declared | others).items())
    }
    # The release is of the declared ones alone; what else is asked of its tables is asked later.
    later = replace(study, estimands=tuple(asked.values()))
    measured = kind_of(later).load_results().measure(upload)
    found = widen_sites({"here": measured})["here"]
    answer: Answer = {}
    for text, estimand in asked.items():
        one = found[estimand.name]
        own = estimate(world.table.rows, study.schema, estimand)
        half = quantile(0.95, one.df) * math.sqrt(one.variance)
        kind = "declared" if text in declared else "other"
        answer[f"{kind}/{text}"] = float(abs(one.estimate) > half)
        answer[f"own/{text}"] = float(abs(own.estimate) > NORMAL * math.sqrt(own.variance))
        answer[f"width/{text}"] = half / (NORMAL * math.sqrt(own.variance))
    return answer


NORMAL = 1.959964


# -- what there is to do, and what is done ---------------------------------------------------------

WORK = {"slopes": measure_slopes, "marks": measure_marks, "nulls": measure_nulls}
RELEASES, NULL_RELEASES = 3, 5
BLOCKS, MOST_BLOCKS, KNOWN = 3, 8, 0.1
"""Blocks of a cell; more, up to so many, until the slope of each effect is so well known."""

ONLY = tuple(filter(None, os.environ.get("PENSTOCK_ONLY", "").split(",")))


@dataclass(frozen=True, slots=True)
class Job:
    """One seed of one measurement of a cell."""

    what: str
    cell: Cell
    seed: int

    @property
    def key(self) -> str:
        return f"{self.what} | {self.cell} | {self.seed}"


def list_jobs(cells: Sequence[Cell], nulls: Sequence[Cell]) -> list[Job]:
    """What is measured of each cell, its first blocks; those that PENSTOCK_ONLY names, if any."""
    jobs = [Job("slopes", cell, seed) for seed in range(BLOCKS) for cell in cells]
    jobs += [Job("marks", cell, seed) for seed in range(RELEASES) for cell in cells]
    jobs += [Job("nulls", cell, seed) for seed in range(NULL_RELEASES) for cell in nulls]
    return [job for job in jobs if not ONLY or job.what in ONLY or job.cell.table in ONLY]


@cache
def store() -> Store:
    """Of all jobs."""
    own = (
        "tests/studies/marks_cells.py",
        "tests/studies/foreign_generators.py",
        "tests/studies/foreign_tables.py",
        "shared/penstock/mechanisms/planted.py",
        "server/penstock_server/mechanisms/tables",
    )
    return Store("marks", (*own, *RELEASED))


def keep_answer(job: Job) -> None:
    """Do one job, and write down what came of it."""
    store().keep(job.key, WORK[job.what](job.cell, job.seed))


def weigh(job: Job) -> float:
    """About how many seconds it takes."""
    return {"slopes": 10.0, "marks": 8.0, "nulls": 25.0}[job.what]

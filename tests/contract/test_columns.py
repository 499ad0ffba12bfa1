"""Whatever a schema may hold, every mechanism fits it, whatever the rows are: nothing fails once
the budget is charged, and what leaves is what the schema says.

Tiny and quick settings: nothing here asks how good a release is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.support.carried_out import release
from tests.support.replayed import anybody, coarsely

from penstock.mechanisms import Gibbs, Maf, Settings, SlicedWasserstein, Trajectory
from penstock.mechanisms.parts import Part
from penstock.mechanisms.plans import plan
from penstock.mechanisms.released import name_copy, name_refit
from penstock.mechanisms.trajectory.settings import TIME_KINDS
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.questions.models import MODELS
from penstock.questions.suitability import COVARIATES
from penstock.schema import KINDS, MAX_LEVELS, Coded, Column, Schema
from penstock.schema.encoding import Encoding

PERSONS = 12

FLOW = Maf(copies=1, refits=0, steps=2, hidden=(4,))
SLICES = SlicedWasserstein(copies=1, refits=0, steps=2, bases=1, bins=8)
PATHS = Trajectory("visit", copies=1, refits=0, particles=4, paths=2, path_times=3, steps=2)

VISIT = Column("visit", "integer", lower=0, upper=2)
PLAIN = Column("plain", "continuous", lower=-1, upper=1)


def levels(count: int) -> tuple[str, ...]:
    return tuple(f"level {i}" for i in range(count))


def _kinds() -> Iterator[tuple[Column, ...]]:
    yield (Column("x", "continuous", lower=0, upper=1),)
    yield (Column("x", "continuous", lower=0, upper=1, decimals=12),)
    yield (Column("x", "continuous", lower=-1e6, upper=1e-3, decimals=3),)
    yield (Column("x", "continuous", lower=1e-3, upper=1e6, scale="log"),)
    yield (Column("x", "continuous", lower=0, upper=400, decimals=1, spike=0, scale="log"),)
    yield (Column("x", "integer", lower=0, upper=1),)
    yield (Column("x", "integer", lower=0, upper=1, spike=0),)
    yield (Column("x", "integer", lower=0, upper=60, spike=0, scale="log"),)
    yield (Column("x", "integer", lower=-1000, upper=1000, spike=7),)
    yield (Column("x", "binary"),)
    for count in (2, 3, 5, 19, 64, 65):
        yield (Column("x", "categorical", levels=levels(count)),)
        yield (Column("x", "ordered", levels=levels(count)),)
    yield (Column("x", "duration", upper=5, event="end"), Column("end", "event"))
    yield (Column("x", "duration", upper=5, decimals=0, event="end"), Column("end", "event"))
    yield (
        Column("x", "duration", upper=5, event="end"),
        Column("end", "event"),
        Column("later", "duration", upper=9, event="last"),
        Column("last", "event"),
    )


ALONE = [
    tuple(replace(c, nullable=nullable) for c in columns)
    for columns in _kinds()
    for nullable in (False, True)
]
TOGETHER = tuple(
    replace(column, name=f"{column.name}{i}", event=column.event and f"{column.event}{i}")
    for i, columns in enumerate(ALONE)
    if sum(len(column.levels) for column in columns) <= 5 and (i % 3 == 0 or len(columns) > 1)
    for column in columns
)
"""Some of all kinds, with few levels and with more, with missing values and without."""


def named(columns: tuple[Column, ...]) -> str:
    first = columns[0]
    more = [f"{len(first.levels)} levels"] if first.levels else []
    more += [
        f"{n} = {v}" for n in ("decimals", "spike", "scale") if (v := getattr(first, n)) is not None
    ]
    return ", ".join([*(c.kind for c in columns), *more, *(["nullable"] if first.nullable else [])])


by_column = pytest.mark.parametrize("columns", ALONE, ids=named)


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with coarsely():
        yield


def rows_of(schema: Schema, count: int) -> dict[str, Coded]:
    """Rows without a pattern, some of them missing; rows with no spread; and no rows."""
    rng = np.random.default_rng(3)
    mixed = anybody(schema, count, rng)
    some = {n: np.where(rng.random(count) < 0.2, np.nan, v) for n, v in mixed.items()}
    low = {c.name: np.full(count, c.lower if c.lower is not None else 0.0) for c in schema.columns}
    return {
        "mixed": some,
        "all alike": low,
        "all missing": {name: np.full(count, np.nan) for name in mixed},
    }


def released(
    mechanism: Settings, schema: Schema, coded: Coded, estimand: Estimand | None = None
) -> list[Part]:
    k, encoding, asked = (
        schema.max_rows_per_person,
        Encoding(schema),
        () if estimand is None else (estimand,),
    )
    rows, present = encoding.encode(coded, np.random.default_rng(1))
    planned = plan(mechanism, schema, PERSONS, PrivacyRequest(3.0, 1e-5), asked)
    shape = (PERSONS, k)
    given = (rows.reshape(*shape, -1), present.reshape(shape), SeededNoise(2))
    return list(release(mechanism, planned, encoding, *given))


def hold(mechanism: Settings, columns: tuple[Column, ...], k: int = 1) -> None:
    """Releases on all kinds of rows are tables of the schema."""
    schema = Schema(columns, "person", k)
    assert not mechanism.problems(schema, ())
    for name, coded in rows_of(schema, PERSONS * k).items():
        parts = released(mechanism, schema, coded)
        tables = {name_copy(1), name_refit(1)} if mechanism.refits else {name_copy(1)}
        assert {part.name for part in parts} - {"particles", "paths"} == tables, name
        for part in parts:
            check(schema, part)
            assert part.name not in tables or 1 <= part.rows <= PERSONS * k


def check(schema: Schema, part: Part) -> None:
    assert tuple(part.columns) == schema.names
    for column in schema.columns:
        values = part.columns[column.name]
        there = ~np.isnan(values)
        assert there.all() or column.nullable
        np.testing.assert_array_equal(column.snap(values), values)


def test_every_kind_of_column_is_here() -> None:
    assert {column.kind for columns in ALONE for column in columns} == set(KINDS)
    assert {column.kind for column in TOGETHER} == set(KINDS)


@by_column
def test_a_flow_fits_every_column(columns: tuple[Column, ...]) -> None:
    hold(FLOW, columns)


@pytest.mark.parametrize("kind", ["categorical", "ordered"])
def test_a_flow_fits_as_many_levels_as_there_may_be(kind: str) -> None:
    hold(FLOW, (Column("x", kind, levels=levels(MAX_LEVELS), nullable=True),))


@by_column
def test_slices_fit_every_column(columns: tuple[Column, ...]) -> None:
    hold(SLICES, (*columns, PLAIN) if len(columns) < 2 else columns)


@by_column
def test_particles_fit_every_column(columns: tuple[Column, ...]) -> None:
    hold(PATHS, (VISIT, *columns))


@pytest.mark.parametrize("variant", ["presampled", "resampled"])
def test_the_other_slices_fit_all_columns_together(variant: str) -> None:
    hold(replace(SLICES, variant=variant, batch=5), TOGETHER)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("mechanism", [FLOW, SLICES, PATHS], ids=lambda m: m.name)
def test_all_columns_together_are_fitted(mechanism: Settings, k: int) -> None:
    hold(replace(mechanism, refits=1), (VISIT, *TOGETHER), k)


@pytest.mark.parametrize("start", ["k-means", "public"])
def test_particles_start_anywhere(start: str) -> None:
    several = replace(PATHS, start=start, modes=2 if start == "k-means" else 1)
    hold(several, (VISIT, *TOGETHER))


@pytest.mark.parametrize("kind", TIME_KINDS)
def test_particles_move_along_every_kind_of_time(kind: str) -> None:
    time = {
        "ordered": Column("visit", "ordered", levels=levels(3)),
        "integer": VISIT,
        "continuous": Column("visit", "continuous", lower=0, upper=4),
        "duration": Column("visit", "duration", upper=4, event="end"),
    }[kind]
    points = None if kind in ("ordered", "integer") else 3
    rest = (Column("end", "event"),) if kind == "duration" else ()
    hold(replace(PATHS, points=points), (time, *rest, PLAIN))


@pytest.mark.parametrize("baseline", ["piecewise", "weibull"])
@by_column
def test_an_answer_is_given_about_every_column(columns: tuple[Column, ...], baseline: str) -> None:
    asked, own = columns[0], Schema((*columns, PLAIN))
    questions = []
    if asked.kind in COVARIATES and len(asked.levels) <= 60 and baseline == "piecewise":
        level = asked.levels[1] if asked.kind == "categorical" else None
        questions.append(Estimand("q", "ols", "plain", "x", level=level))
    questions += [
        Estimand("q", model, "x", "x" if model == "mean" else "plain")
        for model, kinds in ((m.name, m.outcomes) for m in MODELS)
        if asked.kind in kinds and (model == "cox") >= (baseline == "weibull")
    ]
    for question in questions:
        mechanism = Gibbs(baseline=baseline)
        if mechanism.problems(own, (question,)) or (asked.lower or 0) < 0:
            continue
        for coded in rows_of(own, PERSONS).values():
            [answer] = released(mechanism, own, coded, question)
            assert all(np.isfinite(values).all() for values in answer.columns.values())


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize("mechanism", [FLOW, SLICES, PATHS], ids=lambda m: m.name)
def test_two_levels_of_a_categorical_column_are_fitted_as_those_of_a_binary_one(
    mechanism: Settings, nullable: bool
) -> None:
    """Such a column once ended every fit with a LinAlgError, after the charge."""
    tables = []
    for kind in ("categorical", "binary"):
        sex = Column("sex", kind, levels=("f", "m"), nullable=nullable)
        schema = Schema((VISIT, sex, PLAIN))
        coded = rows_of(schema, PERSONS)["mixed"]
        tables.append(released(mechanism, schema, coded))
    for one, other in zip(*tables, strict=True):
        for name, values in one.columns.items():
            np.testing.assert_array_equal(values, other.columns[name])

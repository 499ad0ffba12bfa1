"""The ``structured`` mechanism: from encoded rows to synthetic copies, every look at a row charged.

Rows are decoded first, which is exact: what is counted and scored is the columns themselves. The
stages are those of :mod:`~penstock.mechanisms.structured.plan`; all that follows a stage's noise is
post-processing. A model is a population of covariates and, given these, each outcome's own model;
a row is drawn from the one and then from the others.

A table has as many rows as its model was fitted on, *as released*: the margins' noisy count, at
most n·k. n·k rows are drawn all the same, and the rest dropped. A refit is the same procedure, with
fresh noise, on the rows of a copy: no private row is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.parts import Progress
from penstock.mechanisms.released import name_copy, name_refit, refit_copy
from penstock.mechanisms.structured.counting import Counts, release_margins
from penstock.mechanisms.structured.matching import match_outcome
from penstock.mechanisms.structured.outcomes.hazards import Survival, Times
from penstock.mechanisms.structured.plan import (
    Drawn,
    StructuredPlan,
    list_durations,
    make_grids,
)
from penstock.mechanisms.structured.population import (
    Population,
    fit_population,
    quasi_random,
)
from penstock.mechanisms.structured.regressors import Design, make_design
from penstock.privacy.noise.sources import NoiseSource, child, permutation
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_POWER = 11
"""A match looks at 2¹¹ quasi-random persons, and at all that may come of each."""

_ROWS_AT_ONCE = 1 << 16
_LEAST_CHANCE = 1e-12
"""Outcomes are drawn by uniforms above it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A duration and its event, given the covariates.

    Args:
        parameters: θ of the model; unknown: share of the rows of which nothing is known of it.
    """

    column: Column
    event: Column
    design: Design
    model: Survival
    parameters: Array
    unknown: float

    def draw(self, persons: Coded, rng: np.random.Generator) -> Coded:
        """The two columns of these persons."""
        z, _ = self.design.of(persons)
        uniforms = np.maximum(rng.random((len(z), 2)), _LEAST_CHANCE)
        drawn = self.model.draw(self.parameters, z, uniforms)
        gone = rng.random(len(z)) < self.unknown
        for column in (self.column, self.event):
            if column.nullable:
                drawn[column.name] = np.where(gone, np.nan, drawn[column.name])
        return drawn


@dataclass(frozen=True, slots=True)
class Model:
    """What was released of a table, and what it says.

    Args:
        schema: of the table; population: its covariates; outcomes: each given these.
        rows: how many were present, as released.
    """

    schema: Schema
    population: Population
    outcomes: tuple[Outcome, ...]
    rows: float

    def draw(self, count: int, rng: np.random.Generator) -> Coded:
        """So many rows, in no order."""
        parts = []
        for at in range(0, count, _ROWS_AT_ONCE):
            few = min(_ROWS_AT_ONCE, count - at)
            row = self.population.draw(rng.standard_normal((few, self.population.latents)))
            drawn = [outcome.draw(row, rng) for outcome in self.outcomes]
            for columns in drawn:
                row.update(columns)
            parts.append(row)
        return {
            column.name: column.snap(np.concatenate([part[column.name] for part in parts]))
            for column in self.schema.columns
        }


def draw(
    plan: StructuredPlan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    noise: NoiseSource,
    progress: Progress | None = None,
    threads: int = 1,
) -> Iterator[tuple[str, Coded]]:
    """The tables one by one, by name: the copies, then the refits.

    Relation: zero-out with public n; charged as ``plan.events``.

    Args:
        rows: (n, k, d), encoded; present: (n, k). n and k are the plan's.
        noise: source of all noise and draws.
        threads: for as many refits at a time; they change no number.

    Raises:
        InvalidInput: shapes that are not the plan's.
    """
    _check_shapes(plan, encoding, rows, present)
    schema = encoding.schema
    coded = encoding.decode(rows.reshape(-1, encoding.d))
    model = fit(plan, schema, coded, present.ravel(), noise)
    _tell(progress, plan, 0)
    kept = []
    for index in range(plan.copies):
        table = _draw(plan, model, noise)
        if index < plan.refits:  # later ones have no refit made from them
            kept.append(table)
        yield name_copy(index + 1), table
    made = 0
    with ThreadPoolExecutor(threads) as pool:
        while made < plan.refits:
            numbers = range(made + 1, min(made + threads, plan.refits) + 1)
            sources = [child(noise) for _ in numbers]
            of = [kept[refit_copy(number, plan.copies) - 1] for number in numbers]
            tables = list(pool.map(partial(_refit, plan, schema), of, sources))
            for number, table in zip(numbers, tables, strict=True):
                yield name_refit(number), table
            made += len(numbers)
            _tell(progress, plan, made)


def fit(
    plan: StructuredPlan,
    schema: Schema,
    coded: Coded,
    present: Bools,
    noise: NoiseSource,
) -> Model:
    """The model of a table; private as far as the plan's multipliers go.

    Args:
        coded: columns of n·k rows, the k of a person one after the other; present: (n·k,).
    """
    grids, durations = make_grids(schema), list_durations(schema)
    counts = release_margins(grids, durations, coded, present, plan.margins, noise)
    population = fit_population(
        grids,
        counts.cells,
        counts.sd,
        counts.rows,
        coded,
        present,
        plan.rows,
        plan.moments,
        plan.radius,
        _POWER,
        noise,
    )
    outcomes = [
        _fit_outcome(plan, schema, population, i, one, counts, coded, present, noise)
        for i, one in enumerate(plan.outcomes)
    ]
    return Model(schema, population, tuple(outcomes), counts.rows)


def _fit_outcome(
    plan: StructuredPlan,
    schema: Schema,
    population: Population,
    index: int,
    drawn: Drawn,
    counts: Counts,
    coded: Coded,
    present: Bools,
    noise: NoiseSource,
) -> Outcome:
    column = schema[drawn.column]
    persons = population.draw(quasi_random(population.latents, _POWER))
    design = make_design(population, persons, drawn.terms, drawn.adjusted, drawn.extras)
    seen, _ = design.of(persons)
    times = Times.read(column, counts.times[index], counts.sd)
    model = Survival(times, seen, design.linear, design.importance)
    z, complete = design.of(coded)
    parameters = match_outcome(
        model, z, coded, present & complete, plan.rows, seen, plan.rounds, counts.rows, noise
    )
    unknown = min(counts.unknown[index] / counts.rows, 1.0)
    return Outcome(column, schema[column.event or ""], design, model, parameters, unknown)


def size(plan: StructuredPlan, model: Model) -> int:
    """Rows of a table: those that the model was fitted on, as released; at most n·k."""
    return min(round(model.rows), plan.persons * plan.rows)


def _draw(plan: StructuredPlan, model: Model, noise: NoiseSource) -> Coded:
    """One table. All n·k rows are drawn, whatever the count: no time depends on it."""
    table, count = model.draw(plan.persons * plan.rows, noise.generator()), size(plan, model)
    return {name: values[:count].copy() for name, values in table.items()}


def _refit(plan: StructuredPlan, schema: Schema, copy: Coded, noise: NoiseSource) -> Coded:
    """A table from a model that was fitted on the rows of a copy."""
    coded, present = _rows_of(plan, copy, noise)
    return _draw(plan, fit(plan, schema, coded, present, noise), noise)


def _rows_of(plan: StructuredPlan, copy: Coded, noise: NoiseSource) -> tuple[Coded, Bools]:
    """The rows of a copy in random places of a frame like the site's."""
    most, count = plan.persons * plan.rows, len(next(iter(copy.values())))
    places = permutation(most, noise)[:count]
    present = np.zeros(most, dtype=np.bool_)
    present[places] = True
    coded: Coded = {}
    for name, values in copy.items():
        coded[name] = np.full(most, values[0])
        coded[name][places] = values
    return coded, present


def _tell(progress: Progress | None, plan: StructuredPlan, refits: int) -> None:
    """So many refits are made, and the model of the copies."""
    if progress is not None:
        progress(1 + refits, 1 + plan.refits)


def _check_shapes(plan: StructuredPlan, encoding: Encoding, rows: Array, present: Bools) -> None:
    shape = (plan.persons, plan.rows, encoding.d)
    problems = []
    # Shapes are public: n is the frame's, k and d the schema's.
    if rows.shape != shape or present.shape != shape[:2]:
        problems.append(
            Problem("rows", "not of the plan's shape", value=str(rows.shape), bound=str(shape))
        )
    if _columns(encoding.schema) != _planned(plan):
        problems.append(Problem("encoding", "other columns than planned"))
    if problems:
        raise InvalidInput("run", problems)


def _columns(schema: Schema) -> Sequence[str]:
    covariates = [grid.column.name for grid in make_grids(schema)]
    return [*covariates, *(column.name for column in list_durations(schema))]


def _planned(plan: StructuredPlan) -> Sequence[str]:
    return [*plan.covariates, *(outcome.column for outcome in plan.outcomes)]

"""The ``structured`` mechanism: from encoded rows to synthetic copies, every look at a row charged.

Rows are decoded first, which is exact: what is counted and scored is the columns themselves. The
stages are those of :mod:`~penstock.mechanisms.structured.plan`; all that follows a stage's noise is
post-processing. A model is a population of covariates and, given these and the outcomes before it,
each outcome's own model; a row is drawn from the one and then from the others, in order.

A table has as many rows as its model was fitted on, *as released*: the margins' noisy count, at
most n·k; or, where it is to have fewer, a public share of both. As many rows as there can be are
drawn all the same, and the rest dropped. A refit is the same procedure, with fresh noise (of a
share of the rows the same share of it), on the rows of a copy: no private row is looked at again.
Two are drawn from each fit,
apart, so that how far they are from each other shows a table's own drawing. A planted run is the
same on the rows of a table that was drawn from the model with some effects changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from penstock.base.errors import InvalidInput, Problem
from penstock.mechanisms.classes.class_population import ClassPopulation, fit_classes
from penstock.mechanisms.copula.divided_bins import Margin, divide_bins
from penstock.mechanisms.copula.grids import draw_values, make_grid
from penstock.mechanisms.copula.population import (
    Population,
    fit_population,
    quasi_random,
)
from penstock.mechanisms.copula.told_means import MeanScores, ToldMeans, recall_means
from penstock.mechanisms.parts import Progress
from penstock.mechanisms.released import (
    Refitting,
    name_copy,
    name_planted,
    name_recovered,
    name_refit,
)
from penstock.mechanisms.sobol import draw_sobol
from penstock.mechanisms.structured.counting import Counts, release_margins
from penstock.mechanisms.structured.declared import list_durations
from penstock.mechanisms.structured.matching import Inquiry, Matching, match_outcome
from penstock.mechanisms.structured.outcomes.baselines import Stratified, count_deviations
from penstock.mechanisms.structured.outcomes.contrasts import Contrasts
from penstock.mechanisms.structured.outcomes.hazards import Survival, Times
from penstock.mechanisms.structured.outcomes.links import CONTRASTED, LINKS, PLACED
from penstock.mechanisms.structured.outcomes.proportional import Proportional
from penstock.mechanisms.structured.outcomes.protocol import (
    Drawable,
    Imagined,
    OutcomeModel,
    Referred,
)
from penstock.mechanisms.structured.outcomes.support import Support
from penstock.mechanisms.structured.outcomes.tilted import Tilted
from penstock.mechanisms.structured.plan import (
    ROWS_AT_ONCE,
    UNIFORMS,
    StructuredPlan,
    list_asked,
    list_counted,
    list_given,
    make_grids,
)
from penstock.mechanisms.structured.planting import Planting, make_planting
from penstock.mechanisms.structured.regressors import Design, make_design
from penstock.mechanisms.structured.score_clipping import release_scores
from penstock.mechanisms.tables.moments import clip_rows
from penstock.privacy.measurements import Exchange
from penstock.privacy.noise.sources import NoiseSource, make_twins, permutation
from penstock.schema import Coded, Column, Schema
from penstock.schema.encoding import Encoding
from penstock.schema.packed import PackedTable

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
R = TypeVar("R", bound=Referred)
T = TypeVar("T")
F = TypeVar("F", bound=Imagined)

_POWER = 11
"""A match looks at 2¹¹ quasi-random persons, and at all that may come of each."""

_MOST_UNKNOWN = 0.99
"""Share of rows without an outcome: of the others there are some."""

_SEED = 0
"""Of the persons by whom planted columns are standardised; public."""

_LEAST_CHANCE = 1e-12
"""Uniforms are at least as far from 0 and 1."""


Add = Callable[[str, Coded], Array | None]
"""What is added to the linear predictors of an outcome (its column) of persons."""


def _add_nothing(outcome: str, persons: Coded) -> None:
    """To a table as it was fitted."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A column, or a duration and its event, given what is drawn before.

    Args:
        columns: one, or two; parameters: θ of the model.
        unknown: share of the rows of which nothing is known of it.
    """

    columns: tuple[Column, ...]
    design: Design
    model: Drawable
    parameters: Array
    unknown: float

    def draw(self, persons: Coded, uniforms: Array, added: Array | None = None) -> Coded:
        """The columns of these persons; ``added`` to their linear predictors.

        Args:
            uniforms: (N, 3); by the last, who has no outcome.
        """
        z, _ = self.design.of(persons)
        chosen = np.maximum(uniforms[:, :2], _LEAST_CHANCE)
        drawn = self.model.draw(self.parameters, z, chosen, added)
        gone = uniforms[:, 2] < self.unknown
        for column in self.columns:
            if column.nullable:
                drawn[column.name] = np.where(gone, np.nan, drawn[column.name])
        return drawn


@dataclass(frozen=True, slots=True)
class Model:
    """What was released of a table, and what it says.

    Args:
        schema: of the table; population: its covariates; outcomes: each given these, and those
            before it.
        rows: how many were present, as released.
    """

    schema: Schema
    population: Population | ClassPopulation
    outcomes: tuple[Outcome, ...]
    rows: float

    def draw(
        self, count: int, kept: int, rng: np.random.Generator, add: Add = _add_nothing
    ) -> Coded:
        """One table, as of :meth:`draw_packed`."""
        [table] = self.draw_packed(count, kept, rng, add)
        return table.unpack()

    def draw_packed(
        self,
        count: int,
        kept: int,
        rng: np.random.Generator,
        add: Add = _add_nothing,
        tables: int = 1,
    ) -> list[PackedTable]:
        """Tables of so many rows, of which the first ``kept`` are kept; ``add``: what is planted.

        Points are spread evenly (a scrambled Sobol sequence) over the rows of all tables, and
        given to them at random. Of several tables each varies as one of independent rows does, but
        their mean varies little. A single table varies little, too.
        """
        outcomes, each = UNIFORMS * len(self.outcomes), max(1, ROWS_AT_ONCE // tables)
        made = [PackedTable.of(self.schema.columns, min(count, kept)) for _ in range(tables)]
        for at in range(0, count, each):
            few = min(each, count - at)
            points = _spread_points(tables * few, outcomes + self.population.latents, rng)
            if tables > 1:
                points = _shuffle(points, rng)
            # The first coordinates are the most even: an outcome's own ones.
            chances, latents = np.split(points, [outcomes], axis=1)
            rows = self.population.draw_table(latents, rng)
            uniforms = np.split(chances, len(self.outcomes), axis=1) if self.outcomes else []
            for outcome, own in zip(self.outcomes, uniforms, strict=True):
                rows.update(outcome.draw(rows, own, add(outcome.columns[0].name, rows)))
            for number, table in enumerate(made):
                first = number * few
                mine = slice(first, first + max(0, min(few, kept - at)))
                table.put(at, {name: values[mine] for name, values in rows.items()})
        return made


def _pop_each(parts: list[T]) -> Iterator[T]:
    """One after the other, so that what was taken is let go."""
    while parts:
        yield parts.pop(0)


def _spread_points(count: int, width: int, rng: np.random.Generator) -> Array:
    """(count, width) in (0, 1), spread evenly."""
    # A first part of a net is nearly as even as all of it.
    sobol = draw_sobol(width, max(count - 1, 1).bit_length(), rng)
    return np.asarray(np.clip(sobol[:count], _LEAST_CHANCE, 1 - _LEAST_CHANCE))


def _shuffle(points: Array, rng: np.random.Generator) -> Array:
    """The same points, in another order."""
    return np.asarray(rng.permutation(points))


def draw(
    plan: StructuredPlan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    noise: NoiseSource,
    progress: Progress | None = None,
    threads: int = 1,
) -> Iterator[tuple[str, Coded]]:
    """The tables one by one, by name: the copies, the refits, and what is planted.

    Relation: zero-out with public n; charged as ``plan.events``.

    Args:
        rows: (n, k, d), encoded; present: (n, k). n and k are the plan's.
        noise: source of all noise and draws.
        threads: for as many fits at a time; they change no number.

    Raises:
        InvalidInput: shapes that are not the plan's.
    """
    _check_shapes(plan, encoding, rows, present, noise)
    schema = encoding.schema
    coded = encoding.decode(rows.reshape(-1, encoding.d))
    model = fit(plan, schema, coded, present.ravel(), noise)
    _tell(progress, plan, 0)
    del coded, rows, present
    copies = model.draw_packed(plan.room, size(plan, model), noise.generator(), tables=plan.copies)
    kept, again = copies[: plan.fits], plan.of_tables()  # to later ones nothing is fitted
    for index, copy in enumerate(_pop_each(copies), start=1):
        yield name_copy(index), copy.unpack()
    with ThreadPoolExecutor(threads) as pool:
        # A thread of its own has its own arena of memory, so that one alone is not worth it.
        carry_out = map if min(threads, plan.fits) == 1 else pool.map
        made = Refitting(per_fit=plan.per_fit)
        for numbers in _in_turn(plan.refits, threads * plan.per_fit):
            firsts = numbers[:: plan.per_fit]
            sources = [noise.child() for _ in firsts]
            of = [kept[made.find_copy(first, plan.copies) - 1].unpack() for first in firsts]
            fitted = carry_out(partial(_refit, again, schema, tables=plan.per_fit), of, sources)
            drawn = chain.from_iterable(list(fitted))
            for number, table in zip(numbers, drawn, strict=False):
                yield name_refit(number), table.unpack()
            _tell(progress, plan, made.find_fit(numbers[-1]))
        kept.clear()
        planting = _make_planting(plan, schema, model)
        # No private row is looked at again, so that two runs may have the same noise.
        twins = [make_twins(noise) for _ in range(0, plan.planted, 2)]
        alike = [source for pair in twins for source in pair]
        # One by one: each holds two tables.
        for number, source in enumerate(alike[: plan.planted], start=1):
            planted, recovered = _plant(plan, model, planting, number, source)
            yield name_planted(number), planted
            yield name_recovered(number), recovered
            _tell(progress, plan, plan.fits + number)


def _in_turn(count: int, threads: int) -> Iterator[range]:
    """The numbers from 1, as many at a time as there are threads."""
    for first in range(1, count + 1, threads):
        yield range(first, min(first + threads, count + 1))


def fit(
    plan: StructuredPlan,
    schema: Schema,
    coded: Coded,
    present: Bools,
    noise: NoiseSource,
    match: Matching | None = None,
) -> Model:
    """The model of a table; private as far as the plan's multipliers go.

    Args:
        coded: columns of n·k rows, the k of a person one after the other; present: (n·k,).
        match: how an outcome's θ is found, if not by :func:`match_outcome`.
    """
    grids = make_grids(schema, plan.outcomes, plan.fine)
    counted, durations = list_counted(schema, plan.outcomes, plan.fine), list_durations(schema)
    counts = release_margins(
        counted, durations, coded, present, plan.persons * plan.rows, plan.margins, noise
    )
    of_classes = partial(fit_classes, pairs=plan.pairs, most=plan.groups)
    find = fit_population if plan.pairs is None else of_classes
    margins = [
        Margin(grid, grid, cells, values, counts.sd, counts.rows, plan.stiffnesses)
        for grid, cells, values in zip(counted, counts.cells, counts.values, strict=True)
    ]
    covariates = [divide_bins(margin, plan.fine) for margin in margins[: len(grids)]]
    margins[: len(grids)] = covariates
    means = release_means(plan, margins, counts, coded, present, noise)
    population = find(
        covariates,
        counts.rows,
        coded,
        present,
        plan.rows,
        plan.moments,
        plan.radius,
        _POWER,
        list_asked(grids, plan.outcomes),
        means,
        noise,
    )
    persons, uniforms = make_persons(population, len(counted) - len(grids))
    outcomes: list[Outcome] = []
    for index, drawn in enumerate(plan.outcomes):
        found = _fit_outcome(
            plan,
            schema,
            index,
            persons,
            counts,
            means,
            coded,
            present,
            noise,
            match or match_outcome,
        )
        outcomes.append(found)
        if not drawn.lasting:
            persons = {**persons, **found.draw(persons, uniforms[index])}
    return Model(schema, population, tuple(outcomes), counts.rows)


def release_means(
    plan: StructuredPlan,
    margins: Sequence[Margin],
    counts: Counts,
    coded: Coded,
    present: Bools,
    noise: NoiseSource,
) -> ToldMeans | None:
    """The means and shares that the plan names; None where it names none.

    Args:
        margins: of all columns that have cells; counts: which these are of.
    """
    if not plan.meant:
        return None
    named = {one.column for one in plan.meant}
    own = [margin for margin in margins if margin.grid.column.name in named]
    seen = {margin.grid.column.name: (margin.grid, margin.read()) for margin in own}
    sd = 0.0 if plan.means is None else plan.rows * plan.means.sd
    scores = MeanScores.of(plan.meant, seen, counts.sd / counts.rows, sd / counts.rows)
    scored = scores(coded)
    if plan.rows > 1:
        # Each row by itself, so that what is clipped does not depend on which rows are one's own.
        scored = clip_rows(scored, 1.0) / plan.rows
    total = plan.rows * release_scores(scored, present, plan.rows, plan.means, noise)
    widths = [margin.grid.latents for margin in own]
    latents = np.split(quasi_random(sum(widths), _POWER), np.cumsum(widths)[:-1], axis=1)
    drawn = zip(seen.items(), latents, strict=True)
    persons = {name: draw_values(*each, mine) for (name, each), mine in drawn}
    return ToldMeans(scores, total / counts.rows, sd / counts.rows, counts.rows, persons)


def make_persons(population: Population | ClassPopulation, outcomes: int) -> tuple[Coded, Array]:
    """Quasi-random persons, and (outcomes, N, 3) uniforms by which they have outcomes."""
    points = quasi_random(population.latents + UNIFORMS * outcomes, _POWER)
    here, beyond = np.split(points, [population.latents], axis=1)
    uniforms = ndtr(beyond).reshape(len(points), outcomes, UNIFORMS).transpose(1, 0, 2)
    return population.draw(here), uniforms


def _fit_outcome(
    plan: StructuredPlan,
    schema: Schema,
    index: int,
    persons: Coded,
    counts: Counts,
    means: ToldMeans | None,
    coded: Coded,
    present: Bools,
    noise: NoiseSource,
    find: Matching,
) -> Outcome:
    """
    Args:
        persons: of the population, with the outcomes that were fitted before.
        means: as released, of covariates and of outcomes.
    """
    drawn = plan.outcomes[index]
    given = list_given(schema, plan.outcomes, index)
    declared = (
        drawn.terms,
        drawn.adjusted,
        drawn.extras,
        drawn.exposure,
        drawn.strata,
        drawn.plain,
    )
    design = make_design(given, persons, *declared)
    column, world, (z, complete) = schema[drawn.column], design.see(persons), design.of(coded)

    def match(model: OutcomeModel[R, F], gone: float, *columns: Column) -> Outcome:
        unknown = min(max(gone / counts.rows, 0.0), _MOST_UNKNOWN)
        known, there = counts.rows * (1 - unknown), present & complete
        rounds = plan.rounds_of(drawn)
        asked = Inquiry(z, coded, there, plan.rows, rounds, known)
        parameters = find(model, asked, noise)
        return Outcome(columns, design, model, parameters, unknown)

    # Where nothing may be missing a count of what is missing is noise.
    if drawn.lasting:
        at, event = index - len(counts.cells) + len(plan.covariates), schema[column.event or ""]
        told = counts.times[at]
        gone = max(told.unknown, 0.0) if column.nullable or event.nullable else 0.0
        times = Times.read(column, told, counts.sd)
        if (strata := design.strata) is None:
            return match(Survival(times, world), gone, column, event)
        own = count_deviations(strata.count, plan.persons, plan.rounds[0].sd)
        return match(Stratified(times, world, strata, own), gone, column, event)
    # Durations are last, so that an outcome's counts follow those of all that is given.
    grid, cells = make_grid(column), counts.cells[len(given)]
    gone = float(cells[grid.missing]) if column.nullable else 0.0
    told_values, told_means = counts.values[len(given)], recall_means(means, grid)
    support = Support.read(grid, cells, counts.sd, told_values, told_means)
    if drawn.regression in CONTRASTED:
        asked = [column.levels.index(level) for level in drawn.levels]
        return match(Contrasts(support, world, asked), gone, column)
    if drawn.regression in PLACED:
        return match(Proportional(support, world), gone, column)
    return match(Tilted(support, LINKS[drawn.regression], world), gone, column)


def size(plan: StructuredPlan, model: Model) -> int:
    """Rows of a table: of those that the model was fitted on, as released, the plan's share."""
    return max(1, min(round(model.rows * plan.share), plan.room))


def _draw(
    plan: StructuredPlan,
    model: Model,
    noise: NoiseSource,
    add: Add = _add_nothing,
) -> PackedTable:
    """A table. All rows that it has room for are drawn, whatever the count: no time depends on
    it."""
    [table] = model.draw_packed(plan.room, size(plan, model), noise.generator(), add)
    return table


def _refit(
    plan: StructuredPlan, schema: Schema, copy: Coded, noise: NoiseSource, tables: int = 1
) -> list[PackedTable]:
    """Tables from a model that was fitted on the rows of a copy, each drawn apart."""
    coded, present = _rows_of(plan, copy, noise)
    model = fit(plan, schema, coded, present, noise)
    return [_draw(plan, model, noise) for _ in range(tables)]


def _make_planting(plan: StructuredPlan, schema: Schema, model: Model) -> Planting:
    if not plan.planted:
        return Planting({})
    persons = model.draw(1 << _POWER, 1 << _POWER, np.random.default_rng(_SEED))
    outcomes = list(zip(plan.outcomes, model.outcomes, strict=True))
    told = model.rows * plan.share  # by tables of as many rows
    return make_planting(plan.effects, plan.planted, schema, persons, outcomes, told)


def _plant(
    plan: StructuredPlan, model: Model, planting: Planting, run: int, noise: NoiseSource
) -> tuple[Coded, Coded]:
    """A table of the model with effects planted, and a table from a model fitted on its rows."""
    planted = _draw(plan, model, noise, partial(planting.add, run)).unpack()
    [recovered] = _refit(plan.of_tables(), model.schema, planted, noise)
    return planted, recovered.unpack()


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


def _tell(progress: Progress | None, plan: StructuredPlan, fits: int) -> None:
    """So many fits are made beside the model of the copies."""
    if progress is not None:
        progress(1 + fits, 1 + plan.fits + plan.planted)


def _check_shapes(
    plan: StructuredPlan, encoding: Encoding, rows: Array, present: Bools, noise: NoiseSource
) -> None:
    # Of many sites' frame each has its part.
    persons = min(len(rows), plan.persons) if isinstance(noise, Exchange) else plan.persons
    shape = (persons, plan.rows, encoding.d)
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
    return sorted(column.name for column in schema.columns if column.kind != "event")


def _planned(plan: StructuredPlan) -> Sequence[str]:
    return sorted([*plan.covariates, *(outcome.column for outcome in plan.outcomes)])

"""The ``scoring`` mechanism: from encoded rows to the answers of the declared questions.

Stages and charges are those of :mod:`penstock.mechanisms.structured.plan`. What a ``structured``
release draws tables from is here the answer itself: all that follows the last sum's noise is
post-processing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from penstock.mechanisms.frames import check_shapes
from penstock.mechanisms.parts import Part, Progress
from penstock.mechanisms.released import (
    ADDED,
    ANSWER,
    COVARIANCE,
    DOUBT,
    ESTIMATE,
    NOISE,
    SITES,
    TERM,
    VARIANCE,
)
from penstock.mechanisms.scoring.answers import (
    Answer,
    F,
    R,
    fit_regression,
    list_numbers,
    list_taken,
    report_terms,
)
from penstock.mechanisms.scoring.descriptions import Description
from penstock.mechanisms.scoring.divisible import list_divisible
from penstock.mechanisms.scoring.levels import Apart, Fitted, Levels, tell_levels
from penstock.mechanisms.scoring.plan import ScoringPlan
from penstock.mechanisms.scoring.regressions import Regression
from penstock.mechanisms.scoring.ways import make_tally
from penstock.mechanisms.structured.matching import Inquiry, ask_outcome
from penstock.mechanisms.structured.outcomes.protocol import OutcomeModel
from penstock.mechanisms.structured.regressors import Design
from penstock.mechanisms.structured.run import Model, fit, make_persons
from penstock.privacy.measurements import WholeSum
from penstock.privacy.noise.sources import NoiseSource
from penstock.questions.grammar import read_where
from penstock.questions.terms import find_subgroup
from penstock.schema import Coded, Schema
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

UNTOLD, MOST = 1e5, 5e5
"""Sd of a coefficient that nobody can tell, and the most that one has: what is released ends at the
square of twice as much."""

Fit = Callable[[Bools, Array, Array, Bools], Answer]
"""Of the columns that a regression has, its persons, the sums of its coefficients, and the columns
that are numbers."""

Split = Callable[[Design, Regression, Levels, WholeSum, NoiseSource], Apart]
"""Of an outcome's design, its regression, and who is of which level; the release of that."""


def run(
    plan: ScoringPlan,
    encoding: Encoding,
    rows: Array,
    present: Bools,
    noise: NoiseSource,
    progress: Progress | None = None,
) -> Iterator[Part]:
    """The answers, as one part: ``term``, ``estimate``, ``doubt``, ``cov_1`` …, ``noise_1`` ….

    ``term`` numbers what is told from 1: of one block after the other
    (:mod:`penstock.mechanisms.scoring.blocks`), in the order of its names. The covariance is of all
    that an estimate errs by, and ``noise`` that part of it which is the mechanism's; both are 0
    between blocks, where they are not told. Nobody is cut where there is no regression: doubt is 0.
    Where sites are asked apart a second part has theirs, in the order of
    :func:`penstock.mechanisms.scoring.divisible.list_apart`.
    Relation: zero-out with public n; charged as
    ``plan.events``. Whatever the rows hold, the answer is finite.

    Args:
        rows: (n, k, d), encoded; present: (n, k). n and k are the plan's.

    Raises:
        InvalidInput: shapes that are not the plan's.
    """
    check_shapes(plan, encoding, rows, present, noise)
    coded = encoding.decode(rows.reshape(-1, encoding.d))
    found, apart = answer_apart(plan, coded, present.ravel(), noise)
    if progress is not None:
        progress(1, 1)
    yield Part(ANSWER, _lay_out(found))
    if apart:
        yield Part(SITES, _lay_out_apart(apart))


def answer(plan: ScoringPlan, coded: Coded, present: Bools, noise: NoiseSource) -> list[Answer]:
    """Of each regression, per one unit of each term; then of each description.

    Args:
        coded: columns of n·k rows, the k of a person one after the other; present: (n·k,).
    """
    return answer_apart(plan, coded, present, noise)[0]


def answer_apart(
    plan: ScoringPlan, coded: Coded, present: Bools, noise: NoiseSource
) -> tuple[list[Answer], list[Apart]]:
    """The same, and of regressions that are told apart what each level of the plan's column has."""
    found, tell_apart = list[Answer](), list[Callable[[WholeSum, NoiseSource], Apart]]()
    if plan.sums is not None:
        asking = _Asking()
        model = fit(plan.sums, plan.schema, coded, present, noise, asking)
        persons, places = _see_persons(model), [outcome.column for outcome in plan.outcomes]
        for regression in plan.regressions:
            at = places.index(regression.outcome)
            found.append(_answer(model, at, asking.fits[at], regression, plan.schema, persons))
        if plan.apart is not None:
            levels = _find_levels(plan, coded, persons)
            for regression in list_divisible(plan.regressions):
                at = places.index(regression.outcome)
                split = asking.splits[at]
                tell_apart.append(partial(split, model.outcomes[at].design, regression, levels))
    for description, measurement in zip(plan.descriptions, plan.tallies, strict=True):
        found.append(_describe(description, measurement, coded, present, noise))
    # Last: who is lost before has no part in it.
    return found, [] if plan.apart is None else [tell(plan.apart, noise) for tell in tell_apart]


def _find_levels(plan: ScoringPlan, coded: Coded, persons: Coded) -> Levels:
    count = len(plan.schema[plan.apart_by].levels)
    rows, world = (np.nan_to_num(of[plan.apart_by]).astype(np.intp) for of in (coded, persons))
    return Levels(np.clip(rows, 0, count - 1), np.clip(world, 0, count - 1), count)


def _describe(
    description: Description,
    measurement: WholeSum,
    coded: Coded,
    present: Bools,
    noise: NoiseSource,
) -> Answer:
    tally = make_tally(description)
    total = tally.add_up(coded, description.find_members(coded, present))
    told, known, sampling = tally.tell(measurement(total, noise), measurement.sd)
    return Answer(told, known, sampling, np.zeros(len(told)))


def _answer(
    model: Model, at: int, fit_one: Fit, regression: Regression, schema: Schema, persons: Coded
) -> Answer:
    outcome = model.outcomes[at]
    members = np.ones(len(next(iter(persons.values()))))
    if subgroup := read_where(regression.where):
        columns = {column.name: column for column in schema.columns}
        members = find_subgroup(columns, subgroup, persons).astype(np.float64)
    matrix, untold = report_terms(outcome.design, regression, outcome.model.unit)
    numbers = list_numbers(outcome.design, schema)
    found = fit_one(list_taken(outcome.design, regression), members, matrix, numbers)
    return replace(found, noise=found.noise + np.diag(np.where(untold, UNTOLD**2, 0.0)))


class _Asking:
    """Asks rows as :func:`penstock.mechanisms.structured.matching.match_outcome` does, and keeps
    what they told of each outcome, in order."""

    def __init__(self) -> None:
        self.fits: list[Fit] = []
        self.splits: list[Split] = []

    def __call__(self, model: OutcomeModel[R, F], inquiry: Inquiry, noise: NoiseSource, /) -> Array:
        matched = ask_outcome(model, inquiry, noise, bent=True)
        self.fits.append(
            lambda taken, members, matrix, numbers: fit_regression(
                model, matched, taken, members, matrix, inquiry.count, numbers
            )
        )
        self.splits.append(
            lambda design, regression, levels, measurement, source: tell_levels(
                model, Fitted(design, inquiry, matched), regression, levels, measurement, source
            )
        )
        return matched.theta


def _see_persons(model: Model) -> Coded:
    """The quasi-random persons, as the last outcome's model saw them."""
    drawn = [outcome for outcome in model.outcomes if len(outcome.columns) == 1]
    persons, uniforms = make_persons(model.population, len(drawn))
    for outcome, own in zip(drawn, uniforms, strict=True):
        persons = {**persons, **outcome.draw(persons, own)}
    return persons


def _lay_out(found: Sequence[Answer]) -> dict[str, Array]:
    coefficients = np.concatenate([told.coefficients for told in found])
    columns: dict[str, Array] = {
        TERM: np.arange(1.0, len(coefficients) + 1),
        ESTIMATE: np.clip(coefficients, -MOST, MOST),
        DOUBT: np.clip(np.concatenate([told.doubt for told in found]), 0.0, 1.0),
    }
    whole = block_diag(*(told.noise + told.sampling for told in found))
    noise = block_diag(*(told.noise for told in found))
    short = np.minimum(1.0, MOST / np.sqrt(np.diag(whole)))
    for name, matrix in ((COVARIANCE, whole), (NOISE, noise)):
        even = (matrix + matrix.T) / 2 * np.outer(short, short)
        columns |= {name.format(i + 1): even[:, i] for i in range(len(coefficients))}
    return columns


def _lay_out_apart(told: Sequence[Apart]) -> dict[str, Array]:
    """Of each regression and term, all levels."""
    estimates, variances, noise = (
        np.concatenate([values.ravel() for values in each])
        for each in zip(*((a.estimates, a.variances, a.noise) for a in told), strict=True)
    )
    variances = np.clip(variances, 1 / MOST**2, MOST**2)
    return {
        TERM: np.arange(1.0, len(estimates) + 1),
        ESTIMATE: np.clip(estimates, -MOST, MOST),
        VARIANCE: variances,
        ADDED: np.clip(noise, 0.0, variances),
    }

"""Worst cases of the ``structured`` mechanism: what it counts, and its outcomes' scores; and of
``scoring``, which asks rows alike, in more rounds, and adds up what no regression answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.audit.releases import DELTA, repeated
from penstock.audit.worlds import Target
from penstock.mechanisms.classes import pair_counts
from penstock.mechanisms.copula.grids import make_grid
from penstock.mechanisms.scoring.plan import plan_at
from penstock.mechanisms.scoring.settings import Scoring
from penstock.mechanisms.scoring.ways import make_tally
from penstock.mechanisms.structured import counting, score_clipping
from penstock.mechanisms.structured.plan import measure_outcome
from penstock.privacy.measurements import charge
from penstock.privacy.noise.sources import NoiseSource
from penstock.questions.estimands import Estimand
from penstock.schema import Coded, Column, Schema

Array = NDArray[np.float64]


def scores(scale: float) -> Target:
    """One round of an outcome: rows far beyond the clip, in every entry alike."""
    rows_each, entries, sigma = 2, 3, 0.5 * scale
    far = np.full((rows_each, entries), 100.0)
    measurement = measure_outcome(sigma, 1, 1, entries)

    def run(person: bool, runs: int, noise: NoiseSource) -> Array:
        present = np.full(rows_each, person)

        def once() -> float:
            released = score_clipping.release_scores(far, present, rows_each, measurement, noise)
            return float(released.sum())

        return repeated(once, runs)

    worst = "all rows of a person far beyond the clip, in every entry alike"
    return Target("structured", worst, (measurement.event,), DELTA, 3_000, run)


def margins(scale: float) -> Target:
    """Counts of a covariate, its values and a duration: all of a person's rows in one empty cell of
    each."""
    rows_each, sigma, others = 2, 0.5 * scale, 40
    duration = Column("time", "duration", upper=8, event="died")
    grids = [make_grid(Column("x", "integer", lower=0, upper=99))]
    measurement = counting.measure_margins(sigma, grids, 1, rows_each)
    low = np.zeros(others + rows_each)
    low[-rows_each:] = 1.0
    coded: Coded = {"x": 99 * low, "time": 8 * low, "died": low}

    def run(person: bool, runs: int, noise: NoiseSource) -> Array:
        present = np.ones(len(low), dtype=np.bool_)
        present[-rows_each:] = person
        given = (grids, [duration], coded, present)

        def once() -> float:
            counts = counting.release_margins(*given, len(given[-1]), measurement, noise)
            events = [level[-1] for level in counts.times[0].events]
            # Of values there is twice the noise: each counts by how much it tells.
            return float(counts.cells[0][-1] + counts.values[0][-1] / 4 + sum(events))

        return repeated(once, runs)

    worst = "all rows of a person in one cell of the only covariate, one value, and of the duration"
    return Target("structured-margins", worst, (measurement.event,), DELTA, 3_000, run)


def pairs(scale: float) -> Target:
    """Counts of every pair of columns: all of a person's rows in one empty cell of each."""
    rows_each, sigma, others, columns = 2, 0.5 * scale, 40, 4
    grids = [make_grid(Column(f"x{j}", "categorical", levels=tuple("abc"))) for j in range(columns)]
    measurement = pair_counts.measure_pairs(sigma, grids, rows_each)
    groups = [pair_counts.Groups.make(grid, np.full(grid.count, 1 / grid.count)) for grid in grids]
    last = np.zeros(others + rows_each)
    last[-rows_each:] = 2.0
    coded: Coded = {grid.column.name: last for grid in grids}

    def run(person: bool, runs: int, noise: NoiseSource) -> Array:
        present = np.ones(len(last), dtype=np.bool_)
        present[-rows_each:] = person

        def once() -> float:
            found = pair_counts.release_pairs(groups, coded, present, measurement, noise)
            return float(found[2::3, 2::3].sum() / 2)

        return repeated(once, runs)

    worst = "all rows of a person in one cell of every pair of columns"
    return Target("structured-pairs", worst, (measurement.event,), DELTA, 3_000, run)


def rounds(scale: float) -> Target:
    """All rounds of an answer, as its plan has them: rows far beyond the clip in each."""
    rows_each, entries = 2, 3
    schema = Schema(
        (Column("y", "continuous", lower=0, upper=1), Column("x", "continuous", lower=0, upper=1)),
        person="person",
        max_rows_per_person=rows_each,
    )
    asked = (Estimand("slope", "ols", "y", "x"),)
    planned = plan_at(Scoring(), schema, 1, asked, 0.5 * scale)
    [outcome] = planned.outcomes
    measurements = planned.rounds_of(outcome)
    far = np.full((rows_each, entries), 100.0)

    def run(person: bool, runs: int, noise: NoiseSource) -> Array:
        present = np.full(rows_each, person)

        def once() -> float:
            # Each round tells as much as its noise lets it.
            told = (
                score_clipping.release_scores(far, present, rows_each, each, noise).sum()
                / each.sd**2
                for each in measurements
            )
            return float(sum(told))

        return repeated(once, runs)

    worst = "all rows of a person far beyond the clip, in every entry and every round"
    return Target("scoring", worst, charge(measurements), DELTA, 3_000, run)


def tallies(scale: float) -> Target:
    """All that answers without a regression: a person's rows at the ends of every column."""
    rows_each, others = 2, 40
    schema = Schema(
        (
            Column("x", "continuous", lower=0, upper=1),
            Column("z", "continuous", lower=0, upper=1),
            Column("flag", "binary"),
            Column("time", "duration", upper=8, event="died"),
            Column("died", "event"),
        ),
        person="person",
        max_rows_per_person=rows_each,
    )
    asked = (
        Estimand("mean", "mean", "x"),
        Estimand("median", "quantile", "z", probability=0.5),
        Estimand("share", "share", "flag", outcome_level="1"),
        Estimand("half", "survival", "time", at=4.0),
    )
    planned = plan_at(Scoring(), schema, others + 1, asked, 0.5 * scale)
    here = np.zeros((others + 1) * rows_each)
    here[-rows_each:] = 1.0
    coded: Coded = {name: here * (8.0 if name == "time" else 1.0) for name in schema.names}
    made = [make_tally(each) for each in planned.descriptions]
    # The person alone: what the sums are told apart by.
    far = [tally.add_up(coded, here > 0) * tally.unit for tally in made]

    def run(person: bool, runs: int, noise: NoiseSource) -> Array:
        present = np.ones(len(here), dtype=np.bool_)
        present[-rows_each:] = person

        def once() -> float:
            told = 0.0
            for tally, each, own in zip(made, planned.tallies, far, strict=True):
                members = tally.description.find_members(coded, present)
                noisy = each(tally.add_up(coded, members), noise)
                told += float(noisy @ own) / each.sd**2
            return told

        return repeated(once, runs)

    worst = "all rows of a person at the end of every column, where nobody else is"
    return Target("scoring-tallies", worst, planned.events, DELTA, 1_000, run)

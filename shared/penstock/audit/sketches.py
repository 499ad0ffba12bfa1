"""Worst cases of the ``sliced-wasserstein`` mechanism: what it releases of projected rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.audit.releases import DELTA, repeated
from penstock.audit.worlds import Target
from penstock.mechanisms.sliced_wasserstein import batches
from penstock.mechanisms.sliced_wasserstein.goals import Goal, Schedule
from penstock.mechanisms.sliced_wasserstein.sketch import (
    Directions,
    measure_sketch,
    release_sketch,
)
from penstock.privacy.factorisation import strategy
from penstock.privacy.noise.sources import NoiseSource
from penstock.privacy.sensitivity import orthonormal_stack

Array = NDArray[np.float64]

_ROWS = 2


def sketch(scale: float, releases: int = 1) -> Target:
    """Distribution functions: all of a person's rows in the middle bin of every direction.

    ``releases`` of them, charged as one.
    """
    d, bins, sigma = 2, 5, 0.5 * scale
    where = Directions.within(orthonormal_stack(2 * d, d, np.random.default_rng(0)), 0.0, 1.0)
    rows = np.zeros((1, _ROWS, d))
    moved = _ROWS * strategy(bins)[:, bins // 2]
    measurement = measure_sketch(sigma, where.count, bins, _ROWS)

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        there = np.full((1, _ROWS), person)

        def once() -> float:
            found = 0.0
            for _ in range(releases):
                seen = release_sketch(rows, there, where, bins, measurement, noise)
                found += float((_counted(seen.halves, bins) @ moved).sum())
            return found

        return repeated(once, runs)

    worst = "all rows of a person in the same bin of every direction"
    return Target("sketch", worst, (measurement.event,), DELTA, 2_000, scores)


def presampled(scale: float) -> Target:
    """Projections of all rows, released once: a person's rows at the radius, alike.

    The attacker adds up what every step of the flow is given, which is the same in all of them.
    """
    d, bases, radius, sigma = 3, 2, 2.0, 0.5 * scale
    rows = np.zeros((1, _ROWS, d))
    rows[..., 0] = 100.0
    measurement = batches.measure_all(sigma, radius, bases, d, _ROWS)

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        there = np.full((1, _ROWS), person)
        schedule = Schedule(steps=4, bases=bases)

        def once() -> float:
            goals = batches.presampled(rows, there, radius, bases, measurement, schedule, noise)
            return sum(_along(goal, _ROWS) for goal in goals)

        return repeated(once, runs)

    worst = "a person's rows far outside the radius; along any axis they move projections alike"
    return Target("presampled", worst, (measurement.event,), DELTA, 3_000, scores)


def resampled(scale: float) -> Target:
    """One step on a batch of fixed size: the person at one end of a ball, all others at the other.

    Steps of one release are drawn independently of each other: each counts as a run.
    """
    bases, radius, batch, persons, sigma = 1, 1.0, 1, 3, 0.5 * scale

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        rows = np.full((persons, 1, 1), -100.0)
        rows[0] = 100.0 if person else -100.0
        there = np.ones((persons, 1), dtype=bool)
        steps = batches.measure_batches(sigma, radius, bases, persons, batch, runs)
        goals = batches.resampled(rows, there, radius, bases, steps, noise)
        return np.array([_along(goal, batch) for goal in goals])

    event = batches.measure_batches(sigma, radius, bases, persons, batch, 1).event
    worst = "a row at one end of the ball, all others at the other"
    return Target("resampled", worst, (event,), DELTA, 20_000, scores)


def _along(goal: Goal, count: int) -> float:
    """What a goal of so many rows says of the first coordinate, all directions together."""
    levels = np.tile(np.linspace(0, 1, count), (goal.theta.shape[1], 1))
    return float(goal.theta[0] @ goal.quantiles(levels).sum(axis=1))


def _counted(halves: Array, bins: int) -> Array:
    """A·h with its noise, (N, B), from what is made of it: half the rows below each edge less half
    of those above are linear in it."""
    below = np.where(np.arange(bins) < np.arange(1, bins + 1)[:, None], 0.5, -0.5)
    counts = np.linalg.solve(below, halves[:, 1:].T)
    released: Array = (strategy(bins) @ counts).T
    return released

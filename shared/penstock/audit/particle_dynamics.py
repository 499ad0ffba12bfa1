"""Worst cases of the ``trajectory`` mechanism: its start, what rows pull on its particles, and what
the visits of one person add to moments.

The attacker sees every noisy sum of the dynamics, as the accounting assumes: where the person is so
far away that they pull all particles alike, always beyond the clip, and nothing else moves these,
the last iterate shows the sum of all of them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from penstock.audit.releases import DELTA, repeated
from penstock.audit.worlds import Target
from penstock.mechanisms.copula.grids import make_grid
from penstock.mechanisms.tables.moments import measure_moments
from penstock.mechanisms.trajectory import headcounts, visit_scores
from penstock.mechanisms.trajectory import start as starts
from penstock.mechanisms.trajectory.coordinates import Places
from penstock.mechanisms.trajectory.drift import Rows
from penstock.mechanisms.trajectory.dynamics import descend
from penstock.mechanisms.trajectory.follow_up import FollowUp
from penstock.mechanisms.trajectory.followed import Followed
from penstock.mechanisms.trajectory.plan import Dynamics
from penstock.mechanisms.trajectory.repeats import measure_persons
from penstock.privacy.noise.sources import NoiseSource
from penstock.schema import Column

Array = NDArray[np.float64]

_ROWS = 2
_AWAY, _WIDTH, _MANY = 1.0, 1e-2, 1e9
"""How far the person is, the kernel's width, and how many rows there are said to be: so many that
particles hardly move."""


def start(scale: float) -> Target:
    """Moments by time point: all of a person's rows at one of them, far out in one direction."""
    d, radius, times = 2, 2.0, 2
    how = starts.Start(0.5 * scale, 1, radius, d, _ROWS, times)
    far = np.full((1, _ROWS, d), 100.0)
    bins = np.zeros((1, _ROWS), dtype=np.int64)
    at = np.append(radius * far[0, 0] / np.linalg.norm(far[0, 0]), how.constant)
    measurement = starts.measure_start(how)

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        there = np.full((1, _ROWS), person)

        def once() -> float:
            whole, _ = starts.contributions(how, far, bins, there, bins)
            sums = measurement(starts.sum_cells(whole, bins.ravel(), times), noise)
            # <M, y yᵀ> of the released matrix is the projection on what the person moves.
            return float(at @ sums[0] @ at)

        return repeated(once, runs)

    worst = "all rows of a person at one time point, far outside the radius"
    return Target("trajectory-start", worst, (measurement.event,), DELTA, 3_000, scores)


def together(scale: float) -> Target:
    """Moments of persons: four visits, each far outside the radius, in one direction."""
    visits, radius, sigma = 4, 2.0, 0.5 * scale
    far = np.full((1, visits), 100.0)
    at = np.append(far[0], 1.0) / np.linalg.norm(np.append(far[0], 1.0))
    measurement = measure_moments(sigma, radius, visits, 1)

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        seen = np.array([person])
        given = (far, seen, radius, measurement, noise)
        return repeated(lambda: float(at @ visit_scores.release_together(*given) @ at), runs)

    worst = "every visit of a person far outside the radius"
    return Target("trajectory-persons", worst, (measurement.event,), DELTA, 3_000, scores)


def attended(scale: float) -> Target:
    """Counts of persons: all visits of one, and the end, in cells where nobody else is."""
    most, sigma = 3, 0.5 * scale
    grids = [make_grid(Column("x", "binary"))]
    fixed = [make_grid(Column("sex", "binary", varies=False))]
    end = Column("years", "duration", upper=3, event="died", varies=False)
    ending = FollowUp(end, "died", tuple(range(most)), same=True, cells=8)
    places = Places(fixed, grids, most, ending)
    measurement = measure_persons(sigma, grids, fixed, most, most, ending)

    def alike(count: int) -> Followed:
        once = {"sex": 1.0, "years": 2.5, "died": 1.0}
        constants = {name: np.full(count, value) for name, value in once.items()}
        there = np.ones((count, most), dtype=np.bool_)
        return Followed(there, {"x": np.ones((count, most))}, constants)

    moved = np.concatenate(headcounts.count_persons(places, alike(1)))

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        followed = alike(2)
        followed.there[0], followed.there[1] = person, False

        def once() -> float:
            counts = np.concatenate(headcounts.count_persons(places, followed))
            return float(measurement(counts, noise) @ moved)

        return repeated(once, runs)

    worst = "all visits of a person, and the end, in cells of their own"
    return Target("trajectory-margins", worst, (measurement.event,), DELTA, 3_000, scores)


def dynamics(scale: float, particles: int = 8, times: int = 1) -> Target:
    """Every person in every step: two rows at each of some time points, pulling all particles."""
    steps = 2
    how = _dynamics(0.5 * scale * math.sqrt(steps), 1.0, steps)
    return Target(
        "trajectory",
        "a person far away, whose rows pull all particles as hard as they may",
        (how.measurement.event,),
        DELTA,
        3_000,
        lambda person, runs, noise: _pulls(how, particles, times, person, runs, noise),
    )


def sampled(scale: float) -> Target:
    """One step on a Poisson sample of the persons."""
    how = _dynamics(0.7 * scale, 0.5, 1)
    return Target(
        "trajectory-poisson",
        "a person far away, who pulls all particles as hard as they may, in some of the samples",
        (how.measurement.event,),
        DELTA,
        10_000,
        lambda person, runs, noise: _pulls(how, 8, 1, person, runs, noise),
    )


def _dynamics(sigma: float, rate: float, steps: int) -> Dynamics:
    """Nothing moves particles but the noisy sums, and none of these more than another."""
    return Dynamics(
        sigma=sigma,
        rate=rate,
        steps=steps,
        clip=1.0,
        bandwidth=1.0,
        wide=1.0,
        step=1.0,
        smoothing=0.0,
        temperature=1.0,
        heat=0.0,
        cool=1.0,
        average=0.0,
    )


def _pulls(
    how: Dynamics, particles: int, times: int, person: bool, runs: int, noise: NoiseSource
) -> Array:
    """How far all particles went towards the person, (runs,)."""
    rows = np.full((1, _ROWS * times, 1), _AWAY)
    there, bins = np.full((1, _ROWS * times), person), np.repeat(np.arange(times), _ROWS)[None]
    data = Rows(rows, bins, there, times, "cpu", "float64")
    where = (
        np.zeros((times, particles, 1)),
        np.full(times, _WIDTH),
        np.full(times, _MANY),
        np.linspace(0.0, 1.0, times),
        np.array([2 * _AWAY]),
    )
    return repeated(lambda: float(descend(how, data, *where, noise).sum()), runs)

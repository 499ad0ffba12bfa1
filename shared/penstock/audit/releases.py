"""Worst cases of what is released at once: sums, counts, rows, shuffled rows.

Each function takes a ``scale`` on its noise and gives a :class:`~penstock.audit.worlds.Target`.
The person of the second world contributes all that the mechanism lets anyone contribute; everybody
else's contribution is known to the attacker and left out, or put where it helps them most.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from penstock.audit.worlds import Bools, Target
from penstock.mechanisms.tables import latent_noise, margins
from penstock.mechanisms.tables.moments import measure_moments, release_moments
from penstock.mechanisms.tables.outcome import Hazard, measure_scores, release_score
from penstock.privacy import sensitivity
from penstock.privacy.events import (
    Approximate,
    DistributedGaussian,
    Event,
    Gaussian,
    Laplace,
    OnStratum,
    Pure,
    ShuffledGaussian,
)
from penstock.privacy.measurements import GaussianSum, LatentNoise, WholeSum
from penstock.privacy.noise import discrete
from penstock.privacy.noise import sources as noises
from penstock.privacy.noise.sources import NoiseSource
from penstock.privacy.numbers import MAX_PERSONS, share, whole
from penstock.schema.encoding import Outcome

Array = NDArray[np.float64]

DELTA = 1e-5


def repeated(once: Callable[[], float], runs: int) -> Array:
    """One number per run, for code that makes one release at a time; (runs,)."""
    return np.array([once() for _ in range(runs)])


# -- additive noise ----------------------------------------------------------------------------


def gaussian(scale: float) -> Target:
    """A sum with Gaussian noise; sensitivity 3, so that forgetting it shows."""
    reach = 3.0
    measurement = GaussianSum("a sum", scale, reach)

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        return measurement(np.full(runs, reach if person else 0.0), noise)

    worst = "one sum, moved by all of its sensitivity"
    return Target("gaussian", worst, (measurement.event,), DELTA, 2_000_000, scores)


def discrete_gaussian(scale: float) -> Target:
    """A sum of whole numbers with the exact discrete Gaussian."""
    reach = 3
    measurement = WholeSum("a count", scale, float(reach), Fraction(reach**2), 1.0, 1)

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        # One of so many numbers, of which each is a run of its own.
        many = replace(measurement, size=runs)
        return many(np.full(runs, reach if person else 0, dtype=np.int64), noise)

    worst = "one count, moved by all of its sensitivity"
    return Target("discrete-gaussian", worst, (measurement.event,), DELTA, 20_000, scores)


def laplace(scale: float) -> Target:
    """A count with exact discrete Laplace noise."""
    reach = 2

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        draws = discrete.discrete_laplace(scale * reach, runs, noise)
        return np.array(draws, dtype=np.float64) + (reach if person else 0)

    event = Laplace(scale, label="a count", sensitivity=float(reach))
    worst = "one count, moved by all of its sensitivity"
    return Target("laplace", worst, (event,), DELTA, 40_000, scores)


def distributed(scale: float, missing: int = 0) -> Target:
    """A sum over sites of which some dropped out and some collude: they subtract what they know.

    ``missing`` more sites than charged for are gone.
    """
    sites, dropouts, colluders, sigma = 5, 1, 2, scale
    event = DistributedGaussian(sigma, sites, dropouts, colluders, grid_sd=2.0**40)
    own = GaussianSum("a site's part", sigma / math.sqrt(event.honest), 1.0)

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        total = np.zeros(runs)
        for site in range(event.honest - missing):
            moved = np.full(runs, float(person and site == 0))
            total = total + own(moved, noise)
        return total

    worst = "a total of five sites, one gone and two colluding"
    return Target("distributed", worst, (event,), DELTA, 500_000, scores)


STRATA = ("women", "men")


def strata(scale: float, member: tuple[str, ...] = STRATA[:1]) -> Target:
    """One sum per stratum, all seen; the person is in one of them (``member``)."""
    measurement = GaussianSum("", scale, 1.0)

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        score = np.zeros(runs)
        for stratum in STRATA:
            sums = np.full(runs, float(person and stratum in member))
            released = measurement(sums, noise)
            if stratum in member:
                score += released
        return score

    events = tuple(OnStratum(name, Gaussian(scale)) for name in STRATA)
    worst = "one sum per stratum, the person in the first"
    return Target("strata", worst, events, DELTA, 500_000, scores)


# -- counts and moments ------------------------------------------------------------------------


def histograms(scale: float) -> Target:
    """Counts of one column: all of a person's rows in one empty bin, and in the count of rows."""
    rows_each, sigma, low, high = 2, 0.5 * scale, np.array([-1.0]), np.array([1.0])
    rows = np.full((80, rows_each, 1), low)
    rows[-1] = high
    measurement = margins.measure_histograms(sigma, 1, rows_each)

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        present = np.zeros(rows.shape[:2], dtype=bool)
        present[:40] = True  # in the middle of what a count of rows may be
        present[-1] = person

        def once() -> float:
            counts = margins.release_histograms(rows, present, low, high, measurement, noise)
            return float(counts.bins[0, -1] + counts.rows)

        return repeated(once, runs)

    worst = "all rows of a person in one bin of the only column"
    return Target("histograms", worst, (measurement.event,), DELTA, 3_000, scores)


def moments(scale: float) -> Target:
    """Second moments: rows far outside the radius, all in one direction."""
    rows_each, radius, sigma = 2, 2.0, 0.5 * scale
    far = np.full((1, rows_each, 2), 100.0)
    at = np.append(far[0, 0], 1.0) / np.linalg.norm(np.append(far[0, 0], 1.0))
    measurement = measure_moments(sigma, radius, 2, rows_each)

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        present = np.full((1, rows_each), person)
        # <M, y yᵀ> of the released matrix is the projection on what the person moves.
        return repeated(
            lambda: float(at @ release_moments(far, present, radius, measurement, noise) @ at), runs
        )

    worst = "all rows of a person far outside the radius, in one direction"
    return Target("moments", worst, (measurement.event,), DELTA, 5_000, scores)


def outcome(scale: float) -> Target:
    """A hazard's score: rows at its largest residual, all covariates alike, far beyond the clip."""
    rows_each, d, sigma = 2, 6, 0.5 * scale
    others = d - 3
    times = np.array([-1.0, 1.0])
    whole = Outcome(0, 1, 2)
    hazard = Hazard(whole, [3, 4, 5], times, times + 1, np.zeros(others), np.eye(others))
    # Event-free at the end, at a risk of e⁴: each entry is -2e⁴, the clip about 2.
    values = np.tile([0.0, -1.0, 1.0, 1.0, 1.0, 1.0], (1, rows_each, 1))
    covariates, measurement = np.ones(d - 2), measure_scores(sigma, d, 1)

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        present = np.full((1, rows_each), person)

        def once() -> float:
            released = release_score(
                hazard, values, values, present, covariates, measurement, noise
            )
            return -float(released.sum())

        return repeated(once, runs)

    worst = "all rows of a person far beyond the clip, in every entry alike"
    return Target("outcome", worst, (measurement.event,), DELTA, 3_000, scores)


# -- rows --------------------------------------------------------------------------------------


def injection(scale: float, radius: float = 3.0) -> Target:
    """Latent noise injection: a latent far outside the clip; every row is a run of its own."""
    # σ = √((1-w)/w)/R; w gives way so that the noise multiplier is the scale.
    d = 4
    w = 1 / (1 + (scale * radius) ** 2)
    far, measurement = np.full(d, 100.0), LatentNoise(w, radius)

    def rows(present: Bools, noise: NoiseSource) -> Array:
        latents = np.broadcast_to(far, (len(present), d))
        released = latent_noise.inject(latents, present, measurement, noise)
        score: Array = released @ far
        return score

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        return rows(np.full(runs, person), noise)

    def canaries(noise: NoiseSource) -> tuple[Bools, Array]:
        included = noise.uniform(20_000) < 0.5
        return included, rows(included, noise)

    worst = "a latent far outside the clip against an absent row"
    return Target(
        "injection", worst, (measurement.event,), DELTA, 500_000, scores, canaries, guessed=0.02
    )


PERSONS = 2000


def any_order(rows: Array, step: float) -> Array:
    """Log likelihood ratio of a table's *set* of rows: one of them, whichever, moved by 2·step."""
    exponent = 2 * step * rows
    largest = exponent.max(axis=1)
    ratio: Array = largest + np.log(np.exp(exponent - largest[:, None]).mean(axis=1))
    return ratio


def shuffled_injection(
    w: float, clip: float, persons: int, delta: float, count: int = 1
) -> ShuffledGaussian:
    r"""Latent noise injection whose rows leave in random order, one row per person and copy.

    The diameter of a clipped latent times √w is 2R√w; noise sd √(1-w).

    Args:
        w, clip: as of :class:`~penstock.privacy.measurements.LatentNoise`; ``count``: copies.
        persons: n, public.
        delta: δ of one copy. A hundredth part of it, over n, is each row's own δ₀.
    """
    row = LatentNoise(w, clip)
    whole("persons", persons, MAX_PERSONS)
    share("δ", delta)
    local = delta / (100.0 * persons)
    reach = sensitivity.latent_diameter(w, clip)
    return ShuffledGaussian(
        persons, row.noise_multiplier / 2, local, delta, count, row.label, reach
    )


def shuffled(scale: float, score: Callable[[Array, float], Array] = any_order) -> Target:
    """Rows in random order: the person at one end of the clip, all others at the other end."""
    radius, delta = 2.0, 1e-2
    w = 1 / (1 + (3 * scale * radius) ** 2)
    measurement = LatentNoise(w, radius)

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        latents = np.full((runs, PERSONS, 1), -10.0)
        latents[:, 0] = 10.0 if person else -10.0
        present = np.ones((runs, PERSONS), dtype=bool)
        rows = latent_noise.inject(latents, present, measurement, noise)[..., 0]
        for row in rows:
            row[:] = row[noises.permutation(PERSONS, noise)]
        # In units of the noise's sd, R√w away from 0 on either side.
        return score(rows / math.sqrt(1 - w), radius * math.sqrt(w / (1 - w)))

    event = shuffled_injection(w, radius, PERSONS, delta / 2)
    worst = "a row at one end of the clip, all others at the other, in random order"
    return Target("shuffled", worst, (event,), delta, 20_000, scores, at_once=500)


# -- laws without a mechanism of their own -----------------------------------------------------


def pure(scale: float) -> Target:
    """Randomised response on a bit."""
    epsilon = 1.0 / scale

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        truth = noise.uniform(runs) < 1 / (1 + math.exp(-epsilon))
        answer: Array = np.where(truth, float(person), float(not person))
        return answer

    event = Pure(epsilon, label="randomised response")
    return Target("pure", "a bit", (event,), DELTA, 500_000, scores)


def approximate(scale: float) -> Target:
    """Randomised response that tells the truth outright with probability δ."""
    epsilon, leak = 1.0 / scale, 1e-3

    def scores(person: bool, runs: int, noise: NoiseSource) -> Array:
        told = noise.uniform(runs) < leak
        truth = noise.uniform(runs) < 1 / (1 + math.exp(-epsilon))
        answer = np.where(truth, float(person), float(not person))
        outright: Array = np.where(told, 2.0 * float(person) - 0.5, answer)
        return outright

    events: tuple[Event, ...] = (Approximate(epsilon, leak, label="response with a leak"),)
    return Target("approximate", "a bit", events, 1.1 * leak, 500_000, scores)

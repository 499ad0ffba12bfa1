"""Releases by noise multiplier: each makes its own measurement, where a plan would hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.gibbs.sums import Contributions, add_up, measure_sum
from penstock.mechanisms.sliced_wasserstein import batches
from penstock.mechanisms.sliced_wasserstein.goals import Goal, Schedule
from penstock.mechanisms.sliced_wasserstein.sketch import (
    Directions,
    Sketch,
    measure_sketch,
    release_sketch,
)
from penstock.mechanisms.tables import latent_noise
from penstock.mechanisms.tables.margins import Counts, measure_histograms, release_histograms
from penstock.mechanisms.tables.moments import measure_moments, release_moments
from penstock.mechanisms.tables.outcome import Hazard, measure_scores, release_score
from penstock.mechanisms.trajectory.start import Start, measure_start, sum_cells
from penstock.privacy.measurements import LatentNoise
from penstock.privacy.noise.sources import NoiseSource
from penstock.schema.encoding import Outcome, Simplex

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]


def noisy_histograms(
    rows: Array,
    present: Bools,
    low: Array,
    high: Array,
    sigma: float | None,
    noise: NoiseSource,
    outcomes: Sequence[Outcome] = (),
    levels: Mapping[int, Array] | None = None,
    simplices: Sequence[Simplex] = (),
) -> Counts:
    _, k, d = rows.shape
    spared = sum(len(s.points) - 2 for s in simplices)
    asked = None if sigma is None else measure_histograms(sigma, d, k, len(outcomes), spared)
    given = (rows, present, low, high, asked, noise, outcomes, levels)
    return release_histograms(*given, simplices=simplices)


def noisy_moments(
    scores: Array, present: Bools, radius: float, sigma: float | None, noise: NoiseSource
) -> Array:
    _, k, d = scores.shape
    asked = None if sigma is None else measure_moments(sigma, radius, d, k)
    return release_moments(scores, present, radius, asked, noise)


def noisy_score(
    hazard: Hazard,
    values: Array,
    scores: Array,
    present: Bools,
    theta: Array,
    sigma: float | None,
    noise: NoiseSource,
    outcomes: int,
) -> Array:
    asked = None if sigma is None else measure_scores(sigma, values.shape[2], outcomes)
    return release_score(hazard, values, scores, present, theta, asked, noise)


def noisy_sketch(
    rows: Array,
    present: Bools,
    directions: Directions,
    bins: int,
    sigma: float | None,
    noise: NoiseSource,
) -> Sketch:
    many = directions.count
    asked = None if sigma is None else measure_sketch(sigma, many, bins, rows.shape[1])
    return release_sketch(rows, present, directions, bins, asked, noise)


def noisy_sum(
    rows: int, size: int, contributions: Contributions, sigma: float, k: int, noise: NoiseSource
) -> Array:
    return measure_sum(sigma, size, k, "a sum")(add_up(rows, size, contributions), noise)


def noisy_sums(start: Start, whole: Whole, cells: Whole, count: int, noise: NoiseSource) -> Array:
    return measure_start(start)(sum_cells(whole, cells, count), noise)


def presampled(
    rows: Array,
    present: Bools,
    radius: float,
    bases: int,
    sigma: float,
    schedule: Schedule,
    noise: NoiseSource,
    absent: float = 0.0,
) -> Iterator[Goal]:
    _, k, d = rows.shape
    asked = batches.measure_all(sigma, radius, bases, d, k)
    return batches.presampled(rows, present, radius, bases, asked, schedule, noise, absent)


def resampled(
    rows: Array,
    present: Bools,
    radius: float,
    bases: int,
    batch: int,
    sigma: float,
    schedule: Schedule,
    noise: NoiseSource,
    absent: float = 0.0,
) -> Iterator[Goal]:
    asked = batches.measure_batches(sigma, radius, bases, len(rows), batch, schedule.steps)
    return batches.resampled(rows, present, radius, bases, asked, noise, absent)


def inject(latents: Array, present: Bools, w: float, radius: float, noise: NoiseSource) -> Array:
    asked = None if w == 0 else LatentNoise(w, radius)
    return latent_noise.inject(latents, present, asked, noise)

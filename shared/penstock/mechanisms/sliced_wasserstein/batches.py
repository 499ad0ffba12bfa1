r"""Noisy projections of rows themselves: the two variants of the paper, with honest charges.

A row y, clipped to norm r, is released as yΘ with Gaussian noise of its own, Θ (d, N) stacked
orthonormal bases, so that ‖yΘ‖ = √(N/d)·‖y‖ with certainty. Null rows are released too, as noise;
how many there are is known from a noisy count, and their part of the distribution is taken out
afterwards.

* *resampled* (DPSWflow-r): at each step a batch is drawn anew, without replacement, and projected
  on new directions. Another row takes an absent person's place, so the charge is by the diameter:
  :class:`penstock.privacy.events.FixedSizeGaussian`. Batches must be drawn afresh: the first
  epoch's, replayed, are no sample of fixed size, and cost far more than that.
* *presampled* (DPSWflow): all rows are projected once, and the flow uses *the same* noisy numbers
  in every step: one :class:`penstock.privacy.events.Gaussian`. Noise that is drawn again at each
  step is another release each time.

Diffusion earns nothing, since all particles are released. The accuracy is that of local privacy,
however many rows there are: :mod:`penstock.mechanisms.sliced_wasserstein.sketch` is for use, these
are for comparison. Noise is added row by row and then only ever seen in order, so nothing tells
which row is whose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from penstock.base.errors import InvalidEvent
from penstock.mechanisms.sliced_wasserstein.goals import Goal, Schedule, least_squares
from penstock.privacy.events import FixedSizeGaussian, Gaussian
from penstock.privacy.noise.sources import NoiseSource, add_gaussian
from penstock.privacy.numbers import positive
from penstock.privacy.sensitivity import (
    orthonormal_projections,
    orthonormal_stack,
    row_diameter,
)

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


def presampled_event(
    sigma: float, radius: float, bases: int, d: int, rows_per_person: int = 1
) -> Gaussian:
    """What :func:`presampled` is charged as."""
    reach = orthonormal_projections(radius, bases * d, d, rows_per_person)
    return Gaussian(sigma, 1, "noisy projections of all rows", reach)


def resampled_event(
    sigma: float, radius: float, bases: int, persons: int, batch: int, steps: int
) -> FixedSizeGaussian | Gaussian:
    """What :func:`resampled` is charged as; one row per person.

    A batch of all rows is no sample: nobody takes anybody's place, but the noise, which is relative
    to the diameter, is kept; under zero-out one person then moves half of it.
    """
    reach, label = row_diameter(radius) * math.sqrt(bases), "noisy projections of a batch"
    if batch >= persons:
        return Gaussian(2 * sigma, steps, label, reach / 2)
    return FixedSizeGaussian(batch, persons, sigma, steps, label, reach)


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
    """Goals of all steps from one release of all rows' projections.

    Args:
        rows: (n, k, d); present: (n, k). Rows are clipped to the radius; absent ones, and ones that
            are not finite, are null.
        sigma: noise multiplier relative to a person's contribution, zero-out.
        absent: share of null rows in [0, 1), public or released.
    """
    _, k, d = rows.shape
    event = presampled_event(sigma, radius, bases, d, k)
    y, sd = clipped(rows, present, radius), event.noise_multiplier * event.sensitivity
    theta = orthonormal_stack(bases * d, d, noise.generator())
    ordered = _released(y, theta, sd, noise)
    for which in schedule.turns(bases * d, d):
        yield _goal(theta[:, which], ordered[which], sd, absent)


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
    """Goals of all steps, each from a batch, directions and noise of its own.

    Args:
        rows: (n, 1, d); else as in :func:`presampled`.
        bases: how many of d directions each step has; the schedule's own does not count.
        sigma: noise multiplier relative to the diameter.
        absent: as in :func:`presampled`; of every batch, on average.
    """
    n, k, d = rows.shape
    if k != 1:
        raise InvalidEvent("batches are of persons with one row each", value=k, bound="1")
    event = resampled_event(sigma, radius, bases, n, batch, schedule.steps)
    y, sd = clipped(rows, present, radius), event.noise_multiplier * event.sensitivity
    for _ in range(schedule.steps):
        theta = orthonormal_stack(bases * d, d, noise.generator())
        chosen = np.argpartition(noise.uniform(n), batch - 1)[:batch] if batch < n else slice(None)
        yield _goal(theta, _released(y[chosen], theta, sd, noise), sd, absent)


def clipped(rows: Array, present: Bools, radius: float) -> Array:
    """(n, k, d) rows to (n·k, d) of norm at most the radius; null ones are 0."""
    positive("radius", radius)
    flat = rows.reshape(-1, rows.shape[2])
    there = present.ravel() & np.isfinite(flat).all(axis=1)
    y = np.where(there[:, None], flat, 0.0)
    # By way of the largest entry: squares of huge numbers would overflow.
    largest = np.maximum(np.abs(y).max(axis=1, keepdims=True), 1e-300)
    norm = largest * np.linalg.norm(y / largest, axis=1, keepdims=True)
    short: Array = y * np.minimum(1.0, radius * (1 - 1e-12) / np.maximum(norm, 1e-300))
    return short


def _released(y: Array, theta: Array, sd: float, noise: NoiseSource) -> Array:
    """Noisy projections, (N, rows), in rising order."""
    return np.sort(add_gaussian(y @ theta, sd, noise).T, axis=1)


def _goal(theta: Array, ordered: Array, sd: float, absent: float) -> Goal:
    """Towards the rows that are there: F = (F_all - absent·Φ(·/sd)) / (1 - absent), rising."""
    even = np.arange(ordered.shape[1]) / max(ordered.shape[1] - 1, 1)
    share = (even - absent * ndtr(ordered / sd)) / (1 - absent)
    at = np.maximum.accumulate(np.clip(share, 0.0, 1.0), axis=1)

    def quantiles(levels: Array) -> Array:
        found = zip(levels, at, ordered, strict=True)
        return np.stack([np.interp(level, own, row) for level, own, row in found])

    return Goal(theta, least_squares(theta), quantiles, sd)

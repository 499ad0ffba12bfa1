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
from penstock.privacy.measurements import FixedSample, GaussianSum, Query, answer
from penstock.privacy.noise.sources import NoiseSource
from penstock.privacy.numbers import positive
from penstock.privacy.sensitivity import (
    orthonormal_projections,
    orthonormal_stack,
    row_diameter,
)

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]


def measure_all(
    sigma: float, radius: float, bases: int, d: int, rows_per_person: int = 1
) -> GaussianSum:
    """All rows' projections, once; each of a person's rows is released by itself.

    Sensitivity: :func:`penstock.privacy.sensitivity.orthonormal_projections`, zero-out.
    """
    reach = orthonormal_projections(radius, bases * d, d, rows_per_person)
    return GaussianSum("noisy projections of all rows", sigma, reach)


def measure_batches(
    sigma: float, radius: float, bases: int, persons: int, batch: int, steps: int
) -> GaussianSum:
    """Each step's projections of a fresh batch; one row per person. By the diameter, replace-one.

    A batch of all rows is no sample: nobody takes anybody's place, but the noise, which is relative
    to the diameter, is kept; under zero-out one person then moves half of it.
    """
    reach, label = row_diameter(radius) * math.sqrt(bases), "noisy projections of a batch"
    if batch >= persons:
        return GaussianSum(label, 2 * sigma, reach / 2, steps)
    return GaussianSum(label, sigma, reach, steps, FixedSample(batch, persons))


def presampled(
    rows: Array,
    present: Bools,
    radius: float,
    bases: int,
    measurement: GaussianSum,
    schedule: Schedule,
    noise: NoiseSource,
    absent: float = 0.0,
) -> Iterator[Goal]:
    """Goals of all steps from one release of all rows' projections.

    Args:
        rows: (n, k, d); present: (n, k). Rows are clipped to the radius; absent ones, and ones that
            are not finite, are null.
        measurement: of :func:`measure_all`, for this radius, and as many bases and rows per person.
        absent: share of null rows in [0, 1), public or released.
    """
    d = rows.shape[2]
    y, sd = clipped(rows, present, radius), measurement.sd
    theta = orthonormal_stack(bases * d, d, noise.generator())
    ordered = in_order(measurement(y @ theta, noise))
    for which in schedule.turns(bases * d, d):
        yield _goal(theta[:, which], ordered[which], sd, absent)


class Resampling:
    """Steps that each see a batch of their own, on directions of their own: a session.

    A query is about who is in the batch, and the directions Θ (d, N).

    Args:
        measurement: of :func:`measure_batches`; noise: source of batches and directions.
        bases: how many of d directions each step has.
    """

    def __init__(
        self, measurement: GaussianSum, persons: int, d: int, bases: int, noise: NoiseSource
    ) -> None:
        self._measurement, self._noise = measurement, noise
        self._persons, self._d, self._bases = persons, d, bases
        credit = measurement.credit
        if isinstance(credit, FixedSample) and credit.population != persons:
            raise InvalidEvent(
                "batches are charged for another population",
                value=persons,
                bound=credit.population,
            )
        self._batch = credit.batch if isinstance(credit, FixedSample) else persons
        self._left = measurement.calls
        self.ordered: Array = np.empty((bases * d, 0))

    def next_query(self) -> Query[tuple[Indices | slice, Array]] | None:
        if self._left == 0:
            return None
        self._left -= 1
        theta = orthonormal_stack(self._bases * self._d, self._d, self._noise.generator())
        everyone = self._batch >= self._persons
        chosen = slice(None) if everyone else self._drawn()
        return Query((chosen, theta), self._measurement)

    def _drawn(self) -> Indices:
        return np.argpartition(self._noise.uniform(self._persons), self._batch - 1)[: self._batch]

    def absorb(self, noisy: Array) -> None:
        """Noisy projections (rows, N); they are only ever seen in order."""
        self.ordered = in_order(noisy)


def resampled(
    rows: Array,
    present: Bools,
    radius: float,
    bases: int,
    measurement: GaussianSum,
    noise: NoiseSource,
    absent: float = 0.0,
) -> Iterator[Goal]:
    """Goals of all steps, each from a batch, directions and noise of its own.

    Args:
        rows: (n, 1, d); else as in :func:`presampled`.
        bases: how many of d directions each step has; the schedule's own does not count.
        measurement: of :func:`measure_batches`, for this radius, and as many bases and persons.
        absent: as in :func:`presampled`; of every batch, on average.
    """
    n, k, d = rows.shape
    if k != 1:
        raise InvalidEvent("batches are of persons with one row each", value=k, bound="1")
    y = clipped(rows, present, radius)
    session = Resampling(measurement, n, d, bases, noise)
    while (query := session.next_query()) is not None:
        chosen, theta = query.about
        session.absorb(answer(query, y[chosen] @ theta, noise))
        yield _goal(theta, session.ordered, measurement.sd, absent)


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


def in_order(noisy: Array) -> Array:
    """Noisy projections (rows, N) as (N, rows), each direction's in rising order."""
    return np.sort(noisy.T, axis=1)


def _goal(theta: Array, ordered: Array, sd: float, absent: float) -> Goal:
    """Towards the rows that are there: F = (F_all - absent·Φ(·/sd)) / (1 - absent), rising."""
    even = np.arange(ordered.shape[1]) / max(ordered.shape[1] - 1, 1)
    share = (even - absent * ndtr(ordered / sd)) / (1 - absent)
    at = np.maximum.accumulate(np.clip(share, 0.0, 1.0), axis=1)

    def quantiles(levels: Array) -> Array:
        found = zip(levels, at, ordered, strict=True)
        return np.stack([np.interp(level, own, row) for level, own, row in found])

    return Goal(theta, least_squares(theta), quantiles, sd)

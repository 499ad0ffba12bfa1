"""The methods of `swf-digits`: each from private latents of norm at most 1 to synthetic ones.

A noise multiplier of None stands for no noise (ε = ∞). The paper's two flows (Sebag et al. 2025,
algorithms 1 and 2) are the mechanism's variants `resampled` and `presampled`, on the latents as
they are: started at standard Gaussians, as in the paper, and not at a DP Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tests.support.measured import noisy_moments, noisy_sketch, presampled, resampled

from penstock.mechanisms.sliced_wasserstein.batches import measure_all, measure_batches
from penstock.mechanisms.sliced_wasserstein.distribution import REACH, predicted
from penstock.mechanisms.sliced_wasserstein.flow import SlicedFlow
from penstock.mechanisms.sliced_wasserstein.goals import Goal, Schedule, goals
from penstock.mechanisms.sliced_wasserstein.sketch import Directions, measure_sketch
from penstock.mechanisms.sliced_wasserstein.tuning import tune
from penstock.mechanisms.tables.moments import Affine, gaussian, measure_moments
from penstock.privacy.events import Event
from penstock.privacy.noise.sources import NoiseSource
from penstock.privacy.sensitivity import orthonormal_stack

Array = NDArray[np.float64]

_LIFTED = math.sqrt(2.0)
"""Norm of (y, 1) for ‖y‖ = 1: what moments are of."""

_NONE = 1e-6
"""A noise multiplier that stands for none where there has to be one."""

_MUCH = 1e6
"""The signal n/σ that stands for no noise where a sketch is planned."""


@dataclass(frozen=True, slots=True)
class Resampled:
    """DPSWflow-r.

    Args:
        steps: T, each with a fresh batch of rows and fresh directions; batch: rows in it.
        bases: orthonormal bases of directions at each step.
        step: of the first, last: of the last, as shares of what the directions ask for.
    """

    steps: int
    batch: int
    bases: int
    step: float
    last: float

    def events(self, n: int, d: int, sigma: float) -> tuple[Event, ...]:
        """What a run on n rows costs, sigma relative to a row's diameter."""
        return (measure_batches(sigma, 1.0, self.bases, n, self.batch, self.steps).event,)

    def run(self, rows: Array, sigma: float | None, count: int, noise: NoiseSource) -> Array:
        """``count`` rows of the fitted map."""
        d = rows.shape[1]
        return _flowed(self.goals(rows, sigma, noise), self._schedule(), count, d, noise)

    def goals(self, rows: Array, sigma: float | None, noise: NoiseSource) -> Iterator[Goal]:
        """What is learnt from rows at each step."""
        size, schedule = min(self.batch, len(rows)), self._schedule()
        there, sigma = np.ones((len(rows), 1), dtype=np.bool_), _NONE if sigma is None else sigma
        return resampled(rows[:, None], there, 1.0, self.bases, size, sigma, schedule, noise)

    def _schedule(self) -> Schedule:
        return Schedule(self.steps, self.step, self.last)


@dataclass(frozen=True, slots=True)
class Presampled:
    """DPSWflow: all rows are projected once; steps are free.

    Args:
        bases: of all directions; at_once: bases used at a step, in turn.
        steps, step, last: as in :class:`Resampled`.
    """

    steps: int
    bases: int
    at_once: int
    step: float
    last: float

    def events(self, n: int, d: int, sigma: float) -> tuple[Event, ...]:
        """What a run costs, sigma relative to a row."""
        return (measure_all(sigma, 1.0, self.bases, d).event,)

    def run(self, rows: Array, sigma: float | None, count: int, noise: NoiseSource) -> Array:
        """``count`` rows of the fitted map."""
        schedule = Schedule(self.steps, self.step, self.last, self.at_once)
        there, sigma = np.ones((len(rows), 1), dtype=np.bool_), _NONE if sigma is None else sigma
        seen = presampled(rows[:, None], there, 1.0, self.bases, sigma, schedule, noise)
        return _flowed(seen, schedule, count, rows.shape[1], noise)


def _flowed(
    steps: Iterable[Goal], schedule: Schedule, count: int, d: int, noise: NoiseSource
) -> Array:
    """From standard Gaussians through the flow."""
    latents = noise.generator().standard_normal((count, d))
    return SlicedFlow(steps, d, schedule).from_latent(latents)


@dataclass(frozen=True, slots=True)
class Moments:
    """The DP Gaussian: where the sketch starts, for the whole budget."""

    def events(self, n: int, d: int, sigma: float) -> tuple[Event, ...]:
        """What a run costs."""
        return (measure_moments(sigma, _LIFTED, d, 1).event,)

    def run(self, rows: Array, sigma: float | None, count: int, noise: NoiseSource) -> Array:
        """``count`` independent rows."""
        latents = noise.generator().standard_normal((count, rows.shape[1]))
        return _released_gaussian(rows, sigma, noise).apply(latents)


@dataclass(frozen=True, slots=True)
class Sketched:
    """Ours: a DP Gaussian and, in its units, a sketch; then the flow between them.

    Directions, bins and shares of the budget are the mechanism's defaults.
    """

    def events(self, n: int, d: int, sigma: float) -> tuple[Event, ...]:
        """What a run costs: together a Gaussian of multiplier sigma."""
        how = tune(n / sigma, n, d)
        return (
            measure_moments(sigma / math.sqrt(1 - how.share), _LIFTED, d, 1).event,
            measure_sketch(sigma / math.sqrt(how.share), how.bases * d, how.bins).event,
        )

    def run(self, rows: Array, sigma: float | None, count: int, noise: NoiseSource) -> Array:
        """``count`` independent rows from the fitted map."""
        n, d = rows.shape
        how = tune(_MUCH if sigma is None else n / sigma, n, d)
        first = None if sigma is None else sigma / math.sqrt(1 - how.share)
        second = None if sigma is None else sigma / math.sqrt(how.share)
        start, rng = _released_gaussian(rows, first, noise), noise.generator()
        theta = orthonormal_stack(how.bases * d, d, rng)
        where, there = Directions.within(theta, 0.0, REACH), np.ones((n, 1), dtype=np.bool_)
        sketch = noisy_sketch(start.invert(rows[:, None]), there, where, how.bins, second, noise)
        schedule = Schedule()
        return start.apply(
            _flowed(goals(predicted(sketch, n), schedule), schedule, count, d, noise)
        )


def _released_gaussian(rows: Array, sigma: float | None, noise: NoiseSource) -> Affine:
    """Standard Gaussians to a Gaussian with the rows' noisy moments."""
    there = np.ones((len(rows), 1), dtype=np.bool_)
    return gaussian(noisy_moments(rows[:, None], there, _LIFTED, sigma, noise), len(rows))

"""The flow as the body of a table's fit: what is measured on its rows, and at what price.

Rows come in units in which the released moments make them nearly standard Gaussian, so that ranges
are public constants, and particles that start as standard Gaussians are a DP Gaussian.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.sliced_wasserstein.batches import (
    measure_all,
    measure_batches,
    presampled,
    resampled,
)
from penstock.mechanisms.sliced_wasserstein.directions import paired_stack
from penstock.mechanisms.sliced_wasserstein.goals import Goal, Schedule, goals
from penstock.mechanisms.sliced_wasserstein.sketch import Directions, measure_sketch, release_sketch
from penstock.mechanisms.sliced_wasserstein.targets import REACH, predicted
from penstock.privacy.measurements import GaussianSum, WholeSum
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_SEED = 0
"""Of the directions, which are public."""

_MOST_ABSENT = 0.99
"""Share of null rows, beyond which nothing is seen of the others."""


@dataclass(frozen=True, slots=True)
class Sliced:
    """What is measured, and the flow towards it.

    Args:
        variant: one of :data:`penstock.mechanisms.sliced_wasserstein.settings.VARIANTS`.
        persons: public n; d: columns; rows: per person at most.
        bases: orthonormal bases of directions, of each step where they are drawn anew.
        bins: of each distribution function; batch: rows per step; radius: to which rows are
            clipped. Each of them is looked at by its own variant only.
        noise_multiplier: of each release.
        schedule: of the flow; ``resampled`` pays for each of its steps.
    """

    variant: str
    persons: int
    d: int
    rows: int
    bases: int
    bins: int
    batch: int
    radius: float
    noise_multiplier: float
    schedule: Schedule

    @property
    def steps(self) -> int:
        return self.schedule.steps

    @property
    def measurement(self) -> GaussianSum | WholeSum:
        """What :meth:`goals` asks of rows, and with which noise."""
        sigma, where = self.noise_multiplier, (self.radius, self.bases)
        if self.variant == "presampled":
            return measure_all(sigma, *where, self.d, self.rows)
        if self.variant == "resampled":
            return measure_batches(sigma, *where, self.persons, self.batch, self.steps)
        return measure_sketch(sigma, self.bases * self.d, self.bins, self.rows)

    def goals(
        self, rows: Array, present: Bools, count: float, noise: NoiseSource
    ) -> Iterator[Goal]:
        """What the flow moves towards: rows (n, k, d) with presence (n, k), as released.

        Args:
            count: of rows that are present, as released.
        """
        given, asked = (rows, present, self.radius, self.bases), self.measurement
        absent = min(max(1 - count / present.size, 0.0), _MOST_ABSENT)
        if isinstance(asked, GaussianSum):
            if self.variant == "presampled":
                return presampled(*given, asked, self.schedule, noise, absent)
            return resampled(*given, asked, noise, absent)
        theta = paired_stack(self.bases, self.d, np.random.default_rng(_SEED))
        where = Directions.within(theta, 0.0, REACH)
        sketch = release_sketch(rows, present, where, self.bins, asked, noise)
        return goals(predicted(sketch, sketch.rows), self.schedule)

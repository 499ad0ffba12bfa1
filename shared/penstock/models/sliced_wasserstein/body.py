"""The flow as the body of a table's fit: what is measured on its rows, and at what price.

Rows come in units in which the released moments make them nearly standard Gaussian, so that ranges
are public constants, and particles that start as standard Gaussians are a DP Gaussian.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.models.sliced_wasserstein.flow import Schedule
from penstock.models.sliced_wasserstein.sketch import Directions, noisy_sketch, sketch_event
from penstock.models.sliced_wasserstein.targets import REACH, predicted
from penstock.privacy.events import Event
from penstock.privacy.noise import NoiseSource
from penstock.privacy.sensitivity import orthonormal_stack

if TYPE_CHECKING:
    from penstock.models.sliced_wasserstein.flow import SlicedFlow

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_SEED = 0
"""Of the directions, which are public."""


@dataclass(frozen=True, slots=True)
class Sliced:
    """Noisy distribution functions of projections, and the flow towards them.

    Args:
        d: columns; rows: per person at most.
        bases: orthonormal bases of directions; bins: of each distribution function.
        noise_multiplier: of the sketch.
        schedule: of the flow, which is post-processing.
    """

    d: int
    rows: int
    bases: int
    bins: int
    noise_multiplier: float
    schedule: Schedule

    @property
    def steps(self) -> int:
        return self.schedule.steps

    def event(self) -> Event:
        """What :meth:`fit` is charged as."""
        return sketch_event(self.noise_multiplier, self.bases, self.d, self.bins, self.rows)

    def fit(self, rows: Array, present: Bools, noise: NoiseSource, device: str) -> SlicedFlow:
        """The flow towards rows (n, k, d) with presence (n, k); zero-out, public n."""
        from penstock.models.sliced_wasserstein.flow import SlicedFlow, goals

        theta = orthonormal_stack(self.bases * self.d, self.d, np.random.default_rng(_SEED))
        where = Directions.within(theta, 0.0, REACH)
        sketch = noisy_sketch(rows, present, where, self.bins, self.noise_multiplier, noise)
        targets = predicted(sketch, sketch.rows)
        return SlicedFlow(goals(targets, self.schedule), self.d, self.schedule, device)

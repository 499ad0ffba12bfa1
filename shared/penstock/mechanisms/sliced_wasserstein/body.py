"""The flow as the body of a table's fit: what is measured on its rows, and at what price.

Rows come in units in which the released moments make them nearly standard Gaussian, so that ranges
are public constants, and particles that start as standard Gaussians are a DP Gaussian.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.mechanisms.memory import BIG, NUMBER
from penstock.mechanisms.parts import Progress
from penstock.mechanisms.sliced_wasserstein.batches import (
    measure_all,
    measure_batches,
    presampled,
    resampled,
)
from penstock.mechanisms.sliced_wasserstein.directions import paired_stack
from penstock.mechanisms.sliced_wasserstein.distribution import REACH, predicted
from penstock.mechanisms.sliced_wasserstein.goals import Goal, Schedule, goals
from penstock.mechanisms.sliced_wasserstein.sketch import Directions, measure_sketch, release_sketch
from penstock.mechanisms.tables.stages import Begun, Transport
from penstock.privacy.measurements import GaussianSum, WholeSum
from penstock.privacy.noise.sources import NoiseSource

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_SEED = 0
"""Of the directions, which are public."""

_MOST_ABSENT = 0.99
"""Share of null rows, beyond which nothing is seen of the others."""

_CELLS, _REFERENCE, _LEVELS, _DEGREES = 256, 1 << 13, 513, 13
"""Cells of a step's grid, reference particles, points and kinds of targets: what memory holds."""

_SKETCHED = 1 << 18
"""Numbers of a sketch that are computed at once."""


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

    def with_noise(self, factor: float) -> Sliced:
        """The same with so many times the noise."""
        return replace(self, noise_multiplier=self.noise_multiplier * factor)

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

    def fit(
        self,
        begun: Sequence[Begun],
        noises: Sequence[NoiseSource],
        progress: Progress | None,
        device: str,
        threads: int,
    ) -> Sequence[Transport]:
        """A flow towards each table's goals; each thread has one at a time."""
        from penstock.mechanisms.sliced_wasserstein.flow import SlicedFlow

        def flow(one: Begun, noise: NoiseSource) -> Transport:
            goals = self.goals(one.inside, one.present, one.rows, noise)
            return SlicedFlow(goals, self.d, self.schedule, device)

        flows: list[Transport] = []
        with ThreadPoolExecutor(threads) as pool:
            for made in pool.map(flow, begun, noises):
                flows.append(made)
                if progress is not None:
                    progress(len(flows) * self.steps, len(begun) * self.steps)
        return flows

    def memory(self, places: int) -> tuple[int, int]:
        """Bytes of what stays of a flow, and of what its fit to so many rows takes besides."""
        d = self.d
        directions, bins = self.bases * d, self.bins
        at_a_step = min(self.schedule.bases * d, directions)
        kept = 4 * self.steps * at_a_step * (2 * _CELLS + 2 * d + 32)
        reference = 4 * _REFERENCE * (4 * d + 2 * at_a_step) + NUMBER * 8 * at_a_step * _CELLS
        if self.variant == "sketch":
            counted = 5 * NUMBER * max(_SKETCHED, directions) + BIG * directions * bins
            gain = NUMBER * 3 * _DEGREES * bins * (bins + _LEVELS)
            return kept, reference + counted + gain + 6 * NUMBER * directions * _LEVELS
        rows = places if self.variant == "presampled" else self.batch
        return kept, reference + 8 * NUMBER * directions * rows

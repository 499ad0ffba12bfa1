"""Paths where nobody is seen twice: through drawn particles of each time point, by least motion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.mechanisms.parts import Part
from penstock.mechanisms.released import PATHS
from penstock.mechanisms.trajectory.paths import couple, sample_paths
from penstock.mechanisms.trajectory.repeats import RepeatsPlan
from penstock.mechanisms.trajectory.unit_space import from_unit, hold_constants, to_unit
from penstock.schema.encoding import Encoding

Array = NDArray[np.float64]

_AT_ONCE = 1 << 19
"""Numbers of paths that are drawn together."""


def walk_between(
    plan: RepeatsPlan,
    encoding: Encoding,
    particles: Mapping[str, ArrayLike],
    rng: np.random.Generator,
) -> Iterator[Part]:
    """The paths, as many at a time as fit into memory; post-processing of released particles.

    Args:
        particles: T · m of each column, ordered by time point.
    """
    column, positions = plan.times.column, plan.times.positions
    space = [i for i, dim in enumerate(encoding.dims) if dim.column != column.name]
    rows, _ = encoding.encode(particles, rng)
    points = to_unit(encoding, space, rows).reshape(plan.times.count, plan.particles, len(space))
    reg = plan.temperature * np.diff(positions)
    couplings = couple(points, reg, plan.coupling == "exact")
    seen = np.linspace(0.0, 1.0, plan.path_times)
    at_once = max(1, _AT_ONCE // (plan.path_times * len(space)))
    for first in range(0, plan.paths, at_once):
        few = min(at_once, plan.paths - first)
        z = sample_paths(points, couplings, positions, seen, plan.temperature, few, rng)
        times = np.tile(plan.times.at(seen), few)
        found = from_unit(encoding, space, z.reshape(-1, len(space)), column, times)
        yield Part(PATHS, hold_constants(encoding, found, plan.path_times))

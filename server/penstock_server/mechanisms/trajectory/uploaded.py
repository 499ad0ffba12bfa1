"""What a trajectory's upload holds beside tables: particles, and paths through them."""

from __future__ import annotations

import numpy as np

from penstock.base.errors import UploadRejected
from penstock.mechanisms import Trajectory
from penstock.mechanisms.trajectory.time_points import times_of
from penstock.schema import Floats, Schema


def check_times(particles: Floats, paths: Floats, mechanism: Trajectory, schema: Schema) -> None:
    """Particles stand at the study's time points, and paths at its evenly spaced times.

    Raises:
        UploadRejected: they do not.
    """
    times = times_of(mechanism, schema)
    points = np.repeat(times.at(times.positions), mechanism.particles)
    seen = times.at(np.linspace(0.0, 1.0, mechanism.path_times))
    right = np.array_equal(particles, points)
    if not (right and np.array_equal(paths, np.tile(seen, mechanism.paths))):
        raise UploadRejected("particles or paths are not at the study's times")

"""What a trajectory's upload holds beside tables: particles, and paths through them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import UploadRejected
from penstock.mechanisms import Trajectory
from penstock.mechanisms.released import COPY, PARTICLE, PATH
from penstock.mechanisms.trajectory.time_points import times_of
from penstock.schema import Floats, Schema
from penstock_server.mechanisms.delivery import Upload


def read_particles(upload: Upload) -> pa.Table:
    """The particles without labels, ordered by time point."""
    mask = pc.equal(upload.table.column(PATH), PARTICLE)
    return upload.table.filter(mask).drop_columns(list(upload.shape.labels))


def read_paths(upload: Upload) -> pa.Table:
    """The paths under their number, each ordered by time."""
    mask = pc.greater(upload.table.column(PATH), 0)
    return upload.table.filter(mask).drop_columns([COPY])


def check_times(found: Floats, mechanism: Trajectory, schema: Schema) -> None:
    """Particles stand at the study's time points, and paths at its evenly spaced times.

    Raises:
        UploadRejected: they do not.
    """
    times = times_of(mechanism, schema)
    points = np.repeat(times.at(times.positions), mechanism.particles)
    seen = times.at(np.linspace(0.0, 1.0, mechanism.path_times))
    if not np.array_equal(found, np.concatenate([points, np.tile(seen, mechanism.paths)])):
        raise UploadRejected("particles or paths are not at the study's times")

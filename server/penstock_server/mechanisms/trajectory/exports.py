"""The paths, particles and couplings of a trajectory that an analyst pulls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.base.files import replace_file
from penstock.mechanisms import Trajectory
from penstock.mechanisms.released import PARTICLES, PATHS
from penstock.mechanisms.trajectory.follow_up import follow_up_of
from penstock.mechanisms.trajectory.paths import couple
from penstock.mechanisms.trajectory.time_points import times_of, unit_temperature
from penstock.schema import Floats
from penstock.schema.encoding import Encoding
from penstock.study.study import Study
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.writing import SITE, label_table, write_tables

Bools = NDArray[np.bool_]
Whole = NDArray[np.int64]
PATH, TIME, POINT, PARTICLE = "_path", "_time", "_point", "_particle"
LEAST_MASS = 1e-6
"""Pairs that are joined with less of the whole are left out of the couplings' file."""
MOST_PAIRS = 20_000_000
"""Pairs of particles at neighbouring times, of one site, beyond which couplings are not made."""


def write_paths(
    uploads: Iterable[Upload], study: Study, mechanism: Trajectory, out: Path
) -> list[Path]:
    """``paths`` with each row's exact time; the time column itself is on the schema's grid. A path
    has no rows after its end."""
    times = path_times(study, mechanism)
    each = pa.array(np.tile(times, mechanism.paths), pa.float64())
    number = pa.array(np.repeat(np.arange(1, mechanism.paths + 1), len(times)), pa.int32())

    def tables() -> Iterator[pa.Table]:
        for upload in uploads:
            table = label_table(upload.part(PATHS), {SITE: upload.site})
            table = table.add_column(1, PATH, number).add_column(2, TIME, each)
            yield _keep(table, _on_the_way(upload, study, mechanism))

    return write_tables(tables(), out, "paths")


def _keep(table: pa.Table, kept: Bools | None) -> pa.Table:
    return table if kept is None else table.filter(pa.array(kept))


def _on_the_way(upload: Upload, study: Study, mechanism: Trajectory) -> Bools | None:
    """(paths · path_times,) which rows are not after their path's end; None: no path ends."""
    read = follow_up_of(mechanism, study.schema)
    if read is None:
        return None
    times = times_of(mechanism, study.schema)
    clock = read.clock(times, np.linspace(0.0, 1.0, mechanism.path_times))
    ends = upload.coded(PATHS, study.schema)[read.duration.name]
    return np.asarray(np.tile(clock, mechanism.paths) <= ends)


def _followed(upload: Upload, study: Study, mechanism: Trajectory) -> Bools | None:
    """(T, m) which particles' follow-up reaches their time point; None: no path ends."""
    read = follow_up_of(mechanism, study.schema)
    if read is None:
        return None
    shape = (mechanism.time_points(study.schema), mechanism.particles)
    last = read.read(upload.coded(PARTICLES, study.schema)).point.reshape(shape)
    return np.asarray(last >= np.arange(shape[0])[:, None])


def path_times(study: Study, mechanism: Trajectory) -> Floats:
    """(path_times,) in units of the time column; of an ordered one, the level's number from 0."""
    times = times_of(mechanism, study.schema)
    positions = np.linspace(0.0, 1.0, mechanism.path_times)
    return np.asarray(times.first + times.width * (0.5 + positions * (times.count - 1)))


def write_particles(
    uploads: Iterable[Upload], study: Study, mechanism: Trajectory, out: Path
) -> list[Path]:
    """``particles``, ordered by time point, each with the numbers that the couplings name it by;
    none after its end."""
    points, count = mechanism.time_points(study.schema), mechanism.particles
    point = pa.array(np.repeat(np.arange(1, points + 1), count), pa.int32())
    number = pa.array(np.tile(np.arange(1, count + 1), points), pa.int32())

    def tables() -> Iterator[pa.Table]:
        for upload in uploads:
            table = label_table(upload.part(PARTICLES), {SITE: upload.site})
            table = table.add_column(1, POINT, point).add_column(2, PARTICLE, number)
            kept = _followed(upload, study, mechanism)
            yield _keep(table, None if kept is None else kept.ravel())

    return write_tables(tables(), out, "particles")


def why_no_couplings(study: Study, mechanism: Trajectory) -> str | None:
    """Why couplings cannot be made here, or None."""
    if mechanism.measures(study.schema):
        return None
    if mechanism.coupling == "entropic" and find_spec("torch") is None:
        return "torch, which entropic couplings are computed with, is not installed here"
    pairs = (mechanism.time_points(study.schema) - 1) * mechanism.particles**2
    if pairs > MOST_PAIRS:
        return f"{pairs} pairs of particles are more than {MOST_PAIRS}"
    return None


def write_couplings(
    uploads: Iterable[Upload], study: Study, mechanism: Trajectory, out: Path
) -> list[Path]:
    """``couplings.parquet``: which particles are joined to which of the next time point.

    Computed anew from the released particles, as a site does it: levels and rounded numbers are
    encoded again, so small differences to what a site's own paths followed are possible.
    """
    path = out / "couplings.parquet"
    form = pa.schema(
        [(SITE, pa.string()), (POINT, pa.int32()), (PARTICLE, pa.int32()),
         ("next_particle", pa.int32()), ("mass", pa.float64())]
    )  # fmt: skip
    with replace_file(path) as name, pq.ParquetWriter(name, form, compression="zstd") as writer:
        for upload in uploads:
            for t, (i, j, mass) in enumerate(pairs(upload, study, mechanism)):
                columns = [
                    pa.array([upload.site] * len(i), pa.string()),
                    pa.array(np.full(len(i), t + 1), pa.int32()),
                    pa.array(i + 1, pa.int32()),
                    pa.array(j + 1, pa.int32()),
                    pa.array(mass, pa.float64()),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=form))
    return [path]


def pairs(
    upload: Upload, study: Study, mechanism: Trajectory
) -> Iterator[tuple[Whole, Whole, Floats]]:
    """Of each gap the pairs of particles that are joined, from 0, and the mass of each."""
    if mechanism.measures(study.schema):
        same = np.arange(mechanism.particles)
        each, kept = np.full(len(same), 1 / len(same)), _followed(upload, study, mechanism)
        for t in range(mechanism.time_points(study.schema) - 1):
            on = same if kept is None else same[kept[t + 1]]
            yield on, on, each[on]
        return
    for mass in couplings(upload, study, mechanism):
        i, j = np.nonzero(mass >= LEAST_MASS)
        yield i, j, mass[i, j]


def couplings(upload: Upload, study: Study, mechanism: Trajectory) -> Floats:
    """(T - 1, m, m): the mass of each pair; each matrix adds up to 1.

    Particles are compared in the encoded columns other than the time, halved, as a site does it.
    """
    schema = study.schema
    encoding, times = Encoding(schema), times_of(mechanism, schema)
    # A fixed seed: levels are given a place near their point, and the same file must come again.
    rows, _ = encoding.encode(upload.coded(PARTICLES, schema), np.random.default_rng(0))
    space = [i for i, dim in enumerate(encoding.dims) if dim.column != mechanism.time]
    points = rows[:, space].reshape(len(times.used), mechanism.particles, len(space)) / 2
    reg = unit_temperature(mechanism) * np.diff(times.positions)
    forward = couple(points, reg, mechanism.coupling == "exact")
    return np.asarray(forward / mechanism.particles)

"""The tables that an analyst pulls: pooled copies, a trajectory's paths, or an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from penstock.base.files import replace_file
from penstock.mechanisms import Gibbs, Trajectory
from penstock.mechanisms.gibbs.settings import answer_terms
from penstock.mechanisms.released import COPY, PATH, refit_copy, refits_of_copies
from penstock.mechanisms.trajectory.paths import couple
from penstock.mechanisms.trajectory.times import times_of, unit_temperature
from penstock.schema import Floats, from_arrow
from penstock.schema.encoding import Encoding
from penstock.study.study import Study
from penstock_server.intake.uploads import Upload

SITE, REFIT = "_site", "_refit"
TIME, POINT, PARTICLE = "_time", "_point", "_particle"
FORMULA_START = tuple("=+-@＝＋－＠\t\r\n")
"""What a spreadsheet may take for a formula's beginning; some read the full-width forms (U+FF1D,
U+FF0B, U+FF0D, U+FF20) as the plain ones."""
LEAST_MASS = 1e-6
"""Pairs that are joined with less of the whole are left out of the couplings' file."""
MOST_PAIRS = 20_000_000
"""Pairs of particles at neighbouring times, of one site, beyond which couplings are not made."""


# -- synthetic tables ----------------------------------------------------------------------------


def write_pooled(uploads: Iterable[Upload], out: Path, *, all_copies: bool) -> list[Path]:
    """Stream the pooled table, site by site, to Parquet and CSV."""

    def tables() -> Iterator[pa.Table]:
        for upload in uploads:
            for index in range(1, upload.manifest.copies + 1 if all_copies else 2):
                yield _labelled(upload.copy(index), {SITE: upload.site, COPY: index})

    return _write(tables(), out, "pooled")


def write_refits(uploads: Iterable[Upload], out: Path) -> list[Path]:
    """Stream all refits, site by site, to Parquet and CSV, each under its number (:data:`REFIT`)
    and that of the copy whose rows it was made from; 0 of older releases: rows of its own."""

    def tables() -> Iterator[pa.Table]:
        for upload in uploads:
            manifest = upload.manifest
            of_copies = refits_of_copies(manifest.wire)
            for refit in range(1, manifest.refits + 1):
                copy = refit_copy(refit, manifest.copies) if of_copies else 0
                yield _labelled(upload.copy(-refit), {SITE: upload.site, REFIT: refit, COPY: copy})

    return _write(tables(), out, "refits")


def _labelled(table: pa.Table, labels: dict[str, str | int]) -> pa.Table:
    for place, (name, label) in enumerate(labels.items()):
        kind = pa.string() if isinstance(label, str) else pa.int32()
        table = table.add_column(place, name, pa.array([label] * len(table), kind))
    return table


def _write(tables: Iterator[pa.Table], out: Path, name: str) -> list[Path]:
    """Tables of one form, one after the other, as Parquet and as CSV."""
    parquet, plain = out / f"{name}.parquet", out / f"{name}.csv"
    with replace_file(parquet) as p, replace_file(plain) as c:
        writers: tuple[Any, Any] | None = None
        try:
            for table in tables:
                if writers is None:
                    writers = (
                        pq.ParquetWriter(p, table.schema, compression="zstd"),
                        pacsv.CSVWriter(c, table.schema),
                    )
                for writer, part in zip(writers, (table, csv_safe(table)), strict=True):
                    writer.write_table(part)
        finally:
            for writer in writers or ():
                writer.close()
    return [parquet, plain]


def csv_safe(table: pa.Table) -> pa.Table:
    """Levels are text from a schema; a spreadsheet must not run one as a formula."""
    for position, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            values = table.column(position).to_pylist()
            if any(v and v.startswith(FORMULA_START) for v in set(values)):
                safe = [f"'{v}" if v and v.startswith(FORMULA_START) else v for v in values]
                table = table.set_column(position, field, pa.array(safe, pa.string()))
    return table


# -- trajectories --------------------------------------------------------------------------------


def write_paths(uploads: Iterable[Upload], study: Study, out: Path) -> list[Path]:
    """``paths`` with each row's exact time; the time column itself is on the schema's grid."""
    mechanism = study.mechanism
    if not isinstance(mechanism, Trajectory):
        raise TypeError("no trajectory")
    times = path_times(study)

    def tables() -> Iterator[pa.Table]:
        for upload in uploads:
            table = _labelled(upload.paths(), {SITE: upload.site})
            each = pa.array(np.tile(times, mechanism.paths), pa.float64())
            place = table.column_names.index(PATH) + 1
            yield table.add_column(place, TIME, each)

    return _write(tables(), out, "paths")


def path_times(study: Study) -> Floats:
    """(path_times,) in units of the time column; of an ordered one, the level's number from 0."""
    if not isinstance(study.mechanism, Trajectory):
        raise TypeError("no trajectory")
    times = times_of(study.mechanism, study.schema)
    positions = np.linspace(0.0, 1.0, study.mechanism.path_times)
    return np.asarray(times.first + times.width * (0.5 + positions * (times.count - 1)))


def write_particles(uploads: Iterable[Upload], study: Study, out: Path) -> list[Path]:
    """``particles``, ordered by time point, each with the numbers that the couplings name it by."""
    mechanism = study.mechanism
    if not isinstance(mechanism, Trajectory):
        raise TypeError("no trajectory")
    points, count = mechanism.time_points(study.schema), mechanism.particles
    point = pa.array(np.repeat(np.arange(1, points + 1), count), pa.int32())
    number = pa.array(np.tile(np.arange(1, count + 1), points), pa.int32())

    def tables() -> Iterator[pa.Table]:
        for upload in uploads:
            table = _labelled(upload.particles(), {SITE: upload.site})
            yield table.add_column(1, POINT, point).add_column(2, PARTICLE, number)

    return _write(tables(), out, "particles")


def no_couplings(study: Study) -> str | None:
    """Why couplings cannot be made here, or None."""
    mechanism = study.mechanism
    if not isinstance(mechanism, Trajectory):
        return "only trajectories have couplings"
    if mechanism.coupling == "entropic" and find_spec("torch") is None:
        return "torch, which entropic couplings are computed with, is not installed here"
    pairs = (mechanism.time_points(study.schema) - 1) * mechanism.particles**2
    if pairs > MOST_PAIRS:
        return f"{pairs} pairs of particles are more than {MOST_PAIRS}"
    return None


def write_couplings(uploads: Iterable[Upload], study: Study, out: Path) -> list[Path]:
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
            for t, mass in enumerate(couplings(upload, study)):
                i, j = np.nonzero(mass >= LEAST_MASS)
                columns = [
                    pa.array([upload.site] * len(i), pa.string()),
                    pa.array(np.full(len(i), t + 1), pa.int32()),
                    pa.array(i + 1, pa.int32()),
                    pa.array(j + 1, pa.int32()),
                    pa.array(mass[i, j], pa.float64()),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=form))
    return [path]


def couplings(upload: Upload, study: Study) -> Floats:
    """(T - 1, m, m): the mass of each pair; each matrix adds up to 1.

    Particles are compared in the encoded columns other than the time, halved, as a site does it.
    """
    mechanism, schema = study.mechanism, study.schema
    if not isinstance(mechanism, Trajectory):
        raise TypeError("no trajectory")
    encoding, times = Encoding(schema), times_of(mechanism, schema)
    # A fixed seed: levels are given a place near their point, and the same file must come again.
    rows, _ = encoding.encode(from_arrow(upload.particles(), schema), np.random.default_rng(0))
    space = [i for i, dim in enumerate(encoding.dims) if dim.column != mechanism.time]
    points = rows[:, space].reshape(len(times.used), mechanism.particles, len(space)) / 2
    reg = unit_temperature(mechanism) * np.diff(times.positions)
    forward = couple(points, reg, mechanism.coupling == "exact")
    return np.asarray(forward / mechanism.particles)


# -- answers -------------------------------------------------------------------------------------


def write_answers(uploads: Iterable[Upload], study: Study, out: Path) -> list[Path]:
    """``coefficients.csv`` and ``.json``: each site's estimates with their covariance."""
    if not isinstance(study.mechanism, Gibbs):
        raise TypeError("no answer")
    estimand = study.estimands[0]
    terms = answer_terms(study.schema, estimand, study.mechanism)
    records, tables = [], []
    for upload in uploads:
        estimates, covariance = upload.answer()
        records.append(
            {
                "site": upload.site,
                "estimates": dict(zip(terms, estimates.tolist(), strict=True)),
                "covariance": covariance.tolist(),
            }
        )
        columns: dict[str, Any] = {
            SITE: pa.array([upload.site] * len(terms), pa.string()),
            "term": pa.array(terms, pa.string()),
            "estimate": estimates,
            "se": np.sqrt(np.diagonal(covariance)),
        }
        columns |= {f"cov_{i + 1}": covariance[:, i] for i in range(len(terms))}
        tables.append(pa.table(columns))
    plain, exact = out / "coefficients.csv", out / "coefficients.json"
    with replace_file(plain) as name:
        pacsv.write_csv(csv_safe(pa.concat_tables(tables)), name)
    answer = {
        "study": study.name,
        "estimand": estimand.name,
        "model": estimand.model,
        "terms": list(terms),
        "sites": records,
    }
    write(exact, json.dumps(answer, indent=1, allow_nan=False).encode() + b"\n")
    return [plain, exact]


# -- files ---------------------------------------------------------------------------------------


def write(path: Path, data: bytes) -> None:
    """Replace a file in one rename."""
    with replace_file(path) as name, open(name, "wb") as file:
        file.write(data)

"""Hand-made releases of every mechanism: no site, no worker, tables of made-up rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.support.carried_out import shape_of

from penstock.inference.combine import SiteEstimate
from penstock.inference.refits import widen_sites
from penstock.mechanisms import (
    Gibbs,
    Maf,
    Scoring,
    Settings,
    SlicedWasserstein,
    Structured,
    Trajectory,
    labelled,
)
from penstock.mechanisms.parts import Part
from penstock.mechanisms.released import DOUBT, PARTICLES, PATHS, PartShape
from penstock.mechanisms.trajectory.time_points import times_of
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.study.study import Study
from penstock.wire.manifest import Manifest, ManifestPart
from penstock.wire.signatures import generate_key, public_hex
from penstock_server.intake.uploads import read_upload
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.registry import kind_of

KEY = generate_key()
PERSONS = 40
SITES = ("north", "south", "west")
SCHEMA = Schema(
    (
        Column("visit", "integer", lower=0, upper=4, label="visit", unit="years"),
        Column("sbp", "continuous", lower=80, upper=220, decimals=0, unit="mmHg", label="pressure"),
        Column("chol", "continuous", lower=2, upper=12, decimals=1, nullable=True),
        Column("smoker", "binary", levels=("no", "yes")),
        Column("ward", "categorical", levels=("a", "b", "=c")),
        Column("falls", "integer", lower=0, upper=20),
    ),
    person="patient",
    max_rows_per_person=2,
)
QUESTION = Estimand("falls", "poisson", "falls", "smoker", adjust=("sbp", "ward"))
ESTIMANDS = (QUESTION, Estimand("mean-sbp", "mean", "sbp"), Estimand("smokers", "mean", "smoker"))
TRAJECTORY = Trajectory(
    "visit", copies=2, refits=1, particles=6, paths=5, path_times=9, subsample=3
)
MECHANISMS: dict[str, Settings] = {
    "maf": Maf(copies=3, refits=2),
    "sliced-wasserstein": SlicedWasserstein(copies=2, refits=0),
    "structured": Structured(copies=2, refits=1, planted=0),
    "trajectory": TRAJECTORY,
    "gibbs": Gibbs(),
    "scoring": Scoring(),
}


def study(mechanism: Settings, **changed: Any) -> Study:
    values: dict[str, Any] = {
        "name": "made",
        "title": "A made-up study",
        "federation": "net",
        "sites": SITES,
        "schema": SCHEMA,
        "estimands": (QUESTION,) if isinstance(mechanism, Gibbs | Scoring) else ESTIMANDS,
        "privacy": PrivacyRequest(2.0, 1e-5),
        "mechanism": mechanism,
        "quorum": 1,
        "deadline_hours": 1.0,
        "not_before": "2026-11-01T00:00:00Z",
        "expires": "2026-12-01T00:00:00Z",
    }
    return Study(**(values | changed))


def rows(
    rng: np.random.Generator, count: int, visit: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    visit = rng.integers(0, 5, count).astype(float) if visit is None else visit
    smoker = (rng.random(count) < 0.4).astype(float)
    return {
        "visit": visit,
        "sbp": 120 + 4 * visit + rng.normal(0, 8, count),
        "chol": np.where(rng.random(count) < 0.1, np.nan, rng.normal(5, 1, count)),
        "smoker": smoker,
        "ward": rng.integers(0, 3, count).astype(float),
        "falls": rng.poisson(np.exp(0.5 * smoker)).astype(float),
        "years": 1.5 + 2 * smoker,
        "died": smoker,
    }


def parts(
    of: Study, *, persons: int = PERSONS, seed: int = 0, rows_of: Mapping[str, int] | None = None
) -> list[Part]:
    """A release as a mechanism makes it: copies, particles, paths, refits.

    ``rows_of``: of copies and refits that have fewer than the frame has places.
    """
    rng = np.random.default_rng(seed)
    return [
        Part(part.name, columns(of, part, (rows_of or {}).get(part.name, part.rows), rng))
        for part in shape_of(of, persons).parts
    ]


def columns(
    of: Study, part: PartShape, count: int, rng: np.random.Generator
) -> Mapping[str, np.ndarray]:
    """Coded columns of one part."""
    mechanism, visit = of.mechanism, None
    if isinstance(mechanism, Gibbs):
        return answer(count, rng)
    if isinstance(mechanism, Scoring):
        found = answer(count, rng)
        return found | {f"noise_{i + 1}": found[f"cov_{i + 1}"] / 4 for i in range(count)}
    if isinstance(mechanism, Trajectory):
        times = times_of(mechanism, of.schema)
        seen = times.at(np.linspace(0.0, 1.0, mechanism.path_times))
        points = np.repeat(times.at(times.positions), mechanism.particles)
        visit = {PARTICLES: points, PATHS: np.tile(seen, mechanism.paths)}.get(part.name)
    return {n: v for n, v in rows(rng, count, visit).items() if n in of.schema.names}


def forget_later(table: pa.Table) -> pa.Table:
    """A part as it is read from under labels, which have no place for what came later."""
    if DOUBT not in table.column_names:
        return table
    place = table.column_names.index(DOUBT)
    return table.set_column(place, table.field(place), pa.nulls(len(table), pa.float64()))


def table(
    of: Study, *, persons: int = PERSONS, seed: int = 0, rows_of: Mapping[str, int] | None = None
) -> pa.Table:
    """The parts under labels, as wire versions before 1.2 have them."""
    made = parts(of, persons=persons, seed=seed, rows_of=rows_of)
    joined = labelled.join_parts(shape_of(of, persons), made)
    return pa.concat_tables(joined).combine_chunks()


def answer(terms: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    root = rng.normal(size=(terms, terms))
    covariance = 0.01 * (root @ root.T + np.eye(terms))
    covariance = (covariance + covariance.T) / 2
    found = {"term": np.arange(1.0, terms + 1), "estimate": rng.normal(0.3, 0.1, terms)}
    found["doubt"] = np.linspace(0.0, 0.3, terms)
    return found | {f"cov_{i + 1}": covariance[:, i] for i in range(terms)}


def stream(made: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_table(made)
    return sink.getvalue().to_pybytes()


def streams(of: Study, given: Iterable[Part], persons: int = PERSONS) -> dict[str, bytes]:
    """Each part as an Arrow stream, as wire versions since 1.2 have them."""
    shape = shape_of(of, persons)
    return {part.name: stream(shape.part(part.name).table(part.columns)) for part in given}


def list_parts(given: Mapping[str, bytes]) -> tuple[ManifestPart, ...]:
    """What a manifest says of them."""
    return tuple(
        ManifestPart(name, pa.ipc.open_stream(data).read_all().num_rows, len(data))
        for name, data in given.items()
    )


def manifest(
    of: Study,
    data: bytes,
    *,
    site: str = "north",
    persons: int = PERSONS,
    rows: int | None = None,
    parts: tuple[ManifestPart, ...] = (),
) -> Manifest:
    return Manifest(
        wire="1.2" if parts else "1.0",
        study_id="5" * 64,
        site=site,
        request_id="7" * 64,
        release=1,
        lineage="main",
        version=1,
        persons=persons,
        rows=shape_of(of, persons).first.rows if rows is None else rows,
        copies=of.mechanism.copies,
        refits=of.mechanism.refits,
        guarantee="formal",
        mechanism=of.mechanism.name,
        events=(),
        relation="zero-out, public n",
        delta=1e-5,
        epsilon_autodp=1.98,
        epsilon_pld=1.8,
        epsilon_replace_one=3.7,
        injection_epsilon=None,
        table_sha256=hashlib.sha256(data).hexdigest(),
        table_bytes=len(data),
        ledger_seq=1,
        ledger_head="a" * 64,
        released_at="2026-11-21T08:00:00Z",
        insecure_seed=False,
        software={},
        gate_key=public_hex(KEY),
        parts=parts,
    )


def read(
    of: Study,
    made: pa.Table,
    folder: Path,
    *,
    site: str = "north",
    persons: int = PERSONS,
    rows: int | None = None,
) -> Upload:
    """A table through all checks of a table; ``rows``: of its copies, where they are fewer."""
    data, path = stream(made), folder / f"{site}.arrow"
    path.write_bytes(data)
    return read_upload(site, manifest(of, data, site=site, persons=persons, rows=rows), path, of)


def read_parts(
    of: Study,
    given: Mapping[str, bytes],
    folder: Path,
    *,
    told: tuple[ManifestPart, ...] | None = None,
    site: str = "north",
    persons: int = PERSONS,
) -> Upload:
    """Parts through all checks of them; ``told``: what the manifest says, where it is not so."""
    data, path = b"".join(given.values()), folder / f"{site}.arrow"
    path.write_bytes(data)
    parts = list_parts(given) if told is None else told
    return read_upload(
        site,
        manifest(of, data, site=site, persons=persons, rows=parts[0].rows, parts=parts),
        path,
        of,
    )


def uploads(of: Study, folder: Path) -> list[Upload]:
    """One upload a site, of different sizes."""
    return [
        read(
            of,
            table(of, persons=PERSONS + 20 * i, seed=i),
            folder,
            site=s,
            persons=PERSONS + 20 * i,
        )
        for i, s in enumerate(of.sites)
    ]


def estimates(found: Upload, of: Study) -> dict[str, SiteEstimate]:
    """What a report makes of one site's release where no other site delivers."""
    measured = kind_of(of).load_results().measure(found)
    return widen_sites({found.site: measured})[found.site]

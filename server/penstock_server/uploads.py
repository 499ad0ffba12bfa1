"""What a site sent, checked as if it were hostile, before anything is computed from it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidEvent, InvalidInput, SignatureError, UploadRejected
from penstock.privacy.accountant import epsilon
from penstock.privacy.events import RELATION, from_dict
from penstock.schema import Schema, from_arrow, to_arrow
from penstock.study import Study
from penstock.wire.manifest import Manifest, read_manifest
from penstock.wire.messages import SERVED_MAJORS
from penstock_server.ipc_guard import check_stream
from penstock_server.store import Site

COPY = "_copy"
BYTES_PER_CELL = 64
"""Generous for float64, int64 and short labels; with the header it caps an upload's size."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A release that passed every check."""

    site: str
    manifest: Manifest
    table: pa.Table

    def copy(self, index: int) -> pa.Table:
        """Copy ``index`` (from 1), without the copy column."""
        mask = pc.equal(self.table.column(COPY), index)
        return self.table.filter(mask).drop_columns([COPY])


def size_limit(study: Study, persons: int) -> int:
    """The most bytes a site's table may have, from the signed study and the enrolled n."""
    rows = persons * study.schema.max_rows_per_person * study.mechanism.copies
    return rows * (len(study.schema.columns) + 1) * BYTES_PER_CELL + 1_000_000


def check_manifest(
    data: bytes,
    study: Study,
    study_id: str,
    site: Site,
    *,
    ledger_seen: Mapping[int, str],
    simulation: bool,
) -> Manifest:
    """Everything about a manifest that can be checked without its table.

    Raises:
        UploadRejected: naming the first thing that is not what the signed study asked.
    """
    try:
        manifest = read_manifest(data, site.gate_key)
    except (SignatureError, InvalidInput) as error:
        raise UploadRejected(str(error)) from None
    expected: list[tuple[str, object, object]] = [
        ("study", manifest.study_id, study_id),
        ("site", manifest.site, site.name),
        ("release", manifest.release, study.release),
        ("guarantee", manifest.guarantee, study.privacy.guarantee),
        ("mechanism", manifest.mechanism, study.mechanism.name),
        ("copies", manifest.copies, study.mechanism.copies),
        ("δ", manifest.delta, study.privacy.delta),
        ("relation", manifest.relation, RELATION),
        ("public n", manifest.persons, site.persons),
        ("rows", manifest.rows, site.persons * study.schema.max_rows_per_person),
    ]
    for name, got, wanted in expected:
        if got != wanted:
            raise UploadRejected(f"the manifest's {name} is not what was asked", value=got, bound=wanted)
    major = manifest.wire.split(".")[0]
    if not major.isdigit() or int(major) not in SERVED_MAJORS:
        raise UploadRejected("the manifest's wire version is not served", value=manifest.wire[:20])
    if manifest.insecure_seed and not simulation:
        raise UploadRejected(
            "the release was made with a test seed and is not private",
            remedy="remove insecure_seed from the site's settings",
        )
    _check_epsilon(manifest, study)
    _check_ledger(manifest, ledger_seen)
    return manifest


def _check_epsilon(manifest: Manifest, study: Study) -> None:
    """The claimed ε is what the claimed events cost, and no more than was asked."""
    try:
        cost = epsilon(tuple(from_dict(e) for e in manifest.events), manifest.delta)
    except InvalidEvent as error:
        raise UploadRejected(f"the manifest's events: {error.message}") from None
    claimed = math.inf if manifest.epsilon_autodp is None else manifest.epsilon_autodp
    if not (cost == claimed or abs(cost - claimed) <= 1e-6 * max(1.0, cost)):
        raise UploadRejected("the claimed ε is not what its events cost", value=claimed, bound=cost)
    if study.privacy.guarantee != "empirical" and not cost <= study.privacy.epsilon:
        raise UploadRejected("the release cost more ε than was asked", value=cost)


def _check_ledger(manifest: Manifest, seen: Mapping[int, str]) -> None:
    """One head per position: a ledger that was restored and went on elsewhere forks here."""
    if seen.get(manifest.ledger_seq, manifest.ledger_head) != manifest.ledger_head:
        raise UploadRejected(
            "the site's ledger forked",
            value=f"another record {manifest.ledger_seq} was seen before",
            remedy="the steward must recover the ledger before this site answers again",
        )


def read_upload(site: str, manifest: Manifest, path: Path, schema: Schema) -> Upload:
    """Parse and check the table itself.

    Raises:
        UploadRejected: another file than the manifest's, another shape, or a value out of schema.
    """
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    if digest.hexdigest() != manifest.table_sha256 or path.stat().st_size != manifest.table_bytes:
        raise UploadRejected("the table is not the one its manifest names")
    check_stream(path)
    try:
        # Not mapped but read: the numbers that are checked must be the numbers that are used.
        with pa.OSFile(str(path)) as source:
            table = pa.ipc.open_stream(source).read_all()
        table.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, ValueError):
        raise UploadRejected("the table cannot be parsed") from None
    _check_shape(table, manifest, schema)
    upload = Upload(site, manifest, table)
    _check_values(table.drop_columns([COPY]), schema)
    return upload


def _check_shape(table: pa.Table, manifest: Manifest, schema: Schema) -> None:
    model = to_arrow({name: np.zeros(0) for name in schema.names}, schema).schema
    if table.column_names != [COPY, *model.names]:
        raise UploadRejected("the table's columns are not the study's")
    for field in model:
        if table.schema.field(field.name).type != field.type:
            raise UploadRejected(f"column {field.name} has another type", bound=field.type)
    if table.schema.field(COPY).type != pa.int32():
        raise UploadRejected("the copy column has another type")
    counts = np.bincount(
        np.clip(table.column(COPY).fill_null(0).to_numpy(), 0, manifest.copies + 1),
        minlength=manifest.copies + 2,
    )
    wanted = [0, *([manifest.rows] * manifest.copies), 0]
    if counts.tolist() != wanted:
        raise UploadRejected("the table's copies do not have n rows each")


def _check_values(table: pa.Table, schema: Schema) -> None:
    """Levels, finiteness, bounds and missing values, by the public schema."""
    try:
        coded = from_arrow(table, schema)
    except (InvalidInput, ValueError, KeyError):
        raise UploadRejected("the table holds values outside the schema") from None
    for column in schema.columns:
        values = coded[column.name]
        nulls = table.column(column.name).null_count
        missing = np.isnan(values)
        if int(missing.sum()) != nulls or (nulls and not column.nullable):
            raise UploadRejected(f"column {column.name} holds NaN or missing values")
        known = values[~missing]
        if not np.isfinite(known).all():
            raise UploadRejected(f"column {column.name} holds infinite values")
        low = column.lower if column.lower is not None else -math.inf
        high = column.upper if column.upper is not None else math.inf
        if not column.levels and known.size and (known.min() < low or known.max() > high):
            raise UploadRejected(f"column {column.name} leaves its bounds")

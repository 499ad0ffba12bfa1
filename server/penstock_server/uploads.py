"""What a site sent, checked as if it were hostile, before anything is computed from it."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.checks import shown
from penstock.errors import InvalidEvent, InvalidInput, SignatureError, UploadRejected
from penstock.privacy import accountant
from penstock.privacy.accountant import epsilon
from penstock.privacy.events import RELATION, from_dict
from penstock.released import COPY, Shape, shape_of
from penstock.schema import LEVEL_KINDS, Schema, from_arrow
from penstock.study import Study, parse_time
from penstock.wire.manifest import Manifest, read_manifest
from penstock.wire.messages import SERVED_MAJORS
from penstock_server.ipc_guard import check_stream
from penstock_server.store import Site

# A study's sites mostly claim the same events, and a fourth of a second each is the pump's.
epsilon_pld = lru_cache(maxsize=256)(accountant.epsilon_pld)
MAX_EVENTS = 16
"""A mechanism charges a handful; each costs time to account for."""
MAX_SEQ = 2**53
_WIRE = re.compile(r"([0-9]{1,4})\.[0-9]{1,4}")
_HEAD = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Upload:
    """A release that passed every check."""

    site: str
    manifest: Manifest
    shape: Shape
    table: pa.Table

    def copy(self, index: int) -> pa.Table:
        """Copy ``index`` (from 1), or refit ``-index``, without its labels."""
        mask = pc.equal(self.table.column(COPY), index)
        return self.table.filter(mask).drop_columns(list(self.shape.labels))


def size_limit(study: Study, persons: int) -> int:
    """The most bytes a site's table may have, from the signed study and the enrolled n."""
    return shape_of(study, persons).bytes()


def check_manifest(
    data: bytes,
    study: Study,
    study_id: str,
    site: Site,
    *,
    ledger_seen: Mapping[int, str],
    ledger_floor: int = 0,
    simulation: bool,
) -> Manifest:
    """Everything about a manifest that can be checked without its table.

    Args:
        ledger_seen: heads of the site's ledger by position, as earlier manifests showed them.
        ledger_floor: the last position seen before the site was invited to this study.

    Raises:
        UploadRejected: naming the first thing that is not what the signed study asked.
    """
    try:
        manifest = read_manifest(data, site.gate_key)
    except (SignatureError, InvalidInput) as error:
        raise UploadRejected(str(error)) from None
    except (ValueError, TypeError, RecursionError):
        # What JSON can hold and canonical bytes or a manifest cannot: 1e400, half a character.
        raise UploadRejected("the manifest cannot be read") from None
    expected: list[tuple[str, object, object]] = [
        ("study", manifest.study_id, study_id),
        ("site", manifest.site, site.name),
        ("release", manifest.release, study.release),
        ("guarantee", manifest.guarantee, study.privacy.guarantee),
        ("mechanism", manifest.mechanism, study.mechanism.name),
        ("copies", manifest.copies, study.mechanism.copies),
        ("refits", manifest.refits, study.mechanism.refits),
        ("δ", manifest.delta, study.privacy.delta),
        ("relation", manifest.relation, RELATION),
        ("public n", manifest.persons, site.persons),
        ("rows", manifest.rows, shape_of(study, site.persons).counts[1]),
    ]
    for name, got, wanted in expected:
        if got != wanted:
            raise UploadRejected(
                f"the manifest's {name} is not what was asked", value=shown(got), bound=wanted
            )
    try:
        parse_time(manifest.released_at)
    except ValueError:
        raise UploadRejected("the manifest's time is not one") from None
    wire = _WIRE.fullmatch(manifest.wire)
    if wire is None or int(wire[1]) not in SERVED_MAJORS:
        raise UploadRejected("the manifest's wire version is not served", value=manifest.wire[:20])
    if manifest.insecure_seed and not simulation:
        raise UploadRejected(
            "the release was made with a test seed and is not private",
            remedy="remove insecure_seed from the site's settings",
        )
    _check_ledger(manifest, ledger_seen, ledger_floor)
    _check_epsilon(manifest, study)
    return manifest


def _check_epsilon(manifest: Manifest, study: Study) -> None:
    """The claimed ε are what the claimed events cost, and no more than was asked."""
    if not 1 <= len(manifest.events) <= MAX_EVENTS:
        count = len(manifest.events)
        raise UploadRejected("the manifest's events", value=count, bound=f"1 to {MAX_EVENTS}")
    formal = study.privacy.guarantee != "empirical"
    try:
        events = tuple(from_dict(e) for e in manifest.events)
        cost = epsilon(events, manifest.delta)
        # Before the PLD, whose work grows with ε.
        if formal != math.isfinite(cost) or (formal and not cost <= study.privacy.epsilon):
            asked = study.privacy.epsilon if formal else "an unbounded event"
            raise UploadRejected("the release's ε is not what was asked", value=cost, bound=asked)
        pld = epsilon_pld(events, manifest.delta)
        replace_one = epsilon_pld(events, manifest.delta, relation="replace-one")
    except InvalidEvent as error:
        raise UploadRejected(f"the manifest's events: {error.message}") from None
    except (ArithmeticError, ValueError, TypeError):
        raise UploadRejected("the manifest's events cannot be accounted for") from None
    # Convolutions differ a little between versions of dp-accounting.
    for claimed, recomputed, tolerance in (
        (manifest.epsilon_autodp, cost, 1e-6),
        (manifest.epsilon_pld, pld, 1e-3),
        (manifest.epsilon_replace_one, replace_one, 1e-3),
    ):
        value = math.inf if claimed is None else claimed
        if not (value == recomputed or abs(value - recomputed) <= tolerance * max(1.0, recomputed)):
            raise UploadRejected(
                "the claimed ε is not what its events cost", value=shown(value), bound=recomputed
            )


def _check_ledger(manifest: Manifest, seen: Mapping[int, str], floor: int) -> None:
    """One head per position, and later studies at later positions.

    A ledger that was restored from a backup and went on repeats positions: with another head, or
    at or before one that was shown before this study existed.
    """
    seq, head = manifest.ledger_seq, manifest.ledger_head
    if not (1 <= seq <= MAX_SEQ and _HEAD.fullmatch(head)):
        raise UploadRejected("the manifest's ledger position is none")
    remedy = "the steward must recover the ledger before this site answers again"
    if seen.get(seq, head) != head:
        raise UploadRejected(
            "the site's ledger forked", value=f"another record {seq} was seen", remedy=remedy
        )
    if seq <= floor:
        raise UploadRejected(
            "the site's ledger went back", value=seq, bound=f"above {floor}", remedy=remedy
        )


def read_upload(site: str, manifest: Manifest, path: Path, study: Study) -> Upload:
    """Parse and check the table itself.

    Raises:
        UploadRejected: another file than the manifest's, another shape, or a value out of schema.
    """
    shape = shape_of(study, manifest.persons)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    if digest.hexdigest() != manifest.table_sha256 or path.stat().st_size != manifest.table_bytes:
        raise UploadRejected("the table is not the one its manifest names")
    check_stream(path)
    try:
        # Not mapped but read: the numbers that are checked must be the numbers that are used.
        with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
            expected = _check_columns(reader.schema, shape)
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError):
        raise UploadRejected("the table cannot be parsed") from None
    # Without the site's own metadata, which pandas would obey.
    table = pa.Table.from_arrays(table.columns, schema=expected)
    _check_copies(table, shape)
    _check_values(table.drop_columns(list(shape.labels)), shape.schema)
    return Upload(site, manifest, shape, table)


def _check_columns(found: pa.Schema, shape: Shape) -> pa.Schema:
    """Names, order and types; before any batch is read, which could be of any type and length."""
    expected = shape.arrow()
    if found.names != expected.names:
        raise UploadRejected("the table's columns are not the study's")
    for field in expected:
        if found.field(field.name).type != field.type:
            raise UploadRejected(f"column {field.name} has another type", bound=field.type)
    return expected


def _check_copies(table: pa.Table, shape: Shape) -> None:
    index = table.column(COPY).fill_null(np.iinfo(np.int32).min).to_numpy()
    found, counts = np.unique(index, return_counts=True)
    if dict(zip(found.tolist(), counts.tolist(), strict=True)) != dict(shape.counts):
        raise UploadRejected("the table's copies and refits do not have n rows each")


def _check_values(table: pa.Table, schema: Schema) -> None:
    """Levels, bounds, decimals and missing values, by the public schema."""
    try:
        coded = from_arrow(table, schema)
    except (InvalidInput, ValueError, KeyError):
        raise UploadRejected("the table holds values outside the schema") from None
    for column in schema.columns:
        values = coded[column.name]
        nulls = table.column(column.name).null_count
        if nulls and not column.nullable:
            raise UploadRejected(f"column {column.name} holds missing values")
        known = values[~np.isnan(values)]
        if len(values) - known.size != nulls:
            what = "an unknown level" if column.kind in LEVEL_KINDS else "NaN"
            raise UploadRejected(f"column {column.name} holds {what}")
        # Also infinite values: they are not what they would be clamped to.
        if not np.array_equal(column.snap(known), known):
            raise UploadRejected(f"column {column.name} leaves its bounds or its decimals")

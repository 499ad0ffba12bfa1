"""What a site sent, checked as if it were hostile, before anything is computed from it."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.base.checks import NAME, SITE, SITE_BOUND, shown
from penstock.base.errors import InvalidEvent, InvalidInput, SignatureError, UploadRejected
from penstock.base.times import parse_time
from penstock.mechanisms import labelled
from penstock.mechanisms.joint.consortium import ALL_SITES
from penstock.mechanisms.registry import MECHANISMS
from penstock.mechanisms.released import Shape
from penstock.privacy.accounting import accountant
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.events import (
    RELATION,
    DiscreteGaussian,
    DistributedGaussian,
    Gaussian,
    NoisyDescent,
    from_dict,
    injections,
)
from penstock.schema import LEVEL_KINDS, Coded, Schema, from_arrow
from penstock.study.study import Study
from penstock.wire.manifest import Manifest, ManifestPart, read_manifest
from penstock.wire.messages import SERVED_MAJORS, names_parts, read_version
from penstock_server.intake.ipc_guard import check_part, check_stream
from penstock_server.intake.summand import check_summand, count_persons
from penstock_server.mechanisms.delivery import Upload
from penstock_server.mechanisms.registry import kind_of
from penstock_server.store.sites import Site

# A study's sites mostly claim the same events, and a fourth of a second each is the pump's.
epsilon_pld = lru_cache(maxsize=256)(accountant.epsilon_pld)
MAX_EVENTS, MAX_SUBSAMPLED = 64, 16
"""A mechanism charges a handful, or a few for each step of a chain. All but plain Gaussian noise
cost time to account for, up to half a second each."""
_PLAIN = (Gaussian, DiscreteGaussian, DistributedGaussian, NoisyDescent)
MAX_SEQ = 2**53
_HEAD = re.compile(r"[0-9a-f]{64}")
MAX_VERSION, MAX_SOFTWARE, LABEL = 1_000_000, 32, 100
_SOFTWARE_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63}")


def size_limit(study: Study, persons: int) -> int:
    """The most bytes a site's table may have, from the signed study and the enrolled n: none of a
    part in sums of all sites."""
    if study.aggregation.joint:
        return 0
    return MECHANISMS.of(study.mechanism).shape(study.asked, persons).bytes()


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
        ("public n", manifest.persons, count_persons(study, site)),
    ]
    for name, got, wanted in expected:
        if got != wanted:
            raise UploadRejected(
                f"the manifest's {name} is not what was asked", value=shown(got), bound=wanted
            )
    if study.aggregation.joint:
        check_summand(manifest, study)
    else:
        _check_shape(manifest, MECHANISMS.of(study.mechanism).shape(study.asked, site.persons))
    try:
        parse_time(manifest.released_at)
    except ValueError:
        raise UploadRejected("the manifest's time is not one") from None
    wire = read_version(manifest.wire)
    if wire is None or wire[0] not in SERVED_MAJORS:
        raise UploadRejected("the manifest's wire version is not served", value=manifest.wire[:20])
    if manifest.insecure_seed and not simulation:
        raise UploadRejected(
            "the release was made with a test seed and is not private",
            remedy="remove insecure_seed from the site's settings",
        )
    _check_facts(manifest)
    _check_ledger(manifest, ledger_seen, ledger_floor)
    _check_epsilon(manifest, study)
    return manifest


def _check_shape(manifest: Manifest, shape: Shape) -> None:
    """So many rows, in such parts, as the public n allows."""
    first = shape.first
    if not first.allows(manifest.rows):
        raise UploadRejected(
            "the manifest's rows are not what the public n allows",
            value=shown(manifest.rows),
            bound=f"1 to {first.rows}" if first.counted else first.rows,
        )
    if names_parts(manifest.wire):
        _check_parts(manifest, shape)


def _check_parts(manifest: Manifest, shape: Shape) -> None:
    """All parts that were asked for, in order and no other, each within its bounds."""
    names = tuple(part.name for part in manifest.parts)
    if names != shape.names:
        pairs = zip_longest(names, shape.names)
        name, wanted = next((n, w) for n, w in pairs if n != w)
        raise UploadRejected(
            "the manifest's parts are not what was asked",
            value="no more" if name is None else shown(name),
            bound=wanted or "no more",
        )
    for part, form in zip(manifest.parts, shape.parts, strict=True):
        for what, size, least, most in (
            ("rows", part.rows, form.least, form.rows),
            ("bytes", part.bytes, 1, form.bytes()),
        ):
            if not least <= size <= most:
                raise UploadRejected(
                    f"the manifest's {what} of {part.name} are not what the public n allows",
                    value=size,
                    bound=f"{least} to {most}" if least < most else most,
                )
    if not shape.counts_fit({part.name: part.rows for part in manifest.parts}):
        raise UploadRejected("the manifest's copies have not all the same rows")
    if manifest.parts[0].rows != manifest.rows:
        raise UploadRejected(
            "the manifest's rows are not those of its first part",
            value=shown(manifest.rows),
            bound=manifest.parts[0].rows,
        )
    whole = sum(part.bytes for part in manifest.parts)
    if whole != manifest.table_bytes:
        raise UploadRejected(
            "the manifest's parts are not the whole table",
            value=f"{whole} bytes",
            bound=f"{shown(manifest.table_bytes)} bytes",
        )


def _check_facts(manifest: Manifest) -> None:
    """What a site says of its own data set and software: not asked for, so at least bounded."""
    if not SITE.fullmatch(manifest.lineage):
        raise UploadRejected(
            "the manifest's lineage is no name", value=shown(manifest.lineage), bound=SITE_BOUND
        )
    if not 1 <= manifest.version <= MAX_VERSION:
        value, bound = shown(manifest.version), f"1 to {MAX_VERSION}"
        raise UploadRejected("the manifest's version of the data", value=value, bound=bound)
    if len(manifest.software) > MAX_SOFTWARE:
        many, bound = len(manifest.software), f"at most {MAX_SOFTWARE} programs"
        raise UploadRejected("the manifest's software", value=many, bound=bound)
    for name, version in manifest.software.items():
        known = isinstance(version, str) and _SOFTWARE_VERSION.fullmatch(version)
        if not (known and NAME.fullmatch(name)):
            value, bound = f"{shown(name)}: {shown(version)}", "names and their versions"
            raise UploadRejected("the manifest's software", value=value, bound=bound)


def _check_epsilon(manifest: Manifest, study: Study) -> None:
    """The claimed ε are what the claimed events cost, and no more than was asked."""
    if not 1 <= len(manifest.events) <= MAX_EVENTS:
        count = len(manifest.events)
        raise UploadRejected("the manifest's events", value=count, bound=f"1 to {MAX_EVENTS}")
    formal = study.privacy.guarantee != "empirical"
    try:
        events = tuple(from_dict(e) for e in manifest.events)
        if not all(_is_line(e.label) for e in events):
            raise UploadRejected("the manifest's events", bound=f"labels: {LABEL} characters")
        slow = sum(not isinstance(e, _PLAIN) for e in events)
        if slow > MAX_SUBSAMPLED:
            bound = f"at most {MAX_SUBSAMPLED} that are not plain Gaussian noise"
            raise UploadRejected("the manifest's events", value=slow, bound=bound)
        cost = epsilon(events, manifest.delta)
        # Before the PLD, whose work grows with ε.
        if formal != math.isfinite(cost) or (formal and not cost <= study.privacy.epsilon):
            asked = study.privacy.epsilon if formal else "an unbounded event"
            raise UploadRejected("the release's ε is not what was asked", value=cost, bound=asked)
        pld = epsilon_pld(events, manifest.delta)
        replace_one = epsilon_pld(events, manifest.delta, relation="replace-one")
        injected = injections(events)
        injection = epsilon(injected, manifest.delta) if injected else None
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
    _check_injection(manifest.injection_epsilon, injection, study)


def _is_line(label: object) -> bool:
    return isinstance(label, str) and len(label) <= LABEL and label.isprintable()


def _check_injection(claimed: float | None, recomputed: float | None, study: Study) -> None:
    """The injection's own ε: where one was asked for, and what its events cost."""
    asked = kind_of(study).injects
    if asked != (recomputed is not None):
        what = "one" if asked else "none"
        raise UploadRejected("the release's latent noise injection", bound=f"{what} was asked for")
    if claimed is None or recomputed is None:
        good = claimed is recomputed
    else:
        good = abs(claimed - recomputed) <= 1e-6 * max(1.0, recomputed)
    if not good:
        raise UploadRejected(
            "the injection's claimed ε is not what it costs", value=shown(claimed), bound=recomputed
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
    """Parse and check what was released itself; how it lies in its file, its manifest says.

    A part in sums of all sites has no parts of its own.

    Raises:
        UploadRejected: another file than the manifest's, another shape, or a value out of schema.
    """
    _check_digest(manifest, path)
    if study.aggregation.joint:
        check_summand(manifest, study)
        return Upload(site, manifest, {})
    return _read_release(site, manifest, path, study)


def read_concluded(manifest: Manifest, path: Path, study: Study) -> Upload:
    """The same of one release that was made of all sites' sums.

    Args:
        study: with the column that says of which site a row is.

    Raises:
        UploadRejected: as :func:`read_upload`.
    """
    _check_digest(manifest, path)
    return _read_release(ALL_SITES, manifest, path, study)


def _check_digest(manifest: Manifest, path: Path) -> None:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    if digest.hexdigest() != manifest.table_sha256 or path.stat().st_size != manifest.table_bytes:
        raise UploadRejected("the table is not the one its manifest names")


def _read_release(site: str, manifest: Manifest, path: Path, study: Study) -> Upload:
    shape = MECHANISMS.of(study.mechanism).shape(study.asked, manifest.persons)
    if names_parts(manifest.wire):
        parts = _read_parts(path, shape, manifest.parts)
    else:
        parts = _read_labelled(path, shape, manifest.rows)
    coded = {part.name: _check_values(parts[part.name], part.schema) for part in shape.parts}
    kind_of(study).check(coded)
    read = {(part.name, part.schema): coded[part.name] for part in shape.parts}
    return Upload(site, manifest, parts, read)


def _read_labelled(path: Path, shape: Shape, rows: int) -> dict[str, pa.Table]:
    """The parts of one table, of before wire 1.2, in which labels tell them apart."""
    check_stream(path)
    with pa.OSFile(str(path)) as source:
        table = _read_table(source, labelled.arrow_schema(shape))
    parts = labelled.split_table(shape, table)
    if parts is None or not shape.counts_fit({name: len(part) for name, part in parts.items()}):
        raise UploadRejected("the table's labels are not those of its copies, refits and paths")
    found = len(parts[shape.first.name])
    if found != rows:
        raise UploadRejected(
            "the table's copies have not the manifest's rows", value=found, bound=rows
        )
    return parts


def _read_parts(path: Path, shape: Shape, told: tuple[ManifestPart, ...]) -> dict[str, pa.Table]:
    """The parts of a file, each a stream of its own, one after the other."""
    # Checked on arrival; but nothing is read, or held in memory, that is not there.
    if tuple(part.name for part in told) != shape.names:
        raise UploadRejected("the manifest's parts are not what was asked")
    if sum(part.bytes for part in told) != path.stat().st_size:
        raise UploadRejected("the manifest's parts are not the whole table")
    found = {}
    with pa.OSFile(str(path)) as source:
        for part, form in zip(told, shape.parts, strict=True):
            # Looked through and parsed from one and the same bytes.
            held = source.read_buffer(part.bytes)
            try:
                check_part(held, part.rows)
                found[part.name] = _read_table(pa.BufferReader(held), form.arrow())
            except UploadRejected as error:
                raise UploadRejected(
                    f"{part.name}: {error.message}", value=error.value, bound=error.bound
                ) from None
    if not shape.counts_fit({name: len(table) for name, table in found.items()}):
        raise UploadRejected("the parts have not the rows that were asked for")
    return found


def _read_table(source: pa.NativeFile, expected: pa.Schema) -> pa.Table:
    """A stream's table of these columns, parsed and valid."""
    try:
        # Not mapped but read: the numbers that are checked must be the numbers that are used.
        with pa.ipc.open_stream(source) as reader:
            _check_columns(reader.schema, expected)
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError):
        raise UploadRejected("the table cannot be parsed") from None
    # Without the site's own metadata, which pandas would obey.
    return pa.Table.from_arrays(table.columns, schema=expected)


def _check_columns(found: pa.Schema, expected: pa.Schema) -> None:
    """Names, order and types; before any batch is read, which could be of any type and length."""
    if found.names != expected.names:
        raise UploadRejected("the table's columns are not the study's")
    for field in expected:
        if found.field(field.name).type != field.type:
            raise UploadRejected(f"column {field.name} has another type", bound=field.type)


def _check_values(table: pa.Table, schema: Schema) -> Coded:
    """Levels, bounds, decimals and missing values, by the public schema; the values, coded."""
    try:
        coded = from_arrow(table, schema)
    except (InvalidInput, ValueError, KeyError):
        raise UploadRejected("the table holds values outside the schema") from None
    for column in schema.columns:
        values = coded[column.name]
        nulls = table.column(column.name).null_count
        if nulls and not column.nullable:
            raise UploadRejected(f"column {column.name} holds missing values")
        missing = np.isnan(values)
        known = values[~missing] if missing.any() else values
        if len(values) - known.size != nulls:
            what = "an unknown level" if column.kind in LEVEL_KINDS else "NaN"
            raise UploadRejected(f"column {column.name} holds {what}")
        # Also infinite values: they are not what they would be clamped to.
        if not np.array_equal(column.snap(known), known):
            raise UploadRejected(f"column {column.name} leaves its bounds or its decimals")
    return coded

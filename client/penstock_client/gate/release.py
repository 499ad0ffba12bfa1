"""Released bytes: kept for good, so that the same request always gets the same answer."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.base.errors import PenstockError
from penstock.base.files import sync_directory
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.events import RELATION, injections, to_dict
from penstock.wire.manifest import Manifest, read_manifest, sign_manifest
from penstock.wire.messages import PART_BYTES, choose_version
from penstock.wire.release_file import measure_release
from penstock.wire.signatures import public_hex
from penstock.wire.signed import SignedStudy
from penstock_client.gate.admission import Admission
from penstock_client.ledger.state import State

MANIFEST_FILE = "manifest.json"
TABLE_FILE = "table.arrow"


def list_software() -> dict[str, str]:
    """Versions of what made a release."""
    found = {"python": platform.python_version()}
    for name in ("penstock", "torch", "autodp", "dp-accounting", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def keep_release(
    folder: Path,
    table: Path,
    signed: SignedStudy,
    admission: Admission,
    *,
    site: str,
    persons: int,
    reserved: State,
    insecure: bool,
    key: Ed25519PrivateKey,
) -> None:
    """Check the table; write it and its signed manifest beside each other, in one durable rename.

    Raises:
        JobFailed: the table is not what was planned.
    """
    manifest = describe_release(
        signed,
        admission,
        table,
        site=site,
        persons=persons,
        reserved=reserved,
        insecure=insecure,
        gate_key=public_hex(key),
    )
    staging = folder.with_name(f".{folder.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(mode=0o700, parents=True)
    (staging / MANIFEST_FILE).write_bytes(sign_manifest(manifest, key))
    # Not moved: the worker may have written on another file system.
    shutil.copyfile(table, staging / TABLE_FILE)
    for name in (TABLE_FILE, MANIFEST_FILE):
        with open(staging / name, "rb+") as file:
            os.fsync(file.fileno())
    sync_directory(staging)
    os.replace(staging, folder)
    sync_directory(folder.parent)


def describe_release(
    signed: SignedStudy,
    admission: Admission,
    table: Path,
    *,
    site: str,
    persons: int,
    reserved: State,
    insecure: bool,
    gate_key: str,
) -> Manifest:
    """The manifest of a release, from public facts, the charge, and the table's noisy count.

    Raises:
        JobFailed: the table is not what was planned.
    """
    study, events, delta = signed.study, admission.charge.events, signed.study.privacy.delta
    wire = choose_version(study.wire)
    # A part in sums of many sites is no table: what left were masked vectors.
    joint = study.aggregation.joint
    rows, parts = (0, ()) if joint else measure_release(table, admission.shape, wire)
    injection = injections(events)
    return Manifest(
        wire=wire,
        study_id=signed.study_id,
        site=site,
        request_id=admission.request_id,
        release=study.release,
        lineage=admission.charge.lineage,
        version=admission.charge.version,
        persons=persons,
        rows=rows,
        copies=study.mechanism.copies,
        refits=study.mechanism.refits,
        guarantee=study.privacy.guarantee,
        mechanism=study.mechanism.name,
        events=tuple(to_dict(e) for e in events),
        relation=RELATION,
        delta=delta,
        epsilon_autodp=_finite(epsilon(events, delta)),
        epsilon_pld=_finite(epsilon_pld(events, delta)),
        epsilon_replace_one=_finite(epsilon_pld(events, delta, relation="replace-one")),
        injection_epsilon=_finite(epsilon(injection, delta)) if injection else None,
        table_sha256=_digest(table),
        table_bytes=table.stat().st_size,
        ledger_seq=reserved.seq,
        ledger_head=reserved.head,
        # The hour only: the run's exact length is nobody's business.
        released_at=reserved.time[:13] + ":00:00Z",
        insecure_seed=insecure,
        software=list_software(),
        gate_key=gate_key,
        parts=parts,
    )


def _digest(path: Path) -> str:
    """SHA-256 of a file that may be larger than memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def is_whole(folder: Path, gate_key: str) -> bool:
    """Whether a kept release is complete and its own: the proof after a crash that it exists."""
    try:
        manifest = read_manifest((folder / MANIFEST_FILE).read_bytes(), gate_key)
        return _digest(folder / TABLE_FILE) == manifest.table_sha256
    except (OSError, PenstockError):
        return False


def read_manifest_bytes(folder: Path) -> bytes:
    return (folder / MANIFEST_FILE).read_bytes()


def measure_table(folder: Path) -> int:
    """Bytes of the table."""
    return (folder / TABLE_FILE).stat().st_size


def read_table_parts(folder: Path, offset: int = 0, length: int = 0) -> Iterator[bytes]:
    """The table from ``offset`` in parts of at most :data:`PART_BYTES`; ``length`` 0: to the end.

    Empty beyond the end. Always the same bytes, since a kept release never changes.
    """
    left = length or None
    with open(folder / TABLE_FILE, "rb") as file:
        # Not sought blindly: an offset of 2**63 is a caller's to send, and no file's to hold.
        file.seek(min(offset, measure_table(folder)))
        while part := file.read(PART_BYTES if left is None else min(PART_BYTES, left)):
            yield part
            if left is not None:
                left -= len(part)

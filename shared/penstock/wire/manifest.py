"""The manifest: what a site says about what it releases, signed with its gate key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.base.errors import UploadRejected
from penstock.base.shapes import find_misfit, is_list_of_objects
from penstock.wire.canonical import canonical, read_json
from penstock.wire.messages import MAX_MANIFEST_BYTES, SERVED_MAJORS, names_parts, read_version
from penstock.wire.signatures import public_hex, sign, verify

MANIFEST = "manifest"
MAX_WHOLE = 2**53


@dataclass(frozen=True, slots=True)
class ManifestPart:
    """What a manifest says of a part: so many rows, in so many bytes behind those of the part
    before it. There is nothing to point with, so that parts can neither overlap nor leave gaps."""

    name: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Public facts of one release.

    ``table_*`` are of the whole file, whose parts are listed in the order in which they lie in it;
    before wire 1.2 they were one table, and none is listed (:func:`names_parts`). ``rows`` are
    those of the first part, and of each copy.

    ``epsilon_*`` are null where infinite (the ``empirical`` class). ``ledger_seq`` and
    ``ledger_head`` let a coordinator see a ledger that was rolled back or forked.
    """

    wire: str
    study_id: str
    site: str
    request_id: str
    release: int
    lineage: str
    version: int
    persons: int
    rows: int
    copies: int
    refits: int
    guarantee: str
    mechanism: str
    events: tuple[dict[str, Any], ...]
    relation: str
    delta: float
    epsilon_autodp: float | None
    epsilon_pld: float | None
    epsilon_replace_one: float | None
    injection_epsilon: float | None
    table_sha256: str
    table_bytes: int
    ledger_seq: int
    ledger_head: str
    released_at: str
    insecure_seed: bool
    software: dict[str, str]
    gate_key: str
    parts: tuple[ManifestPart, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        found = asdict(self)
        if not names_parts(self.wire):
            del found["parts"]
        return found


def sign_manifest(manifest: Manifest, key: Ed25519PrivateKey) -> bytes:
    """Canonical bytes of the manifest and its signature."""
    if manifest.gate_key != public_hex(key):
        raise UploadRejected("a manifest names the key that signs it", value=manifest.gate_key)
    body = manifest.to_dict()
    return canonical({"manifest": body, "signature": sign(key, MANIFEST, canonical(body))})


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "float | None": (float, int, type(None)),
    "dict[str, str]": (dict,),
    "tuple[dict[str, Any], ...]": (list,),
    "tuple[ManifestPart, ...]": (list,),
}


def read_manifest(data: bytes, gate_key: str) -> Manifest:
    """Parse an untrusted manifest that must be signed by the enrolled ``gate_key``.

    Raises:
        UploadRejected: malformed, or signed for another key.
        SignatureError: the signature does not match.
    """
    record = read_json(data, what="manifest", limit=MAX_MANIFEST_BYTES)
    body, signature = record.get("manifest"), record.get("signature")
    if not (isinstance(body, dict) and isinstance(signature, str) and len(record) == 2):
        raise UploadRejected("not a signed manifest")
    verify(gate_key, MANIFEST, canonical(body), signature)
    if body.get("gate_key") != gate_key:
        raise UploadRejected("the manifest names a key other than the site's")
    return _from_dict(body)


def _from_dict(body: Mapping[str, Any]) -> Manifest:
    wire = body.get("wire")
    version = read_version(wire) if isinstance(wire, str) else None
    if version is not None and version[0] not in SERVED_MAJORS:
        raise UploadRejected("the manifest's wire version is not served", value=wire)
    named = isinstance(wire, str) and names_parts(wire)
    expected = {f.name: str(f.type) for f in fields(Manifest) if named or f.name != "parts"}
    if set(body) != set(expected):
        odd = sorted(set(body) ^ set(expected))
        raise UploadRejected("the manifest's fields are not those of this version", value=odd)
    for name, kind in expected.items():
        value = body[name]
        if find_misfit(body, {name: _TYPES[kind]}) is not None:
            raise UploadRejected(f"manifest field {name} has the wrong type", bound=kind)
        if "float" in kind and isinstance(value, int) and not abs(value) <= MAX_WHOLE:
            # Python's whole numbers have no end, and comparing the longest with a float raises.
            raise UploadRejected(f"manifest field {name} is out of range", bound=f"to {MAX_WHOLE}")
    if not is_list_of_objects(body["events"]):
        raise UploadRejected("the manifest's events cannot be read")
    parts = tuple(_read_part(part) for part in body.get("parts", ()))
    return Manifest(**{**body, "events": tuple(dict(e) for e in body["events"]), "parts": parts})


def _read_part(body: object) -> ManifestPart:
    types = {"name": (str,), "rows": (int,), "bytes": (int,)}
    if not isinstance(body, dict) or set(body) != set(types) or find_misfit(body, types):
        raise UploadRejected("the manifest's parts cannot be read", bound="name, rows, bytes")
    if not all(0 <= body[size] <= MAX_WHOLE for size in ("rows", "bytes")):
        raise UploadRejected("a part's size is out of range", bound=f"0 to {MAX_WHOLE}")
    return ManifestPart(**body)

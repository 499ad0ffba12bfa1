"""Signed studies and cancellations: what an analyst sends."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.base.errors import InvalidInput, Problem, SignatureError
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.study.halves import list_halves
from penstock.study.scope import BOTH
from penstock.study.study import Study
from penstock.wire.canonical import canonical, digest, read_json
from penstock.wire.messages import MAX_STUDY_BYTES
from penstock.wire.signatures import public_hex, sign, verify

STUDY = "study"
CANCEL = "cancel"


@dataclass(frozen=True)
class SignedStudy:
    """A study with the key that signed it. Constructed only from a verified signature.

    It is read where bytes come in, from the wire or from a store, and travels as this object.

    Attributes:
        data: the bytes as they came: what is stored, and sent on.
    """

    study: Study
    signer: str
    signature: str
    data: bytes

    @cached_property
    def study_id(self) -> str:
        """SHA-256 of the canonical study and the signer: the study's name everywhere."""
        return name_study(self.study, self.signer)

    def to_bytes(self) -> bytes:
        return self.data


def name_study(study: Study, signer: str) -> str:
    """The id that a study has once this key signed it."""
    return digest({"study": study.to_dict(), "signer": signer})


def sign_halves(study: Study, key: Ed25519PrivateKey) -> tuple[SignedStudy, ...]:
    """Sign what is asked of sites: of a study of both its two halves, that of each site's own
    release first; of any other itself.

    Raises:
        InvalidInput: its budget is too small to be shared.
    """
    return tuple(sign_study(half, key) for half in list_halves(study))


def sign_study(study: Study, key: Ed25519PrivateKey) -> SignedStudy:
    """Sign a study with the analyst's key."""
    content, signer = study.to_dict(), public_hex(key)
    signature = sign(key, STUDY, canonical(content))
    data = canonical({"signature": signature, "signer": signer, "study": content})
    return SignedStudy(study, signer, signature, data)


def read_signed_study(data: bytes, mechanisms: Registry = MECHANISMS) -> SignedStudy:
    """Parse and verify an untrusted signed study.

    Args:
        mechanisms: those that it may name.

    Raises:
        InvalidInput: not a signed study, or a study with problems.
        SignatureError: the signature does not match.
    """
    record = read_json(data, what="signed study", limit=MAX_STUDY_BYTES)
    study, signer, signature = _read_fields(record, ("study", "signer", "signature"))
    if not isinstance(study, dict):
        raise InvalidInput("signed study", [Problem("study", "not an object")])
    # The signature is checked on the bytes that were signed, before they are interpreted.
    verify(signer, STUDY, canonical(study), signature)
    found = Study.from_dict(study, mechanisms)
    if found.aggregation.scope == BOTH:
        remedy = "`penstock study submit` signs its two halves"
        problem = Problem("aggregation.scope", "is not signed as one", value=BOTH, remedy=remedy)
        raise InvalidInput("signed study", [problem])
    return SignedStudy(found, signer, signature, data)


@lru_cache(maxsize=64)
def read_stored_study(data: bytes, mechanisms: Registry = MECHANISMS) -> SignedStudy:
    """A signed study out of this side's own store: parsed and verified once in a process."""
    return read_signed_study(data, mechanisms)


@dataclass(frozen=True, slots=True)
class SignedCancel:
    """The signer's wish to end a study."""

    study_id: str
    signer: str
    signature: str

    def to_bytes(self) -> bytes:
        return canonical(
            {"cancel": self.study_id, "signature": self.signature, "signer": self.signer}
        )


def sign_cancel(study_id: str, key: Ed25519PrivateKey) -> SignedCancel:
    """Cancel a study; only its signer's key is accepted."""
    return SignedCancel(study_id, public_hex(key), sign(key, CANCEL, study_id.encode()))


def read_signed_cancel(data: bytes) -> SignedCancel:
    """Parse and verify an untrusted cancellation."""
    record = read_json(data, what="cancellation", limit=10_000)
    study_id, signer, signature = _read_fields(record, ("cancel", "signer", "signature"))
    verify(signer, CANCEL, str(study_id).encode(), signature)
    return SignedCancel(str(study_id), signer, signature)


def _read_fields(record: dict[str, object], names: tuple[str, str, str]) -> tuple[object, str, str]:
    if set(record) != set(names):
        missing = sorted(set(names) - set(record))
        if "signature" in missing or "signer" in missing:
            raise SignatureError(
                "not signed", remedy="`penstock study submit` signs it with your key"
            )
        raise InvalidInput("signed message", [Problem("", "unexpected fields")])
    first, signer, signature = (record[name] for name in names)
    if not (isinstance(signer, str) and isinstance(signature, str)):
        raise SignatureError("signer and signature must be text")
    return first, signer, signature

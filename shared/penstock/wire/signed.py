"""Signed studies and cancellations: what an analyst sends."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.base.errors import InvalidInput, Problem, SignatureError
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.study.study import Study
from penstock.wire.canonical import canonical, digest, read_json
from penstock.wire.messages import MAX_STUDY_BYTES
from penstock.wire.signatures import public_hex, sign, verify

STUDY = "study"
CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class SignedStudy:
    """A study with the key that signed it. Constructed only from a verified signature.

    Attributes:
        study_id: SHA-256 of the canonical study and the signer: the study's name everywhere.
    """

    study: Study
    signer: str
    signature: str

    @property
    def study_id(self) -> str:
        return digest({"study": self.study.to_dict(), "signer": self.signer})

    def to_bytes(self) -> bytes:
        return canonical(
            {"signature": self.signature, "signer": self.signer, "study": self.study.to_dict()}
        )


def sign_study(study: Study, key: Ed25519PrivateKey) -> SignedStudy:
    """Sign a study with the analyst's key."""
    return SignedStudy(study, public_hex(key), sign(key, STUDY, canonical(study.to_dict())))


def read_signed_study(data: bytes, mechanisms: Registry = MECHANISMS) -> SignedStudy:
    """Parse and verify an untrusted signed study.

    Args:
        mechanisms: those that it may name.

    Raises:
        InvalidInput: not a signed study, or a study with problems.
        SignatureError: the signature does not match.
    """
    record = read_json(data, what="signed study", limit=MAX_STUDY_BYTES)
    study, signer, signature = _fields(record, ("study", "signer", "signature"))
    if not isinstance(study, dict):
        raise InvalidInput("signed study", [Problem("study", "not an object")])
    # The signature is checked on the bytes that were signed, before they are interpreted.
    verify(signer, STUDY, canonical(study), signature)
    return SignedStudy(Study.from_dict(study, mechanisms), signer, signature)


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
    study_id, signer, signature = _fields(record, ("cancel", "signer", "signature"))
    verify(signer, CANCEL, str(study_id).encode(), signature)
    return SignedCancel(str(study_id), signer, signature)


def _fields(record: dict[str, object], names: tuple[str, str, str]) -> tuple[object, str, str]:
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

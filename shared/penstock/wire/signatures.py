"""Ed25519 signatures with domain separation, and fingerprints that people compare by voice."""

from __future__ import annotations

import base64
import hashlib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from penstock.base.errors import SignatureError


def _compose_message(purpose: str, payload: bytes) -> bytes:
    # The purpose keeps a signature on a study from passing as one on a ledger record; its length
    # keeps the two from running into each other.
    name = purpose.encode()
    return b"penstock:%d:%s:%s" % (len(name), name, payload)


def generate_key() -> Ed25519PrivateKey:
    """A fresh signing key from the operating system's randomness."""
    return Ed25519PrivateKey.generate()


def private_to_pem(key: Ed25519PrivateKey | EllipticCurvePrivateKey) -> bytes:
    """PKCS#8 PEM without a passphrase; the caller writes it with mode 0600."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def private_from_pem(pem: bytes) -> Ed25519PrivateKey:
    """Read a key written by :func:`private_to_pem`.

    Raises:
        SignatureError: not an unencrypted Ed25519 key.
    """
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise SignatureError("not a readable private key", value=type(error).__name__) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SignatureError("not an Ed25519 key", value=type(key).__name__)
    return key


def public_hex(key: Ed25519PrivateKey | Ed25519PublicKey) -> str:
    """The 32 bytes of the public key, in hex: how keys are named on the wire."""
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return raw.hex()


def fingerprint(public: str) -> str:
    """``SHA256:`` and the base64 of the key's hash, as ssh prints it; compared out of band."""
    try:
        raw = bytes.fromhex(public)
    except ValueError:
        raise SignatureError("not a public key", value=public[:80]) from None
    if len(raw) != 32:
        raise SignatureError("not a public key", value=f"{len(raw)} bytes", bound="32 bytes")
    return "SHA256:" + base64.b64encode(hashlib.sha256(raw).digest()).decode().rstrip("=")


def sign(key: Ed25519PrivateKey, purpose: str, payload: bytes) -> str:
    """Signature over (purpose, payload), in hex."""
    return key.sign(_compose_message(purpose, payload)).hex()


def verify(public: str, purpose: str, payload: bytes, signature: str) -> None:
    """Check a signature by a named key.

    Raises:
        SignatureError: the key or the signature is malformed, or does not match.

    Example:
        A signature is for one purpose: what was signed as a study cancels nothing.

        >>> key = generate_key()
        >>> signature = sign(key, "study", b"text")
        >>> verify(public_hex(key), "study", b"text", signature)
        >>> try:
        ...     verify(public_hex(key), "cancel", b"text", signature)
        ... except SignatureError as error:
        ...     print(error)  # doctest: +ELLIPSIS
        the signature on this cancel does not match its key: sign it again, ...
    """
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(signature), _compose_message(purpose, payload))
    except (ValueError, TypeError, InvalidSignature):
        raise SignatureError(
            f"the signature on this {purpose} does not match its key",
            remedy="sign it again, or compare fingerprints with whoever sent it",
        ) from None

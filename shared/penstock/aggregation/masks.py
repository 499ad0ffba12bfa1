"""Keys of masks and of letters, and what commits a site to its secrets.

All of it is the ``cryptography`` package's: X25519 agrees on keys, HKDF-SHA256 derives them,
ChaCha20Poly1305 seals letters. What a key is for stands in its derivation: the roster of the study,
and for masks the *context* of the round (:func:`penstock.aggregation.exchanges.find_context`).
"""

from __future__ import annotations

import hashlib
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.aggregation.residues import MaskKey
from penstock.base.errors import UploadRejected
from penstock.wire.canonical import canonical

KEY_BYTES = 32
HASH_BYTES = 32
_NONCE_BYTES = 12


def derive_key(secret: bytes, *purpose: str | int) -> bytes:
    """32 bytes for one purpose and no other."""
    info = canonical(["penstock", *purpose])
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def open_mask_seed(seed: bytes) -> X25519PrivateKey:
    """The key pair of a site's pair masks in a round: all of it follows from the seed."""
    return X25519PrivateKey.from_private_bytes(derive_key(seed, "pair masks"))


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """What two key pairs have in common.

    Raises:
        UploadRejected: the other's key is no key (a point of low order).
    """
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise UploadRejected("a site's public key is none", value=public.hex()) from None


def check_public_key(public: bytes, site: str) -> None:
    """Refuse what no honest site sends, before another site stumbles over it.

    Raises:
        UploadRejected: no key, or one of the few points with which all agree on zero.
    """
    try:
        agree(X25519PrivateKey.generate(), public)
    except UploadRejected:
        raise UploadRejected("a site's public key is none", value=site) from None


def self_mask(seed: bytes, context: str, site: str) -> MaskKey:
    """The mask that only a site's own secret b takes off."""
    return MaskKey(derive_key(seed, "self mask", context, site), added=True)


def pair_mask(
    private: X25519PrivateKey, public: bytes, context: str, site: str, peer: str
) -> MaskKey:
    """The mask that ``site`` adds and ``peer`` takes away, or the other way round."""
    first, second = sorted((site, peer))
    key = derive_key(agree(private, public), "pair mask", context, first, second)
    return MaskKey(key, added=site == first)


def commit(seed: bytes, roster: str, round_: int, site: str) -> bytes:
    """What holds a site to its secret b: SHA-256, of a uniform number and so hiding it."""
    return hashlib.sha256(canonical(["self mask", roster, round_, site, seed.hex()])).digest()


def tag_share(share: bytes, roster: str, round_: int, owner: str, holder: str, kind: str) -> bytes:
    """What holds the holder to the share that the owner gave: a false one names who sent it."""
    text = ["share", roster, round_, owner, holder, kind, share.hex()]
    return hashlib.sha256(canonical(text)).digest()


def seal_letter(
    private: X25519PrivateKey, public: bytes, address: tuple[str, int, str, str], text: bytes
) -> bytes:
    """A letter from site to site that the coordinator carries and cannot read.

    Args:
        address: the roster's digest, round, sender, receiver: what it cannot be moved to another
            one of.
    """
    cipher = ChaCha20Poly1305(derive_key(agree(private, public), "letter", *address))
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, text, canonical(address))


def open_letter(
    private: X25519PrivateKey, public: bytes, address: tuple[str, int, str, str], sealed: bytes
) -> bytes | None:
    """The letter's text; None where it is not what the sender wrote to this address."""
    cipher = ChaCha20Poly1305(derive_key(agree(private, public), "letter", *address))
    try:
        return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], canonical(address))
    except (InvalidTag, ValueError):
        return None


def public_bytes(private: X25519PrivateKey) -> bytes:
    """The 32 bytes of a key pair's public half."""
    return private.public_key().public_bytes_raw()

"""Signatures hold for one purpose, one payload and one key."""

import pytest
from tests.support.hostile import KEY

from penstock.base.errors import SignatureError
from penstock.wire.signatures import (
    fingerprint,
    generate_key,
    private_from_pem,
    private_to_pem,
    public_hex,
    sign,
    verify,
)


def test_a_signature_holds_for_its_purpose_its_payload_and_its_key_only():
    made = sign(KEY, "study", b"x")
    verify(public_hex(KEY), "study", b"x", made)
    for public, purpose, payload, signature in (
        (public_hex(KEY), "cancel", b"x", made),
        (public_hex(KEY), "study", b"y", made),
        (public_hex(generate_key()), "study", b"x", made),
        (public_hex(KEY), "study", b"x", ("00" if made[:2] != "00" else "01") + made[2:]),
        ("zz", "study", b"x", made),
        (public_hex(KEY), "study", b"x", "zz"),
        ("00", "study", b"x", made),
    ):
        with pytest.raises(SignatureError):
            verify(public, purpose, payload, signature)


def test_a_purpose_cannot_run_into_its_payload():
    made = sign(KEY, "a", b"b\x00c")
    with pytest.raises(SignatureError):
        verify(public_hex(KEY), "a\x00b", b"c", made)


def test_keys_survive_their_file():
    assert public_hex(private_from_pem(private_to_pem(KEY))) == public_hex(KEY)


@pytest.mark.parametrize("pem", [b"", b"-----BEGIN PRIVATE KEY-----\n", b"\x00" * 40])
def test_what_is_no_key_is_refused(pem):
    with pytest.raises(SignatureError):
        private_from_pem(pem)


@pytest.mark.parametrize("text", ["", "zz", "00" * 31, "00" * 33])
def test_fingerprints_of_keys_only(text):
    with pytest.raises(SignatureError):
        fingerprint(text)

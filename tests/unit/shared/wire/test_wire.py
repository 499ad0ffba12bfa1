"""Canonical bytes, signatures with a purpose, and messages from strangers."""

import json

import pytest

from penstock.base.errors import InvalidInput, PenstockError, SignatureError
from penstock.wire.canonical import canonical, digest, read_json
from penstock.wire.messages import CODES, REFUSALS, JobState, explain
from penstock.wire.signatures import (
    fingerprint,
    generate_key,
    private_from_pem,
    private_to_pem,
    public_hex,
    sign,
    verify,
)
from penstock.wire.signed import read_signed_cancel, read_signed_study, sign_cancel

HOSTILE = [
    b"",
    b"[]",
    b"1",
    b"null",
    b"\xff",
    b'{"a":1,"a":2}',
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b'{"a":1e400}',
    b'{"a":"\\ud800"}',
    b'{"a":' * 100_000,
    b'{"a":"' + b"x" * 2000 + b'"}',
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_plain_object_is_refused(data):
    with pytest.raises(InvalidInput):
        read_json(data, what="message", limit=1000)


@pytest.mark.parametrize("read", [read_signed_study, read_signed_cancel])
@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_strangers_messages_raise_typed_errors_only(read, data):
    with pytest.raises(PenstockError):
        read(data)


@pytest.mark.parametrize("value", [1, [], {}, {"x": "\ud800"}, None])
def test_a_signed_study_of_odd_fields_is_refused(value):
    body = {"study": value, "signer": "00" * 32, "signature": "00" * 64}
    with pytest.raises(PenstockError):
        read_signed_study(json.dumps(body).encode())


def test_canonical_bytes_do_not_depend_on_order():
    assert canonical({"b": 1, "a": [1.5, "ε"]}) == '{"a":[1.5,"ε"],"b":1}'.encode()
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_canonical_refuses_what_is_no_number(value):
    with pytest.raises(ValueError, match="JSON"):
        canonical({"a": value})


KEY = generate_key()


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


def test_a_cancellation_round_trips_and_names_its_study():
    made = sign_cancel("abc", KEY)
    assert read_signed_cancel(made.to_bytes()) == made
    body = json.loads(made.to_bytes()) | {"cancel": "other"}
    with pytest.raises(SignatureError):
        read_signed_cancel(json.dumps(body).encode())


def test_every_code_is_explained_and_unknown_ones_are_named():
    assert all(meaning for meaning, _ in CODES.values())
    assert "new-code" in explain("new-code")[0]
    assert {"budget", "schema", "expired"} <= REFUSALS
    assert "failed" not in REFUSALS
    assert JobState("delivered") is JobState.DELIVERED

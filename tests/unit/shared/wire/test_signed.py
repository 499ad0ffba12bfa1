"""Signed messages from strangers raise typed errors only."""

import json

import pytest
from tests.support import made
from tests.support.hostile import HOSTILE, KEY

from penstock.base.errors import PenstockError, SignatureError
from penstock.mechanisms import MECHANISMS, Maf
from penstock.wire.canonical import canonical
from penstock.wire.signatures import public_hex, sign
from penstock.wire.signed import STUDY, read_signed_cancel, read_signed_study, sign_cancel


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


def test_what_was_signed_without_a_mechanisms_name_means_what_it_did():
    """The default was maf then: another one since must not change what its signer agreed to."""
    content = made.study(Maf()).to_dict()
    content["mechanism"] = {"copies": 4, "refits": 0}
    record = {"study": content, "signer": public_hex(KEY)}
    record["signature"] = sign(KEY, STUDY, canonical(content))
    assert read_signed_study(canonical(record)).study.mechanism == Maf(copies=4, refits=0)
    assert MECHANISMS.default.name != Maf.name


def test_a_cancellation_round_trips_and_names_its_study():
    made = sign_cancel("abc", KEY)
    assert read_signed_cancel(made.to_bytes()) == made
    body = json.loads(made.to_bytes()) | {"cancel": "other"}
    with pytest.raises(SignatureError):
        read_signed_cancel(json.dumps(body).encode())

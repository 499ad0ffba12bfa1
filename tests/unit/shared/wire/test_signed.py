"""Signed messages from strangers raise typed errors only."""

import json

import pytest
from tests.support.hostile import HOSTILE, KEY

from penstock.base.errors import PenstockError, SignatureError
from penstock.wire.signed import read_signed_cancel, read_signed_study, sign_cancel


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


def test_a_cancellation_round_trips_and_names_its_study():
    made = sign_cancel("abc", KEY)
    assert read_signed_cancel(made.to_bytes()) == made
    body = json.loads(made.to_bytes()) | {"cancel": "other"}
    with pytest.raises(SignatureError):
        read_signed_cancel(json.dumps(body).encode())

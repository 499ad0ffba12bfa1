"""Canonical bytes, and what is no plain JSON object."""

import pytest
from tests.support.hostile import HOSTILE

from penstock.base.errors import InvalidInput
from penstock.wire.canonical import canonical, digest, read_json


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_plain_object_is_refused(data):
    with pytest.raises(InvalidInput):
        read_json(data, what="message", limit=1000)


def test_canonical_bytes_do_not_depend_on_order():
    assert canonical({"b": 1, "a": [1.5, "ε"]}) == '{"a":[1.5,"ε"],"b":1}'.encode()
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_canonical_refuses_what_is_no_number(value):
    with pytest.raises(ValueError, match="JSON"):
        canonical({"a": value})

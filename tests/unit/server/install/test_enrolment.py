"""What a site sends to join: read, or refused."""

from __future__ import annotations

import pytest

from penstock.base.errors import (
    CoordinatorError,
    InvalidInput,
    SignatureError,
)
from penstock_server.install.enrolment import INVITE, read_join


def test_a_join_record_is_read(world):
    join = world.gates["a"].join()
    assert read_join(join) == join


@pytest.mark.parametrize(
    ("field_", "value", "error"),
    [
        ("site", "../../x", CoordinatorError),
        ("site", "", CoordinatorError),
        ("site", None, CoordinatorError),
        ("persons", 0, CoordinatorError),
        ("persons", -3, CoordinatorError),
        ("persons", True, CoordinatorError),
        ("persons", 10.0, CoordinatorError),
        ("persons", 10**30, CoordinatorError),
        ("gate_key", "00", SignatureError),
        ("gate_key", "not hex", SignatureError),
        ("dictionary", {}, InvalidInput),
        ("dictionary", [], CoordinatorError),
        ("node_key", 7, CoordinatorError),
    ],
)
def test_a_join_record_that_is_none_is_refused(world, field_, value, error):
    with pytest.raises(error):
        read_join(world.gates["a"].join(**{field_: value}))


def test_what_else_is_handed_over_is_told_from_a_join_record(world):
    join = world.gates["a"].join()
    del join["persons"]
    with pytest.raises(CoordinatorError, match=r"got no persons.*give the join.json"):
        read_join(join)
    with pytest.raises(CoordinatorError, match=r"an invite.*steward runs `penstock site join`"):
        read_join(join | {"format": INVITE})

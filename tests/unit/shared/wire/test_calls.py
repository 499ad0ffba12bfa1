"""Whether anybody is behind a gate's socket."""

import socket
import tempfile
from pathlib import Path

import pytest

from penstock.wire.calls import listens


@pytest.fixture
def place():
    # Not pytest's own folder: Unix socket paths end at 107 bytes.
    with tempfile.TemporaryDirectory(prefix="pk-") as folder:
        yield Path(folder) / "steward.sock"


def test_nobody_listens_where_no_socket_is(place):
    assert not listens(place)


def test_a_socket_that_was_left_behind_is_not_a_gate(place):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(place))
    assert place.exists()
    assert not listens(place)


def test_a_gate_that_is_too_busy_to_answer_is_there(place):
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(place))
        busy.listen(0)
        assert [listens(place) for _ in range(4)] == [True] * 4


def test_what_may_not_be_known_is_left_to_the_call(tmp_path):
    assert listens(tmp_path / ("long" * 40))

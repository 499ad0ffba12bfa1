"""What a packet is on its way: its bytes, and no object that another packet has, too."""

import pytest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from penstock.processes.flower import SMALL_BYTES, pack, unpack


@pytest.mark.parametrize("size", [0, 1, SMALL_BYTES])
def test_what_is_packed_comes_back(size):
    assert unpack(pack(b"x" * size)) == b"x" * size


def test_equal_packets_share_no_object():
    """Flower would drop what they share with the first that arrives."""
    first, second = (set(get_all_nested_objects(pack(b"greeting"))) for _ in range(2))
    assert first
    assert not first & second

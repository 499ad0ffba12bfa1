"""Vectors modulo 2^bits: Python's own whole numbers say what they should be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.aggregation.residues import (
    MaskKey,
    Residues,
    apply_masks,
    check_shape,
    choose_bits,
)
from penstock.base.errors import InvalidInput, UploadRejected

BITS = st.integers(1, 16).map(lambda count: 8 * count)
NUMBERS = st.lists(st.tuples(*[st.integers(-(2**140), 2**140)] * 2), min_size=1, max_size=6)


def wrap(number: int, bits: int) -> int:
    return (number + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


@given(BITS, NUMBERS)
def test_sums_and_differences_are_those_of_whole_numbers(
    bits: int, pairs: list[tuple[int, int]]
) -> None:
    left, right = (Residues.from_numbers(column, bits) for column in zip(*pairs, strict=True))
    assert left.to_numbers() == [wrap(a, bits) for a, _ in pairs]
    assert (left + right).to_numbers() == [wrap(a + b, bits) for a, b in pairs]
    assert (left - right).to_numbers() == [wrap(a - b, bits) for a, b in pairs]


@given(BITS, NUMBERS)
def test_bytes_are_read_back(bits: int, pairs: list[tuple[int, int]]) -> None:
    made = Residues.from_numbers([a for a, _ in pairs], bits)
    data = made.to_bytes()
    assert len(data) == len(pairs) * bits // 8
    assert Residues.from_bytes(data, bits, len(pairs)).to_bytes() == data
    with pytest.raises(UploadRejected, match="wrong length"):
        Residues.from_bytes(data + b"0", bits, len(pairs))


@given(BITS, st.integers(1, 50))
def test_a_mask_is_the_key_stream_and_goes_off_again(bits: int, size: int) -> None:
    vector = Residues.from_numbers(range(size), bits)
    keys = [MaskKey(bytes([i]) * 32, added=i % 2 == 0) for i in range(4)]
    off = [MaskKey(each.key, not each.added) for each in keys]
    masked = apply_masks(vector, keys)
    assert apply_masks(masked, off).to_bytes() == vector.to_bytes()
    for left_out in range(4):
        assert apply_masks(masked, off[:left_out] + off[left_out + 1 :]).words.tolist() != (
            vector.words.tolist()
        )


def test_the_stream_is_that_of_chacha20() -> None:
    """RFC 8439, appendix A.1, vector 1: key, counter and nonce all zero."""
    stream = Residues.from_stream(bytes(32), 8, 128).to_bytes()
    assert stream[:16].hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    assert stream[48:64].hex() == "6a43b8f41518a11cc387b669b2ee6586"


def test_noise_of_any_size_is_taken() -> None:
    """An error would depend on rows."""
    assert Residues.from_numbers([10**300, -(10**300)], 64).size == 2


@pytest.mark.parametrize(
    ("most", "sites", "bits"), [(1, 1, 8), (31, 4, 8), (32, 4, 16), (2**60, 12, 72), (63, 2, 8)]
)
def test_bits_hold_any_sum(most: int, sites: int, bits: int) -> None:
    assert choose_bits(most, sites) == bits
    for sign in (1, -1):
        assert wrap(sign * most * sites, bits) == sign * most * sites


def test_bits_and_sizes_are_bounded() -> None:
    with pytest.raises(InvalidInput):
        choose_bits(2**126, 3)
    for size, bits in [(0, 64), (2**24 + 1, 64), (1, 7), (1, 12), (1, 136), (1, 64.0), (True, 64)]:
        with pytest.raises(InvalidInput):
            check_shape(size, bits)

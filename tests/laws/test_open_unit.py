"""Uniforms lie strictly between 0 and 1, whatever bits they are made of."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import ndtri

from penstock.privacy.noise.sources import _open_unit

EXTREME = np.array(
    [(1 << 64) - 1 - k for k in range(3 << 12)]
    + list(range(3 << 12))
    + [1 << k for k in range(64)]
    + [(1 << 64) - (1 << k) for k in range(64)],
    dtype=np.uint64,
)


def test_an_open_unit_returned_one():
    """The largest of 2⁵³ values was rounded up to 1, and its Gaussian was infinite."""
    found = _open_unit(EXTREME)
    assert found.max() < 1
    assert found.min() > 0
    assert np.isfinite(ndtri(found)).all()


@given(st.integers(0, 2**64 - 1))
@example(2**64 - 1)
@example(0)
def test_no_bits_give_an_end_of_the_interval_and_both_halves_mirror_each_other(bits):
    one, other = _open_unit(np.array([bits, 2**64 - 1 - bits], dtype=np.uint64))
    assert 0 < one < 1
    assert one + other == 1  # exactly: the distribution is symmetric
    assert one * 2.0**53 == int(one * 2.0**53)

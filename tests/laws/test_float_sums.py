"""Laws of sums in floating point: the claim covers what one moves in everybody's rounding.

As it was, 64 rows were added up in single precision, and persons moved up to fill gaps: zeroing out
one person moves these sums by C·1.0008 then.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support.engines import BACKENDS, perturbed

from penstock.base.errors import InvalidEvent
from penstock.mechanisms.flow.architecture import Architecture
from penstock.mechanisms.flow.clipping import inner_clip
from penstock.mechanisms.trajectory.drift import Rows
from penstock.privacy.sensitivity import float_room

Array = NDArray[np.float64]
ARCH = Architecture(2, flows=1, hidden=(4,))
CLIP = 0.5


def crowd(n: int, k: int) -> Array:
    """Sixty persons, over and over: what one moves in a block's rounding, adds up over blocks."""
    some = 3 * np.random.default_rng(3).standard_normal((60, 1, 2))
    return np.repeat(np.tile(some, (n // 60 + 1, 1, 1))[:n], k, axis=1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize(("n", "k"), [(1_000, 1), (256_000, 1), (20_000, 2)])
def test_one_person_moves_a_clipped_sum_by_no_more_than_the_clip(
    n: int, k: int, precision: str, backend: str
) -> None:
    flow = perturbed(ARCH, backend, precision, 0.3)
    rows, present = crowd(n, k), np.ones((n, k), dtype=bool)
    everyone = flow.clipped_sum(flow.load(rows, present), None, CLIP)
    present[0] = False
    without = flow.clipped_sum(flow.load(rows, present), None, CLIP)
    moved = float(np.linalg.norm(everyone - without))
    assert moved <= CLIP
    # The bound is reached but for the room: it is the sensitivity, not a guess.
    assert moved >= 2 * inner_clip(CLIP, ARCH, n) - CLIP


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("k", [1, 2])
def test_nobodys_gradient_depends_on_who_else_is_there(k: int, backend: str) -> None:
    """Single precision ends with each person's own: in any company it is the same to the bit."""
    n = 130
    flow = perturbed(ARCH, backend, "single", 0.3)
    rng = np.random.default_rng(0)
    rows, present = rng.standard_normal((n, k, 2)), np.ones((n, k), dtype=bool)
    alone = np.zeros_like(present)
    alone[77] = True
    together = flow.person_norms(flow.load(rows, present))
    assert flow.person_norms(flow.load(rows, alone))[77] == together[77]
    assert (
        flow.person_norms(flow.load(np.where(alone[..., None], rows, np.nan), alone))[77]
        == (together[77])
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("k", [1, 3])
def test_one_person_moves_the_pull_on_particles_by_no_more_than_the_clip(
    k: int, dtype: str
) -> None:
    n, times = 60_000 // k, 3
    rng = np.random.default_rng(1)
    z = np.tile(rng.uniform(-0.5, 0.5, (61, k, 2)), (n // 61 + 1, 1, 1))[:n]
    bins = np.tile(rng.integers(0, times, (61, k)), (n // 61 + 1, 1))[:n]
    x, h = rng.uniform(-0.5, 0.5, (times, 6, 2)), np.full(times, 0.05)
    there = np.ones((n, k), dtype=bool)

    def total() -> Array:
        rows = Rows(z, bins, there, times, "cpu", dtype)
        return rows.clipped_sum(rows.tensor(x), rows.tensor(h), CLIP, None)

    everyone = total()
    there[0] = False
    moved = float(np.linalg.norm(everyone - total()))
    assert moved <= CLIP
    if k == 1:
        assert moved == pytest.approx(CLIP, rel=1e-4)


@given(n=st.integers(1, 10**8), depth=st.integers(1, 10**5), own=st.integers(0, 10**4))
def test_the_room_is_what_the_proof_asks_for(n: int, depth: int, own: int) -> None:
    unit = Fraction(1, 2**53)

    def gamma(roundings: int) -> Fraction:
        return roundings * unit / (1 - roundings * unit)

    exact = 2 * (n * gamma(depth) + gamma(own))
    if exact > Fraction(499, 1000):
        return
    room = Fraction(float_room(n, depth, own))
    assert exact <= room <= exact * (1 + Fraction(1, 10**8))
    # What the neighbours' sums may differ by, of C.
    within = (1 + 2 * n * gamma(depth)) * (1 + gamma(own)) * (1 - room)
    assert within <= 1


def test_a_sum_of_too_many_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="too many persons"):
        float_room(10**9, 10**8)


def test_nothing_is_claimed_and_nothing_kept_free_where_nobody_is_clipped() -> None:
    assert inner_clip(math.inf, ARCH, 1000) == math.inf

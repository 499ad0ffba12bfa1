"""Laws of the data-fit term: what one person moves, by the joint clip and by what it is divided."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from tests.support.early import wild

from penstock.base.errors import InvalidInput
from penstock.mechanisms.trajectory import drift
from penstock.mechanisms.trajectory.drift import Rows
from penstock.mechanisms.trajectory.dynamics import descend
from penstock.mechanisms.trajectory.plan import Dynamics
from penstock.privacy import measurements
from penstock.privacy.noise.sources import NOBODY, SeededNoise
from penstock.privacy.sensitivity import clip_jointly

Array = NDArray[np.float64]
T, M, D = 3, 5, 2
WIDTHS = np.array([0.1, 0.2, 0.3])
PARTICLES = np.random.default_rng(0).uniform(-0.5, 0.5, (T, M, D))


def rows_of(z: Array, bins: NDArray[np.int64], dtype: str = "float64") -> Rows:
    there = np.ones(bins.shape, dtype=bool)
    return Rows(z, bins, there, T, "cpu", dtype)


def total(rows: Rows, clip: float, who: NDArray[np.intp] | None = None) -> Array:
    return rows.clipped_sum(rows.tensor(PARTICLES), rows.tensor(WIDTHS), clip, who)


def contributions(z: Array, bins: NDArray[np.int64]) -> Array:
    """(n, T·M, D): every person's whole contribution, by the formula."""
    n, k, _ = z.shape
    found = np.zeros((n, T, M, D))
    for i in range(n):
        for r in range(k):
            t = bins[i, r]
            apart = PARTICLES[t] - z[i, r]
            power = -(apart**2).sum(axis=1) / (2 * WIDTHS[t] ** 2)
            share = np.exp(power - power.max())
            found[i, t] += (share / share.sum())[:, None] * apart / WIDTHS[t]
    return found.reshape(n, T * M, D)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("clip", [0.3, 1.0, 50.0])
def test_is_the_sum_of_jointly_clipped_contributions(k: int, clip: float) -> None:
    rng = np.random.default_rng(k)
    z = rng.uniform(-0.5, 0.5, (40, k, D))
    bins = np.argsort(rng.random((40, T)), axis=1)[:, :k]  # one row per time point
    who = rng.random(40) < 0.5
    reference = clip_jointly(contributions(z, bins), clip)
    np.testing.assert_allclose(
        total(rows_of(z, bins), clip), reference.sum(axis=0).reshape(T, M, D), atol=1e-9
    )
    listed = np.append(np.flatnonzero(who), [NOBODY] * 3)
    np.testing.assert_allclose(
        total(rows_of(z, bins), clip, listed),
        reference[who].sum(axis=0).reshape(T, M, D),
        atol=1e-9,
    )


def test_parts_of_the_rows_at_a_time_give_the_same_sum() -> None:
    rng = np.random.default_rng(5)
    z, bins = rng.uniform(-0.5, 0.5, (60, 2, D)), rng.integers(0, T, (60, 2))
    whole = total(rows_of(z, bins), 0.7)
    with patch.object(drift, "_HELD", {"cpu": 4 * M}):
        np.testing.assert_allclose(total(rows_of(z, bins), 0.7), whole, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(max_examples=150, deadline=None)
@given(
    z=hnp.arrays(np.float64, (1, 4, D), elements=wild | st.floats(-1, 1)),
    bins=hnp.arrays(np.int64, (1, 4), elements=st.integers(-1, T)),
    clip=st.floats(1e-3, 1e3),
)
def test_nobody_moves_more_than_the_clip(
    dtype: str, z: Array, bins: NDArray[np.int64], clip: float
) -> None:
    alone = total(rows_of(z, bins, dtype), clip)
    assert np.isfinite(alone).all()
    assert np.linalg.norm(alone) <= clip


def by_particle(rows: Rows, z: Array, clip: float) -> Array:
    """The faulty twin, the paper's: each particle's part of a contribution is clipped by itself."""
    apart = (PARTICLES[0] - z) / M / WIDE
    lengths = np.linalg.norm(apart, axis=1, keepdims=True)
    clipped: Array = apart * np.minimum(1.0, clip / lengths)
    return clipped


def jointly(rows: Rows, z: Array, clip: float) -> Array:
    wide = np.full(T, WIDE)  # so wide that all particles answer, evenly
    return rows.clipped_sum(rows.tensor(PARTICLES), rows.tensor(wide), clip, None)


WIDE = 300.0


@pytest.mark.parametrize(("how", "reach"), [(jointly, 1.0), (by_particle, math.sqrt(M))])
def test_the_clip_is_reached_and_clipping_by_particle_exceeds_it(
    how: Callable[[Rows, Array, float], Array], reach: float
) -> None:
    z, clip = np.full(D, 0.5), 1e-6
    rows = rows_of(z.reshape(1, 1, D), np.zeros((1, 1), dtype=np.int64))
    norm = float(np.linalg.norm(how(rows, z, clip)))
    assert norm == pytest.approx(reach * clip, rel=1e-6)
    assert (norm <= clip) == (how is jointly)


def test_rows_of_one_time_point_count_together() -> None:
    # Each of them alone is within the clip; together they are not.
    z = np.full((1, 4, D), 0.45)
    bins = np.zeros((1, 4), dtype=np.int64)
    single = float(np.linalg.norm(total(rows_of(z[:, :1], bins[:, :1]), 1e3)))
    together = np.linalg.norm(total(rows_of(z, bins), 1.5 * single))
    assert together == pytest.approx(1.5 * single, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_contributes_nothing_and_moves_nobody_else(bad: float) -> None:
    z = np.array([[[0.1, 0.2]], [[bad, 0.2]], [[0.3, -0.1]]])
    bins = np.zeros((3, 1), dtype=np.int64)
    with_bad = total(rows_of(z, bins), 1.0)
    # The bound follows from the number of persons: theirs, too, are three.
    absent = Rows(np.nan_to_num(z), bins, np.array([[True], [False], [True]]), T, "cpu", "float64")
    np.testing.assert_array_equal(with_bad, total(absent, 1.0))


def test_absent_rows_and_rows_without_a_time_point_contribute_nothing() -> None:
    z = np.full((3, 1, D), 0.2)
    bins = np.array([[0], [-1], [T]])
    there = np.array([[False], [True], [True]])
    rows = Rows(z, bins, there, T, "cpu", "float64")
    assert not total(rows, 1.0).any()


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf])
def test_a_clip_that_is_none_is_refused(clip: float) -> None:
    rows = rows_of(np.zeros((1, 1, D)), np.zeros((1, 1), dtype=np.int64))
    with pytest.raises(InvalidInput):
        total(rows, clip)


# Division by the expected size -------------------------------------------------------------------

PERSONS = 2000
HOW = Dynamics(
    sigma=1e-6,
    rate=0.5,
    steps=1,
    clip=0.8,
    bandwidth=1.0,
    wide=1.0,
    step=0.5,
    smoothing=0.0,
    temperature=0.1,
    heat=0.0,
    cool=1.0,
    average=0.0,
)


def moved(there: NDArray[np.bool_]) -> Array:
    """Particles after one step on the rows that are there."""
    rng = np.random.default_rng(3)
    z = rng.uniform(-0.5, 0.5, (PERSONS, 1, D))
    rows = Rows(z, np.zeros((PERSONS, 1), dtype=np.int64), there, T, "cpu", "float64")
    spread, sizes = np.full(T, 0.2), np.full(T, PERSONS / T)
    box = np.full(D, 5.0)
    return descend(HOW, rows, PARTICLES, spread, sizes, np.array([0, 0.5, 1]), box, SeededNoise(1))


def by_realised_batch() -> AbstractContextManager[Any]:
    """The faulty twin: the sum is divided by the rows that were drawn, not by the expected ones."""
    honest: Callable[..., Array] = Rows.clipped_sum

    def wrong(self: Rows, x: Any, widths: Any, clip: float, who: Any) -> Array:
        present = self._there.any(dim=1).numpy()
        batch = max(int((present[who] & (who >= 0)).sum()), 1)
        return honest(self, x, widths, clip, who) * (HOW.rate * PERSONS / T / batch)

    return patch.object(Rows, "clipped_sum", wrong)


@pytest.mark.parametrize("faulty", [False, True])
def test_one_person_moves_the_particles_by_the_clip_over_the_expected_size(faulty: bool) -> None:
    few = np.zeros((PERSONS, 1), dtype=bool)
    few[:12] = True  # public n is much larger than who is there: a real batch is tiny
    largest = 0.0
    with by_realised_batch() if faulty else nullcontext():
        base = moved(few)
        for gone in range(12):
            without = few.copy()
            without[gone] = False
            largest = max(largest, float(np.linalg.norm(moved(without) - base)))
    bound = HOW.step * M * 0.2 * HOW.clip / (HOW.rate * PERSONS / T)
    assert (largest > 1.5 * bound) == faulty
    assert (largest <= bound * 1.001) != faulty


# The noise of a step -----------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "sound"), [(1.0, True), (0.9, False), (1.1, False)])
def test_a_step_carries_the_noise_that_is_charged(factor: float, sound: bool) -> None:
    m = 800
    how = replace(HOW, sigma=2.0)
    nobody = Rows(
        np.zeros((50, 1, D)),
        np.zeros((50, 1), dtype=np.int64),
        np.zeros((50, 1), dtype=bool),
        T,
        "cpu",
        "float64",
    )
    start, size = np.zeros((T, m, D)), 1e6
    honest = measurements.add_gaussian

    def wrong(value: Array, sd: float, noise: Any) -> Array:
        return honest(value, factor * sd, noise)

    with patch.object(measurements, "add_gaussian", wrong):
        after = descend(
            how,
            nobody,
            start,
            np.full(T, 0.2),
            np.full(T, size),
            np.array([0, 0.5, 1]),
            np.full(D, 50.0),
            SeededNoise(4),
        )
    event = how.measurement
    sd = how.step * m * 0.2 / (how.rate * size) * event.noise_multiplier * event.sensitivity
    standard = after.ravel() / sd
    z = ((standard**2).sum() - standard.size) / math.sqrt(2 * standard.size)
    # False alarm 1e-5 at 4.4; a twin that errs by a tenth is at 9 and beyond.
    assert (abs(z) < 4.4) == sound


@pytest.mark.parametrize("known", [True, False])
def test_particles_that_noise_alone_moves_stay_where_rows_are_likely(known: bool) -> None:
    how = replace(HOW, sigma=5.0, steps=40)
    nobody = Rows(
        np.zeros((9, 1, D)),
        np.zeros((9, 1), dtype=np.int64),
        np.zeros((9, 1), dtype=bool),
        T,
        "cpu",
        "float64",
    )
    mean, covariance = np.full((T, D), 0.1), np.tile(np.diag([0.01, 0.0004]), (T, 1, 1))
    after = descend(
        how,
        nobody,
        PARTICLES,
        np.full(T, 0.2),
        np.full(T, 30.0),
        np.array([0, 0.5, 1]),
        np.full(D, 2.0),
        SeededNoise(2),
        moments=(mean, covariance) if known else None,
    )
    far = np.sqrt((((after - 0.1) / [0.1, 0.02]) ** 2).sum(axis=2))
    assert (far.max() <= math.sqrt(D) + 2.5 + 1e-9) == known

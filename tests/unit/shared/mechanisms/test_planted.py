"""How large effects are in planted runs: balanced, and none like another."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.mechanisms.planted import choose_sizes

RECORDED = [
    [-2, 2, 1, -1, -2, 2, 1, -1, 2, -2, 1, -1],
    [2, -2, 1, -1, 2, -2, 1, -1, 2, -2, 1, -1],
]


@pytest.mark.parametrize("runs", [8, 12, 16, 24, 32, 48])
def test_effects_are_balanced_in_every_pair_and_hardly_correlated(runs: int) -> None:
    sizes = choose_sizes(runs, runs // 2)
    assert sizes.shape == (runs // 2, runs)
    assert set(np.abs(sizes).ravel()) == {1.0, 2.0}
    assert np.array_equal(sizes[:, 1::2], -sizes[:, ::2])
    # Whatever the effect, a run's sizes are all large or all small.
    large = np.abs(sizes[0]) == 2
    assert all(np.array_equal(np.abs(row) == 2, large) for row in sizes)
    assert large.mean() == 0.5
    alike = np.corrcoef(sizes) - np.eye(len(sizes))
    assert np.abs(alike).max() <= 0.6 + 1e-9
    assert np.median(np.abs(alike)) <= 0.2 + 1e-9


def test_sixteen_runs_tell_eight_effects_apart() -> None:
    alike = np.corrcoef(choose_sizes(16, 8)) - np.eye(8)
    assert np.abs(alike).max() <= 0.3 + 1e-9


@pytest.mark.parametrize(
    ("runs", "effects"),
    [(6, 1), (6, 3), (7, 3), *((runs, few) for runs in (10, 12, 20, 48) for few in (1, 3, 10, 30))],
)
def test_any_number_of_runs_tells_every_effect(runs: int, effects: int) -> None:
    sizes = choose_sizes(runs, effects)
    assert sizes.shape == (effects, runs)
    assert (np.ptp(sizes, axis=1) >= 2).all(), "an effect that is never changed"
    if effects <= 2 ** (runs // 2 - 1):
        alike = np.corrcoef(sizes) - np.eye(effects) if effects > 1 else np.zeros((1, 1))
        assert np.abs(alike).max() < 0.999, "two effects that are always changed together"


def test_one_run_has_sizes_as_a_rehearsal_needs() -> None:
    assert np.abs(choose_sizes(1, 2)).min() >= 1


def test_they_are_the_same_everywhere() -> None:
    """A site and a coordinator of different versions must agree: these numbers may not change."""
    assert choose_sizes(12, 2).astype(int).tolist() == RECORDED

"""Laws of directions between pairs of columns."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from penstock.mechanisms.sliced_wasserstein.directions import paired_stack, rounds


@pytest.mark.parametrize("d", range(2, 13))
def test_every_pair_has_its_two_directions_once_and_all_are_bases(d: int) -> None:
    stack = paired_stack(rounds(d), d, np.random.default_rng(0))
    bases = stack.reshape(d, rounds(d), d)
    for b in range(rounds(d)):
        np.testing.assert_allclose(bases[:, b].T @ bases[:, b], np.eye(d), atol=1e-12)
    seen = Counter(
        (*np.flatnonzero(column), int(np.sign(np.prod(column[column != 0]))))
        for column in stack.T
        if np.count_nonzero(column) == 2
    )
    wanted = {(i, j, sign) for i in range(d) for j in range(i + 1, d) for sign in (-1, 1)}
    assert set(seen) == wanted
    assert set(seen.values()) == {1}


@pytest.mark.parametrize(("bases", "d"), [(1, 1), (3, 1), (9, 4), (2, 7)])
def test_fewer_and_more_bases_than_pairs_are_bases_too(bases: int, d: int) -> None:
    stack = paired_stack(bases, d, np.random.default_rng(0))
    np.testing.assert_allclose(stack @ stack.T, bases * np.eye(d), atol=1e-12)

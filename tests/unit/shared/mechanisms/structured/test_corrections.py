"""What rows' curvatures say of their information stays as it was told."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.mechanisms.structured.corrections import Tails
from penstock.mechanisms.structured.matching import doubt_tails
from penstock.mechanisms.structured.outcomes.protocol import World
from penstock.mechanisms.structured.score_questions import Question

Array = NDArray[np.float64]

WORLD = np.array([[0.4, 0.3, 0.05], [0.3, 0.5, 0.1], [0.05, 0.1, 0.3]])
ROWS = np.array([[0.36, 0.27, 0.02], [0.27, 0.45, 0.08], [0.02, 0.08, 0.36]])
PAIRS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))


def question(pairs: tuple[tuple[int, int], ...]) -> Question:
    size = len(pairs)
    return Question((np.eye(size),), np.ones(size), np.zeros(0, dtype=np.intp), pairs, WORLD)


def learn(tails: Tails, pairs: tuple[tuple[int, int], ...]) -> Tails:
    told, seen = (np.array([m[pair] for pair in pairs]) for m in (ROWS, WORLD))
    return tails.learn(WORLD, question(pairs), told, seen, np.full(len(pairs), 1e-9), 0.35)


def nothing() -> Tails:
    return Tails(np.ones(3), np.full((3, 3), np.nan))


def test_what_all_pairs_say_is_the_rows_information() -> None:
    assert np.allclose(learn(nothing(), PAIRS).turn(WORLD), ROWS, atol=1e-6)


def test_a_round_that_asks_for_no_curvature_changes_nothing() -> None:
    """Where the ratio is below 1, ties that were divided by it again would grow to the largest that
    there may be, and intervals with them."""
    found = learn(nothing(), PAIRS)
    again = learn(learn(found, ()), ())
    assert np.array_equal(again.turn(WORLD), found.turn(WORLD))


def test_a_round_that_asks_for_some_leaves_the_others_as_they_are() -> None:
    found = learn(learn(nothing(), PAIRS), ((2, 2), (0, 2)))
    assert np.allclose(found.turn(WORLD), ROWS, atol=1e-6)


def world(columns: Array, complete: Array) -> World:
    width = columns.shape[1]
    declared = np.ones(width, dtype=np.bool_)
    each = np.ones(width)
    return World(columns, width, each, declared, (), complete, np.zeros(width), each)


@pytest.mark.parametrize(("tail", "doubt"), [(1.0, math.sqrt(0.3)), (8.0, 1.0)])
def test_only_long_tails_may_be_wholly_other_than_the_world_has_them(
    tail: float, doubt: float
) -> None:
    rng = np.random.default_rng(0)
    columns = rng.standard_normal((4000, 2))
    columns[:80, 1] *= tail
    there = np.ones(4000)
    both = Question((np.eye(2),), np.ones(2), np.arange(2), (), np.eye(2))
    assert doubt_tails(world(columns, there), both) == pytest.approx(doubt, abs=0.03)
    # What is not asked for has no say, nor who has no part.
    first = Question((np.eye(2)[:, :1],), np.ones(1), np.arange(1), (), np.eye(1))
    assert doubt_tails(world(columns, there), first) == pytest.approx(math.sqrt(0.3), abs=0.03)
    there[:80] = 0.0
    assert doubt_tails(world(columns, there), both) == pytest.approx(math.sqrt(0.3), abs=0.03)

"""How much memory a release takes at most: a formula of public numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.weighed import MECHANISMS, asked, foreseen, foreseen_of_attack, schema

from penstock.mechanisms import Gibbs, SlicedWasserstein

MB = 1e6


def study(name: str, columns: int = 20, **changed: object):
    mechanism = replace(MECHANISMS[name](), **changed)
    return asked(mechanism, schema(columns, visits=name == "trajectory"))


@pytest.mark.parametrize("name", MECHANISMS)
def test_no_mechanism_is_planned_to_take_more_than_half_a_gigabyte(name: str) -> None:
    """n = 5000, 20 columns; the room for what an allocator leaves unused is in it. The rows of
    `trajectory` are three to a person."""
    persons = 5000 if name != "trajectory" else 1667
    assert foreseen(study(name), persons).total < 600 * MB


@pytest.mark.parametrize("name", MECHANISMS)
def test_it_grows_with_what_takes_memory_and_with_nothing_else(name: str) -> None:
    of, threads = study(name), 1
    least = foreseen(of, 450, threads).total
    assert foreseen(of, 5000, threads).total > least
    assert foreseen(study(name, 40), 450, threads).total > least
    assert foreseen(of, 450, 2).total > least
    if name not in ("gibbs", "scoring"):
        one = foreseen(study(name, copies=1), 450, threads).total
        assert one < least
        few = foreseen(study(name, refits=1), 450, threads).total
        alone = [foreseen(study(name, copies=c, refits=0), 450, 1).total for c in (1, 10)]
        if name == "structured":  # copies are drawn together, whatever is made from their rows
            assert alone[0] < alone[1] < few < least  # a fit's tables wait for each other
        else:  # copies are kept for the refits that are made from their rows, and for nothing else
            assert few == one
            assert alone[0] == alone[1]


def test_an_attack_is_one_fit_without_a_release_and_with_its_scores() -> None:
    small, large = (foreseen_of_attack(study("maf"), persons) for persons in (450, 50_000))
    assert small.released == large.released == 0
    assert large.total > small.total
    assert small.total < 450 * MB
    # One fit is held at once, and no copies: neither threads nor refits bring more of them.
    assert foreseen_of_attack(study("maf", refits=1), 450).total == small.total
    assert foreseen_of_attack(study("maf"), 450, threads=4).work == small.work
    assert large.work > foreseen(study("maf", copies=1, refits=0), 50_000).work


def test_steps_and_directions_of_a_sliced_flow_are_in_it() -> None:
    few = foreseen(study("sliced-wasserstein"), 450).total
    assert foreseen(study("sliced-wasserstein", steps=10_000), 450).total > few + 1e9
    assert foreseen(study("sliced-wasserstein", bases=150, bins=1024), 450).total > few + 1e8
    assert isinstance(study("sliced-wasserstein").mechanism, SlicedWasserstein)
    assert isinstance(study("gibbs").mechanism, Gibbs)

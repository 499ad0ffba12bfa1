"""How many may be lost and collude: the threshold keeps what can be learnt to one large sum."""

from __future__ import annotations

from itertools import product

import pytest

from penstock.aggregation.roster import Roster
from penstock.base.errors import InvalidInput
from penstock.privacy.thresholds import count_sites, find_threshold

MOST = 60


def can_lose_too_many(sites: int, dropouts: int, colluders: int, threshold: int) -> bool:
    """Whether shares that honest sites give, each for one set of survivors, can suffice to leave
    fewer than S - t - c honest sites in a sum: the count of the roster's docstring."""
    honest, needed = sites - colluders, threshold - colluders
    for absent in range(dropouts + 1):
        allowed = dropouts - absent
        for lost in range(allowed + 1, honest - absent + 1):
            given = (
                (honest - absent - lost) * min(allowed, lost)
                + lost * min(dropouts, lost - 1)
                + absent * min(dropouts, lost)
            )
            if lost * needed <= given:
                return True
    return False


def test_no_sets_of_survivors_lose_more_than_are_allowed() -> None:
    seen = 0
    for sites, dropouts, colluders in product(range(1, MOST + 1), repeat=3):
        dropouts, colluders = dropouts - 1, colluders - 1
        if count_sites(dropouts, colluders) > sites:
            continue
        seen += 1
        threshold = find_threshold(sites, dropouts, colluders)
        assert threshold <= sites - dropouts, "whoever is left suffices"
        assert 2 * (threshold - colluders) > sites - colluders, "never both secrets of a site"
        assert not can_lose_too_many(sites, dropouts, colluders, threshold)
    assert seen > 5000


def test_a_majority_beyond_colluders_is_not_enough_for_two_drop_outs() -> None:
    """2T > S + c, which is the rule for one drop-out, lets split answers lose more than two."""
    assert not can_lose_too_many(12, 1, 1, (12 + 1) // 2 + 1)
    assert can_lose_too_many(12, 2, 1, (12 + 1) // 2 + 1)
    assert can_lose_too_many(12, 3, 1, (12 + 1) // 2 + 1)


@pytest.mark.parametrize("sites", range(2, 30))
def test_with_one_drop_out_at_most_it_is_the_majority_beyond_colluders(sites: int) -> None:
    for colluders, dropouts in product(range(sites), (0, 1)):
        if count_sites(dropouts, colluders) <= sites:
            least = next(t for t in range(sites + 1) if 2 * t > sites + colluders)
            assert find_threshold(sites, dropouts, colluders) == least


def make_roster(sites: int, dropouts: int, colluders: int) -> Roster:
    names = tuple(f"site-{i}" for i in range(sites))
    return Roster("study", names, tuple(f"{i:064x}" for i in range(sites)), dropouts, colluders)


def test_a_roster_says_which_numbers_would_do() -> None:
    with pytest.raises(InvalidInput, match=r"at least 14 sites\. Allow at most 2 drop-outs"):
        make_roster(12, 3, 1)
    with pytest.raises(InvalidInput, match=r"at least 6 sites\. Ask at least 6 sites"):
        make_roster(3, 0, 5)
    made = make_roster(14, 3, 1)
    assert (made.threshold, made.quorum, made.honest) == (11, 11, 10)


def test_a_roster_is_named_by_all_of_it() -> None:
    made = make_roster(6, 1, 1)
    others = [
        Roster("study-2", made.sites, made.keys, 1, 1),
        Roster("study", made.sites[::-1], made.keys[::-1], 1, 1),
        Roster("study", made.sites, made.keys[::-1], 1, 1),
        make_roster(6, 0, 1),
        make_roster(6, 1, 0),
        make_roster(7, 1, 1),
    ]
    assert len({each.digest for each in [made, *others]}) == len(others) + 1


@pytest.mark.parametrize(
    ("sites", "keys"),
    [
        (("a", "a", "b"), ("0" * 64, "1" * 64, "2" * 64)),
        (("a", "b", "c"), ("0" * 64, "0" * 64, "2" * 64)),
        (("a", "b", "C"), ("0" * 64, "1" * 64, "2" * 64)),
        (("a", "b", "c"), ("0" * 64, "1" * 64, "2" * 63)),
        (("a", "b", "c"), ("0" * 64, "1" * 64)),
    ],
)
def test_names_and_keys_are_checked(sites: tuple[str, ...], keys: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput):
        Roster("study", sites, keys, 0, 1)

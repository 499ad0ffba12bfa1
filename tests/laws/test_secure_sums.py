"""Sums of many sites: exact whoever drops out, and nothing but the sum to be learnt."""

from __future__ import annotations

import dataclasses
import random
import shutil
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from tests.support.coalition import Coalition
from tests.support.summing import (
    Summing,
    add_up,
    make_draw,
    make_terms,
    make_vectors,
)

from penstock.aggregation import masks, roster
from penstock.aggregation.exchanges import (
    SumTerms,
    find_context,
    read_masked,
    read_opening,
    read_reveal,
    write_asking,
    write_opening,
)
from penstock.aggregation.residues import MaskKey
from penstock.base.errors import MaskingRefused, SumSpoiled, UploadRejected
from penstock_client.masking import member
from penstock_server.sums.collector import Collector

SIZES = [
    *((4, 1, 1), (4, 0, 3), (12, 2, 1), (14, 3, 1)),
    pytest.param(50, 6, 2, marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("sites", "dropouts", "colluders"), SIZES)
def test_the_sum_is_exact_whoever_drops_out_and_when(
    tmp_path: Path, sites: int, dropouts: int, colluders: int
) -> None:
    world = Summing(tmp_path, sites, dropouts, colluders)
    chance = random.Random(sites)
    names = list(world.roster.sites)
    absent = chance.sample(names, chance.randint(0, dropouts))
    world.meet(absent=absent)
    for round_ in range(3):
        # Each of the t who may be lost goes at some stage; before it they take part.
        lost = absent + chance.sample(
            [name for name in names if name not in absent], dropouts - len(absent)
        )
        stage = {name: chance.choice(["posting", "vector", "reveal"]) for name in lost}
        stage.update(dict.fromkeys(absent, "posting"))
        gone = {at: {n for n in lost if stage[n] == at} for at in ("posting", "vector", "reveal")}
        terms = make_terms(round_, size=4, bits=chance.choice([64, 72, 128]))
        vectors = make_vectors(names, terms)
        collector = world.gather(terms, absent=gone["posting"])
        world.mask(collector, terms, vectors, absent=gone["vector"])
        collector.ask_survivors()
        world.reveal(collector, round_, absent=gone["reveal"])
        assert set(collector.survivors) == set(names) - gone["posting"] - gone["vector"]
        assert collector.ready
        assert collector.find_sum() == add_up(vectors, collector.survivors)
        assert not collector.faults


def test_a_sum_wraps_at_its_bits_and_nowhere_else(tmp_path: Path) -> None:
    world = Summing(tmp_path, 4, 1, 1)
    world.meet()
    terms = make_terms(size=2, bits=16)
    vectors = {name: [8191, -8192] for name in world.roster.sites}
    collector = world.gather(terms)
    world.mask(collector, terms, vectors)
    collector.ask_survivors()
    world.reveal(collector, 0)
    assert collector.find_sum() == [4 * 8191, -(2**15)]


def test_below_the_quorum_and_below_the_threshold_nothing_is_unmasked(tmp_path: Path) -> None:
    world = Summing(tmp_path, 12, 2, 1)
    world.meet()
    terms = make_terms()
    names = world.roster.sites
    few = Collector(world.roster, terms)
    for name in names[:9]:
        few.take_posting(name, world.members[name].advertise(0))
    with pytest.raises(SumSpoiled, match="at least 10"):
        few.open_round()
    collector = world.gather(terms)
    world.mask(collector, terms, make_vectors(names, terms), absent=names[:3])
    with pytest.raises(SumSpoiled, match="nothing was unmasked"):
        collector.ask_survivors()
    with pytest.raises(UploadRejected, match="at least 10"):
        world.members[names[4]].reveal(write_asking(names[3:]), 0)
    opening = collector.next_messages()[names[0]]
    late = world.members[names[0]].contribute(opening, terms, make_draw([], terms))
    assert collector.take_masked(names[0], late)
    collector.ask_survivors()
    world.reveal(collector, 0, absent=names[-4:])
    assert len(collector.waiting) == 4
    assert not collector.ready
    assert world.roster.threshold == 9
    with pytest.raises(SumSpoiled, match="too few shares"):
        collector.find_sum()


# -- what a coalition can learn ----------------------------------------------------------------


class Attack:
    """A coordinator that tells each site what it likes, with the first ``colluders`` sites."""

    def __init__(self, world: Summing, colluders: int) -> None:
        self.world = world
        self.meeting = world.meet()
        self.coalition = Coalition(world, world.roster.sites[:colluders])
        self.contexts: dict[tuple[int, str], str] = {}

    @property
    def honest(self) -> list[str]:
        return self.coalition.honest

    def open(
        self,
        terms: SumTerms,
        telling: Callable[[str], tuple[SumTerms, Collection[str]]] | None = None,
    ) -> None:
        """Every honest site sends its masked vector.

        Args:
            telling: which terms a site was told, and which sites' adverts it is shown.
        """
        world, told = self.world, self.coalition
        told.see_postings(terms.round, self.meeting)
        collector = world.gather(terms)
        vectors = make_vectors(world.roster.sites, terms)
        for site, whole in collector.next_messages().items():
            if site not in self.honest:
                continue
            own, shown = telling(site) if telling else (terms, world.roster.sites)
            full = read_opening(whole, world.roster, terms.round)
            adverts = [advert for advert in full.adverts if advert.site in shown]
            letters = {name: full.letters[name] for name in shown if name in full.letters}
            data = world.members[site].contribute(
                write_opening(adverts, letters), own, make_draw(vectors[site], own)
            )
            context = find_context(world.roster, own, adverts)
            found = read_masked(data, world.roster, context, own)
            self.contexts[terms.round, site] = context
            told.see_masked(site, terms.round, context, vectors[site], found.vector, shown)

    def ask(self, round_: int, site: str, survivors: Collection[str]) -> None:
        ordered = self.world.roster.sort(set(survivors))
        data = self.world.members[site].reveal(write_asking(ordered), round_)
        found = read_reveal(data, self.world.roster, self.contexts[round_, site])
        self.coalition.see_reveal(site, round_, found.survivors, found.shares)

    def ask_all(self, round_: int, lost: Collection[str] = ()) -> None:
        left = [name for name in self.world.roster.sites if name not in lost]
        for site in self.honest:
            if site in left:
                self.ask(round_, site, left)


def test_a_coalition_learns_one_sum_and_no_more(tmp_path: Path) -> None:
    world = Summing(tmp_path, 8, 2, 1)
    attack = Attack(world, 1)
    for round_, lost in enumerate([(), ("s08",), ("s07", "s08"), ("s02",)]):
        attack.open(make_terms(round_))
        assert not [s for s in attack.coalition.learn_sums() if (round_, "s03") in s]
        attack.ask_all(round_, lost)
        (found,) = [s for s in attack.coalition.learn_sums() if (round_, "s03") in s]
        assert found == {(round_, name): 1 for name in attack.honest if name not in lost}
    assert len(attack.coalition.learn_sums()) == 4
    assert not attack.coalition.find_leaks()


def forget_pair_masks(keys: list[MaskKey]) -> list[MaskKey]:
    return keys[:1]


def forget_self_mask(keys: list[MaskKey]) -> list[MaskKey]:
    return keys[1:]


def plant_masks(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[list[MaskKey]], list[MaskKey]]
) -> None:
    """A gate, and the test's model of what it sends, with other masks than the protocol's."""
    real, see = member.Member._find_masks, Coalition.see_masked

    def find(self: member.Member, *given: object) -> list[MaskKey]:
        return change(real(self, *given))  # type: ignore[arg-type]

    def model(self: Coalition, *given: object) -> None:
        see(self, *given)  # type: ignore[arg-type]
        last = self.sent.pop()
        self.sent.append(dataclasses.replace(last, masks=change(last.masks)))

    monkeypatch.setattr(member.Member, "_find_masks", find)
    monkeypatch.setattr(Coalition, "see_masked", model)


def test_without_pair_masks_each_vector_is_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_masks(monkeypatch, forget_pair_masks)
    attack = Attack(Summing(tmp_path, 6, 1, 1), 1)
    attack.open(make_terms())
    attack.ask_all(0)
    assert len(attack.coalition.find_leaks()) == 5


def test_one_forgotten_pair_mask_spoils_the_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = member.Member._find_masks
    monkeypatch.setattr(
        member.Member,
        "_find_masks",
        lambda self, *a: real(self, *a)[: -1 if self._site == "s02" else None],
    )
    world = Summing(tmp_path, 4, 1, 1)
    world.meet()
    terms = make_terms()
    vectors = make_vectors(world.roster.sites, terms)
    collector = world.gather(terms)
    world.mask(collector, terms, vectors)
    collector.ask_survivors()
    world.reveal(collector, 0)
    assert collector.find_sum() != add_up(vectors, world.roster.sites)


@pytest.mark.parametrize("planted", [True, False])
def test_a_site_that_is_called_lost_is_hidden_by_its_self_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    """Its vector came, and the coordinator says that it did not: pair masks alone hide nothing."""
    if planted:
        plant_masks(monkeypatch, forget_self_mask)
    attack = Attack(Summing(tmp_path, 6, 1, 1), 1)
    attack.open(make_terms())
    attack.ask_all(0, lost=("s06",))
    assert ({(0, "s06"): 1} in attack.coalition.find_leaks()) == planted


@pytest.mark.parametrize("planted", [True, False])
def test_secrets_are_made_anew_for_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    """Twice the same: b from the round in which a site survived, the rest from one that lost it."""
    if planted:
        made: dict[int, member._Secrets] = {}
        real = member._Secrets.make
        order = iter(range(100))
        monkeypatch.setattr(
            member._Secrets,
            "make",
            classmethod(lambda cls: made.setdefault(next(order) % 6, real())),
        )
    attack = Attack(Summing(tmp_path, 6, 1, 1), 1)
    attack.open(make_terms(0))
    attack.ask_all(0)
    attack.open(make_terms(1))
    attack.ask_all(1, lost=("s06",))
    assert ({(1, "s06"): 1} in attack.coalition.find_leaks()) == planted


@pytest.mark.parametrize("rolled_back", [True, False])
def test_a_gate_answers_one_set_of_survivors(tmp_path: Path, rolled_back: bool) -> None:
    """A present site is called lost, and then its b is wanted too. Only where gates forget what
    they said (here: their databases are put back) does the coordinator get both."""
    attack = Attack(Summing(tmp_path, 6, 1, 1), 1)
    attack.open(make_terms())
    for name in attack.honest:
        shutil.copy(tmp_path / f"{name}.db", tmp_path / f"{name}.copy")
    attack.ask_all(0, lost=("s06",))
    if rolled_back:
        for name in attack.honest:
            attack.world.databases[name].close()
            shutil.copy(tmp_path / f"{name}.copy", tmp_path / f"{name}.db")
            attack.world.open(name)
        attack.ask_all(0)
    else:
        for name in attack.honest[:-1]:
            with pytest.raises(MaskingRefused, match="other survivors"):
                attack.ask(0, name, attack.world.roster.sites)
            attack.ask(0, name, attack.world.roster.sites[:-1])  # the same, again
        attack.ask(0, "s06", attack.world.roster.sites)
    leaks = attack.coalition.find_leaks()
    assert bool(leaks) == rolled_back
    if rolled_back:
        assert {(0, "s06"): 1} in leaks


def split_survivors(attack: Attack, lost: list[str]) -> None:
    """Each honest site is told that t of ``lost`` are lost, itself never: so that, over all sites,
    as many of them as can be are called lost as often as possible."""
    world = attack.world
    needed = world.roster.threshold - len(attack.coalition.colluders)
    called = dict.fromkeys(lost, 0)
    # Those who are to be called lost answer first: they have the fewest to name.
    for site in sorted(attack.honest, key=lambda name: name not in lost):
        open_ = sorted(
            (name for name in lost if name != site and called[name] < needed),
            key=lambda name: called[name],
        )
        away = open_[: world.roster.dropouts]
        for name in away:
            called[name] += 1
        attack.ask(0, site, [name for name in world.roster.sites if name not in away])


@pytest.mark.parametrize("planted", [True, False])
def test_different_survivors_for_different_sites_lose_no_more_than_t(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    """With a threshold of 2T > S + c alone a coordinator learns a sum of fewer honest sites than
    noise was planned for: shares of one secret fit, whatever set they were given for."""
    sites, dropouts = (12, 3) if planted else (14, 3)
    if planted:
        monkeypatch.setattr(roster, "count_sites", lambda t, c: 2 * t + c + 1)
        monkeypatch.setattr(roster, "find_threshold", lambda s, t, c: (s + c) // 2 + 1)
    attack = Attack(Summing(tmp_path, sites, dropouts, 1), 1)
    assert attack.world.roster.threshold == (7 if planted else 11)
    attack.open(make_terms())
    split_survivors(attack, attack.honest[-4:])
    leaks = attack.coalition.find_leaks()
    assert bool(leaks) == planted
    if planted:
        assert leaks == [{(0, name): 1 for name in attack.honest[:-4]}]
        assert len(leaks[0]) == 7 < attack.world.roster.honest == 8


@pytest.mark.parametrize("planted", [True, False])
def test_sites_that_are_told_different_sums_have_no_sum_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    if planted:  # what they were told is left out of the masks
        real = find_context
        for place in (member, sys.modules[__name__]):
            monkeypatch.setattr(
                place,
                "find_context",
                lambda roster_, terms, adverts: real(roster_, make_terms(terms.round), adverts),
            )
    attack = Attack(Summing(tmp_path, 8, 2, 1), 1)
    attack.open(
        make_terms(),
        lambda site: (make_terms(told=f"plan {site < 's05'}"), attack.world.roster.sites),
    )
    attack.ask_all(0)
    assert bool(attack.coalition.learn_sums()) == planted


def test_sites_that_are_shown_different_sites_have_no_sum_together(tmp_path: Path) -> None:
    attack = Attack(Summing(tmp_path, 8, 2, 1), 1)
    shown = {site: attack.world.roster.sites[: 7 if site < "s05" else 8] for site in attack.honest}
    attack.open(make_terms(), lambda site: (make_terms(), shown[site]))
    for site in attack.honest:
        attack.ask(0, site, shown[site][:7] if site < "s08" else shown[site])
    assert attack.coalition.learn_sums() == []


def test_masks_are_of_keys_that_no_two_purposes_share(tmp_path: Path) -> None:
    attack = Attack(Summing(tmp_path, 6, 1, 1), 1)
    for round_ in range(2):
        attack.open(make_terms(round_))
    uses: dict[bytes, int] = {}
    for each in attack.coalition.sent:
        for mask in each.masks:
            uses[mask.key] = uses.get(mask.key, 0) + 1
    own = masks.self_mask(b"0" * 32, "context", "s01").key
    assert own not in uses
    # A self mask and a pair mask with a colluder are used once, one between honest sites twice.
    assert sorted(uses.values()) == [1] * (2 * (5 + 5)) + [2] * (2 * 10)

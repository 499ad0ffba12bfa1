"""A coordinator's round: what sites send may be anything, late, twice, or false."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.summing import Summing, add_up, make_terms, make_vectors

from penstock.aggregation.exchanges import read_reveal, write_masked, write_reveal
from penstock.aggregation.masks import seal_letter
from penstock.aggregation.residues import Residues
from penstock.base.errors import SumSpoiled
from penstock.wire.signatures import generate_key
from penstock_client.masking import member
from penstock_server.sums.arrivals import Arrivals
from penstock_server.sums.collector import Collector

TERMS = make_terms()


@pytest.fixture
def world(tmp_path: Path) -> Summing:
    made = Summing(tmp_path, 5, 1, 1)
    made.meet()
    return made


def mask_all(world: Summing, absent: tuple[str, ...] = ()) -> tuple[Collector, dict[str, bytes]]:
    collector = world.gather(TERMS)
    vectors = make_vectors(world.roster.sites, TERMS)
    return collector, world.mask(collector, TERMS, vectors, absent=absent)


def right_sum(world: Summing, collector: Collector) -> list[int]:
    return add_up(make_vectors(world.roster.sites, TERMS), collector.survivors)


def test_what_is_not_a_message_names_its_site_and_the_sum_goes_on(world: Summing) -> None:
    collector = Collector(world.roster, TERMS)
    for name in world.roster.sites[:4]:
        assert collector.take_posting(name, world.members[name].advertise(0))
    for rubbish in (b"", b"\0" * 40, b"\0\0\0\2{}", world.members["s01"].introduce()):
        assert not collector.take_posting("s05", rubbish)
    assert not collector.take_posting("s05", world.members["s04"].advertise(0)), "another's"
    assert not collector.take_posting("s05", world.members["s05"].advertise(1)), "another round's"
    assert set(collector.faults) == {"s05"}
    assert collector.waiting == ("s05",)
    collector.open_round()
    assert not collector.take_posting("s05", world.members["s05"].advertise(0)), "late"
    world.mask(collector, TERMS, make_vectors(world.roster.sites, TERMS))
    collector.ask_survivors()
    world.reveal(collector, 0)
    assert collector.find_sum() == right_sum(world, collector)
    assert collector.survivors == world.roster.sites[:4]


def test_a_false_vector_is_a_lost_one(world: Summing) -> None:
    collector, sent = mask_all(world, absent=("s05",))
    right = sent["s05"]
    context = collector._context
    vector = Residues.from_numbers([1, 2, 3], TERMS.bits)
    key = world.keys["s05"]
    for false in (
        write_masked(world.roster, "s05", generate_key(), context, vector),
        write_masked(world.roster, "s05", key, "0" * 64, vector),
        write_masked(world.roster, "s05", key, context, Residues.from_numbers([1], TERMS.bits)),
        write_masked(world.roster, "s05", key, context, Residues.from_numbers([1] * 3, 64)),
        right[:-1] + bytes([right[-1] ^ 1]),
        right + b"0",
        sent["s01"],
    ):
        assert not collector.take_masked("s05", false)
    assert collector.waiting == ("s05",)
    assert not collector.take_masked("stranger", sent["s01"])
    collector.ask_survivors()
    assert not collector.take_masked("s05", right), "it came too late"
    world.reveal(collector, 0)
    assert collector.find_sum() == right_sum(world, collector)
    assert collector.survivors == world.roster.sites[:4]


def test_messages_may_come_twice(world: Summing) -> None:
    collector, sent = mask_all(world)
    assert all(collector.take_masked(name, data) for name, data in sent.items())
    collector.ask_survivors()
    world.reveal(collector, 0)
    assert collector.waiting == ()
    world.reveal(collector, 0)
    assert collector.find_sum() == right_sum(world, collector)
    assert not collector.faults


def test_a_false_share_names_who_sent_it(world: Summing) -> None:
    collector, _ = mask_all(world)
    collector.ask_survivors()
    asking = collector.next_messages()["s02"]
    found = read_reveal(world.members["s02"].reveal(asking, 0), world.roster, collector._context)
    false = {**found.shares, "s03": bytes(32), "s04": found.shares["s01"]}
    data = write_reveal(
        world.roster, "s02", world.keys["s02"], collector._context, found.survivors, false
    )
    assert collector.take_reveal("s02", data)
    assert list(collector.faults) == ["s02"]
    assert "s03, s04" in str(collector.faults["s02"])
    world.reveal(collector, 0, absent=("s02",))
    assert collector.find_sum() == right_sum(world, collector)


def test_an_answer_for_other_survivors_is_none(world: Summing) -> None:
    collector, _ = mask_all(world)
    collector.ask_survivors()
    asking = collector.next_messages()["s02"]
    found = read_reveal(world.members["s02"].reveal(asking, 0), world.roster, collector._context)
    data = write_reveal(
        world.roster, "s02", world.keys["s02"], collector._context,
        world.roster.sites[:4], found.shares,
    )  # fmt: skip
    assert not collector.take_reveal("s02", data)
    assert "other survivors" in str(collector.faults["s02"])


@pytest.mark.parametrize("lost", [(), ("s05",)])
def test_shares_of_another_secret_name_who_gave_them(
    world: Summing, monkeypatch: pytest.MonkeyPatch, lost: tuple[str, ...]
) -> None:
    """s05 shares out another secret than its advert promises, whichever is needed of it."""
    real = member.secret_shares.split_secret
    monkeypatch.setattr(
        member.secret_shares, "split_secret", lambda secret, *sizes: real(secret ^ 1, *sizes)
    )
    world.members["s05"].advertise(0)
    monkeypatch.undo()
    collector, _ = mask_all(world, absent=lost)
    collector.ask_survivors()
    world.reveal(collector, 0)
    assert collector.ready
    with pytest.raises(SumSpoiled, match=r"another secret than it promised \(got s05\)"):
        collector.find_sum()


def test_letters_that_cannot_be_read_are_missed_at_the_end(
    world: Summing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s05 writes rubbish to three sites: the others hold fewer shares than are needed."""
    monkeypatch.setattr(
        member.masks,
        "seal_letter",
        lambda private, public, address, text: seal_letter(
            private, public, address, text if address[3] > "s03" else bytes(len(text))
        ),
    )
    world.members["s05"].advertise(0)
    monkeypatch.undo()
    collector, _ = mask_all(world)
    collector.ask_survivors()
    world.reveal(collector, 0)
    assert not collector.faults, "who read the letters did as they should"
    assert not collector.ready
    with pytest.raises(SumSpoiled, match="a secret of s05"):
        collector.find_sum()


def test_a_coordinator_goes_on_from_what_it_kept(world: Summing) -> None:
    first = world.gather(TERMS)
    openings = first.next_messages()
    sent = world.mask(first, TERMS, make_vectors(world.roster.sites, TERMS), absent=["s05"])
    second = Collector(world.roster, TERMS)
    for name in reversed(world.roster.sites):
        second.take_posting(name, world.members[name].advertise(0))
    second.open_round(first.members)
    assert second.next_messages() == openings
    for name in reversed(world.roster.sites):
        second.take_masked(name, sent[name])
    second.ask_survivors(world.roster.sites[:4])
    first.ask_survivors()
    assert second.next_messages() == first.next_messages()
    world.reveal(second, 0)
    assert second.find_sum() == right_sum(world, first)


def test_introductions_are_of_their_senders(tmp_path: Path) -> None:
    world = Summing(tmp_path, 5, 1, 1)
    arrivals = Arrivals(world.roster)
    for name in world.roster.sites[:3]:
        assert arrivals.take_introduction(name, world.members[name].introduce())
    assert not arrivals.take_introduction("s04", world.members["s05"].introduce())
    assert not arrivals.take_introduction("s04", b"rubbish")
    assert set(arrivals.faults) == {"s04"}
    with pytest.raises(SumSpoiled, match="wait for s04, s05"):
        arrivals.write_meeting()
    assert arrivals.take_introduction("s04", world.members["s04"].introduce())
    meeting = arrivals.write_meeting()
    for name in world.roster.sites[:4]:
        world.members[name].meet(meeting)

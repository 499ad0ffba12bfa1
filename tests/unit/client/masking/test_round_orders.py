"""What a round was opened with is kept once, and its size comes with its vector or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.summing import Draw, Summing, make_terms

from penstock_client.masking.round_orders import RoundOrders
from penstock_client.masking.sum_record import SumRecord, list_open_sums


class Killed(BaseException):
    """kill -9: nothing catches it."""


def test_the_first_order_of_a_round_stays(tmp_path: Path) -> None:
    world = Summing(tmp_path, 4, 1, 1)
    orders = RoundOrders(world.databases["s01"], "study")
    orders.keep(2, b"opening", (b"one", b"two"), "2026-11-23T00:00:00.000000Z")
    orders.keep(2, b"another", (b"one", b"three"), "2026-11-24T00:00:00.000000Z")
    orders.keep(0, b"first", (), "2026-11-22T00:00:00.000000Z")
    [first, second] = RoundOrders(world.databases["s01"], "study").every()
    assert (first.round, first.sums, second.opening) == (0, (), b"opening")
    assert (second.sums, second.opened[:10], second.size) == ((b"one", b"two"), "2026-11-23", None)
    assert RoundOrders(world.databases["s01"], "other").every() == []


def test_a_kill_before_the_size_is_kept_leaves_no_vector(tmp_path: Path) -> None:
    """And the one that is made afterwards is the only one there is."""
    world = Summing(tmp_path, 4, 1, 1)
    world.meet()
    terms = make_terms()
    collector = world.gather(terms)
    opening = collector.next_messages()["s01"]
    database, member = world.databases["s01"], world.members["s01"]
    orders = RoundOrders(database, "study")
    orders.keep(0, opening, (), "2026-11-23T00:00:00.000000Z")
    first, second, third = (Draw([n, n, n], terms.bits) for n in (1, 2, 3))

    def die() -> None:
        with database.transaction():
            member.contribute(opening, terms, first)
            raise Killed

    with pytest.raises(Killed):
        die()
    record = SumRecord(database, "study").round(0)
    assert record is not None
    assert record.masked is None
    with database.transaction():
        masked = member.contribute(opening, terms, second)
        orders.keep_size(0, terms.size)
    world.open("s01")
    assert world.members["s01"].contribute(opening, terms, third) == masked
    assert (first.calls, second.calls, third.calls) == (1, 1, 0)
    found = RoundOrders(world.databases["s01"], "study").get(0)
    assert found is not None
    assert found.size == terms.size


def test_studies_with_secrets_are_listed_until_these_are_erased(tmp_path: Path) -> None:
    world = Summing(tmp_path, 4, 1, 1)
    world.meet()
    assert list_open_sums(world.databases["s01"]) == ["study"]
    world.members["s01"].leave()
    assert list_open_sums(world.databases["s01"]) == []

"""What a round was opened with is kept once, and its size comes with its vector or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.summing import Draw, Summing, make_terms

from penstock.base.errors import LedgerCorrupt
from penstock_client.masking.round_orders import RoundOrders
from penstock_client.masking.sum_record import SumRecord, list_open_sums


class Killed(BaseException):
    """kill -9: nothing catches it."""


def test_a_rounds_sum_is_kept_once_however_many_rounds_follow(tmp_path: Path) -> None:
    world = Summing(tmp_path, 4, 1, 1)
    orders = RoundOrders(world.databases["s01"], "study")
    assert orders.newest() is None
    orders.keep(0, b"first", (), "2026-11-22T00:00:00.000000Z")
    orders.keep(2, b"opening", (b"one", b"two"), "2026-11-23T00:00:00.000000Z")
    orders.keep(3, b"third", (b"three",), "2026-11-24T00:00:00.000000Z")
    again = RoundOrders(world.databases["s01"], "study")
    found, newest = again.get(2), again.newest()
    assert found is not None
    assert newest is not None
    assert (found.opening, found.opened[:10], found.size) == (b"opening", "2026-11-23", None)
    assert (newest.round, newest.opening) == (3, b"third")
    assert again.read_sums() == (b"one", b"two", b"three")
    assert again.read_sums(2) == (b"one", b"two")
    other = RoundOrders(world.databases["s01"], "other")
    assert (other.newest(), other.read_sums()) == (None, ())


@pytest.mark.parametrize(("number", "sums"), [(2, ()), (4, (b"other", b"four"))])
def test_no_order_and_no_sum_takes_the_place_of_another(
    tmp_path: Path, number: int, sums: tuple[bytes, ...]
) -> None:
    world = Summing(tmp_path, 4, 1, 1)
    orders = RoundOrders(world.databases["s01"], "study")
    orders.keep(2, b"opening", (b"one", b"two"), "2026-11-23T00:00:00.000000Z")
    orders.keep(3, b"third", (b"three",), "2026-11-24T00:00:00.000000Z")
    with pytest.raises(LedgerCorrupt):
        orders.keep(number, b"another", sums, "2026-11-24T00:00:00.000000Z")
    assert orders.read_sums() == (b"one", b"two", b"three")


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

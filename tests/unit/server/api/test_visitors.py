"""Connections at the coordinator's port: what a crowd cannot do to the others."""

from __future__ import annotations

import asyncio

import pytest

from penstock_server.api.addresses import UNKNOWN, find_party
from penstock_server.api.serve import CONNECTIONS, count_connections
from penstock_server.api.visitors import PER_NAME, SCOPE, Visitors, cut, introduce


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", UNKNOWN),
        (None, UNKNOWN),
        ("a hostname", UNKNOWN),
    ],
)
def test_an_address_is_a_party(host, expected):
    assert find_party(host) == expected


def within(work) -> None:
    """Visits are of a loop."""

    async def go() -> None:
        work()

    asyncio.run(go())


def test_a_crowd_of_one_address_loses_its_oldest():
    visitors, dropped = Visitors(80), []

    def work() -> None:
        other = visitors.enter("other", lambda: dropped.append("other"))
        for n in range(30):
            visitors.enter("crowd", lambda n=n: dropped.append(n))
        assert dropped == list(range(30 - visitors.per_address))
        assert len(visitors) == visitors.per_address + 1
        other.leave()
        other.leave()
        assert len(visitors) == visitors.per_address

    within(work)


def test_a_crowd_of_many_addresses_keeps_nobody_out_and_moves_nobody_known():
    visitors, dropped = Visitors(80), []

    def work() -> None:
        site = visitors.enter("crowd", lambda: dropped.append("site"))
        visitors.know(site, "site a")
        for n in range(500):
            visitors.enter(f"crowd {n}", lambda n=n: dropped.append(n))
        late = visitors.enter("hospital", lambda: dropped.append("hospital"))
        visitors.know(late, "site b")
        for n in range(500, 1000):
            visitors.enter(f"crowd {n}", lambda n=n: dropped.append(n))
        assert not {"site", "hospital"} & set(dropped)
        assert len(visitors) == visitors.strangers + 2

    within(work)


def test_hospitals_behind_one_address_do_not_displace_one_another():
    visitors, dropped = Visitors(400), []

    def work() -> None:
        for n in range(150):
            visit = visitors.enter("nat", lambda n=n: dropped.append(n))
            visitors.know(visit, f"site {n}")
            visitors.know(visit, f"site {n}")
        assert not dropped
        assert len(visitors) == 150

    within(work)


def test_one_name_has_so_many_connections_and_a_bad_site_displaces_itself():
    visitors, dropped = Visitors(4 * PER_NAME), []

    def work() -> None:
        for name in ("good", "bad"):
            for n in range(3 if name == "good" else 500):
                visit = visitors.enter("nat", lambda name=name, n=n: dropped.append((name, n)))
                visitors.know(visit, name)
        assert {name for name, _ in dropped} == {"bad"}
        assert len(visitors) == PER_NAME + 3

    within(work)


def test_of_names_whoever_has_most_gives_way():
    visitors, dropped = Visitors(80), []

    def work() -> None:
        for name, count in (("small", 2), ("large", 20), ("larger", 18), ("new", 5)):
            for _ in range(count):
                visit = visitors.enter("nat", lambda name=name: dropped.append(name))
                visitors.know(visit, name)
        assert set(dropped) == {"large", "larger"}
        assert len(visitors) == visitors.named

    within(work)


def test_whoever_has_ended_is_not_known_afterwards():
    visitors = Visitors(80)

    async def go() -> None:
        dropped: list[str] = []
        visit = visitors.enter("x", lambda: dropped.append("x"))
        scope = {SCOPE: visit}
        introduce(scope, "site a")
        introduce({}, "site a")
        await asyncio.sleep(0)
        assert visit.known
        cut(scope)
        cut({})
        assert dropped == ["x"]
        visit.leave()
        introduce(scope, "site b")
        await asyncio.sleep(0)
        assert len(visitors) == 0

    asyncio.run(go())


def test_capacity_leaves_descriptors_for_bodies():
    assert count_connections(1 << 20) == CONNECTIONS
    assert count_connections(1024) * 3 // 2 <= 1024 - 400
    assert count_connections(100) >= 8
    with pytest.raises(ValueError, match="at least 8"):
        Visitors(7)

"""Wrong tokens: who tries them waits ever longer, is counted, and locks nobody out."""

from __future__ import annotations

import pytest

from penstock.base.errors import CoordinatorError
from penstock_server.api import strangers as module
from penstock_server.api.strangers import ADDRESSES, FORGET_SECONDS, MOST_SECONDS, Strangers

HOME, AWAY = "192.0.2.1", "192.0.2.2"


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


class Log:
    """Keeps what is written; fails when told to."""

    def __init__(self):
        self.records, self.broken = [], False

    def write(self, kind, **fields):
        if self.broken:
            raise CoordinatorError("a full disk")
        self.records.append({"kind": kind, **fields})


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def strangers(clock, log):
    return Strangers(5, log, lambda: f"t{clock.seconds:g}", clock)


def test_a_few_mistakes_are_simply_refused(strangers):
    assert [strangers.count_wrong(HOME) for _ in range(5)] == [0.0] * 5
    assert strangers.count_wrong(HOME) > 0


def test_waits_double_and_end_somewhere(strangers, clock):
    waits = []
    for _ in range(30):
        waits.append(strangers.count_wrong(HOME))
        clock.seconds += waits[-1]
    assert waits[5:10] == [1, 2, 4, 8, 16]
    assert max(waits) == waits[-1] == MOST_SECONDS


def test_a_try_within_a_wait_makes_it_no_longer(strangers, clock):
    for _ in range(6):
        strangers.count_wrong(HOME)
    assert strangers.count_wrong(HOME) == 1.0
    clock.seconds += 0.75
    assert strangers.count_wrong(HOME) == 0.25


def test_an_address_begins_anew_after_a_quiet_hour(strangers, clock):
    for _ in range(50):
        strangers.count_wrong(HOME)
        clock.seconds += 2
    clock.seconds += FORGET_SECONDS + 1
    assert strangers.count_wrong(HOME) == 0.0


def test_one_address_waits_for_its_own_mistakes_only(strangers):
    for _ in range(50):
        strangers.count_wrong(HOME)
    assert strangers.count_wrong(AWAY) == 0.0


def test_what_came_is_one_record_whatever_came(strangers, log, clock):
    for number in range(100):
        for _ in range(3 if number == 7 else 1):
            strangers.count_wrong(f"10.0.0.{number}")
    clock.seconds += 60
    strangers.write_tally()
    strangers.write_tally()
    (record,) = log.records
    assert (record["kind"], record["count"], record["others"]) == ("wrong-tokens", 102, 80)
    assert (record["since"], record["until"]) == ("t0", "t60")
    assert record["addresses"][0] == {"address": "10.0.0.7", "count": 3}


def test_whose_token_it_was_is_told(strangers, log):
    """A revoked token that somebody still tries may be in wrong hands."""
    for account in ("", "ada", "ada", "bob"):
        strangers.count_wrong(HOME, account)
    log.broken = True
    strangers.write_tally()
    log.broken = False
    strangers.write_tally()
    ended = [{"account": "ada", "count": 2}, {"account": "bob", "count": 1}]
    assert [(r["count"], r["ended"]) for r in log.records] == [(4, ended)]


def test_what_cannot_be_recorded_is_not_forgotten(strangers, log):
    strangers.count_wrong(HOME)
    log.broken = True
    strangers.write_tally()
    log.broken = False
    strangers.count_wrong(HOME)
    strangers.write_tally()
    assert [(r["count"], r["since"]) for r in log.records] == [(2, "t0")]


def test_memory_is_bounded_and_every_try_counted(strangers, log, monkeypatch):
    monkeypatch.setattr(module, "ADDRESSES", 50)
    assert ADDRESSES > 50
    for number in range(200):
        strangers.count_wrong(f"10.0.{number}.1")
    assert len(strangers._known) == 50
    assert len(strangers._tally) == 50
    strangers.write_tally()
    assert log.records[0]["count"] == 200

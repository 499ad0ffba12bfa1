"""Who waits for something that is not there yet: until it is, and never longer than agreed."""

import asyncio
import time

import pytest

from penstock.processes.direct_calls import HOLD_SECONDS, Lobby, Seat

REFUSED_SECONDS = 30.0
"""For so long a node that died is not let in again."""


class Desk:
    """What is looked for, and how often it was."""

    def __init__(self):
        self.there, self.looks = None, 0

    async def look(self):
        self.looks += 1
        return self.there


def wait(lobby, desk, seat, gone=None):
    """After a look that found nothing."""
    gone, since = gone or asyncio.get_running_loop().create_future(), lobby.count
    found = lobby.wait(seat, desk.look, lambda a: a is not None, gone, None, since)
    return asyncio.ensure_future(found)


async def settle():
    for _ in range(5):
        await asyncio.sleep(0.01)


def test_what_comes_ends_the_wait_at_once():
    async def run():
        lobby, desk = Lobby(None), Desk()
        waiting = wait(lobby, desk, Seat(1, 20.0))
        await settle()
        lobby.call([2])
        await settle()
        assert not waiting.done()
        assert desk.looks == 0
        desk.there = "message"
        began = time.monotonic()
        lobby.call([1])
        assert await waiting == "message"
        assert time.monotonic() - began < 5
        assert lobby._seats == {}

    asyncio.run(run())


def test_what_came_between_a_look_and_its_wait_is_found():
    async def run():
        lobby, desk = Lobby(None), Desk()
        gone, since = asyncio.get_running_loop().create_future(), lobby.count
        desk.there = "message"
        lobby.call([1])  # after the look, before the seat
        found = lobby.wait(Seat(1, 20.0), desk.look, lambda a: a is not None, gone, None, since)
        assert await asyncio.wait_for(found, 5) == "message"

    asyncio.run(run())


def test_who_is_called_for_nothing_goes_on_waiting():
    async def run():
        lobby, desk = Lobby(None), Desk()
        waiting = wait(lobby, desk, Seat(1, 20.0))
        await settle()
        lobby.call([1])
        await settle()
        assert not waiting.done()
        assert desk.looks == 1
        desk.there = "message"
        lobby.call([1])
        assert await waiting == "message"

    asyncio.run(run())


def test_a_wait_ends_without_anything_when_its_time_is_over():
    async def run():
        lobby, desk = Lobby(None), Desk()
        began = time.monotonic()
        assert await wait(lobby, desk, Seat(1, 0.2)) is None
        assert time.monotonic() - began >= 0.2
        assert lobby._seats == {}

    asyncio.run(run())


@pytest.mark.parametrize("how", ["later", "gone", "ended"])
def test_who_no_longer_hears_the_answer_takes_nothing(how):
    """A later look of the same node, a caller that left, a process that ends."""

    async def run():
        lobby, desk = Lobby(None), Desk()
        gone = asyncio.get_running_loop().create_future()
        waiting = wait(lobby, desk, Seat(1, 20.0), gone)
        await settle()
        desk.there = "message"
        if how == "later":
            later = wait(lobby, desk, Seat(1, 20.0))
            await settle()
            assert desk.looks == 0
            lobby.call([1])
            assert await later == "message"
        else:
            if how == "gone":
                gone.set_result(True)
            lobby.ended = lambda: how == "ended"
        assert await waiting is None
        assert desk.looks == (how == "later")

    asyncio.run(run())


def test_where_all_seats_are_taken_the_answer_comes_at_once():
    async def run():
        lobby, desk = Lobby(None, most=1), Desk()
        first = wait(lobby, desk, Seat(1, 20.0))
        await settle()
        assert await asyncio.wait_for(wait(lobby, desk, Seat(2, 20.0)), 5) is None
        first.cancel()
        await settle()
        assert lobby._seats == {}

    asyncio.run(run())


def test_a_call_of_a_dead_node_has_ended_when_the_next_one_is_let_in():
    assert HOLD_SECONDS * 2 < REFUSED_SECONDS

"""Bodies at the coordinator's port: paced, bounded together, and in no file that has a name."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from penstock_server.api import bodies, fleet
from penstock_server.api.bodies import (
    SMALL,
    Full,
    Gone,
    Spool,
    TooLarge,
    allowed_seconds,
    read_paced,
)
from penstock_server.api.fleet import Fleet

KB = 1 << 10


async def parts(*given: bytes | None):
    """A body of these parts, after which nothing comes; None is the connection's end."""
    for part in given:
        yield (
            {"type": "http.disconnect"}
            if part is None
            else {
                "type": "http.request",
                "body": part,
                "more_body": True,
            }
        )
    await asyncio.sleep(60)


def receiving(*given: bytes | None):
    stream = parts(*given)
    return lambda: anext(stream)


async def read(receive, limit: int = 1000) -> bytes:
    return b"".join([part async for part in read_paced(receive, limit)])


def test_the_least_rate_is_what_it_says():
    assert allowed_seconds(0) == bodies.BASE_SECONDS
    assert allowed_seconds(bodies.RATE) == bodies.BASE_SECONDS + 1
    assert allowed_seconds(64 << 20) == bodies.LONGEST_SECONDS < 300  # a signature's life


def test_whoever_stops_is_given_up_whatever_was_announced(monkeypatch):
    monkeypatch.setattr(bodies, "BASE_SECONDS", 0.1)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(read(receiving(b"x")), 5))


def test_a_trickle_is_given_up(monkeypatch):
    """Each byte comes in time; together they do not."""
    monkeypatch.setattr(bodies, "BASE_SECONDS", 0.3)

    async def trickle():
        await asyncio.sleep(0.05)
        return {"type": "http.request", "body": b"x", "more_body": True}

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(read(trickle, 10**6), 5))


def test_a_body_is_bounded_and_whole():
    with pytest.raises(TooLarge):
        asyncio.run(read(receiving(b"x" * 600, b"x" * 600)))
    with pytest.raises(Gone):
        asyncio.run(read(receiving(b"x", None)))


# -- the spool ---------------------------------------------------------------------------------


@pytest.fixture
def spool(tmp_path, monkeypatch):
    monkeypatch.setattr(bodies, "WAIT_SECONDS", 0.1)
    made = Spool(tmp_path / "spool", quota=1000 * KB, share=600 * KB)
    made.clean()
    return made


@pytest.mark.parametrize("size", [0, 10, SMALL, SMALL + 1, 600 * KB])
def test_what_is_kept_comes_back(spool, size):
    async def go() -> bytes:
        data = os.urandom(size)
        async with spool.room(size, "a") as body:
            for at in range(0, size, 50_000):
                await body.write(data[at : at + 50_000])
            assert body.size == size
            for _ in range(2):
                assert b"".join([p async for p in body.parts()]) == data
            with pytest.raises(TooLarge):
                await body.write(b"x")
            assert spool.used == (size if size > SMALL else 0)

    asyncio.run(go())
    assert spool.used == 0


def test_spool_quota(spool):
    """One owner has a share, all together a quota; small bodies pass when it is full."""

    async def go() -> None:
        async with AsyncExitStack() as held:
            await held.enter_async_context(spool.room(500 * KB, "a"))
            for size, owner in ((200 * KB, "a"), (600 * KB, "b")):
                with pytest.raises(Full):
                    await held.enter_async_context(spool.room(size, owner))
            await held.enter_async_context(spool.room(500 * KB, "b"))
            with pytest.raises(Full):
                await held.enter_async_context(spool.room(SMALL + 1, "c"))
            async with spool.room(SMALL, "c") as small:
                await small.write(b"x")
            assert spool.used == 1000 * KB
        assert spool.used == 0
        async with spool.room(600 * KB, "a"):
            with pytest.raises(ZeroDivisionError):
                async with spool.room(300 * KB, "b"):
                    raise ZeroDivisionError
            assert spool.used == 600 * KB

    asyncio.run(go())


def test_room_that_comes_free_is_waited_for(spool, monkeypatch):
    monkeypatch.setattr(bodies, "WAIT_SECONDS", 5.0)

    async def go() -> None:
        async with AsyncExitStack() as first:
            await first.enter_async_context(spool.room(600 * KB, "a"))
            waiting = asyncio.create_task(held(600 * KB, "b"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await first.aclose()
            await asyncio.wait_for(waiting, 5)

    async def held(size: int, owner: str) -> None:
        async with spool.room(size, owner):
            pass

    asyncio.run(go())
    assert spool.used == 0


def test_spooled_files_are_private_and_have_no_name(spool, tmp_path):
    folder = tmp_path / "spool"
    (folder / "left-behind").write_bytes(b"x")
    folder.chmod(0o755)
    spool.clean()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    async def go() -> None:
        async with spool.room(300 * KB, "a") as body:
            await body.write(b"secret" * 50_000)
            assert list(folder.iterdir()) == []
            own = []
            for link in Path("/proc/self/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # that of the listing itself
                    own += [link] * (str(folder) in os.readlink(link))
            assert len(own) == 1
            assert stat.S_IMODE(own[0].stat().st_mode) == 0o600

    asyncio.run(go())


# -- the fleet's calls -------------------------------------------------------------------------


class Everybody:
    """Takes every call for that of the site in a header."""

    async def site(self, headers):
        return dict(headers)[b"x-site"].decode()


async def superlink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-le"))
    await reader.readexactly(length)
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\ndone")
    await writer.drain()
    writer.close()


async def hanging(first: bytes):
    yield first
    await asyncio.sleep(60)


def run_fleet(tmp_path, spool, work):
    """``work(post)``, with a stand-in for the SuperLink."""

    async def go() -> None:
        socket = tmp_path / "s"
        server = await asyncio.start_unix_server(superlink, socket)
        app = Fleet(socket, Everybody(), spool)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:

            async def post(site: str, size: int, content=None) -> httpx.Response:
                headers = {"x-site": site, "content-length": str(size)}
                body = b"x" * size if content is None else content
                return await client.post("/v1/fleet/push-object", content=body, headers=headers)

            await asyncio.wait_for(work(post), 20)
        await app.close()
        server.close()

    asyncio.run(go())


def test_a_full_spool_says_when_to_come_again(tmp_path, spool):
    async def work(post) -> None:
        slow = [
            asyncio.create_task(post(site, 500 * KB, hanging(b"x" * 400 * KB))) for site in "ab"
        ]
        await asyncio.sleep(0.2)
        refused = await post("c", 100 * KB)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert (await post("c", 10 * KB)).text == "done"
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        assert (await post("c", 100 * KB)).text == "done"
        assert spool.used == 0

    run_fleet(tmp_path, spool, work)


def test_a_site_has_some_calls_at_once_and_others_have_theirs(tmp_path, spool, monkeypatch):
    monkeypatch.setattr(fleet, "WAIT_SECONDS", 0.1)

    async def work(post) -> None:
        slow = [asyncio.create_task(post("a", 100, hanging(b"x"))) for _ in range(fleet.CALLS)]
        await asyncio.sleep(0.1)
        assert (await post("a", 10)).status_code == 503
        assert (await post("b", 10)).text == "done"
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        assert (await post("a", 10)).text == "done"

    run_fleet(tmp_path, spool, work)


def test_a_slow_body_is_told_so(tmp_path, spool, monkeypatch):
    monkeypatch.setattr(bodies, "BASE_SECONDS", 0.1)

    async def work(post) -> None:
        assert (await post("a", 100, hanging(b"x"))).status_code == 408

    run_fleet(tmp_path, spool, work)


def test_a_full_disk_says_when_to_come_again(tmp_path, spool, monkeypatch):
    """Flower tries a 503 again; after a 500 the node would give its message up."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bodies, "_write", full)

    async def work(post) -> None:
        refused = await post("a", 300 * KB)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert (await post("a", 10 * KB)).text == "done"
        assert spool.used == 0

    run_fleet(tmp_path, spool, work)


def test_a_look_whose_site_has_left_is_let_go_at_the_superlink(tmp_path, spool):
    """It waits there for a message, which nobody would get."""

    async def go() -> None:
        let_go, left = asyncio.Event(), asyncio.Event()

        async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            left.set()
            while await reader.read(1000):
                pass
            let_go.set()
            writer.close()

        server = await asyncio.start_unix_server(waits, tmp_path / "s")
        app = Fleet(tmp_path / "s", Everybody(), spool)
        body = [{"type": "http.request", "body": b"look", "more_body": False}]

        async def receive() -> dict[str, object]:
            if body:
                return body.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        sent: list[object] = []

        async def send(message: object) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "raw_path": fleet.LOOK,
            "query_string": b"",
            "headers": [(b"x-site", b"a"), (b"content-length", b"4")],
        }
        await asyncio.wait_for(app(scope, receive, send), 10)
        await asyncio.wait_for(let_go.wait(), 10)
        assert sent == []
        assert spool.used == 0
        await app.close()
        server.close()

    asyncio.run(go())

"""The sites' way to the SuperLink: ``/v1/fleet/*`` is passed to its Unix socket, nothing else.

Flower proves a node's identity itself, by its key. What is kept away from it here is everything
but the fleet's calls: its control and runtime API have no accounts.

The SuperLink's connections are few, and no slow sender or reader may hold one. So a call goes
through stages, and takes a connection in the third only:

1. The head is signed by an enrolled node, else 401 before any of the body; a site has ``CALLS`` at
   once, and the next one waits.
2. The body is received whole, at a least rate, into a spool that is bounded for each site and for
   all; without room: 503, and the node tries again.
3. The SuperLink gets it, and its answer is spooled in turn. Then the connection is free.
4. The answer is sent, at a least rate.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock_server.api.bodies import (
    WAIT_SECONDS,
    Full,
    Gone,
    Kept,
    Spool,
    TooLarge,
    allowed_seconds,
    read_paced,
)
from penstock_server.api.nodes import Nodes
from penstock_server.api.visitors import cut, introduce

log = logging.getLogger("penstock.api")

# One plain segment: no dots, no escapes, nothing that one side could read otherwise than the other.
CALL = re.compile(rb"/v1/fleet/[a-z][a-z0-9-]{0,63}")
LOOK = b"/v1/fleet/pull-messages"
LIMIT = 64 << 20
CONNECTIONS = 256
CALLS = 16
"""Of one site at once; Flower's SuperNode makes two or three."""
TIMEOUT = httpx.Timeout(connect=5.0, read=120.0, write=60.0, pool=30.0)
AGAIN = {"Retry-After": "5"}
LENGTH = b"content-length"

# RFC 9110 §7.6.1, and what is between a site and this port only.
DROPPED = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer"
    b" transfer-encoding upgrade host expect authorization cookie forwarded x-forwarded-for"
    b" x-forwarded-host x-forwarded-proto x-real-ip".split()
)
Headers = list[tuple[bytes, bytes]]


class Fleet:
    """An ASGI app that passes the fleet's calls through to the SuperLink at ``socket``."""

    def __init__(self, socket: Path, nodes: Nodes, spool: Spool) -> None:
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=32)
        # The bare transport: no redirects, no cookies, no proxy, no headers of its own.
        self._transport = httpx.AsyncHTTPTransport(uds=str(socket), limits=limits)
        self._nodes, self._spool = nodes, spool
        self._calls: dict[str, asyncio.Semaphore] = {}

    async def close(self) -> None:
        await self._transport.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: Response
        if not CALL.fullmatch(scope["raw_path"]) or scope["query_string"]:
            answer = _answer_plainly(404, "not-found")
        elif scope["method"] != "POST":
            answer = _answer_plainly(405, "method", {"Allow": "POST"})
        elif (site := await self._nodes.site(scope["headers"])) is None:
            answer = _answer_plainly(401, "not-allowed")
        elif (_read_length(scope["headers"]) or 0) > LIMIT:
            answer = _answer_plainly(413, "too-large")
        else:
            introduce(scope, f"site {site}")
            try:
                async with self._turn(site):
                    await self._pass(site, scope, receive, send)
                return
            except Gone:
                return
            except Full:
                answer = _answer_plainly(503, "busy", AGAIN)
            except TooLarge:
                answer = _answer_plainly(413, "too-large")
        await answer(scope, receive, send)

    @asynccontextmanager
    async def _turn(self, site: str) -> AsyncIterator[None]:
        """One of a site's calls at once.

        Raises:
            Full: the others take too long.
        """
        calls = self._calls.setdefault(site, asyncio.Semaphore(CALLS))
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await calls.acquire()
        except TimeoutError:
            raise Full from None
        try:
            yield
        finally:
            calls.release()

    async def _pass(self, site: str, scope: Scope, receive: Receive, send: Send) -> None:
        answer: Response
        seconds = allowed_seconds(0)
        async with AsyncExitStack() as rooms:
            try:
                upstream = await self._ask_superlink(site, scope, receive)
                try:
                    body = await self._keep_body(site, upstream, rooms)
                finally:
                    await upstream.aclose()
            except TimeoutError:
                answer = _answer_plainly(408, "too-slow")
            except httpx.TimeoutException as error:
                log.warning("the SuperLink did not answer: %s", type(error).__name__)
                answer = _answer_plainly(504, "unavailable")
            except httpx.TransportError as error:
                log.warning("the SuperLink cannot be reached: %s", type(error).__name__)
                answer = _answer_plainly(503, "unavailable", AGAIN)
            except OSError as error:
                log.error("a body cannot be kept: %s", error.strerror)
                answer = _answer_plainly(503, "unavailable", AGAIN)
            else:
                seconds = allowed_seconds(body.size)
                answer = StreamingResponse(body.parts(), upstream.status_code)
                # What came without a length has one now.
                kept = [
                    (n, v) for n, v in select_passed(upstream.headers.raw) if n.lower() != LENGTH
                ]
                answer.raw_headers = [*kept, (LENGTH, b"%d" % body.size)]
            try:
                async with asyncio.timeout(seconds):
                    await answer(scope, receive, send)
            except TimeoutError:
                cut(scope)

    async def _ask_superlink(self, site: str, scope: Scope, receive: Receive) -> httpx.Response:
        """The head of the SuperLink's answer to a body that is whole.

        Raises:
            TimeoutError: the body came too slowly; TooLarge, Gone, Full: as they say.
            httpx.TransportError: from the SuperLink's side.
        """
        async with self._spool.room(_read_length(scope["headers"]) or 0, site) as body:
            async for part in read_paced(receive, LIMIT):
                await body.write(part)
            request = httpx.Request(
                "POST",
                "http://superlink" + scope["raw_path"].decode("ascii"),
                headers=select_passed(scope["headers"]),
                content=body.parts(),
                extensions={"timeout": TIMEOUT.as_dict()},
            )
            if scope["raw_path"] != LOOK:
                return await self._transport.handle_async_request(request)
            return await self._await_unless_gone(request, receive)

    async def _await_unless_gone(self, request: httpx.Request, receive: Receive) -> httpx.Response:
        """The same for a look, which waits at the SuperLink until there is something: one that
        nobody hears any more must not take a message.

        Raises:
            Gone: nobody does.
        """
        asking = asyncio.ensure_future(self._transport.handle_async_request(request))
        leaving = asyncio.ensure_future(receive())
        try:
            await asyncio.wait([asking, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise Gone
            return asking.result()
        finally:
            leaving.cancel()
            asking.cancel()

    async def _keep_body(self, site: str, upstream: httpx.Response, rooms: AsyncExitStack) -> Kept:
        """The body of the SuperLink's answer; its room is given back when ``rooms`` are.

        Raises:
            httpx.TransportError: it broke off, or is longer than ``LIMIT``.
            Full: no room.
        """
        length = _read_length(upstream.headers.raw)
        size = LIMIT if length is None else length  # without one: the longest there may be
        if size > LIMIT:
            raise httpx.RemoteProtocolError("the answer is too long")
        body = await rooms.enter_async_context(self._spool.room(size, site))
        async for part in upstream.aiter_raw():
            if body.size + len(part) > size:
                raise httpx.RemoteProtocolError("the answer is too long")
            await body.write(part)
        return body


def select_passed(headers: Headers) -> Headers:
    """End-to-end headers only: also without those that ``Connection`` names."""
    named = {
        token.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    return [(n, v) for n, v in headers if n.lower() not in DROPPED and n.lower() not in named]


def _read_length(headers: Headers) -> int | None:
    """Content-Length; None without one. That there is one at most, and of digits, h11 sees to."""
    return next((int(value[:20]) for name, value in headers if name.lower() == LENGTH), None)


def _answer_plainly(status: int, code: str, headers: dict[str, str] | None = None) -> Response:
    content = json.dumps({"code": code})
    return Response(content, status, headers, media_type="application/json")

"""The sites' way to the SuperLink: ``/v1/fleet/*`` is streamed to its Unix socket, nothing else.

Flower proves a node's identity itself, by its key. What is kept away from it here is everything
but the fleet's calls: its control and runtime API have no accounts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock_server.api.auth import too_long

log = logging.getLogger("penstock.api")

# One plain segment: no dots, no escapes, nothing that one side could read otherwise than the other.
CALL = re.compile(rb"/v1/fleet/[a-z][a-z0-9-]{0,63}")
LIMIT = 64 << 20
CONNECTIONS = 256
IDLE_SECONDS = 120.0
"""A site that sends nothing for so long within one request is given up."""
TIMEOUT = httpx.Timeout(connect=5.0, read=120.0, write=60.0, pool=30.0)

# RFC 9110 §7.6.1, and what is between a site and this port only.
DROPPED = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer"
    b" transfer-encoding upgrade host expect authorization cookie forwarded x-forwarded-for"
    b" x-forwarded-host x-forwarded-proto x-real-ip".split()
)
Headers = list[tuple[bytes, bytes]]


class _TooLarge(Exception):
    pass


class _Gone(Exception):
    pass


class Fleet:
    """An ASGI app that passes the fleet's calls through to the SuperLink at ``socket``."""

    def __init__(self, socket: Path) -> None:
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=32)
        # The bare transport: no redirects, no cookies, no proxy, no headers of its own.
        self._transport = httpx.AsyncHTTPTransport(uds=str(socket), limits=limits)

    async def close(self) -> None:
        await self._transport.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: Response
        if not CALL.fullmatch(scope["raw_path"]) or scope["query_string"]:
            answer = _plain(404, "not-found")
        elif scope["method"] != "POST":
            answer = _plain(405, "method", {"Allow": "POST"})
        elif too_long(_length(scope["headers"]), LIMIT):
            answer = _plain(413, "too-large")
        else:
            await self._pass(scope, receive, send)
            return
        await answer(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = httpx.Request(
            "POST",
            "http://superlink" + scope["raw_path"].decode("ascii"),
            headers=passed(scope["headers"]),
            content=_stream(receive),
            extensions={"timeout": TIMEOUT.as_dict()},
        )
        try:
            upstream = await self._transport.handle_async_request(request)
        except _Gone:
            return
        except _TooLarge:
            await _plain(413, "too-large")(scope, receive, send)
        except TimeoutError:
            await _plain(408, "too-slow")(scope, receive, send)
        except httpx.TimeoutException as error:
            log.warning("the SuperLink did not answer: %s", type(error).__name__)
            await _plain(504, "unavailable")(scope, receive, send)
        except httpx.TransportError as error:
            log.warning("the SuperLink cannot be reached: %s", type(error).__name__)
            await _plain(503, "unavailable", {"Retry-After": "5"})(scope, receive, send)
        else:
            try:
                answer = StreamingResponse(upstream.aiter_raw(), upstream.status_code)
                answer.raw_headers = passed(upstream.headers.raw)
                await answer(scope, receive, send)
            finally:
                await upstream.aclose()


async def _stream(receive: Receive) -> AsyncIterator[bytes]:
    """The request's body as it comes, bounded; never the whole of it in memory."""
    size, more = 0, True
    while more:
        async with asyncio.timeout(IDLE_SECONDS):
            message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        part = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(part)
        if size > LIMIT:
            raise _TooLarge
        if part:
            yield part


def passed(headers: Headers) -> Headers:
    """End-to-end headers only: also without those that ``Connection`` names."""
    named = {
        token.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    return [(n, v) for n, v in headers if n.lower() not in DROPPED and n.lower() not in named]


def _length(headers: Headers) -> str:
    return next((v.decode("latin-1") for n, v in headers if n == b"content-length"), "")


def _plain(status: int, code: str, headers: dict[str, str] | None = None) -> Response:
    content = json.dumps({"code": code})
    return Response(content, status, headers, media_type="application/json")

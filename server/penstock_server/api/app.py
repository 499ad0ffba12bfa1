"""The ASGI application: routes, errors as JSON, and what holds for every request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock import __version__
from penstock.base.errors import (
    CoordinatorError,
    InvalidInput,
    NotAllowed,
    PenstockError,
    Problem,
    SignatureError,
)
from penstock.base.times import stamp_now
from penstock.wire.messages import SERVED_MAJORS
from penstock_server.access.access_chain import Unrecorded
from penstock_server.access.tokens import Tokens
from penstock_server.api import studies
from penstock_server.api.auth import Answer
from penstock_server.api.bodies import Spool
from penstock_server.api.fleet import Fleet
from penstock_server.api.nodes import Nodes
from penstock_server.api.reads import Reads
from penstock_server.api.result_files import ResultFiles
from penstock_server.api.strangers import TALLY_SECONDS, Strangers
from penstock_server.install.configuration import read_settings
from penstock_server.install.founding import open_coordinator
from penstock_server.store.folder import Folder

log = logging.getLogger("penstock.api")

DRAIN_BYTES = 16 << 20
DRAIN_SECONDS = 5.0
WIRE_HEADER = b"penstock-wire"
HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
    (b"referrer-policy", b"no-referrer"),
)
STATUS: dict[type[PenstockError], int] = {
    InvalidInput: 422,
    SignatureError: 422,
    CoordinatorError: 409,
    Unrecorded: 503,
    NotAllowed: 403,
}


def create_app(folder: Path) -> FastAPI:
    """The application over a coordinator's directory.

    Raises:
        CoordinatorError: no coordinator there.
    """
    coordinator, settings = open_coordinator(folder), read_settings(folder)
    strangers = Strangers(settings.wrong_tokens, coordinator.access, stamp_now)
    paths, store = Folder(folder), coordinator.store
    spool = Spool(paths.spool)
    spool.clean()
    nodes = Nodes(lambda: {n: str(s.join.get("node_key")) for n, s in store.sites.all().items()})
    fleet = Fleet(paths.superlink_socket, nodes, spool)
    results = ResultFiles(coordinator)
    results.clean()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        telling = asyncio.create_task(_tell(strangers))
        yield
        telling.cancel()
        await fleet.close()
        await run_in_threadpool(strangers.write_tally)
        coordinator.store.close()

    app = FastAPI(
        title="Penstock",
        version=__version__,
        lifespan=lifespan,
        # No pages that describe the server to whoever asks, and no hint that a path nearly fits.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.coordinator = coordinator
    app.state.tokens = Tokens(coordinator.store, coordinator.access)
    app.state.strangers = strangers
    app.state.reads = Reads(coordinator.access)
    app.state.results = results
    for router in (studies.public, studies.analyst, studies.federation):
        app.include_router(router)
    app.router.routes.append(Mount("/v1", app=fleet))
    app.add_exception_handler(Answer, _answer)
    app.add_exception_handler(PenstockError, _answer_known)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(RequestValidationError, _answer_malformed)
    app.add_middleware(Guard)
    return app


async def _tell(strangers: Strangers) -> None:
    while True:
        await asyncio.sleep(TALLY_SECONDS)
        await run_in_threadpool(strangers.write_tally)


class Guard:
    """Around every request: what is refused at once, security headers, and errors of our own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, body = False, _Body(scope, receive)

        async def guarded(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                ours = {name for name, _ in HEADERS}
                kept = [(n, v) for n, v in message["headers"] if n.lower() not in ours]
                if message["status"] >= 400 and not await body.drained():
                    kept.append((b"connection", b"close"))
                message = {**message, "headers": [*kept, *HEADERS]}
            await send(message)

        try:
            answer = _refuse_early(scope)
            await (answer or self._app)(scope, body.receive, guarded)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            # By type and place only: its text may quote what somebody sent.
            log.error(
                "%s: %s at %s:%d",
                scope["method"],
                type(error).__name__,
                Path(frame.filename).name,
                frame.lineno,
            )
            if not started:
                await JSONResponse({"code": "internal"}, 500)(scope, receive, guarded)


class _Body:
    """A request's body, of which a refusal lets a little more come.

    To close a connection while the other side still sends destroys the answer on its way: whoever
    sends a little too much is told so. Whoever sends for ever is cut off.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        names = {name for name, _ in scope["headers"]}
        self._whole = b"content-length" not in names
        self._waits = b"expect" in names
        self._receive = receive

    async def receive(self) -> MutableMapping[str, Any]:
        self._waits = False
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._whole = True
        return message

    async def drained(self) -> bool:
        """Read what is left, within bounds; whether it was all."""
        if self._waits:  # for a "100 Continue": an answer instead is what it wants to know
            return self._whole
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while not self._whole and size <= DRAIN_BYTES:
                    size += len((await self.receive()).get("body", b""))
        return self._whole


def _refuse_early(scope: Scope) -> Response | None:
    """The answer to a request that no route needs to see."""
    if not scope["path"].startswith("/api/"):
        return None
    headers = dict(scope["headers"])
    if b"content-encoding" in headers:
        problem = Problem("Content-Encoding", "is not taken here", remedy="Send it as it is")
        return _answer_error(415, InvalidInput("request", [problem]))
    wire = headers.get(WIRE_HEADER)
    if wire is not None and wire.split(b".")[0] not in [b"%d" % m for m in SERVED_MAJORS]:
        error = CoordinatorError(
            "this wire version is not served",
            bound="majors " + ", ".join(str(m) for m in SERVED_MAJORS),
            remedy="upgrade the older side",
        )
        return _answer_error(426, error, {"Upgrade": "penstock"})
    return None


def _answer_error(
    status: int, error: PenstockError, headers: dict[str, str] | None = None
) -> Response:
    return JSONResponse(error.to_dict(), status, headers)


async def _answer(_: Request, error: Exception) -> Response:
    if not isinstance(error, Answer):
        raise error
    return _answer_error(error.status, error.error, error.headers)


async def _answer_known(_: Request, error: Exception) -> Response:
    """An error raised on purpose, with what it says; the store's own trouble stays here."""
    if not isinstance(error, PenstockError):
        raise error
    cause = error.__context__
    if cause is not None and type(cause).__module__.startswith("sqlalchemy"):
        log.error("the store cannot be used: %s", type(cause).__name__)
        return JSONResponse({"code": "unavailable"}, 503, {"Retry-After": "5"})
    kinds = (STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    return _answer_error(next(kinds, 400), error)


async def _answer_http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code = {404: "not-found", 405: "method"}.get(error.status_code, "request")
    return JSONResponse({"code": code}, error.status_code, error.headers)


async def _answer_malformed(_: Request, error: Exception) -> Response:
    """A query that no route takes; named, and not quoted."""
    if not isinstance(error, RequestValidationError):
        raise error
    problems = [
        Problem(".".join(str(p) for p in e["loc"][1:]), "is not well formed")
        for e in error.errors()
    ]
    return _answer_error(422, InvalidInput("request", problems))

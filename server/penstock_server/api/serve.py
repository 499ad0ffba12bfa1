"""``python -m penstock_server.api.serve DIR``: the API over TLS, until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import resource
import signal
import socket
import ssl
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.base.errors import CoordinatorError, PenstockError
from penstock_server.api.addresses import find_party
from penstock_server.api.app import create_app
from penstock_server.api.visitors import SCOPE, Visit, Visitors
from penstock_server.install import tls
from penstock_server.install.configuration import read_settings
from penstock_server.store.folder import Folder

log = logging.getLogger("penstock.api")

CONNECTIONS = 2000
DESCRIPTORS = 16384
SPARE_DESCRIPTORS = 400
"""For the SuperLink's connections, the store and logs."""
HANDSHAKE_SECONDS = 15.0
"""For the first byte, and then for the rest."""
HANDSHAKES = 100.0
"""A second at most, one after the other: each costs a millisecond or two of everybody's time."""
HEAD_SECONDS = 30.0
WRITE_SECONDS = 30.0
WRITE_BYTES = 256 << 10
"""A full buffer of so many has to drain by three quarters within ``WRITE_SECONDS``: 6.5 kB/s."""
CLOSE_SECONDS = 10.0
TICK_SECONDS = 1.0
STOP_SECONDS = 3
"""For answers that are under way; idle connections may take as long to close."""


class Measured(h11.Connection):
    """Takes no chunked body: to parse a chunk takes ten microseconds, also of one byte.

    Whoever calls here knows how long its body is, and so do the bounds on time and disk.
    """

    unmeasured = False

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.unmeasured = any(name == b"transfer-encoding" for name, _ in event.headers)
            if self.unmeasured:
                raise h11.RemoteProtocolError("a body without a length")
        return event


class Impatient(H11Protocol):
    """Gives up a connection that keeps this side waiting; uvicorn would wait.

    The deadlines, each of which begins anew with every request of a connection: a head that has
    begun is whole within ``HEAD_SECONDS``, the first from the start; what is sent is taken at a
    least rate; what is closed is closed. How long a body may take is up to whoever reads it.
    """

    def __init__(self, *args: Any, visit: Visit | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.visit = visit
        self.conn = self._measured = Measured(h11.SERVER)
        self.app = functools.partial(self._count_introduced, self.app)
        self._begun, self._drained = True, 0
        self._state: tuple[object, ...] = ()
        self._since = 0.0

    async def _count_introduced(
        self, app: Any, scope: MutableMapping[str, Any], receive: Any, send: Any
    ) -> None:
        scope[SCOPE] = self.visit
        await app(scope, receive, send)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BYTES)
        if self.visit is not None:
            self.visit.drop = transport.abort
        self._state, self._since = self._waits_for(), self.loop.time()
        self._check_patience_later()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.visit is not None:
            self.visit.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # A head that is not whole, or a body that goes on after its answer.
        self._begun = self._is_idle()

    def resume_writing(self) -> None:
        self._drained += 1
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        if not self._measured.unmeasured:
            super().send_400_response(msg)
            return
        headers = [("content-length", "0"), ("connection", "close")]
        for event in (
            h11.Response(status_code=411, headers=headers, reason=b"Length Required"),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def _is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _waits_for(self) -> tuple[object, ...]:
        """What this connection waits for, another value with every step, and how long it may."""
        if self.transport.is_closing():
            return CLOSE_SECONDS, "end"
        if self.flow.write_paused:
            return WRITE_SECONDS, "reader", self._drained
        if self._is_idle() and self._begun:
            return HEAD_SECONDS, "head", self.cycle
        return None, "us"  # or for the next request: uvicorn ends that

    def _check_patience(self) -> None:
        if self not in self.connections:
            return
        state, now = self._waits_for(), self.loop.time()
        if state != self._state:
            self._state, self._since = state, now
        elif isinstance(state[0], float) and now - self._since > state[0]:
            self.transport.abort()
            return
        self._check_patience_later()

    def _check_patience_later(self) -> None:
        self.loop.call_later(TICK_SECONDS, self._check_patience)


class Door(uvicorn.Server):
    """Uvicorn, with a look at who comes before anything is done for them.

    Uvicorn's own listener counts nobody until the TLS handshake is over, so whoever only connects
    uses up the process's descriptors, and a thousand handshakes that begin together hold up whoever
    is connected already. Here only newcomers wait for newcomers.
    """

    def __init__(self, config: uvicorn.Config, context: ssl.SSLContext, visitors: Visitors) -> None:
        super().__init__(config)
        self._context, self._visitors = context, visitors
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn, self._next = asyncio.Lock(), 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        for listener in sockets or []:
            listener.setblocking(False)
            self._keep(self._accept(listener))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._tasks:
            task.cancel()
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = await asyncio.get_running_loop().sock_accept(listener)
            except ConnectionError:
                continue  # gone before it was taken
            except OSError as error:
                log.error("no connection can be taken: %s", error.strerror)
                await asyncio.sleep(TICK_SECONDS)
                continue
            self._keep(self._welcome(connection, find_party(address[0])))

    async def _welcome(self, connection: socket.socket, address: str) -> None:
        """From the first byte through the handshake; then it is the protocol's."""
        visit = self._visitors.enter(
            address, cast(asyncio.Task[None], asyncio.current_task()).cancel
        )
        protocol = Impatient(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            visit=visit,
        )
        try:
            try:
                await _await_first_byte(connection)
                await self._await_turn()
            except BaseException:
                connection.close()
                raise
            # From here on asyncio closes it.
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=CLOSE_SECONDS,
            )
        except (OSError, asyncio.CancelledError):
            visit.leave()

    async def _await_turn(self) -> None:
        """Wait for those who spoke before; whoever is put out meanwhile makes room."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(max(0.0, self._next - loop.time()))
            self._next = loop.time() + 1 / HANDSHAKES

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _await_first_byte(connection: socket.socket) -> None:
    """Wait for the first byte, or the end, and leave it where it is.

    Raises:
        TimeoutError: neither came.
    """
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    loop.add_reader(connection, came.set)
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            await came.wait()
    finally:
        loop.remove_reader(connection)


def serve(folder: Path) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        CoordinatorError: no coordinator there, or the port cannot be had.
        InvalidInput: certificate and key are missing, or do not belong together.
    """
    settings = read_settings(folder)
    app = create_app(folder)
    config = uvicorn.Config(
        app,
        # h11: the same everywhere, and the strictest reader of what strangers send.
        http=Impatient,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=65,  # longer than what proxies keep
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    config.load()
    context = tls.server_context(Folder(folder).tls)
    visitors = Visitors(count_connections(raise_descriptors()))
    with _open_port(settings.bind, settings.port) as listener:
        Door(config, context, visitors).run(sockets=[listener])


def raise_descriptors() -> int:
    """How many files and connections this process may have, raised as far as it is let."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def count_connections(files: int) -> int:
    """Connections for which descriptors last, where every second one has a body on disk."""
    return max(8, min(CONNECTIONS, (files - SPARE_DESCRIPTORS) * 2 // 3))


def _open_port(bind: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    try:
        return socket.create_server(
            (bind, port), family=family, backlog=512, dualstack_ipv6=bind == "::"
        )
    except OSError as error:
        raise CoordinatorError(
            f"the port cannot be had: {error.strerror}",
            value=f"{bind}:{port}",
            remedy="another program may use it; change it in coordinator.json",
        ) from None


def main() -> None:
    """The process that the supervisor starts."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    # Not uvicorn's warnings: a line for whatever a stranger gets wrong would fill the disk.
    for name, level in (("penstock", logging.INFO), ("uvicorn", logging.ERROR)):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(level)
    # Uvicorn ends in order, and then raises the signal that told it to once more.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        serve(Path(sys.argv[1]))
    except PenstockError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

"""``python -m penstock_server.api.serve DIR``: the API over TLS, until SIGTERM."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.errors import CoordinatorError, PenstockError
from penstock_server import service, tls
from penstock_server.api.app import create_app
from penstock_server.folder import Folder

CONNECTIONS = 2000
HEAD_SECONDS = 30.0
STOP_SECONDS = 3
"""For answers that are under way; idle connections may take as long to close."""


class Impatient(H11Protocol):
    """Gives up a connection that has not sent a request's head in time; uvicorn would wait."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


def serve(folder: Path) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        CoordinatorError: no coordinator there, or the port cannot be had.
        InvalidInput: certificate and key are missing, or do not belong together.
    """
    settings = service.read_settings(folder)
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
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=65,  # longer than what proxies keep
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    config.load()
    config.ssl = tls.server_context(Folder(folder).tls)
    with _listening(settings.bind, settings.port) as listener:
        uvicorn.Server(config).run(sockets=[listener])


def _listening(bind: str, port: int) -> socket.socket:
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
    for name, level in (("penstock", logging.INFO), ("uvicorn", logging.WARNING)):
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

"""Web servers on this machine that answer as a test wants."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from penstock.analyst import remote
from penstock.analyst.remote import Remote
from penstock.base.errors import Unreachable
from penstock_server.install import tls

TOKEN = "pst_" + "t" * 43
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


class Server:
    """A web server that runs a function for every request; over TLS if it has certificates."""

    def __init__(self, handle, certificates: Path | None = None) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                outer.seen.append((self.command, self.path, dict(self.headers)))
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                handle(self)

            do_GET = do_POST = do_CONNECT = answer

            def log_message(self, *args) -> None:
                pass

            def say(self, status, body=b"", kind="application/json", **headers) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", headers.pop("length", str(len(body))))
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(body)

            def cut(self) -> None:
                """End the connection as a restart does."""
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, request, client_address) -> None:
                pass  # handshakes that fail are what is tested

        self.httpd = Quiet(("127.0.0.1", 0), Handler)
        self.port = self.httpd.server_address[1]
        if certificates is not None:
            context = tls.server_context(certificates)
            self.httpd.socket = context.wrap_socket(
                self.httpd.socket, server_side=True, do_handshake_on_connect=False
            )
        self.scheme = "http" if certificates is None else "https"
        self.thread = threading.Thread(target=self.httpd.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    def close(self) -> None:
        self.httpd.shutdown()
        self.httpd.server_close()
        self.thread.join()


ME = json.dumps({"name": "ada", "role": "analyst", "expires": "2027-01-01"}).encode()


def polite(handler) -> None:
    handler.say(200, ME)


def failing(url: str, pem: str | None = None) -> Unreachable:
    with Remote(url, TOKEN, ca=pem) as client, pytest.raises(Unreachable) as error:
        client.me()
    assert error.value.exit_code == 11
    assert error.value.remedy
    assert TOKEN not in str(error.value)
    return error.value


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No login, no proxy and no waiting from outside."""
    monkeypatch.setenv("PENSTOCK_CONFIG", str(tmp_path / "config"))
    for name in ("PENSTOCK_COORDINATOR", "PENSTOCK_TOKEN", "PENSTOCK_CA", "PENSTOCK_INSECURE_HTTP"):
        monkeypatch.delenv(name, raising=False)
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.01)


@pytest.fixture
def serve(monkeypatch):
    """Start servers; plain ones are allowed on this machine only, with the ugly flag."""
    monkeypatch.setenv("PENSTOCK_INSECURE_HTTP", "1")
    made = []

    def start(handle, certificates=None) -> Server:
        made.append(Server(handle, certificates))
        return made[-1]

    yield start
    for server in made:
        server.close()


@pytest.fixture
def certificates(tmp_path):
    tls.issue(tmp_path / "tls", ["localhost"])
    return tmp_path / "tls"

"""Why a coordinator cannot be reached: told apart, with what to do."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.support.web_servers import TOKEN, Server, failing, polite

from penstock.analyst import remote
from penstock.analyst.remote import Remote
from penstock.base.errors import Unreachable
from penstock.wire.messages import WIRE_VERSION
from penstock_server.install import tls


def ca(folder: Path) -> str:
    return (folder / "ca.crt").read_text()


def test_a_good_connection(serve, certificates):
    server = serve(polite, certificates)
    with Remote(server.url, TOKEN, ca=ca(certificates)) as client:
        assert client.me()["name"] == "ada"
    method, path, headers = server.seen[0]
    assert (method, path) == ("GET", "/api/v1/me")
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert headers["Penstock-Wire"] == WIRE_VERSION


def test_another_authority(serve, certificates, tmp_path):
    server = serve(polite, certificates)
    tls.issue(tmp_path / "other", ["localhost"])
    for pem in (ca(tmp_path / "other"), None):
        error = failing(server.url, pem)
        assert "authority that is not trusted here" in str(error)
        assert "--ca" in str(error)
        assert not error.passing
    assert not server.seen


def test_another_name(serve, tmp_path):
    tls.issue(tmp_path / "tls", ["elsewhere.example", "10.1.2.3"])
    server = serve(polite, tmp_path / "tls")
    for host in ("localhost", "127.0.0.1"):
        error = failing(f"https://{host}:{server.port}", ca(tmp_path / "tls"))
        assert "for another name" in str(error)
    assert not server.seen


@pytest.mark.parametrize(("days", "words"), [(-500, "has expired"), (5, "is not valid yet")])
def test_a_certificate_of_another_time(serve, tmp_path, days, words):
    moment = datetime.now(UTC)
    # The authority is good at any time, or it would be blamed.
    tls.issue(tmp_path / "tls", ["localhost"], now=moment - timedelta(days=1000))
    tls.issue(tmp_path / "tls", ["localhost"], now=moment + timedelta(days=days))
    error = failing(serve(polite, tmp_path / "tls").url, ca(tmp_path / "tls"))
    assert words in str(error)
    assert "clock" in str(error)


def test_a_port_that_speaks_plain_http(serve):
    server = serve(polite)
    error = failing(f"https://localhost:{server.port}")
    assert "does not speak TLS" in str(error)
    assert "check the port" in str(error)


def test_a_port_where_nobody_is():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    error = failing(f"https://127.0.0.1:{port}")
    assert "nothing answers at that port" in str(error)
    assert error.passing


def test_a_name_that_nobody_has():
    error = failing("https://no-such-host.invalid")
    assert "cannot be found" in str(error)


def test_a_server_that_never_answers(monkeypatch):
    monkeypatch.setattr(remote, "TIMEOUT", remote.httpx.Timeout(0.2))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        error = failing(f"https://127.0.0.1:{listener.getsockname()[1]}")
    assert "in time" in str(error)
    assert error.passing


def through(monkeypatch, server: Server) -> str:
    """An address behind a proxy, with the proxy's password in the environment."""
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:hunter2@127.0.0.1:{server.port}")
    return "https://coordinator.example:8443"


@pytest.mark.parametrize(
    ("status", "words", "passing"),
    [
        (407, "wants a user name and password", False),
        (403, "does not let this connection through", False),
        (502, "makes no connection", True),
    ],
)
def test_a_proxy_that_refuses(serve, monkeypatch, status, words, passing):
    server = serve(lambda handler: handler.say(status, b"<html>no", "text/html"))
    error = failing(through(monkeypatch, server))
    assert words in str(error)
    assert f"through the proxy 127.0.0.1:{server.port}" in str(error)
    assert "hunter2" not in str(error)
    assert error.passing == passing
    assert server.seen[0][:2] == ("CONNECT", "coordinator.example:8443")
    assert "Authorization" not in server.seen[0][2]


def test_no_proxy_stands_before_this_machine(serve, certificates, monkeypatch):
    proxy = serve(lambda handler: handler.say(403))
    through(monkeypatch, proxy)
    server = serve(polite, certificates)
    with Remote(server.url, TOKEN, ca=ca(certificates)) as client:
        assert client.me()["name"] == "ada"
    assert not proxy.seen


def test_a_proxy_that_cannot_be_used(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "gopher://user:hunter2@proxy.example")
    with pytest.raises(Unreachable, match="HTTPS_PROXY") as error:
        Remote("https://coordinator.example", TOKEN)
    assert "hunter2" not in str(error.value)

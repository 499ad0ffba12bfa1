"""The coordinator's port under crowds: who waits, sends slowly or reads slowly holds up nobody."""

from __future__ import annotations

import base64
import contextlib
import resource
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common import constant
from flwr.supercore import constant as supercore
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from tests.integration.test_api import (
    NODES,
    Api,
    SuperLink,
    free_port,
    join,
    running_api,
    sign_call,
)

from penstock_server.api import serve
from penstock_server.install.enrolment import enrol_site
from penstock_server.store.folder import Folder

CROWD = 270
CALL_SECONDS = 2.0


@pytest.fixture(scope="module")
def api():
    with running_api() as made:
        yield made


@pytest.fixture
def superlink(api):
    made = SuperLink(Folder(api.root).superlink_socket)
    yield made
    made.stop()


def opened(api: Api) -> ssl.SSLSocket:
    context = ssl.create_default_context(cadata=api.ca)
    plain = socket.create_connection(("127.0.0.1", api.port), timeout=10)
    return context.wrap_socket(plain, server_hostname="localhost")


def head(path: str, length: int | None, headers: dict[str, str] | None = None) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost"]
    lines += [] if length is None else [f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@contextlib.contextmanager
def closing(crowd: list[socket.socket]) -> Iterator[list[socket.socket]]:
    try:
        yield crowd
    finally:
        for one in crowd:
            one.close()


def seconds(call, *args, **kwargs) -> float:
    began = time.monotonic()
    assert call(*args, **kwargs).status_code == 200
    return time.monotonic() - began


# -- slow bodies -------------------------------------------------------------------------------


@pytest.mark.parametrize("enrolled", [False, True])
def test_slow_bodies_take_no_upstream_slot(api, superlink, enrolled):
    """Each of 270 connections sends one byte of a body; other sites' calls go on."""
    with closing([]) as crowd, api.node("b") as client:
        client.timeout = httpx.Timeout(5.0)
        for _ in range(CROWD):
            one = opened(api)
            signed = sign_call("a") if enrolled else {}
            with contextlib.suppress(OSError):  # a crowd of one site loses its oldest
                one.sendall(head("/v1/fleet/push-object", 100_000, signed) + b"x")
            crowd.append(one)
        calls = [seconds(client.post, "/v1/fleet/pull-messages", content=b"x") for _ in range(10)]
    assert max(calls) < CALL_SECONDS
    assert len(superlink.requests) == len(calls)


def test_a_slow_reader_takes_no_upstream_slot(api, superlink):
    with closing([opened(api)]) as (one,):
        wanted = {**sign_call("a"), "X-Megabytes": "30"}
        one.sendall(head("/v1/fleet/pull-object", 0, wanted))
        Api.until(lambda: superlink.answered == 1, 10)
        assert one.recv(12) == b"HTTP/1.1 200"


def test_chunks_of_one_byte_stall_nobody(api):
    """Read as they come, a megabyte of such chunks would cost two seconds of everybody's time."""
    answers: list[bytes] = []

    def send() -> None:
        with closing([opened(api)]) as (one,), contextlib.suppress(OSError):
            one.sendall(head("/v1/fleet/push-object", None, {"Transfer-Encoding": "chunked"}))
            one.sendall(b"1\r\nx\r\n" * 200_000)
            answers.append(one.recv(12))

    crowd = [threading.Thread(target=send) for _ in range(6)]
    with api.client() as client:
        seconds(client.get, "/api/v1/about")
        for thread in crowd:
            thread.start()
        calls = []
        while any(t.is_alive() for t in crowd) and len(calls) < 200:
            calls.append(seconds(client.get, "/api/v1/about"))
        for thread in crowd:
            thread.join()
        with closing([opened(api)]) as (one,):
            one.sendall(head("/v1/fleet/x", None, {"Transfer-Encoding": "chunked"}))
            assert one.recv(12) == b"HTTP/1.1 411"
    assert max(calls) < 1.0


# -- who is let in -----------------------------------------------------------------------------


def forgeries() -> dict[str, dict[str, str]]:
    stranger = ec.generate_private_key(ec.SECP384R1())
    good = sign_call("a")
    public, stamped = supercore.FLEET_HTTP_PUBLIC_KEY_HEADER, constant.TIMESTAMP_HEADER
    signature = supercore.FLEET_HTTP_SIGNATURE_HEADER
    own = base64.b64encode(public_key_to_bytes(stranger.public_key())).decode()
    forged = base64.b64encode(sign_message(stranger, good[stamped].encode())).decode()
    naive = datetime.now(UTC).replace(tzinfo=None).isoformat()
    return {
        "nothing": {},
        "no signature": {k: v for k, v in good.items() if k != signature},
        "an unknown key": {**good, public: own, signature: forged},
        "another's signature": {**good, signature: forged},
        "another's key": {**good, public: sign_call("b")[public]},
        "an old time": sign_call("a", datetime.now(UTC) - timedelta(seconds=400)),
        "a time to come": sign_call("a", datetime.now(UTC) + timedelta(seconds=60)),
        "another time": {**good, stamped: datetime.now(UTC).isoformat()},
        "no zone": {**good, stamped: naive},
        "no base64": {**good, signature: "%%%"},
        "long": {**good, signature: "A" * 4000},
    }


@pytest.mark.parametrize("what", list(forgeries()))
def test_a_stranger_is_refused_before_a_body(api, superlink, what):
    with closing([opened(api)]) as (one,):
        headers = {**forgeries()[what], "Expect": "100-continue"}
        one.sendall(head("/v1/fleet/pull-messages", 1000, headers))
        assert one.recv(12) == b"HTTP/1.1 401"
    assert not superlink.requests


def test_headers_are_those_of_flower():
    from penstock_server.api import nodes

    assert nodes.KEY.decode() == supercore.FLEET_HTTP_PUBLIC_KEY_HEADER
    assert nodes.SIGNATURE.decode() == supercore.FLEET_HTTP_SIGNATURE_HEADER
    assert nodes.TIMESTAMP.decode() == constant.TIMESTAMP_HEADER
    assert nodes.EARLY_SECONDS == constant.SYSTEM_TIME_TOLERANCE
    assert nodes.OLD_SECONDS == constant.TIMESTAMP_TOLERANCE + constant.SYSTEM_TIME_TOLERANCE


def test_a_site_is_let_in_soon_after_it_is_enrolled(api, superlink):
    assert "c" in NODES
    with api.node("c") as client:
        assert client.post("/v1/fleet/pull-messages", content=b"x").status_code == 401
        enrol_site(api.coordinator, join("c"))
        Api.until(
            lambda: client.post("/v1/fleet/pull-messages", content=b"x").status_code == 200, 10
        )


def test_silent_connections_use_up_nothing(api, superlink):
    """More of them than the process may have files, before any handshake."""
    # The same coordinator's directory, a process of its own.
    limited = ["/bin/sh", "-c", 'ulimit -n 600 && exec "$@"', "sh"]
    api.stop()
    command = [sys.executable, "-m", "penstock_server.api.serve", str(api.root)]
    with open(api.log, "ab") as log:
        api.process = subprocess.Popen([*limited, *command], stdout=log, stderr=log)
    try:
        Api.until(api.answers)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2000)), hard))
        with closing([]) as crowd:
            for _ in range(700):
                crowd.append(socket.create_connection(("127.0.0.1", api.port), timeout=10))
            for _ in range(3):
                with api.node("b") as client:  # each a new connection
                    client.timeout = httpx.Timeout(5.0)
                    spent = seconds(client.post, "/v1/fleet/pull-messages", content=b"x")
                    assert spent < CALL_SECONDS
    finally:
        api.stop()
        api.start()


def test_handshakes_come_one_after_the_other(api):
    """A crowd that begins them together takes a part of the time, and leaves the rest to others."""
    context, count = ssl.create_default_context(cadata=api.ca), 150
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    said = hello.read()
    with closing([]) as crowd, api.client() as client:
        seconds(client.get, "/api/v1/about")
        for _ in range(count):
            crowd.append(socket.create_connection(("127.0.0.1", api.port), timeout=10))
        began = time.monotonic()
        for one in crowd:
            one.sendall(said)
        answered, calls = 0, []
        while answered < count:
            answered = len(select.select(crowd, [], [], 0)[0])
            assert answered <= serve.HANDSHAKES * (time.monotonic() - began) + 2
            calls.append(seconds(client.get, "/api/v1/about"))
    assert max(calls) < CALL_SECONDS


# -- deadlines of a connection -----------------------------------------------------------------


class Small:
    """A server in a thread, with short deadlines."""

    def __init__(self) -> None:
        self.ended = 0
        self.port = free_port()
        config = uvicorn.Config(
            self.app,
            port=self.port,
            http=serve.Impatient,
            ws="none",
            lifespan="off",
            log_config=None,
            interface="asgi3",
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        Api.until(lambda: self.server.started)

    async def app(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/large":
            for _ in range(40):
                await send(
                    {"type": "http.response.body", "body": b"r" * 1_000_000, "more_body": True}
                )
        await send({"type": "http.response.body", "body": b"hello"})
        self.ended += 1

    def connection(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)


@pytest.fixture
def small(monkeypatch):
    for name in ("HEAD_SECONDS", "WRITE_SECONDS", "CLOSE_SECONDS"):
        monkeypatch.setattr(serve, name, 0.3, raising=False)
    monkeypatch.setattr(serve, "TICK_SECONDS", 0.05, raising=False)
    made = Small()
    yield made
    made.server.should_exit = True
    made.thread.join(30)


def answered(one: socket.socket) -> None:
    said = b""
    while not said.endswith(b"0\r\n\r\n"):
        said += one.recv(1000)


def over(one: socket.socket) -> bool:
    try:
        return one.recv(1000) == b""
    except ConnectionResetError:
        return True


def test_the_head_timeout_is_rearmed(small):
    """For every request of a connection: the first was good, the second never ends."""
    with closing([small.connection()]) as (one,):
        for _ in range(3):
            time.sleep(0.2)  # less than a head may take, together more
            one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            answered(one)
        time.sleep(0.5)  # idle between requests is no slow head
        one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answered(one)
        one.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        assert over(one)


def test_a_body_that_goes_on_after_its_answer_is_given_up(small):
    with closing([small.connection()]) as (one,):
        one.sendall(head("/", 1_000_000) + b"x")
        answered(one)
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 4:
                one.sendall(b"x")
                time.sleep(0.1)
        assert time.monotonic() - began < 3


def test_a_reader_that_stops_is_given_up(small):
    with closing([small.connection()]) as (one,):
        one.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        Api.until(lambda: small.ended == 1, 5)
        Api.until(lambda: not small.server.server_state.connections, 5)


def test_a_reader_that_goes_on_is_not_given_up(small):
    """However long its whole answer takes: here, more than one deadline."""
    with closing([small.connection()]) as (one,):
        one.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        got = 0
        while part := one.recv(400_000):
            got += len(part)
            time.sleep(0.01)
    assert got > 40_000_000

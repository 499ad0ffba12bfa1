"""What coordinator and site both need of Flower: its runtime API on a Unix socket, and packets.

Flower's processes listen on TCP. Here they do so on Unix sockets instead: no port to choose or to
clash, and the kernel says who may connect. The calls below are Flower 1.41's own; the pin in
pyproject.toml holds them.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient

from penstock.base.errors import PenstockError

log = logging.getLogger("penstock.flower")

MESSAGE_TYPE = "query.penstock"
SECRET_BYTES = 32
SMALL_BYTES = 2_000_000
CALL_SECONDS = 60.0
PAUSE_LEAST, PAUSE_GROWTH, PAUSE_MOST = 0.05, 1.2, 1.0
"""Seconds between two looks for a task: longer the longer there was none."""
OWN_BYTES = 16
_RECORD, _ARRAY, _OWN = "packet", "bytes", "own"
_ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})

Client = TypeVar("Client", bound=ProtobufClient)


def pack(data: bytes) -> RecordDict:
    """A Flower message's content that carries ``data``; Flower cuts it into pieces of 5 MB."""
    if len(data) < SMALL_BYTES:
        # Three objects to be stored and fetched instead of five; large ones take longer so.
        # Flower keeps equal objects once, and drops them with the first message that arrives: of
        # two sites greeted alike, the other's message would never become whole.
        own = secrets.token_bytes(OWN_BYTES)
        return RecordDict({_RECORD: ConfigRecord({_ARRAY: data, _OWN: own})})
    array = Array(dtype="uint8", shape=(len(data),), stype="penstock", data=data)
    return RecordDict({_RECORD: ArrayRecord({_ARRAY: array})})


def unpack(content: RecordDict) -> bytes:
    """The bytes that :func:`pack` put in.

    Raises:
        PenstockError: another kind of content.
    """
    record = content.get(_RECORD)
    small = record.get(_ARRAY) if isinstance(record, ConfigRecord) else None
    if isinstance(small, bytes):
        return small
    array = record.get(_ARRAY) if isinstance(record, ArrayRecord) else None
    if array is None or array.stype != "penstock":
        raise PenstockError("a Flower message that is none of Penstock's")
    return bytes(array.data)


def make_secret(path: Path) -> None:
    """Write the secret that a runner shows to take tasks (mode 0600), unless there is one."""
    import os

    if not path.exists():
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))


def make_unix_client(
    kind: type[Client], socket: Path, component: str, *interceptors: Any
) -> Client:
    """A Flower API client that speaks over a Unix socket instead of TCP."""
    client = kind(
        "http://flower",
        verify=False,  # no TLS on a Unix socket: what it would load takes 20 ms a client
        interceptors=[RuntimeVersionHttpInterceptor(component_name=component), *interceptors],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    client._client.close()
    # An explicit transport also keeps proxies of the environment out of it.
    client._client = httpx.Client(
        transport=httpx.HTTPTransport(uds=str(socket), verify=False), timeout=CALL_SECONDS
    )
    return client


def make_task_client(socket: Path, component: str, token: str) -> RuntimeHttpClient:
    """A client that acts for one task."""
    return make_unix_client(
        RuntimeHttpClient, socket, component, RuntimeTokenHttpInterceptor(token)
    )


def acquire(
    socket: Path,
    component: str,
    secret: bytes,
    kind: str,
    *,
    stop: Callable[[], bool],
) -> Iterator[str]:
    """Tokens of tasks of one kind, as they come, until ``stop()``."""
    pause = PAUSE_LEAST
    auth = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_ACQUIRE)
    client = make_unix_client(RuntimeHttpClient, socket, component, auth)
    try:
        while not stop():
            # Only this kind: tasks of agents, models and connectors are never taken.
            began = time.monotonic()
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
            if found.HasField("task") and found.token:
                yield found.token
                pause = PAUSE_LEAST
            else:
                # Who was kept waiting for a task need not wait once more.
                if time.monotonic() - began >= PAUSE_MOST:
                    pause = PAUSE_LEAST
                time.sleep(pause)
                pause = min(pause * PAUSE_GROWTH, PAUSE_MOST)
    finally:
        client.close()


@contextmanager
def keep_beating(client: RuntimeHttpClient) -> Iterator[None]:
    """Keep a task alive while it is worked on."""
    sender = HeartbeatSender(make_task_heartbeat_fn_http(client))
    sender.start()
    try:
        yield
    finally:
        if sender.is_running:
            sender.stop()


def wait_for(socket: Path, *, stop: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until somebody listens on a socket.

    Raises:
        PenstockError: nobody came.
    """
    end = time.monotonic() + seconds
    transport = httpx.HTTPTransport(uds=str(socket))
    with httpx.Client(transport=transport, timeout=5.0) as client:
        while not stop():
            try:
                client.get("http://flower/health")
                return
            except httpx.TransportError:
                if time.monotonic() > end:
                    raise PenstockError("nobody listens on the socket", value=socket) from None
                time.sleep(0.1)

"""A crowd at the coordinator's port while a study runs: what other sites' calls notice of it.

`penstock server start` runs in a temporary directory on a free loopback port. Four sites have real
network sides (SuperNode and runner; the gate is a stub that serves made-up releases), and deliver a
study of 5 MB a site, once in peace and once in the crowd. A fifth site is a node on Flower's own
connection that asks for messages five times a second: how long each such call takes, repetitions by
Flower included, is what is measured. The crowd is a process of its own:

- 270 connections of a stranger send one byte of a body every ten seconds. As long as bodies were
  passed on while they came, these took every connection to the SuperLink, and all sites got 504.
- 270 the same, signed with the stolen key of an enrolled site.
- 300 connect and say nothing, 100 send a head byte by byte, 10 send chunks of one byte.

Whoever is put out is back after ten seconds. Everything shares one machine, and its few cores, with
whatever else runs there.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from tests.benchmarks.network import MANY, REAL, World, running
from tests.benchmarks.network_sites import COLUMNS, SiteFolder, claims, connected, table
from tests.support.results import Row, write

PROBE, STOLEN = MANY[0], MANY[1]
COPIES = 10
LEAST_SECONDS, MOST_SECONDS = 30.0, 150.0
CALL_SECONDS = 2.0
PAUSE_SECONDS = 0.2

SLOW, SILENT, HEADS, CHUNKS = 270, 300, 100, 10
BYTE_SECONDS = BACK_SECONDS = 10.0
MOST_CONNECTIONS = 20_000


# -- the crowd ---------------------------------------------------------------------------------


class Crowd:
    """Many connections to a port of this machine, for a while."""

    def __init__(self, port: int, node_key: Path) -> None:
        self.port, self.opened, self.held = port, 0, 0
        self._context = ssl.create_default_context()
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        self._key: Any = load_ssh_private_key(node_key.read_bytes(), None)

    async def come(self, seconds: float) -> None:
        """All of them at once, and again whoever was put out."""
        kinds = (
            (SLOW, self._slow),
            (SLOW, self._slow_and_signed),
            (SILENT, self._silent),
            (HEADS, self._head),
            (CHUNKS, self._chunks),
        )
        tasks = [
            asyncio.create_task(self._again(kind)) for count, kind in kinds for _ in range(count)
        ]
        await asyncio.sleep(seconds)
        sys.stdout.write(f"{self.opened} {self.held}\n")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _again(self, kind: Callable[[], Awaitable[None]]) -> None:
        while self.opened < MOST_CONNECTIONS:
            self.opened += 1
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await kind()
            await asyncio.sleep(BACK_SECONDS)

    @contextlib.asynccontextmanager
    async def _connected(self, *, tls: bool = True) -> Any:
        context = self._context if tls else None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        self.held += 1
        try:
            yield reader, writer
        finally:
            self.held -= 1
            writer.transport.abort()

    async def _drip(self, first: bytes) -> None:
        """Some bytes, then one at a time until the other side has enough."""
        async with self._connected() as (reader, writer):
            writer.write(first)
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BYTE_SECONDS):
                        await reader.read(1000)
                        return
                writer.write(b"x")

    async def _slow(self) -> None:
        await self._drip(_head("Content-Length: 1000000") + b"x")

    async def _slow_and_signed(self) -> None:
        await self._drip(_head("Content-Length: 1000000", *self._signed()) + b"x")

    async def _head(self) -> None:
        await self._drip(_head("X-Slow: ")[:-4])

    async def _chunks(self) -> None:
        async with self._connected() as (reader, writer):
            writer.write(_head("Transfer-Encoding: chunked") + b"1\r\nx\r\n" * 200_000)
            await writer.drain()
            await reader.read()

    async def _silent(self) -> None:
        async with self._connected(tls=False) as (reader, _):
            await reader.read()

    def _signed(self) -> Iterator[str]:
        stamp = datetime.now(UTC).isoformat()
        signature = sign_message(self._key, stamp.encode())
        yield f"flwr-public-key: {_word(public_key_to_bytes(self._key.public_key()))}"
        yield f"flwr-timestamp: {stamp}"
        yield f"flwr-signature: {_word(signature)}"


def _word(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _head(*headers: str) -> bytes:
    lines = ("POST /v1/fleet/push-object HTTP/1.1", "Host: localhost", *headers, "", "")
    return "\r\n".join(lines).encode()


# -- the sites ---------------------------------------------------------------------------------


class Probe:
    """A site that asks for messages all the time."""

    def __init__(self, folder: SiteFolder) -> None:
        self.calls: list[float] = []
        self.failed = 0
        self._folder, self._stop = folder, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        with connected(self._folder) as (_, receive, *_rest):
            while not self._stop.wait(PAUSE_SECONDS):
                began = time.monotonic()
                try:
                    receive()
                except Exception:
                    self.failed += 1
                self.calls.append(time.monotonic() - began)


def study_seconds(world: World, name: str) -> float:
    """How long a study of the four sites takes, from its submission until all have delivered."""
    began = time.time()
    study = world.submit(REAL, COLUMNS, COPIES, name)
    return max(world.delivered([study], MOST_SECONDS).values()) - began


def rows_of(name: str, calls: list[float], failed: int, *, bound: bool) -> list[Row]:
    n, worst = len(calls), max(calls)
    target = CALL_SECONDS if bound else None
    return [
        Row(f"{name}: a call (s, median)", float(np.median(calls)), None, n),
        Row(f"{name}: a call (s, 99%)", float(np.quantile(calls, 0.99)), None, n),
        Row(f"{name}: a call (s, longest)", worst, None, n, target, holds=_holds(worst, target)),
        Row(f"{name}: calls that failed", failed, None, n, 0 if bound else None,
            holds=_holds(failed, 0 if bound else None)),
    ]  # fmt: skip


def _holds(value: float, target: float | None) -> bool | None:
    return None if target is None else value <= target


def measure(world: World, seconds: float = LEAST_SECONDS) -> list[Row]:
    """One study in peace, one in the crowd."""
    claims()
    table(COLUMNS, COPIES)
    start = ("penstock", "server", "start", "-d", str(world.folder.root))
    with (
        running(*start, home=world.folder.home, log=world.root / "server.log"),
        contextlib.ExitStack() as sites,
    ):
        for name in REAL:
            sites.enter_context(world.network(name))
        world.online(REAL, 90)
        with Probe(world.sites[PROBE]) as peace:
            quiet = study_seconds(world, "quiet")
            time.sleep(seconds / 3)
        output = world.root / "crowd.log"
        arguments = (
            str(world.sites[PROBE].network.read_coordinator().address.rpartition(":")[2]),
            str(world.sites[STOLEN].network.node_key),
        )
        began = time.monotonic()
        with (
            Probe(world.sites[MANY[2]]) as probe,
            running(
                "tests.studies.stall", *arguments, str(seconds), home=world.root, log=output
            ) as crowd,
        ):
            time.sleep(seconds / 5)
            stalled = study_seconds(world, "stalled")
            crowd.wait(MOST_SECONDS)
        spent = time.monotonic() - began
    opened, held = output.read_text().split()[-2:]
    return [
        *rows_of("in peace", peace.calls, peace.failed, bound=False),
        *rows_of("in the crowd", probe.calls, probe.failed, bound=True),
        Row("in peace: the study has ended after (s)", quiet, None, 1),
        Row("in the crowd: the study has ended after (s)", stalled, None, 1, MOST_SECONDS,
            holds=_holds(stalled, MOST_SECONDS)),
        Row("the crowd: connections made", float(opened), None, 1),
        Row("the crowd: connections that it held at the end", float(held), None, 1),
        Row("the crowd: lasted (s)", spent, None, 1),
    ]  # fmt: skip


def run() -> Path:
    """Measure, in under three minutes; Linux only."""
    root = Path(tempfile.mkdtemp(prefix="pn"))
    try:
        rows = measure(World(root))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return write("stall", rows, f"{(__doc__ or '').strip()}\n\n{os.cpu_count()} cores.")


if __name__ == "__main__":
    port, node_key, lasting = sys.argv[1:]
    asyncio.run(Crowd(int(port), Path(node_key)).come(float(lasting)))

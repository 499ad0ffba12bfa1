"""Bodies as they come from outside: bounded in size and in time, and together bounded on disk."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread
from starlette.types import Receive

BASE_SECONDS = 20.0
RATE = 16 << 10
"""Bytes a second: the least at which a body may come, after the first ``BASE_SECONDS``."""
LONGEST_SECONDS = 240.0
"""However much comes. A node's signature is good for 300 s, so none may take longer."""

QUOTA = 512 << 20
SHARE = 128 << 20
SMALL = 64 << 10
"""Bodies up to here stay in memory and need no room: heartbeats pass when the disk is full."""
WAIT_SECONDS = 10.0
_PIECE = 256 << 10


class TooLarge(Exception):
    """More bytes than there may be."""


class Gone(Exception):
    """Whoever sent it has left."""


class Full(Exception):
    """No room came free in time."""


def allowed_seconds(size: int) -> float:
    """How long ``size`` bytes may take: min(base + size / rate, longest)."""
    return min(BASE_SECONDS + size / RATE, LONGEST_SECONDS)


async def read_paced(receive: Receive, limit: int) -> AsyncIterator[bytes]:
    """A request's body as it comes: at most ``limit`` bytes, at the least rate.

    At every moment t after the start, bytes/RATE + BASE_SECONDS ≥ t has to hold, and
    t ≤ LONGEST_SECONDS: whoever stops is given up after seconds, however much was announced.

    Raises:
        TooLarge: beyond the limit; nothing beyond it was kept.
        TimeoutError: too slow.
        Gone: the connection ended before the body did.
    """
    began, size, more = asyncio.get_running_loop().time(), 0, True
    while more:
        async with asyncio.timeout_at(began + allowed_seconds(size)):
            message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(part)
        if size > limit:
            raise TooLarge
        if part:
            yield part


class Kept:
    """One body: in memory, or in a file that has no name."""

    def __init__(self, file: IO[bytes] | None, threads: anyio.CapacityLimiter, room: int) -> None:
        self.size = 0
        self._file, self._threads, self._room = file, threads, room
        self._buffer = bytearray()

    async def write(self, part: bytes) -> None:
        """Append.

        Raises:
            TooLarge: more than room was taken for.
        """
        if self.size + len(part) > self._room:
            raise TooLarge
        self._buffer += part
        self.size += len(part)
        if self._file is not None and len(self._buffer) >= _PIECE:
            await self._flush(self._file)

    async def parts(self) -> AsyncIterator[bytes]:
        """All of it, from the start."""
        if self._file is None:
            yield bytes(self._buffer)
            return
        await self._flush(self._file)
        for at in range(0, self.size, _PIECE):
            yield await anyio.to_thread.run_sync(
                os.pread, self._file.fileno(), _PIECE, at, limiter=self._threads
            )

    async def _flush(self, file: IO[bytes]) -> None:
        # In a thread: a disk that is slow must not hold up everybody.
        data, self._buffer = self._buffer, bytearray()
        await anyio.to_thread.run_sync(_write, file, data, limiter=self._threads)


class Spool:
    """Where bodies wait until they are whole: ``quota`` bytes together, ``share`` for one owner.

    The files are unlinked before their first byte, so that none outlives the process.
    """

    def __init__(self, folder: Path, quota: int = QUOTA, share: int = SHARE) -> None:
        self.used = 0
        self._folder, self._quota, self._share = folder, quota, share
        self._of: Counter[str] = Counter()
        self._changed = asyncio.Condition()
        self._threads = anyio.CapacityLimiter(4)

    def clean(self) -> None:
        """Make the folder, closed to others, and remove what may lie there.

        A file has a name only where the system cannot make one without, and then for a moment.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        for path in self._folder.iterdir():
            path.unlink(missing_ok=True)

    @asynccontextmanager
    async def room(self, size: int, owner: str) -> AsyncIterator[Kept]:
        """Room for a body of at most ``size`` bytes, until the block ends.

        Raises:
            Full: none within ``WAIT_SECONDS``.
        """
        if size <= SMALL:
            yield Kept(None, self._threads, size)
            return
        if size > min(self._quota, self._share):
            raise Full
        await self._take(size, owner)
        try:
            # Mode 0600; without a name from the beginning where the system can (O_TMPFILE).
            with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
                yield Kept(file, self._threads, size)
        finally:
            await asyncio.shield(self._give(size, owner))

    async def _take(self, size: int, owner: str) -> None:
        def fits() -> bool:
            return self.used + size <= self._quota and self._of[owner] + size <= self._share

        try:
            async with asyncio.timeout(WAIT_SECONDS), self._changed:
                await self._changed.wait_for(fits)
                self.used += size
                self._of[owner] += size
        except TimeoutError:
            raise Full from None

    async def _give(self, size: int, owner: str) -> None:
        async with self._changed:
            self.used -= size
            self._of[owner] -= size
            if not self._of[owner]:
                del self._of[owner]
            self._changed.notify_all()


def _write(file: IO[bytes], data: bytearray) -> None:
    view = memoryview(data)
    while view:  # a raw file may take less
        view = view[file.write(view) :]

"""Which enrolled site sends a call of the fleet: known from its head, before any of its body.

Flower's SuperNode signs the time of every call, and sends its public key, the time and the
signature as headers. The SuperLink checks them once more, and that the node named in the body is
that key's; here they decide who gets as far as having a body read.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import anyio.to_thread
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from penstock.base.errors import PenstockError
from penstock.base.times import read_stamp, utc_now

log = logging.getLogger("penstock.api")

# As in flwr 1.41, which the api need not import; a test holds them together.
KEY, SIGNATURE, TIMESTAMP = b"flwr-public-key", b"flwr-signature", b"flwr-timestamp"
OLD_SECONDS = 305.0
EARLY_SECONDS = 5.0

READ_SECONDS = 30.0
"""After so long the enrolled keys are read again."""
MISS_SECONDS = 2.0
"""The same, when a key is not among them."""
_MAX_HEADER = 1000


@dataclass(frozen=True, slots=True)
class _Node:
    site: str
    key: ec.EllipticCurvePublicKey


class Nodes:
    """The enrolled sites' keys.

    Args:
        lines: reads each site's public key, as OpenSSH writes it; may block.
        clock: seconds that never go back.
    """

    def __init__(
        self, lines: Callable[[], Mapping[str, str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines, self._clock = lines, clock
        self._nodes: dict[bytes, _Node] | None = None
        self._read = float("-inf")
        self._reading = asyncio.Lock()

    async def site(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """The site that signed a request's head just now; None if no enrolled one did.

        Raises:
            PenstockError: the keys cannot be read, and never were.
        """
        found = _read_claims(list(headers))
        if found is None:
            return None
        public, stamp, signature = found
        age = (utc_now() - stamp[0]).total_seconds()
        if not -EARLY_SECONDS < age < OLD_SECONDS:
            return None
        node = await self._find_node(public)
        if node is None:
            return None
        try:
            node.key.verify(signature, stamp[1], ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return None
        return node.site

    async def _find_node(self, public: bytes) -> _Node | None:
        if self._is_due(public):
            async with self._reading:
                if self._is_due(public):  # not read while this one waited
                    await self._read_again()
        return (self._nodes or {}).get(public)

    def _is_due(self, public: bytes) -> bool:
        age = self._clock() - self._read
        return age > (READ_SECONDS if public in (self._nodes or {}) else MISS_SECONDS)

    async def _read_again(self) -> None:
        try:
            lines = await anyio.to_thread.run_sync(self._lines)
        except PenstockError as error:
            if self._nodes is None:
                raise
            # Who was enrolled a moment ago still is; the SuperLink has its own list.
            log.warning("the enrolled keys cannot be read: %s", type(error).__name__)
        else:
            self._nodes = _parse_nodes(lines)
        self._read = self._clock()


def _parse_nodes(lines: Mapping[str, str]) -> dict[bytes, _Node]:
    """Nodes by their key as Flower sends it; a key that is none opens nothing."""
    found: dict[bytes, _Node] = {}
    for site, line in lines.items():
        try:
            key = load_ssh_public_key(line.encode())
        except (ValueError, UnsupportedAlgorithm):
            continue
        if isinstance(key, ec.EllipticCurvePublicKey):
            pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            found[pem] = _Node(site, key)
    return found


def _read_claims(
    headers: Sequence[tuple[bytes, bytes]],
) -> tuple[bytes, tuple[datetime, bytes], bytes] | None:
    """Key, time and signature of a head; None if any is missing, twice there, or malformed."""
    values: list[bytes] = []
    for wanted in (KEY, TIMESTAMP, SIGNATURE):
        given = [value for name, value in headers if name.lower() == wanted]
        if len(given) != 1 or len(given[0]) > _MAX_HEADER:
            return None
        values += given
    public, stamp, signature = values
    try:
        moment = read_stamp(stamp.decode("ascii"))
        return (
            base64.b64decode(public, validate=True),
            (moment, stamp),
            base64.b64decode(signature, validate=True),
        )
    except ValueError:
        return None

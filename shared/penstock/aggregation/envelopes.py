"""Messages with binary parts: a canonical JSON header, then the parts as they are.

``length of the header (4 bytes, big-endian) | header | part | part | ...``; the header holds the
message's *head* (facts), the parts' sizes and, where a site speaks, its gate key's signature over
the head and the parts' SHA-256. A message has one form in bytes: a header that is not canonical is
refused, and so are bytes behind the last part.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.aggregation.roster import Roster
from penstock.base.checks import shown
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, UploadRejected
from penstock.base.shapes import find_misfit
from penstock.wire.canonical import canonical, read_json
from penstock.wire.signatures import sign, verify

_LENGTH = 4
_SIGNATURE = re.compile(r"(?:[0-9a-f]{128})?")
MAX_HEADER_BYTES = 2**18
MAX_PARTS = 2048


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message that was taken apart, with nothing but its form checked yet."""

    head: Json
    parts: tuple[bytes, ...]
    signature: str

    def take(self, what: str, **kinds: type) -> None:
        """Check that the head has these fields, of these kinds, and no other.

        Raises:
            UploadRejected: it has not.
        """
        if set(self.head) != set(kinds) or find_misfit(self.head, kinds) is not None:
            raise UploadRejected(
                f"the fields of this {what} are not its own",
                value=", ".join(shown(name) for name in sorted(self.head)[:20]),
                bound=", ".join(sorted(kinds)),
            )


def pack_parts(head: Json, parts: Sequence[bytes], signature: str = "") -> bytes:
    """A message as bytes; without a signature where the coordinator speaks."""
    record = {"head": head, "parts": [len(part) for part in parts], "signature": signature}
    header = canonical(record)
    return b"".join([len(header).to_bytes(_LENGTH, "big"), header, *parts])


def unpack_parts(data: bytes, what: str, limit: int) -> Envelope:
    """Take a stranger's message apart.

    Raises:
        UploadRejected: larger than ``limit`` bytes, or not such a message.
    """
    if len(data) > limit:
        raise UploadRejected(
            f"this {what} is too large", value=f"{len(data)} bytes", bound=f"at most {limit}"
        )
    end = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
    header = data[_LENGTH:end]
    try:
        record = read_json(header, what=what, limit=MAX_HEADER_BYTES)
    except InvalidInput as error:
        raise UploadRejected(f"this {what} cannot be read", value=error.problems[0]) from None
    head, sizes, signature = (record.get(name) for name in ("head", "parts", "signature"))
    if not (
        len(record) == 3
        and isinstance(head, dict)
        and isinstance(sizes, list)
        and len(sizes) <= MAX_PARTS
        and all(type(size) is int and 0 <= size <= limit for size in sizes)
        and isinstance(signature, str)
        and _SIGNATURE.fullmatch(signature)  # hexadecimal digits have two cases
        and canonical(record) == header
        and end + sum(sizes) == len(data)
    ):
        raise UploadRejected(f"this {what} is not in its one form")
    parts = []
    for size in sizes:
        parts.append(data[end : end + size])
        end += size
    return Envelope(head, tuple(parts), signature)


def sign_parts(
    purpose: str,
    key: Ed25519PrivateKey,
    roster: Roster,
    site: str,
    head: Json,
    parts: Sequence[bytes],
) -> bytes:
    """A site's message: its name and the roster's digest are put into the head, and signed."""
    whole = {**head, "roster": roster.digest, "site": site}
    return pack_parts(whole, parts, sign(key, purpose, _signed(whole, parts)))


def read_signed(purpose: str, roster: Roster, data: bytes, limit: int) -> tuple[str, Envelope]:
    """A site's message, its signature verified with the key that the roster has for it.

    Returns:
        the site, and the message without what :func:`sign_parts` put into its head.

    Raises:
        UploadRejected: not such a message, of another study or roster, or of a stranger.
        SignatureError: not signed by that site's gate.
    """
    found = unpack_parts(data, purpose, limit)
    head = dict(found.head)
    site = head.pop("site", None)
    if not isinstance(site, str) or site not in roster.sites:
        raise UploadRejected(f"this {purpose} is of no site of the study", value=shown(site))
    if head.pop("roster", None) != roster.digest:
        raise UploadRejected(f"this {purpose} is of another study or other sites", value=site)
    verify(roster.key(site), purpose, _signed(found.head, found.parts), found.signature)
    return site, Envelope(head, found.parts, found.signature)


def _signed(head: Json, parts: Sequence[bytes]) -> bytes:
    return canonical({"head": head, "parts": [hashlib.sha256(part).hexdigest() for part in parts]})


def check_names(names: object, roster: Roster, what: str) -> tuple[str, ...]:
    """Sites of the roster, in its order, each once.

    Raises:
        UploadRejected: anything else.
    """
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        listed = tuple(names)
        if listed == roster.sort(set(listed)):
            return listed
    raise UploadRejected(f"{what} are not sites of the study in their order", value=shown(names))

"""Who came to the coordinator, and what they did or read: append-only, hash-chained, signed.

A record is canonical JSON ``{seq, prev, time, kind, …}``; its hash is SHA-256 of those bytes, and
the hash is signed with the coordinator's own key (``access.key``), under the purpose
``access-record``. ``prev`` is the hash of the record before, 64 zeros for the first; ``seq`` rises
by one from 1; ``time`` (UTC, microseconds) never runs backwards. Kinds, and their fields:

============  ======================================================================
open          ``key``, ``id``: the chain's birth; its own signing key, a random id
key           ``key``: the key before was lost; this record, and all after it, by another
token-add     ``account``, ``role``, ``expires``
token-revoke  ``account``
key-add       ``account``, ``key``: a signing key is bound to an account
key-remove    ``account``, ``key``
enrol         ``site``, ``persons``, ``gate_key``
submit        ``study``, ``name``, ``signer``, ``readers``
cancel        ``study``
close         ``study``: its results are made of what was delivered, before its deadline
pool          ``study``: its results, which could not be made, are to be made again
read          ``study``, ``what`` (a file's name, ``uploads/SITE``, or ``*``), ``copies``
wrong-tokens  ``since``, ``until``, ``count``, ``addresses`` (``address`` and ``count`` of the most
              frequent), ``others`` (how many more addresses), ``ended`` (``account`` and
              ``count`` of tokens that were good once): tries with a token that opens nothing
============  ======================================================================

All but open, key and wrong-tokens say who: ``by`` (an account, empty for whoever holds the
directory) and ``origin`` (an address, or a user of this machine). What changes the store is
recorded in the transaction that changes it. A result is read only after its record is written;
what cannot be recorded is not shown. The same account reading the same file from the same address
again within ten minutes (a download that goes on, say) is one record.

An export is ``{"format": "penstock-access-1", "coordinator_key": HEX, "records": [{"body", "hash",
"signature"}, …]}``, of the same shape as a site's ledger. A chain cannot show that records were cut
off at its end: compare the head with an earlier export.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.base.documents import Json, JsonView
from penstock.base.errors import CoordinatorError, PenstockError, SignatureError
from penstock.base.files import write_atomic
from penstock.wire.canonical import canonical, read_json
from penstock.wire.signatures import (
    generate_key,
    private_from_pem,
    private_to_pem,
    public_hex,
    sign,
    verify,
)
from penstock_server.store.access_rows import Row
from penstock_server.store.database import Transaction, Within
from penstock_server.store.store import Store

RECORD = "access-record"
FORMAT = "penstock-access-1"
GENESIS = "0" * 64
MAX_RECORD_BYTES = 1_000_000


class Unrecorded(CoordinatorError):
    """A record cannot be written: then what it would tell of does not happen."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who does something.

    Attributes:
        account: the token's; empty for whoever holds the coordinator's directory.
        origin: the address that it came from, or the user of this machine.
    """

    account: str
    origin: str

    @property
    def fields(self) -> dict[str, str]:
        """As a record has them."""
        return {"by": self.account, "origin": self.origin}


def name_local_visitor() -> Visitor:
    """Whoever runs this process, at the coordinator's own machine."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name  # not the environment's, which anybody may set
    except KeyError:  # an id without a name, as in containers
        user = str(os.getuid())
    return Visitor("", f"user {user} of this machine")


class AccessLog:
    """The chain of a store. Any process may write: a transaction sees the record before its own.

    Args:
        key: the file of the signing key (0600); made with the first record.
        clock: RFC 3339 UTC with microseconds.
    """

    def __init__(self, store: Store, key: Path, clock: Callable[[], str]) -> None:
        self._store = store
        self._file = key
        self._clock = clock

    # -- writing -------------------------------------------------------------------------------

    def append(self, c: Transaction, kind: str, /, **fields: object) -> None:
        """Write a record within a transaction.

        Raises:
            Unrecorded: the key is gone, or not the one that the chain was signed with.
        """
        self._store.values.lock(c)
        last = self._store.records.last(c)
        key = self._read_key(last)  # every time: another process may have renewed it
        if last is None:
            opened = {"id": secrets.token_hex(16), "key": public_hex(key)}
            last = self._write_record(c, key, None, "open", opened)
        self._write_record(c, key, last, kind, fields)

    def write(self, kind: str, /, **fields: object) -> None:
        """Write a record in a transaction of its own; it is durable when this returns.

        Raises:
            CoordinatorError: it cannot be written.
        """
        with self._store.begin() as c:
            self.append(c, kind, **fields)

    def within(self, kind: str, /, **fields: object) -> Within:
        """A record that is written with the change it tells of, or not at all."""
        return lambda c: self.append(c, kind, **fields)

    def renew_key(self) -> str:
        """Go on with a new key after the old one was lost; returns its public half.

        Raises:
            CoordinatorError: there is a key.
        """
        if self._file.exists():
            remedy = "move it away first, if it is lost in truth"
            raise CoordinatorError("there is a key", value=self._file, remedy=remedy)
        with self._store.begin() as c:
            self._store.values.lock(c)
            last = self._store.records.last(c)
            key = self._make_key()
            if last is not None:
                self._write_record(c, key, last, "key", {"key": public_hex(key)})
        return public_hex(key)

    def _write_record(
        self,
        c: Transaction,
        key: Ed25519PrivateKey,
        last: Row | None,
        kind: str,
        fields: JsonView,
    ) -> Row:
        before: Json = {"seq": 0, "time": ""} if last is None else _parse_body(last.body)
        seq, time = before["seq"] + 1, max(self._clock(), before["time"])
        prev = GENESIS if last is None else last.hash
        body = canonical({**fields, "kind": kind, "prev": prev, "seq": seq, "time": time})
        hash_ = hashlib.sha256(body).hexdigest()
        row = Row(body.decode(), hash_, sign(key, RECORD, hash_.encode()))
        self._store.records.add(c, seq, row)
        return row

    def _read_key(self, last: Row | None) -> Ed25519PrivateKey:
        """The key in the file, which must be the one that the last record was signed with."""
        remedy = "restore it from a backup; if it is lost: `penstock server access --new-key`"
        if not self._file.exists():
            if last is None:
                return self._make_key()
            raise Unrecorded("the access log's key is gone", value=self._file, remedy=remedy)
        try:
            key = private_from_pem(self._file.read_bytes())
        except (SignatureError, OSError):
            what = "the access log's key cannot be read"
            raise Unrecorded(what, value=self._file, remedy=remedy) from None
        if last is not None:
            try:
                verify(public_hex(key), RECORD, last.hash.encode(), last.signature)
            except SignatureError:
                what = "the access log was signed with another key"
                raise Unrecorded(what, value=self._file, remedy=remedy) from None
        return key

    def _make_key(self) -> Ed25519PrivateKey:
        key = generate_key()
        # The records that it signs are durable: so is the key, also after a power cut.
        write_atomic(self._file, private_to_pem(key))
        return key

    # -- reading -------------------------------------------------------------------------------

    def check_key(self) -> None:
        """Whether records can be signed; makes no key.

        Raises:
            Unrecorded: the key is gone, or another.
        """
        with self._store.reading() as c:
            last = self._store.records.last(c)
        if last is not None:
            self._read_key(last)

    def rows(self) -> list[Row]:
        """Every record's body, hash and signature, in order."""
        return self._store.records.all()

    def export(self) -> Json:
        """The whole chain as a JSON document that a third party can verify.

        Raises:
            CoordinatorError: it does not verify.
        """
        rows = self.rows()
        checked = verify_chain(rows)
        return {
            "format": FORMAT,
            "coordinator_key": checked[0]["key"] if checked else "",
            "records": [{"body": b, "hash": h, "signature": s} for b, h, s in rows],
        }

    def wrong_tokens(self, since: str) -> int:
        """How many wrong tokens were tried after ``since``; the chain is not verified for it."""
        tallies = self._store.records.bodies_with('"kind":"wrong-tokens"')
        found = (_parse_body(body) for body in tallies)
        return sum(r["count"] for r in found if r["kind"] == "wrong-tokens" and r["until"] > since)


def verify_chain(rows: Sequence[Row]) -> list[Json]:
    """The records of a chain, each checked: its hash, place, time and signature.

    Raises:
        CoordinatorError: naming the first record that fails.
    """
    found: list[Json] = []
    head, time, key = GENESIS, "", ""
    for seq, (body, hash_, signature) in enumerate(rows, start=1):
        try:
            record = _parse_body(body)
            if hashlib.sha256(body.encode()).hexdigest() != hash_:
                raise _make_broken(seq, "its text was changed")
            if record["seq"] != seq or record["prev"] != head:
                raise _make_broken(seq, "it does not follow the one before")
            if record["time"] < time:
                raise _make_broken(seq, "its time runs backwards")
            if (seq == 1) != (record["kind"] == "open"):
                raise _make_broken(seq, "a chain opens once, with its first record")
            key = record["key"] if record["kind"] in ("open", "key") else key
            verify(key, RECORD, hash_.encode(), signature)
        except SignatureError:
            raise _make_broken(seq, "its signature is not the coordinator's") from None
        except CoordinatorError:
            raise
        except (PenstockError, LookupError, TypeError, ValueError) as error:
            raise _make_broken(seq, f"it cannot be read ({type(error).__name__})") from None
        found.append(record)
        head, time = hash_, record["time"]
    return found


def _make_broken(seq: int, what: str) -> CoordinatorError:
    remedy = "compare with an earlier export; nothing was overwritten"
    return CoordinatorError(f"access record {seq}: {what}", remedy=remedy)


def _parse_body(body: str) -> Json:
    return read_json(body.encode(), what="access record", limit=MAX_RECORD_BYTES)

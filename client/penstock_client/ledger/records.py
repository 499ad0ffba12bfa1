"""Signed records, each bound to the one before it: how the ledger is read, checked and appended to.

What the records mean is in :mod:`penstock_client.ledger.chain`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.base.documents import Json
from penstock.base.errors import LedgerError, SignatureError
from penstock.base.times import stamp_now
from penstock.privacy.events import RELATION
from penstock.wire.canonical import canonical
from penstock.wire.signatures import sign, verify
from penstock_client.ledger.chain import (
    FORMAT,
    apply_record,
    find_next_seq,
    fold_records,
    report_corrupt,
)
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import GENESIS, State

RECORD = "ledger-record"
EXPORT_FORMAT = "penstock-ledger-1"


class SignedRecords:
    """Records in a :class:`~penstock_client.ledger.sqlite_file.Database`, whatever they say.

    Args:
        database: open for writing, under the site's lock; read-only suffices for reading.
        key: the gate's signing key, or None for reading only.
        clock: returns RFC 3339 UTC; the ledger's time never runs backwards, whatever it says.
    """

    def __init__(
        self,
        database: Database,
        key: Ed25519PrivateKey | None,
        clock: Callable[[], str] = stamp_now,
    ) -> None:
        self.database = database
        self._key = key
        self._clock = clock
        # The file's version when it was folded last, and what it folded to.
        self._folded: tuple[int, State] | None = None

    # -- reading -------------------------------------------------------------------------------

    def records(self) -> list[tuple[int, str, str, str]]:
        """(seq, body, hash, signature) in order."""
        rows = self.database.query("SELECT seq, body, hash, signature FROM record ORDER BY seq")
        return [(int(str(a)), str(b), str(c), str(d)) for a, b, c, d in rows]

    def state(self) -> State:
        """What the records fold to, with the hash chain checked.

        What was folded before is folded on: only while no other connection has written, and the
        file still holds the record that it ended with (a transaction may have been undone).
        Otherwise all is folded anew.

        Raises:
            LedgerCorrupt: a record is missing, changed, or makes no sense.
        """
        version = self.database.version()  # first: a write in between is seen at the next call
        before = self._folded  # once: another thread may replace it
        known = before[1] if before and before[0] == version else State()
        rows = self._tail(known.seq)
        if known.seq:
            if rows and (rows[0][0], rows[0][2]) == (known.seq, known.head):
                rows = rows[1:]
            else:
                known, rows = State(), self._tail(0)
        state = fold_records(rows, known)
        self._folded = version, state
        return state

    def _tail(self, seq: int) -> list[tuple[int, str, str]]:
        """(seq, body, hash) from a position on."""
        return self.database.query(
            "SELECT seq, body, hash FROM record WHERE seq >= ? ORDER BY seq", seq
        )

    def verify(self, gate_key: str) -> State:
        """Check the chain and every signature, of all records anew.

        Raises:
            LedgerCorrupt: naming the first record that fails.
        """
        version = self.database.version()
        state = verify_records(self.records(), gate_key)
        self._folded = version, state
        return state

    def export(self, gate_key: str) -> Json:
        """The whole ledger as a JSON document that a third party can recompute."""
        return {
            "format": EXPORT_FORMAT,
            "relation": RELATION,
            "gate_key": gate_key,
            "records": [
                {"body": body, "hash": hash_, "signature": signature}
                for _, body, hash_, signature in self.records()
            ],
        }

    def before(self, seq: int) -> tuple[int, str]:
        """Position and hash of the last record before a position; (0, genesis) where none is."""
        rows = self.database.query(
            "SELECT seq, hash FROM record WHERE seq < ? ORDER BY seq DESC LIMIT 1", seq
        )
        return (int(rows[0][0]), str(rows[0][1])) if rows else (0, GENESIS)

    # -- writing -------------------------------------------------------------------------------

    def append(self, kind: str, **fields: object) -> State:
        """Write one record; returns the state after it."""
        with self.database.transaction():
            return self._write(kind, self._now(self.state()), fields)

    def _now(self, state: State) -> str:
        """The ledger's time: the clock's, and never before the last record's."""
        return max(self._clock(), state.time)

    def _write(self, kind: str, now: str, fields: Json) -> State:
        """One record; before the first in an older ledger, the one that raises its format.

        After, where it is the first of all, or stands after lost records: no position of theirs
        may be used again.
        """
        if self._key is None:
            raise LedgerError("this ledger was opened for reading only")
        with self.database.transaction() as connection:
            before = self.state()
            first = kind in ("open", "recover")
            if kind == "format":
                self.database.raise_format()
            elif before.format < FORMAT and not first:
                before = self._write("format", now, {"format": FORMAT})
            record = {**fields, "kind": kind, "prev": before.head, "time": now}
            body = canonical({**record, "seq": find_next_seq(before, record)})
            hash_ = hashlib.sha256(body).hexdigest()
            after = apply_record(before, body.decode(), hash_)
            connection.execute(
                "INSERT INTO record VALUES (?, ?, ?, ?)",
                (after.seq, body.decode(), hash_, sign(self._key, RECORD, hash_.encode())),
            )
            self._folded = self.database.version(), after
            if first and after.format < FORMAT:
                after = self._write("format", now, {"format": FORMAT})
        return after

    def extend(self, records: list[tuple[int, str, str, str]], gate_key: str) -> State:
        """Append signed records that follow this ledger's last one, as they are.

        Raises:
            LedgerCorrupt: together they are no ledger of this gate; nothing was written.
        """
        with self.database.transaction() as connection:
            after = verify_records([*self.records(), *records], gate_key)
            connection.executemany("INSERT INTO record VALUES (?, ?, ?, ?)", records)
        return after


def verify_records(records: list[tuple[int, str, str, str]], gate_key: str) -> State:
    """The state after (seq, body, hash, signature) records, each signed by ``gate_key``.

    Raises:
        LedgerCorrupt: naming the first record that fails.
    """
    for seq, _, hash_, signature in records:
        try:
            verify(gate_key, RECORD, hash_.encode(), signature)
        except SignatureError:
            raise report_corrupt(seq, "its signature does not match the gate's key") from None
    return fold_records([(seq, body, hash_) for seq, body, hash_, _ in records])

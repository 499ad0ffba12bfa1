"""The privacy ledger: append-only, hash-chained, signed, recomputed at every decision.

What its records mean is in :mod:`penstock_client.ledger.chain`; what they cost, in
:mod:`penstock_client.ledger.budget`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.base.errors import InvalidEvent, LedgerError, SignatureError
from penstock.privacy.events import RELATION, to_dict
from penstock.privacy.filters import Filter, best_order
from penstock.wire.canonical import canonical
from penstock.wire.signatures import public_hex, sign, verify
from penstock_client.ledger.allowances import allowances
from penstock_client.ledger.chain import (
    FORMAT,
    OPTIONAL_TEXTS,
    corrupt,
    fold,
    next_seq,
    step,
)
from penstock_client.ledger.database import Database
from penstock_client.ledger.state import GENESIS, Charge, Lineage, State, Unit
from penstock_client.site.policy import Policy

__all__ = ["Charge", "Ledger", "Lineage", "State", "admit", "fold", "utc_now", "verified"]

RECORD = "ledger-record"
EXPORT_FORMAT = "penstock-ledger-1"


def utc_now() -> str:
    """RFC 3339, UTC, whole microseconds; sorts as text."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Ledger:
    """The records in a :class:`~penstock_client.ledger.database.Database`.

    Args:
        database: open for writing, under the site's lock; read-only suffices for reading.
        key: the gate's signing key, or None for reading only.
        clock: returns RFC 3339 UTC; the ledger's time never runs backwards, whatever it says.
    """

    def __init__(
        self,
        database: Database,
        key: Ed25519PrivateKey | None,
        clock: Callable[[], str] = utc_now,
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
        state = fold(rows, known)
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
        state = verified(self.records(), gate_key)
        self._folded = version, state
        return state

    def export(self, gate_key: str) -> dict[str, Any]:
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

    def append(self, kind: str, **fields: Any) -> State:
        """Write one record; returns the state after it."""
        with self.database.transaction():
            return self._write(kind, self._now(self.state()), fields)

    def _now(self, state: State) -> str:
        """The ledger's time: the clock's, and never before the last record's."""
        return max(self._clock(), state.time)

    def _write(self, kind: str, now: str, fields: dict[str, Any]) -> State:
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
                self.database.rise()
            elif before.format < FORMAT and not first:
                before = self._write("format", now, {"format": FORMAT})
            record = {**fields, "kind": kind, "prev": before.head, "time": now}
            body = canonical({**record, "seq": next_seq(before, record)})
            hash_ = hashlib.sha256(body).hexdigest()
            after = step(before, body.decode(), hash_)
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
            after = verified([*self.records(), *records], gate_key)
            connection.executemany("INSERT INTO record VALUES (?, ?, ?, ?)", records)
        return after

    def open_for(self, site: str) -> State:
        """Write the first records."""
        if self._key is None:
            raise LedgerError("this ledger was opened for reading only")
        return self.append(
            "open", site=site, id=secrets.token_hex(16), gate_key=public_hex(self._key)
        )

    def add_lineage(
        self,
        name: str,
        total_epsilon: float,
        delta: float,
        *,
        unit: Unit,
        approximate_delta: float = 0.0,
        strata: Iterable[str] = (),
        orders: Iterable[float] = (),
        disjoint: bool = False,
        new_data: bool = False,
        reason: str = "",
    ) -> State:
        """Begin a data set's life with its total budget; what is given here is fixed for good.

        Args:
            unit: whom it protects.
            approximate_delta: the part of ``delta`` set aside for events that take δ off the top.
            strata: names of parts of the persons: nobody is in two, and nobody ever moves.
            orders: the filter's Rényi orders; by default the one that suits the budget best.
            disjoint: the steward declares that nobody in it is in another data set of the site.
                Needed for every one but the first: the same persons under another name would get
                their budget a second time.
            new_data: the steward declares that these rows were in no data set before. Needed
                once records were lost: a data set of the same rows may have been begun, and
                charged, in one of them, under this name or another.
            reason: of the declaration, in the steward's words.

        Raises:
            InvalidEvent: no budget, or no room in it for any release.
            LedgerError: a second data set, not declared disjoint; or records were lost, and the
                rows are not declared to be new.
        """
        state = self.state()
        if state.recovered and not new_data:
            raise LedgerError(
                "records of this ledger were lost: a data set of these rows may have been begun, "
                "and charged, in one of them",
                value=name,
                remedy="only if no row was ever in a data set of this site: --new-data",
            )
        if state.lineages and not (disjoint or new_data):
            raise LedgerError(
                "this site has a data set, and what was spent on it is never reset",
                value=name,
                bound=f"its name is {' or '.join(state.lineages)}",
                remedy="write that name in site.toml, for new and for corrected rows alike; only "
                "if not one person is in both: --disjoint",
            )
        declared: dict[str, Any] = {"unit": unit.to_dict()}
        declared |= {k: True for k, v in (("new_data", new_data), ("disjoint", disjoint)) if v}
        if reason:
            declared["reason"] = reason
        if approximate_delta:
            declared["approximate_delta"] = approximate_delta
        if names := list(strata):
            declared["strata"] = names
        grid = tuple(orders) or (best_order(total_epsilon, delta - approximate_delta),)
        _ = Filter(total_epsilon, delta, grid, approximate_delta=approximate_delta)
        order = list(grid) if len(grid) > 1 else grid[0]
        return self.append(
            "lineage", lineage=name, epsilon=total_epsilon, delta=delta, order=order, **declared
        )

    def fix_unit(self, lineage: str, unit: Unit) -> None:
        """Record the unit of a data set that began before units were recorded.

        Nothing is written where it is known and the same.

        Raises:
            LedgerError: it is known, and another.
        """
        self.refuse_another_unit(lineage, unit)
        if self.state().lineages[lineage].unit is None:
            self.append("unit", lineage=lineage, unit=unit.to_dict())

    def refuse_another_unit(self, lineage: str, unit: Unit) -> None:
        """A data set protects one unit for good.

        Raises:
            LedgerError: it protects another.
        """
        found = self.state().lineages.get(lineage)
        if found is None or found.unit in (None, unit):
            return
        raise LedgerError(
            f"{lineage} protects another unit, and all that was spent on it was spent on that",
            value=unit,
            bound=found.unit,
            remedy="set `person` and `max_rows_per_person` in dictionary.toml as they were",
        )

    def refuse_another_frame(self, lineage: str, persons: int, new_frame: bool) -> None:
        """The public number of persons stays as it is, but for a declared new frame.

        Raises:
            LedgerError: it changed, and was not declared to.
        """
        found = self.state().lineages.get(lineage)
        before = found.versions[-1] if found and found.versions else None
        if before is None or new_frame or persons == before.persons:
            return
        raise LedgerError(
            "the declared frame of a data set stays as it is: its size is public, and would tell "
            "who joined and who left",
            value=f"{persons} persons",
            bound=f"{before.persons} persons, as in version {before.number}",
            remedy="declare the same number; only if other people may now be in it: --new-frame",
        )

    def add_version(
        self,
        lineage: str,
        persons: int,
        fingerprint: str,
        *,
        new_frame: bool = False,
        reason: str = "",
    ) -> int:
        """Record certified rows; nothing that was spent is reset. Returns the version's number.

        Args:
            persons: the declared frame, at least the count of persons. It is public, so that a
                number which followed the rows would tell who joined.
            new_frame: the steward declares that this version is of another frame.
            reason: of the declaration, in the steward's words.

        Raises:
            LedgerError: the frame changed, and was not declared to be a new one.
        """
        with self.database.transaction():
            self.refuse_another_frame(lineage, persons, new_frame)
            number = len(self.state().lineages[lineage].versions) + 1
            declared: dict[str, Any] = {"new_frame": True} if new_frame else {}
            if new_frame and reason:
                declared["reason"] = reason
            self.append(
                "version",
                lineage=lineage,
                version=number,
                persons=persons,
                fingerprint=fingerprint,
                **declared,
            )
        return number

    def reserve(
        self, charge: Charge, *, signer_epsilon: float, policy: Policy | None = None
    ) -> State:
        """Reserve a charge, if the lineage's filter and every allowance admit it.

        Atomic with respect to every other writer: two studies at once never overspend.

        Args:
            charge: its worst case; ``id`` is the request id, and is charged at most once.
            signer_epsilon: the signer's own total at this lineage's δ.
            policy: the steward's other allowances; without one there are none.

        Raises:
            BudgetExceeded: it does not fit; nothing was written.
            InvalidEvent: it is on a stratum that was not declared, or charges nothing.
            LedgerError: the id was charged before, or the version is not the certified one; or it
                does not say what was asked.
        """
        for name in ("study_digest", "plan_digest", "decisions"):
            if not getattr(charge, name):
                raise LedgerError("a reservation that cannot be recomputed", bound=f"needs {name}")
        with self.database.transaction():
            state = self.state()
            now = self._now(state)  # the year that is checked is the one that is written
            admit(state, charge, now=now, signer_epsilon=signer_epsilon, policy=policy)
            fields: dict[str, Any] = {
                "charge": charge.id,
                "lineage": charge.lineage,
                "version": charge.version,
                "study_id": charge.study_id,
                "signer": charge.signer,
                "mechanism": charge.mechanism,
                "events": [to_dict(e) for e in charge.events],
                "delta": charge.delta,
                "relation": RELATION,
            }
            texts = {name: getattr(charge, name) for name in OPTIONAL_TEXTS}
            fields |= {name: text for name, text in texts.items() if text}
            return self._write("reserve", now, fields)

    def commit(self, charge_id: str) -> State:
        """The release was kept."""
        return self._settle("commit", charge=charge_id)

    def burn(self, charge_id: str, reason: str) -> State:
        """The run ended without a release; the charge stays."""
        return self._settle("burn", charge=charge_id, reason=reason)

    def _settle(self, kind: str, **fields: str) -> State:
        # When a run ended is private, and heads are published: without a salt, who knows the rest
        # of the record could find its time by trying every microsecond.
        return self.append(kind, salt=secrets.token_hex(16), **fields)


def verified(records: list[tuple[int, str, str, str]], gate_key: str) -> State:
    """The state after (seq, body, hash, signature) records, each signed by ``gate_key``.

    Raises:
        LedgerCorrupt: naming the first record that fails.
    """
    for seq, _, hash_, signature in records:
        try:
            verify(gate_key, RECORD, hash_.encode(), signature)
        except SignatureError:
            raise corrupt(seq, "its signature does not match the gate's key") from None
    return fold([(seq, body, hash_) for seq, body, hash_, _ in records])


def admit(
    state: State,
    charge: Charge,
    *,
    now: str,
    signer_epsilon: float,
    policy: Policy | None = None,
) -> None:
    """Whether a charge may be reserved on this state.

    A function of the ledger, the charge, the policy and the time, and of nothing private.

    Raises:
        BudgetExceeded: naming what is spent and what is left; an :class:`AllowanceExceeded` where
            it is not the data set's guarantee that has no room, but what the steward allows.
        InvalidEvent: it is on a stratum that the data set has not, or charges nothing.
        LedgerError: charged before, an unknown data set, or not its newest version: the rows of
            all others are gone.
    """
    lineage = state.lineages.get(charge.lineage)
    if lineage is None:
        raise LedgerError("unknown data set", value=charge.lineage)
    if charge.id in state.charges:
        raise LedgerError("this request was charged before", value=charge.id)
    certified = lineage.versions[-1].number if lineage.versions else None
    if charge.version != certified:
        raise LedgerError(
            "a charge to rows that are not the certified ones",
            value=f"version {charge.version}",
            bound=f"version {certified}" if certified else "none is certified",
            remedy="run `penstock site check`",
        )
    if not charge.events:
        raise InvalidEvent("a charge of nothing", value=charge.id, remedy="it needs no charge")
    state.check(charge.lineage, charge.events)
    if charge.unbounded:
        return  # No allowance holds ε = ∞ either.
    for allowance in allowances(
        state.joint(charge.lineage), charge, now=now, signer_epsilon=signer_epsilon, policy=policy
    ):
        allowance.check(charge.events)

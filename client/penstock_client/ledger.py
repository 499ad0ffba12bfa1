"""The privacy ledger: append-only, hash-chained, signed, folded anew at every decision.

A record is canonical JSON ``{seq, prev, time, kind, …}``; its hash is SHA-256 of those bytes, and
the hash is signed with the gate's key. Kinds:

========  ==========================================================================
open      the ledger's birth: site, random id, gate key
lineage   a data set that the steward names; its total budget, δ, and fixed Rényi order
version   certified rows of a lineage: number, persons, salted fingerprint
reserve   the worst-case charge, written before any private row is read
commit    a reserved charge whose release was kept
burn      a reserved charge whose run ended without a release; it stays charged
========  ==========================================================================

A charge counts from its reservation on, whatever follows: budget may be lost, privacy never.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.errors import BudgetExceeded, LedgerCorrupt, LedgerError, SignatureError
from penstock.privacy.accountant import Filter, best_order, epsilon
from penstock.privacy.events import RELATION, Event, Unbounded, from_dict, to_dict
from penstock.wire.canonical import canonical, read_json
from penstock.wire.signatures import public_hex, sign, verify
from penstock_client.database import Database

RECORD = "ledger-record"
GENESIS = "0" * 64
EXPORT_FORMAT = "penstock-ledger-1"


def utc_now() -> str:
    """RFC 3339, UTC, whole microseconds; sorts as text."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class Charge:
    """One release's cost.

    ``delta`` is the study's; the ledger composes events, not ε.
    """

    id: str
    lineage: str
    version: int
    study_id: str
    signer: str
    mechanism: str
    events: tuple[Event, ...]
    delta: float
    status: str = "reserved"
    time: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Version:
    """Certified rows: ``persons`` is the public n."""

    number: int
    persons: int
    fingerprint: str
    time: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """A data set along its life, and everything that was charged to it."""

    name: str
    epsilon: float
    delta: float
    order: float
    versions: tuple[Version, ...] = ()
    charges: tuple[Charge, ...] = ()

    @property
    def filter(self) -> Filter:
        return Filter(self.epsilon, self.delta, self.order)

    @property
    def closed(self) -> bool:
        """Whether an ``empirical`` release ended the formal budget."""
        return any(isinstance(e, Unbounded) for e in self.events())

    def events(self, signer: str | None = None) -> tuple[Event, ...]:
        """Everything charged (reserved, committed and burnt), of one signer or of all."""
        return tuple(
            e for c in self.charges if signer is None or c.signer == signer for e in c.events
        )


@dataclass(frozen=True, slots=True)
class State:
    """The ledger, folded."""

    site: str = ""
    seq: int = 0
    head: str = GENESIS
    time: str = ""
    lineages: Mapping[str, Lineage] = field(default_factory=dict)
    charges: Mapping[str, Charge] = field(default_factory=dict)


class Ledger:
    """The records in a :class:`~penstock_client.database.Database`.

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

    # -- reading -------------------------------------------------------------------------------

    def records(self) -> list[tuple[int, str, str, str]]:
        """(seq, body, hash, signature) in order."""
        rows = self.database.query("SELECT seq, body, hash, signature FROM record ORDER BY seq")
        return [(int(str(a)), str(b), str(c), str(d)) for a, b, c, d in rows]

    def state(self) -> State:
        """Fold all records, checking the hash chain.

        Raises:
            LedgerCorrupt: a record is missing, changed, or makes no sense.
        """
        return fold([(seq, body, hash_) for seq, body, hash_, _ in self.records()])

    def verify(self, gate_key: str) -> State:
        """Check the chain and every signature.

        Raises:
            LedgerCorrupt: naming the first record that fails.
        """
        for seq, _, hash_, signature in (records := self.records()):
            try:
                verify(gate_key, RECORD, hash_.encode(), signature)
            except SignatureError:
                raise _corrupt(seq, "its signature does not match the gate's key") from None
        return fold([(seq, body, hash_) for seq, body, hash_, _ in records])

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

    # -- writing -------------------------------------------------------------------------------

    def append(self, kind: str, **fields: Any) -> State:
        """Write one record; returns the state after it."""
        if self._key is None:
            raise LedgerError("this ledger was opened for reading only")
        with self.database.transaction() as connection:
            before = self.state()
            body = canonical(
                {
                    **fields,
                    "kind": kind,
                    "seq": before.seq + 1,
                    "prev": before.head,
                    "time": max(self._clock(), before.time),
                }
            )
            hash_ = hashlib.sha256(body).hexdigest()
            after = _step(before, body.decode(), hash_)
            connection.execute(
                "INSERT INTO record VALUES (?, ?, ?, ?)",
                (after.seq, body.decode(), hash_, sign(self._key, RECORD, hash_.encode())),
            )
        return after

    def open_for(self, site: str) -> State:
        """Write the first record."""
        if self._key is None:
            raise LedgerError("this ledger was opened for reading only")
        return self.append(
            "open", site=site, id=secrets.token_hex(16), gate_key=public_hex(self._key)
        )

    def add_lineage(self, name: str, total_epsilon: float, delta: float) -> State:
        """Begin a data set's life with its total budget; its Rényi order is fixed here for good."""
        order = best_order(total_epsilon, delta)
        return self.append("lineage", lineage=name, epsilon=total_epsilon, delta=delta, order=order)

    def add_version(self, lineage: str, persons: int, fingerprint: str) -> int:
        """Record certified rows; nothing that was spent is reset. Returns the version's number."""
        with self.database.transaction():
            current = self.state().lineages.get(lineage)
            number = len(current.versions) + 1 if current else 1
            self.append(
                "version",
                lineage=lineage,
                version=number,
                persons=persons,
                fingerprint=fingerprint,
            )
        return number

    def reserve(self, charge: Charge, *, signer_epsilon: float) -> State:
        """Reserve a charge, if the lineage's filter and the signer's allowance both admit it.

        Atomic with respect to every other writer: two studies at once never overspend.

        Args:
            charge: its worst case; ``id`` is the request id, and is charged at most once.
            signer_epsilon: the signer's own total at this lineage's δ.

        Raises:
            BudgetExceeded: it does not fit; nothing was written.
            LedgerError: the id was charged before.
        """
        with self.database.transaction():
            state = self.state()
            admit(state, charge, signer_epsilon=signer_epsilon)
            return self.append(
                "reserve",
                charge=charge.id,
                lineage=charge.lineage,
                version=charge.version,
                study_id=charge.study_id,
                signer=charge.signer,
                mechanism=charge.mechanism,
                events=[to_dict(e) for e in charge.events],
                delta=charge.delta,
                relation=RELATION,
            )

    def commit(self, charge_id: str) -> State:
        """The release was kept."""
        return self.append("commit", charge=charge_id)

    def burn(self, charge_id: str, reason: str) -> State:
        """The run ended without a release; the charge stays."""
        return self.append("burn", charge=charge_id, reason=reason)


def admit(state: State, charge: Charge, *, signer_epsilon: float) -> None:
    """Whether a charge may be reserved on this state.

    Raises:
        BudgetExceeded: naming what is spent and what is left; LedgerError: charged before.
    """
    lineage = state.lineages.get(charge.lineage)
    if lineage is None:
        raise LedgerError("unknown data set", value=charge.lineage)
    if charge.id in state.charges:
        raise LedgerError("this request was charged before", value=charge.id)
    if lineage.closed:
        raise BudgetExceeded(f"the formal budget of {lineage.name} has ended (ε = ∞ was spent)")
    if any(isinstance(e, Unbounded) for e in charge.events):
        return  # The policy allows it or not; no filter can hold ε = ∞.
    lineage.filter.check(lineage.events(), charge.events, what=f"data set {lineage.name}")
    # A filter of its own; its order follows from the allowance. A steward who changes the allowance
    # later changes that order too: the guarantee is the data set's filter above, this is a limit.
    allowed = min(signer_epsilon, lineage.epsilon)
    allowance = Filter(allowed, lineage.delta, best_order(allowed, lineage.delta))
    allowance.check(lineage.events(charge.signer), charge.events, what="the signer's allowance")


# -- the fold ----------------------------------------------------------------------------------


def fold(records: Sequence[tuple[int, str, str]]) -> State:
    """State after (seq, body, hash) records.

    Raises:
        LedgerCorrupt: naming the first record that breaks the chain.
    """
    state = State()
    for seq, body, hash_ in records:
        if seq != state.seq + 1:
            raise _corrupt(state.seq + 1, "it is missing")
        if hashlib.sha256(body.encode()).hexdigest() != hash_:
            raise _corrupt(seq, "its text was changed")
        state = _step(state, body, hash_)
    return state


def _corrupt(seq: int, what: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"ledger record {seq}: {what}; nothing was overwritten",
        remedy="restore the file from a backup and tell every coordinator",
    )


def _step(state: State, body: str, hash_: str) -> State:
    record = read_json(body.encode(), what="ledger record", limit=1_000_000)
    seq = state.seq + 1
    if record.get("seq") != seq or record.get("prev") != state.head:
        raise _corrupt(seq, "it does not follow the one before")
    if str(record["time"]) < state.time:
        raise _corrupt(seq, "its time runs backwards")
    after = replace(state, seq=seq, head=hash_, time=str(record["time"]))
    apply = _APPLY.get(str(record.get("kind")))
    if apply is None:
        raise _corrupt(seq, f"unknown kind {record.get('kind')!r}")
    try:
        return apply(after, record)
    except (KeyError, TypeError, ValueError) as error:
        raise _corrupt(seq, f"it cannot be read ({type(error).__name__})") from None


def _open(state: State, record: Mapping[str, Any]) -> State:
    if state.seq != 1:
        raise ValueError("opened twice")
    return replace(state, site=str(record["site"]))


def _lineage(state: State, record: Mapping[str, Any]) -> State:
    name = str(record["lineage"])
    if name in state.lineages:
        raise ValueError("lineage begun twice")
    lineage = Lineage(name, record["epsilon"], record["delta"], record["order"])
    _ = lineage.filter  # validates the three numbers
    return replace(state, lineages={**state.lineages, name: lineage})


def _version(state: State, record: Mapping[str, Any]) -> State:
    lineage = state.lineages[record["lineage"]]
    version = Version(
        record["version"], record["persons"], record["fingerprint"], str(record["time"])
    )
    if version.number != len(lineage.versions) + 1:
        raise ValueError("version out of order")
    return _put(state, replace(lineage, versions=(*lineage.versions, version)))


def _reserve(state: State, record: Mapping[str, Any]) -> State:
    charge = Charge(
        id=record["charge"],
        lineage=record["lineage"],
        version=record["version"],
        study_id=record["study_id"],
        signer=record["signer"],
        mechanism=record["mechanism"],
        events=tuple(from_dict(e) for e in record["events"]),
        delta=record["delta"],
        time=record["time"],
    )
    if charge.id in state.charges:
        raise ValueError("charged twice")
    lineage = state.lineages[charge.lineage]
    state = _put(state, replace(lineage, charges=(*lineage.charges, charge)))
    return replace(state, charges={**state.charges, charge.id: charge})


def _settle(state: State, record: Mapping[str, Any], status: str) -> State:
    charge = state.charges[record["charge"]]
    if charge.status != "reserved":
        raise ValueError("settled twice")
    settled = replace(charge, status=status, reason=str(record.get("reason", "")))
    lineage = state.lineages[charge.lineage]
    charges = tuple(settled if c.id == charge.id else c for c in lineage.charges)
    state = _put(state, replace(lineage, charges=charges))
    return replace(state, charges={**state.charges, charge.id: settled})


def _put(state: State, lineage: Lineage) -> State:
    return replace(state, lineages={**state.lineages, lineage.name: lineage})


_APPLY: dict[str, Callable[[State, Mapping[str, Any]], State]] = {
    "open": _open,
    "lineage": _lineage,
    "version": _version,
    "reserve": _reserve,
    "commit": lambda state, record: _settle(state, record, "committed"),
    "burn": lambda state, record: _settle(state, record, "burnt"),
}


def summary(state: State) -> list[dict[str, Any]]:
    """What a steward wants to see of each lineage: spent, left, and every charge."""
    rows = []
    for lineage in state.lineages.values():
        events = lineage.events()
        rows.append(
            {
                "lineage": lineage.name,
                "order": lineage.order,
                "delta": lineage.delta,
                "total_epsilon": lineage.epsilon,
                "spent_epsilon": None if lineage.closed else lineage.filter.spent(events),
                "spent_epsilon_best_order": (
                    None if lineage.closed else epsilon(events, lineage.delta)
                ),
                "left_epsilon": 0.0 if lineage.closed else lineage.filter.left(events),
                "closed": lineage.closed,
                "versions": [
                    {"version": v.number, "persons": v.persons, "time": v.time}
                    for v in lineage.versions
                ],
                "charges": [
                    {
                        "request": c.id,
                        "study": c.study_id,
                        "signer": c.signer,
                        "mechanism": c.mechanism,
                        "status": c.status,
                        "reason": c.reason,
                        "time": c.time,
                        "delta": c.delta,
                        "epsilon": _finite(epsilon(c.events, c.delta)),
                        "events": [to_dict(e) for e in c.events],
                    }
                    for c in lineage.charges
                ],
            }
        )
    return rows


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None

"""The privacy ledger: append-only, hash-chained, signed, folded anew at every decision.

What its records mean is in :mod:`penstock_client.chain`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.errors import BudgetExceeded, LedgerError, SignatureError
from penstock.privacy.accountant import epsilon
from penstock.privacy.events import RELATION, Unbounded, to_dict
from penstock.privacy.filters import Filter, best_order
from penstock.wire.canonical import canonical
from penstock.wire.signatures import public_hex, sign, verify
from penstock_client.chain import Charge, Lineage, State, corrupt, fold, next_seq, step
from penstock_client.database import Database

__all__ = [
    "Charge",
    "Ledger",
    "Lineage",
    "State",
    "admit",
    "fold",
    "left",
    "spent",
    "summary",
    "utc_now",
]

RECORD = "ledger-record"
EXPORT_FORMAT = "penstock-ledger-1"


def utc_now() -> str:
    """RFC 3339, UTC, whole microseconds; sorts as text."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


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
        return verified(self.records(), gate_key)

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
            record = {
                **fields,
                "kind": kind,
                "prev": before.head,
                "time": max(self._clock(), before.time),
            }
            body = canonical({**record, "seq": next_seq(before, record)})
            hash_ = hashlib.sha256(body).hexdigest()
            after = step(before, body.decode(), hash_)
            connection.execute(
                "INSERT INTO record VALUES (?, ?, ?, ?)",
                (after.seq, body.decode(), hash_, sign(self._key, RECORD, hash_.encode())),
            )
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
        """Write the first record."""
        if self._key is None:
            raise LedgerError("this ledger was opened for reading only")
        return self.append(
            "open", site=site, id=secrets.token_hex(16), gate_key=public_hex(self._key)
        )

    def add_lineage(
        self, name: str, total_epsilon: float, delta: float, *, new_data: bool = False
    ) -> State:
        """Begin a data set's life with its total budget; its Rényi order is fixed here for good.

        Args:
            new_data: the steward declares that these rows were in no data set before. Needed
                once records were lost: a data set of the same rows may have been begun, and
                charged, in one of them, under this name or another.

        Raises:
            LedgerError: records were lost, and the rows are not declared to be new.
        """
        if self.state().recovered and not new_data:
            raise LedgerError(
                "records of this ledger were lost: a data set of these rows may have been begun, "
                "and charged, in one of them",
                value=name,
                remedy="only if no row was ever in a data set of this site: --new-data",
            )
        declared = {"new_data": True} if new_data else {}
        order = best_order(total_epsilon, delta)
        return self.append(
            "lineage", lineage=name, epsilon=total_epsilon, delta=delta, order=order, **declared
        )

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
    if lineage.exhausted:
        # Without exception: also what the policy would let go without a guarantee.
        raise BudgetExceeded(
            f"records of {lineage.name} were lost, and all that was left of its ε is charged for "
            "them",
            remedy="nothing more can be released of this data set",
        )
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


def summary(state: State) -> list[dict[str, Any]]:
    """What a steward wants to see of each lineage: spent, left, and every charge."""
    rows = []
    for lineage in state.lineages.values():
        rows.append(
            {
                "lineage": lineage.name,
                "order": lineage.order,
                "delta": lineage.delta,
                "total_epsilon": lineage.epsilon,
                "spent_epsilon": spent(lineage),
                "spent_epsilon_best_order": _spent_best_order(lineage),
                "left_epsilon": left(lineage),
                "closed": lineage.closed,
                "exhausted": lineage.exhausted,
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


def spent(lineage: Lineage) -> float | None:
    """The ε, at the filter's order, that is charged to a lineage; None for ∞."""
    if lineage.closed:
        return None
    return lineage.epsilon if lineage.exhausted else lineage.filter.spent(lineage.events())


def _spent_best_order(lineage: Lineage) -> float | None:
    if lineage.closed or lineage.exhausted:
        return spent(lineage)
    return epsilon(lineage.events(), lineage.delta)


def left(lineage: Lineage) -> float:
    """The ε at the lineage's δ of the largest single release that it still admits."""
    if lineage.closed or lineage.exhausted:
        return 0.0
    return lineage.filter.left(lineage.events())


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None

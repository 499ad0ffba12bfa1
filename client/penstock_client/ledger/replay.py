"""A ledger judged after the fact: was every charge admissible when it was made?

Chain and signatures say that nothing was changed; they do not say that the gate judged rightly.
So every reservation is put to its data set's filter once more, on the records before it. What the
steward allowed at the time (signers, years, studies) is not in the record and is not judged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.base.documents import Json, JsonView
from penstock.base.errors import BudgetExceeded, LedgerError, PrivacyError
from penstock.privacy.events import RELATION
from penstock_client.ledger.budget import write_alone
from penstock_client.ledger.chain import apply_record
from penstock_client.ledger.records import EXPORT_FORMAT, verify_records
from penstock_client.ledger.state import GENESIS, Charge, State

Record = tuple[int, str, str, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """A record that should not be: its position, and why."""

    record: int
    what: str


@dataclass(frozen=True, slots=True)
class Verified:
    """A ledger whose chain and signatures are whole.

    Attributes:
        state: what it folds to.
        records: how many there are.
        gate_key: whose signatures they are.
        findings: charges that were not admissible; empty where all is well.
    """

    state: State
    records: int
    gate_key: str
    findings: tuple[Finding, ...]


def verify_ledger(records: list[Record], gate_key: str) -> Verified:
    """Check chain and signatures, then replay the filter at every reservation.

    Raises:
        LedgerCorrupt: chain or signatures are broken; nothing after that can be judged.
    """
    final = verify_records(records, gate_key)
    state, findings = State(), []
    for seq, body, hash_, _ in records:
        before, state = state, apply_record(state, body, hash_)
        record = json.loads(body)
        if record["kind"] == "reserve":
            what = _find_mismatch(before, state.charges[record["charge"]], record)
            findings += [Finding(seq, what)] if what else []
    return Verified(final, len(records), gate_key, tuple(findings))


def _find_mismatch(before: State, charge: Charge, record: Json) -> str:
    """Why a charge was not admissible on the state before it; empty where it was."""
    lineage = before.lineages[charge.lineage]
    if record.get("relation") != RELATION:
        return f"another relation: {str(record.get('relation'))[:80]}"
    if not any(v.number == charge.version for v in lineage.versions):
        return f"charged to version {charge.version}, which was not certified"
    if not charge.events:
        return "it charges nothing"
    if charge.alone_epsilon != write_alone(charge.events, charge.delta):
        return f"another ε if all other sites collude: {charge.alone_epsilon[:80] or 'none'}"
    try:
        before.check(charge.lineage, charge.events)
    except PrivacyError as error:
        return f"overspent: {error}" if isinstance(error, BudgetExceeded) else str(error)
    return ""


def compare_decisions(state: State, decisions: Sequence[JsonView]) -> list[str]:
    """What the ledger names of the decisions, and they do not hold; in order.

    Args:
        decisions: verified, oldest first: see :mod:`penstock_client.ledger.decisions`.
    """
    places = {GENESIS: 0, **{one["hash"]: one["seq"] for one in decisions}}
    found, last = [], 0
    for charge in state.charges.values():
        if not charge.decisions:  # of the first format
            continue
        place = places.get(charge.decisions)
        if place is None:
            found.append(f"charge {charge.id[:12]} names decisions that are not here")
        elif place < last:
            found.append(f"charge {charge.id[:12]} names older decisions than one before it")
        last = max(last, place or 0)
    return found


def read_export(path: Path) -> tuple[list[Record], str]:
    """The records of an exported ledger, and the key that it names; not verified yet.

    Raises:
        LedgerError: it is none.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != EXPORT_FORMAT or document["relation"] != RELATION:
            raise ValueError("another format")
        return read_records(document), str(document["gate_key"])
    except (ValueError, KeyError, TypeError, RecursionError):
        remedy = "use what `penstock site ledger export` wrote"
        raise LedgerError("not an exported ledger", value=path, remedy=remedy) from None


def read_records(export: JsonView) -> list[Record]:
    """(seq, body, hash, signature) of an export's records; not verified yet."""
    return [
        (int(json.loads(r["body"])["seq"]), str(r["body"]), str(r["hash"]), str(r["signature"]))
        for r in export["records"]
    ]

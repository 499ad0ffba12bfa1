"""The ledger's records, and the state they fold to.

A record is canonical JSON ``{seq, prev, time, kind, …}``; its hash is SHA-256 of those bytes, and
the hash is signed with the gate's key. Kinds:

========  ==========================================================================
open      the ledger's birth: site, random id, gate key
format    what the records from here on must hold
lineage   a data set that the steward names; its total budget, δ, and fixed Rényi order or
          orders; its unit; optionally ``approximate_delta`` and ``strata``. All fixed for
          good. A second one is declared ``disjoint``
unit      the unit of a lineage that began before there was a format; fixed from then on
version   certified rows of a lineage: number, persons (the declared frame), salted
          fingerprint; ``new_frame`` where the persons are not those of the version before
reserve   the worst-case charge, written before any private row is read
commit    a reserved charge whose release was kept
burn      a reserved charge whose run ended without a release; it stays charged
recover   records are known to be lost: every lineage is charged all that was left of it
========  ==========================================================================

Records are never rewritten, so what they hold rises by a record: the first that this version of
Penstock writes to an older ledger is ``format``. Before it, the first format's records stand as
they are; after it, every field is asked for:

========  ============================================================================
format 2  a lineage's ``unit``, and ``disjoint`` of every one but the first; constant
          ``persons``; a charge's newest version, its events, and the digests of study,
          plan and decisions; a ``salt`` in commit and burn
========  ============================================================================

A charge counts from its reservation on, whatever follows: budget may be lost, privacy never.

Positions rise by one, except at a ``recover`` record: it names the newest lost position that the
gate's own signature proves, and stands right after it (or after the record before it, if that is
later). So no position is ever used twice, and a coordinator that saw the lost records sees the
site's ledger go on, not back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.base.documents import Json, JsonView
from penstock.base.errors import InvalidEvent, LedgerCorrupt, LedgerError
from penstock.privacy.events import from_dict
from penstock.wire.canonical import read_json
from penstock_client.ledger.state import Charge, Lineage, State, Unit, Version

MAX_SEQ = 2**53
FORMAT = 2
"""Of the records that this version writes; it reads every one up to it."""
_HASH = re.compile(r"[0-9a-f]{64}")
_SALT = re.compile(r"[0-9a-f]{32}")
OPTIONAL_TEXTS = ("study", "study_digest", "plan_digest", "ready_at", "decisions", "alone_epsilon")
"""Fields of a reservation that it leaves out where they are empty."""


def fold_records(records: Sequence[tuple[int, str, str]], after: State | None = None) -> State:
    """State after (seq, body, hash) records.

    Args:
        after: the state that they follow; by default they begin the ledger.

    Raises:
        LedgerCorrupt: naming the first record that breaks the chain.
    """
    state = State() if after is None else after
    for seq, body, hash_ in records:
        if hashlib.sha256(body.encode()).hexdigest() != hash_:
            raise report_corrupt(seq, "its text was changed")
        state = apply_record(state, body, hash_)
        if seq != state.seq:
            raise report_corrupt(state.seq, "it is missing")
    return state


def report_corrupt(seq: int, what: str) -> LedgerCorrupt:
    """The error of a record that breaks the chain."""
    return LedgerCorrupt(
        f"ledger record {seq}: {what}; nothing was overwritten",
        remedy="restore the file from a backup and tell every coordinator",
    )


def apply_record(state: State, body: str, hash_: str) -> State:
    """The state after one more record.

    Raises:
        LedgerCorrupt: it does not follow, or makes no sense.
    """
    record = read_json(body.encode(), what="ledger record", limit=1_000_000)
    seq = find_next_seq(state, record)
    if record.get("seq") != seq or record.get("prev") != state.head:
        raise report_corrupt(seq, "it does not follow the one before")
    if str(record["time"]) < state.time:
        raise report_corrupt(seq, "its time runs backwards")
    after = replace(state, seq=seq, head=hash_, time=str(record["time"]))
    apply = _APPLY.get(str(record.get("kind")))
    if apply is None:
        raise report_corrupt(seq, f"unknown kind {record.get('kind')!r}")
    try:
        return apply(after, record)
    except (KeyError, TypeError, ValueError, InvalidEvent) as error:
        raise report_corrupt(seq, f"it cannot be read ({type(error).__name__})") from None


def find_next_seq(state: State, record: JsonView) -> int:
    """The one position that a record may have: the next, or after the lost ones it names.

    Raises:
        LedgerCorrupt: a ``recover`` record that names no position.
    """
    if record.get("kind") != "recover":
        return state.seq + 1
    seen = record.get("seen_seq")
    if isinstance(seen, bool) or not isinstance(seen, int) or not 1 <= seen <= MAX_SEQ:
        raise report_corrupt(state.seq + 1, "it names no lost position")
    return max(state.seq, seen) + 1


def _apply_open(state: State, record: JsonView) -> State:
    if state.seq != 1:
        raise ValueError("opened twice")
    return replace(state, site=str(record["site"]))


def _apply_format(state: State, record: JsonView) -> State:
    if isinstance(record["format"], int) and record["format"] > FORMAT:
        raise LedgerError(
            "a newer Penstock wrote this ledger",
            value=f"format {record['format']}",
            bound=f"at most {FORMAT}",
            remedy="use that version",
        )
    if isinstance(record["format"], bool) or record["format"] != state.format + 1:
        raise ValueError("a format out of order")
    return replace(state, format=record["format"])


def _apply_lineage(state: State, record: JsonView) -> State:
    name = str(record["lineage"])
    if name in state.lineages:
        raise ValueError("lineage begun twice")
    if state.recovered and record.get("new_data") is not True:
        raise ValueError("a data set begun after a recovery, not declared to be new")
    # Rows that were in no data set before are in no other data set.
    disjoint = record.get("disjoint") is True or record.get("new_data") is True
    if state.format > 1 and state.lineages and not disjoint:
        raise ValueError("a second data set, not declared disjoint")
    order, strata = record["order"], record.get("strata", [])
    lineage = Lineage(
        name,
        record["epsilon"],
        record["delta"],
        tuple(order) if isinstance(order, list) else order,
        approximate_delta=record.get("approximate_delta", 0.0),
        strata=tuple(strata),
        unit=_read_unit(record) if state.format > 1 else None,
        disjoint=disjoint,
    )
    _ = lineage.filter  # validates the numbers
    names = {s for s in strata if isinstance(s, str) and s}
    if not isinstance(strata, list) or len(names) != len(strata):
        raise ValueError("strata must be distinct names")
    return replace(state, lineages={**state.lineages, name: lineage})


def _read_unit(record: JsonView) -> Unit:
    return Unit(**record["unit"])


def _apply_unit(state: State, record: JsonView) -> State:
    lineage = state.lineages[record["lineage"]]
    if lineage.unit is not None:
        raise ValueError("a unit is fixed once")
    return _replace_lineage(state, replace(lineage, unit=_read_unit(record)))


def _apply_version(state: State, record: JsonView) -> State:
    lineage = state.lineages[record["lineage"]]
    version = Version(
        record["version"],
        record["persons"],
        record["fingerprint"],
        str(record["time"]),
        new_frame=record.get("new_frame") is True,
    )
    if state.format > 1:
        _check_version(lineage, version)
    if version.number != len(lineage.versions) + 1:
        raise ValueError("version out of order")
    return _replace_lineage(state, replace(lineage, versions=(*lineage.versions, version)))


def _check_version(lineage: Lineage, version: Version) -> None:
    """What a version must be from the second format on."""
    if lineage.unit is None:
        raise ValueError("certified without a unit")
    if isinstance(version.persons, bool) or not isinstance(version.persons, int):
        raise TypeError("persons must be a whole number")
    if not version.persons >= 1:
        raise ValueError("a frame of nobody")
    before = lineage.versions[-1].persons if lineage.versions else version.persons
    if version.persons != before and not version.new_frame:
        raise ValueError("another frame, not declared to be one")


def _apply_reserve(state: State, record: JsonView) -> State:
    texts: Json = {name: _require_text(record.get(name, "")) for name in OPTIONAL_TEXTS}
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
        **texts,
    )
    if charge.id in state.charges:
        raise ValueError("charged twice")
    lineage = state.lineages[charge.lineage]
    if lineage.exhausted:
        raise ValueError("charged after all was charged")
    if state.format > 1:
        _check_charge(lineage, charge)
    if lineage.undeclared(charge.events) is not None:
        raise ValueError("charged on a stratum that was never declared")
    state = _replace_lineage(state, replace(lineage, charges=(*lineage.charges, charge)))
    return replace(state, charges={**state.charges, charge.id: charge})


def _check_charge(lineage: Lineage, charge: Charge) -> None:
    """What a reservation must be from the second format on."""
    if not lineage.versions or charge.version != lineage.versions[-1].number:
        raise ValueError("not of the certified version")
    if not charge.events:
        raise ValueError("it charges nothing")
    if not all(map(_HASH.fullmatch, (charge.study_digest, charge.plan_digest, charge.decisions))):
        raise ValueError("no digest")


def _apply_settlement(state: State, record: JsonView, status: str) -> State:
    charge = state.charges[record["charge"]]
    if state.format > 1 and not _SALT.fullmatch(_require_text(record["salt"])):
        raise ValueError("no salt")
    if charge.status != "reserved":
        raise ValueError("settled twice")
    settled = replace(
        charge,
        status=status,
        reason=str(record.get("reason", "")),
        settled_at=str(record["time"]),
        settled_seq=state.seq,
    )
    lineage = state.lineages[charge.lineage]
    charges = tuple(settled if c.id == charge.id else c for c in lineage.charges)
    state = _replace_lineage(state, replace(lineage, charges=charges))
    return replace(state, charges={**state.charges, charge.id: settled})


def _apply_recover(state: State, record: JsonView) -> State:
    if not _HASH.fullmatch(str(record["seen_head"])):
        raise ValueError("no hash")
    spent = {name: replace(each, exhausted=True) for name, each in state.lineages.items()}
    return replace(state, lineages=spent, recovered=state.seq)


def _require_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _replace_lineage(state: State, lineage: Lineage) -> State:
    return replace(state, lineages={**state.lineages, lineage.name: lineage})


_APPLY: dict[str, Callable[[State, JsonView], State]] = {
    "open": _apply_open,
    "format": _apply_format,
    "unit": _apply_unit,
    "lineage": _apply_lineage,
    "version": _apply_version,
    "reserve": _apply_reserve,
    "commit": lambda state, record: _apply_settlement(state, record, "committed"),
    "burn": lambda state, record: _apply_settlement(state, record, "burnt"),
    "recover": _apply_recover,
}

"""The ledger's records, and the state they fold to.

A record is canonical JSON ``{seq, prev, time, kind, …}``; its hash is SHA-256 of those bytes, and
the hash is signed with the gate's key. Kinds:

========  ==========================================================================
open      the ledger's birth: site, random id, gate key
lineage   a data set that the steward names; its total budget, δ, and fixed Rényi order or
          orders; optionally ``approximate_delta`` and ``strata``. All fixed for good
version   certified rows of a lineage: number, persons, salted fingerprint
reserve   the worst-case charge, written before any private row is read
commit    a reserved charge whose release was kept
burn      a reserved charge whose run ended without a release; it stays charged
recover   records are known to be lost: every lineage is charged all that was left of it
========  ==========================================================================

A charge counts from its reservation on, whatever follows: budget may be lost, privacy never.

Positions rise by one, except at a ``recover`` record: it names the newest lost position that the
gate's own signature proves, and stands right after it (or after the record before it, if that is
later). So no position is ever used twice, and a coordinator that saw the lost records sees the
site's ledger go on, not back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.errors import BudgetExceeded, InvalidEvent, LedgerCorrupt
from penstock.privacy.events import Event, OnStratum, from_dict, is_unbounded
from penstock.privacy.filters import Filter
from penstock.wire.canonical import read_json

GENESIS = "0" * 64
MAX_SEQ = 2**53
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Charge:
    """One release's cost.

    ``delta`` is the study's; the ledger composes events, not ε. ``study`` is the study's name, the
    same for all its releases, whose ids differ; records of older versions have none.

    Attributes:
        ready_at: when the end of its run may show outside, at the earliest; planned from public
            numbers before the run. Records of older versions have none.
        settled_at, settled_seq: when the run truly ended, and the record that says so; nothing of
            either shows outside before its time.
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
    study: str = ""
    study_digest: str = ""
    plan_digest: str = ""
    ready_at: str = ""
    decisions: str = ""
    settled_at: str = ""
    settled_seq: int = 0

    @property
    def unbounded(self) -> bool:
        """Whether it has no finite ε."""
        return any(is_unbounded(e) for e in self.events)


@dataclass(frozen=True, slots=True)
class Version:
    """Certified rows: ``persons`` is the public n."""

    number: int
    persons: int
    fingerprint: str
    time: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """A data set along its life, and everything that was charged to it.

    Attributes:
        order: the Rényi order of its filter, or a grid of them.
        approximate_delta: the part of δ set aside for events that take δ off the top.
        strata: parts of the persons that nobody is in two of, and nobody moves between.
        exhausted: records were lost, and everything that was left is charged for them.
    """

    name: str
    epsilon: float
    delta: float
    order: float | tuple[float, ...]
    versions: tuple[Version, ...] = ()
    charges: tuple[Charge, ...] = ()
    exhausted: bool = False
    approximate_delta: float = 0.0
    strata: tuple[str, ...] = ()

    @property
    def filter(self) -> Filter:
        """The guarantee: what all charges together must stay within."""
        return Filter(
            self.epsilon, self.delta, self.order, approximate_delta=self.approximate_delta
        )

    @property
    def closed(self) -> bool:
        """Whether an ``empirical`` release ended the formal budget."""
        return any(c.unbounded for c in self.charges)

    def events(self) -> tuple[Event, ...]:
        """Everything charged: reserved, committed and burnt."""
        return tuple(e for c in self.charges for e in c.events)

    def check(self, events: Sequence[Event]) -> None:
        """Whether the guarantee admits a charge on top of everything charged.

        Raises:
            BudgetExceeded: naming what is spent and what is left.
            InvalidEvent: it is on a stratum that was not declared.
        """
        if self.exhausted:
            # Without exception: also what the policy would let go without a guarantee.
            raise BudgetExceeded(
                f"records of {self.name} were lost, and all that was left of its ε is charged for "
                "them",
                remedy="nothing more can be released of this data set",
            )
        if self.closed:
            raise BudgetExceeded(f"the formal budget of {self.name} has ended (ε = ∞ was spent)")
        undeclared = self.undeclared(events)
        if undeclared is not None:
            raise InvalidEvent(
                "a stratum that was not declared when the data set began",
                value=undeclared,
                bound=", ".join(self.strata) or "it has none",
            )
        # The policy allows an unbounded release or not; no filter can hold ε = ∞.
        if not any(is_unbounded(e) for e in events):
            self.filter.check(self.events(), events, what=f"data set {self.name}")

    def undeclared(self, events: Iterable[Event]) -> str | None:
        """A stratum that events are on and that this data set has not, if there is one."""
        named = (e.stratum for e in events if isinstance(e, OnStratum))
        return next((stratum for stratum in named if stratum not in self.strata), None)


@dataclass(frozen=True, slots=True)
class State:
    """The ledger, folded.

    ``recovered`` is the position of the last ``recover`` record, 0 where there is none: whatever
    is known of positions before it has been paid for.
    """

    site: str = ""
    seq: int = 0
    head: str = GENESIS
    time: str = ""
    recovered: int = 0
    lineages: Mapping[str, Lineage] = field(default_factory=dict)
    charges: Mapping[str, Charge] = field(default_factory=dict)


def fold(records: Sequence[tuple[int, str, str]], after: State | None = None) -> State:
    """State after (seq, body, hash) records.

    Args:
        after: the state that they follow; by default they begin the ledger.

    Raises:
        LedgerCorrupt: naming the first record that breaks the chain.
    """
    state = State() if after is None else after
    for seq, body, hash_ in records:
        if hashlib.sha256(body.encode()).hexdigest() != hash_:
            raise corrupt(seq, "its text was changed")
        state = step(state, body, hash_)
        if seq != state.seq:
            raise corrupt(state.seq, "it is missing")
    return state


def corrupt(seq: int, what: str) -> LedgerCorrupt:
    """The error of a record that breaks the chain."""
    return LedgerCorrupt(
        f"ledger record {seq}: {what}; nothing was overwritten",
        remedy="restore the file from a backup and tell every coordinator",
    )


def step(state: State, body: str, hash_: str) -> State:
    """The state after one more record.

    Raises:
        LedgerCorrupt: it does not follow, or makes no sense.
    """
    record = read_json(body.encode(), what="ledger record", limit=1_000_000)
    seq = next_seq(state, record)
    if record.get("seq") != seq or record.get("prev") != state.head:
        raise corrupt(seq, "it does not follow the one before")
    if str(record["time"]) < state.time:
        raise corrupt(seq, "its time runs backwards")
    after = replace(state, seq=seq, head=hash_, time=str(record["time"]))
    apply = _APPLY.get(str(record.get("kind")))
    if apply is None:
        raise corrupt(seq, f"unknown kind {record.get('kind')!r}")
    try:
        return apply(after, record)
    except (KeyError, TypeError, ValueError, InvalidEvent) as error:
        raise corrupt(seq, f"it cannot be read ({type(error).__name__})") from None


def next_seq(state: State, record: Mapping[str, Any]) -> int:
    """The one position that a record may have: the next, or after the lost ones it names.

    Raises:
        LedgerCorrupt: a ``recover`` record that names no position.
    """
    if record.get("kind") != "recover":
        return state.seq + 1
    seen = record.get("seen_seq")
    if isinstance(seen, bool) or not isinstance(seen, int) or not 1 <= seen <= MAX_SEQ:
        raise corrupt(state.seq + 1, "it names no lost position")
    return max(state.seq, seen) + 1


def _open(state: State, record: Mapping[str, Any]) -> State:
    if state.seq != 1:
        raise ValueError("opened twice")
    return replace(state, site=str(record["site"]))


def _lineage(state: State, record: Mapping[str, Any]) -> State:
    name = str(record["lineage"])
    if name in state.lineages:
        raise ValueError("lineage begun twice")
    if state.recovered and record.get("new_data") is not True:
        raise ValueError("a data set begun after a recovery, not declared to be new")
    order, strata = record["order"], record.get("strata", [])
    lineage = Lineage(
        name,
        record["epsilon"],
        record["delta"],
        tuple(order) if isinstance(order, list) else order,
        approximate_delta=record.get("approximate_delta", 0.0),
        strata=tuple(strata),
    )
    _ = lineage.filter  # validates the numbers
    names = {s for s in strata if isinstance(s, str) and s}
    if not isinstance(strata, list) or len(names) != len(strata):
        raise ValueError("strata must be distinct names")
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
        study=record.get("study", ""),
        study_digest=record.get("study_digest", ""),
        plan_digest=record.get("plan_digest", ""),
        ready_at=record.get("ready_at", ""),
        decisions=record.get("decisions", ""),
    )
    if charge.id in state.charges:
        raise ValueError("charged twice")
    lineage = state.lineages[charge.lineage]
    if lineage.exhausted:
        raise ValueError("charged after all was charged")
    if lineage.undeclared(charge.events) is not None:
        raise ValueError("charged on a stratum that was never declared")
    state = _put(state, replace(lineage, charges=(*lineage.charges, charge)))
    return replace(state, charges={**state.charges, charge.id: charge})


def _settle(state: State, record: Mapping[str, Any], status: str) -> State:
    charge = state.charges[record["charge"]]
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
    state = _put(state, replace(lineage, charges=charges))
    return replace(state, charges={**state.charges, charge.id: settled})


def _recover(state: State, record: Mapping[str, Any]) -> State:
    if not _HASH.fullmatch(str(record["seen_head"])):
        raise ValueError("no hash")
    spent = {name: replace(each, exhausted=True) for name, each in state.lineages.items()}
    return replace(state, lineages=spent, recovered=state.seq)


def _put(state: State, lineage: Lineage) -> State:
    return replace(state, lineages={**state.lineages, lineage.name: lineage})


_APPLY: dict[str, Callable[[State, Mapping[str, Any]], State]] = {
    "open": _open,
    "lineage": _lineage,
    "version": _version,
    "reserve": _reserve,
    "commit": lambda state, record: _settle(state, record, "committed"),
    "burn": lambda state, record: _settle(state, record, "burnt"),
    "recover": _recover,
}

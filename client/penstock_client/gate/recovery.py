"""A ledger that was restored from an older copy: found out, stopped, and recovered.

A restored backup is a valid prefix of the ledger; the chain alone cannot see what is missing. But
every manifest that left the gate names, under the gate's own signature, the record that reserved
its charge. A position beyond the ledger's end, or one where the ledger has another record, proves
that the ledger is older than what it has shown. Such proof comes from the coordinator
(``Describe``) and from the site's own kept releases. An ordinary crash is no such proof: a manifest
is signed only after its reservation is durable, and records are never removed.

A proven rollback stops the gate for good, until the steward recovers the ledger:

- from an export, or another copy of ``gate.db``, that holds the lost records; or
- by charging the worst case. All that is provable of the lost records is that no lineage's filter
  ever admitted more than its total, so each lineage is charged everything that was left of it.
  That covers one line of lost records. What the gate released *after* the restore and before the
  proof came is charged as well, but on top of a total that may have been spent: nothing done now
  can undo that, which is why the proof is asked for at every start and at every ``Describe``.

What the lost records may have held besides charges: a *version* is lost with its certification
(``site check`` must be run again); a *lineage* that was begun in them is not known any more, and
would begin anew with a fresh budget. So after a worst-case recovery a new lineage must be declared
by the steward to hold rows that were in no data set before (``site check --new-data``); the ledger
keeps that declaration, and refuses a lineage without it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.base.documents import Json
from penstock.base.errors import LedgerError, PenstockError
from penstock.base.files import sync_directory, write_atomic
from penstock.base.times import stamp_now
from penstock.wire.canonical import canonical, read_json
from penstock.wire.manifest import MANIFEST
from penstock.wire.messages import MAX_MANIFEST_BYTES, JobState
from penstock.wire.signatures import verify
from penstock_client.gate import release
from penstock_client.gate.facts import locate_dictionary
from penstock_client.gate.jobs import Jobs
from penstock_client.ledger.chain import MAX_SEQ
from penstock_client.ledger.decisions import Who, open_decisions
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.records import EXPORT_FORMAT, verify_records
from penstock_client.ledger.sqlite_file import Database, hold_exclusively
from penstock_client.ledger.state import State
from penstock_client.site.site_paths import SitePaths

log = logging.getLogger("penstock.gate")

FORMAT = "penstock-rollback/1"
STOPPED = (
    "the ledger is older than what this gate has shown: it was restored from an older copy. "
    "No study is answered until the ledger is recovered: `penstock site ledger recover`"
)
_SQLITE = b"SQLite format 3\x00"
_ALIGNED = (JobState.AWAITING, JobState.QUEUED, JobState.RUNNING, JobState.DELIVERED)
Record = tuple[int, str, str, str]


@dataclass(frozen=True, slots=True)
class Proof:
    """A position of the ledger, by the gate's own signature."""

    seq: int
    head: str
    manifest: bytes


def read_proof(manifest: bytes, gate_key: str) -> Proof | None:
    """The position that a manifest names, if ``gate_key`` signed it; None for anything else.

    Only the signature and two fields count, so that a manifest of another version of Penstock
    proves as much as one of this version.
    """
    try:
        record = read_json(manifest, what="manifest", limit=MAX_MANIFEST_BYTES)
        body = record["manifest"]
        verify(gate_key, MANIFEST, canonical(body), record["signature"])
        seq, head = body["ledger_seq"], body["ledger_head"]
        if isinstance(seq, bool) or not isinstance(seq, int) or not 1 <= seq <= MAX_SEQ:
            raise ValueError("not a position")
        if len(bytes.fromhex(head)) != 32:
            raise ValueError("not a hash")
    except (PenstockError, ValueError, TypeError, KeyError, RecursionError) as error:
        log.warning("a manifest that proves nothing was shown: %s", type(error).__name__)
        return None
    return Proof(seq, head, manifest)


def contradicts(proof: Proof, state: State, heads: dict[int, str]) -> bool:
    """Whether a ledger with these records is older than, or another than, the proof's.

    What lies before the last ``recover`` record has been paid for by it.
    """
    if proof.seq < state.recovered:
        return False
    return heads.get(proof.seq) != proof.head


def find_contradiction(paths: SitePaths, ledger: Ledger, gate_key: str) -> Proof | None:
    """The newest proof at this site that its ledger is older than what it has shown.

    Raises:
        LedgerError: there is stored evidence that cannot be read.
    """
    known = [read_proof(p.read_bytes(), gate_key) for p in _find_manifests(paths)]
    if paths.evidence.exists():
        known.append(_read_stored(paths, gate_key))
    state, heads = ledger.state(), _list_heads(ledger.records())
    against = [p for p in known if p is not None and contradicts(p, state, heads)]
    return max(against, key=lambda p: p.seq, default=None)


def _find_manifests(paths: SitePaths) -> Iterator[Path]:
    return paths.releases.glob(f"[0-9a-f]*/{release.MANIFEST_FILE}")


def _list_heads(records: list[Record]) -> dict[int, str]:
    return {seq: hash_ for seq, _, hash_, _ in records}


def _read_stored(paths: SitePaths, gate_key: str) -> Proof:
    try:
        record = json.loads(paths.evidence.read_text(encoding="utf-8"))
        proof = read_proof(record["manifest"].encode(), gate_key)
    except (ValueError, KeyError, TypeError, AttributeError):
        proof = None
    if proof is None:
        raise LedgerError(
            "the evidence that the ledger was restored is damaged",
            value=paths.evidence,
            remedy="start the gate, so that the coordinator shows it again",
        )
    return proof


class Watch:
    """Whether this gate must not answer, since its ledger was restored from an older copy."""

    def __init__(self, paths: SitePaths, ledger: Ledger, gate_key: str) -> None:
        self._paths = paths
        self._ledger = ledger
        self._gate_key = gate_key
        self._saved = False
        self.stopped = False
        self._begin()

    def _begin(self) -> None:
        try:
            proof = find_contradiction(self._paths, self._ledger, self._gate_key)
        except LedgerError as error:
            log.error("%s", error)
            self.stopped = True
            return
        if proof is not None:
            self._stop(proof)
        elif self._paths.evidence.exists():
            _forget_evidence(self._paths)  # recovered, and killed before this could be said

    def look(self, manifest: bytes) -> None:
        """Consider what a coordinator holds of this site; never raises for what it is."""
        if not manifest or (self.stopped and self._saved):
            return
        proof = read_proof(manifest, self._gate_key)
        if proof is None:
            return
        if contradicts(proof, self._ledger.state(), _list_heads(self._ledger.records())):
            self._stop(proof)

    def _stop(self, proof: Proof) -> None:
        self.stopped = True
        log.error("%s", STOPPED)
        state = self._ledger.state()
        record = {
            "format": FORMAT,
            "found": stamp_now(),
            "seen_seq": proof.seq,
            "seen_head": proof.head,
            "own_seq": state.seq,
            "own_head": state.head,
            "manifest": proof.manifest.decode(),
        }
        try:
            write_atomic(self._paths.evidence, json.dumps(record, indent=1).encode() + b"\n")
            self._saved = True
        except OSError as error:
            # Stopped all the same, while this process lives; tried again at the next Describe.
            log.error("the evidence cannot be stored: %s", error.strerror)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a recovery did.

    Attributes:
        seq: the ledger's position after it.
        records: how many records were added.
        burnt: reservations that were open, and stay charged.
        exhausted: lineages of which nothing is left.
    """

    seq: int
    records: int
    burnt: int
    exhausted: tuple[str, ...]


def recover_from(paths: SitePaths, source: Path, reason: str = "") -> Recovered:
    """Append the lost records, as they are, from an export or another copy of ``gate.db``.

    Reservations that are open at its end are burnt; nothing else is charged.

    Raises:
        LedgerError: the file does not extend this ledger, or ends before what was shown.
        LedgerLocked: the gate runs.
    """
    with _open_ledger(paths) as (ledger, gate_key):
        theirs = _read_records(source, gate_key)
        whole = verify_records(theirs, gate_key)
        ours = ledger.records()
        _check_extends(ours, theirs, source)
        proof = find_contradiction(paths, ledger, gate_key)
        if proof is not None and contradicts(proof, whole, _list_heads(theirs)):
            raise LedgerError(
                "the file ends before the newest record that was shown",
                value=f"record {whole.seq}",
                bound=f"record {proof.seq} with hash {proof.head[:16]}…",
                remedy="find a later copy, or --accept-worst-case",
            )
        more = theirs[len(ours) :]
        _record_recovery(paths, ledger, reason, records=len(more), source=str(source))
        if any(json.loads(body)["kind"] == "version" for _, body, _, _ in more):
            # The rows here may be those of an older version.
            locate_dictionary(paths).unlink(missing_ok=True)
        with ledger.database.transaction():
            state = ledger.extend(more, gate_key)
            _take_jobs(source, Jobs(ledger.database))
            state, burnt = _burn_open(paths, ledger, state, gate_key)
        _forget_evidence(paths)
    return Recovered(state.seq, len(more), burnt, _find_exhausted(state))


def recover_worst_case(paths: SitePaths, reason: str = "") -> Recovered:
    """Charge every lineage all that was left of it, in one record, and go on after the lost ones.

    Reservations that are open are burnt: a part in sums of many sites may have answered rounds that
    were lost, and would answer them again.

    Raises:
        LedgerError: nothing proves that this ledger was restored.
        LedgerLocked: the gate runs.
    """
    with _open_ledger(paths) as (ledger, gate_key):
        proof = find_contradiction(paths, ledger, gate_key)
        if proof is None:
            raise LedgerError(
                "nothing shows that this ledger is older than it should be",
                value=f"record {ledger.state().seq}",
                remedy="there is nothing to recover",
            )
        _record_recovery(paths, ledger, reason, worst_case=True, seen_seq=proof.seq)
        locate_dictionary(paths).unlink(missing_ok=True)
        with ledger.database.transaction():
            state = ledger.append(
                "recover",
                seen_seq=proof.seq,
                seen_head=proof.head,
                lineages=sorted(ledger.state().lineages),
            )
            state, burnt = _burn_open(paths, ledger, state, gate_key)
        _forget_evidence(paths)
    return Recovered(state.seq, 1, burnt, _find_exhausted(state))


def _burn_open(paths: SitePaths, ledger: Ledger, state: State, gate_key: str) -> tuple[State, int]:
    """Burn every reservation that is open, and end the jobs; how many there were."""
    found = [charge.id for charge in state.charges.values() if charge.status == "reserved"]
    for charge in found:
        state = ledger.burn(charge, "interrupted")
    _align_jobs(paths, Jobs(ledger.database), state, gate_key)
    return state, len(found)


def _record_recovery(paths: SitePaths, ledger: Ledger, reason: str, **details: object) -> None:
    with open_decisions(paths, ledger.state().site) as decisions:
        decisions.append("recover", Who.here(), reason, **details)


def _find_exhausted(state: State) -> tuple[str, ...]:
    return tuple(name for name, lineage in state.lineages.items() if lineage.exhausted)


@contextlib.contextmanager
def _open_ledger(paths: SitePaths) -> Iterator[tuple[Ledger, str]]:
    """The ledger for writing, verified, under the site's lock."""
    key, gate_key = paths.key(), paths.gate_public()
    with hold_exclusively(paths.lock):
        database = Database(paths.database)
        try:
            ledger = Ledger(database, key)
            ledger.verify(gate_key)
            yield ledger, gate_key
        finally:
            database.close()


def _read_records(source: Path, gate_key: str) -> list[Record]:
    """The records of an export or of a ledger's file; not verified yet.

    Raises:
        LedgerError: neither, or another gate's.
    """
    with source.open("rb") as file:
        sqlite = file.read(len(_SQLITE)) == _SQLITE
    if sqlite:
        database = Database(source, read_only=True)
        try:
            return Ledger(database, None).records()
        finally:
            database.close()
    remedy = "use what `penstock site ledger export` wrote, or a copy of ledger/gate.db"
    try:
        document: Json = json.loads(source.read_text(encoding="utf-8"))
        if document["format"] != EXPORT_FORMAT:
            raise ValueError(document["format"])
        named = document["gate_key"]
        records = [
            (json.loads(r["body"])["seq"], r["body"], r["hash"], r["signature"])
            for r in document["records"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LedgerError("not a ledger", value=source, remedy=remedy) from None
    if named != gate_key:
        raise LedgerError("the ledger of another gate", value=source, remedy=remedy)
    return records


def _check_extends(ours: list[Record], theirs: list[Record], source: Path) -> None:
    """The other's records begin with ours, one by one, and go on.

    Raises:
        LedgerError: they do not.
    """
    for mine, other in zip(ours, theirs, strict=False):
        if mine[:3] != other[:3]:
            raise LedgerError(
                f"the file and this ledger part at record {mine[0]}: both hold what the other "
                "does not",
                value=source,
                remedy="only --accept-worst-case is left",
            )
    if len(theirs) <= len(ours):
        raise LedgerError(
            "the file holds no record that this ledger does not",
            value=f"{len(theirs)} records",
            bound=f"more than {len(ours)}",
            remedy="find a later copy, or --accept-worst-case",
        )


def _take_jobs(source: Path, jobs: Jobs) -> None:
    """Jobs that only the other copy of the database knows; an export has none."""
    with source.open("rb") as file:
        if file.read(len(_SQLITE)) != _SQLITE:
            return
    database = Database(source, read_only=True)
    try:
        for job in Jobs(database).all():
            if jobs.get(job.request_id) is None:
                jobs.add(job)
    finally:
        database.close()


def _align_jobs(paths: SitePaths, jobs: Jobs, state: State, gate_key: str) -> None:
    """Jobs of either copy whose charge is settled: a release that is here, or none."""
    for job in jobs.all():
        charge = state.charges.get(job.request_id)
        if charge is None or job.state not in _ALIGNED:
            continue
        kept = release.is_whole(paths.releases / job.request_id, gate_key)
        if charge.status == "committed" and kept:
            jobs.move(job.request_id, JobState.DELIVERED, stamp_now())
        else:
            jobs.move(job.request_id, JobState.FAILED, stamp_now(), "interrupted")


def _forget_evidence(paths: SitePaths) -> None:
    """The evidence has been answered for."""
    paths.evidence.unlink(missing_ok=True)
    sync_directory(paths.evidence.parent)

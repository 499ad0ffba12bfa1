"""Who decided what at a site: a second chain of signed records, beside the ledger's.

It is not in the ledger because the ledger's length is public: a silent "no" would show there as a
step. Its head goes into every reservation, so that whoever holds the ledger's head can tell whether
the decisions that led there were changed, or cut off, since.

A record is canonical JSON ``{seq, prev, time, kind, by, reason, salt, …}``, hashed and signed as
the ledger's are, under a purpose of its own. The salt keeps whoever sees a head from guessing what
was decided. Kinds:

============  ==================================================================================
open          the chain's birth: site and gate key
certify       rows were certified: data set, version, persons, by which recoding, and what was
              declared
approve       a waiting request may run
reject        it may not; ``silent`` where the network is not told
trust-add     an analyst's key was pinned: its label, ε and last day
trust-revoke  one was taken back
peer-add      another site's gate key was pinned
peer-remove   one was unpinned
policy        ``policy.toml`` as it was found: at first, and whenever it had changed
trust         ``trust.json`` as it was found, where no command had written it so
peers         ``peers.json`` likewise
recover       the ledger was taken back into use after records of it were lost
lost          the ledger names decisions that this chain does not hold
============  ==================================================================================

``by`` is the operating system's user, as the deciding command saw it. ``claimed`` is what ``sudo``
says of who stands behind: the user's own environment, and no proof.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.base.documents import Json, JsonView
from penstock.base.errors import InvalidInput, LedgerCorrupt, LedgerError, Problem, SignatureError
from penstock.base.times import stamp_now
from penstock.wire.canonical import canonical, read_json
from penstock.wire.signatures import public_hex, sign, verify
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import GENESIS
from penstock_client.site.site_paths import SitePaths

RECORD = "decision-record"
MAX_TEXT = 100_000
"""Of a file that is kept as it was found; of a longer one the digest alone is."""
MAX_REASON = 1_000
LOST = (
    "the ledger names decisions that decisions.db does not hold: it was lost, or restored from an "
    "older copy. What is missing is missing for good, and `ledger verify` says so"
)
_CLAIMS = ("SUDO_UID", "SUDO_USER")
_TRUST = ("trust", "trust-add", "trust-revoke")
_PEERS = ("peers", "peer-add", "peer-remove")


@dataclass(frozen=True, slots=True)
class Who:
    """A user of the operating system.

    Attributes:
        uid: None where the deciding command did not say.
        claimed: what the command's environment says of who called ``sudo``; not proven.
    """

    uid: int | None
    user: str = ""
    claimed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def here(cls) -> Who:
        """Whoever runs this process."""
        uid = os.getuid()
        with contextlib.suppress(KeyError):  # a user without an entry, as in a container
            return cls(uid, pwd.getpwuid(uid).pw_name, _read_claims())
        return cls(uid, "", _read_claims())

    def to_dict(self) -> Json:
        """Its form in a record."""
        shown: Json = {"uid": self.uid, "user": self.user}
        return shown | ({"claimed": dict(self.claimed)} if self.claimed else {})


def _read_claims() -> dict[str, str]:
    return {name: os.environ[name][:64] for name in _CLAIMS if os.environ.get(name)}


class _DecisionsFile(Database):
    tables = """
CREATE TABLE decision (
    seq       INTEGER PRIMARY KEY,
    body      TEXT NOT NULL,
    hash      TEXT NOT NULL UNIQUE,
    signature TEXT NOT NULL
) STRICT;
CREATE TRIGGER decision_no_update BEFORE UPDATE ON decision
    BEGIN SELECT RAISE(ABORT, 'decisions are never changed'); END;
CREATE TRIGGER decision_no_delete BEFORE DELETE ON decision
    BEGIN SELECT RAISE(ABORT, 'decisions are never deleted'); END;
"""
    version_written = 1
    versions_read = (1,)


Record = tuple[int, str, str, str]


class Decisions:
    """The chain of decisions of a site; several processes may write to it.

    Unlike the ledger it needs no lock of the site: ``trust add`` writes while the gate runs.

    Args:
        paths: the site's; the chain begins with its first decision.
        key: the gate's signing key, or None for reading only.
        clock: returns RFC 3339 UTC.
    """

    def __init__(
        self,
        paths: SitePaths,
        key: Ed25519PrivateKey | None,
        clock: Callable[[], str] = stamp_now,
    ) -> None:
        self._key = key
        self._clock = clock
        if key is not None and not paths.decisions.exists():
            try:
                _DecisionsFile.create(paths.decisions).close()
            except LedgerError:
                if not paths.decisions.exists():  # else another process was quicker
                    raise
        self._file = _DecisionsFile(paths.decisions, read_only=key is None)

    def close(self) -> None:
        self._file.close()

    # -- reading -------------------------------------------------------------------------------

    def records(self) -> list[Record]:
        """(seq, body, hash, signature) in order."""
        rows = self._file.query("SELECT seq, body, hash, signature FROM decision ORDER BY seq")
        return [(int(str(a)), str(b), str(c), str(d)) for a, b, c, d in rows]

    @property
    def head(self) -> str:
        """The newest record's hash; zeros where there is none."""
        return self._last()[1]

    def _last(self) -> tuple[int, str, str]:
        """(seq, hash, time) of the newest record."""
        rows = self._file.query("SELECT seq, hash, body FROM decision ORDER BY seq DESC LIMIT 1")
        if not rows:
            return 0, GENESIS, ""
        return int(str(rows[0][0])), str(rows[0][1]), str(_parse_body(str(rows[0][2]))["time"])

    def holds(self, head: str) -> bool:
        """Whether a record with this hash is in the chain."""
        return head == GENESIS or bool(
            self._file.query("SELECT 1 FROM decision WHERE hash = ?", head)
        )

    def _newest(self, kinds: Sequence[str]) -> Json:
        """The newest record of some kinds; empty where there is none."""
        marks = ", ".join("?" for _ in kinds)
        rows = self._file.query(
            f"SELECT body FROM decision WHERE json_extract(body, '$.kind') IN ({marks}) "
            "ORDER BY seq DESC LIMIT 1",
            *kinds,
        )
        return _parse_body(str(rows[0][0])) if rows else {}

    def export(self) -> list[dict[str, str]]:
        """The records as they stand in an exported ledger."""
        return [{"body": b, "hash": h, "signature": s} for _, b, h, s in self.records()]

    # -- writing -------------------------------------------------------------------------------

    def begin(self, site: str) -> None:
        """Write the first record, if there is none."""
        with self._file.transaction():
            if self.head == GENESIS and self._key is not None:
                self.append("open", Who.here(), site=site, gate_key=public_hex(self._key))

    def append(self, kind: str, by: Who, reason: str = "", **details: object) -> None:
        """Write a decision, durably, before it takes effect.

        Raises:
            InvalidInput: a reason too long to be one.
            LedgerUnwritable: it cannot be written; the decision must not be carried out.
        """
        if self._key is None:
            raise LedgerError("these decisions were opened for reading only")
        check_reason(reason)
        with self._file.transaction() as connection:
            seq, head, time = self._last()
            record = {
                **details,
                "seq": seq + 1,
                "prev": head,
                "time": max(self._clock(), time),
                "kind": kind,
                "by": by.to_dict(),
                "reason": reason,
                "salt": secrets.token_hex(16),
            }
            body = canonical(record)
            hash_ = hashlib.sha256(body).hexdigest()
            connection.execute(
                "INSERT INTO decision VALUES (?, ?, ?, ?)",
                (seq + 1, body.decode(), hash_, sign(self._key, RECORD, hash_.encode())),
            )

    def notice(self, paths: SitePaths) -> None:
        """Record the steward's files as they are found, where they changed since the last record.

        They are edited by hand, so that nobody can be asked who did it, and why.
        """
        for kind, kinds, path in (
            ("policy", ("policy",), paths.policy),
            ("trust", _TRUST, paths.trust),
            ("peers", _PEERS, paths.peers),
        ):
            found = path.read_bytes() if path.exists() else b""
            with self._file.transaction():
                before = self._newest(kinds).get("digest")
                if before == file_digest(found) or (before is None and not found):
                    continue
                kept = {"text": found.decode(errors="replace")} if len(found) <= MAX_TEXT else {}
                self.append(kind, Who.here(), digest=file_digest(found), **kept)

    def compare(self, named: str) -> bool:
        """Whether the decisions that the ledger names are here; if not, a record says so."""
        if self.holds(named):
            return True
        if self._newest(("lost",)).get("named") != named:
            self.append("lost", Who.here(), named=named)
        return False

    def verify(self, gate_key: str) -> list[Json]:
        """Every record, oldest first; chain and signatures are checked.

        Raises:
            LedgerCorrupt: naming the first record that fails.
        """
        return verify_decisions(self.records(), gate_key)


def file_digest(content: bytes) -> str:
    """How a decision names a file: SHA-256 of its bytes."""
    return hashlib.sha256(content).hexdigest()


def verify_decisions(records: Sequence[Record], gate_key: str) -> list[Json]:
    """The decisions of (seq, body, hash, signature) records.

    Raises:
        LedgerCorrupt: naming the first record that fails.
    """
    head, time, found = GENESIS, "", []
    for place, (seq, body, hash_, signature) in enumerate(records, start=1):
        record = _parse_body(body)
        try:
            verify(gate_key, RECORD, hash_.encode(), signature)
        except SignatureError:
            raise _report_corrupt(place, "its signature does not match the gate's key") from None
        if hashlib.sha256(body.encode()).hexdigest() != hash_:
            raise _report_corrupt(place, "its text was changed")
        if (seq, record.get("seq"), record.get("prev")) != (place, place, head):
            raise _report_corrupt(place, "it does not follow the one before")
        if str(record.get("time")) < time:
            raise _report_corrupt(place, "its time runs backwards")
        head, time = hash_, str(record["time"])
        found.append({**record, "hash": hash_})
    return found


def check_reason(reason: str) -> None:
    """Refuse what is no reason.

    Raises:
        InvalidInput: too long.
    """
    if len(reason) > MAX_REASON:
        problem = Problem("--reason", "too long", bound=f"at most {MAX_REASON} characters")
        raise InvalidInput("reason", [problem])


@contextlib.contextmanager
def open_decisions(paths: SitePaths, site: str) -> Iterator[Decisions]:
    """The chain for writing, from a command that holds nothing else of the gate."""
    found = Decisions(paths, paths.key())
    try:
        found.begin(site)
        yield found
    finally:
        found.close()


def read_decisions(paths: SitePaths) -> list[Json]:
    """Every decision of a site, oldest first, checked; none where none was made yet.

    Raises:
        LedgerCorrupt: naming the first record that fails.
    """
    if not paths.decisions.exists():
        return []
    found = Decisions(paths, None)
    try:
        return found.verify(paths.gate_public())
    finally:
        found.close()


def export_decisions(paths: SitePaths) -> list[dict[str, str]]:
    """The chain as it stands in an exported ledger; empty where no decision was made yet."""
    if not paths.decisions.exists():
        return []
    found = Decisions(paths, None)
    try:
        return found.export()
    finally:
        found.close()


def read_exported_decisions(document: JsonView, gate_key: str) -> list[Json] | None:
    """The decisions of an exported ledger, checked; None where it was written without them.

    Raises:
        LedgerCorrupt: naming the first record that fails.
    """
    entries = document.get("decisions")
    if entries is None:
        return None
    try:
        records = [
            (place, str(e["body"]), str(e["hash"]), str(e["signature"]))
            for place, e in enumerate(entries, start=1)
        ]
    except (TypeError, KeyError):
        raise _report_corrupt(1, "it is no record") from None
    return verify_decisions(records, gate_key)


def name_decider(by: JsonView) -> str:
    """A decision's ``by``, for a person; what sudo says is said to be claimed."""
    name = by["user"] or ("not said" if by["uid"] is None else f"uid {by['uid']}")
    claimed = by.get("claimed", {})
    behind = claimed.get("SUDO_USER") or claimed.get("SUDO_UID")
    return f"{name} (claimed: {behind})" if behind else name


def _parse_body(body: str) -> Json:
    return read_json(body.encode(), what="decision", limit=1_000_000)


def _report_corrupt(place: int, what: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"decision {place}: {what}; nothing was overwritten",
        remedy="restore the file of decisions from a backup and tell every coordinator",
    )

"""A study's life at the coordinator: invited sites, answers, quorum, deadline.

One pump, restartable at any line: everything that matters is in the store, every message is
idempotent at the site, and every reply is handled in one transaction. Studies may be submitted
and cancelled from other processes at the same time. Results are made by another process
(:mod:`penstock_server.operate.builder`), so that one study's do not keep the others waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.base.checks import SITE, SITE_BOUND
from penstock.base.errors import CoordinatorError, UploadRejected
from penstock.schema import Schema, compare
from penstock.study.study import Study, parse_time
from penstock.wire.manifest import Manifest
from penstock.wire.messages import SERVED_MAJORS, JobState, SiteState, StudyState, explain_part
from penstock.wire.signatures import fingerprint
from penstock.wire.signed import SignedStudy, read_signed_cancel, read_signed_study
from penstock_server.access.accesslog import AccessLog, Visitor, here
from penstock_server.intake.uploads import check_manifest, read_upload, size_limit
from penstock_server.store.database import Transaction
from penstock_server.store.folder import Folder
from penstock_server.store.leases import MOST_CRASHES, Leases, Pooling
from penstock_server.store.mailbox import Message, Reply, Verb
from penstock_server.store.register import SiteRow, StudyRow
from penstock_server.store.store import Store

log = logging.getLogger("penstock.coordinator")

POLL_LEAST = {
    JobState.AWAITING: 5.0,  # a steward has to look
    JobState.QUEUED: 3.0,
    JobState.RUNNING: 1.0,
}
POLL_MOST, POLL_SHARE = 15.0, 0.1
"""Seconds between two polls: a tenth of the study's age, within these bounds."""
RETRY_SECONDS = 10.0
BACKOFF_LIMIT = 60.0
MAX_PERSONS = 1_000_000_000
TEXT_LIMIT = 500
"""Characters of a site's text that are kept."""
PASSING = ("internal", "busy", "misconfigured", "ledger", "rolled-back", "not-yet-valid")
"""Refusals that may pass: the gate's own trouble, or a clock that is a little behind."""

SAID = ("software", "wire", "ledger_seq", "stopped")
"""What is kept of a site's description of itself."""

_SITE_STATE = {
    JobState.AWAITING: SiteState.AWAITING,
    JobState.QUEUED: SiteState.RUNNING,
    JobState.RUNNING: SiteState.RUNNING,
    JobState.FAILED: SiteState.FAILED,
    JobState.REJECTED: SiteState.REFUSED,
    JobState.CANCELLED: SiteState.CANCELLED,
}


class NoSuchStudy(CoordinatorError):
    """None of this name or id; or none that whoever asks may know of."""


def now() -> datetime:
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """RFC 3339 UTC with microseconds; sorts as text."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class Limits:
    """How many studies may be open at once: of one account, and in all."""

    each: int = 20
    all: int = 200


class Coordinator:
    """Studies and sites over a store; tables below ``folder/uploads``.

    Args:
        limits: on open studies.
        clock: the current time, UTC.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        *,
        limits: Limits = Limits(),
        clock: Callable[[], datetime] = now,
    ) -> None:
        self.store = store
        self.folder = folder
        self.access = AccessLog(store, Folder(folder).access_key, lambda: stamp(clock()))
        self.leases = Leases(store, clock, stamp)
        self._limits = limits
        self._clock = clock
        self._stopped: set[str] = set()  # sites of which it was logged

    # -- asked by people -----------------------------------------------------------------------

    def submit(self, data: bytes, by: Visitor | None = None) -> str:
        """Take a signed study and invite its sites; the same study again changes nothing.

        Args:
            by: whose account owns it; None for whoever holds the directory.

        Returns:
            The study's id.

        Raises:
            SignatureError, InvalidInput: not a signed study.
            CoordinatorError: expired, unknown sites, a schema that a site does not carry, or too
                many open studies.
        """
        visitor = by or here()
        signed = read_signed_study(data)
        study, moment = signed.study, self._clock()
        if self.store.studies.find(signed.study_id) is not None:
            return signed.study_id
        self._check_new(signed, moment)
        deadline = moment + timedelta(hours=study.deadline_hours)
        row = StudyRow(
            signed.study_id,
            study.name,
            data,
            StudyState.OPEN,
            stamp(moment),
            stamp(deadline),
            "",
            "",
            visitor.account,
            signed.signer,
        )

        def admit(c: Transaction) -> None:
            self._check_open(c, visitor.account)
            self.access.append(
                c,
                "submit",
                study=row.id,
                name=row.name,
                signer=row.signer,
                readers=list(study.readers),
                **visitor.fields,
            )

        self.store.studies.add(row, study.sites, readers=study.readers, within=admit)
        log.info("study %s (%s) open", study.name, signed.study_id[:12])
        return signed.study_id

    def _check_new(self, signed: SignedStudy, moment: datetime) -> None:
        study, sites = signed.study, self.store.sites.all()
        if int(study.wire.split(".")[0]) not in SERVED_MAJORS:
            raise CoordinatorError("this wire version is not served", value=study.wire)
        if moment >= parse_time(study.expires):
            raise CoordinatorError(
                "the study has expired", value=study.expires, remedy="renew it and sign again"
            )
        unknown = [s for s in study.sites if s not in sites]
        if unknown:
            raise CoordinatorError(
                "sites that are not enrolled here",
                value=", ".join(unknown),
                bound=f"enrolled: {', '.join(sites) or 'none'}",
            )
        for name in study.sites:
            site = sites[name]
            if site.federation != study.federation:
                raise CoordinatorError(
                    f"{name} is in another federation",
                    value=study.federation,
                    bound=site.federation,
                )
            problems = compare(study.schema, Schema.from_dict(site.join["dictionary"]))
            if problems:
                raise CoordinatorError(
                    f"{name} does not carry the study's schema",
                    value="; ".join(str(p) for p in problems[:5]),
                    remedy="nothing was asked of any site",
                )

    def _check_open(self, c: Transaction, account: str) -> None:
        """Refuse one study too many, before anything is stored."""
        remedy = "wait until one ends, or cancel one: see `penstock study list`"
        mine = self.store.studies.count_open(c, account)
        # Whoever holds the directory sets these limits, and has none of their own.
        if account and not mine < self._limits.each:
            raise CoordinatorError(
                "too many studies of this account are open",
                value=mine,
                bound=f"at most {self._limits.each}",
                remedy=remedy,
            )
        if not self.store.studies.count_open(c) < self._limits.all:
            raise CoordinatorError(
                "too many studies are open at this coordinator",
                bound=f"at most {self._limits.all}",
                remedy="try again when some have ended, or ask who runs it",
            )

    def cancel(self, data: bytes, by: Visitor | None = None) -> None:
        """End a study that has not ended, if its own signer says so.

        Also while its results are made: then they are not, whoever is at it.

        Args:
            by: who hands it in; None for whoever holds the directory.

        Raises:
            CoordinatorError: unknown or ended study, or another signer.
        """
        row, moment = self._study_of(data, "cancel"), stamp(self._clock())
        with self.store.begin() as c:
            state = self.store.studies.lock(c, row.id)
            if state is None or state.final:
                raise CoordinatorError("the study has ended already", value=state)
            self.access.append(c, "cancel", study=row.id, **(by or here()).fields)
            for part in self.store.studies.parts(row.id):
                if not part.state.final:
                    self.store.mailbox.send(c, row.id, part.site, "cancel", data, moment)
                    self._set(c, part, SiteState.CANCELLED, "cancelled")
            self.store.studies.end(c, row.id, StudyState.CANCELLED, moment)

    def close(self, data: bytes, by: Visitor | None = None) -> None:
        """Have results made now, of what was delivered, if an open study's signer says so.

        Sites that are not known to have begun get the signed cancellation, as they can check no
        other word of the analyst's: what has not begun there costs nothing. A run that is under way
        is charged already, and goes on: its end tells nobody more than it does in any other study.
        What is delivered later changes nothing here. All of it is one transaction, as at the
        deadline; a study that is closed already stays as it is.

        Args:
            data: a signed cancellation of the study.
            by: who hands it in; None for whoever holds the directory.

        Raises:
            CoordinatorError: unknown study, another signer, no quorum, or ended without results.
        """
        row, moment = self._study_of(data, "close"), stamp(self._clock())
        quorum = _quorum(row)
        with self.store.begin() as c:
            state = self.store.studies.lock(c, row.id)
            if state in (StudyState.POOLING, StudyState.FINISHED):
                return
            if state is not StudyState.OPEN:
                raise CoordinatorError("the study has ended already", value=state)
            parts = self.store.studies.parts(row.id)
            delivered = _delivered(parts)
            if delivered < quorum:
                raise CoordinatorError(
                    "too few sites have delivered to close the study",
                    value=delivered,
                    bound=f"a quorum of {quorum}",
                    remedy="wait for more, or cancel it",
                )
            self.access.append(c, "close", study=row.id, **(by or here()).fields)
            self.leases.open(c, row.id, moment, delivered)
            for part in parts:
                if not part.state.final:
                    self._leave_out(c, part, data, moment)
        log.info("study %s: closed with %d of %d sites", row.name, delivered, len(parts))

    def _study_of(self, data: bytes, verb: str) -> StudyRow:
        """The study that a signed cancellation is of; only its own signer's word counts."""
        wish = read_signed_cancel(data)
        row = self.store.studies.find(wish.study_id)
        if row is None:
            raise CoordinatorError("no such study", value=_text(wish.study_id, 64))
        if read_signed_study(row.signed).signer != wish.signer:
            raise CoordinatorError(f"only a study's own signer can {verb} it")
        return row

    def _leave_out(self, c: Transaction, part: SiteRow, cancellation: bytes, moment: str) -> None:
        """End the part of a site that is late; one that has begun is not told to stop."""
        # Progress shows from the charge on, and not before.
        begun = part.state is SiteState.RUNNING and part.steps > 0
        if not begun:
            self.store.mailbox.send(c, part.study_id, part.site, "cancel", cancellation, moment)
        self._set(c, part, SiteState.TIMED_OUT, "late-run" if begun else "late")

    def find(self, prefix: str, account: str | None = None) -> StudyRow:
        """The one study whose id begins with, or whose name is, ``prefix``.

        Args:
            account: who asks: what it may not read is not there; None may read all.

        Raises:
            NoSuchStudy: none.
            CoordinatorError: several.
        """
        exact = self._readable(account, prefix)
        if exact:
            return exact[0]
        rows = self._readable(account)
        # A name may look like the start of another study's id: then neither is guessed.
        found = [r for r in rows if prefix and (r.id.startswith(prefix) or r.name == prefix)]
        if not found:
            raise NoSuchStudy("no such study", value=prefix[:80])
        if len(found) > 1:
            raise CoordinatorError(
                "several studies of that name",
                value=prefix,
                bound=", ".join(r.id[:12] for r in found),
                remedy="use the id",
            )
        return found[0]

    def _readable(self, account: str | None, study_id: str | None = None) -> list[StudyRow]:
        if account is not None:
            return self.store.studies.readable_by(account, study_id)
        if study_id is None:
            return self.store.studies.all()
        row = self.store.studies.find(study_id)
        return [] if row is None else [row]

    def studies(self, account: str | None = None) -> list[dict[str, Any]]:
        """The status of every study that ``account`` may read, oldest first; None reads all."""
        return [self._status(row) for row in self._readable(account)]

    def status(self, prefix: str) -> dict[str, Any]:
        """A study and each site's part in it, with codes explained."""
        return self._status(self.find(prefix))

    def _status(self, row: StudyRow) -> dict[str, Any]:
        study = read_signed_study(row.signed).study
        pooling = self.leases.look(row.id) if row.state is StudyState.POOLING else None
        return {
            "study": row.id,
            "name": row.name,
            "title": study.title,
            "owner": row.owner,
            "readers": list(study.readers),
            "state": str(row.state),
            "created": row.created,
            "deadline": row.deadline,
            "finished": row.finished,
            "quorum": study.quorum,
            "note": row.note or _trouble(pooling),
            "pooling": pooling and {"sites": pooling.sites, "done": pooling.done},
            "sites": [_part(p) for p in self.store.studies.parts(row.id)],
        }

    # -- what the pump needs -------------------------------------------------------------------

    def now(self) -> str:
        return stamp(self._clock())

    def receive(self, replies: Sequence[tuple[Message, Reply]]) -> None:
        """Put replies into the inbox, and take their messages out of the outbox."""
        self.store.mailbox.receive([(message, _bounded(reply)) for message, reply in replies])

    def saw_site(self, site: str, facts: Mapping[str, Any]) -> None:
        """Remember when a site was last heard of, and what it said of itself."""
        said = {name: _text(str(facts[name]), 100) for name in SAID if name in facts}
        self.store.sites.note_said(site, stamp(self._clock()), said)
        if said.get("stopped") and site not in self._stopped:
            log.warning("%s has stopped: %s", site, said["stopped"])
        (self._stopped.add if said.get("stopped") else self._stopped.discard)(site)

    def later(self, message: Message, code: str = "") -> None:
        """No answer: try again, ever more rarely; ``code`` is why, for the analyst to see."""
        # The exponent is bounded too: a float overflows after a thousand attempts.
        wait = min(2.0 ** min(message.attempts, 10), BACKOFF_LIMIT)
        self.store.mailbox.postpone(message, self._in(wait))
        if code:
            with self.store.begin() as c:
                part = self.store.studies.part(message.study_id, message.site)
                if part is not None and not part.state.final:
                    self._update(c, part, code=_text(code, 40))

    def _in(self, seconds: float) -> str:
        return stamp(self._clock() + timedelta(seconds=seconds))

    def size_limit(self, message: Message) -> int:
        """The most bytes that the table which a message fetches may have."""
        study, site = self._study(message.study_id), self.store.sites.all()[message.site]
        return size_limit(study, site.persons)

    def _study(self, study_id: str) -> Study:
        row = self.store.studies.find(study_id)
        if row is None:
            raise CoordinatorError("no such study", value=study_id)
        return read_signed_study(row.signed).study

    def uploads(self, study_id: str) -> Path:
        """Where the sites' tables of a study lie."""
        return self.folder / "uploads" / study_id

    def table_path(self, study_id: str, site: str) -> Path:
        return table_path(self.uploads(study_id), site)

    def results(self, study_id: str) -> Path:
        """Where the results of a finished study lie."""
        return self.folder / "studies" / study_id

    def drop_pieces(self) -> None:
        """Forget tables that had come in part when the last pump ended: maybe by a crash."""
        for piece in (self.folder / "uploads").glob("*/*.part"):
            piece.unlink(missing_ok=True)

    def handle_inbox(self) -> None:
        """Apply every reply that waits, each in one transaction."""
        for received in self.store.mailbox.inbox():
            study_id, site = received.study_id, received.site
            verb, reply = received.verb, received.reply
            # Before the transaction: a large table must not keep others from the store.
            collected = verb == "collect" and reply.ok
            upload = self._check_upload(study_id, site, reply) if collected else None
            with self.store.begin() as c:
                self.store.mailbox.discard(c, received.id)
                self.store.studies.lock(c, study_id)
                part = self.store.studies.part(study_id, site)
                # A reply that comes after the end (a deadline, a cancellation) changes nothing.
                if part is not None and not part.state.final and verb != "cancel":
                    self._apply(c, part, verb, reply, upload)

    def _apply(
        self,
        c: Transaction,
        part: SiteRow,
        verb: Verb,
        reply: Reply,
        upload: Manifest | UploadRejected | None,
    ) -> None:
        if not reply.ok:
            self._refused(c, part, verb, reply)
        elif verb == "collect":
            self._collected(c, part, reply, upload)
        elif reply.state == JobState.DELIVERED:
            steps = max(part.steps, 1)
            done = {"request_id": reply.request_id, "step": steps, "steps": steps}
            self._update(c, part, state=str(SiteState.RUNNING), **done)
            self._next(c, part, "collect", reply.request_id, 0)
        elif reply.state in (JobState.AWAITING, JobState.QUEUED, JobState.RUNNING):
            self._set(
                c,
                part,
                _SITE_STATE[JobState(reply.state)],
                "",
                request_id=reply.request_id,
                step=reply.step,
                steps=reply.steps,
            )
            self._next(c, part, "poll", reply.request_id, self._wait(part, reply))
        elif reply.state in _SITE_STATE:
            self._set(c, part, _SITE_STATE[JobState(reply.state)], reply.code)
        else:
            self._set(c, part, SiteState.FAILED, "internal")

    def _wait(self, part: SiteRow, reply: Reply) -> float:
        row = self.store.studies.find(part.study_id)
        began = datetime.fromisoformat(row.created) if row else self._clock()
        age = (self._clock() - began).total_seconds()
        return max(POLL_LEAST[JobState(reply.state)], min(POLL_SHARE * age, POLL_MOST))

    def _refused(self, c: Transaction, part: SiteRow, verb: Verb, reply: Reply) -> None:
        if reply.code == "upload-rejected":
            self._set(c, part, SiteState.FAILED, reply.code, detail=reply.detail)
        elif reply.code in PASSING:
            body = part.request_id.encode() if verb != "submit" else self._signed(part)
            due = self._in(RETRY_SECONDS)
            self.store.mailbox.send(c, part.study_id, part.site, verb, body, due)
            self._update(c, part, code=reply.code)
        else:
            self._set(c, part, SiteState.REFUSED, reply.code, detail=reply.detail)

    def _signed(self, part: SiteRow) -> bytes:
        row = self.store.studies.find(part.study_id)
        return row.signed if row is not None else b""

    def _check_upload(
        self, study_id: str, site: str, reply: Reply
    ) -> Manifest | UploadRejected | None:
        """The manifest of a sound upload, what is wrong with it, or None if its table is gone."""
        part, study, enrolled = (
            self.store.studies.part(study_id, site),
            self._study(study_id),
            self.store.sites.all()[site],
        )
        if part is None:
            return None
        try:
            manifest = check_manifest(
                reply.manifest or b"",
                study,
                study_id,
                enrolled,
                ledger_seen=self.store.sites.ledger_heads(site),
                ledger_floor=part.ledger_floor,
                simulation=bool(self.store.values.get("simulation")),
            )
            if manifest.request_id != part.request_id:
                raise UploadRejected("the manifest answers another request")
            read_upload(site, manifest, self.table_path(study_id, site), study)
        except UploadRejected as error:
            return error
        except FileNotFoundError:
            return None
        return manifest

    def _collected(
        self, c: Transaction, part: SiteRow, reply: Reply, upload: Manifest | UploadRejected | None
    ) -> None:
        if upload is None:
            # A power cut took the table, or a crash came between rejecting it and saying so.
            self._next(c, part, "collect", part.request_id, 0)
        elif isinstance(upload, UploadRejected):
            log.warning("upload of %s rejected: %s", part.site, _text(str(upload)))
            self.table_path(part.study_id, part.site).unlink(missing_ok=True)
            self._set(c, part, SiteState.FAILED, "upload-rejected", detail=_text(str(upload)))
        else:
            seq, head = upload.ledger_seq, upload.ledger_head
            self.store.sites.note_position(c, part.site, seq, head, reply.manifest or b"")
            steps = {"step": part.steps, "steps": part.steps}
            self._set(c, part, SiteState.DELIVERED, "", manifest=reply.manifest, **steps)
            log.info("%s delivered to %s", part.site, part.study_id[:12])

    def _next(
        self, c: Transaction, part: SiteRow, verb: Verb, request_id: str, wait: float
    ) -> None:
        self.store.mailbox.send(
            c, part.study_id, part.site, verb, request_id.encode(), self._in(wait)
        )

    def _set(self, c: Transaction, part: SiteRow, state: SiteState, code: str, **more: Any) -> None:
        self._update(c, part, state=str(state), code=code, **more)

    def _update(self, c: Transaction, part: SiteRow, **values: Any) -> None:
        moment = stamp(self._clock())
        self.store.studies.update_part(c, part.study_id, part.site, updated=moment, **values)

    def close_studies(self) -> None:
        """End the studies whose deadline has come, or that need no more answers."""
        moment = stamp(self._clock())
        for row in self.store.studies.ending(moment):
            parts = self.store.studies.parts(row.id)
            if moment >= row.deadline:
                parts = [self._time_out(p) for p in parts]
            if all(p.state.final for p in parts):
                self._close(row, parts, moment)

    def _time_out(self, part: SiteRow) -> SiteRow:
        if part.state.final:
            return part
        answered = part.state is not SiteState.INVITED or part.code
        code = "no-answer" if answered else "unreachable"
        with self.store.begin() as c:
            # Cancelled by another process in the meantime: that stands.
            if self.store.studies.lock(c, part.study_id) is StudyState.OPEN:
                self._set(c, part, SiteState.TIMED_OUT, code)
        return replace(part, state=SiteState.TIMED_OUT, code=code)

    def _close(self, row: StudyRow, parts: list[SiteRow], moment: str) -> None:
        """Let results be made where there is a quorum; else the study has failed."""
        quorum, delivered = _quorum(row), _delivered(parts)
        with self.store.begin() as c:
            # Cancelled by another process in the meantime: that stands.
            if self.store.studies.lock(c, row.id) is not StudyState.OPEN:
                return
            if delivered >= quorum:
                self.leases.open(c, row.id, moment, delivered)
            else:
                note = f"{delivered} of {len(parts)} sites delivered; the quorum is {quorum}"
                self.store.studies.end(c, row.id, StudyState.FAILED, moment, note)
        last = "its results are next" if delivered >= quorum else f"the quorum is {quorum}"
        log.info("study %s: %d of %d sites delivered; %s", row.name, delivered, len(parts), last)

    def pool_again(self, prefix: str, by: Visitor | None = None) -> StudyRow:
        """Let the results of a study be made that could not be; no site is asked for anything.

        Args:
            by: who asks for it; None for whoever holds the directory.

        Raises:
            CoordinatorError: it has not failed, or failed for want of deliveries.
        """
        row = self.find(prefix)
        parts, quorum = self.store.studies.parts(row.id), _quorum(row)
        if row.state is StudyState.FAILED and _delivered(parts) < quorum:
            raise CoordinatorError(
                "too few sites delivered, so there is nothing to pool",
                value=_delivered(parts),
                bound=f"a quorum of {quorum}",
                remedy="ask the analyst to sign the study anew, with other sites or a later end",
            )
        with self.store.begin() as c:
            state = self.store.studies.lock(c, row.id)
            if state is not StudyState.FAILED:
                raise CoordinatorError(
                    "only a study that failed can be pooled again", value=state or row.state
                )
            self.access.append(c, "pool", study=row.id, **(by or here()).fields)
            self.leases.open(c, row.id, stamp(self._clock()), _delivered(parts))
        return row


def _quorum(row: StudyRow) -> int:
    return read_signed_study(row.signed).study.quorum


def _delivered(parts: Sequence[SiteRow]) -> int:
    return sum(part.state is SiteState.DELIVERED for part in parts)


def _trouble(pooling: Pooling | None) -> str:
    """Why results are late, where something has kept them from being made."""
    if pooling is None or not pooling.trouble:
        return ""
    tries = f" ({pooling.crashes} of {MOST_CRASHES} tries)" if pooling.crashes else ""
    return f"the results are late, because {pooling.trouble}{tries}; they are tried again"


def table_path(uploads: Path, site: str) -> Path:
    """A site's table in a study's folder of them."""
    return uploads / f"{site}.arrow"


def _text(text: str, limit: int = TEXT_LIMIT) -> str:
    """A site's text, short and printable: no store or terminal may stumble over it."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:limit])


def _bounded(reply: Reply) -> Reply:
    """A reply whose texts and numbers are no longer than what the store holds."""
    return replace(
        reply,
        code=_text(reply.code, 40),
        detail=_text(reply.detail),
        request_id=_text(reply.request_id, 64),
        state=_text(reply.state, 40),
        step=min(max(reply.step, 0), 1_000_000),
        steps=min(max(reply.steps, 0), 1_000_000),
    )


def _part(part: SiteRow) -> dict[str, Any]:
    meaning, remedy = explain_part(part.state, part.code)
    return {
        "site": part.site,
        "state": str(part.state),
        "code": part.code,
        "meaning": part.detail or meaning,
        "remedy": remedy,
        "step": part.step,
        "steps": part.steps,
        "request": part.request_id,
    }


def read_join(data: dict[str, Any]) -> dict[str, Any]:
    """Check a site's join record before it is enrolled.

    Raises:
        CoordinatorError: a field is missing or of the wrong kind.
        InvalidInput, SignatureError: the dictionary, or the key, is none.
    """
    wanted: dict[str, type] = {
        "site": str,
        "federation": str,
        "gate_key": str,
        "persons": int,
        "dictionary": dict,
        "node_key": str,
    }
    for name, kind in wanted.items():
        if not isinstance(data.get(name), kind) or isinstance(data.get(name), bool):
            raise CoordinatorError("not a site's join record", value=name, bound=kind.__name__)
    if not SITE.fullmatch(data["site"]):
        # The name becomes a file's name here.
        raise CoordinatorError("not a site's name", value=_text(data["site"], 80), bound=SITE_BOUND)
    if not 1 <= data["persons"] <= MAX_PERSONS:
        raise CoordinatorError("not a public n", value=data["persons"], bound=f"1 to {MAX_PERSONS}")
    fingerprint(data["gate_key"])
    Schema.from_dict(data["dictionary"])
    return data

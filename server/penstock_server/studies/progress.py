"""What sites answer: the state machine of each site's part in a study.

Restartable at any line: every message is idempotent at the site, and every reply is handled in one
transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from penstock.base.documents import JsonView
from penstock.base.errors import CoordinatorError, UploadRejected
from penstock.base.times import read_stamp
from penstock.study.study import Study
from penstock.wire.manifest import Manifest
from penstock.wire.messages import JobState, SiteState
from penstock_server.intake.texts import printable_text
from penstock_server.intake.uploads import check_manifest, read_upload, size_limit
from penstock_server.store.clock import Clock
from penstock_server.store.database import Transaction
from penstock_server.store.folder import Folder
from penstock_server.store.mailbox import Message, Reply, Verb, is_step
from penstock_server.store.register import SiteRow
from penstock_server.store.store import Store
from penstock_server.studies.site_parts import Parts
from penstock_server.studies.summations import Summations

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


class Progress:
    """Moves the sites' parts along, by what the sites answer."""

    def __init__(self, store: Store, folder: Folder, clock: Clock, summations: Summations) -> None:
        self._store, self._folder, self._clock = store, folder, clock
        self._summations = summations
        self._parts = Parts(store, clock)
        self._stopped: set[str] = set()  # sites of which it was logged

    # -- from the pump -------------------------------------------------------------------------

    def receive(self, replies: Sequence[tuple[Message, Reply]]) -> None:
        """Put replies into the inbox, and take their messages out of the outbox."""
        self._store.mailbox.receive([(message, _bound_reply(reply)) for message, reply in replies])

    def note_said(self, site: str, facts: JsonView) -> None:
        """Remember when a site was last heard of, and what it said of itself."""
        said = {name: printable_text(str(facts[name]), 100) for name in SAID if name in facts}
        self._store.sites.note_said(site, self._clock.stamp(), said)
        if said.get("stopped") and site not in self._stopped:
            log.warning("%s has stopped: %s", site, said["stopped"])
        (self._stopped.add if said.get("stopped") else self._stopped.discard)(site)

    def postpone(self, message: Message, code: str = "") -> None:
        """No answer: try again, ever more rarely; ``code`` is why, for the analyst to see."""
        # The exponent is bounded too: a float overflows after a thousand attempts.
        wait = min(2.0 ** min(message.attempts, 10), BACKOFF_LIMIT)
        self._store.mailbox.postpone(message, self._clock.stamp(wait))
        if code:
            with self._store.begin() as c:
                part = self._store.studies.part(message.study_id, message.site)
                if part is not None and not part.state.final:
                    self._parts.update(c, part, code=printable_text(code, 40))

    def size_limit(self, message: Message) -> int:
        """The most bytes that the table which a message fetches may have."""
        study, site = self._read_study(message.study_id), self._store.sites.all()[message.site]
        return size_limit(study, site.persons)

    def _read_study(self, study_id: str) -> Study:
        row = self._store.studies.find(study_id)
        if row is None:
            raise CoordinatorError("no such study", value=study_id)
        return row.signed.study

    # -- from the inbox ------------------------------------------------------------------------

    def handle_inbox(self) -> None:
        """Apply every reply that waits, each in one transaction."""
        for received in self._store.mailbox.inbox():
            study_id, site = received.study_id, received.site
            verb, reply = received.verb, received.reply
            # Before the transaction: a large table must not keep others from the store.
            collected = verb == "collect" and reply.ok
            upload = self._check_upload(study_id, site, reply) if collected else None
            with self._store.begin() as c:
                self._store.mailbox.discard(c, received.id)
                self._store.studies.lock(c, study_id)
                part = self._store.studies.part(study_id, site)
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
            self._apply_refusal(c, part, verb, reply)
        elif is_step(verb):
            self._summations.keep(c, part, verb, reply)
        elif verb == "collect":
            self._apply_upload(c, part, reply, upload)
        elif reply.state == JobState.DELIVERED:
            steps = max(part.steps, 1)
            done = {"request_id": reply.request_id, "step": steps, "steps": steps}
            self._parts.update(c, part, state=str(SiteState.RUNNING), **done)
            self._ask(c, part, "collect", reply.request_id, 0)
        elif reply.state in (JobState.AWAITING, JobState.QUEUED, JobState.RUNNING):
            # Of a release that is made of sums, rounds say how far it is.
            far = {} if self._is_joint(part) else {"step": reply.step, "steps": reply.steps}
            known = {"request_id": reply.request_id, **far}
            self._parts.turn(c, part, _SITE_STATE[JobState(reply.state)], "", **known)
            self._ask(c, part, "poll", reply.request_id, self._seconds_to_poll(part, reply))
        elif reply.state in _SITE_STATE:
            self._parts.turn(c, part, _SITE_STATE[JobState(reply.state)], reply.code)
        else:
            self._parts.turn(c, part, SiteState.FAILED, "internal")

    def _is_joint(self, part: SiteRow) -> bool:
        return self._store.summing.find(part.study_id) is not None

    def _seconds_to_poll(self, part: SiteRow, reply: Reply) -> float:
        if self._is_joint(part):
            return POLL_MOST  # its steps say more, and sooner
        row = self._store.studies.find(part.study_id)
        began = read_stamp(row.created) if row else self._clock.now()
        age = (self._clock.now() - began).total_seconds()
        return max(POLL_LEAST[JobState(reply.state)], min(POLL_SHARE * age, POLL_MOST))

    def _apply_refusal(self, c: Transaction, part: SiteRow, verb: Verb, reply: Reply) -> None:
        if reply.code == "upload-rejected":
            self._parts.turn(c, part, SiteState.FAILED, reply.code, detail=reply.detail)
        elif reply.code in PASSING:
            body = part.request_id.encode() if verb != "submit" else self._read_signed(part)
            due = self._clock.stamp(RETRY_SECONDS)
            self._store.mailbox.send(c, part.study_id, part.site, verb, body, due)
            self._parts.update(c, part, code=reply.code)
        elif is_step(verb) and reply.code == "no-round":
            # Its job has ended, or is not known: that tells how.
            self._ask(c, part, "poll", part.request_id, 0)
        else:
            self._parts.turn(c, part, SiteState.REFUSED, reply.code, detail=reply.detail)

    def _read_signed(self, part: SiteRow) -> bytes:
        row = self._store.studies.find(part.study_id)
        return row.data if row is not None else b""

    def _check_upload(
        self, study_id: str, site: str, reply: Reply
    ) -> Manifest | UploadRejected | None:
        """The manifest of a sound upload, what is wrong with it, or None if its table is gone."""
        part, study, enrolled = (
            self._store.studies.part(study_id, site),
            self._read_study(study_id),
            self._store.sites.all()[site],
        )
        if part is None:
            return None
        try:
            manifest = check_manifest(
                reply.data or b"",
                study,
                study_id,
                enrolled,
                ledger_seen=self._store.sites.ledger_heads(site),
                ledger_floor=part.ledger_floor,
                simulation=bool(self._store.values.get("simulation")),
            )
            if manifest.request_id != part.request_id:
                raise UploadRejected("the manifest answers another request")
            read_upload(site, manifest, self._folder.table(study_id, site), study)
        except UploadRejected as error:
            return error
        except FileNotFoundError:
            return None
        return manifest

    def _apply_upload(
        self, c: Transaction, part: SiteRow, reply: Reply, upload: Manifest | UploadRejected | None
    ) -> None:
        if upload is None:
            # A power cut took the table, or a crash came between rejecting it and saying so.
            self._ask(c, part, "collect", part.request_id, 0)
        elif isinstance(upload, UploadRejected):
            log.warning("upload of %s rejected: %s", part.site, printable_text(str(upload)))
            self._folder.table(part.study_id, part.site).unlink(missing_ok=True)
            self._parts.turn(
                c, part, SiteState.FAILED, "upload-rejected", detail=printable_text(str(upload))
            )
        else:
            seq, head = upload.ledger_seq, upload.ledger_head
            self._store.sites.note_position(c, part.site, seq, head, reply.data or b"")
            steps = {"step": part.steps, "steps": part.steps}
            self._parts.turn(c, part, SiteState.DELIVERED, "", manifest=reply.data, **steps)
            log.info("%s delivered to %s", part.site, part.study_id[:12])

    def _ask(self, c: Transaction, part: SiteRow, verb: Verb, request_id: str, wait: float) -> None:
        self._store.mailbox.send(
            c, part.study_id, part.site, verb, request_id.encode(), self._clock.stamp(wait)
        )


def _bound_reply(reply: Reply) -> Reply:
    """A reply whose texts and numbers are no longer than what the store holds."""
    return replace(
        reply,
        code=printable_text(reply.code, 40),
        detail=printable_text(reply.detail),
        request_id=printable_text(reply.request_id, 64),
        state=printable_text(reply.state, 40),
        step=min(max(reply.step, 0), 1_000_000),
        steps=min(max(reply.steps, 0), 1_000_000),
    )

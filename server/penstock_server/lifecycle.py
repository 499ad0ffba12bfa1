"""A study's life at the coordinator: invited sites, answers, quorum, deadline, results.

Single-threaded and restartable at any line: everything that matters is in the store, every
message is idempotent at the site, and every reply is handled in one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.errors import CoordinatorError, GateUnavailable, PenstockError, UploadRejected
from penstock.schema import Schema, compare
from penstock.study import Study
from penstock.wire.messages import SERVED_MAJORS, JobState, SiteState, StudyState, explain
from penstock.wire.signed import SignedStudy, read_signed_cancel, read_signed_study
from penstock_server.network import Network
from penstock_server.store import Message, Reply, SiteRow, Store, StudyRow
from penstock_server.uploads import check_manifest, read_upload, size_limit

log = logging.getLogger("penstock.coordinator")

POLL_SECONDS = 1.0
BACKOFF_LIMIT = 60.0

_SITE_STATE = {
    JobState.AWAITING: SiteState.AWAITING,
    JobState.QUEUED: SiteState.RUNNING,
    JobState.RUNNING: SiteState.RUNNING,
    JobState.FAILED: SiteState.FAILED,
    JobState.REJECTED: SiteState.REFUSED,
    JobState.CANCELLED: SiteState.CANCELLED,
}

Finish = Callable[[str, str], None]


def now() -> datetime:
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """RFC 3339 UTC with microseconds; sorts as text."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Coordinator:
    """Studies and sites over a store; tables below ``folder/uploads``.

    Args:
        finish: called with the id of a study that has a quorum, and the time, to build its results.
        clock: the current time, UTC.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        *,
        finish: Finish = lambda study_id, moment: None,
        clock: Callable[[], datetime] = now,
    ) -> None:
        self.store = store
        self.folder = folder
        self._finish = finish
        self._clock = clock

    # -- asked by people -----------------------------------------------------------------------

    def submit(self, data: bytes) -> str:
        """Take a signed study and invite its sites; the same study again changes nothing.

        Returns:
            The study's id.

        Raises:
            SignatureError, InvalidInput: not a signed study.
            CoordinatorError: expired, unknown sites, or a schema that a site does not carry.
        """
        signed = read_signed_study(data)
        study, moment = signed.study, self._clock()
        if self.store.study(signed.study_id) is not None:
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
        )
        self.store.add_study(row, list(study.sites))
        log.info("study %s (%s) open", study.name, signed.study_id[:12])
        return signed.study_id

    def _check_new(self, signed: SignedStudy, moment: datetime) -> None:
        study, sites = signed.study, self.store.sites()
        if int(study.wire.split(".")[0]) not in SERVED_MAJORS:
            raise CoordinatorError("this wire version is not served", value=study.wire)
        if stamp(moment) >= study.expires:
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
                    f"{name} is in another federation", value=study.federation, bound=site.federation
                )
            problems = compare(study.schema, Schema.from_dict(site.join["dictionary"]))
            if problems:
                raise CoordinatorError(
                    f"{name} does not carry the study's schema",
                    value="; ".join(str(p) for p in problems[:5]),
                    remedy="nothing was asked of any site",
                )

    def cancel(self, data: bytes) -> None:
        """End an open study, if its own signer says so.

        Raises:
            CoordinatorError: unknown or ended study, or another signer.
        """
        cancel = read_signed_cancel(data)
        row = self.find(cancel.study_id)
        if read_signed_study(row.signed).signer != cancel.signer:
            raise CoordinatorError("only a study's own signer can cancel it")
        if row.state is not StudyState.OPEN:
            raise CoordinatorError("the study has ended already", value=str(row.state))
        due = stamp(self._clock())
        with self.store.begin() as c:
            for part in self.store.parts(row.id):
                if not part.state.final:
                    self.store.send(c, row.id, part.site, "cancel", data, due)
                    self._set(c, part, SiteState.CANCELLED, "cancelled")
        self.store.end_study(row.id, StudyState.CANCELLED, due)

    def find(self, prefix: str) -> StudyRow:
        """The one study whose id begins with, or whose name is, ``prefix``.

        Raises:
            CoordinatorError: none, or several.
        """
        rows = self.store.studies()
        found = [r for r in rows if r.id.startswith(prefix)] or [
            r for r in rows if r.name == prefix
        ]
        if not found:
            raise CoordinatorError("no such study", value=prefix)
        if len(found) > 1:
            raise CoordinatorError(
                "several studies of that name",
                value=prefix,
                bound=", ".join(r.id[:12] for r in found),
                remedy="use the id",
            )
        return found[0]

    def status(self, prefix: str) -> dict[str, Any]:
        """A study and each site's part in it, with codes explained."""
        row = self.find(prefix)
        study = read_signed_study(row.signed).study
        return {
            "study": row.id,
            "name": row.name,
            "title": study.title,
            "state": str(row.state),
            "created": row.created,
            "deadline": row.deadline,
            "finished": row.finished,
            "quorum": study.quorum,
            "note": row.note,
            "sites": [_part(p) for p in self.store.parts(row.id)],
        }

    # -- the pump ------------------------------------------------------------------------------

    def pump(self, network: Network) -> int:
        """Send what is due, take what came, end what is over; returns the messages sent."""
        due = self.store.due(stamp(self._clock()))
        for message in due:
            self._send(network, message)
            self.handle_inbox()
        self.handle_inbox()
        self._close_studies()
        return len(due)

    def _send(self, network: Network, message: Message) -> None:
        limit = self._limit(message) if message.verb == "collect" else 0
        try:
            reply = network.call(message, self.table_path(message.study_id, message.site), limit)
        except GateUnavailable:
            wait = min(2.0**message.attempts, BACKOFF_LIMIT)
            self.store.postpone(message, stamp(self._clock() + timedelta(seconds=wait)))
            return
        self.store.receive(message, reply)

    def _limit(self, message: Message) -> int:
        study, site = self._study(message.study_id), self.store.sites()[message.site]
        return size_limit(study, site.persons)

    def _study(self, study_id: str) -> Study:
        row = self.store.study(study_id)
        if row is None:
            raise CoordinatorError("no such study", value=study_id)
        return read_signed_study(row.signed).study

    def table_path(self, study_id: str, site: str) -> Path:
        return self.folder / "uploads" / study_id / f"{site}.arrow"

    def handle_inbox(self) -> None:
        """Apply every reply that waits, each in one transaction."""
        for inbox_id, study_id, site, verb, reply in self.store.inbox():
            part = next((p for p in self.store.parts(study_id) if p.site == site), None)
            with self.store.begin() as c:
                self.store.handled(c, inbox_id)
                # A reply that comes after the end (a deadline, a cancellation) changes nothing.
                if part is not None and not part.state.final and verb != "cancel":
                    self._apply(c, part, verb, reply)

    def _apply(self, c: Any, part: SiteRow, verb: str, reply: Reply) -> None:
        if not reply.ok:
            self._refused(c, part, verb, reply)
        elif verb == "collect":
            self._collected(c, part, reply)
        elif reply.state == JobState.DELIVERED:
            self._update(c, part, request_id=reply.request_id)
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
            self._next(c, part, "poll", reply.request_id, POLL_SECONDS)
        elif reply.state in _SITE_STATE:
            self._set(c, part, _SITE_STATE[JobState(reply.state)], reply.code)
        else:
            self._set(c, part, SiteState.FAILED, "internal")

    def _refused(self, c: Any, part: SiteRow, verb: str, reply: Reply) -> None:
        if reply.code == "upload-rejected":
            self._set(c, part, SiteState.FAILED, reply.code, detail=reply.detail[:500])
        elif reply.code in ("internal", "busy", "ledger"):
            # The gate's own trouble may pass; ask again until the deadline.
            body = part.request_id.encode() if verb != "submit" else self._signed(part)
            due = stamp(self._clock() + timedelta(seconds=10))
            self.store.send(c, part.study_id, part.site, verb, body, due)
            self._update(c, part, code=reply.code)
        else:
            self._set(c, part, SiteState.REFUSED, reply.code, detail=reply.detail[:500])

    def _signed(self, part: SiteRow) -> bytes:
        row = self.store.study(part.study_id)
        return row.signed if row is not None else b""

    def _collected(self, c: Any, part: SiteRow, reply: Reply) -> None:
        study, site = self._study(part.study_id), self.store.sites()[part.site]
        simulation = bool(self.store.get("simulation"))
        try:
            manifest = check_manifest(
                reply.manifest or b"",
                study,
                part.study_id,
                site,
                ledger_seen=self.store.ledger_seen(part.site),
                simulation=simulation,
            )
            if manifest.request_id != part.request_id:
                raise UploadRejected("the manifest answers another request")
            read_upload(
                part.site, manifest, self.table_path(part.study_id, part.site), study.schema
            )
        except UploadRejected as error:
            log.warning("upload of %s rejected: %s", part.site, error)
            self.table_path(part.study_id, part.site).unlink(missing_ok=True)
            self._set(c, part, SiteState.FAILED, "upload-rejected", detail=str(error))
            return
        self.store.see_ledger(c, part.site, manifest.ledger_seq, manifest.ledger_head)
        self._set(c, part, SiteState.DELIVERED, "", manifest=reply.manifest)
        log.info("%s delivered to %s", part.site, part.study_id[:12])

    def _next(self, c: Any, part: SiteRow, verb: str, request_id: str, wait: float) -> None:
        due = stamp(self._clock() + timedelta(seconds=wait))
        self.store.send(c, part.study_id, part.site, verb, request_id.encode(), due)

    def _set(self, c: Any, part: SiteRow, state: SiteState, code: str, **more: Any) -> None:
        self._update(c, part, state=str(state), code=code, **more)

    def _update(self, c: Any, part: SiteRow, **values: Any) -> None:
        moment = stamp(self._clock())
        self.store.update_part(c, part.study_id, part.site, updated=moment, **values)

    def _close_studies(self) -> None:
        moment = stamp(self._clock())
        for row in self.store.open_studies():
            parts = self.store.parts(row.id)
            if moment >= row.deadline:
                parts = [self._time_out(p) for p in parts]
            if all(p.state.final for p in parts):
                self._close(row, parts, moment)

    def _time_out(self, part: SiteRow) -> SiteRow:
        if part.state.final:
            return part
        code = "unreachable" if part.state is SiteState.INVITED else "no-answer"
        with self.store.begin() as c:
            self._set(c, part, SiteState.TIMED_OUT, code)
        return replace(part, state=SiteState.TIMED_OUT, code=code)

    def _close(self, row: StudyRow, parts: list[SiteRow], moment: str) -> None:
        quorum = read_signed_study(row.signed).study.quorum
        delivered = sum(p.state is SiteState.DELIVERED for p in parts)
        state, note = StudyState.FINISHED, ""
        if delivered < quorum:
            state = StudyState.FAILED
            note = f"{delivered} of {len(parts)} sites delivered; the quorum is {quorum}"
        else:
            try:
                self._finish(row.id, moment)
            except PenstockError as error:
                # Uploads are kept; one study's trouble must not stop the others.
                state, note = StudyState.FAILED, f"no results could be made: {error}"
        self.store.end_study(row.id, state, moment, note)
        log.info("study %s ended with %d of %d sites", row.name, delivered, len(parts))


def _part(part: SiteRow) -> dict[str, Any]:
    meaning, remedy = explain(part.code) if part.code else ("", "")
    return {
        "site": part.site,
        "state": str(part.state),
        "code": part.code,
        "meaning": part.detail or meaning,
        "remedy": "" if part.detail else remedy,
        "step": part.step,
        "steps": part.steps,
        "request": part.request_id,
    }


def read_join(data: dict[str, Any]) -> dict[str, Any]:
    """Check a site's join record before it is enrolled.

    Raises:
        CoordinatorError: a field is missing or of the wrong kind.
    """
    wanted: dict[str, type] = {
        "site": str,
        "federation": str,
        "gate_key": str,
        "persons": int,
        "dictionary": dict,
        "gate_socket": str,
    }
    for name, kind in wanted.items():
        if not isinstance(data.get(name), kind) or isinstance(data.get(name), bool):
            raise CoordinatorError("not a site's join record", value=name, bound=kind.__name__)
    Schema.from_dict(data["dictionary"])
    return data

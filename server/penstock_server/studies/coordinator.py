"""What people ask of a coordinator: studies, their end, and how they stand.

Everything that matters is in the store: any process may submit and cancel at any time. What sites
answer is :mod:`penstock_server.studies.progress`'s, and how a study ends by itself is
:mod:`penstock_server.studies.closing`'s. Results are made by another process
(:mod:`penstock_server.operate.builder`), so that one study's do not keep the others waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from penstock.base.documents import Json
from penstock.base.errors import CoordinatorError
from penstock.base.times import parse_time, stamp, utc_now
from penstock.schema import Schema, compare
from penstock.study.study import Study
from penstock.wire.messages import (
    SERVED_MAJORS,
    WIRE_VERSION,
    SiteState,
    StudyState,
    explain_part,
    is_newer,
)
from penstock.wire.signed import SignedCancel, SignedStudy
from penstock_server.access.access_chain import AccessLog, Visitor, name_local_visitor
from penstock_server.intake.texts import printable_text
from penstock_server.store.clock import Clock
from penstock_server.store.database import Transaction
from penstock_server.store.folder import Folder
from penstock_server.store.leases import MOST_CRASHES, Leases, Pooling
from penstock_server.store.register import SiteRow, StudyRow
from penstock_server.store.sites import Site
from penstock_server.store.store import Store
from penstock_server.studies.closing import Closing
from penstock_server.studies.progress import Progress
from penstock_server.studies.site_parts import Parts, count_delivered
from penstock_server.studies.summations import PATIENCE_SECONDS, Summations, count_rounds

log = logging.getLogger("penstock.coordinator")


class NoSuchStudy(CoordinatorError):
    """None of this name or id; or none that whoever asks may know of."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many studies may be open at once: of one account, and in all."""

    each: int = 20
    all: int = 200


class Coordinator:
    """Studies and sites over a store, with their files in a folder.

    Args:
        limits: on open studies.
        patience: seconds that the others wait for a site in a round.
        clock: the current time, UTC.

    Attributes:
        access: the log of who came and what was read.
        leases: who makes the results of which study.
        summations: the rounds of studies that are one release.
        progress: what the sites answer.
        closing: how studies end by themselves.
    """

    def __init__(
        self,
        store: Store,
        folder: Folder,
        *,
        limits: Limits = Limits(),
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.store, self.folder = store, folder
        self.clock = Clock(clock)
        self.access = AccessLog(store, folder.access_key, self.clock.stamp)
        self.leases = Leases(store, self.clock)
        self.summations = Summations(store, self.clock, patience=patience)
        self.progress = Progress(store, folder, self.clock, self.summations)
        self.closing = Closing(store, self.leases, self.clock)
        self._parts = Parts(store, self.clock)
        self._limits = limits

    # -- asking and ending ---------------------------------------------------------------------

    def submit(self, signed: SignedStudy, by: Visitor | None = None) -> str:
        """Take a signed study and invite its sites; the same study again changes nothing.

        Args:
            by: whose account owns it; None for whoever holds the directory.

        Returns:
            The study's id.

        Raises:
            CoordinatorError: expired, unknown sites, a schema that a site does not carry, or too
                many open studies.
        """
        visitor = by or name_local_visitor()
        study, moment = signed.study, self.clock.now()
        if self.store.studies.find(signed.study_id) is not None:
            return signed.study_id
        self._check_new(signed, moment)
        rounds = count_rounds(study) if study.aggregation.joint else 0
        deadline = moment + timedelta(hours=study.deadline_hours)
        row = StudyRow(
            signed.study_id,
            study.name,
            signed.data,
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

        def begin(c: Transaction) -> None:
            if rounds:
                self.summations.admit(c, row.id, rounds, row.created)

        self.store.studies.add(row, study.sites, readers=study.readers, within=admit, after=begin)
        log.info("study %s (%s) open", study.name, signed.study_id[:12])
        return signed.study_id

    def _check_new(self, signed: SignedStudy, moment: datetime) -> None:
        study, sites = signed.study, self.store.sites.all()
        if int(study.wire.split(".")[0]) not in SERVED_MAJORS:
            raise CoordinatorError("this wire version is not served", value=study.wire)
        if is_newer(study.wire, WIRE_VERSION):
            raise CoordinatorError(
                "the study's wire version is newer than this coordinator",
                value=study.wire,
                bound=f"up to {WIRE_VERSION}",
                remedy="ask who runs it to upgrade it, or sign the study for an older one",
            )
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
            _check_joint(study, site)
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

    def cancel(self, wish: SignedCancel, by: Visitor | None = None) -> None:
        """End a study that has not ended, if its own signer says so.

        Also while its results are made: then they are not, whoever is at it.

        Args:
            by: who hands it in; None for whoever holds the directory.

        Raises:
            CoordinatorError: unknown or ended study, or another signer.
        """
        row, moment = self._find_signed(wish, "cancel"), self.clock.stamp()
        with self.store.begin() as c:
            state = self.store.studies.lock(c, row.id)
            if state is None or state.final:
                raise CoordinatorError("the study has ended already", value=state)
            self.access.append(c, "cancel", study=row.id, **(by or name_local_visitor()).fields)
            for part in self.store.studies.parts(row.id):
                if not part.state.final:
                    self.store.mailbox.send(c, row.id, part.site, "cancel", wish.to_bytes(), moment)
                    self._parts.turn(c, part, SiteState.CANCELLED, "cancelled")
            self.store.studies.end(c, row.id, StudyState.CANCELLED, moment)

    def close(self, wish: SignedCancel, by: Visitor | None = None) -> None:
        """Have results made now, of what was delivered, if an open study's signer says so.

        Sites that are not known to have begun get the signed cancellation, as they can check no
        other word of the analyst's: what has not begun there costs nothing. A run that is under way
        is charged already, and goes on: its end tells nobody more than it does in any other study.
        What is delivered later changes nothing here. All of it is one transaction, as at the
        deadline; a study that is closed already stays as it is.

        Args:
            wish: a cancellation of the study.
            by: who hands it in; None for whoever holds the directory.

        Raises:
            CoordinatorError: unknown study, another signer, no quorum, or ended without results.
        """
        row, moment = self._find_signed(wish, "close"), self.clock.stamp()
        quorum = row.signed.study.quorum
        if row.signed.study.aggregation.joint:
            raise CoordinatorError(
                "one release of all sites cannot be closed before its last round",
                remedy="wait for it, or cancel the study",
            )
        with self.store.begin() as c:
            state = self.store.studies.lock(c, row.id)
            if state in (StudyState.POOLING, StudyState.FINISHED):
                return
            if state is not StudyState.OPEN:
                raise CoordinatorError("the study has ended already", value=state)
            parts = self.store.studies.parts(row.id)
            delivered = count_delivered(parts)
            if delivered < quorum:
                raise CoordinatorError(
                    "too few sites have delivered to close the study",
                    value=delivered,
                    bound=f"a quorum of {quorum}",
                    remedy="wait for more, or cancel it",
                )
            self.access.append(c, "close", study=row.id, **(by or name_local_visitor()).fields)
            self.leases.open(c, row.id, moment, delivered)
            for part in parts:
                if not part.state.final:
                    self._leave_out(c, part, wish.to_bytes(), moment)
        log.info("study %s: closed with %d of %d sites", row.name, delivered, len(parts))

    def _find_signed(self, wish: SignedCancel, verb: Literal["cancel", "close"]) -> StudyRow:
        """The study that a signed cancellation is of; only its own signer's word counts."""
        row = self.store.studies.find(wish.study_id)
        if row is None:
            raise CoordinatorError("no such study", value=printable_text(wish.study_id, 64))
        if row.signed.signer != wish.signer:
            raise CoordinatorError(f"only a study's own signer can {verb} it")
        return row

    def _leave_out(self, c: Transaction, part: SiteRow, cancellation: bytes, moment: str) -> None:
        """End the part of a site that is late; one that has begun is not told to stop."""
        # Progress shows from the charge on, and not before.
        begun = part.state is SiteState.RUNNING and part.steps > 0
        if not begun:
            self.store.mailbox.send(c, part.study_id, part.site, "cancel", cancellation, moment)
        self._parts.turn(c, part, SiteState.TIMED_OUT, "late-run" if begun else "late")

    def pool_again(self, prefix: str, by: Visitor | None = None) -> StudyRow:
        """Let the results of a study be made that could not be; no site is asked for anything.

        Args:
            by: who asks for it; None for whoever holds the directory.

        Raises:
            CoordinatorError: it has not failed, or failed for want of deliveries.
        """
        row = self.find(prefix)
        parts = self.store.studies.parts(row.id)
        lack = self.closing.explain_lack(row, parts)
        if row.state is StudyState.FAILED and lack:
            raise CoordinatorError(
                "too few sites delivered, so there is nothing to pool",
                value=lack,
                remedy="ask the analyst to sign the study anew, with other sites or a later end",
            )
        with self.store.begin() as c:
            state = self.store.studies.lock(c, row.id)
            if state is not StudyState.FAILED:
                raise CoordinatorError(
                    "only a study that failed can be pooled again", value=state or row.state
                )
            self.access.append(c, "pool", study=row.id, **(by or name_local_visitor()).fields)
            self.leases.open(c, row.id, self.clock.stamp(), count_delivered(parts))
        return row

    # -- looking -------------------------------------------------------------------------------

    def find(self, prefix: str, account: str | None = None) -> StudyRow:
        """The one study whose id begins with, or whose name is, ``prefix``.

        Args:
            account: who asks: what it may not read is not there; None may read all.

        Raises:
            NoSuchStudy: none.
            CoordinatorError: several.
        """
        exact = self._list_readable(account, prefix)
        if exact:
            return exact[0]
        rows = self._list_readable(account)
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

    def _list_readable(self, account: str | None, study_id: str | None = None) -> list[StudyRow]:
        if account is not None:
            return self.store.studies.readable_by(account, study_id)
        if study_id is None:
            return self.store.studies.all()
        row = self.store.studies.find(study_id)
        return [] if row is None else [row]

    def studies(self, account: str | None = None) -> list[Json]:
        """The status of every study that ``account`` may read, oldest first; None reads all."""
        return [self._describe_study(row) for row in self._list_readable(account)]

    def status(self, prefix: str) -> Json:
        """A study and each site's part in it, with codes explained."""
        return self._describe_study(self.find(prefix))

    def _describe_study(self, row: StudyRow) -> Json:
        study = row.signed.study
        pooling = self.leases.read_pooling(row.id) if row.state is StudyState.POOLING else None
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
            "rounds": self._describe_rounds(row),
            "note": row.note or _explain_lateness(pooling),
            "pooling": pooling and {"sites": pooling.sites, "done": pooling.done},
            "sites": [_describe_part(p) for p in self.store.studies.parts(row.id)],
        }

    def _describe_rounds(self, row: StudyRow) -> Json | None:
        """How far the sums of one release are; None where each site makes its own."""
        found = self.store.summing.find(row.id)
        if found is None:
            return None
        done = found.rounds if found.stage == "done" else found.round
        return {"done": done, "of": found.rounds, "stage": found.stage, "since": found.since}


def _check_joint(study: Study, site: Site) -> None:
    """Whether what a study of one release says of a site is what the site declared.

    Raises:
        CoordinatorError: another frame or key.
    """
    scope = study.aggregation
    if not scope.adds:
        return
    pairs = (
        ("persons", dict(scope.persons)[site.name], site.persons),
        ("keys", dict(scope.keys)[site.name], site.gate_key),
    )
    for field, said, declared in pairs:
        if said != declared:
            raise CoordinatorError(
                f"aggregation.{field} is not what {site.name} declared",
                value=said,
                bound=declared,
                remedy="take it from the site's newest join.json; nothing was asked of any site",
            )


def _explain_lateness(pooling: Pooling | None) -> str:
    """Why results are late, where something has kept them from being made."""
    if pooling is None or not pooling.trouble:
        return ""
    tries = f" ({pooling.crashes} of {MOST_CRASHES} tries)" if pooling.crashes else ""
    return f"the results are late, because {pooling.trouble}{tries}; they are tried again"


def _describe_part(part: SiteRow) -> Json:
    meaning, remedy = explain_part(part.state, part.code)
    detail = part.detail.removesuffix(f": {remedy}")
    if part.state is SiteState.REFUSED and part.detail and detail == part.detail:
        remedy = ""  # a gate's own words end with what to do
    return {
        "site": part.site,
        "state": str(part.state),
        "code": part.code,
        "meaning": detail or meaning,
        "remedy": remedy,
        "step": part.step,
        "steps": part.steps,
        "request": part.request_id,
    }

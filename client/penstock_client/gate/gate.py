"""What is asked of a gate: by the network side, and by the steward.

Jobs are durable, calls are idempotent. The life of a release::

    Submit ─ admit ─► awaiting-approval ─► queued ─► run (:mod:`penstock_client.gate.running`)

The ledger settles at once. What the network side is told follows a schedule of public numbers
(:mod:`penstock_client.gate.outside`), and the next run begins when this one's end shows there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from penstock.base.documents import Json
from penstock.wire.messages import JobState
from penstock.wire.signed import SignedStudy, read_signed_cancel
from penstock_client.gate import preview, release
from penstock_client.gate.admission import (
    Admission,
    SiteFacts,
    consider,
    identify,
    is_held,
    refuse,
)
from penstock_client.gate.facts import describe_identity, describe_offer, read_current_policy
from penstock_client.gate.jobs import SILENT, UNBEGUN, Job
from penstock_client.gate.outside import PublicJob
from penstock_client.gate.recovery import STOPPED
from penstock_client.gate.running import Runner
from penstock_client.gate.stores import ROLLED_BACK, Stores
from penstock_client.gate.sum_steps import Steps
from penstock_client.ledger.decisions import Who
from penstock_client.site.peer_keys import read_peers
from penstock_client.site.signers import read_trust
from penstock_client.site.site_settings import SEEDED

log = logging.getLogger("penstock.gate")


class Gate:
    """What is asked of one site, and by whom. Sockets are in :mod:`penstock_client.gate.service`.

    Must be constructed under the site's lock (see :mod:`penstock_client.ledger.sqlite_file`).
    """

    def __init__(self, stores: Stores, runner: Runner) -> None:
        self.stores = stores
        self.runner = runner
        self.steps = Steps(stores, runner.settlement, runner.wake)

    # -- facts ---------------------------------------------------------------------------------

    def _find_public_position(self) -> tuple[int, str]:
        """The ledger's newest record before the first that does not show yet, and its hash."""
        outside = self.stores.outside()
        first = outside.find_first_hidden()
        if first is None:
            return outside.state.seq, outside.state.head
        return self.stores.ledger.before(first)

    def describe(self, seen_manifest: bytes = b"") -> Json:
        """Public facts: versions served, key, dictionary, public n, what may be asked.

        Args:
            seen_manifest: the newest manifest that the caller holds of this site, if any. Where
                it proves that the ledger was restored, the gate stops, and says so here.

        Raises:
            Refused: not certified yet, or misconfigured; never for ``seen_manifest``.
        """
        self._consider_manifest(seen_manifest)
        about = describe_identity(self.stores.settings, self.stores.public_key)
        if self.stores.watch.stopped:
            return {**about, "stopped": ROLLED_BACK}
        return {**about, **describe_offer(self.stores.facts(), self._find_public_position())}

    def _consider_manifest(self, seen_manifest: bytes) -> None:
        self.stores.watch.look(seen_manifest)
        if self.stores.watch.stopped:
            self.runner.kill()

    # -- the network side ----------------------------------------------------------------------

    def submit(self, data: bytes) -> PublicJob:
        """Take a signed study; the same study finds its job again, at no cost.

        Raises:
            Refused: for a public reason; nothing was stored and nothing charged.
            PenstockError: malformed or not signed.
        """
        signed = self.stores.read_study(data)
        self.stores.refuse_if_stopped()
        self.stores.decisions.notice(self.stores.paths)
        facts = self.stores.facts()
        with self.stores.lock:
            known = self.stores.jobs.get(identify(signed, facts))
            if known is not None:
                return self.stores.outside().see(known)
            admission = consider(signed, facts, waits=facts.policy.approval == "by-hand")
            now = self.stores.now()
            state, code = self._find_first_state(signed, admission, facts)
            job = Job(
                request_id=admission.request_id,
                study_id=signed.study_id,
                signed=data,
                lineage=admission.charge.lineage,
                version=admission.charge.version,
                state=state,
                code=code,
                submitted=now,
                updated=now,
            )
            self.stores.jobs.add(job)
        log.info("request %s %s", job.request_id[:12], state)
        self.runner.wake()
        return self.stores.outside().see(job)

    def _find_first_state(
        self, signed: SignedStudy, admission: Admission, facts: SiteFacts
    ) -> tuple[JobState, str]:
        """The state of a new job; one that was charged before is never run again."""
        charge = facts.state.charges.get(admission.request_id)
        if charge is not None and not is_held(signed, charge):
            # Its job was lost when the ledger was recovered from its records alone.
            whole = release.is_whole(self.stores.release_folder(charge.id), self.stores.public_key)
            if charge.status == "committed" and whole:
                return JobState.DELIVERED, ""
            return JobState.FAILED, "interrupted"
        automatic = facts.policy.approval == "automatic"
        return (JobState.QUEUED if automatic else JobState.AWAITING), ""

    def poll(self, request_id: str) -> PublicJob:
        """The job's state, as the network may know it.

        Raises:
            Refused: unknown request.
        """
        return self.stores.outside().see(self.stores.job(request_id))

    def collect(
        self, request_id: str, offset: int = 0, length: int = 0
    ) -> tuple[bytes, int, Iterator[bytes]]:
        """Of a delivered job: the manifest, the table's size, and its parts from ``offset``.

        Always the same bytes, so that a broken transfer goes on where it stopped. ``length`` 0
        means to the end; beyond the end there are no parts.

        Raises:
            Refused: unknown, or not delivered.
        """
        if self.poll(request_id).state is not JobState.DELIVERED:
            raise refuse("not-delivered")
        folder = self.stores.release_folder(request_id)
        parts = release.read_table_parts(folder, offset, length)
        return release.read_manifest_bytes(folder), release.measure_table(folder), parts

    def cancel(self, data: bytes) -> PublicJob:
        """End a study's newest job, if its own signer says so.

        Free before the reservation. Afterwards the charge stays, whatever the run had come to: a
        worker is killed, a release that was made in the meantime is withheld, and all of it shows
        at the next slot only. Until an end shows, each takes the same course here.

        Raises:
            Refused: unknown study, or another signer.
        """
        cancel = read_signed_cancel(data)
        jobs = self.stores.jobs.of_study(cancel.study_id)
        if not jobs:
            raise refuse("unknown-request")
        request_id = jobs[-1].request_id
        # Anew: whether this process has read it before must not show in an answer's time.
        if self.stores.read_study(jobs[-1].signed).signer != cancel.signer:
            raise refuse("unknown-signer")
        with self.stores.lock:
            job = self.stores.job(request_id)
            seen = self.stores.outside().see(job)  # a silent "no" is waiting, to everybody outside
            ends = (JobState.AWAITING, JobState.QUEUED, JobState.RUNNING)
            told = job.state is not JobState.CANCELLED and seen.state in ends
            if told and job.state in UNBEGUN:
                self.runner.settlement.end_unbegun(request_id, JobState.CANCELLED, "cancelled")
            elif told:
                self.stores.jobs.move(
                    request_id, JobState.CANCELLED, self.stores.now(), "cancelled"
                )
        if told and seen.state is JobState.RUNNING:
            # Elsewhere, so that an answer takes as long whether there is a run to end or not.
            threading.Thread(target=self.runner.end_cancelled, args=(request_id,)).start()
        return self.poll(request_id)

    # -- the steward's side --------------------------------------------------------------------

    def status(self) -> Json:
        """What the network is told, how many jobs there are, and what the steward must do."""
        counts = {str(s): len(self.stores.jobs.in_state(s)) for s in JobState}
        shown = {**self.describe(), "jobs": {k: v for k, v in counts.items() if v}}
        if "ledger_seq" in shown:
            state = self.stores.ledger.state()  # all of it, for the steward
            shown |= {"ledger_seq": state.seq, "ledger_head": state.head}
        if self.stores.settings.insecure_seed is not None:
            shown["WARNING"] = SEEDED
        return {**shown, "remedy": STOPPED} if self.stores.watch.stopped else shown

    def requests(self) -> list[Json]:
        """Every job with its study's question and price, as it stands, and as it looks outside."""
        outside, trust = self.stores.outside(), read_trust(self.stores.paths.trust)
        site, peers = self.stores.settings.name, read_peers(self.stores.paths.peers)
        notes, read = self.stores.jobs.notes(), self.stores.read_job
        return [
            {
                **preview.describe_request(
                    job,
                    read(job),
                    self.progress(job.request_id),
                    trust,
                    notes.get(job.request_id, ""),
                    site=site,
                    peers=peers,
                ),
                "outside": str(outside.see(job).state),
            }
            for job in self.stores.jobs.all()
        ]

    def progress(self, request_id: str) -> tuple[int, int]:
        """(step, steps) of a running job."""
        return self.runner.progress(request_id)

    def preview(self, request_id: str) -> Json:
        """What a request would release, to whom, and what it costs, before and after."""
        job = self.find(request_id)
        facts = self.stores.facts()
        signed = self.stores.read_job(job)
        note = self.stores.jobs.notes().get(job.request_id, "")
        shown = preview.preview_request(job, signed, facts, note)
        return shown | (
            {"warning": SEEDED} if self.stores.settings.insecure_seed is not None else {}
        )

    def find(self, prefix: str) -> Job:
        """The one job whose request id begins with ``prefix``."""
        found = [j for j in self.stores.jobs.all() if j.request_id.startswith(prefix)]
        if len(found) != 1:
            raise refuse("unknown-request")
        return found[0]

    def approve(self, request_id: str, by: Who | None = None, reason: str = "") -> Job:
        """Let a waiting request run; it is admitted again, since the ledger may have moved."""
        with self.stores.lock:
            self.stores.refuse_if_stopped()
            job = self._require_awaiting(request_id)
            self.stores.decisions.notice(self.stores.paths)
            consider(self.stores.read_job(job), self.stores.facts())
            self._decide("approve", job, by, reason)
            self.stores.jobs.move(job.request_id, JobState.QUEUED, self.stores.now())
        self.runner.wake()
        return self.stores.job(job.request_id)

    def reject(self, request_id: str, by: Who | None = None, reason: str = "") -> Job:
        """Say no to a waiting request; nothing was charged.

        Where the policy says ``reject = "silent"``, the network goes on seeing it wait.
        """
        policy = read_current_policy(self.stores.paths, self.stores.mechanisms)
        code = SILENT if policy.reject == "silent" else "rejected"
        with self.stores.lock:
            job = self._require_awaiting(request_id)
            self._decide("reject", job, by, reason, silent=code == SILENT)
            if code == SILENT:  # a burnt charge would show; it stays, and so does what it holds
                self.stores.jobs.move(job.request_id, JobState.REJECTED, self.stores.now(), code)
            else:
                self.runner.settlement.end_unbegun(job.request_id, JobState.REJECTED, code)
        return self.stores.job(job.request_id)

    def _decide(self, kind: str, job: Job, by: Who | None, reason: str, **more: object) -> None:
        """A steward's word is on record before it takes effect."""
        asked = {"request": job.request_id, "study": job.study_id}
        self.stores.decisions.append(kind, by or Who.here(), reason, **asked, **more)

    def _require_awaiting(self, request_id: str) -> Job:
        job = self.find(request_id)
        if job.state is not JobState.AWAITING:
            raise refuse("not-awaiting")
        return job

    def ledger_view(self) -> Json:
        """The whole ledger, as `export` writes it: whoever asks folds and checks it again."""
        return {"export": self.stores.ledger.export(self.stores.public_key)}

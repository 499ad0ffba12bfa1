"""The gate: the only place where rows and ledger meet.

Jobs are durable, calls are idempotent. The life of a release::

    Submit ─ admit ─► awaiting-approval ─► queued ─► [reserve + running, one transaction]
      ─► worker ─► kept on disk (one rename) ─► [commit + delivered, one transaction]

A kill anywhere leaves either nothing charged, or a reservation. On the next start a reservation
whose release is whole on disk is committed; any other is burnt. There is never a second draw.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.errors import BudgetExceeded, PenstockError, Refused
from penstock.privacy.events import Unbounded, to_dict
from penstock.wire.messages import JobState
from penstock.wire.signed import SignedStudy, read_signed_cancel, read_signed_study
from penstock_client.gate import preview, release
from penstock_client.gate.admission import Admission, SiteFacts, consider, identify, refuse
from penstock_client.gate.facts import (
    current_policy,
    identity,
    offered,
    public_snapshot,
    read_facts,
)
from penstock_client.gate.jobs import SILENT, Job, Jobs
from penstock_client.gate.recovery import STOPPED, Watch
from penstock_client.ledger.database import Database
from penstock_client.ledger.ledger import Ledger, utc_now
from penstock_client.rows import snapshot
from penstock_client.site import SEEDED, SitePaths, SiteSettings
from penstock_client.work.launcher import Worker
from penstock_client.work.spec import Spec

log = logging.getLogger("penstock.gate")

ROLLED_BACK = "rolled-back"
RETRY_SECONDS = 5.0
"""How long to wait before the ledger is tried again after a full disk."""


class Gate:
    """Jobs, ledger and releases of one site. Sockets are in :mod:`penstock_client.gate.service`.

    Must be constructed under the site's lock (:func:`penstock_client.ledger.database.exclusive`).
    """

    def __init__(self, paths: SitePaths, settings: SiteSettings) -> None:
        self.paths = paths
        self.settings = settings
        self._key = paths.key()
        self.public_key = paths.gate_public()
        self.database = Database(paths.database)
        self.ledger = Ledger(self.database, self._key)
        self.ledger.verify(self.public_key)
        self.watch = Watch(paths, self.ledger, self.public_key)
        self.jobs = Jobs(self.database)
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._current: tuple[str, Worker] | None = None
        self._progress: dict[str, tuple[int, int]] = {}

    # -- facts ---------------------------------------------------------------------------------

    def facts(self) -> SiteFacts:
        """What decisions depend on, read anew: the steward may have changed it.

        Raises:
            Refused: not certified yet, or a file that the steward is just editing.
        """
        return read_facts(self.paths, self.settings, self.ledger.state())

    def _now(self) -> str:
        return max(utc_now(), self.ledger.state().time)

    def describe(self, seen_manifest: bytes = b"") -> dict[str, Any]:
        """Public facts: versions served, key, dictionary, public n, what may be asked.

        Args:
            seen_manifest: the newest manifest that the caller holds of this site, if any. Where
                it proves that the ledger was restored, the gate stops, and says so here.

        Raises:
            Refused: not certified yet, or misconfigured; never for ``seen_manifest``.
        """
        self._look(seen_manifest)
        about = identity(self.settings, self.public_key)
        if self.watch.stopped:
            return {**about, "stopped": ROLLED_BACK}
        return {**about, **offered(self.facts())}

    def _look(self, seen_manifest: bytes) -> None:
        self.watch.look(seen_manifest)
        if self.watch.stopped:
            with self._lock:
                if self._current is not None:
                    self._current[1].kill()

    def _refuse_if_stopped(self) -> None:
        if self.watch.stopped:
            raise refuse(ROLLED_BACK)

    # -- the network side ----------------------------------------------------------------------

    def submit(self, data: bytes) -> Job:
        """Take a signed study; the same study finds its job again, at no cost.

        Raises:
            Refused: for a public reason; nothing was stored and nothing charged.
            PenstockError: malformed or not signed.
        """
        signed = read_signed_study(data)
        self._refuse_if_stopped()
        facts = self.facts()
        with self._lock:
            known = self.jobs.get(identify(signed, facts))
            if known is not None:
                return known.shown
            admission = consider(signed, facts)
            now = self._now()
            state, code = self._first_state(admission, facts)
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
            self.jobs.add(job)
        log.info("request %s %s", job.request_id[:12], state)
        self._wake.set()
        return job

    def _first_state(self, admission: Admission, facts: SiteFacts) -> tuple[JobState, str]:
        """The state of a new job; one that was charged before is never run again."""
        charge = facts.state.charges.get(admission.request_id)
        if charge is not None:
            # Its job was lost when the ledger was recovered from its records alone.
            whole = release.is_whole(self._release_folder(charge.id), self.public_key)
            if charge.status == "committed" and whole:
                return JobState.DELIVERED, ""
            return JobState.FAILED, "interrupted"
        automatic = facts.policy.approval == "automatic"
        return (JobState.QUEUED if automatic else JobState.AWAITING), ""

    def poll(self, request_id: str) -> Job:
        """The job's state, as the network may know it.

        Raises:
            Refused: unknown request.
        """
        return self._job(request_id).shown

    def _job(self, request_id: str) -> Job:
        job = self.jobs.get(request_id)
        if job is None:
            raise refuse("unknown-request")
        return job

    def progress(self, request_id: str) -> tuple[int, int]:
        """(step, steps) of a running job; steps are fixed beforehand and public."""
        return self._progress.get(request_id, (0, 0))

    def collect(
        self, request_id: str, offset: int = 0, length: int = 0
    ) -> tuple[bytes, int, Iterator[bytes]]:
        """Of a delivered job: the manifest, the table's size, and its parts from ``offset``.

        Always the same bytes, so that a broken transfer goes on where it stopped. ``length`` 0
        means to the end; beyond the end there are no parts.

        Raises:
            Refused: unknown, or not delivered.
        """
        job = self.poll(request_id)
        if job.state is not JobState.DELIVERED:
            raise refuse("not-delivered")
        folder = self._release_folder(request_id)
        parts = release.table_parts(folder, offset, length)
        return release.manifest_bytes(folder), release.table_size(folder), parts

    def cancel(self, data: bytes) -> Job:
        """End a study's newest job, if its own signer says so.

        Free before the reservation; afterwards the worker is killed and the charge burnt.

        Raises:
            Refused: unknown study, or another signer.
        """
        cancel = read_signed_cancel(data)
        jobs = self.jobs.of_study(cancel.study_id)
        if not jobs:
            raise refuse("unknown-request")
        job = jobs[-1]
        if read_signed_study(job.signed).signer != cancel.signer:
            raise refuse("unknown-signer")
        with self._lock:
            job = self.poll(job.request_id)  # a silent "no" is waiting, to everybody outside
            if job.state in (JobState.AWAITING, JobState.QUEUED):
                self.jobs.move(job.request_id, JobState.CANCELLED, self._now(), "cancelled")
            elif job.state is JobState.RUNNING and self._current is not None:
                running, worker = self._current
                if running == job.request_id:
                    self.jobs.move(job.request_id, JobState.RUNNING, self._now(), "cancelled")
                    worker.kill()
        return self.poll(job.request_id)

    # -- the steward's side --------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What the network is told, how many jobs there are, and what the steward must do."""
        counts = {str(s): len(self.jobs.in_state(s)) for s in JobState}
        shown = {**self.describe(), "jobs": {k: v for k, v in counts.items() if v}}
        if self.settings.insecure_seed is not None:
            shown["WARNING"] = SEEDED
        return {**shown, "remedy": STOPPED} if self.watch.stopped else shown

    def requests(self) -> list[dict[str, Any]]:
        """Every job with its study's question and price."""
        return [preview.row(job, self.progress(job.request_id)) for job in self.jobs.all()]

    def preview(self, request_id: str) -> dict[str, Any]:
        """What a request would release, to whom, and what it costs, before and after."""
        job = self.find(request_id)
        facts = self.facts()
        signed = read_signed_study(job.signed)
        shown = preview.preview(job, signed, facts)
        return shown | ({"warning": SEEDED} if self.settings.insecure_seed is not None else {})

    def find(self, prefix: str) -> Job:
        """The one job whose request id begins with ``prefix``."""
        found = [j for j in self.jobs.all() if j.request_id.startswith(prefix)]
        if len(found) != 1:
            raise refuse("unknown-request")
        return found[0]

    def approve(self, request_id: str) -> Job:
        """Let a waiting request run; it is admitted again, since the ledger may have moved."""
        with self._lock:
            self._refuse_if_stopped()
            job = self._awaiting(request_id)
            consider(read_signed_study(job.signed), self.facts())
            self.jobs.move(job.request_id, JobState.QUEUED, self._now())
        self._wake.set()
        return self.poll(job.request_id)

    def reject(self, request_id: str) -> Job:
        """Say no to a waiting request; nothing was charged.

        Where the policy says ``reject = "silent"``, the network goes on seeing it wait.
        """
        code = SILENT if current_policy(self.paths).reject == "silent" else "rejected"
        with self._lock:
            job = self._awaiting(request_id)
            self.jobs.move(job.request_id, JobState.REJECTED, self._now(), code)
        return self._job(job.request_id)

    def _awaiting(self, request_id: str) -> Job:
        job = self.find(request_id)
        if job.state is not JobState.AWAITING:
            raise refuse("not-awaiting")
        return job

    def ledger_view(self) -> dict[str, Any]:
        """The whole ledger, as `export` writes it: whoever asks folds and checks it again."""
        return {"export": self.ledger.export(self.public_key)}

    # -- running -------------------------------------------------------------------------------

    def recover(self) -> None:
        """After any end of the process: settle what was running when it came.

        Not in a ledger that was restored: a record more would part it from the lost ones.
        """
        if self.watch.stopped:
            return
        for job in self.jobs.in_state(JobState.RUNNING):
            folder = self._release_folder(job.request_id)
            if release.is_whole(folder, self.public_key):
                self._settle(job.request_id, JobState.DELIVERED)
                log.warning("request %s was kept before the gate ended", job.request_id[:12])
            else:
                shutil.rmtree(folder, ignore_errors=True)
                self._settle(job.request_id, JobState.FAILED, job.code or "interrupted")
                log.warning("request %s was interrupted; its charge stays", job.request_id[:12])
        shutil.rmtree(self.paths.work, ignore_errors=True)
        self.paths.work.mkdir(mode=0o700)

    def run(self) -> None:
        """Run queued jobs, oldest first, one at a time, until :meth:`stop`."""
        while not self._stopping.is_set():
            queued = self.jobs.in_state(JobState.QUEUED)
            if not queued or self.watch.stopped:
                self._wake.wait(timeout=1.0)
                self._wake.clear()
                continue
            try:
                self._run_one(queued[0])
            except PenstockError as error:
                # A full disk, or a policy file being edited. Nothing is lost: what is queued
                # waits, and what was reserved is settled as after a restart.
                log.error("%s", error)
                self._stopping.wait(RETRY_SECONDS)
                with contextlib.suppress(PenstockError):
                    self.recover()

    def stop(self) -> None:
        """Finish nothing, lose nothing: a running worker is killed, its charge burnt."""
        self._stopping.set()
        self._wake.set()
        with self._lock:
            if self._current is not None:
                self._current[1].kill()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def _run_one(self, job: Job) -> None:
        signed = read_signed_study(job.signed)
        worker = Worker(self.paths.work / job.request_id)
        try:
            admission, facts = self._reserve(job, signed, worker)
        except Refused as refusal:
            if refusal.reason in ("misconfigured", ROLLED_BACK):
                raise  # the job waits until the steward has put it right
            self.jobs.move(job.request_id, JobState.FAILED, self._now(), refusal.reason)
            log.info("request %s: %s", job.request_id[:12], refusal.reason)
            return
        except BudgetExceeded:
            self.jobs.move(job.request_id, JobState.FAILED, self._now(), "budget")
            return
        try:
            self._produce(job, signed, admission, facts, worker)
        finally:
            with self._lock:
                self._current = None
            self._progress.pop(job.request_id, None)
            worker.clean()

    def _reserve(
        self, job: Job, signed: SignedStudy, worker: Worker
    ) -> tuple[Admission, SiteFacts]:
        """The worst case is charged, durably, before the worker that reads rows exists."""
        with self._lock, self.database.transaction():
            self._refuse_if_stopped()
            fresh = self._job(job.request_id)
            if fresh.state is not JobState.QUEUED:
                raise refuse("cancelled")
            facts = self.facts()
            admission = consider(signed, facts)
            if admission.request_id != job.request_id:
                # The data got a new version while this waited: another request, to be asked anew.
                raise refuse("not-ready")
            # Who knows the seed can take the noise off again: the ledger says what that costs.
            seeded = self.settings.insecure_seed is not None
            told = (Unbounded("noise from a test seed"),) if seeded else ()
            charge = replace(admission.charge, events=(*admission.charge.events, *told))
            after = self.ledger.reserve(
                charge, signer_epsilon=admission.signer.epsilon, policy=facts.policy
            )
            self.jobs.move(job.request_id, JobState.RUNNING, self._now())
            self._current = (job.request_id, worker)
        log.info("request %s reserved", job.request_id[:12])
        return admission, replace(facts, state=after)

    def _produce(
        self,
        job: Job,
        signed: SignedStudy,
        admission: Admission,
        facts: SiteFacts,
        worker: Worker,
    ) -> None:
        persons = facts.state.lineages[job.lineage].versions[-1].persons
        folder = self._release_folder(job.request_id)
        try:
            table = worker.run(
                self._spec(job, signed, admission, facts, persons),
                lambda step, of: self._progress.__setitem__(job.request_id, (step, of)),
            )
            if table is None or self.watch.stopped:
                self._burn(job, worker.why())
                return
            release.keep(
                folder,
                table,
                signed,
                admission,
                site=facts.name,
                persons=persons,
                reserved=facts.state,
                insecure=self.settings.insecure_seed is not None,
                key=self._key,
            )
        except (OSError, PenstockError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._burn(job, type(error).__name__)
            return
        with self._lock:
            if not self.watch.stopped:
                self._settle(job.request_id, JobState.DELIVERED)
                log.info("request %s delivered", job.request_id[:12])
                return
        shutil.rmtree(folder, ignore_errors=True)
        self._burn(job, ROLLED_BACK)

    def _spec(
        self,
        job: Job,
        signed: SignedStudy,
        admission: Admission,
        facts: SiteFacts,
        persons: int,
    ) -> Spec:
        public = public_snapshot(self.paths)
        needs_public = signed.study.privacy.guarantee == "public-flow"
        return Spec(
            study=signed.study.to_dict(),
            dictionary=facts.dictionary.to_dict(),
            events=[to_dict(e) for e in admission.charge.events],
            snapshot=str(snapshot.path_of(self.paths.snapshots, job.lineage, job.version)),
            public_snapshot=str(public) if public and needs_public else None,
            persons=persons,
            device=self.settings.device,
            threads=self.settings.threads,
            memory_gb=self.settings.memory_gb,
            insecure_seed=self.settings.insecure_seed,
        )

    def _burn(self, job: Job, why: str) -> None:
        if self._job(job.request_id).code == "cancelled":
            self._settle(job.request_id, JobState.CANCELLED, "cancelled")
        else:
            ended = "interrupted" if self.stopping else "failed"
            code = ROLLED_BACK if self.watch.stopped else ended
            self._settle(job.request_id, JobState.FAILED, code)
        log.warning("request %s burnt: %s", job.request_id[:12], why)

    def _settle(self, request_id: str, state: JobState, code: str = "") -> None:
        """Commit or burn, and move the job, in one transaction."""
        with self.database.transaction():
            if state is JobState.DELIVERED:
                self.ledger.commit(request_id)
            else:
                self.ledger.burn(request_id, code)
            self.jobs.move(request_id, state, self._now(), code)

    def _release_folder(self, request_id: str) -> Path:
        return self.paths.releases / request_id

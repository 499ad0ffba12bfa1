"""The gate: the only place where rows and ledger meet.

Jobs are durable, calls are idempotent. The life of a release::

    Submit ─ admit ─► awaiting-approval ─► queued ─► rehearsed on synthetic rows
      ─► rows sealed and compared with the ledger ─► [reserve + running, one transaction]
      ─► worker ─► kept on disk (one rename) ─► [commit + delivered, one transaction]

A kill anywhere leaves either nothing charged, or a reservation. On the next start a reservation
whose release is whole on disk is committed; any other is burnt. There is never a second draw.

The ledger settles at once. What the network side is told follows a schedule of public numbers
(:mod:`penstock_client.gate.outside`), and the next run begins when this one's end shows there.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.errors import BudgetExceeded, JobFailed, PenstockError, Refused
from penstock.privacy.events import Unbounded, to_dict
from penstock.wire.canonical import digest
from penstock.wire.messages import JobState
from penstock.wire.signatures import private_to_pem
from penstock.wire.signed import SignedStudy, read_signed_cancel, read_signed_study
from penstock_client.gate import preview, release, schedule
from penstock_client.gate.admission import Admission, SiteFacts, consider, identify, refuse
from penstock_client.gate.facts import (
    current_policy,
    identity,
    offered,
    public_snapshot,
    read_facts,
)
from penstock_client.gate.jobs import SILENT, Job, Jobs
from penstock_client.gate.outside import Outside, Seen
from penstock_client.gate.recovery import STOPPED, Watch
from penstock_client.ledger.database import Database
from penstock_client.ledger.decisions import LOST, Decisions, Who
from penstock_client.ledger.ledger import Ledger, utc_now
from penstock_client.rows import snapshot
from penstock_client.rows.sealed import NotCertified, require_certified, sealed
from penstock_client.site import SEEDED, SitePaths, SiteSettings
from penstock_client.work import rehearsal
from penstock_client.work.launcher import Worker
from penstock_client.work.spec import Spec

log = logging.getLogger("penstock.gate")

ROLLED_BACK = "rolled-back"
RETRY_SECONDS = 5.0
"""How long to wait before the ledger is tried again after a full disk."""


class Gate:
    """Jobs, ledger and releases of one site. Sockets are in :mod:`penstock_client.gate.service`.

    Must be constructed under the site's lock (:func:`penstock_client.ledger.database.exclusive`).

    Args:
        clock: RFC 3339 UTC with microseconds.
        work: makes the worker of a job's folder.
        pause: waits for so many seconds, or until the gate stops.
    """

    def __init__(
        self,
        paths: SitePaths,
        settings: SiteSettings,
        *,
        clock: Callable[[], str] = utc_now,
        work: Callable[[Path], Worker] = Worker,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self.paths = paths
        self.settings = settings
        self._key = paths.key()
        self.public_key = paths.gate_public()
        self.database = Database(paths.database)
        self.ledger = Ledger(self.database, self._key, clock)
        self.ledger.verify(self.public_key)
        self.decisions = Decisions(paths, self._key)
        self.decisions.verify(self.public_key)
        self.whole_decisions = True
        self.watch = Watch(paths, self.ledger, self.public_key)
        self.jobs = Jobs(self.database)
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._clock, self._work = clock, work
        self._pause = self._stopping.wait if pause is None else pause
        self._latest = ""
        self._lock = threading.Lock()
        self._current: tuple[str, Worker] | None = None
        self._progress: dict[str, tuple[int, int]] = {}
        # Seconds that a whole run takes, by what was rehearsed.
        self._rehearsed: dict[str, float] = {}

    # -- facts ---------------------------------------------------------------------------------

    def facts(self) -> SiteFacts:
        """What decisions depend on, read anew: the steward may have changed it.

        Raises:
            Refused: not certified yet, or a file that the steward is just editing.
        """
        return read_facts(self.paths, self.settings, self.ledger.state(), self._now())

    def _now(self) -> str:
        """The clock's time, never before the last record's, nor before what was said last."""
        self._latest = max(self._clock(), self.ledger.state().time, self._latest)
        return self._latest

    def _outside(self) -> Outside:
        cancelled = {j.request_id: j.updated for j in self.jobs.in_state(JobState.CANCELLED)}
        return Outside(self.ledger.state(), cancelled, self._now())

    def _public_position(self) -> tuple[int, str]:
        """The ledger's newest record before the first that does not show yet, and its hash."""
        outside = self._outside()
        first = outside.first_hidden()
        if first is None:
            return outside.state.seq, outside.state.head
        return self.ledger.before(first)

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
        return {**about, **offered(self.facts(), self._public_position())}

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

    def submit(self, data: bytes) -> Seen:
        """Take a signed study; the same study finds its job again, at no cost.

        Raises:
            Refused: for a public reason; nothing was stored and nothing charged.
            PenstockError: malformed or not signed.
        """
        signed = read_signed_study(data)
        self._refuse_if_stopped()
        self.decisions.notice(self.paths)
        facts = self.facts()
        with self._lock:
            known = self.jobs.get(identify(signed, facts))
            if known is not None:
                return self._outside().see(known)
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
        return self._outside().see(job)

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

    def poll(self, request_id: str) -> Seen:
        """The job's state, as the network may know it.

        Raises:
            Refused: unknown request.
        """
        return self._outside().see(self._job(request_id))

    def _job(self, request_id: str) -> Job:
        job = self.jobs.get(request_id)
        if job is None:
            raise refuse("unknown-request")
        return job

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
        folder = self._release_folder(request_id)
        parts = release.table_parts(folder, offset, length)
        return release.manifest_bytes(folder), release.table_size(folder), parts

    def cancel(self, data: bytes) -> Seen:
        """End a study's newest job, if its own signer says so.

        Free before the reservation. Afterwards the charge stays, whatever the run had come to: a
        worker is killed, a release that was made in the meantime is withheld, and all of it shows
        at the next slot only. Until an end shows, each takes the same course here.

        Raises:
            Refused: unknown study, or another signer.
        """
        cancel = read_signed_cancel(data)
        jobs = self.jobs.of_study(cancel.study_id)
        if not jobs:
            raise refuse("unknown-request")
        request_id = jobs[-1].request_id
        if read_signed_study(jobs[-1].signed).signer != cancel.signer:
            raise refuse("unknown-signer")
        with self._lock:
            job = self._job(request_id)
            seen = self._outside().see(job)  # a silent "no" is waiting, to everybody outside
            ends = (JobState.AWAITING, JobState.QUEUED, JobState.RUNNING)
            told = job.state is not JobState.CANCELLED and seen.state in ends
            if told:
                self.jobs.move(request_id, JobState.CANCELLED, self._now(), "cancelled")
        if told and seen.state is JobState.RUNNING:
            # Elsewhere, so that an answer takes as long whether there is a run to end or not.
            threading.Thread(target=self._end_cancelled, args=(request_id,)).start()
        return self.poll(request_id)

    def _end_cancelled(self, request_id: str) -> None:
        with self._lock:
            if self._current is not None and self._current[0] == request_id:
                self._current[1].kill()
        try:
            if not self._settle(request_id, JobState.CANCELLED, "cancelled"):
                shutil.rmtree(self._release_folder(request_id), ignore_errors=True)
        except PenstockError as error:
            log.error("%s", error)  # a full disk: settled when the gate recovers

    # -- the steward's side --------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What the network is told, how many jobs there are, and what the steward must do."""
        counts = {str(s): len(self.jobs.in_state(s)) for s in JobState}
        shown = {**self.describe(), "jobs": {k: v for k, v in counts.items() if v}}
        if "ledger_seq" in shown:
            state = self.ledger.state()  # all of it, for the steward
            shown |= {"ledger_seq": state.seq, "ledger_head": state.head}
        if self.settings.insecure_seed is not None:
            shown["WARNING"] = SEEDED
        return {**shown, "remedy": STOPPED} if self.watch.stopped else shown

    def requests(self) -> list[dict[str, Any]]:
        """Every job with its study's question and price, as it stands, and as it looks outside."""
        outside = self._outside()
        return [
            {
                **preview.row(job, self.progress(job.request_id)),
                "outside": str(outside.see(job).state),
            }
            for job in self.jobs.all()
        ]

    def progress(self, request_id: str) -> tuple[int, int]:
        """(step, steps) of a running job."""
        return self._progress.get(request_id, (0, 0))

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

    def approve(self, request_id: str, by: Who | None = None, reason: str = "") -> Job:
        """Let a waiting request run; it is admitted again, since the ledger may have moved."""
        with self._lock:
            self._refuse_if_stopped()
            job = self._awaiting(request_id)
            self.decisions.notice(self.paths)
            consider(read_signed_study(job.signed), self.facts())
            self._decide("approve", job, by, reason)
            self.jobs.move(job.request_id, JobState.QUEUED, self._now())
        self._wake.set()
        return self._job(job.request_id)

    def reject(self, request_id: str, by: Who | None = None, reason: str = "") -> Job:
        """Say no to a waiting request; nothing was charged.

        Where the policy says ``reject = "silent"``, the network goes on seeing it wait.
        """
        code = SILENT if current_policy(self.paths).reject == "silent" else "rejected"
        with self._lock:
            job = self._awaiting(request_id)
            self._decide("reject", job, by, reason, silent=code == SILENT)
            self.jobs.move(job.request_id, JobState.REJECTED, self._now(), code)
        return self._job(job.request_id)

    def _decide(self, kind: str, job: Job, by: Who | None, reason: str, **more: Any) -> None:
        """A steward's word is on record before it takes effect."""
        asked = {"request": job.request_id, "study": job.study_id}
        self.decisions.append(kind, by or Who.here(), reason, **asked, **more)

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
        self._look_at_decisions()
        charges = self.ledger.state().charges.values()
        for request_id in [c.id for c in charges if c.status == "reserved"]:
            folder, job = self._release_folder(request_id), self.jobs.get(request_id)
            cancelled = job is not None and job.state is JobState.CANCELLED
            if not cancelled and release.is_whole(folder, self.public_key):
                self._settle(request_id, JobState.DELIVERED)
                log.warning("request %s was kept before the gate ended", request_id[:12])
            else:
                shutil.rmtree(folder, ignore_errors=True)
                code = (job.code if job is not None else "") or "interrupted"
                self._settle(request_id, JobState.FAILED, code)
                log.warning("request %s was interrupted; its charge stays", request_id[:12])
        shutil.rmtree(self.paths.work, ignore_errors=True)
        self.paths.work.mkdir(mode=0o700)

    def _look_at_decisions(self) -> None:
        """Begin the chain of decisions, and compare it with what the ledger names of it."""
        self.decisions.begin(self.settings.name)
        named = [c.decisions for c in self.ledger.state().charges.values() if c.decisions]
        self.whole_decisions = not named or self.decisions.compare(named[-1])
        if not self.whole_decisions:
            log.error("%s", LOST)
        self.decisions.notice(self.paths)

    def run(self) -> None:
        """Run queued jobs, oldest first, one at a time, until :meth:`stop`."""
        while not self._stopping.is_set():
            try:
                wait = self.turn()
            except PenstockError as error:
                # A full disk, or a policy file being edited. Nothing is lost: what is queued
                # waits, and what was reserved is settled as after a restart.
                log.error("%s", error)
                self._stopping.wait(RETRY_SECONDS)
                with contextlib.suppress(PenstockError):
                    self.recover()
                continue
            if wait:
                self._wake.wait(timeout=min(wait, 1.0))
                self._wake.clear()

    def turn(self) -> float:
        """Run the oldest queued job, if there is one and the last one's end shows.

        Returns:
            Seconds after which it is worth another try; 0 after a run.
        """
        if self.watch.stopped or not (queued := self.jobs.in_state(JobState.QUEUED)):
            return 1.0
        # Not at the true end of the run before, which may depend on rows.
        free = self._outside().free_in()
        if free is None:
            self.recover()  # nothing runs: what is still open could not be settled
            return RETRY_SECONDS
        if free > 0:
            return free
        self._run_one(queued[0])
        return 0.0

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
        worker = self._work(self.paths.work / job.request_id)
        with self._lock:
            self._current = (job.request_id, worker)
        try:
            with contextlib.ExitStack() as held:
                begun = self._begin(job, signed, worker, held)
                if begun is not None:
                    self._produce(job, signed, worker, *begun)
        finally:
            with self._lock:
                self._current = None
            self._progress.pop(job.request_id, None)
            worker.clean()

    def _begin(
        self, job: Job, signed: SignedStudy, worker: Worker, held: contextlib.ExitStack
    ) -> tuple[Admission, SiteFacts, int] | None:
        """Rehearse, seal and check the rows, and charge; None where it did not come to that.

        The reservation comes a whole number of slots after this began, so that not even the time
        it takes to read the rows' file is seen.
        """
        begun = self._now()
        try:
            facts = self.facts()
            admission = self._admit(job, signed, facts)
            seconds = self._rehearse(signed, admission, facts, worker, held)
            rows = held.enter_context(self._certified(job, facts))
            slot = facts.policy.slot_seconds
            self._await(schedule.next_slot(begun, slot, self._now()))
            if self._went_away(job):
                return None
            planned = schedule.planned(seconds, slot)
            return (*self._reserve(job, signed, planned), rows)
        except Refused as refusal:
            if self._went_away(job):
                return None
            if refusal.reason in ("misconfigured", ROLLED_BACK):
                raise  # the job waits until the steward has put it right
            code = refusal.reason
        except BudgetExceeded:
            code = "budget"
        except (NotCertified, OSError) as error:
            log.error("%s", error)
            code = "not-ready"
        worker.clean()
        self.jobs.move(job.request_id, JobState.FAILED, self._now(), code)
        log.info("request %s: %s", job.request_id[:12], code)
        return None

    def _went_away(self, job: Job) -> bool:
        """Whether the gate stops, or the job was cancelled: before its charge, at no cost."""
        return self.stopping or self._job(job.request_id).state is not JobState.QUEUED

    def _admit(self, job: Job, signed: SignedStudy, facts: SiteFacts) -> Admission:
        self._refuse_if_stopped()
        admission = consider(signed, facts)
        if admission.request_id != job.request_id:
            # The data got a new version while this waited: another request, to be asked anew.
            raise refuse("not-ready")
        return admission

    def _await(self, moment: str) -> None:
        while not self.stopping and (left := schedule.until(moment, self._now())) > 0:
            self._pause(left)

    def _rehearse(
        self,
        signed: SignedStudy,
        admission: Admission,
        facts: SiteFacts,
        worker: Worker,
        held: contextlib.ExitStack,
    ) -> float:
        """Start the worker, and let it run the study on synthetic rows; seconds of a whole run.

        Raises:
            Refused: it cannot be carried out here.
        """
        study, lineage = signed.study, facts.state.lineages[admission.charge.lineage]
        persons = lineage.versions[-1].persons
        spec = self._spec(signed, admission, facts, persons, held)
        about = {k: study.to_dict()[k] for k in ("schema", "estimands", "privacy", "mechanism")}
        known = digest({**about, "dictionary": spec.dictionary, "persons": persons})
        try:
            if not worker.prepare(spec, rehearse=known not in self._rehearsed):
                raise JobFailed("the worker did not come so far", value=worker.why())
            if known not in self._rehearsed:
                short = replace(signed, study=rehearsal.shortened(study, rehearsal.LONG))
                began = time.perf_counter()
                release.check_table(worker.rehearsed, short, persons)
                checked = time.perf_counter() - began
                found = worker.measured()
                whole = replace(found, short=found.short + checked, long=found.long + checked)
                self._rehearsed[known] = rehearsal.seconds(study, whole)
        except (OSError, ValueError, PenstockError) as error:
            self._refuse_if_stopped()
            log.error("request %s failed its rehearsal: %s", admission.request_id[:12], error)
            why = error.value if isinstance(error, JobFailed) else error
            self.jobs.note(admission.request_id, str(why))
            raise refuse("rehearsal") from None
        return self._rehearsed[known]

    @contextlib.contextmanager
    def _certified(self, job: Job, facts: SiteFacts) -> Iterator[int]:
        """The sealed rows of a job's version, compared with what the ledger certified."""
        version = facts.state.lineages[job.lineage].versions[-1]
        path = snapshot.path_of(self.paths.snapshots, job.lineage, version.number)
        with sealed(path) as rows:
            secret = private_to_pem(self._key)
            require_certified(rows, facts.dictionary, secret, version.fingerprint)
            yield rows

    def _reserve(
        self, job: Job, signed: SignedStudy, planned: float
    ) -> tuple[Admission, SiteFacts]:
        """The worst case is charged, durably, before the worker gets to the rows."""
        with self._lock, self.database.transaction():
            if self._job(job.request_id).state is not JobState.QUEUED:
                raise refuse("cancelled")
            facts = self.facts()
            admission = self._admit(job, signed, facts)
            # Who knows the seed can take the noise off again: the ledger says what that costs.
            seeded = self.settings.insecure_seed is not None
            told = (Unbounded("noise from a test seed"),) if seeded else ()
            self.decisions.notice(self.paths)
            charge = replace(
                admission.charge,
                events=(*admission.charge.events, *told),
                ready_at=schedule.after(facts.now, planned),
                decisions=self.decisions.head,
            )
            after = self.ledger.reserve(
                charge, signer_epsilon=admission.signer.epsilon, policy=facts.policy
            )
            self.jobs.move(job.request_id, JobState.RUNNING, self._now())
        log.info("request %s reserved", job.request_id[:12])
        return admission, replace(facts, state=after)

    def _produce(
        self,
        job: Job,
        signed: SignedStudy,
        worker: Worker,
        admission: Admission,
        facts: SiteFacts,
        rows: int,
    ) -> None:
        persons = facts.state.lineages[job.lineage].versions[-1].persons
        folder = self._release_folder(job.request_id)
        try:
            table = worker.run(
                rows, lambda step, of: self._progress.__setitem__(job.request_id, (step, of))
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
            if not self.watch.stopped and self._settle(job.request_id, JobState.DELIVERED):
                log.info("request %s delivered", job.request_id[:12])
                return
        shutil.rmtree(folder, ignore_errors=True)
        self._burn(job, ROLLED_BACK if self.watch.stopped else "cancelled")

    def _spec(
        self,
        signed: SignedStudy,
        admission: Admission,
        facts: SiteFacts,
        persons: int,
        held: contextlib.ExitStack,
    ) -> Spec:
        public = None
        if signed.study.privacy.guarantee == "public-flow":
            path = public_snapshot(self.paths)
            public = held.enter_context(sealed(path)) if path is not None else None
        return Spec(
            study=signed.study.to_dict(),
            dictionary=facts.dictionary.to_dict(),
            events=[to_dict(e) for e in admission.charge.events],
            public=public,
            persons=persons,
            device=self.settings.device,
            threads=self.settings.threads,
            memory_gb=self.settings.memory_gb,
            insecure_seed=self.settings.insecure_seed,
        )

    def _burn(self, job: Job, why: str) -> None:
        code = ROLLED_BACK if self.watch.stopped else "interrupted" if self.stopping else "failed"
        if self._settle(job.request_id, JobState.FAILED, code):
            self.jobs.note(job.request_id, why)
            log.warning("request %s burnt: %s", job.request_id[:12], why)

    def _settle(self, request_id: str, state: JobState, code: str = "") -> bool:
        """Commit or burn, and move the job, in one transaction; False where that had been done.

        Of a job that was cancelled meanwhile, no release is kept: its charge is burnt.
        """
        with self.database.transaction():
            if self.ledger.state().charges[request_id].status != "reserved":
                return False
            job = self.jobs.get(request_id)
            if job is not None and job.state is JobState.CANCELLED:
                self.ledger.burn(request_id, "cancelled")
                log.warning("request %s was cancelled; its charge stays", request_id[:12])
                return state is not JobState.DELIVERED
            if state is JobState.DELIVERED:
                self.ledger.commit(request_id)
            else:
                self.ledger.burn(request_id, code)
            self.jobs.move(request_id, state, self._now(), code)
            return True

    def _release_folder(self, request_id: str) -> Path:
        return self.paths.releases / request_id

"""Running what was admitted, one job at a time: the only place where rows and ledger meet.

The life of a release, once it is queued::

    rehearsed on synthetic rows ─► rows sealed and compared with the ledger
      ─► [reserve + running, one transaction]
      ─► worker ─► kept on disk (one rename) ─► [commit + delivered, one transaction]

A kill anywhere leaves either nothing charged, or a reservation. On the next start a reservation
whose release is whole on disk is committed; any other is burnt. There is never a second draw.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from penstock.base.errors import BudgetExceeded, PenstockError, Refused
from penstock.privacy.events import Unbounded
from penstock.wire.messages import JobState
from penstock.wire.signatures import private_to_pem
from penstock.wire.signed import SignedStudy
from penstock_client.gate import release, schedule
from penstock_client.gate.admission import Admission, SiteFacts, consider, refuse, require_held
from penstock_client.gate.jobs import Job
from penstock_client.gate.settlement import Settlement
from penstock_client.gate.stores import ROLLED_BACK, Stores
from penstock_client.gate.worker_setup import WorkerSetup
from penstock_client.rows import snapshot
from penstock_client.rows.sealed import NotCertified, require_certified, seal_rows
from penstock_client.work.launcher import Worker

log = logging.getLogger("penstock.gate")

RETRY_SECONDS = 5.0
"""How long to wait before the ledger is tried again after a full disk."""


class Runner:
    """Runs the queued jobs of one site, oldest first.

    Args:
        work: makes the worker of a job's folder.
        pause: waits for so many seconds, or until the gate stops.
    """

    def __init__(
        self,
        stores: Stores,
        *,
        work: Callable[[Path], Worker] = Worker,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._stores = stores
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._work = work
        self._pause = self._stopping.wait if pause is None else pause
        self._current: tuple[str, Worker] | None = None
        self._progress: dict[str, tuple[int, int]] = {}
        self._setup = WorkerSetup(stores)
        self.settlement = Settlement(stores)

    def wake(self) -> None:
        """There is a job more."""
        self._wake.set()

    def progress(self, request_id: str) -> tuple[int, int]:
        """(step, steps) of a running job."""
        return self._progress.get(request_id, (0, 0))

    def kill(self, request_id: str | None = None) -> None:
        """End the worker of this request, or whichever there is."""
        with self._stores.lock:
            if self._current is not None and request_id in (None, self._current[0]):
                self._current[1].kill()

    def end_cancelled(self, request_id: str) -> None:
        """Kill what runs of a request that its signer cancelled, and withhold what it made."""
        self.kill(request_id)
        self.settlement.withhold(request_id)

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
                    self.settlement.recover()
                continue
            if wait:
                self._wake.wait(timeout=min(wait, 1.0))
                self._wake.clear()

    def turn(self) -> float:
        """Run the oldest queued job, if there is one and the last one's end shows.

        Returns:
            Seconds after which it is worth another try; 0 after a run.
        """
        queued = [job for job in self._stores.jobs.in_state(JobState.QUEUED) if self._is_own(job)]
        if self._stores.watch.stopped or not queued:
            return 1.0
        # Not at the true end of the run before, which may depend on rows.
        free = self._stores.outside().count_seconds_until_free()
        if free is None:
            self.settlement.recover()  # nothing runs: what is still open could not be settled
            return RETRY_SECONDS
        if free > 0:
            return free
        self._run_one(queued[0])
        return 0.0

    def _is_own(self, job: Job) -> bool:
        """Whether it is a release of this site's rows: parts in sums of many sites are asked for
        round by round."""
        return not self._stores.read_job(job).study.aggregation.joint

    def stop(self) -> None:
        """Finish nothing, lose nothing: a running worker is killed, its charge burnt."""
        self._stopping.set()
        self._wake.set()
        self.kill()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def _run_one(self, job: Job) -> None:
        signed = self._stores.read_job(job)
        worker = self._work(self._stores.paths.work / job.request_id)
        with self._stores.lock:
            self._current = (job.request_id, worker)
        try:
            with contextlib.ExitStack() as held:
                begun = self._begin(job, signed, worker, held)
                if begun is not None:
                    self._produce(job, signed, worker, *begun)
        finally:
            with self._stores.lock:
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
        begun = self._stores.now()
        try:
            facts = self._stores.facts()
            admission = self._admit(job, signed, facts)
            seconds = self._setup.rehearse(signed, admission, facts, worker, held)
            rows = held.enter_context(self._certified(job, facts))
            slot = facts.policy.slot_seconds
            self._wait_until(schedule.find_next_slot(begun, slot, self._stores.now()))
            if self._is_withdrawn(job):
                return None
            planned = schedule.plan_seconds(seconds, slot)
            return (*self._reserve(job, signed, planned), rows)
        except Refused as refusal:
            if self._is_withdrawn(job):
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
        self.settlement.end_unbegun(job.request_id, JobState.FAILED, code)
        log.info("request %s: %s", job.request_id[:12], code)
        return None

    def _is_withdrawn(self, job: Job) -> bool:
        """Whether the gate stops, or the job was cancelled: before its charge, at no cost."""
        return self.stopping or self._stores.job(job.request_id).state is not JobState.QUEUED

    def _admit(self, job: Job, signed: SignedStudy, facts: SiteFacts) -> Admission:
        self._stores.refuse_if_stopped()
        admission = consider(signed, facts)
        if admission.request_id != job.request_id:
            # The data got a new version while this waited: another request, to be asked anew.
            raise refuse("not-ready")
        return admission

    def _wait_until(self, moment: str) -> None:
        while (
            not self.stopping and (left := schedule.count_seconds(moment, self._stores.now())) > 0
        ):
            self._pause(left)

    @contextlib.contextmanager
    def _certified(self, job: Job, facts: SiteFacts) -> Iterator[int]:
        """The sealed rows of a job's version, compared with what the ledger certified."""
        version = facts.state.lineages[job.lineage].versions[-1]
        path = snapshot.locate_rows(self._stores.paths.snapshots, job.lineage, version.number)
        with seal_rows(path) as rows:
            secret = private_to_pem(self._stores.key)
            require_certified(rows, facts.dictionary, secret, version.fingerprint)
            yield rows

    def _reserve(
        self, job: Job, signed: SignedStudy, planned: float | None = None
    ) -> tuple[Admission, SiteFacts]:
        """The worst case is charged, durably, before the worker gets to the rows.

        Args:
            planned: seconds of the run; None of one whose rounds have slots of their own.
        """
        with self._stores.lock, self._stores.database.transaction():
            if self._stores.job(job.request_id).state is not JobState.QUEUED:
                raise refuse("cancelled")
            facts = self._stores.facts()
            admission = self._admit(job, signed, facts)
            # Who knows the seed can take the noise off again: the ledger says what that costs.
            seeded = self._stores.settings.insecure_seed is not None
            told = (Unbounded("noise from a test seed"),) if seeded else ()
            self._stores.decisions.notice(self._stores.paths)
            charge = replace(
                admission.charge,
                events=(*admission.charge.events, *told),
                ready_at="" if planned is None else schedule.add_seconds(facts.now, planned),
                decisions=self._stores.decisions.head,
            )
            charges = [charge]
            if signed.study.aggregation.halved and signed.study.aggregation.joint:
                require_held(facts.state, job.request_id)
                charges = []  # it was charged when the site's own release began
            elif admission.beside is not None:
                beside = admission.beside
                events = (*beside.events, *told)
                charges += [replace(beside, events=events, decisions=charge.decisions)]
            after = facts.state
            for each in charges:
                after = self._stores.ledger.reserve(
                    each, signer_epsilon=admission.signer.epsilon, policy=facts.policy
                )
            self._stores.jobs.move(job.request_id, JobState.RUNNING, self._stores.now())
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
        folder = self._stores.release_folder(job.request_id)
        try:
            table = worker.run(
                rows, lambda step, of: self._progress.__setitem__(job.request_id, (step, of))
            )
            if table is None or self._stores.watch.stopped:
                self.settlement.burn(job, worker.why(), stopping=self.stopping)
                return
            release.keep_release(
                folder,
                table,
                signed,
                admission,
                site=facts.name,
                persons=persons,
                reserved=facts.state,
                insecure=self._stores.settings.insecure_seed is not None,
                key=self._stores.key,
            )
        except (OSError, PenstockError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            self.settlement.burn(job, type(error).__name__, stopping=self.stopping)
            return
        with self._stores.lock:
            stopped = self._stores.watch.stopped
            if not stopped and self.settlement.settle(job.request_id, JobState.DELIVERED):
                log.info("request %s delivered", job.request_id[:12])
                return
        shutil.rmtree(folder, ignore_errors=True)
        why = ROLLED_BACK if self._stores.watch.stopped else "cancelled"
        self.settlement.burn(job, why, stopping=self.stopping)

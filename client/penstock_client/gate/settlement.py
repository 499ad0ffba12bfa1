"""How a job ends: committed, or burnt; and what is found open after any end of the process.

Nothing is settled twice, and there is never a second draw: a reservation whose release is whole on
disk is committed, any other is burnt.
"""

from __future__ import annotations

import logging
import shutil

from penstock.base.errors import PenstockError
from penstock.study.halves import find_other
from penstock.wire.messages import JobState
from penstock_client.gate import release, schedule
from penstock_client.gate.admission import request_id as identify_request
from penstock_client.gate.jobs import UNBEGUN, Job
from penstock_client.gate.stores import ROLLED_BACK, Stores
from penstock_client.ledger.decisions import LOST

log = logging.getLogger("penstock.gate")


class Settlement:
    """Ends the jobs of one site, in the ledger and in the list of jobs together.

    Attributes:
        decisions_hold: whether the chain of decisions is the one that the ledger names.
    """

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self.decisions_hold = True

    def recover(self) -> None:
        """After any end of the process: settle what was running when it came.

        Not in a ledger that was restored: a record more would part it from the lost ones.
        """
        if self._stores.watch.stopped:
            return
        self._check_decisions()
        charges = self._stores.ledger.state().charges.values()
        for request_id in [c.id for c in charges if c.status == "reserved"]:
            folder, job = self._stores.release_folder(request_id), self._stores.jobs.get(request_id)
            if self._is_awaited(request_id, job):
                continue
            cancelled = job is not None and job.state is JobState.CANCELLED
            if not cancelled and release.is_whole(folder, self._stores.public_key):
                self.settle(request_id, JobState.DELIVERED)
                log.warning("request %s was kept before the gate ended", request_id[:12])
            elif job is None or not self._goes_on(job, request_id):
                shutil.rmtree(folder, ignore_errors=True)
                code = (job.code if job is not None else "") or "interrupted"
                self.settle(request_id, JobState.FAILED, code)
                log.warning("request %s was interrupted; its charge stays", request_id[:12])
        shutil.rmtree(self._stores.paths.work, ignore_errors=True)
        self._stores.paths.work.mkdir(mode=0o700)

    def _check_decisions(self) -> None:
        """Begin the chain of decisions, and compare it with what the ledger names of it."""
        self._stores.decisions.begin(self._stores.settings.name)
        named = [c.decisions for c in self._stores.ledger.state().charges.values() if c.decisions]
        self.decisions_hold = not named or self._stores.decisions.compare(named[-1])
        if not self.decisions_hold:
            log.error("%s", LOST)
        self._stores.decisions.notice(self._stores.paths)

    def _goes_on(self, job: Job, request_id: str) -> bool:
        """Whether a job is a part in sums of many sites, whose rounds may still come: it outlives
        the process, and ends with its study or when that would close."""
        study = self._stores.read_job(job).study
        if not study.aggregation.joint or job.state is not JobState.RUNNING:
            return False
        begun = self._stores.ledger.state().charges[request_id].time
        closes = schedule.add_seconds(begun, 3600 * study.deadline_hours)
        return self._stores.now() < min(closes, study.expires)

    def _is_awaited(self, request_id: str, job: Job | None) -> bool:
        """Whether a charge was made with the other half's, and its own run may still begin."""
        if job is not None:
            study = self._stores.read_job(job).study
            return job.state in UNBEGUN and self._stores.now() < study.expires
        return any(self._names(each, request_id) for each in self._stores.jobs.all())

    def _names(self, job: Job, request_id: str) -> bool:
        """Whether a job is of the half of a study whose other half is this request."""
        signed, name = self._stores.read_job(job), self._stores.settings.name
        if not signed.study.aggregation.halved or self._stores.now() >= signed.study.expires:
            return False
        half = find_other(signed.study)
        return identify_request(signed, name, job.lineage, job.version, half) == request_id

    def end_unbegun(self, request_id: str, state: JobState, code: str) -> None:
        """End a job whose run has not begun, and burn what it was charged with another half."""
        with self._stores.database.transaction():
            charge = self._stores.ledger.state().charges.get(request_id)
            if charge is not None and charge.status == "reserved":
                self._stores.ledger.burn(request_id, code)
            self._stores.jobs.move(request_id, state, self._stores.now(), code)

    def end_overdue(self) -> None:
        """Burn what is left of sums whose time is over; those that never began cost nothing, unless
        they were charged with another half."""
        for job in self._stores.jobs.in_state(JobState.RUNNING):
            study = self._stores.read_job(job).study
            if study.aggregation.joint and not self._goes_on(job, job.request_id):
                self.burn(job, "its rounds did not come in time", stopping=False)
        for job in self._stores.jobs.in_state(JobState.QUEUED):
            study = self._stores.read_job(job).study
            if study.aggregation.joint and self._stores.now() >= study.expires:
                self.end_unbegun(job.request_id, JobState.FAILED, "expired")

    def burn(self, job: Job, why: str, *, stopping: bool) -> None:
        """Burn the charge of a run that made nothing to keep, and note why for the steward."""
        code = (
            ROLLED_BACK if self._stores.watch.stopped else "interrupted" if stopping else "failed"
        )
        if self.settle(job.request_id, JobState.FAILED, code):
            self._stores.jobs.note(job.request_id, why)
            log.warning("request %s burnt: %s", job.request_id[:12], why)

    def settle(self, request_id: str, state: JobState, code: str = "") -> bool:
        """Commit or burn, and move the job, in one transaction; False where that had been done.

        Of a job that was cancelled meanwhile, no release is kept: its charge is burnt.
        """
        with self._stores.database.transaction():
            if self._stores.ledger.state().charges[request_id].status != "reserved":
                return False
            job = self._stores.jobs.get(request_id)
            if job is not None and job.state is JobState.CANCELLED:
                self._stores.ledger.burn(request_id, "cancelled")
                log.warning("request %s was cancelled; its charge stays", request_id[:12])
                return state is not JobState.DELIVERED
            if state is JobState.DELIVERED:
                self._stores.ledger.commit(request_id)
            else:
                self._stores.ledger.burn(request_id, code)
            self._stores.jobs.move(request_id, state, self._stores.now(), code)
            return True

    def withhold(self, request_id: str) -> None:
        """Burn what a cancelled request was charged, and remove what was made for it."""
        try:
            if not self.settle(request_id, JobState.CANCELLED, "cancelled"):
                shutil.rmtree(self._stores.release_folder(request_id), ignore_errors=True)
        except PenstockError as error:
            log.error("%s", error)  # a full disk: settled when the gate recovers

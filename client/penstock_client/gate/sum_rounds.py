r"""Running a site's part in the sums of many sites: one worker process a round.

::

    an order is there ─► rows sealed and compared with the ledger
      ─► the first time: [reserve + running, one transaction]
      ─► worker: the site's numbers, with its noise ─► its slot comes
      ─► [masked vector + size, one transaction] ─► shown

The whole plan is charged before the first round, whatever comes of the rest. Noise that was drawn
counts once it is masked and kept. What dies before that is begun anew, with other noise, and nobody
saw any of the first: of a round there is one masked vector, or none.

A vector shows at the round's slots (:mod:`~penstock_client.gate.schedule`), counted from when the
round was opened: so does the end of a job whose worker fails :data:`TRIES` times.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from penstock.aggregation.exchanges import SUM_BITS
from penstock.aggregation.residues import Residues
from penstock.aggregation.roster import Roster
from penstock.base.errors import BudgetExceeded, PenstockError, Refused
from penstock.wire.messages import JobState
from penstock.wire.signed import SignedStudy
from penstock_client.gate import schedule
from penstock_client.gate.jobs import Job
from penstock_client.gate.running import Runner
from penstock_client.gate.stores import ROLLED_BACK
from penstock_client.gate.sum_steps import make_terms
from penstock_client.masking.member import Member
from penstock_client.masking.round_orders import Order, RoundOrders
from penstock_client.masking.sum_record import SumRecord, list_open_sums
from penstock_client.rows.sealed import NotCertified
from penstock_client.work.launcher import Worker
from penstock_client.work.spec import VECTOR

log = logging.getLogger("penstock.gate")

TRIES = 3
"""A worker that dies is begun again; one that dies of what it is asked would die for ever."""

START_SECONDS = 2.0
"""What a worker takes to begin, beside what its rehearsal takes."""

_OPEN = (JobState.QUEUED, JobState.RUNNING)


class RoundRunner(Runner):
    """Runs the queued jobs of one site, and the rounds of those that are sums of many sites.

    While such a job goes on, no other run begins: what one run takes would show in another's time.
    """

    def turn(self) -> float:
        """One round, if one was opened and may begin; else as :meth:`Runner.turn`."""
        if not self._stores.watch.stopped:
            self.settlement.end_overdue()
            self._erase_ended()
            for job, order in self._list_orders():
                free = self._stores.outside().count_seconds_until_free()
                if job.state is JobState.RUNNING or free == 0:
                    self._add(job, order)
                    return 0.0
        return super().turn()

    def _list_orders(self) -> Iterator[tuple[Job, Order]]:
        """The newest order of each job, if it waits for its vector; jobs that run come first."""
        for state in reversed(_OPEN):
            for job in self._stores.jobs.in_state(state):
                if not self._is_own(job):
                    newest = RoundOrders(self._stores.database, job.study_id).newest()
                    if newest is not None and newest.size is None:
                        yield job, newest

    def _erase_ended(self) -> None:
        """Secrets of sums whose jobs are over."""
        for study in list_open_sums(self._stores.database):
            jobs = self._stores.jobs.of_study(study)
            if not any(job.state in (*_OPEN, JobState.AWAITING) for job in jobs):
                SumRecord(self._stores.database, study).erase()

    def _add(self, job: Job, order: Order) -> None:
        """One round; its job ends where it cannot be carried out."""
        signed = self._stores.read_job(job)
        code, why = "failed", ""
        for _ in range(TRIES):
            worker = self._work(self._stores.paths.work / job.request_id)
            with self._stores.lock:
                self._current = (job.request_id, worker)
            try:
                with contextlib.ExitStack() as held:
                    if self._try_round(job, signed, order, worker, held):
                        return
                why = worker.why()
            except Refused as refusal:
                if refusal.reason in ("misconfigured", ROLLED_BACK):
                    raise  # the round waits until the steward has put it right
                code, why = refusal.reason, str(refusal)
                if refusal.reason != "rehearsal":  # a worker that dies there is begun again, too
                    break
            except BudgetExceeded as error:
                code, why = "budget", str(error)
                break
            except (NotCertified, OSError) as error:
                log.error("%s", error)
                code, why = "not-ready", type(error).__name__
            finally:
                with self._stores.lock:
                    self._current = None
                worker.clean()
            if self._is_over(job):
                return
        self._end(job, order, code, why)

    def _is_over(self, job: Job) -> bool:
        """Whether the gate stops, which loses nothing; or the job was cancelled."""
        return self.stopping or self._stores.job(job.request_id).state not in _OPEN

    def _try_round(
        self,
        job: Job,
        signed: SignedStudy,
        order: Order,
        worker: Worker,
        held: contextlib.ExitStack,
    ) -> bool:
        """Whether the round's vector is masked and kept, or nobody wants it any more."""
        facts = self._stores.facts()
        admission = self._admit(job, signed, facts)
        told = RoundOrders(self._stores.database, job.study_id).read_sums(order.round)
        seconds = self._setup.rehearse(signed, admission, facts, worker, held, sums=told)
        rows = held.enter_context(self._certified(job, facts))
        if self._is_over(job):
            return True
        if self._stores.job(job.request_id).state is JobState.QUEUED:
            self._reserve(job, signed)
        made = worker.run(rows, lambda step, of: None, VECTOR)
        slot = schedule.plan_seconds(seconds + START_SECONDS, facts.policy.round_seconds)
        ready = schedule.add_seconds(order.opened, slot)
        shown = schedule.find_shown_at(order.opened, ready, self._stores.now())
        self._wait_until(shown)
        if self._is_over(job):
            return True
        if made is None:
            return False
        self._mask(signed, order, Residues.from_bytes(made.read_bytes(), SUM_BITS))
        return True

    def _mask(self, signed: SignedStudy, order: Order, vector: Residues) -> None:
        database, name = self._stores.database, self._stores.settings.name
        with database.transaction():
            roster = Roster.of(signed.study, signed.study_id)
            member = Member(database, roster, name, self._stores.key)
            orders = RoundOrders(database, signed.study_id)
            terms = make_terms(signed.study_id, orders, order.round, vector.size)
            member.contribute(order.opening, terms, lambda: vector)
            orders.keep_size(order.round, vector.size)
        log.info("study %s: round %s is masked", signed.study_id[:12], order.round)

    def _end(self, job: Job, order: Order, code: str, why: str) -> None:
        """The job is over, without a charge if none was reserved; it shows at a slot, too."""
        slot = self._stores.facts().policy.round_seconds
        ready = schedule.add_seconds(order.opened, slot)
        self._wait_until(schedule.find_shown_at(order.opened, ready, self._stores.now()))
        state = self._stores.job(job.request_id).state
        if state is JobState.RUNNING:
            self.settlement.burn(job, why, stopping=False)
        elif state is JobState.QUEUED:
            self.settlement.end_unbegun(job.request_id, JobState.FAILED, code)
        with contextlib.suppress(PenstockError):
            SumRecord(self._stores.database, job.study_id).erase()

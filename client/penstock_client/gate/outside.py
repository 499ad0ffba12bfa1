"""What the network side is told of jobs and of the ledger: public facts and the clock, no more.

The ledger settles a run at its true end. Outside, a run that was reserved looks the same until its
slot (:mod:`~penstock_client.gate.schedule`), whether it is delivered, failed, was killed, was
cancelled, or goes on; so do the ledger's position and the beginning of the next run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.wire.messages import JobState
from penstock_client.gate import schedule
from penstock_client.gate.jobs import SILENT, Job
from penstock_client.ledger.state import Charge, State


@dataclass(frozen=True, slots=True)
class PublicJob:
    """A job as the network side sees it; progress in quarters of the planned time."""

    request_id: str
    state: JobState
    code: str = ""
    step: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class PublicView:
    """The view from outside, at one moment.

    Args:
        cancelled: when each cancelled request was, by its signer.
        unbegun: charges of which no run began: they were made with those of another half.
    """

    state: State
    cancelled: Mapping[str, str]
    now: str
    unbegun: frozenset[str] = frozenset()

    def see(self, job: Job) -> PublicJob:
        """What is told of a job: a silent "no" looks like no answer, a run like any other."""
        if job.code == SILENT:
            return PublicJob(job.request_id, JobState.AWAITING)
        charge = self.state.charges.get(job.request_id)
        if charge is None or charge.id in self.unbegun or self._is_over(charge):
            return PublicJob(job.request_id, job.state, job.code)
        step = schedule.count_parts_over(charge.time, charge.ready_at, self.now)
        return PublicJob(job.request_id, JobState.RUNNING, "", step, schedule.PARTS)

    def shown_at(self, charge: Charge) -> str | None:
        """When the end of a charge's run shows; None while there is none.

        A cancelled run's is the slot after the cancellation, whatever it had come to by then.
        """
        if charge.status == "reserved":
            return None
        ended = max(charge.settled_at, self.cancelled.get(charge.id, ""))
        return schedule.find_shown_at(charge.time, charge.ready_at, ended)

    def _is_over(self, charge: Charge) -> bool:
        moment = self.shown_at(charge)
        return moment is not None and moment <= self.now

    def hidden(self) -> Iterator[Charge]:
        """Charges of which runs go on, as it looks from outside."""
        charges = (c for c in self.state.charges.values() if c.id not in self.unbegun)
        return (c for c in charges if not self._is_over(c))

    def find_first_hidden(self) -> int | None:
        """The position of the first record that does not show yet: it settles a hidden charge."""
        return min((c.settled_seq for c in self.hidden() if c.settled_seq), default=None)

    def count_seconds_until_free(self) -> float | None:
        """Seconds until the next run may begin; None where a run is under way."""
        moments = [self.shown_at(c) for c in self.hidden()]
        if None in moments:
            return None
        return max(
            (schedule.count_seconds(m, self.now) for m in moments if m is not None), default=0.0
        )

"""The steps of a sum of many sites, as the network side asks for them: idempotent, and short.

A gate says a thing once (:class:`~penstock_client.masking.member.Member`); the same step gets the
same bytes for as long as the job is known. Opening a round is an order: it is kept, answered with
"working" until its vector is masked (:mod:`~penstock_client.gate.sum_rounds`), and then with that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.aggregation.exchanges import SUM_BITS, SumTerms, find_transcript, read_sum
from penstock.aggregation.residues import Residues
from penstock.aggregation.roster import Roster
from penstock.base.errors import MaskingRefused, PenstockError, UploadRejected
from penstock.mechanisms.joint.plan import JointPlan
from penstock.study.charges import plan_study
from penstock.study.study import Study
from penstock.wire.messages import JobState
from penstock.wire.signed import SignedStudy
from penstock_client.gate import release, schedule
from penstock_client.gate.admission import consider, refuse
from penstock_client.gate.jobs import Job
from penstock_client.gate.settlement import Settlement
from penstock_client.gate.stores import Stores
from penstock_client.masking.member import Member
from penstock_client.masking.round_orders import RoundOrders

log = logging.getLogger("penstock.gate")

_OPEN = (JobState.QUEUED, JobState.RUNNING)
_KNOWN = (*_OPEN, JobState.DELIVERED)


def make_terms(study_id: str, orders: RoundOrders, number: int, size: int) -> SumTerms:
    """What a round is over, by what this gate was told."""
    transcript = find_transcript(study_id, orders.read_sums(number))
    return SumTerms(number, size, SUM_BITS, transcript)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a site says to an order: its masked vector, or after how many seconds to ask again."""

    vector: bytes | None
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class _Part:
    """A job's part in its sums."""

    job: Job
    signed: SignedStudy
    member: Member
    orders: RoundOrders


class Steps:
    """What one gate answers to steps.

    Every method raises :class:`~penstock.base.errors.Refused` where there is no such request, or
    one that takes part in no sum (now), or where the round was asked with another input; and what
    :class:`~penstock_client.masking.member.Member` raises.
    """

    def __init__(self, stores: Stores, settlement: Settlement, wake: Callable[[], None]) -> None:
        self._stores, self._settlement, self._wake = stores, settlement, wake
        self._lock = threading.Lock()
        self._rounds: dict[str, int] = {}

    def introduce(self, request_id: str) -> bytes:
        with self._lock:
            return self._find(request_id).member.introduce()

    def meet(self, request_id: str, meeting: bytes) -> bytes:
        with self._lock:
            self._find(request_id).member.meet(meeting)
            return b""

    def advertise(self, request_id: str, round_: int) -> bytes:
        with self._lock:
            part = self._find(request_id)
            self._require_round(part, round_)
            return part.member.advertise(round_)

    def open(
        self, request_id: str, round_: int, opening: bytes, sums: Sequence[bytes], first: int = 0
    ) -> Answer:
        """Take an order, once; answered as :meth:`fetch`.

        Args:
            sums: of the rounds before, from the ``first`` on: those that this gate knows may be
                left out.
        """
        with self._lock:
            part = self._find(request_id)
            found = part.orders.get(round_)
            if found is None:
                self._require_round(part, round_)
            new = self._check_sums(part, round_, sums, first)
            if found is None:
                newest = part.orders.newest()
                if newest is not None and round_ < newest.round:
                    raise refuse("conflict", f"round {newest.round} was opened before")
                part.member.check_opening(opening, round_)
                part.orders.keep(round_, opening, new, self._stores.now())
            elif found.opening != opening:
                raise refuse("conflict", f"round {round_}")
            return self._answer(part, round_)

    def fetch(self, request_id: str, round_: int) -> Answer:
        """The masked vector of a round that was opened, or when to ask for it again."""
        with self._lock:
            return self._answer(self._find(request_id), round_)

    def _answer(self, part: _Part, round_: int) -> Answer:
        found = part.orders.get(round_)
        if found is None:
            raise refuse("no-round", f"round {round_} was not opened")
        if found.size is None:
            self._wake()
            # A vector shows at a whole number of slots, whatever the rows are.
            slot, now = self._stores.facts().policy.round_seconds, self._stores.now()
            shown = schedule.find_next_slot(found.opened, slot, now)
            return Answer(None, schedule.count_seconds(shown, now))
        terms = make_terms(part.signed.study_id, part.orders, round_, found.size)
        return Answer(part.member.contribute(found.opening, terms, _draw_nothing))

    def reveal(self, request_id: str, round_: int, asking: bytes) -> bytes:
        """This site's shares; after those of the last round its part is done."""
        with self._lock:
            part = self._find(request_id)
            found = part.member.reveal(asking, round_)
            if part.job.state is JobState.RUNNING and round_ == self._count(part) - 1:
                try:
                    self._deliver(part)
                except (OSError, PenstockError) as error:
                    # What was revealed is said all the same; the job ends when its time is over.
                    log.error("%s", error)
            return found

    def _find(self, request_id: str) -> _Part:
        self._stores.refuse_if_stopped()
        job = self._stores.job(request_id)
        signed = self._stores.read_job(job)
        seen = self._stores.outside().see(job).state
        if not (signed.study.aggregation.joint and job.state in _KNOWN and seen in _KNOWN):
            raise refuse("no-round")
        name, database = self._stores.settings.name, self._stores.database
        member = Member(database, Roster.of(signed.study, signed.study_id), name, self._stores.key)
        return _Part(job, signed, member, RoundOrders(database, signed.study_id))

    def _require_round(self, part: _Part, round_: int) -> None:
        """A new round is one of the plan's, of a job that goes on."""
        if part.job.state not in _OPEN:
            raise refuse("no-round")
        if not 0 <= round_ < self._count(part):
            raise UploadRejected("no round of the plan", value=round_, bound=self._count(part))

    def _check_sums(
        self, part: _Part, round_: int, sums: Sequence[bytes], first: int
    ) -> tuple[bytes, ...]:
        """Those that are new. A round is told one sum of each before it, and never other ones than
        a round was."""
        known = part.orders.read_sums()
        if not (first <= len(known) and first + len(sums) == round_):
            raise UploadRejected(
                "not the sum of each round before",
                value=f"{len(sums)} from {first} on",
                bound=f"up to {round_}, from {len(known)} or before",
            )
        for at, (told, before) in enumerate(zip(sums, known[first:], strict=False), first):
            if told != before:
                raise refuse("conflict", f"the sum of round {at} was another one")
        new = tuple(sums[max(len(known) - first, 0) :])
        for each in new:
            read_sum(each)
        return new

    def _count(self, part: _Part) -> int:
        """How many rounds there are."""
        known = part.signed.study_id
        if known not in self._rounds:
            self._rounds[known] = count_rounds(part.signed.study, self._stores)
        return self._rounds[known]

    def _deliver(self, part: _Part) -> None:
        """All that this site was to say is said: an empty release, signed, that says so."""
        stores, job, facts = self._stores, part.job, self._stores.facts()
        folder, empty = stores.release_folder(job.request_id), stores.paths.work / job.request_id
        empty.parent.mkdir(mode=0o700, exist_ok=True)
        empty.write_bytes(b"")
        version = facts.state.lineages[job.lineage].versions[-1]
        release.keep_release(
            folder,
            empty,
            part.signed,
            consider(part.signed, facts),
            site=facts.name,
            persons=version.persons,
            reserved=facts.state,
            insecure=stores.settings.insecure_seed is not None,
            key=stores.key,
        )
        empty.unlink()
        with stores.lock:
            self._settlement.settle(job.request_id, JobState.DELIVERED)
        part.member.leave()
        self._wake()


def count_rounds(study: Study, stores: Stores) -> int:
    """How many sums a release of many sites asks for: a public number of its plan."""
    planned = plan_study(study, 1, stores.mechanisms)
    return planned.rounds if isinstance(planned, JointPlan) else 0


def _draw_nothing() -> Residues:
    raise MaskingRefused("no vector of this site in this round")

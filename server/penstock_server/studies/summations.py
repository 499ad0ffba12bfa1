"""One release of many sites, round by round: who is waited for, and what is asked next.

::

    introduce ─► advertise ─► open ─► reveal ─► advertise … ─► done
                 a round's adverts, masked vectors, and shares

All of it is in the store (:mod:`penstock_server.store.summing`): what a process remembers beside it
follows from there. What is decided (who takes part, whose vectors are summed) is kept in the
transaction that first tells a site of it; sites answer one decision a round, so that another one
would end the study. The adverts of a round are asked for together with the shares of the one
before: two exchanges a round.

A site that is not heard of holds up the others for :data:`PATIENCE_SECONDS` (longer while it says
that it is at work), and only once: from then on its rows are in no sum until it has sent its advert
while another round is added up. Below S - t nothing can go on, and all wait until the study's
deadline. Sums that lack sites of the first one are scaled up by the frames that sites declared: a
public number.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from penstock.aggregation.exchanges import write_sum
from penstock.base.errors import CoordinatorError, PenstockError, SumSpoiled
from penstock.base.times import read_stamp
from penstock.mechanisms.joint.plan import JointPlan
from penstock.study.charges import plan_study
from penstock.study.halves import find_other
from penstock.study.study import Study
from penstock.wire import gate_pb2
from penstock.wire.messages import SiteState, StudyState
from penstock.wire.signed import name_study
from penstock_server.intake.texts import printable_text
from penstock_server.store.clock import Clock
from penstock_server.store.database import Transaction
from penstock_server.store.mailbox import Reply, StepVerb
from penstock_server.store.register import SiteRow, StudyRow
from penstock_server.store.round_sums import RoundSum
from penstock_server.store.store import Store
from penstock_server.store.summing import Stage, SummationRow
from penstock_server.studies.site_parts import Parts
from penstock_server.studies.summation_course import (
    BEFORE,
    DECIDED,
    Course,
    begin_collector,
    scale_sum,
)

log = logging.getLogger("penstock.coordinator")

PATIENCE_SECONDS = 300.0
"""A gate that is killed comes back within minutes; what is lost with a site's rows is worth more
than an hour of waiting for sites that come and go."""
PATIENCES_AT_WORK = 12
"""Times the patience: so long the others wait for a site that says it is at work."""
MEETING_SHARE = 0.5
"""Of the time to a study's deadline: so long a site's steward may think before the others begin."""
_SLACK = 0.05
_NOTHING = gate_pb2.Nothing()


def count_rounds(study: Study) -> int:
    """How many sums a study of one release asks for.

    Raises:
        PenstockError: it cannot be carried out: the mechanism is not made of sums, say.
    """
    planned = plan_study(study, 1)
    return planned.rounds if isinstance(planned, JointPlan) else 0


class _Ended(Exception):
    """Another process has ended the study in the meantime: that stands."""


class Summations:
    """The rounds of a store's studies.

    Args:
        patience: seconds that the others wait for a site in a round.
    """

    def __init__(self, store: Store, clock: Clock, *, patience: float = PATIENCE_SECONDS) -> None:
        self._store, self._clock, self._patience = store, clock, patience
        self._parts = Parts(store, clock)
        self._courses: dict[str, Course] = {}
        self._greeted: set[tuple[str, str]] = set()

    def admit(self, c: Transaction, study_id: str, rounds: int, moment: str) -> None:
        """A study of one release is submitted."""
        self._store.summing.add(c, study_id, rounds, moment)

    # -- what sites say ------------------------------------------------------------------------

    def keep(self, c: Transaction, part: SiteRow, verb: StepVerb, reply: Reply) -> None:
        """Keep what a site said in a step, if it is what was asked now; in a transaction."""
        row = self._store.summing.find(part.study_id)
        if row is None:
            return
        course = self._find(row)
        now = (course.stage, course.round)
        if reply.wait is not None:
            if now == ("open", reply.step):
                course.heard[part.site] = self._clock.now()
                request = gate_pb2.StepRequest(fetch=_NOTHING)
                self._ask(c, course, part, "fetch", request, reply.step, reply.wait + _SLACK)
            return
        kept: StepVerb = "open" if verb == "fetch" else verb
        number = {"introduce": BEFORE, "advertise": course.next_advert}.get(kept, course.round)
        fits = (kept == "advertise" and reply.step == number) or now == (kept, reply.step)
        if not fits:
            return
        if self._is_sound(c, course, kept, part, reply.data or b""):
            self._store.summing.keep(c, part.study_id, number, kept, part.site, reply.data or b"")
            if kept == "introduce":
                course.introduced.add(part.site)
            elif number == course.round:
                course.said.setdefault((kept, part.site), reply.data or b"")

    def _is_sound(
        self, c: Transaction, course: Course, verb: StepVerb, part: SiteRow, data: bytes
    ) -> bool:
        """Whether it is what a site may say; of a masked vector that is seen at the end."""
        site = part.site
        if verb == "introduce":
            good, faults = course.arrivals.take_introduction(site, data), course.arrivals.faults
        elif verb == "advertise":
            collector = begin_collector(course.roster, course.next_advert)
            good, faults = collector.take_posting(site, data), collector.faults
        elif verb == "open":
            return site in course.decided("open")
        elif verb == "reveal" and course.collector is not None:
            good, faults = course.collector.take_reveal(site, data), course.collector.faults
        else:
            return False
        if site in faults:
            log.warning("%s of %s: %s", verb, site, printable_text(str(faults[site])))
        if not good and verb != "reveal":
            self._leave_out(c, part, faults[site])
        return good

    def _leave_out(self, c: Transaction, part: SiteRow, error: PenstockError) -> None:
        """A gate says a thing once: what it said wrongly it will never say well."""
        detail = printable_text(str(error))
        self._parts.turn(c, part, SiteState.FAILED, "upload-rejected", detail=detail)

    # -- what is asked next --------------------------------------------------------------------

    def advance(self) -> None:
        """Go on with every study that need not wait."""
        rows = {row.study_id: row for row in self._store.summing.going_on()}
        for gone in self._courses.keys() - rows.keys():
            self._forget(gone)
        for row in rows.values():
            course = self._find(row)
            try:
                self._advance(course)
            except SumSpoiled as error:
                self._fail(course, " ".join(str(error).split()))
            except _Ended:
                self._forget(row.study_id)

    def _forget(self, study_id: str) -> None:
        """A study is open no more: what sites said in its rounds serves nothing now."""
        del self._courses[study_id]
        self._greeted = {each for each in self._greeted if each[0] != study_id}
        with self._store.begin() as c:
            self._store.summing.drop(c, study_id)

    def _advance(self, course: Course) -> None:
        if course.stage == "done":
            return
        parts = {part.site: part for part in self._store.studies.parts(course.roster.study)}
        alive = {site for site, part in parts.items() if not part.state.final}
        there = alive & set(course.met or course.roster.sites)
        # Who has given its last share has delivered, and is over: that is no loss.
        if course.stage != "reveal" and len(there) < course.roster.quorum:
            why = f"{len(alive)} of {len(parts)} sites take part, and {course.roster.quorum} must"
            self._fail(course, why)
            return
        match course.stage:
            case "introduce":
                self._greet(course, parts)
                self._try_meeting(course, parts, alive)
            case "advertise":
                missing = (set(course.last_survivors) & alive) - course.who("advertise")
                if self._may_go_on(course, course.who("advertise"), missing):
                    self._open(course, parts)
            case "open":
                missing = (set(course.decided("open")) & alive) - course.who("open")
                if self._may_go_on(course, course.who("open"), missing):
                    self._ask_survivors(course, parts)
            case "reveal":
                if course.collector is not None and course.collector.ready:
                    self._finish_round(course, parts)

    def _may_go_on(self, course: Course, there: Collection[str], missing: Collection[str]) -> bool:
        """Whether all that are waited for have come; or enough, and the rest is late."""
        enough = len(there) >= course.roster.quorum
        return enough and all(self._is_gone(course, site) for site in missing)

    def _is_gone(self, course: Course, site: str) -> bool:
        """Whether a site was not heard of for long, or is at work for far longer."""
        begun = read_stamp(course.since)
        heard = max(begun, course.heard.get(site, begun))
        silent = (self._clock.now() - heard).total_seconds() >= self._patience
        return silent or self._is_late(course.since, PATIENCES_AT_WORK * self._patience)

    def _is_late(self, since: str, seconds: float) -> bool:
        return (self._clock.now() - read_stamp(since)).total_seconds() >= seconds

    def _greet(self, course: Course, parts: Mapping[str, SiteRow]) -> None:
        """Ask each site for its introduction, once it has taken the study."""
        for site, part in parts.items():
            key = (course.roster.study, site)
            if part.state is SiteState.RUNNING and part.request_id and key not in self._greeted:
                self._greeted.add(key)
                if site not in course.introduced:
                    with self._store.begin() as c:
                        # After a restart what was asked before is still in the outbox.
                        self._store.mailbox.withdraw_steps(c, course.roster.study, site)
                        request = gate_pb2.StepRequest(introduce=_NOTHING)
                        self._ask(c, course, part, "introduce", request, 0)

    def _try_meeting(
        self, course: Course, parts: Mapping[str, SiteRow], alive: Collection[str]
    ) -> None:
        present, arrivals = course.introduced & set(alive), course.arrivals
        row = self._store.studies.find(course.roster.study)
        if row is None or len(present) < course.roster.quorum:
            return
        length = read_stamp(row.deadline) - read_stamp(row.created)
        late = self._is_late(course.since, MEETING_SHARE * length.total_seconds())
        if (set(alive) - present or self._is_other_going(course, row)) and not late:
            return
        meeting = arrivals.write_meeting()
        course.met = course.roster.sort(course.introduced)
        with self._begin_stage(course, "advertise") as c:
            self._decide(c, course, "meet", course.met, BEFORE)
            for site in course.met:
                told = gate_pb2.StepRequest(meeting=meeting)
                self._ask(c, course, parts[site], "meet", told, 0)
            self._ask_adverts(c, course, parts, course.met, 0)
        log.info("study %s: %d sites have met", course.study.name, len(course.met))

    def _is_other_going(self, course: Course, row: StudyRow) -> bool:
        """Whether of a study of both a site still works at its own release, and lets the sums wait:
        it makes one release after the other, and charges the two with the first."""
        if not course.study.aggregation.halved:
            return False
        other = self._store.studies.find(name_study(find_other(course.study), row.signer))
        if other is None or other.state.final:
            return False
        return any(not part.state.final for part in self._store.studies.parts(other.id))

    def _ask_adverts(
        self,
        c: Transaction,
        course: Course,
        parts: Mapping[str, SiteRow],
        sites: Iterable[str],
        number: int,
    ) -> None:
        if number == course.rounds:
            return
        for site in sites:
            request = gate_pb2.StepRequest(advertise=_NOTHING)
            self._ask(c, course, parts[site], "advertise", request, number)

    def _open(self, course: Course, parts: Mapping[str, SiteRow]) -> None:
        collector = course.collect()
        collector.open_round()
        with self._begin_stage(course, "open") as c:
            self._decide(c, course, "open", collector.members)
            for site, opening in collector.next_messages().items():
                last = [at for at, each in enumerate(course.sums) if site in each.survivors]
                first = last[-1] if last else 0
                told = [each.data for each in course.sums[first:]]
                request = gate_pb2.StepRequest(
                    open=gate_pb2.Opening(opening=opening, sums=told, first=first)
                )
                self._ask(c, course, parts[site], "open", request, course.round)
            # Who is late may be there again for the next one.
            late = (site for site in course.met if site not in collector.members)
            self._ask_adverts(c, course, parts, late, course.round + 1)

    def _ask_survivors(self, course: Course, parts: Mapping[str, SiteRow]) -> None:
        collector = course.collect()
        with self._store.begin() as c:
            for site, error in collector.faults.items():
                log.warning("vector of %s: %s", site, printable_text(str(error)))
                self._leave_out(c, parts[site], error)
        collector.ask_survivors()
        with self._begin_stage(course, "reveal") as c:
            self._decide(c, course, "reveal", collector.survivors)
            for site, asking in collector.next_messages().items():
                request = gate_pb2.StepRequest(asking=asking)
                self._ask(c, course, parts[site], "reveal", request, course.round)
            self._ask_adverts(c, course, parts, course.met, course.round + 1)
        course.collector = collector

    def _finish_round(self, course: Course, parts: Mapping[str, SiteRow]) -> None:
        collector, number = course.collector, course.round
        if collector is None:
            return
        numbers = scale_sum(collector.find_sum(), self._find_frames(course, collector.survivors))
        found = RoundSum(collector.survivors, write_sum(numbers))
        last, study_id = number + 1 == course.rounds, course.roster.study
        moment = self._clock.stamp()
        with self._store.begin() as c:
            if self._store.studies.lock(c, study_id) is not StudyState.OPEN:
                return
            self._store.summing.add_sum(c, study_id, number, found)
            self._store.summing.drop(c, study_id, number)
            stage: Stage = "done" if last else "advertise"
            self._store.summing.turn(c, study_id, number + (not last), stage, moment)
            for site, part in parts.items():
                if site in found.survivors and not part.state.final:
                    done = {"step": number + 1, "steps": course.rounds}
                    self._parts.update(c, part, **done)
                elif last and not part.state.final:
                    self._parts.turn(c, part, SiteState.TIMED_OUT, "sum-left")
            if last:
                self._store.mailbox.hurry(c, study_id, "poll", moment)
        del self._courses[study_id]  # and begun anew from the store, like after a restart
        log.info("study %s: round %d of %d", course.study.name, number + 1, course.rounds)

    def _find_frames(self, course: Course, survivors: Sequence[str]) -> tuple[int, int]:
        """Persons of the first sum's frames, and of this one's."""
        persons = dict(course.study.aggregation.persons)
        first = course.sums[0].survivors if course.sums else survivors
        return sum(persons[s] for s in first), sum(persons[s] for s in survivors)

    def _fail(self, course: Course, why: str) -> None:
        """The release cannot be made any more: nothing is asked of any site."""
        study_id, moment = course.roster.study, self._clock.stamp()
        with self._store.begin() as c:
            if self._store.studies.lock(c, study_id) is not StudyState.OPEN:
                return
            for part in self._store.studies.parts(study_id):
                if not part.state.final:
                    self._parts.turn(c, part, SiteState.TIMED_OUT, "sum-ended")
            note = f"round {course.round + 1} of {course.rounds}: {printable_text(why)}"
            self._store.studies.end(c, study_id, StudyState.FAILED, moment, note)
        log.warning("study %s: %s", course.study.name, printable_text(why))

    # -- the store -----------------------------------------------------------------------------

    @contextmanager
    def _begin_stage(self, course: Course, stage: Stage) -> Iterator[Transaction]:
        """The transaction in which a stage begins: what was asked before is asked no more."""
        study_id, moment = course.roster.study, self._clock.stamp()
        with self._store.begin() as c:
            if self._store.studies.lock(c, study_id) is not StudyState.OPEN:
                raise _Ended
            self._store.mailbox.withdraw_steps(c, study_id)
            self._store.summing.turn(c, study_id, course.round, stage, moment)
            yield c
        course.stage, course.since = stage, moment
        course.heard.clear()

    def _decide(
        self,
        c: Transaction,
        course: Course,
        verb: StepVerb,
        sites: Sequence[str],
        number: int | None = None,
    ) -> None:
        """Keep of whom a step is; within the transaction that first tells of it."""
        data = json.dumps(sites).encode()
        at = course.round if number is None else number
        self._store.summing.keep(c, course.roster.study, at, verb, DECIDED, data)
        course.said[verb, DECIDED] = data

    def _ask(
        self,
        c: Transaction,
        course: Course,
        part: SiteRow,
        verb: StepVerb,
        request: gate_pb2.StepRequest,
        number: int,
        wait: float = 0.0,
    ) -> None:
        if part.state.final or not part.request_id:
            return
        request.request_id, request.round = part.request_id, number
        body, due = request.SerializeToString(), self._clock.stamp(wait)
        self._store.mailbox.send(c, course.roster.study, part.site, verb, body, due)

    def _find(self, row: SummationRow) -> Course:
        """A study's course, from the store if this process does not remember it."""
        found = self._courses.get(row.study_id)
        if found is None:
            study_row = self._store.studies.find(row.study_id)
            if study_row is None:
                raise CoordinatorError("no such study", value=row.study_id)
            found = Course.restore(row, study_row.signed.study, self._store.summing)
            self._courses[row.study_id] = found
        return found

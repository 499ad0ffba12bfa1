"""How far one release of many sites is, as a process remembers it beside the store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from penstock.aggregation.exchanges import SUM_BITS, SumTerms, find_transcript, measure_masked
from penstock.aggregation.roster import Roster
from penstock.study.study import Study
from penstock_server.store.mailbox import StepVerb
from penstock_server.store.round_sums import RoundSum
from penstock_server.store.summing import Stage, SummationRow, Summing
from penstock_server.sums.arrivals import Arrivals
from penstock_server.sums.collector import Collector

DECIDED = ""
"""The site of what the coordinator decided."""
BEFORE = -1
"""The round of introductions."""
_NOWHERE = "0" * 64

Said = dict[tuple[str, str], bytes]
"""What was said in a round, by verb and site."""


@dataclass
class Course:
    """One study. All of it follows from the store, but when a site was heard of that is at work.

    Attributes:
        rounds: how many there are; round: which is open; stage: what is waited for, since when.
        introduced: whose introduction has come; met: of them, who takes part.
        sums: of the rounds that are over; said: in the round that is open.
        heard: when a site said last that it is at work; in this stage.
        collector: of the shares, while they are waited for.
    """

    study: Study
    roster: Roster
    rounds: int
    round: int
    stage: Stage
    since: str
    introduced: set[str] = field(default_factory=set)
    met: tuple[str, ...] = ()
    sums: list[RoundSum] = field(default_factory=list)
    said: Said = field(default_factory=dict)
    heard: dict[str, datetime] = field(default_factory=dict)
    collector: Collector | None = None

    def __post_init__(self) -> None:
        self.arrivals = Arrivals(self.roster)

    def who(self, verb: StepVerb) -> set[str]:
        """Whose answer to a step of this round is there."""
        return {site for said, site in self.said if said == verb and site != DECIDED}

    def decided(self, verb: StepVerb) -> tuple[str, ...]:
        """Which sites a step of this round was decided to be of."""
        return tuple(json.loads(self.said.get((verb, DECIDED), b"[]")))

    @property
    def next_advert(self) -> int:
        """Of which round adverts are asked for: while one is added up, those of the next."""
        return self.round + (self.stage in ("open", "reveal"))

    @property
    def last_survivors(self) -> tuple[str, ...]:
        """Whose vectors are in the newest sum; before the first one all that met."""
        return self.sums[-1].survivors if self.sums else self.met

    @classmethod
    def restore(cls, row: SummationRow, study: Study, summing: Summing) -> Course:
        """A study's course as the store has it."""
        roster = Roster.of(study, row.study_id)
        course = cls(study, roster, row.rounds, row.round, row.stage, row.since)
        course.sums = list(summing.sums(row.study_id))
        before = summing.said(row.study_id, BEFORE)
        course.met = tuple(json.loads(before.pop(("meet", DECIDED), b"[]")))
        for (_, site), data in before.items():
            course.arrivals.take_introduction(site, data)
            course.introduced.add(site)
        course.said = summing.said(row.study_id, row.round)
        if row.stage == "reveal":
            course.collector = course.collect()
        return course

    def collect(self) -> Collector:
        """The collector of the round that is open, with all that was said in it."""
        said, roster = self.said, self.roster
        told = find_transcript(roster.study, [each.data for each in self.sums])
        vectors = {site: said["open", site] for site in self.who("open")}
        collector = begin_collector(roster, self.round, _find_size(vectors.values()), told)
        for site in self.who("advertise"):
            collector.take_posting(site, said["advertise", site])
        if self.decided("open"):
            collector.open_round(self.decided("open"))
            for site, data in vectors.items():
                collector.take_masked(site, data)
        if self.decided("reveal"):
            collector.ask_survivors(self.decided("reveal"))
            for site in self.who("reveal"):
                collector.take_reveal(site, said["reveal", site])
        return collector


def begin_collector(roster: Roster, number: int, size: int = 1, told: str = _NOWHERE) -> Collector:
    """The collector of a round; adverts can be taken before its size and transcript are known."""
    return Collector(roster, SumTerms(number, size, SUM_BITS, told))


def _find_size(vectors: Iterable[bytes]) -> int:
    """How many numbers most sites sent: the plan says it, and all but faulty sites know the plan.
    Who sent another vector than the others is lost."""
    counted = Counter(measure_masked(data, SUM_BITS) for data in vectors)
    return max(counted, key=lambda size: (counted[size], size), default=1) or 1


def scale_sum(numbers: Sequence[int], frames: tuple[int, int]) -> list[int]:
    """A sum that lacks sites, as large as if they were like the others: x·N/n, to the next whole
    number; N and n persons of the frames of the first sum's sites, and of this one's."""
    whole, there = frames
    return [(2 * x * whole + there) // (2 * there) for x in numbers]

"""What is seen of one release of many sites from outside, while its processes are killed."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.federation import COORDINATOR, Federation
from tests.support.results import Row, write

from penstock_client.ledger.sqlite_file import Database
from penstock_client.masking.sum_record import SumRecord
from penstock_server.install.founding import open_coordinator
from penstock_server.store.round_sums import RoundSum

KEPT_IN = {"advertise": "posting", "open": "masked", "reveal": "reveal"}
"""What a site says in a step of a round, and where its gate keeps it."""
_EVER = "9999"


@dataclass
class Watch:
    """Looks into the coordinator's store, over and over.

    Attributes:
        sums: so far; moments: when each was seen first, monotonic.
        said: what a site said in a round, by round, verb and site.
        lost: how often each message was not answered, by its number.
    """

    federation: Federation
    study: str
    sums: list[RoundSum] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    said: dict[tuple[int, str, str], bytes] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=dict)

    def look(self) -> int:
        """How many sums there are.

        What was told once never changes: a sum, and what a site says in a step.
        """
        store = open_coordinator(self.federation.folder(COORDINATOR)).store
        try:
            found = list(store.summing.sums(self.study))
            for number in (len(found), len(found) + 1):
                for (verb, site), data in store.summing.said(self.study, number).items():
                    if verb in KEPT_IN and site:
                        assert self.said.setdefault((number, verb, site), data) == data
            for message in store.mailbox.due(_EVER, self.federation.names):
                self.lost[message.id] = max(message.attempts, self.lost.get(message.id, 0))
        finally:
            store.close()
        assert found[: len(self.sums)] == self.sums
        self.moments += [time.monotonic()] * (len(found) - len(self.sums))
        self.sums = found
        return len(found)

    def await_sum(self, count: int, seconds: float) -> None:
        self.federation.until(lambda: self.look() >= count, f"sum {count}", seconds)

    def check_said(self, gates: Mapping[str, Database]) -> int:
        """Whether all that was heard of sites is what their gates kept; how much that is."""
        for (number, verb, site), data in self.said.items():
            row = SumRecord(gates[site], self.study).round(number)
            assert row is not None, (number, verb, site)
            assert getattr(row, KEPT_IN[verb]) == data, (number, verb, site)
        return len(self.said)


@dataclass
class Killed:
    """Which processes were killed, in which round.

    Attributes:
        known: of each kill the round, the kind of process, and the moment, monotonic.
    """

    known: list[tuple[int, str, float]] = field(default_factory=list)

    def note(self, number: int, what: str) -> None:
        """A process was killed now, in this round."""
        self.known.append((number, what, time.monotonic()))

    def find_recoveries(self, ends: Sequence[float]) -> dict[str, list[float]]:
        """By kind, seconds from each kill to the end of its round."""
        found = defaultdict[str, list[float]](list)
        for number, what, moment in self.known:
            found[what].append(ends[number] - moment)
        return found

    def find_undisturbed(self, ends: Sequence[float]) -> list[float]:
        """Seconds of each round in which nothing was killed; the first one begins with a start."""
        disturbed = {number for number, _, _ in self.known}
        return [ends[n] - ends[n - 1] for n in range(1, len(ends)) if n not in disturbed]


def write_record(watch: Watch, killed: Killed, began: float, heard: int, note: str) -> None:
    """``tests/results/soak.json`` and ``soak.md``.

    Args:
        began: when the study was handed in; heard: messages that were compared with gates' records.
    """
    ends, recoveries = watch.moments, killed.find_recoveries(watch.moments)
    calm = killed.find_undisturbed(ends)
    low, middle, high = statistics.quantiles(calm, n=4)
    lost = [count for count in watch.lost.values() if count]
    rows = [
        Row("rounds, each one sum", len(watch.sums), None, 1),
        *_count_survivors(watch.sums),
        Row("processes killed", sum(map(len, recoveries.values())), None, 1),
        Row("from the study to its last sum (s)", ends[-1] - began, None, 1),
        Row("a round without a kill (s, median)", middle, None, len(calm), quartiles=(low, high)),
    ]
    rows += [
        Row(f"{what} killed: to the end of the round (s, longest)", max(took), None, len(took))
        for what, took in recoveries.items()
    ]
    rows += [
        Row("messages to sites that were not answered, and sent again", len(lost), None, 1),
        Row("messages of sites compared with their gates' records", heard, None, 1),
    ]
    load = f"Load of the machine at the end: {os.getloadavg()[2]:.1f} over a quarter of an hour."
    write("soak", rows, f"{note.strip()}\n\n{os.cpu_count()} cores. {load}")


def _count_survivors(sums: Collection[RoundSum]) -> list[Row]:
    sizes = [len(each.survivors) for each in sums]
    return [
        Row(f"sums of {size} sites", sizes.count(size), None, 1)
        for size in sorted(set(sizes), reverse=True)
    ]

"""Sites that take part in sums, each with a gate's database of its own, and a coordinator."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from penstock.aggregation.exchanges import SumTerms
from penstock.aggregation.residues import Residues
from penstock.aggregation.roster import Roster
from penstock.wire.canonical import digest
from penstock.wire.signatures import generate_key, public_hex
from penstock_client.ledger.sqlite_file import Database
from penstock_client.masking.member import Member
from penstock_server.sums.arrivals import Arrivals
from penstock_server.sums.collector import Collector

Vectors = Mapping[str, list[int]]


class Summing:
    """``sites`` sites named s01, s02, ... and what they said.

    Attributes:
        masked: by round and site, what each one sent first.
    """

    def __init__(
        self, folder: Path, sites: int, dropouts: int, colluders: int, study: str = "study"
    ) -> None:
        names = tuple(f"s{i:02}" for i in range(1, sites + 1))
        self.folder = folder
        self.keys = {name: generate_key() for name in names}
        public = tuple(public_hex(self.keys[name]) for name in names)
        self.roster = Roster(study, names, public, dropouts, colluders)
        self.databases: dict[str, Database] = {}
        self.members: dict[str, Member] = {}
        for name in names:
            self.open(name, Database.create(folder / f"{name}.db"))

    def open(self, name: str, database: Database | None = None) -> None:
        """A gate starts, or starts again."""
        self.databases[name] = database or Database(self.folder / f"{name}.db")
        self.members[name] = Member(self.databases[name], self.roster, name, self.keys[name])

    def meet(self, absent: Collection[str] = ()) -> bytes:
        arrivals = Arrivals(self.roster)
        for name, member in self.members.items():
            if name not in absent:
                assert arrivals.take_introduction(name, member.introduce())
        meeting = arrivals.write_meeting()
        for name, member in self.members.items():
            if name not in absent:
                member.meet(meeting)
        return meeting

    def gather(self, terms: SumTerms, absent: Collection[str] = ()) -> Collector:
        """A round up to its opening."""
        collector = Collector(self.roster, terms)
        for name, member in self.members.items():
            if name not in absent:
                assert collector.take_posting(name, member.advertise(terms.round))
        collector.open_round()
        return collector

    def mask(
        self,
        collector: Collector,
        terms: SumTerms,
        vectors: Vectors,
        absent: Collection[str] = (),
    ) -> dict[str, bytes]:
        """Every member's masked vector; those of the absent ones never reach the coordinator."""
        sent = {
            name: self.members[name].contribute(opening, terms, make_draw(vectors[name], terms))
            for name, opening in collector.next_messages().items()
        }
        for name, data in sent.items():
            if name not in absent:
                assert collector.take_masked(name, data), collector.faults
        return sent

    def reveal(self, collector: Collector, round_: int, absent: Collection[str] = ()) -> None:
        for name, asking in collector.next_messages().items():
            if name not in absent:
                assert collector.take_reveal(name, self.members[name].reveal(asking, round_))


class Draw:
    """Makes one vector, and knows how often it was asked."""

    def __init__(self, numbers: list[int], bits: int) -> None:
        self.numbers, self.bits, self.calls = numbers, bits, 0

    def __call__(self) -> Residues:
        self.calls += 1
        return Residues.from_numbers(self.numbers, self.bits)


def make_draw(numbers: list[int], terms: SumTerms) -> Draw:
    return Draw(numbers, terms.bits)


def make_terms(round_: int = 0, size: int = 3, bits: int = 72, told: str = "the plan") -> SumTerms:
    return SumTerms(round_, size, bits, digest(told))


def make_vectors(names: Collection[str], terms: SumTerms) -> dict[str, list[int]]:
    """Numbers that differ between sites, rounds and places, some of them negative."""
    return {
        name: [
            (-1) ** (i + j) * (10**12 * (i + 1) ** 3 + 7 * j + terms.round)
            for j in range(terms.size)
        ]
        for i, name in enumerate(names)
    }


def add_up(vectors: Vectors, names: Collection[str]) -> list[int]:
    return [sum(column) for column in zip(*(vectors[name] for name in names), strict=True)]

"""One release of many sites in one process, with all of its records: what gates keep of it in their
databases, and what a coordinator has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.federated import encode_site
from tests.support.ledgers import ROWS
from tests.support.replayed import anybody
from tests.support.replayed_sums import scale_up

from penstock.aggregation.exchanges import SUM_BITS, SumTerms, find_transcript, read_sum, write_sum
from penstock.aggregation.residues import Residues
from penstock.aggregation.roster import Roster
from penstock.mechanisms import MECHANISMS
from penstock.mechanisms.joint.consortium import SHARED
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.joint.rounds import Contribution, contribute
from penstock.privacy.noise.sources import SeededNoise
from penstock.privacy.request import PrivacyRequest
from penstock.questions.estimands import Estimand
from penstock.schema import Column, Schema
from penstock.schema.encoding import Encoding
from penstock.study.charges import plan_study
from penstock.study.scope import GLOBAL, LEAST_WIRE, Scope
from penstock.study.study import Study
from penstock.wire.canonical import digest
from penstock.wire.signatures import generate_key, public_hex
from penstock.wire.signed import sign_study
from penstock_client.ledger.budget import write_alone
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_client.ledger.state import Charge
from penstock_client.masking.member import Member
from penstock_client.masking.round_orders import RoundOrders
from penstock_server.store.round_sums import RoundSum
from penstock_server.sums.arrivals import Arrivals
from penstock_server.sums.collector import Collector

NAMES, SIZES = ("east", "north", "south", "west"), (90, 60, 75, 40)
SCHEMA = Schema(
    (
        Column("t", "integer", lower=0, upper=3),
        Column("x", "continuous", lower=-2, upper=2),
        Column("y", "continuous", lower=-2, upper=2),
        Column("b", "binary", varies=False),
    )
)
ASKED = (Estimand("effect", "ols", "y", "x", adjust=("b",)),)
_NOW = "2026-11-24T00:00:00.000000Z"

Charged = Callable[[str, Any], Any]
"""By site and the plan's events: what its ledger is charged; None: nothing."""
Shared = Callable[[str, Contribution], Contribution]
"""By site and what it adds: of which variance its noise is drawn."""


class Kept:
    """
    Attributes:
        signed: the study; plan: of it; databases: of each site's gate.
        rounds: what the coordinator has; parts: of each round, what each site's rows add, of which
            nobody else knows.
    """

    def __init__(
        self,
        folder: Path,
        settings: Any,
        *,
        noise: str = SHARED,
        charge: Charged = lambda site, events: events,
        fault: Shared = lambda site, own: own,
    ) -> None:
        keys = {name: generate_key() for name in NAMES}
        self.signed = sign_study(_make_study(settings, keys, noise), generate_key())
        planned = plan_study(self.signed.study, 1)
        assert isinstance(planned, JointPlan)
        self.plan, self._fault = planned, fault
        self.mechanism = MECHANISMS.of(settings)
        self.roster = Roster.of(self.signed.study, self.signed.study_id)
        self.databases = {name: Database.create(folder / f"{name}.db") for name in NAMES}
        self.members = {
            name: Member(self.databases[name], self.roster, name, keys[name]) for name in NAMES
        }
        for name, database in self.databases.items():
            self._charge(name, Ledger(database, keys[name]), charge(name, planned.events))
        rng, self.encoding = np.random.default_rng(4), Encoding(planned.asked.schema)
        self._rows = {
            name: encode_site(planned, self.encoding, place, anybody(SCHEMA, SIZES[place], rng))
            for place, name in enumerate(NAMES)
        }
        self._source = SeededNoise(5)
        self.rounds: list[RoundSum] = []
        self.parts: list[Mapping[str, Contribution]] = []
        self._meet()

    def _charge(self, name: str, ledger: Ledger, events: Any) -> None:
        """As a gate does before its first round."""
        ledger.open_for(name)
        ledger.add_lineage("main", 10.0, 1e-5, unit=ROWS)
        version = ledger.add_version("main", SIZES[NAMES.index(name)], "f" * 64)
        if events is None:
            return
        study = self.signed.study
        reserved = Charge(
            id=f"{name}-1",
            lineage="main",
            version=version,
            study_id=self.signed.study_id,
            signer=self.signed.signer,
            mechanism=study.mechanism.name,
            events=events,
            delta=study.privacy.delta,
            study=study.name,
            study_digest=digest(study.to_dict()),
            plan_digest="7" * 64,
            decisions="0" * 64,
            alone_epsilon=write_alone(events, study.privacy.delta),
        )
        ledger.reserve(reserved, signer_epsilon=10.0)

    def _meet(self) -> None:
        arrivals = Arrivals(self.roster)
        for name, member in self.members.items():
            assert arrivals.take_introduction(name, member.introduce())
        meeting = arrivals.write_meeting()
        for member in self.members.values():
            member.meet(meeting)

    def add_all(self) -> None:
        while len(self.rounds) < self.plan.rounds:
            self.add_round()

    def add_round(
        self,
        absent: Collection[str] = (),
        late: Collection[str] = (),
        told: Mapping[str, Sequence[bytes]] | None = None,
    ) -> None:
        """One round.

        Args:
            absent: sites that are not there; late: those whose vectors come too late.
            told: by site, other sums than all are told.
        """
        number, known = len(self.rounds), [each.data for each in self.rounds]
        there = [name for name in NAMES if name not in absent]
        told = told or {}
        parts = {name: self._ask(name, told.get(name, known)) for name in there}
        size = parts[there[0]].size
        terms = self._set_terms(number, size, known)
        collector = Collector(self.roster, terms)
        for name in there:
            assert collector.take_posting(name, self.members[name].advertise(number))
        collector.open_round()
        for name, opening in collector.next_messages().items():
            sums = tuple(told.get(name, known))
            orders = RoundOrders(self.databases[name], self.signed.study_id)
            orders.keep(number, opening, sums[len(orders.read_sums()) :], _NOW)
            own = self._fault(name, parts[name])
            vector = Residues.from_numbers(own.add_noise(len(NAMES), self._source), SUM_BITS)
            masked = self.members[name].contribute(
                opening, self._set_terms(number, size, sums), lambda vector=vector: vector
            )
            orders.keep_size(number, size)
            if name not in late:
                assert collector.take_masked(name, masked), collector.faults
        collector.ask_survivors()
        for name, asking in collector.next_messages().items():
            assert collector.take_reveal(name, self.members[name].reveal(asking, number))
        survivors = collector.survivors
        first = self.rounds[0].survivors if self.rounds else survivors
        numbers = scale_up(self.signed.study, collector.find_sum(), first, survivors)
        self.rounds.append(RoundSum(survivors, write_sum(numbers)))
        self.parts.append(parts)

    def _set_terms(self, number: int, size: int, sums: Sequence[bytes]) -> SumTerms:
        return SumTerms(number, size, SUM_BITS, find_transcript(self.signed.study_id, sums))

    def _ask(self, name: str, sums: Sequence[bytes]) -> Contribution:
        known = [read_sum(each) for each in sums]
        rows = self._rows[name]
        return contribute(self.mechanism, self.plan, self.encoding, *rows, known, SeededNoise(1))


def _make_study(settings: Any, keys: Mapping[str, Any], noise: str) -> Study:
    """Of a person's sum t = 1 may be missing; c = 1, of local noise 0."""
    public = tuple((name, public_hex(key)) for name, key in keys.items())
    scope = Scope(
        GLOBAL, 1, int(noise == SHARED), tuple(zip(NAMES, SIZES, strict=True)), public, noise
    )
    return Study(
        name="trial",
        title="A trial",
        federation="main",
        sites=NAMES,
        schema=SCHEMA,
        estimands={"trajectory": (), "gibbs": ASKED[:1]}.get(settings.name, ASKED),
        privacy=PrivacyRequest(2.0, 1e-5),
        mechanism=settings,
        quorum=1,
        deadline_hours=1.0,
        not_before="2020-01-01T00:00:00Z",
        expires="2099-01-01T00:00:00Z",
        aggregation=scope,
        wire=LEAST_WIRE,
    )

"""Sites whose gates run, and a coordinator that adds up their sums over their sockets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tests.conftest import World

from penstock.aggregation.exchanges import SUM_BITS, SumTerms, find_transcript, write_sum
from penstock.aggregation.roster import Roster
from penstock.mechanisms import Structured
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.joint.rounds import contribute
from penstock.mechanisms.registry import MECHANISMS
from penstock.privacy.noise.sources import SeededNoise
from penstock.schema.encoding import Encoding
from penstock.study.charges import plan_study
from penstock.study.scope import BOTH, GLOBAL, LEAST_WIRE, Scope, choose_tolerance
from penstock.wire import gate_pb2
from penstock.wire.signed import SignedStudy, sign_halves
from penstock_client.operate.flower.forwarding import answer
from penstock_client.site.peer_keys import Peers, write_peers
from penstock_server.sums.arrivals import Arrivals
from penstock_server.sums.collector import Collector

NOTHING = gate_pb2.Nothing()
SHORT = Structured(copies=1, refits=0, planted=0)
"""Where the sums are tested and not what is answered: six rounds, where ``scoring`` has nine; three
of a study without estimands."""
POLICY = '["scoring", "structured", "sliced-wasserstein", "trajectory", "maf"]'


def make_gates(world: World, names: Collection[str], settings: str = "") -> None:
    """Certified sites whose stewards pinned each other's gates; none of them runs yet."""
    for i, name in enumerate(names):
        world.site(name, n=150 + 10 * i, settings=settings)
    trust_gates(world)


def trust_gates(world: World) -> None:
    """Stewards pin each other's gates, and allow what sums need."""
    for site in world.sites:
        text = site.paths.policy.read_text().replace('["maf"]', POLICY)
        times = "[time]\nround_seconds = 0.1\n"
        site.paths.policy.write_text(text.replace("[time]\n", times) + "alone_epsilon = 20.0\n")
        others = {s.name: s.paths.gate_public() for s in world.sites if s is not site}
        write_peers(site.paths.peers, Peers(others))


def sign_joint(world: World, settings: Any, **changes: Any) -> SignedStudy:
    """A study of one release of all sites."""
    joins = [json.loads(site.paths.join.read_text()) for site in world.sites]
    persons = tuple((join["site"], join["persons"]) for join in joins)
    keys = tuple((join["site"], join["gate_key"]) for join in joins)
    scope = Scope(GLOBAL, *choose_tolerance(len(persons)), persons, keys)
    said = {"mechanism": settings, "aggregation": scope, "wire": LEAST_WIRE}
    return world.signed(**{**said, **changes})


def sign_halves_of(world: World, settings: Any, **changes: Any) -> tuple[SignedStudy, SignedStudy]:
    """Both halves of a study that asks each site for its own release, and all for one."""
    scope = replace(sign_joint(world, settings).study.aggregation, scope=BOTH)
    said = {"mechanism": settings, "aggregation": scope, "wire": LEAST_WIRE}
    own, joint = sign_halves(world.study(**{**said, **changes}), world.analyst)
    return own, joint


@dataclass
class Adding:
    """The coordinator of one study's sums, over running gates."""

    world: World
    signed: SignedStudy
    requests: dict[str, str] = field(default_factory=dict)
    sums: list[list[int]] = field(default_factory=list)
    masked: dict[tuple[int, str], bytes] = field(default_factory=dict)
    openings: dict[tuple[int, str], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sites = {site.name: site for site in self.world.sites}
        self.roster = Roster.of(self.signed.study, self.signed.study_id)
        study = self.signed.study
        planned = plan_study(study, 1)
        assert isinstance(planned, JointPlan)
        self.plan, self.mechanism = planned, MECHANISMS.of(study.mechanism)
        self.encoding = Encoding(planned.asked.schema)

    def step(self, name: str, **stage: Any) -> gate_pb2.StepReply:
        request = gate_pb2.StepRequest(request_id=self.requests[name], **stage)
        return self.sites[name].call("Step", request)

    def forward(self, name: str, **stage: Any) -> gate_pb2.Answer:
        """The same step in a message between coordinator and site."""
        request = gate_pb2.StepRequest(request_id=self.requests[name], **stage)
        batch = gate_pb2.Batch(calls=[gate_pb2.Call(id=7, step=request)])
        data = answer(batch.SerializeToString(), self.sites[name].paths.gate_socket)
        [found] = gate_pb2.Answers.FromString(data).answers
        return found

    def submit(self) -> None:
        for name, site in self.sites.items():
            self.requests[name] = site.submit(self.signed).request_id

    def meet(self) -> None:
        arrivals = Arrivals(self.roster)
        for name in self.sites:
            message = self.step(name, introduce=NOTHING).message
            assert arrivals.take_introduction(name, message), arrivals.faults
        meeting = arrivals.write_meeting()
        for name in self.sites:
            self.step(name, meeting=meeting)

    def count_numbers(self) -> int:
        """The next sum's size, from the plan and the sums before."""
        nobody = np.zeros((1, self.plan.carried.rows, self.encoding.d))
        absent = np.zeros(nobody.shape[:2], dtype=np.bool_)
        asked = (self.mechanism, self.plan, self.encoding, nobody, absent, self.sums)
        return contribute(*asked, SeededNoise(1)).size

    def told(self) -> list[bytes]:
        return [write_sum(each) for each in self.sums]

    def open(self, name: str, opening: bytes, sums: list[bytes] | None = None) -> bytes | None:
        """One call; None while the gate works on it."""
        told = self.told() if sums is None else sums
        asked = gate_pb2.Opening(opening=opening, sums=told)
        reply = self.step(name, round=len(self.sums), open=asked)
        return None if reply.working else reply.message

    def gather(self, absent: Collection[str] = ()) -> Collector:
        round_ = len(self.sums)
        transcript = find_transcript(self.signed.study_id, self.told())
        terms = SumTerms(round_, self.count_numbers(), SUM_BITS, transcript)
        collector = Collector(self.roster, terms)
        for name in self.sites:
            if name not in absent:
                posting = self.step(name, round=round_, advertise=NOTHING).message
                assert collector.take_posting(name, posting), collector.faults
        collector.open_round()
        return collector

    def mask(
        self,
        collector: Collector,
        absent: Collection[str] = (),
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """Open a round at all of its sites, and wait for their vectors."""
        waiting = {n: m for n, m in collector.next_messages().items() if n not in absent}
        for name, message in waiting.items():
            self.openings[len(self.sums), name] = message
            self.open(name, message)
        meanwhile()
        end = time.monotonic() + 120
        while waiting:
            for name, message in list(waiting.items()):
                found = self.open(name, message)
                if found is not None:
                    self.masked[len(self.sums), name] = found
                    assert collector.take_masked(name, found), collector.faults
                    del waiting[name]
            assert time.monotonic() < end, f"{sorted(waiting)} do not answer"
            time.sleep(0.2)  # a gate answers at whole slots of 0.1 s, and each question costs

    def reveal(self, collector: Collector) -> None:
        collector.ask_survivors()
        for name, asking in collector.next_messages().items():
            message = self.step(name, round=len(self.sums), asking=asking).message
            assert collector.take_reveal(name, message), collector.faults

    def add_round(self, absent: Collection[str] = ()) -> None:
        collector = self.gather(absent)
        self.mask(collector)
        self.reveal(collector)
        self.sums.append(collector.find_sum())

    def add_all(self) -> None:
        while len(self.sums) < self.plan.rounds:
            self.add_round()

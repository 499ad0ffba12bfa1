"""Sites that take steps in sums without gates: their secrets and orders are real, their rows are
numbers that a test chooses, and the line to them is as bad as a test likes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.aggregation.exchanges import SUM_BITS, SumTerms, find_transcript
from penstock.aggregation.residues import Residues
from penstock.aggregation.roster import Roster
from penstock.base.errors import PenstockError
from penstock.wire import gate_pb2
from penstock.wire.signed import SignedStudy, read_signed_study
from penstock_client.ledger.sqlite_file import Database
from penstock_client.masking.member import Member
from penstock_client.masking.round_orders import RoundOrders

Vector = Callable[[str, int], list[int]]
"""A site's numbers in a round."""


class Adder:
    """One site, over its database.

    Attributes:
        busy: whether it is still at work in a round, whenever it is asked.
    """

    def __init__(self, folder: Path, name: str, key: object, vector: Vector, last: int) -> None:
        self.name, self.key, self.vector, self.last = name, key, vector, last
        self.database = Database.create(folder / f"{name}.db")
        self.signed: SignedStudy | None = None
        self.finished = False
        self.busy: Callable[[int], bool] = lambda number: False

    def answer(self, call: gate_pb2.Call) -> gate_pb2.Answer:
        """As a gate answers one call."""
        try:
            return self._answer(call)
        except PenstockError as error:
            failure = gate_pb2.Failure(code="conflict", detail=str(error))
            return gate_pb2.Answer(id=call.id, failure=failure)

    def _answer(self, call: gate_pb2.Call) -> gate_pb2.Answer:
        match call.WhichOneof("verb"):
            case "submit":
                self.signed = read_signed_study(call.submit.signed_study)
                return self._tell_job(call.id)
            case "poll":
                return self._tell_job(call.id)
            case "step":
                return gate_pb2.Answer(id=call.id, stepped=self._step(call.step))
        return gate_pb2.Answer(id=call.id, failure=gate_pb2.Failure(code="internal"))

    def _tell_job(self, number: int) -> gate_pb2.Answer:
        state = "cancelled" if self.finished else "queued"
        return gate_pb2.Answer(id=number, job=gate_pb2.Job(request_id=self.name, state=state))

    def _step(self, step: gate_pb2.StepRequest) -> gate_pb2.StepReply:
        assert self.signed is not None
        study_id = self.signed.study_id
        roster = Roster.of(self.signed.study, study_id)
        member = Member(self.database, roster, self.name, self.key)
        orders = RoundOrders(self.database, study_id)
        message = b""
        match step.WhichOneof("stage"):
            case "introduce":
                message = member.introduce()
            case "meeting":
                member.meet(step.meeting)
            case "advertise":
                message = member.advertise(step.round)
            case "open":
                known = orders.read_sums()
                first, told = step.open.first, tuple(step.open.sums)
                assert first <= len(known)
                assert first + len(told) == step.round
                assert known[first : step.round] == told[: len(known) - first]
                if orders.get(step.round) is None:
                    member.check_opening(step.open.opening, step.round)
                    new = told[len(known) - first :]
                    orders.keep(step.round, step.open.opening, new, "2026-11-24T00:00:00.000000Z")
                return gate_pb2.StepReply(working=True, wait=0.0)
            case "fetch":
                found = orders.get(step.round)
                assert found is not None
                if self.busy(step.round):
                    return gate_pb2.StepReply(working=True, wait=5.0)
                numbers = self.vector(self.name, step.round)
                told = orders.read_sums(step.round)
                transcript = find_transcript(study_id, told)
                terms = SumTerms(step.round, len(numbers), SUM_BITS, transcript)
                message = member.contribute(
                    found.opening, terms, lambda: Residues.from_numbers(numbers, SUM_BITS)
                )
            case "asking":
                message = member.reveal(step.asking, step.round)
                self.finished = step.round == self.last
        return gate_pb2.StepReply(message=message)


class BadLine:
    """A carrier that loses packets and answers, and whose sites come and go.

    Args:
        lost: share of packets that are lost, and of answers.
        away: by site, the turns (counted by ``send``) in which it does not answer.
    """

    def __init__(
        self,
        sites: Mapping[str, Adder],
        rng: random.Random,
        *,
        lost: float = 0.0,
        away: Callable[[str, int], bool] = lambda site, turn: False,
    ) -> None:
        self.sites, self.rng, self.lost, self.away = sites, rng, lost, away
        self.turn = 0
        self._back: list[tuple[str, bytes | str]] = []

    def ready(self) -> set[str]:
        self.turn += 1
        return set(self.sites)

    def send(self, packets: Mapping[str, bytes]) -> None:
        for site, packet in packets.items():
            gone = self.away(site, self.turn)
            if gone or self.rng.random() < self.lost:
                self._back.append((site, "gate-away" if gone else ""))
                continue
            calls = gate_pb2.Batch.FromString(packet).calls
            answers = [self.sites[site].answer(c) for c in calls if c.id]
            data = gate_pb2.Answers(answers=answers).SerializeToString()
            self._back.append((site, "" if self.rng.random() < self.lost else data))

    def receive(self) -> list[tuple[str, bytes | str]]:
        came, self._back = self._back, []
        return came

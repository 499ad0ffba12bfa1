r"""An auditor of one release of many sites, who believes nothing but what is signed and kept.

Given are a signed study, each gate's database (its ledger, what it was asked in each round, and
what it said) and what the coordinator has: of each round the sum and whose it is. From these alone
all is done once more (:func:`audit_sums`):

- the plan follows from the signed study, and each ledger holds *one* charge of it, of exactly the
  plan's events, that its filter admitted;
- each round's question follows from the plan and the sums before: its size and the variance of its
  noise are what the *charge* asks for, S - t - c shares of it at the least;
- every site in a round was told the same sums, sites and terms; it says once, under its signature,
  a masked vector and one set of survivors, the same at all;
- what the sites said, unmasked with the shares that they gave, is the sum that was told, scaled up
  by the frames of the sites that it lacks.

It cannot see of which variance the noise within a masked vector is: nobody can. Where a test knows
the rows, :func:`find_noise` takes them off the sums.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NoReturn

import numpy as np

from penstock.aggregation.exchanges import (
    SUM_BITS,
    SumTerms,
    find_transcript,
    read_sum,
    write_sum,
)
from penstock.aggregation.roster import Roster
from penstock.base.errors import PenstockError
from penstock.mechanisms.joint.consortium import LOCAL
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.joint.rounds import Contribution, contribute
from penstock.mechanisms.registry import MECHANISMS
from penstock.privacy.events import DiscreteGaussian, DistributedGaussian, Event
from penstock.privacy.noise.discrete import grid_exponent
from penstock.privacy.noise.sources import SeededNoise
from penstock.schema.encoding import Encoding
from penstock.study.charges import plan_study
from penstock.study.study import Study
from penstock.wire.canonical import digest
from penstock.wire.signed import SignedStudy, read_signed_study
from penstock_client.ledger.ledger import Ledger
from penstock_client.ledger.replay import verify_ledger
from penstock_client.ledger.sqlite_file import Database
from penstock_client.masking.round_orders import RoundOrders
from penstock_client.masking.sum_record import RoundRow, SumRecord
from penstock_server.store.round_sums import RoundSum
from penstock_server.studies.summation_course import scale_sum
from penstock_server.sums.collector import Collector

Rounds = Sequence[RoundSum]


class Disagrees(AssertionError):
    """Two records that should agree do not."""


def _refuse(what: str, *where: object) -> NoReturn:
    raise Disagrees(": ".join(map(str, (*where, what))))


@dataclass(frozen=True, slots=True)
class Audited:
    """
    Attributes:
        plan: that follows from the signed study; questions: of each round, of nobody's rows.
        sums: of each round, as its survivors said it.
    """

    plan: JointPlan
    questions: tuple[Contribution, ...]
    sums: tuple[list[int], ...]


def audit_sums(signed: bytes, gates: Mapping[str, Database], rounds: Rounds) -> Audited:
    """Hold all records of one release to each other.

    Args:
        signed: the study's bytes; gates: of each site; rounds: what the coordinator has.

    Raises:
        Disagrees: with the first thing that does not fit.
    """
    study = read_signed_study(signed)
    plan = plan_study(study.study, 1)
    if not isinstance(plan, JointPlan):
        _refuse("the study asks for no release of all sites")
    roster = Roster.of(study.study, study.study_id)
    if set(gates) != set(roster.sites):
        _refuse("not the records of all of its sites")
    for site, database in gates.items():
        _audit_ledger(study, plan, roster, site, database)
    questions = _ask_again(plan, study, rounds)
    _audit_noise(plan, questions)
    sums = [
        _audit_round(study, roster, gates, rounds, number, asked.size)
        for number, asked in enumerate(questions)
    ]
    return Audited(plan, tuple(questions), tuple(sums))


def _audit_ledger(
    signed: SignedStudy, plan: JointPlan, roster: Roster, site: str, database: Database
) -> None:
    """One charge, of the plan's events, that was admissible."""
    found = verify_ledger(Ledger(database, None).records(), roster.key(site))
    if found.findings:
        _refuse(found.findings[0].what, site)
    asked = digest(signed.study.to_dict())
    charges = [c for c in found.state.charges.values() if c.study_digest == asked]
    if len(charges) != 1:
        _refuse(f"{len(charges)} charges of the study", site)
    [charge] = charges
    if charge.events != plan.events:
        _refuse("charged with other events than the plan's", site)
    if charge.delta != signed.study.privacy.delta:
        _refuse("charged at another δ than the study's", site)
    if plan.consortium.noise != LOCAL and not float(charge.alone_epsilon) >= plan.epsilon_alone:
        _refuse("says too small an ε if all others collude", site)


def _ask_again(plan: JointPlan, signed: SignedStudy, rounds: Rounds) -> list[Contribution]:
    """Each round's question, by the sums before it, asked of nobody's rows."""
    mechanism, encoding = MECHANISMS.of(signed.study.mechanism), Encoding(plan.asked.schema)
    nobody = np.zeros((1, plan.carried.rows, encoding.d))
    absent = np.zeros(nobody.shape[:2], dtype=np.bool_)
    sums = [read_sum(each.data) for each in rounds]
    if len(sums) != plan.rounds:
        _refuse(f"{len(sums)} sums, where the plan has {plan.rounds}")
    try:
        return [
            contribute(mechanism, plan, encoding, nobody, absent, sums[:number], SeededNoise(1))
            for number in range(len(sums))
        ]
    except PenstockError as error:
        _refuse(f"sums are not what the plan asks for: {error}")


def _audit_noise(plan: JointPlan, questions: Sequence[Contribution]) -> None:
    """What is charged is what was asked, as often, with at least the noise that it says."""
    charged: dict[str, Event] = {getattr(event, "label", ""): event for event in plan.events}
    measured = {m.label: m for m in plan.carried.measurements}
    seen = Counter(question.label for question in questions)
    sites = len(plan.consortium.sites)
    for label, count in seen.items():
        if measured[label].calls != count:
            _refuse(f"{count} rounds, where {measured[label].calls} are charged", label)
    if set(seen) != set(charged):
        _refuse("charged for other questions than were asked")
    for question in questions:
        event, whole = charged[question.label], measured[question.label]
        honest = event.honest if isinstance(event, DistributedGaussian) else 1
        if not isinstance(event, DistributedGaussian | DiscreteGaussian):
            _refuse("not charged as sums of whole numbers", question.label)
        for half, addend in enumerate(question.addends, 1):
            # Of a symmetric matrix, numbers beside the diagonal have half of the variance.
            squared = Fraction(4) ** grid_exponent(whole.variance / half, whole.unit)
            share = addend.variance / sites
            if (
                share * squared * honest
                < Fraction(event.noise_multiplier) ** 2 * whole.squared / half
            ):
                _refuse("less noise than is charged", question.label)
            if not math.sqrt(share) >= event.grid_sd * (1 - 1e-9):
                _refuse("a coarser grid than is charged", question.label)


def _audit_round(
    signed: SignedStudy,
    roster: Roster,
    gates: Mapping[str, Database],
    rounds: Rounds,
    number: int,
    size: int,
) -> list[int]:
    """All that was said in one round, unmasked once more: the sum of its survivors."""
    published = rounds[number]
    told = [each.data for each in rounds[:number]]
    terms = SumTerms(number, size, SUM_BITS, find_transcript(signed.study_id, told))
    rows = {
        site: row
        for site, database in gates.items()
        if (row := SumRecord(database, signed.study_id).round(number)) is not None
    }
    for site in published.survivors:
        if site not in rows or rows[site].masked is None or rows[site].reveal is None:
            _refuse("a survivor who said nothing", f"round {number}", site)
    _audit_orders(signed, gates, rows, terms, told)
    members = _agree_on({s: _read(r.members) for s, r in rows.items() if r.masked}, number, "sites")
    survivors = _agree_on(
        {s: _read(r.survivors) for s, r in rows.items() if r.reveal}, number, "survivors"
    )
    if survivors != published.survivors:
        _refuse("a sum of other survivors than sites answered", f"round {number}")
    if not len(survivors) >= roster.quorum:
        _refuse("fewer survivors than S - t", f"round {number}")
    try:
        found = _unmask(roster, terms, rows, members, survivors)
    except PenstockError as error:
        _refuse(str(error), f"round {number}")
    if write_sum(scale_up(signed.study, found, rounds[0].survivors, survivors)) != published.data:
        _refuse("another sum than its sites said", f"round {number}")
    return found


def scale_up(
    study: Study, numbers: Sequence[int], first: Sequence[str], survivors: Sequence[str]
) -> list[int]:
    """A sum of these survivors as a coordinator tells it, by the first sum's frames."""
    persons = dict(study.aggregation.persons)
    whole, there = (sum(persons[site] for site in sites) for sites in (first, survivors))
    return scale_sum(numbers, (whole, there))


def _audit_orders(
    signed: SignedStudy,
    gates: Mapping[str, Database],
    rows: Mapping[str, RoundRow],
    terms: SumTerms,
    told: Sequence[bytes],
) -> None:
    """What each site that masked a vector was asked before."""
    for site, row in rows.items():
        if row.masked is None:
            continue
        orders = RoundOrders(gates[site], signed.study_id)
        order = orders.get(terms.round)
        if order is None or order.size != terms.size:
            _refuse("masked what it was not asked for", f"round {terms.round}", site)
        if orders.read_sums(terms.round) != tuple(told):
            _refuse("was told other sums", f"round {terms.round}", site)


def _read(names: str | None) -> tuple[str, ...]:
    return tuple(json.loads(names or "[]"))


def _agree_on(said: Mapping[str, tuple[str, ...]], number: int, what: str) -> tuple[str, ...]:
    if len(set(said.values())) != 1:
        _refuse(f"{len(set(said.values()))} sets of {what}", f"round {number}")
    return next(iter(said.values()))


def _unmask(
    roster: Roster,
    terms: SumTerms,
    rows: Mapping[str, RoundRow],
    members: Sequence[str],
    survivors: Sequence[str],
) -> list[int]:
    """The sum of what the survivors said, by the shares that they gave; signatures are checked."""
    collector = Collector(roster, terms)
    for site, row in rows.items():
        collector.take_posting(site, row.posting)
    collector.open_round(members)
    for site, row in rows.items():
        if row.masked is not None:
            collector.take_masked(site, row.masked)
    collector.ask_survivors(survivors)
    for site, row in rows.items():
        if row.reveal is not None:
            collector.take_reveal(site, row.reveal)
    for fault in collector.faults.values():
        raise fault
    return collector.find_sum()


def find_noise(
    audited: Audited, rounds: Rounds, parts: Sequence[Mapping[str, Contribution]]
) -> float:
    r"""Where the noise in all sums lies beside what is charged, in standard errors.

    With the numbers of a site's rows known, what is left of a sum of s survivors is noise, of
    variance sV/S. The mean of its n squares over their variance is 1, with a standard error of
    √(2/n): what is returned is within ±5.4 but for 1e-7.

    Args:
        parts: of each round, what each site's rows add.
    """
    sites, squares = len(audited.plan.consortium.sites), list[float]()
    records = zip(rounds, audited.sums, audited.questions, parts, strict=True)
    for published, left, question, known in records:
        at = 0
        for half, addend in enumerate(question.addends):
            share = addend.variance * len(published.survivors) / sites
            for place in range(len(addend.whole)):
                noise = left[at] - sum(
                    int(known[site].addends[half].whole[place]) for site in published.survivors
                )
                squares.append(float(noise * noise / share))
                at += 1
    count = len(squares)
    return (sum(squares) / count - 1) * (count / 2) ** 0.5

"""Whether a site answers a study: a pure function of public facts.

Only the signed study, the site's dictionary, policy and trust, the public n, the ledger and the
clock go in. Nothing computed from rows does, so that a refusal tells nobody about them
(docs/privacy.md, "What counts as leaving").
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock import __version__
from penstock.aggregation.exchanges import SUM_BITS
from penstock.base.errors import InvalidInput, PrivacyError, Problem, Refused
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.labelled import has_labels
from penstock.mechanisms.protocol import Plan
from penstock.mechanisms.refusals import refusals
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.mechanisms.released import Shape
from penstock.schema import Schema, compare
from penstock.study.charges import carry, plan_study
from penstock.study.study import Study
from penstock.wire.canonical import digest
from penstock.wire.messages import SERVED_MAJORS, Code, explain, names_parts
from penstock.wire.signed import SignedStudy
from penstock_client.ledger.allowances import AllowanceExceeded
from penstock_client.ledger.budget import write_alone
from penstock_client.ledger.reservation import admit_charge
from penstock_client.ledger.state import Charge, Lineage, State
from penstock_client.site.peer_keys import Peers
from penstock_client.site.policy import Breach, Policy
from penstock_client.site.signers import Signer, Trust

MAX_CELLS = 200_000_000
"""A release of more cells than this is refused; it would outgrow a coordinator's memory."""

MAX_ROUNDS, MAX_SUM_BYTES = 500, 3_000_000
"""Of one release of many sites; an opening of a round has all sums before it in one message."""


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """What a decision may depend on.

    ``peers``: other sites' gates, as the steward pinned them; ``gate_key``: this one's public key.
    ``memory_gb``, ``threads``: what the site lets a run have; ``mechanisms``: all there are.
    """

    name: str
    federation: str
    lineage: str
    dictionary: Schema
    policy: Policy
    trust: Trust
    peers: Peers
    gate_key: str
    state: State
    now: str
    has_public_data: bool
    memory_gb: float
    threads: int
    mechanisms: Registry = MECHANISMS


@dataclass(frozen=True, slots=True)
class Admission:
    """A study that fits: its plan, what it releases, its worst-case charge, and its signer."""

    request_id: str
    plan: Plan | JointPlan
    shape: Shape
    charge: Charge
    signer: Signer


def request_id(signed: SignedStudy, site: str, lineage: str, version: int) -> str:
    """SHA-256 of (signed study, site, data lineage and version, release index).

    The gate computes it, so that a new label never buys a new draw.
    """
    return digest(
        {
            "study": signed.study_id,
            "site": site,
            "lineage": lineage,
            "version": version,
            "release": signed.study.release,
        }
    )


def plan_digest(study: Study, persons: int, software: str = __version__) -> str:
    """SHA-256 of the canonical public inputs of a plan: the same inputs give the same events.

    ``{mechanism, schema, privacy, estimands, persons, software}``, the first four as in the study;
    of one release of many sites also ``aggregation`` and ``sites``.
    """
    asked = study.to_dict()
    named = ["mechanism", "schema", "privacy", "estimands"]
    named += ["aggregation", "sites"] if study.aggregation.joint else []
    parts = {name: asked[name] for name in named}
    return digest({**parts, "persons": persons, "software": software})


def refuse(code: Code, detail: str = "") -> Refused:
    """A refusal in the words of :data:`penstock.wire.messages.CODES`."""
    meaning, remedy = explain(code)
    return Refused(code, f"{meaning}: {detail}" if detail else meaning, remedy=remedy)


def identify(signed: SignedStudy, facts: SiteFacts) -> str:
    """The request id of a study that is addressed to this site by someone it trusts.

    Raises:
        Refused: another wire version, federation or site, or a signer who is not trusted (now).
    """
    study = signed.study
    if int(study.wire.split(".")[0]) not in SERVED_MAJORS:
        raise refuse("wire-version")
    if study.federation != facts.federation:
        raise refuse("federation")
    if facts.name not in study.sites:
        raise refuse("not-invited")
    _find_signer(signed, facts)
    lineage = _find_lineage(facts)
    return request_id(signed, facts.name, lineage.name, lineage.versions[-1].number)


def consider(signed: SignedStudy, facts: SiteFacts) -> Admission:
    """Admit a study, or refuse it for a public reason; nothing is charged here.

    Raises:
        Refused: with one of :data:`penstock.wire.messages.REFUSALS`.
    """
    identity = identify(signed, facts)
    study, policy = signed.study, facts.policy
    if facts.now < study.not_before:
        raise refuse("not-yet-valid")
    if facts.now >= study.expires:
        raise refuse("expired")
    for breach in policy.find_kind_breaches(study.mechanism.name, study.privacy.guarantee):
        raise _refuse_breach(breach)
    problems = compare(study.schema, facts.dictionary) + _find_unit_problems(
        study, _find_lineage(facts)
    )
    if problems:
        raise refuse("schema", "; ".join(str(p) for p in problems[:5]))
    if study.privacy.guarantee == "public-flow" and not facts.has_public_data:
        raise refuse("no-public-data")
    signer = _find_signer(signed, facts)
    lineage = _find_lineage(facts)
    persons = lineage.versions[-1].persons
    _require_peers(study, facts, persons)
    asked = study.privacy
    for breach in policy.find_budget_breaches(asked.epsilon, asked.delta, asked.guarantee, persons):
        raise _refuse_breach(breach)
    mechanism = facts.mechanisms.of(study.mechanism)
    shape = mechanism.shape(study.asked, persons)
    if not names_parts(study.wire) and not has_labels(shape):
        raise refuse("wire-version", "what this mechanism releases needs 1.2 or newer")
    if shape.cells > MAX_CELLS:
        raise refuse("wire-limit")
    try:
        planned = plan_study(study, persons, facts.mechanisms)
    except (PrivacyError, InvalidInput) as error:
        raise refuse("plan", str(error)) from error
    if not planned.events:
        raise refuse("plan", "nothing would be charged")
    _require_worth_and_memory(planned, study, facts)
    if isinstance(planned, JointPlan):
        _require_alone(planned, policy)
    charge = Charge(
        id=identity,
        lineage=lineage.name,
        version=lineage.versions[-1].number,
        study_id=signed.study_id,
        signer=signed.signer,
        mechanism=study.mechanism.name,
        events=planned.events,
        delta=study.privacy.delta,
        study=study.name,
        study_digest=digest(study.to_dict()),
        plan_digest=plan_digest(study, persons),
        alone_epsilon=write_alone(planned.events, study.privacy.delta),
    )
    _require_room(charge, signer, facts)
    return Admission(identity, planned, shape, charge, signer)


def _refuse_breach(breach: Breach) -> Refused:
    if breach.code == "mechanism":
        return refuse(breach.code, f"it allows {breach.allowed}")
    return refuse(breach.code, "" if breach.code == "guarantee" else breach.allowed)


def _require_peers(study: Study, facts: SiteFacts, persons: int) -> None:
    """Of one release of many sites: what it says of this one is so, and the others are pinned."""
    if not study.aggregation.joint:
        return
    said, keys = dict(study.aggregation.persons), dict(study.aggregation.keys)
    if said[facts.name] != persons:
        raise refuse("frame", f"{said[facts.name]}, and it is {persons}")
    if keys.pop(facts.name) != facts.gate_key:
        raise refuse("gate-key")
    if unknown := facts.peers.find_unknown(keys):
        raise refuse("peers", ", ".join(unknown))


def _require_alone(planned: JointPlan, policy: Policy) -> None:
    if planned.rounds > MAX_ROUNDS or count_bytes(planned) > MAX_SUM_BYTES:
        raise refuse("wire-limit", "its sums are too many or too large")
    found, most = planned.epsilon_alone, policy.largest_alone
    if not found <= most:
        raise refuse("alone", f"{found:.3g}, and it allows {most:.3g}")


def count_bytes(planned: JointPlan) -> int:
    """Bytes of all sums together, which each opening of a round may have to carry."""
    numbers = sum(m.calls * m.size for m in planned.carried.measurements)
    return numbers * SUM_BITS // 8


def _find_signer(signed: SignedStudy, facts: SiteFacts) -> Signer:
    signer = facts.trust.signers.get(signed.signer)
    if signer is None:
        raise refuse("unknown-signer")
    if facts.now >= signer.expires:
        raise refuse("trust-expired")
    return signer


def _find_lineage(facts: SiteFacts) -> Lineage:
    lineage = facts.state.lineages.get(facts.lineage)
    if lineage is None or not lineage.versions:
        raise refuse("not-ready")
    return lineage


def _find_unit_problems(study: Study, lineage: Lineage) -> list[Problem]:
    """A study may use no other unit than the data set protects; the dictionary may be younger."""
    unit = lineage.unit
    if unit is None or (study.schema.person, study.schema.max_rows_per_person) == (
        unit.person,
        min(study.schema.max_rows_per_person, unit.rows),
    ):
        return []
    asked = f"{study.schema.person!r}, {study.schema.max_rows_per_person} rows"
    return [Problem("person", "another unit than the data set protects", None, asked, str(unit))]


def _require_worth_and_memory(planned: Plan | JointPlan, study: Study, facts: SiteFacts) -> None:
    """What would be noise, or could not fit, is refused before it is charged."""
    asked, carried = carry(study.asked, planned)
    for code, detail in refusals(
        facts.mechanisms.of(study.mechanism),
        asked,
        carried,
        dictionary=facts.dictionary,
        memory_gb=facts.memory_gb,
        threads=facts.threads,
    ):
        raise refuse(code, detail)


def _require_room(charge: Charge, signer: Signer, facts: SiteFacts) -> None:
    if charge.id in facts.state.charges:
        return  # The job exists; its charge is settled there.
    if facts.state.closed(charge.lineage):
        raise refuse("closed")
    try:
        admit_charge(
            facts.state,
            charge,
            now=facts.now,
            signer_epsilon=signer.epsilon,
            policy=facts.policy,
        )
    except AllowanceExceeded as error:
        raise refuse(error.reason, str(error)) from error
    except PrivacyError as error:
        raise refuse("budget", str(error)) from error

"""Whether a site answers a study: a pure function of public facts.

Only the signed study, the site's dictionary, policy and trust, the public n, the ledger and the
clock go in. Nothing computed from rows does, so that a refusal tells nobody about them
(docs/privacy.md, "What counts as leaving").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock import __version__
from penstock.aggregation.exchanges import fits_wire
from penstock.base.errors import InvalidInput, PenstockError, PrivacyError, Problem, Refused
from penstock.mechanisms.joint.consortium import LOCAL
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.labelled import has_labels
from penstock.mechanisms.protocol import Plan
from penstock.mechanisms.refusals import refusals
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.mechanisms.released import Shape
from penstock.privacy.accounting.accountant import epsilon
from penstock.privacy.events import DistributedGaussian, Event, alone
from penstock.schema import Schema, compare
from penstock.study.charges import carry, plan_other, plan_study
from penstock.study.halves import find_other
from penstock.study.study import Study
from penstock.wire.canonical import digest
from penstock.wire.messages import SERVED_MAJORS, Code, explain, names_parts
from penstock.wire.signed import SignedStudy, name_study
from penstock_client.ledger.allowances import AllowanceExceeded
from penstock_client.ledger.budget import write_alone
from penstock_client.ledger.reservation import admit_charge
from penstock_client.ledger.state import Charge, Lineage, State
from penstock_client.site.peer_keys import Peers
from penstock_client.site.policy import Breach, Policy
from penstock_client.site.signers import Signer, Trust

MAX_CELLS = 200_000_000
"""A release of more cells than this is refused; it would outgrow a coordinator's memory."""


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
    """A study that fits: its plan, what it releases, its worst-case charge, and its signer.

    ``beside``: of a half of a study of both, what the other half is charged: both or neither.
    """

    request_id: str
    plan: Plan | JointPlan
    shape: Shape
    charge: Charge
    signer: Signer
    beside: Charge | None = None


def request_id(
    signed: SignedStudy, site: str, lineage: str, version: int, half: Study | None = None
) -> str:
    """SHA-256 of (signed study, site, data lineage and version, release index).

    The gate computes it, so that a new label never buys a new draw.

    Args:
        half: the other half of the signed one, whose request is meant instead.
    """
    return digest(
        {
            "study": signed.study_id if half is None else name_study(half, signed.signer),
            "site": site,
            "lineage": lineage,
            "version": version,
            "release": signed.study.release,
        }
    )


def plan_digest(study: Study, persons: int, software: str = __version__) -> str:
    """SHA-256 of the canonical public inputs of a plan: the same inputs give the same events.

    ``{mechanism, schema, privacy, estimands, persons, software}``, the first four as in the study;
    where sites add up also ``aggregation`` and ``sites``.
    """
    asked = study.to_dict()
    named = ["mechanism", "schema", "privacy", "estimands"]
    named += ["aggregation", "sites"] if study.aggregation.adds else []
    parts = {name: asked[name] for name in named}
    return digest({**parts, "persons": persons, "software": software})


def refuse(code: Code, detail: str = "", remedy: str | None = None) -> Refused:
    """A refusal in the words of :data:`penstock.wire.messages.CODES`.

    Args:
        remedy: what to do, where more is known than the code says.
    """
    meaning, usual = explain(code)
    message = f"{meaning}: {detail}" if detail else meaning
    return Refused(code, message, remedy=remedy or usual)


def _refuse_error(code: Code, error: PenstockError) -> Refused:
    """A refusal in an error's words; it says once what to do."""
    return refuse(code, str(error).removesuffix(f": {error.remedy}"), error.remedy)


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


def consider(signed: SignedStudy, facts: SiteFacts, *, waits: bool = False) -> Admission:
    """Admit a study, or refuse it for a public reason; nothing is charged here.

    Args:
        waits: for a steward's word, before which it is admitted again: other sites' gates may be
            pinned until then.

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
    _require_peers(study, facts, persons, waits)
    asked = study.privacy
    # Of a half what all of its study costs, for it is all charged at once.
    whole = asked.epsilon if study.aggregation.whole is None else study.aggregation.whole
    for breach in policy.find_budget_breaches(whole, asked.delta, asked.guarantee, persons):
        raise _refuse_breach(breach)
    shape = _require_shape(study, facts, persons)
    begun = identity in facts.state.charges  # then so is the other half's
    planned, other = _require_plans(study, facts, persons, halved=not begun)
    charge = _write_charge(signed, study, planned, lineage, identity)
    if other is None:
        _require_room(charge, signer, facts)
        return Admission(identity, planned, shape, charge, signer)
    half = find_other(study)
    _require_shape(half, facts, persons)
    named = request_id(signed, facts.name, lineage.name, charge.version, half)
    beside = _write_charge(signed, half, other, lineage, named)
    _require_room(charge, signer, facts, beside)
    return Admission(identity, planned, shape, charge, signer, beside)


def _require_shape(study: Study, facts: SiteFacts, persons: int) -> Shape:
    """What it releases, if the wire carries that."""
    mechanism = facts.mechanisms.of(study.mechanism)
    frame = sum(dict(study.aggregation.persons).values()) if study.aggregation.joint else persons
    shape = mechanism.shape(study.asked, frame)
    if not names_parts(study.wire) and not has_labels(shape):
        raise refuse("wire-version", "what this mechanism releases needs 1.2 or newer")
    if shape.cells > MAX_CELLS:
        raise refuse("wire-limit")
    return shape


def _require_plans(
    study: Study, facts: SiteFacts, persons: int, *, halved: bool
) -> tuple[Plan | JointPlan, Plan | JointPlan | None]:
    """The plan of a study, and that of its other half if it is a half and is not charged yet; each
    worth its charge."""
    other = None
    try:
        planned = plan_study(study, persons, facts.mechanisms)
        if study.aggregation.halved and halved:
            other = plan_other(study, planned, persons, facts.mechanisms)
    except (PrivacyError, InvalidInput) as error:
        raise _refuse_error("plan", error) from error
    plans = [(planned, study)] + ([] if other is None else [(other, find_other(study))])
    for found, asked in plans:
        if not found.events:
            raise refuse("plan", "nothing would be charged")
        _require_worth_and_memory(found, asked, facts, persons)
    both = planned.events if other is None else (*planned.events, *other.events)
    for found, _ in plans:
        if isinstance(found, JointPlan):
            _require_alone(found, both, study, facts.policy)
    return planned, other


def _write_charge(
    signed: SignedStudy, study: Study, planned: Plan | JointPlan, lineage: Lineage, identity: str
) -> Charge:
    version = lineage.versions[-1]
    return Charge(
        id=identity,
        lineage=lineage.name,
        version=version.number,
        study_id=name_study(study, signed.signer),
        signer=signed.signer,
        mechanism=study.mechanism.name,
        events=planned.events,
        delta=study.privacy.delta,
        study=study.name,
        study_digest=digest(study.to_dict()),
        plan_digest=plan_digest(study, version.persons),
        alone_epsilon=write_alone(planned.events, study.privacy.delta),
    )


def is_held(signed: SignedStudy, charge: Charge) -> bool:
    """Whether a charge was made with that of the site's own release, and none has begun of it."""
    scope = signed.study.aggregation
    return scope.halved and scope.joint and charge.status == "reserved"


def require_held(state: State, identity: str) -> None:
    """The release of all sites of a study of both begins once the site's own has: by then both
    are charged.

    Raises:
        Refused: it was not charged, or has ended.
    """
    held = state.charges.get(identity)
    if held is None or held.status != "reserved":
        raise refuse("half")


def _refuse_breach(breach: Breach) -> Refused:
    if breach.code == "mechanism":
        return refuse(breach.code, f"it allows {breach.allowed}")
    return refuse(breach.code, "" if breach.code == "guarantee" else breach.allowed)


def _require_peers(study: Study, facts: SiteFacts, persons: int, waits: bool) -> None:
    """Where sites add up: what it says of this one is so, and the others are pinned, where ε
    rests on them."""
    if not study.aggregation.adds:
        return
    said, keys = dict(study.aggregation.persons), dict(study.aggregation.keys)
    if said[facts.name] != persons:
        raise refuse("frame", f"{said[facts.name]}, and it is {persons}")
    if keys[facts.name] != facts.gate_key:
        raise refuse("gate-key")
    if not waits and (unknown := find_unpinned(study, facts.name, facts.peers)):
        raise refuse("peers", ", ".join(unknown))


def find_unpinned(study: Study, site: str, peers: Peers) -> tuple[str, ...]:
    """Sites of one release whose key, as the study says it, this site's steward has not pinned.

    Nobody where each site adds all of the noise: then whoever sees a site's part learns no more
    than ε says, and it is no matter who the others are.
    """
    if not study.aggregation.adds or study.aggregation.noise == LOCAL:
        return ()
    keys = dict(study.aggregation.keys)
    return peers.find_unknown({k: v for k, v in keys.items() if k != site})


def _require_alone(
    planned: JointPlan, charged: Sequence[Event], study: Study, policy: Policy
) -> None:
    """The sums fit the wire, and all that is charged the policy, if all other sites collude."""
    if not fits_wire(planned.rounds, planned.largest):
        raise refuse("wire-limit", "its sums are too many or too large")
    own = [alone(e) if isinstance(e, DistributedGaussian) else e for e in charged]
    shared = any(isinstance(e, DistributedGaussian) for e in charged)
    cost = epsilon(own, study.privacy.delta) if shared else 0.0
    for breach in policy.find_alone_breaches(cost):
        raise _refuse_breach(breach)


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


def _require_worth_and_memory(
    planned: Plan | JointPlan, study: Study, facts: SiteFacts, persons: int
) -> None:
    """What would be noise, or could not fit, is refused before it is charged."""
    asked, carried = carry(study.asked, planned)
    for code, detail in refusals(
        facts.mechanisms.of(study.mechanism),
        asked,
        carried,
        dictionary=facts.dictionary,
        memory_gb=facts.memory_gb,
        threads=facts.threads,
        persons=persons if study.aggregation.joint else None,
    ):
        raise refuse(code, detail)


def _require_room(
    charge: Charge, signer: Signer, facts: SiteFacts, beside: Charge | None = None
) -> None:
    """Whether there is room for it, and for what is charged in one go with it."""
    if charge.id in facts.state.charges:
        return  # The job exists; its charge is settled there.
    if facts.state.closed(charge.lineage):
        raise refuse("closed")
    try:
        admit_charge(
            facts.state,
            charge if beside is None else replace(charge, events=charge.events + beside.events),
            now=facts.now,
            signer_epsilon=signer.epsilon,
            policy=facts.policy,
        )
    except AllowanceExceeded as error:
        raise _refuse_error(error.reason, error) from error
    except PrivacyError as error:
        raise _refuse_error("budget", error) from error

"""What a steward sees of a request before saying yes or no. Reads no row."""

from __future__ import annotations

from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, PrivacyError, Refused
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.joint.promise import describe_noise, estimate_seconds, list_promises
from penstock.mechanisms.protocol import settings_to_dict
from penstock.mechanisms.registry import MECHANISMS, Registry
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.events import to_dict
from penstock.study.charges import plan_study
from penstock.study.halves import describe_half, find_other
from penstock.study.study import Study
from penstock.wire.messages import explain
from penstock.wire.signatures import fingerprint
from penstock.wire.signed import SignedStudy
from penstock_client.gate.admission import SiteFacts, consider, find_unpinned
from penstock_client.gate.jobs import SILENT, Job
from penstock_client.ledger.budget import measure_left, measure_spent
from penstock_client.site.peer_keys import Peers
from penstock_client.site.signers import Trust

NO_PEERS = Peers()

RECALL = "Released data cannot be recalled; a person's withdrawal applies to later releases only."


def describe_request(
    job: Job,
    signed: SignedStudy,
    progress: tuple[int, int],
    trust: Trust,
    note: str,
    *,
    site: str = "",
    peers: Peers = NO_PEERS,
) -> Json:
    """One line of `site requests`; ``signer_label`` is empty where trust was taken back.

    Of one release of many sites also what its ε rests on: ``alone_epsilon``, if all others collude
    (null where it cannot be planned), and the sites whose gates are ``unpinned``.

    Args:
        note: how its run ended, where that is known.
        site: this one's name; peers: the gates that its steward has pinned.
    """
    study = signed.study
    return {
        "request": job.request_id,
        "study": study.name,
        "title": study.title,
        "signer": fingerprint(signed.signer),
        "signer_label": known.label if (known := trust.signers.get(signed.signer)) else "",
        "mechanism": study.mechanism.name,
        "guarantee": study.privacy.guarantee,
        "epsilon": study.to_dict()["privacy"]["epsilon"],  # None for ∞, which JSON has not
        "delta": study.privacy.delta,
        "state": str(job.state),
        "why": _explain_code(job.code, note),
        "progress": list(progress),
        "submitted": job.submitted,
        "updated": job.updated,
        **_describe_joint(study, site, peers),
        **_describe_half(study),
    }


def _explain_code(code: str, note: str) -> str:
    """What a job's end was, with what only the steward may know of it."""
    if code == SILENT:
        return "you said no; the network is not told"
    meaning = explain(code)[0] if code else ""
    return f"{meaning}: {note}" if meaning and note else meaning


def preview_request(job: Job, signed: SignedStudy, facts: SiteFacts, note: str) -> Json:
    """The question, the columns, the cost by every account, and the ledger before and after.

    ``signed`` is the study whole, ``persons`` the public n: all that a forecast needs.
    """
    study = signed.study
    lineage = facts.state.joint(job.lineage)
    shown: Json = {
        **describe_request(
            job, signed, (0, 0), facts.trust, note, site=facts.name, peers=facts.peers
        ),
        **_describe_promise(study, facts),
        "columns": [c.name for c in study.schema.columns],
        "estimands": [f"{e.name}: {e.question}" for e in study.estimands],
        "settings": [
            f"{key} = {value}"
            for key, value in settings_to_dict(study.mechanism).items()
            if key != "name" and value is not None
        ],
        "site": facts.name,
        "persons": _count_frame(job, facts),
        "signed": study.to_dict(),
        "readers": ["the account that hands it in", *study.readers],
        "lineage": lineage.name,
        "spent_before": measure_spent(lineage),
        "left_before": measure_left(lineage),
        "total_epsilon": lineage.epsilon,
        "note": RECALL,
    }
    if job.request_id in facts.state.charges:
        shown["refusal"] = "already charged"
        return shown
    try:
        admission = consider(signed, facts)
    except Refused as refusal:
        shown["refusal"] = str(refusal)
        return shown
    beside = () if admission.beside is None else admission.beside.events
    events, delta = (*admission.charge.events, *beside), study.privacy.delta
    cost = epsilon(events, delta)
    if cost == float("inf"):
        shown["warning"] = "This release has NO formal guarantee and ends the data set's budget."
        return shown
    after = (*lineage.events(), *events)
    return {
        **shown,
        "epsilon_autodp": cost,
        "epsilon_pld": epsilon_pld(events, delta),
        "epsilon_replace_one": epsilon_pld(events, delta, relation="replace-one"),
        "spent_after": lineage.filter.spent(after),
        "spent_after_replace_one": epsilon_pld(after, lineage.delta, relation="replace-one"),
        "share_of_life": lineage.filter.share(events),
        "left_after": lineage.filter.left(after),
        "events": [to_dict(e) for e in events],
    }


def _describe_half(study: Study) -> Json:
    """Of a half of a study of both, what is charged in one go with it; nothing of another."""
    scope = study.aggregation
    if scope.whole is None:
        return {}
    return {
        "half": describe_half(study),
        "other_half": describe_half(find_other(study)),
        "whole_epsilon": scope.whole,
        "other_epsilon": scope.other,
    }


def _describe_joint(study: Study, site: str, peers: Peers) -> Json:
    """Of one release of many sites, what its ε rests on; nothing of another."""
    group = study.consortium
    if group is None:
        return {}
    planned = _plan_jointly(study)
    return {
        "guarantee": group.guarantee,
        "together_with": [name for name in group.sites if name != site],
        "alone_epsilon": None if planned is None else planned.epsilon_alone,
        "unpinned": list(find_unpinned(study, site, peers)),
    }


def _describe_promise(study: Study, facts: SiteFacts) -> Json:
    """The same at length: ε against whom, in words, with how much noise, and how long it takes."""
    planned = _plan_jointly(study, facts.mechanisms) if study.aggregation.joint else None
    if planned is None:
        return {}
    return {
        "promise": list_promises(planned)[0],
        "noise": describe_noise(planned),
        "rounds": planned.rounds,
        "seconds": estimate_seconds(planned, facts.policy.round_seconds),
    }


def _plan_jointly(study: Study, mechanisms: Registry = MECHANISMS) -> JointPlan | None:
    """None where it cannot be planned, which a preview says as a refusal."""
    try:
        planned = plan_study(study, 1, mechanisms)  # of all sites, whatever this one's size
    except (PrivacyError, InvalidInput):
        return None
    return planned if isinstance(planned, JointPlan) else None


def _count_frame(job: Job, facts: SiteFacts) -> int:
    """The public n of the version that was asked for."""
    versions = facts.state.lineages[job.lineage].versions
    return next(version.persons for version in versions if version.number == job.version)

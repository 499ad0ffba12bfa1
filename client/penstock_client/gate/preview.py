"""What a steward sees of a request before saying yes or no. Reads no row."""

from __future__ import annotations

from penstock.base.documents import Json
from penstock.base.errors import Refused
from penstock.mechanisms.joint.plan import JointPlan
from penstock.mechanisms.protocol import settings_to_dict
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.events import to_dict
from penstock.wire.messages import explain
from penstock.wire.signatures import fingerprint
from penstock.wire.signed import SignedStudy
from penstock_client.gate.admission import SiteFacts, consider
from penstock_client.gate.jobs import SILENT, Job
from penstock_client.ledger.budget import measure_left, measure_spent
from penstock_client.site.signers import Trust

RECALL = "Released data cannot be recalled; a person's withdrawal applies to later releases only."


def describe_request(
    job: Job, signed: SignedStudy, progress: tuple[int, int], trust: Trust, note: str
) -> Json:
    """One line of `site requests`; ``signer_label`` is empty where trust was taken back.

    Args:
        note: how its run ended, where that is known.
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
        **describe_request(job, signed, (0, 0), facts.trust, note),
        "columns": [c.name for c in study.schema.columns],
        "estimands": [f"{e.name}: {e.model} {e.formula}" for e in study.estimands],
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
    events, delta = admission.charge.events, study.privacy.delta
    cost = epsilon(events, delta)
    if cost == float("inf"):
        shown["warning"] = "This release has NO formal guarantee and ends the data set's budget."
        return shown
    after = (*lineage.events(), *events)
    if isinstance(admission.plan, JointPlan):
        shown |= _describe_joint(admission.plan, facts)
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


def _describe_joint(planned: JointPlan, facts: SiteFacts) -> Json:
    """What a release of many sites promises, against whom, in a steward's words."""
    group = planned.consortium
    others = [site for site in group.sites if site != facts.name]
    ask = f"ε = {planned.epsilon:.3g}"
    promised = f"against the coordinator and whoever reads the release: {ask}"
    if group.colluders:
        promised += (
            f"; the same if up to {group.colluders} of the other sites tell it all they know"
        )
    return {
        "guarantee": "formal (distributed)",
        "together_with": others,
        "promise": f"{promised}. It rests on at least {group.honest} sites that add their noise.",
        "alone_epsilon": planned.epsilon_alone,
        "rounds": planned.rounds,
    }


def _count_frame(job: Job, facts: SiteFacts) -> int:
    """The public n of the version that was asked for."""
    versions = facts.state.lineages[job.lineage].versions
    return next(version.persons for version in versions if version.number == job.version)

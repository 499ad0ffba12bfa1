"""The sites that delivered, and what each person there has lost of privacy."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.base.documents import Json
from penstock.mechanisms.joint.plan import JointPlan, move_at_sites
from penstock.privacy.accounting.accountant import epsilon
from penstock.telling import phrases
from penstock_server.analysis.attendees import Attendees
from penstock_server.report.inputs import ReportInputs, SiteInput, SiteRelease
from penstock_server.report.section import Section, write_epsilon


def _write(inputs: ReportInputs, report: Json) -> Json:
    return {
        "sites": [_release(s, s.release) for s in inputs.sites if s.release],
        "composed": _composed(inputs.study.max_sites_per_person, inputs.delivered)
        if inputs.joint is None
        else _compose_jointly(inputs.study.max_sites_per_person, inputs.joint.plan),
    }


def _release(site: SiteInput, release: SiteRelease) -> Json:
    whose = site.summary(Attendees)
    return {
        "site": site.name,
        "state": site.state,
        "n_persons": release.n_persons,
        "rows": release.rows,
        "persons": None if whose is None else whose.persons,
        "copies": release.copies,
        "guarantee": release.guarantee,
        "mechanism": release.mechanism,
        "epsilon_autodp": write_epsilon(release.epsilon_autodp),
        "epsilon_pld": write_epsilon(release.epsilon_pld),
        "epsilon_replace_one": write_epsilon(release.epsilon_replace_one),
        "delta": release.delta,
        "relation": release.relation,
        "formal": release.formal,
        "insecure_seed": release.insecure_seed,
        "released_at": release.released_at,
        "gate_fingerprint": release.gate_fingerprint,
        "ledger_seq": release.ledger_seq,
    }


def _composed(sites: int, delivered: Sequence[SiteInput]) -> Json | None:
    """What one person who is in ``sites`` sites may lose: the largest ε and δ, added up.

    Basic composition (Dwork et al. 2006), an upper bound. With one site per person it is the
    largest ε (parallel composition).
    """
    releases = [s.release for s in delivered if s.release is not None]
    if not releases:
        return None
    epsilons = sorted((r.epsilon_autodp for r in releases), reverse=True)
    deltas = sorted((r.delta for r in releases), reverse=True)
    count = min(sites, len(releases))
    return {
        "sites_per_person": count,
        "epsilon": write_epsilon(sum(epsilons[:count])),
        "delta": min(1.0, sum(deltas[:count])),
    }


def _compose_jointly(sites: int, plan: JointPlan) -> Json:
    """The same in one release of all sites
    (:func:`penstock.mechanisms.joint.plan.move_at_sites`)."""
    count = min(sites, len(plan.consortium.sites))
    delta = plan.asked.privacy.delta
    return {
        "sites_per_person": count,
        "epsilon": write_epsilon(
            epsilon(move_at_sites(plan.events, count, plan.consortium), delta)
        ),
        "delta": delta,
    }


def _present(report: Json) -> Json:
    joint = report["joint"]
    return {
        "relations": sorted({site["relation"] for site in report["sites"]}),
        "in_sums": {}
        if joint is None
        else {part["site"]: tell_kept(part["missed"], joint["rounds"]) for part in joint["parts"]},
    }


def tell_kept(missed: Sequence[int], rounds: int) -> str:
    """In which sums a site's part is: "all 10 rounds", "rounds 1 to 4, of 10"."""
    if not missed:
        return f"all {rounds} rounds"
    kept = [number for number in range(1, rounds + 1) if number not in missed]
    return f"{phrases.rounds_text(kept)}, of {rounds}" if kept else f"none of {rounds} rounds"


SECTION = Section("sites", _write, _present)

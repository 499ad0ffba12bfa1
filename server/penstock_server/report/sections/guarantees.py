"""One release of all sites: what it was made of, and what is promised of it, against whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.base.documents import Json
from penstock.base.text import count_text
from penstock.mechanisms.joint.consortium import LOCAL, Consortium
from penstock.mechanisms.joint.plan import find_against, list_alone, move_at_sites, move_further
from penstock.privacy.accounting.accountant import epsilon, epsilon_pld
from penstock.privacy.events import Event
from penstock_server.report.inputs import JointRelease, ReportInputs, SiteInput
from penstock_server.report.section import Section, Sheet, write_epsilon


def _write(inputs: ReportInputs, report: Json) -> Json:
    if inputs.joint is None:
        return {"joint": None, "guarantees": None}
    return {
        "joint": _tell_release(inputs.joint, inputs.sites),
        "guarantees": _tell_guarantees(
            inputs.joint,
            inputs.study.max_sites_per_person,
            formal=all(s.release.formal for s in inputs.delivered if s.release is not None),
        ),
    }


def _tell_release(joint: JointRelease, sites: Sequence[SiteInput]) -> Json:
    """What it was made of: facts of its sums, and each site's part."""
    plan, group = joint.plan, joint.plan.consortium
    persons, losses = dict(zip(group.sites, group.persons, strict=True)), _count_losses(joint)
    return {
        "sites": len(group.sites),
        "persons": group.total,
        "dropouts": group.dropouts,
        "colluders": group.colluders,
        "honest": group.honest,
        "swell": group.swell,
        "rounds": plan.rounds,
        "numbers": joint.numbers,
        "seed": joint.seed,
        "release_sha256": joint.digest,
        "parts": [
            {
                "site": site.name,
                "state": site.state,
                "n_persons": persons[site.name],
                "signed": site.release is not None,
                **losses,
                "epsilon_alone": write_epsilon(plan.epsilon_alone),
                "delta": plan.asked.privacy.delta,
                "missed": joint.list_missed(site.name),
            }
            for site in sites
        ],
    }


def _count_losses(joint: JointRelease) -> Json:
    """What every site's ledger charges its persons, by both accountants."""
    counted = _count(joint.plan.events, joint.plan.asked.privacy.delta)
    return {
        "epsilon_autodp": counted["epsilon_autodp"],
        "epsilon_pld": counted["epsilon_pld"],
        "epsilon_replace_one": counted["epsilon_replace_one"],
    }


def _tell_guarantees(joint: JointRelease, sites_per_person: int, *, formal: bool) -> Json:
    plan, group = joint.plan, joint.plan.consortium
    delta, count = plan.asked.privacy.delta, min(sites_per_person, len(group.sites))
    local = group.noise == LOCAL
    alone = plan.events if local else list_alone(plan.events)
    against: list[Json] = []

    def promise(whom: str, who: str, events: Sequence[Event], *, of_sums: bool = True) -> None:
        # Who knows all that the others know knows what the person's rows there are, too.
        several = count if of_sums and count > 1 else None
        against.append(
            {
                "whom": whom,
                "who": who,
                "one": _count(events, delta),
                "several": None
                if several is None
                else _count(move_at_sites(events, several, group), delta),
            }
        )

    promise("public", "whoever reads this report, or pulls its files", plan.events)
    promise("coordinator", "the coordinator, which learns the sums and nothing else", plan.events)
    if group.colluders and not local:
        some = f"up to {group.colluders} of them" if group.colluders > 1 else "also"
        promise("coalition", f"another site, {some} together with the coordinator", plan.events)
    elif not local and group.honest > 1:
        promise("site", "another site by itself", find_against(plan.events, 1))
    own = "its own noise is all that counts" if local else "the site's own noise"
    beyond = f"all other sites and the coordinator together: {own}"
    promise("others", beyond, alone, of_sums=False)
    return {
        "class": group.guarantee,
        "formal": formal,
        "delta": delta,
        "sites_per_person": count,
        "promises": _promise_in_words(group),
        "against": against,
    }


def _count(events: Sequence[Event], delta: float) -> Json:
    """ε of a charge by both accountants under both relations."""
    return {
        "epsilon_autodp": write_epsilon(epsilon(events, delta)),
        "epsilon_pld": write_epsilon(epsilon_pld(events, delta)),
        "epsilon_replace_one_autodp": write_epsilon(epsilon(move_further(events, 2), delta)),
        "epsilon_replace_one": write_epsilon(epsilon_pld(events, delta, relation="replace-one")),
    }


def _promise_in_words(group: Consortium) -> list[str]:
    sites = len(group.sites)
    if group.noise == LOCAL:
        return [
            "Each site adds the whole noise to its own part before anybody sees it, so that what a "
            "person there loses does not depend on what other sites do. Masks hide the part "
            "besides, and no ε rests on them. The price is noise: a sum has that of all "
            f"{sites} sites."
        ]
    lost, told = group.dropouts, group.colluders
    bound = f"no more than {count_text(lost, 'site')} may drop out of a round"
    told_by = f"no more than {count_text(told, 'site')} may tell"
    return [
        "What a site adds to a sum leaves it under masks that cancel only in the sum of all, and "
        f"what hides a person there is the noise of {group.honest} of the {sites} sites together: "
        "one site's own would hide less.",
        f"So these ε rest on two bounds and on ciphers: {bound}, {told_by} the coordinator what is "
        "known there, and nobody may break what the masks are made with; where that fails, a "
        "site's own noise still gives what the last line says.",
    ]


# -- files -----------------------------------------------------------------------------------------


_ACCOUNTED = (
    ("epsilon_autodp", "zero-out", "autodp"),
    ("epsilon_pld", "zero-out", "pld"),
    ("epsilon_replace_one_autodp", "replace-one", "autodp"),
    ("epsilon_replace_one", "replace-one", "pld"),
)
GUARANTEES = {
    "against": ("categorical", "public, coordinator, coalition, site or others"),
    "who": ("categorical", "the same in words"),
    "sites_per_person": ("integer", "at how many sites the person has rows"),
    "relation": ("categorical", "zero-out (with public n) or replace-one; compare like with like"),
    "accountant": ("categorical", "autodp, which ledgers charge by, or pld, which is tighter"),
    "epsilon": ("continuous", "an upper bound of ε at this δ"),
    "delta": ("continuous", "δ"),
}
PARTS = {
    "site": ("categorical", "site"),
    "state": ("categorical", "of its part at the end"),
    "n_persons": ("integer", "persons in its declared frame: public n"),
    "signed": ("categorical", "yes: it signed what it was charged; no: told from the study's plan"),
    "epsilon_autodp": ("continuous", "ε that its ledger is charged, zero-out with public n"),
    "epsilon_pld": ("continuous", "the same by privacy loss distributions"),
    "epsilon_replace_one": ("continuous", "the same under replace-one"),
    "epsilon_alone": ("continuous", "ε if all other sites collude, by autodp, zero-out"),
    "delta": ("continuous", "δ of all of them"),
    "rounds": ("integer", "sums that there are"),
    "missed": ("integer", "sums that lack its part"),
    "first_missed": ("integer", "the first round that lacks it, from 1; empty: none does"),
}


def _tabulate(report: Json) -> list[Sheet]:
    if report["joint"] is None:
        return []
    promised = "a row for each that a guarantee is against, by relation and accountant"
    parts = "a row for each site of the release"
    return [
        Sheet("guarantees.csv", promised, GUARANTEES, list(_list_guarantees(report["guarantees"]))),
        Sheet("parts.csv", parts, PARTS, list(_list_parts(report["joint"]))),
    ]


def _list_guarantees(told: Json) -> Iterator[tuple[str | int | float | None, ...]]:
    for line in told["against"]:
        for key, sites in (("one", 1), ("several", told["sites_per_person"])):
            for name, relation, accountant in _ACCOUNTED if line[key] else ():
                value = _read_epsilon(line[key][name])
                yield (line["whom"], line["who"], sites, relation, accountant, value, told["delta"])


def _list_parts(joint: Json) -> Iterator[tuple[str | int | float | None, ...]]:
    names = ("epsilon_autodp", "epsilon_pld", "epsilon_replace_one", "epsilon_alone")
    for part in joint["parts"]:
        missed = part["missed"]
        yield (
            part["site"],
            part["state"],
            part["n_persons"],
            "yes" if part["signed"] else "no",
            *(_read_epsilon(part[name]) for name in names),
            part["delta"],
            joint["rounds"],
            len(missed),
            missed[0] if missed else None,
        )


def _read_epsilon(value: float | str) -> float:
    """Of a report, in which infinity is a word."""
    return float(value)


SECTION = Section(
    "guarantees",
    _write,
    absent={"joint": None, "guarantees": None},
    tabulate=_tabulate,
)

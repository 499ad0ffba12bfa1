"""What a reader must know beside the answer, in plain words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from penstock.base.documents import Json
from penstock.base.text import count_text
from penstock.inference import overlap
from penstock.inference.doubts import mark_doubt
from penstock.inference.influence import FLAG_RESIDUAL
from penstock.inference.overlap import Overlaps
from penstock.inference.slopes import Mark
from penstock.mechanisms.joint.consortium import ALL_SITES
from penstock.mechanisms.registry import MECHANISMS
from penstock.study.study import Study
from penstock.telling import phrases
from penstock_server.analysis.lost_parts import find_spread
from penstock_server.analysis.ranges import Ranges, list_odd
from penstock_server.mechanisms.registry import kind_of
from penstock_server.report.inputs import JointRelease, ReportInputs, SiteInput
from penstock_server.report.section import Section


def _write(inputs: ReportInputs, report: Json) -> Json:
    return {"warnings": list_warnings(inputs, report["estimands"])}


def list_warnings(inputs: ReportInputs, estimands: Sequence[Json]) -> list[Json]:
    """What a reader must know beside the answer, in plain words, the gravest first."""
    found: list[Json] = []
    delivered = inputs.delivered

    def warn(code: str, severity: str, text: str, sites: Sequence[str] = ()) -> None:
        # One release of all sites is no site's.
        named = [site for site in sites if site != ALL_SITES]
        found.append({"code": code, "severity": severity, "text": text, "sites": named})

    seeded = [s.name for s in delivered if s.release and s.release.insecure_seed]
    if seeded:
        warn(
            "insecure-seed",
            "danger",
            "Not private: the noise came from a test seed, so that it can be taken away again. "
            "For simulated data only.",
            seeded,
        )
    empirical = [
        s.name
        for s in delivered
        if s.release
        and (s.release.guarantee == "empirical" or math.isinf(s.release.epsilon_autodp))
    ]
    if empirical:
        warn(
            "empirical",
            "danger",
            "No formal guarantee: nothing proven bounds what these releases tell of a person "
            "(ε = ∞).",
            empirical,
        )
    if len(delivered) < inputs.study.quorum:
        asked = count_text(inputs.study.quorum, "site")
        came = f"{len(delivered)} delivered" if delivered else "none delivered"
        text = f"Too few sites: {came}, and the study asked for at least {asked} (its quorum)."
        warn("quorum", "caution", text)
    for lost, text in _list_lost(inputs.joint):
        warn("lost-site", "caution", text, lost)
    if inputs.joint is not None and _lacks_noise(inputs.study):
        warn("no-refits", "caution", _NO_REFITS)
    if delivered:
        for code, text in kind_of(inputs.study).list_warnings():
            warn(code, "caution", text)
    for mark, (names, sites) in _marked(estimands, _mark_planted).items():
        warn("not-held", "caution", _MARKED[mark].format(", ".join(names)), sites)
    for mark, (names, sites) in _marked(estimands, _mark_doubted).items():
        warn("few-persons", "caution", _DOUBTED[mark].format(", ".join(names)), sites)
    narrow = [e for e in estimands if e["robust"] is not None and e["robust"]["warned"]]
    if narrow:
        warn("robust", "caution", _NARROW.format(", ".join(e["name"] for e in narrow)))
    for flagged, names in _flagged(estimands).items():
        warn(
            "influence",
            "caution",
            f"{', '.join(names)}: a site's answer lies far from what the others say together, by "
            f"more than {FLAG_RESIDUAL:g} standard errors. It is in the pooled answer all "
            "the same: find out why before you rely on that.",
            flagged,
        )
    ranges = {s.name: seen for s in inputs.measured if (seen := s.summary(Ranges)) is not None}
    for column, odd in list_odd(ranges).items():
        medians = [f"{ranges[s].columns[column][1]:.4g} at {s}" for s in odd]
        elsewhere = [r.columns[column][1] for s, r in ranges.items() if s not in odd]
        if elsewhere:
            medians.append(f"{min(elsewhere):.4g} to {max(elsewhere):.4g} elsewhere")
        warn(
            "odd-column",
            "caution",
            f"{column} is in the middle {', '.join(medians)}. Ask whether every site has it in the "
            "same unit; sites that are really so different are no trouble.",
            odd,
        )
    for name, shares in _overlapping(inputs.measured).items():
        warn(
            "collinear",
            "caution",
            f"{name}: what it is adjusted for explains up to {max(shares.values()):.0%} of the "
            "asked column in the tables, and more of it among the persons: noise weakens what goes "
            "together. Its intervals may be too narrow. Adjust for fewer columns that say the "
            "same.",
            [*shares],
        )
    failed: dict[str, list[str]] = {}
    for estimand in estimands:
        for site in estimand["sites"]:
            if site["problem"] is not None:
                failed.setdefault(site["site"], []).append(estimand["name"])
    if failed and inputs.joint is not None:
        unanswered = ", ".join(failed[ALL_SITES])
        text = f"The release has no answer to: {unanswered}. The plots below say why."
        warn("no-estimate", "caution", text)
    elif failed:
        listed = "; ".join(f"{site} ({', '.join(names)})" for site, names in failed.items())
        text = f"These sites delivered, but gave no answer to: {listed}. The plots below say why."
        warn("no-estimate", "caution", text, [*failed])
    return found


_NO_REFITS = (
    "Intervals do not include the noise that the privacy mechanism added, since no refits were "
    "asked for: they are too narrow, and with one release of all sites nothing else shows it."
)


def _lacks_noise(study: Study) -> bool:
    """Whether nothing shows the mechanism's own noise: of tables without refits."""
    return not (MECHANISMS.of(study.mechanism).answers or study.mechanism.refits)


def _list_lost(joint: JointRelease | None) -> Iterator[tuple[list[str], str]]:
    """Sites whose parts are not in all sums, those of the same rounds together; and what that
    means."""
    if joint is None:
        return
    lost: dict[tuple[int, ...], list[str]] = {}
    for site in joint.plan.consortium.sites:
        if missed := tuple(joint.list_missed(site)):
            lost.setdefault(missed, []).append(site)
    allowed = _tell_allowed(joint)
    for missed, sites in lost.items():
        whose = f"{', '.join(sites)}: lost in {phrases.rounds_text(missed)} of {joint.plan.rounds}."
        inside = "in the other sums only" if len(missed) < joint.plan.rounds else "in no sum"
        yield (
            sites,
            f"{whose} Rows there are {inside}. Answers are for the sites that are in all of them: "
            "the coordinator scaled the sums that lack others up to all frames, which are public, "
            f"as if persons there were as those at the other sites. {allowed}",
        )


def _tell_allowed(joint: JointRelease) -> str:
    """Which intervals are wider for lost sites: those of which sites are told apart."""
    effects = joint.effects.estimands
    wider = [name for name, each in effects.items() if find_spread(each, joint.lost) is not None]
    if not joint.lost:
        return "No answer is made of what they lack; only how far sites differ is."
    rest = "no interval allows for that"
    if not wider:
        return f"Where they are not, what was asked in these rounds misrepresents them, and {rest}."
    return (
        f"Intervals of {', '.join(wider)} are wider by as much as these sites may differ, if they "
        f"do so as the others among themselves; of anything else {rest}."
    )


_MARKED = {
    Mark.UNSUPPORTED: "Not held by the tables: {}. Effects that were planted into the released "
    "models did not come back, or nearly all of a column lies in one cell of its counts: the "
    "pooled number is no answer.",
    Mark.ATTENUATED: "Attenuated in the tables: {}. Effects that were planted into the released "
    "models came back smaller; the pooled number is corrected by no more of it than refits show.",
    Mark.UNRESOLVED: "Not known to be held by the tables: {}. What came back of effects that were "
    "planted into the released models is too uncertain to say, or none were planted.",
}

_DOUBTED = {
    Mark.UNSUPPORTED: "Hangs on few persons: {}. Half or more of what rows tell of it is of a few "
    "who lie far out. Privacy hides just these, and the answer is off by more than its interval "
    "says about as often as not: the number is no answer. Ask for a spline of a number, or give "
    "it narrower bounds where values beyond make no sense; merge a rare level with another one.",
    Mark.ATTENUATED: "Hangs on few persons in part, or is adjusted for a column that does: {}. The "
    "answer may be off by more than its interval says.",
}

_NARROW = (
    "Standard errors rest on a variance that the tables do not have: {}. Those that do not trust "
    "the model (sandwich) are clearly larger, and no refits were asked for that would have shown "
    "it: intervals are too narrow."
)


def _marked(
    estimands: Sequence[Json], mark_of: Callable[[Json], Mark]
) -> dict[Mark, tuple[list[str], list[str]]]:
    """Estimands of each mark but held, and the sites of which a mark is the same."""
    found: dict[Mark, tuple[list[str], list[str]]] = {}
    marked = [e for e in estimands if e["held"] is not None]
    for mark in (Mark.UNSUPPORTED, Mark.ATTENUATED, Mark.UNRESOLVED):
        own = [e for e in marked if mark_of(e["held"]) is mark]
        if own:
            sites = [s["site"] for e in own for s in e["held"]["sites"] if mark_of(s) is mark]
            found[mark] = ([e["name"] for e in own], list(dict.fromkeys(sites)))
    return found


def _mark_planted(held: Json) -> Mark:
    """The mark, where planted runs have a part in it."""
    doubted = _mark_doubted(held)
    return Mark.HELD if doubted is not Mark.HELD and doubted == held["mark"] else Mark(held["mark"])


def _mark_doubted(held: Json) -> Mark:
    """What it hangs on, where that is told."""
    return Mark.HELD if held["doubt"] is None else mark_doubt(held["doubt"])


def _overlapping(delivered: Sequence[SiteInput]) -> dict[str, dict[str, float]]:
    """Estimands whose column others say much of, with how much at which site."""
    found: dict[str, dict[str, float]] = {}
    for site in delivered:
        overlaps = site.summary(Overlaps)
        for name, share in overlaps.estimands.items() if overlaps else ():
            if share >= overlap.MUCH:
                found.setdefault(name, {})[site.name] = share
    return found


def _flagged(estimands: Sequence[Json]) -> dict[tuple[str, ...], list[str]]:
    """Sites beyond their leave-one-out limit, and the estimands of which they are."""
    found: dict[tuple[str, ...], list[str]] = {}
    for e in estimands:
        sites = [s["site"] for s in e["sites"] if (s.get("influence") or {}).get("flagged")]
        if sites:
            found.setdefault(tuple(sites), []).append(e["name"])
    return found


SECTION = Section("warnings", _write)

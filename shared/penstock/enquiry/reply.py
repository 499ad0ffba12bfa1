"""The answer to one question: pooled, by site, and what the release holds of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec

from penstock.base.documents import Json
from penstock.enquiry.explanation import Differences, explain, read_differences
from penstock.enquiry.figures import LEVEL, tell_pooled, tell_site
from penstock.enquiry.holdings import Holdings
from penstock.enquiry.shorthand import find_alike, read_question
from penstock.inference import pooling
from penstock.inference.floored import choose_rows
from penstock.inference.headline import pool_sites
from penstock.inference.overlap import find_overlaps
from penstock.inference.posed import pose_copies
from penstock.inference.refits import Measured
from penstock.inference.slopes import Mark, Slope, find_recovery, pool_slopes
from penstock.inference.tails import doubt_estimates
from penstock.questions.effects import effect_of
from penstock.questions.estimands import Estimand
from penstock.questions.grammar import Product
from penstock.telling import phrases
from penstock.telling.axis import Scale, decimals_for
from penstock.telling.forest import ForestPlot, read_plot, read_row, read_summary
from penstock.telling.marks import (
    COMPETING,
    UNPLANTED,
    is_answer,
    join_held,
    tell_doubts,
    tell_overlaps,
    tell_recovered,
    tell_untried,
)
from penstock.telling.scales import LINKS, LOG, Link

_LOST = (Mark.UNSUPPORTED, Mark.ATTENUATED)
_NO_MODEL = (
    "Not held: the model behind these tables has {} only where the study names them. An estimate "
    "near none is not evidence of none. Declare it in a study's estimands or plant it."
)
_NO_NOISE = " Without refits the interval lacks the mechanism's own noise, and is too narrow."


def answer_questions(
    holdings: Holdings,
    questions: Sequence[str],
    *,
    moderators: Sequence[str] = (),
    among: Mapping[str, Sequence[str]] | None = None,
) -> list[Json]:
    """Every coefficient that the questions name; all of the study's own where there is none.

    Args:
        moderators: numbers of sites that may explain how their answers differ, as questions that
            compare nothing: ``mean(age)``.
        among: groups of sites, by name, that are pooled by themselves and compared; a site may be
            in none.

    Raises:
        InvalidInput: a question is none, or the release has no such column or site; there are not
            two sites more than coefficients of moderators, or groups
            (:mod:`penstock.enquiry.explanation`).
    """
    study, between = holdings.study, read_differences(holdings, moderators, among or {})
    posed = [(text, e) for text in questions for e in read_question(text, study)]
    if not questions:
        posed = [(own.name, own) for own in study.estimands]
    return [answer(holdings, estimand, text, between) for text, estimand in posed]


def answer(holdings: Holdings, asked: Estimand, question: str, between: Differences) -> Json:
    """One estimand: what sites say together and by themselves, what explains how they differ, and
    what the release holds."""
    study, link = holdings.study, LINKS[asked.regression.scale]
    declared = asked in study.estimands
    found = holdings.measure(asked)
    good = {
        name: one
        for name, one in found.items()
        if one.problem is None and pooling.poolable(one.estimate, one.variance)
    }
    further = asked.regression.compares and find_alike(asked, study.estimands) is None
    results = pool_sites(
        list(good.values()),
        total=asked.regression.total,
        joint=study.aggregation.joint,
        level=LEVEL,
        further=further,
    )
    head = results.get("random")
    weights = {} if head is None else dict(zip(good, head.weights, strict=True))
    held = _find_held(holdings, asked, head, weights)
    measure = phrases.measure(asked, study.schema)
    told: Json = {
        "question": question,
        "declared": asked.name if declared else None,
        "model": asked.model,
        "formula": asked.formula,
        "axis_label": phrases.axis_label(asked, study.schema),
        "adjusted": phrases.adjusted_text(asked, study.schema),
        "measure": measure.name,
        "short": measure.short,
        "sides": [measure.lower, measure.higher] if asked.regression.compares else [],
        "scale": link.name,
        "per": asked.per,
        "level": LEVEL,
        "k": len(good),
        "joint": study.aggregation.joint,
        "mark": None if held is None else held["mark"],
        "held": held,
        "refits": study.mechanism.refits > 0,
        "random": None if head is None else tell_pooled(head, link),
        "others": [tell_pooled(p, link) for name, p in results.items() if name != "random"],
        "sites": [tell_site(n, e, weights.get(n), link) for n, e in found.items()],
    }
    explained = explain(told, between, good, further=further)
    return told | explained | {"sentence": _make_sentence(told, head, link)}


def _find_held(
    holdings: Holdings,
    asked: Estimand,
    head: pooling.Pooled | None,
    weights: Mapping[str, float],
) -> Json | None:
    """What the release holds of it: as the report says it, or as can be known without; nothing of
    what compares nothing."""
    if asked.regression.untried:
        return tell_untried(list(weights), COMPETING)
    declared = find_alike(asked, holdings.study.estimands)
    if declared is not None:
        own = (e["held"] for e in holdings.report["estimands"] if e["name"] == declared.name)
        return next(own, None)
    if not asked.regression.compares:
        return None
    planted = {one["effect"]: one for one in holdings.report["effects"]}
    known: Json | None = planted.get(effect_of(asked).text)
    if known is not None:
        return known
    lost = [kind for kind in holdings.report["holds"] if kind["held"] == "no"]
    joined = [r for r in (asked.target,) if isinstance(r, Product)]
    if lost and (joined or asked.where):
        what = "products" if joined else "effects in subgroups"
        return {"mark": str(Mark.UNSUPPORTED), "text": _NO_MODEL.format(what)}
    doubted = _find_doubts(holdings, asked, weights)
    recovered = find_recovered(weights, holdings.look(asked))
    return judge_untried(doubted, recovered) or {"mark": str(Mark.UNRESOLVED), "text": UNPLANTED}


def judge_untried(
    doubted: Json | None, recovered: tuple[Mapping[str, Slope], Slope] | None
) -> Json | None:
    """What was found against an undeclared regression: by what it rests on, and by refits; None
    where nothing was."""
    lacking = None
    if recovered is not None and recovered[1].mark in _LOST:
        lacking = tell_recovered(*recovered)
    found = join_held(lacking, doubted)
    return found if found is not None and found["mark"] in _LOST else None


def find_recovered(
    weights: Mapping[str, float], found: Mapping[str, Measured]
) -> tuple[dict[str, Slope], Slope] | None:
    """What refits show of a pooled estimate, at each site and together; nothing without refits.

    That little came back is a finding, that all did is none: what the tables' model lacks is
    missing from copies and refits alike.

    Args:
        weights: of the sites that are pooled. Together their slopes count by these times the
            square of the estimate: the slope through 0 of what came back on what is there. So
            little effects decide nothing, and such as cancel each other still tell.
    """
    sites, shares = dict[str, Slope](), list[float]()
    for site, weight in weights.items():
        # Not what is pooled, which was corrected by a part of it already.
        own, shown = found[site].plain.estimate, found[site].shown
        if shown is not None and own != 0:
            sites[site] = find_recovery(own, shown.shift, shown.shift_error, found[site].refits)
            shares.append(weight * own**2)
    return (sites, pool_slopes(list(sites.values()), shares)) if sites else None


def _find_doubts(holdings: Holdings, asked: Estimand, weights: Mapping[str, float]) -> Json | None:
    """How little it rests on: few rows far out, which nobody knows where statsmodels is not
    installed; or what little of a column others do not say already."""
    schema, doubts, overlaps = holdings.study.schema, dict[str, float](), dict[str, float]()
    choose = partial(choose_rows, schema, holdings.read_courses)
    fits = find_spec("statsmodels") is not None
    for site, own in holdings.sites.items():
        posed = pose_copies(schema, [asked], own.copies, choose)
        for first in posed.get(asked.name, ())[:1]:
            for r2 in find_overlaps(schema, [first.estimand], first.rows).estimands.values():
                overlaps[site] = r2
        for doubt in doubt_estimates(schema, posed).estimands.values() if fits else ():
            doubts[site] = doubt
    return join_held(tell_overlaps(overlaps, weights), tell_doubts(doubts, weights))


def _make_sentence(told: Json, head: pooling.Pooled | None, link: Link) -> str:
    """The answer in words; no number where the release holds none."""
    held = "" if told["held"] is None or told["mark"] == Mark.HELD else f" {told['held']['text']}"
    if head is None:
        return f"{told['axis_label']}: no site has an estimate."
    if not is_answer(told["held"]):
        return f"{told['axis_label']}: no answer from these tables.{held}"
    half = (link.show(head.ci_high) - link.show(head.ci_low)) / 2
    scale = Scale(0.0, 1.0, link, decimals_for(half, least=2 if link is LOG else 0))
    interval = scale.interval_text(head.ci_low, head.ci_high)
    noise = "" if told["refits"] else _NO_NOISE
    whose = "one release of all sites" if told["joint"] else f"sites: {told['k']}"
    return (
        f"{told['axis_label']}: {scale.text(head.estimate)} "
        f"({100 * LEVEL:g}% interval {interval}; {whose}).{held}{noise}"
    )


def plot_answer(told: Json) -> ForestPlot:
    """The forest plot of an answer."""
    rows, head, answered = [], told["random"], is_answer(told["held"])
    for site in told["sites"]:
        size = "–" if site.get("n") is None else f"{site['n']:,}"
        rows.append(read_row(site, note=size))
    summaries = []
    if head is not None and head["k"] > 1:
        if head["method"] == "total":
            summaries = [read_summary("All sites", head, "total")]
        else:
            summaries = [read_summary("Random effects", head, "random", answered=answered)]
    groups = [] if told["among"] is None else told["among"]["groups"]
    known = [group for group in groups if group["problem"] is None]
    summaries += [read_summary(g["group"], g, "random", answered=answered) for g in known]
    return read_plot(told, rows, summaries, note="Synthetic n")

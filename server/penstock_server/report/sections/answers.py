"""What was found: each estimand pooled, by site, and in one sentence.

Headline: REML with the Knapp–Hartung interval floored at 1, which holds where sites' variances
lack the mechanism's noise, and allows for effects that go with weights; beside it the fixed effect
with a warning, DerSimonian–Laird, as the papers have it, Paule–Mandel and the plain mean of sites.
Where refits show that noise, variances have degrees of freedom, and pooling counts with them.
Estimates are on the coefficient scale under ``coefficient`` and on the reader's scale (a ratio
where ``log``; ``scale`` names all of them) under ``value``. Counts are added up, and nothing else
is made of them. Where all sites made one release nothing is pooled: its estimate is the headline,
and how far sites differ is not estimated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from penstock.base.documents import Json
from penstock.base.text import count_text
from penstock.inference import pooling
from penstock.inference.combine import SiteEstimate
from penstock.inference.doubts import Doubts
from penstock.inference.headline import pool_sites
from penstock.inference.influence import Influence
from penstock.inference.robust import Checked
from penstock.inference.slopes import Held, Mark
from penstock.mechanisms.registry import MECHANISMS
from penstock.questions.estimands import Estimand
from penstock.telling import phrases
from penstock.telling.axis import RATIO_DECIMALS, Scale, decimals_for
from penstock.telling.marks import (
    COMPETING,
    PATHS,
    UNPLANTED,
    is_answer,
    join_held,
    tell_doubts,
    tell_held,
    tell_untried,
)
from penstock.telling.scales import LINKS, LOG, PLAIN, Link
from penstock_server.analysis.leverage import weigh_sites
from penstock_server.analysis.lost_parts import widen_lost
from penstock_server.mechanisms.registry import kind_of
from penstock_server.report.inputs import JointRelease, ReportInputs, SiteInput
from penstock_server.report.sandwich import tell_robust
from penstock_server.report.section import Section

LEVEL = 0.95
BESIDE = ("dl", "pm", "unweighted")
"""Of :func:`penstock.inference.headline.pool_sites`, beside the headline and the fixed effect."""

_NAMED = 3
"""Lost sites that a sentence names, and does not only count."""


def _write(inputs: ReportInputs, report: Json) -> Json:
    return {"estimands": [_estimand(e, inputs) for e in inputs.study.estimands]}


def _estimand(estimand: Estimand, inputs: ReportInputs) -> Json:
    """One estimand: what sites found, and what they find together."""
    schema = inputs.study.schema
    model, measure = estimand.regression, phrases.measure(estimand, schema)
    link = LINKS[model.scale]
    found = {s.name: _find_estimate(s, estimand.name, inputs.joint) for s in inputs.measured}
    good = {
        name: e
        for name, e in found.items()
        if e is not None and e.problem is None and pooling.poolable(e.estimate, e.variance)
    }
    joint = inputs.joint is not None
    results = pool_sites(list(good.values()), total=model.total, joint=joint, level=LEVEL)
    head = results.get("random")
    truth = (inputs.truth or {}).get(estimand.name)
    rows = _site_rows(found, good, results, link)
    counts = [e.n for e in good.values() if e.n is not None]
    total = sum(counts) if len(counts) == len(good) else None
    weights = {} if head is None else dict(zip(good, head.weights, strict=True))
    held = _held(estimand, inputs, weights)
    return {
        "name": estimand.name,
        "model": estimand.model,
        "fitted": kind_of(inputs.study).name_fit(estimand, model.title),
        "outcome": phrases.outcome_text(estimand, schema),
        "contrast": phrases.contrast(estimand, schema),
        "adjusted": phrases.adjusted_text(estimand, schema),
        "axis_label": phrases.axis_label(estimand, schema),
        "measure": measure.name,
        "short": measure.short,
        "log": link is LOG,
        "scale": link.name,
        # A mean's 0 is no null value: nothing lies on either side of it.
        "sides": [measure.lower, measure.higher] if model.contrasts else [],
        "per": estimand.per,
        "level": LEVEL,
        "n": total,
        "k": len(good),
        "sentence": _mark_sentence(
            _sentence(estimand, inputs, head, link, _size(total, good, inputs.measured), len(good)),
            _subject(estimand, inputs, "for"),
            held,
            "answers" if MECHANISMS.of(inputs.study.mechanism).answers else "tables",
        ),
        "held": held,
        "robust": _robust(estimand, inputs, weights),
        "sites": rows,
        "random": None if head is None else tell_pooled(head, link),
        "fixed": tell_pooled(results["fixed"], link) if "fixed" in results else None,
        "sensitivity": [tell_pooled(results[m], link) for m in BESIDE if m in results],
        "heterogeneity": (
            None if head is None or head.k == 1 or model.total else tell_heterogeneity(head)
        ),
        "truth": None if truth is None else _truth(truth, head, link),
    }


def _find_estimate(site: SiteInput, name: str, joint: JointRelease | None) -> SiteEstimate | None:
    """Its estimate, which allows for sites that were lost from one release of all of them."""
    found = site.estimates.get(name)
    if found is None or joint is None or found.total:
        return found
    group = joint.plan.consortium
    persons = dict(zip(group.sites, group.persons, strict=True))
    return widen_lost(found, joint.effects.estimands.get(name, ()), persons, joint.lost)


def _held(estimand: Estimand, inputs: ReportInputs, weights: Mapping[str, float]) -> Json | None:
    """What the tables or answers hold of it, each site's part as large as in what is pooled."""
    slopes = {
        site.name: found.estimands[estimand.name]
        for site in inputs.measured
        if (found := site.summary(Held)) is not None and estimand.name in found.estimands
    }
    doubts = {
        site.name: told.estimands[estimand.name]
        for site in inputs.measured
        if (told := site.summary(Doubts)) is not None and estimand.name in told.estimands
    }
    planted, doubted = tell_held(slopes, weights), tell_doubts(doubts, weights)
    if MECHANISMS.of(inputs.study.mechanism).answers:
        return doubted
    if planted is None and weights and estimand.regression.untried:
        return tell_untried(list(weights), COMPETING)
    why = None if planted is not None or not weights else _find_untried(estimand, inputs)
    if why is None:
        return join_held(planted, doubted)
    graver = doubted is not None and doubted["mark"] != Mark.HELD
    return doubted if graver else tell_untried(list(weights), why)


def _find_untried(estimand: Estimand, inputs: ReportInputs) -> str | None:
    """Why no run tried it: it is a hazard by a column that changes until the end, in tables of
    paths; or sites planted effects, and none like it."""
    schema, model = inputs.study.schema, estimand.regression
    changes = any(schema[name].varies for name in estimand.target.columns)
    follows = MECHANISMS.of(inputs.study.mechanism).takes_time and schema.max_rows_per_person > 1
    if follows and model.needs_event and model.compares and changes:
        return PATHS
    planted = any(site.summary(Held) is not None for site in inputs.measured)
    return UNPLANTED if planted and model.contrasts else None


def _robust(estimand: Estimand, inputs: ReportInputs, weights: Mapping[str, float]) -> Json | None:
    """What variances that trust no model say of its standard errors."""
    found = {
        site.name: checked.estimands[estimand.name]
        for site in inputs.measured
        if (checked := site.summary(Checked)) is not None and estimand.name in checked.estimands
    }
    refitted = inputs.study.mechanism.refits > 0
    return tell_robust(found, weights, title=estimand.regression.title, refitted=refitted)


def _mark_sentence(sentence: str, subject: str, held: Json | None, source: str) -> str:
    """The answer, and what qualifies it; where its source holds nothing of it, no number is one."""
    if held is None or held["mark"] == Mark.HELD:
        return sentence
    if held["mark"] == Mark.UNSUPPORTED:
        return f"No answer from these {source}: {subject}. {held['text']}"
    return f"{sentence} {held['text']}"


def _site_rows(
    found: Mapping[str, SiteEstimate | None],
    good: Mapping[str, SiteEstimate],
    results: Mapping[str, pooling.Pooled],
    link: Link,
) -> list[Json]:
    """One row per site that delivered: its estimate, weight and influence, or its problem."""
    told = [(e.estimate, e.variance, e.df) for e in good.values()]
    moved = weigh_sites(*zip(*told, strict=True)) if "fixed" in results else ()
    effects = dict(zip(good, moved, strict=False))
    positions = {name: i for i, name in enumerate(good)}
    rows = []
    for name, e in found.items():
        row: Json = {
            "site": name,
            "n": None if e is None else e.n,
            "events": None if e is None else e.events,
            "copies": None if e is None else e.copies,
            "copies_used": None if e is None else e.copies_used,
            "problem": None,
        }
        if name in good:
            e = good[name]
            half = pooling.quantile(LEVEL, e.df) * math.sqrt(e.variance)
            i = positions[name]
            row |= {
                "coefficient": tell_interval(e.estimate, e.estimate - half, e.estimate + half),
                "value": show_interval(e.estimate, e.estimate - half, e.estimate + half, link),
                "variance": e.variance,
                "df": e.df if math.isfinite(e.df) else None,
                "within": e.within,
                "between": e.between,
                "mechanism_variance": e.mechanism_variance,
                "correction": e.correction,
                "weight": results["random"].weights[i],
                "weight_fixed": results["fixed"].weights[i] if "fixed" in results else None,
                "influence": _influence(effects.get(name), link),
            }
        elif e is None:
            row["problem"] = "no estimate was made"
        else:
            row["problem"] = e.problem or "the estimate is beyond what can be pooled"
        rows.append(row)
    return rows


def _influence(effect: Influence | None, link: Link) -> Json | None:
    if effect is None:
        return None
    without = effect.without
    return {
        "residual": effect.residual,
        "change": effect.change,
        "flagged": effect.flagged,
        "without": show_interval(without.estimate, without.ci_low, without.ci_high, link),
    }


def tell_pooled(p: pooling.Pooled, link: Link) -> Json:
    prediction = None
    if p.pi_low is not None and p.pi_high is not None:
        prediction = {
            "coefficient": {"low": p.pi_low, "high": p.pi_high},
            "value": {"low": _show(p.pi_low, link), "high": _show(p.pi_high, link)},
        }
    return {
        "method": p.method,
        "test": p.test,
        "k": p.k,
        "df": p.df,
        "coefficient": tell_interval(p.estimate, p.ci_low, p.ci_high),
        "value": show_interval(p.estimate, p.ci_low, p.ci_high, link),
        "se": p.se,
        "p": p.p_value,
        # Of one release of all sites nothing says how far they differ.
        "tau2": None if p.method == "release" else p.tau2,
        "prediction": prediction,
    }


def tell_heterogeneity(p: pooling.Pooled) -> Json:
    return {
        "q": p.q,
        "df": p.q_df,
        "df2": p.q_df2,
        "p": p.q_p,
        "i2": p.i2,
        "h2": p.h2,
        "tau2": p.tau2,
    }


def _truth(truth: float, head: pooling.Pooled | None, link: Link) -> Json:
    covered = None if head is None else head.ci_low <= truth <= head.ci_high
    return {"coefficient": truth, "value": _show(truth, link), "covered": covered}


def _sentence_scale(head: pooling.Pooled, link: Link) -> Scale:
    """Number format that suits a pooled interval."""
    half = (_show(head.ci_high, link) - _show(head.ci_low, link)) / 2
    return Scale(0.0, 1.0, link, decimals_for(half, least=2 if link is LOG else 0))


def _sentence(
    estimand: Estimand,
    inputs: ReportInputs,
    head: pooling.Pooled | None,
    link: Link,
    size: str,
    k: int,
) -> str:
    subject = _subject(estimand, inputs, "for" if link is LOG else "in")
    if head is None:
        plain = _subject(estimand, inputs, "for")
        if inputs.joint is not None:
            return f"No {plain}: the release of all sites has no estimate."
        return f"No pooled {plain}: no site has an estimate."
    scale = _sentence_scale(head, link)
    interval = scale.interval_text(head.ci_low, head.ci_high)
    sites = count_text(k, "site")
    kind = "one site only, nothing was pooled" if k == 1 else f"{sites}, random effects"
    if inputs.joint is not None:
        kind = _kind_jointly(estimand, inputs.joint)
    elif estimand.regression.total:
        kind = f"of the number in the rows of {sites}"
    return (
        f"{subject[0].upper()}{subject[1:]}: "
        f"{scale.text(head.estimate)} "
        f"({100 * LEVEL:g}% interval {interval}; {kind}, {size})."
    )


def _kind_jointly(estimand: Estimand, joint: JointRelease) -> str:
    """What an interval is of, where there is one release: nothing is pooled. Who was lost on the
    way is not among those that are answered for."""
    sites, lost = len(joint.plan.consortium.sites), joint.lost
    few = ", ".join(lost) if len(lost) <= _NAMED else count_text(len(lost), "site")
    if estimand.regression.total:
        alike = f", as if {few}, lost on the way, were as the others" if lost else ""
        return f"of the number in the rows of all {sites} sites together{alike}"
    within = ", compared within sites" if estimand.regression.contrasts else ""
    if lost:
        return f"one release, of the {sites - len(lost)} of {sites} sites without {few}{within}"
    return f"one release of all {sites} sites{within}"


def _size(
    total: int | None, good: Mapping[str, SiteEstimate], delivered: Sequence[SiteInput]
) -> str:
    """How much is behind an estimate: rows by noisy counts; of answers, the frames alone."""
    if total is not None:
        return f"n ≈ {total:,}"
    frames = [s.release.n_persons for s in delivered if s.release is not None and s.name in good]
    return f"frame{'s' if len(frames) > 1 else ''} of {count_text(sum(frames), 'person')}"


def _subject(estimand: Estimand, inputs: ReportInputs, link: str) -> str:
    """What the estimate is: "hazard ratio for death per 10 mmHg of pressure"."""
    schema = inputs.study.schema
    measure = phrases.measure(estimand, schema).name
    what = phrases.contrast(estimand, schema)
    if not estimand.regression.contrasts:
        return f"{measure} {what}"
    joint = " " if what.startswith("per ") else ", "
    return f"{measure} {link} {phrases.outcome_text(estimand, schema)}{joint}{what}"


def tell_interval(estimate: float, low: float, high: float) -> Json:
    return {"estimate": estimate, "low": low, "high": high}


def show_interval(estimate: float, low: float, high: float, link: Link) -> Json:
    return tell_interval(_show(estimate, link), _show(low, link), _show(high, link))


def _show(coefficient: float, link: Link) -> float:
    return link.show(coefficient)


# -- the page ------------------------------------------------------------------------------------


def scale_of(estimand: Json) -> Scale:
    """Number format for values that are on the reader's scale already."""
    least, head = (RATIO_DECIMALS if estimand["log"] else 0), estimand["random"]
    half = 0.0 if head is None else (head["value"]["high"] - head["value"]["low"]) / 2
    return Scale(0.0, 1.0, PLAIN, decimals_for(half, least=least), estimand["log"])


def _present(report: Json) -> Json:
    return {
        "estimands": [
            {"data": e, "scale": scale_of(e), "answered": is_answered(e)}
            for e in report["estimands"]
        ]
    }


def is_answered(estimand: Json) -> bool:
    """Whether its number is an answer: there is one, and the tables can hold it."""
    return estimand["random"] is not None and is_answer(estimand["held"])


SECTION = Section("answers", _write, _present)

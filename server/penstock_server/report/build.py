"""From sites' estimates to the report: one JSON-able dict, described by report.schema.json.

Headline: DerSimonian–Laird with the Knapp–Hartung interval floored at 1, which holds where sites'
variances lack the mechanism's noise; the fixed effect with a warning; REML and Paule–Mandel beside
it. Where refits show that noise, variances have degrees of freedom, and pooling counts with them.
JSON has no infinity: a privacy loss that is infinite is the string "inf".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from penstock.mechanisms import Trajectory
from penstock.questions.estimands import Estimand
from penstock.questions.models import MODELS
from penstock_server.analysis import pooling
from penstock_server.analysis.combine import SiteEstimate
from penstock_server.report import words
from penstock_server.report.axis import Scale, decimals_for, ratio
from penstock_server.report.inputs import ReportInputs, SiteInput, SiteRelease
from penstock_server.report.trajectory import trajectory

__all__ = ["ReportInputs", "SiteInput", "SiteRelease", "build_report", "report_schema"]

FORMAT = "penstock.report"
FORMAT_VERSION = "1.3"
LEVEL = 0.95

Json = dict[str, Any]


def build_report(inputs: ReportInputs) -> Json:
    """The report of a study: everything that the page shows, with all digits.

    Estimates are on the coefficient scale under ``coefficient`` and on the reader's scale (a ratio
    where ``log``) under ``value``. Sites without an estimate keep a ``problem``. NaN never occurs;
    null stands where there is no number.
    """
    study = inputs.study
    delivered = [site for site in inputs.sites if site.release is not None]
    estimands = [_estimand(e, inputs, delivered) for e in study.estimands]
    known = any(math.isfinite(s.df) for site in delivered for s in site.estimates.values())
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "study": _study(inputs, len(delivered)),
        "warnings": _warnings(inputs, delivered, estimands),
        "mechanism": words.mechanism(study),
        "estimands": estimands,
        "trajectory": trajectory(inputs, delivered),
        "sites": [_release(s.name, s.state, s.release) for s in inputs.sites if s.release],
        "composed": _composed(study.max_sites_per_person, delivered),
        "missing": [
            {"site": s.name, "state": s.state, "code": s.code, "remedy": s.remedy}
            for s in inputs.sites
            if s.release is None
        ],
        "limits": words.limits(study, mechanism_variance=known),
    }


def completed(report: Json) -> Json:
    """A kept report of format 1.0, with what later ones added to it; another one as it is."""
    if report["format_version"] != "1.0":
        return report
    estimands = [{**e, "fitted": MODELS.of(e["model"]).title} for e in report["estimands"]]
    added = {"mechanism": [], "trajectory": None, "estimands": estimands}
    return {**report, **added, "format_version": FORMAT_VERSION}


@cache
def report_schema() -> Json:
    """The published JSON Schema of the report (draft 2020-12)."""
    text = resources.files(__package__).joinpath("report.schema.json").read_text(encoding="utf-8")
    schema: Json = json.loads(text)
    return schema


def _study(inputs: ReportInputs, delivered: int) -> Json:
    study = inputs.study
    return {
        "id": inputs.study_id,
        "name": study.name,
        "title": study.title,
        "federation": study.federation,
        "state": inputs.state,
        "created": inputs.created,
        "finished": inputs.finished,
        "wire": study.wire,
        "release": study.release,
        "quorum": study.quorum,
        "sites_invited": len(inputs.sites),
        "sites_delivered": delivered,
        "max_sites_per_person": study.max_sites_per_person,
        "requested": {
            "epsilon": _epsilon(study.privacy.epsilon),
            "delta": study.privacy.delta,
            "guarantee": study.privacy.guarantee,
        },
        "mechanism": study.to_dict()["mechanism"],
    }


def _release(name: str, state: str, release: SiteRelease) -> Json:
    return {
        "site": name,
        "state": state,
        "n_persons": release.n_persons,
        "rows": release.rows,
        "copies": release.copies,
        "guarantee": release.guarantee,
        "mechanism": release.mechanism,
        "epsilon_autodp": _epsilon(release.epsilon_autodp),
        "epsilon_pld": _epsilon(release.epsilon_pld),
        "epsilon_replace_one": _epsilon(release.epsilon_replace_one),
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
        "epsilon": _epsilon(sum(epsilons[:count])),
        "delta": min(1.0, sum(deltas[:count])),
    }


def _estimand(estimand: Estimand, inputs: ReportInputs, delivered: Sequence[SiteInput]) -> Json:
    schema = inputs.study.schema
    model, measure = estimand.regression, words.measure(estimand, schema)
    log = model.ratio
    found = {s.name: s.estimates.get(estimand.name) for s in delivered}
    good = {
        name: e
        for name, e in found.items()
        if e is not None and e.problem is None and pooling.poolable(e.estimate, e.variance)
    }
    results = _pooled(list(good.values()))
    head = results.get("random")
    truth = (inputs.truth or {}).get(estimand.name)
    rows = _site_rows(found, good, results, log)
    counts = [e.n for e in good.values() if e.n is not None]
    total = sum(counts) if len(counts) == len(good) else None
    return {
        "name": estimand.name,
        "model": estimand.model,
        "fitted": words.model_text(estimand, inputs.study.mechanism),
        "outcome": words.outcome_text(estimand, schema),
        "contrast": words.contrast(estimand, schema),
        "adjusted": words.adjusted_text(estimand, schema),
        "axis_label": words.axis_label(estimand, schema),
        "measure": measure.name,
        "short": measure.short,
        "log": log,
        # A mean's 0 is no null value: nothing lies on either side of it.
        "sides": [measure.lower, measure.higher] if model.compares else [],
        "per": estimand.per,
        "level": LEVEL,
        "n": total,
        "k": len(good),
        "sentence": _sentence(
            estimand, inputs, head, log, _size(total, good, delivered), len(good)
        ),
        "sites": rows,
        "random": None if head is None else _result(head, log),
        "fixed": None if head is None else _result(results["fixed"], log),
        "sensitivity": [_result(results[m], log) for m in ("reml", "pm") if m in results],
        "heterogeneity": None if head is None or head.k == 1 else _heterogeneity(head),
        "truth": None if truth is None else _truth(truth, head, log),
    }


def _pooled(sites: Sequence[SiteEstimate]) -> dict[str, pooling.Pooled]:
    if not sites:
        return {}
    y, v, df = ([getattr(s, name) for s in sites] for name in ("estimate", "variance", "df"))
    methods: dict[str, pooling.Method] = {"random": "dl", "fixed": "fixed"}
    if len(sites) > 1:
        methods |= {"reml": "reml", "pm": "pm"}
    return {
        name: pooling.pool(y, v, method=method, level=LEVEL, degrees=df)
        for name, method in methods.items()
    }


def _site_rows(
    found: Mapping[str, SiteEstimate | None],
    good: Mapping[str, SiteEstimate],
    results: Mapping[str, pooling.Pooled],
    log: bool,
) -> list[Json]:
    """One row per site that delivered: its estimate, weight and influence, or its problem."""
    y, v = [e.estimate for e in good.values()], [e.variance for e in good.values()]
    known = [e.df for e in good.values()]
    moved = pooling.influence(y, v, degrees=known) if len(good) > 1 else ()
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
                "coefficient": _interval(e.estimate, e.estimate - half, e.estimate + half),
                "value": _shown(e.estimate, e.estimate - half, e.estimate + half, log),
                "variance": e.variance,
                "df": e.df if math.isfinite(e.df) else None,
                "within": e.within,
                "between": e.between,
                "mechanism_variance": e.mechanism_variance,
                "weight": results["random"].weights[i],
                "weight_fixed": results["fixed"].weights[i],
                "influence": _influence(effects.get(name), log),
            }
        elif e is None:
            row["problem"] = "no estimate was made"
        else:
            row["problem"] = e.problem or "the estimate is beyond what can be pooled"
        rows.append(row)
    return rows


def _influence(effect: pooling.Influence | None, log: bool) -> Json | None:
    if effect is None:
        return None
    without = effect.without
    return {
        "residual": effect.residual,
        "change": effect.change,
        "flagged": effect.flagged,
        "without": _shown(without.estimate, without.ci_low, without.ci_high, log),
    }


def _result(p: pooling.Pooled, log: bool) -> Json:
    prediction = None
    if p.pi_low is not None and p.pi_high is not None:
        prediction = {
            "coefficient": {"low": p.pi_low, "high": p.pi_high},
            "value": {"low": _show(p.pi_low, log), "high": _show(p.pi_high, log)},
        }
    return {
        "method": p.method,
        "test": p.test,
        "k": p.k,
        "df": p.df,
        "coefficient": _interval(p.estimate, p.ci_low, p.ci_high),
        "value": _shown(p.estimate, p.ci_low, p.ci_high, log),
        "se": p.se,
        "p": p.p_value,
        "tau2": p.tau2,
        "prediction": prediction,
    }


def _heterogeneity(p: pooling.Pooled) -> Json:
    return {
        "q": p.q,
        "df": p.q_df,
        "df2": p.q_df2,
        "p": p.q_p,
        "i2": p.i2,
        "h2": p.h2,
        "tau2": p.tau2,
    }


def _truth(truth: float, head: pooling.Pooled | None, log: bool) -> Json:
    covered = None if head is None else head.ci_low <= truth <= head.ci_high
    return {"coefficient": truth, "value": _show(truth, log), "covered": covered}


def scale_of(head: pooling.Pooled, log: bool) -> Scale:
    """Number format that suits a pooled interval."""
    half = (_show(head.ci_high, log) - _show(head.ci_low, log)) / 2
    return Scale(0.0, 1.0, log, decimals_for(half, least=2 if log else 0))


def _sentence(
    estimand: Estimand,
    inputs: ReportInputs,
    head: pooling.Pooled | None,
    log: bool,
    size: str,
    k: int,
) -> str:
    subject = _subject(estimand, inputs, "for" if log else "in")
    if head is None:
        plain = _subject(estimand, inputs, "for")
        return f"No pooled {plain}: no site has an estimate."
    scale = scale_of(head, log)
    interval = scale.interval_text(head.ci_low, head.ci_high)
    sites = words.count_text(k, "site")
    kind = "one site only, nothing was pooled" if k == 1 else f"{sites}, random effects"
    return (
        f"{subject[0].upper()}{subject[1:]}: "
        f"{scale.text(head.estimate)} "
        f"({100 * LEVEL:g}% interval {interval}; {kind}, {size})."
    )


def _size(
    total: int | None, good: Mapping[str, SiteEstimate], delivered: Sequence[SiteInput]
) -> str:
    """How much is behind an estimate: rows by noisy counts; of answers, the frames alone."""
    if total is not None:
        return f"n ≈ {total:,}"
    frames = [s.release.n_persons for s in delivered if s.release is not None and s.name in good]
    return f"frame{'s' if len(frames) > 1 else ''} of {words.count_text(sum(frames), 'person')}"


def _subject(estimand: Estimand, inputs: ReportInputs, link: str) -> str:
    """What the estimate is: "hazard ratio for death per 10 mmHg of pressure"."""
    schema = inputs.study.schema
    measure = words.measure(estimand, schema).name
    what = words.contrast(estimand, schema)
    if not estimand.regression.compares:
        return f"{measure} {what}"
    joint = " " if what.startswith("per ") else ", "
    return f"{measure} {link} {words.outcome_text(estimand, schema)}{joint}{what}"


def _warnings(
    inputs: ReportInputs, delivered: Sequence[SiteInput], estimands: Sequence[Json]
) -> list[Json]:
    """What a reader must know beside the answer, in plain words, the gravest first."""
    found: list[Json] = []

    def warn(code: str, severity: str, text: str, sites: Sequence[str] = ()) -> None:
        found.append({"code": code, "severity": severity, "text": text, "sites": list(sites)})

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
        asked = words.count_text(inputs.study.quorum, "site")
        came = f"{len(delivered)} delivered" if delivered else "none delivered"
        text = f"Too few sites: {came}, and the study asked for at least {asked} (its quorum)."
        warn("quorum", "caution", text)
    if isinstance(inputs.study.mechanism, Trajectory) and delivered:
        warn("model-paths", "caution", words.PATHS_WARNING)
    for flagged, names in _flagged(estimands).items():
        warn(
            "influence",
            "caution",
            f"{', '.join(names)}: a site's answer lies far from what the others say together, by "
            f"more than {pooling.FLAG_RESIDUAL:g} standard errors. It is in the pooled answer all "
            "the same: find out why before you rely on that.",
            flagged,
        )
    failed: dict[str, list[str]] = {}
    for estimand in estimands:
        for site in estimand["sites"]:
            if site["problem"] is not None:
                failed.setdefault(site["site"], []).append(estimand["name"])
    if failed:
        listed = "; ".join(f"{site} ({', '.join(names)})" for site, names in failed.items())
        text = f"These sites delivered, but gave no answer to: {listed}. The plots below say why."
        warn("no-estimate", "caution", text, [*failed])
    return found


def _flagged(estimands: Sequence[Json]) -> dict[tuple[str, ...], list[str]]:
    """Sites beyond their leave-one-out limit, and the estimands of which they are."""
    found: dict[tuple[str, ...], list[str]] = {}
    for e in estimands:
        sites = [s["site"] for s in e["sites"] if (s.get("influence") or {}).get("flagged")]
        if sites:
            found.setdefault(tuple(sites), []).append(e["name"])
    return found


def _interval(estimate: float, low: float, high: float) -> Json:
    return {"estimate": estimate, "low": low, "high": high}


def _shown(estimate: float, low: float, high: float, log: bool) -> Json:
    return _interval(_show(estimate, log), _show(low, log), _show(high, log))


def _show(coefficient: float, log: bool) -> float:
    return ratio(coefficient) if log else coefficient


def _epsilon(value: float | None) -> float | str | None:
    return "inf" if value is not None and math.isinf(value) else value

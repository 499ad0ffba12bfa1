"""How far sites differ, of one release of all of them: each site's own effect, one step from that
of all sites, by one round of its noisy scores; and what they are pooled to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from markupsafe import Markup

from penstock.base.documents import Json
from penstock.inference import pooling
from penstock.telling.forest import (
    ForestPlot,
    forest_png,
    forest_svg,
    read_plot,
    read_row,
    read_summary,
)
from penstock.telling.scales import LINKS, Link
from penstock_server.analysis.site_effects import SiteEffect, pool_sites
from penstock_server.report.inputs import JointRelease, ReportInputs
from penstock_server.report.section import Picture, Section, Sheet
from penstock_server.report.sections.answers import (
    LEVEL,
    scale_of,
    show_interval,
    tell_heterogeneity,
    tell_interval,
    tell_pooled,
)

_LOST = "not known: its part in this round was lost"
_NOISE = "not known: hidden by the noise"


def _write(inputs: ReportInputs, report: Json) -> Json:
    joint = inputs.joint
    if joint is None:
        return {"between_sites": []}
    found = joint.effects
    told = {e["name"]: e for e in report["estimands"]}
    return {
        "between_sites": [
            _tell(told[name], effects, _find_lost(joint, found.rounds[name]))
            for name, effects in found.estimands.items()
        ]
    }


def _find_lost(joint: JointRelease, back: int) -> set[str]:
    """The sites whose parts are not in a round's sum, the last round being 1."""
    if len(joint.survivors) < back:
        return set()
    return {*joint.plan.consortium.sites} - {*joint.survivors[-back]}


def _tell(estimand: Json, effects: Sequence[SiteEffect], lost: set[str]) -> Json:
    link = LINKS[estimand["scale"]]
    known = [e for e in effects if e.site not in lost and e.known]
    pooled = pool_sites(known, LEVEL)
    weights = {} if pooled is None else dict(zip(known, pooled.weights, strict=True))
    return {
        "estimand": estimand["name"],
        "sites": [
            _tell_site(e, None if e in known else _LOST if e.site in lost else _NOISE, link)
            | {"weight": weights.get(e)}
            for e in effects
        ],
        "random": None if pooled is None else tell_pooled(pooled, link),
        "heterogeneity": None if pooled is None else tell_heterogeneity(pooled),
    }


def _tell_site(effect: SiteEffect, problem: str | None, link: Link) -> Json:
    row: Json = {"site": effect.site, "problem": problem}
    numbers: dict[str, Json | float | None] = dict.fromkeys(
        ("coefficient", "value", "variance", "mechanism_variance")
    )
    if problem is None:
        half = pooling.quantile(LEVEL, None) * math.sqrt(effect.variance)
        ends = effect.estimate, effect.estimate - half, effect.estimate + half
        numbers = {
            "coefficient": tell_interval(*ends),
            "value": show_interval(*ends, link),
            "variance": effect.variance,
            "mechanism_variance": effect.noise,
        }
    return row | numbers


# -- the page ------------------------------------------------------------------------------------


def plot_of(told: Json, estimand: Json) -> ForestPlot:
    """The sites, the effect of all of them by the release, and what sites are pooled to."""
    summaries = []
    if told["random"] is not None:
        summaries.append(read_summary("Random effects", told["random"], "random"))
    if estimand["random"] is not None:
        summaries.append(read_summary("Common effect", estimand["random"], "fixed"))
    return read_plot(estimand, [*map(read_row, told["sites"])], summaries, title="Sites", note="")


def _show(report: Json) -> Json:
    return {"between": [_present(t, e, at) for at, (t, e) in enumerate(_pair(report))]}


def _present(told: Json, estimand: Json, position: int) -> Json:
    plot, name = plot_of(told, estimand), f"between-{position}"
    drawn = any(site["problem"] is None for site in told["sites"])
    # forest_svg escapes every label.
    figure = {
        "wide": Markup(forest_svg(plot, uid=f"{name}-wide")),
        "compact": Markup(forest_svg(plot, uid=f"{name}-compact", compact=True)),
    }
    return {
        "data": told,
        "estimand": estimand,
        "scale": scale_of(estimand),
        "figure": figure if drawn else None,
        "unknown": sum(site["problem"] is not None for site in told["sites"]),
    }


def _pair(report: Json) -> list[tuple[Json, Json]]:
    estimands = {e["name"]: e for e in report["estimands"]}
    return [(told, estimands[told["estimand"]]) for told in report["between_sites"]]


def _draw(report: Json) -> list[Picture]:
    return [
        Picture("sites.png", "forest plot of sites", partial(forest_png, plot=plot_of(*pair)))
        for pair in _pair(report)[:1]
        if pair[0]["random"] is not None
    ]


def _tabulate(report: Json) -> list[Sheet]:
    if not report["between_sites"]:
        return []
    columns = {
        "estimand": ("categorical", "by name"),
        "site": ("categorical", "whose own effect it is"),
        "estimate": ("continuous", "coefficient scale, per the estimand's units; one step"),
        "se": ("continuous", "standard error; none where the site's is not known"),
        "se_noise": ("continuous", "the mechanism's part of it"),
        "problem": ("categorical", "why it is not known"),
    }
    rows = []
    for told in report["between_sites"]:
        for s in told["sites"]:
            known = s["problem"] is None
            numbers = (
                (
                    s["coefficient"]["estimate"],
                    math.sqrt(s["variance"]),
                    math.sqrt(s["mechanism_variance"]),
                )
                if known
                else (None, None, None)
            )
            rows.append((told["estimand"], s["site"], *numbers, s["problem"] or ""))
    what = "one row for each estimand and site: the site's own effect"
    return [Sheet("sites.csv", what, columns, rows)]


SECTION = Section("between", _write, _show, {"between_sites": []}, _draw, _tabulate)

"""Kaplan and Meier's curves of durations that questions are about: of all sites, and of each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from penstock.base.documents import Json
from penstock.telling import phrases
from penstock_server.analysis.survival_curves import (
    TIMES,
    CurveAsked,
    SiteCurves,
    list_curves,
    list_groups,
    list_times,
    pool_curves,
)
from penstock_server.report.formats import FILTERS
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Section
from penstock_server.report.steps import Steps, SurvivalPlot, survival_svg

_SHOWN = (TIMES // 4 - 1, TIMES // 2 - 1, 3 * TIMES // 4 - 1, TIMES - 1)
"""Times that stand in the table, too: a quarter of the follow-up, half, three quarters, all."""


def _write(inputs: ReportInputs, report: Json) -> Json:
    sites = {s.name: c for s in inputs.measured if (c := s.summary(SiteCurves)) is not None}
    asked = list_curves(inputs.study.schema, inputs.study.estimands) if sites else ()
    return {"survival": [_curve(one, inputs, sites) for one in asked]}


def _curve(asked: CurveAsked, inputs: ReportInputs, sites: dict[str, SiteCurves]) -> Json:
    schema = inputs.study.schema
    outcome, by = schema[asked.outcome], None if asked.by is None else schema[asked.by]
    unit = f" ({outcome.unit})" if outcome.unit else ""
    names = [
        None if level is None or by is None else by.levels[level]
        for level in list_groups(schema, asked)
    ]
    pooled = pool_curves(schema, asked, sites)
    return {
        "outcome": asked.outcome,
        "event": phrases.column_name(schema[str(outcome.event)]),
        "by": None if by is None else phrases.column_name(by),
        "time": f"{phrases.column_name(outcome)}{unit}",
        "times": list_times(schema, asked).tolist(),
        "groups": [
            {
                "level": name,
                "survival": _known(curve.survival),
                "low": _known(curve.low),
                "high": _known(curve.high),
                # One release of all sites has no curve of each.
                "sites": [
                    {"site": site, "survival": _known(found)}
                    for site, found in curve.sites.items()
                    if inputs.joint is None
                ],
            }
            for name, curve in zip(names, pooled, strict=True)
        ],
    }


def _known(values: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(v) else v for v in values]


# -- the page ------------------------------------------------------------------------------------


def plot_of(curve: Json) -> SurvivalPlot:
    """One of the report's curves, to be drawn."""
    return SurvivalPlot(
        f"Survival curves: {title_of(curve)}",
        curve["time"],
        tuple(curve["times"]),
        tuple(
            Steps(
                group["level"] or "",
                _drawn(group["survival"]),
                _drawn(group["low"]),
                _drawn(group["high"]),
                tuple(_drawn(site["survival"]) for site in group["sites"]),
            )
            for group in curve["groups"]
        ),
    )


def _drawn(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if v is None else v for v in values)


def title_of(curve: Json) -> str:
    by = f", by {curve['by']}" if curve["by"] else ""
    return f"Without {curve['event']}{by}"


def _present(report: Json) -> Json:
    found = []
    for position, curve in enumerate(report["survival"]):
        plot, uid = plot_of(curve), f"survival-{position}"
        # survival_svg escapes every label.
        wide = survival_svg(plot, uid=f"{uid}-wide")
        compact = survival_svg(plot, uid=f"{uid}-compact", compact=True)
        found.append(
            {
                "title": title_of(curve),
                "by": curve["by"],
                "time": curve["time"],
                "wide": Markup(wide),
                "compact": Markup(compact),
                "times": [f"{curve['times'][i]:.6g}" for i in _SHOWN],
                "rows": [
                    {"level": g["level"] or "all", "shares": [_share(g, i) for i in _SHOWN]}
                    for g in curve["groups"]
                ],
            }
        )
    return {"curves": found}


def _share(group: Json, place: int) -> str:
    share, low, high = (group[name][place] for name in ("survival", "low", "high"))
    if share is None:
        return "–"
    percent = FILTERS["percent"]
    return f"{percent(share)} ({percent(low).removesuffix('%')}–{percent(high)})"


SECTION = Section("survival", _write, _present, absent={"survival": []})

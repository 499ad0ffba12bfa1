"""Kaplan and Meier's curves of durations that questions are about: of all sites, and of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from penstock.base.documents import Json
from penstock.telling import phrases
from penstock.telling.axis import number_text
from penstock_server.analysis.survival_curves import (
    TIMES,
    CurveAsked,
    SiteCurves,
    list_curves,
    list_groups,
    list_risk_times,
    list_times,
    pool_curves,
)
from penstock_server.report.formats import FILTERS
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Section, Sheet
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
    # One release of all sites has no curve of each, and no rows.
    apart = sites if inputs.joint is None else {}
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
                "sites": [
                    {"site": site, "survival": _known(found)}
                    for site, found in curve.sites.items()
                    if site in apart
                ],
            }
            for name, curve in zip(names, pooled, strict=True)
        ],
        "at_risk": {
            "times": list_risk_times(schema, asked).tolist(),
            "groups": [
                {
                    "level": name,
                    "numbers": _add_up([own.at_risk[asked][place] for own in sites.values()]),
                    "sites": [
                        {"site": site, "numbers": list(own.at_risk[asked][place])}
                        for site, own in apart.items()
                    ],
                }
                for place, name in enumerate(names)
            ],
        },
    }


def _add_up(numbers: Sequence[Sequence[float]]) -> list[float]:
    """Of all sites, at each time."""
    return [math.fsum(at) for at in zip(*numbers, strict=True)]


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
                "at_risk": _present_at_risk(curve["at_risk"]),
            }
        )
    return {"curves": found}


def _present_at_risk(told: Json | None) -> Json | None:
    """The table below a curve; None in a report from before there was one."""
    if told is None:
        return None
    return {
        "times": [f"{time:.6g}" for time in told["times"]],
        "rows": [
            {"level": g["level"] or "all", "numbers": [number_text(n, 0) for n in g["numbers"]]}
            for g in told["groups"]
        ],
    }


def _share(group: Json, place: int) -> str:
    share, low, high = (group[name][place] for name in ("survival", "low", "high"))
    if share is None:
        return "–"
    percent = FILTERS["percent"]
    return f"{percent(share)} ({percent(low).removesuffix('%')}–{percent(high)})"


# -- as a file -----------------------------------------------------------------------------------

COLUMNS = {
    "outcome": ("categorical", "duration of the study"),
    "by": ("categorical", "column whose levels have a curve each; empty: all rows have one"),
    "level": ("categorical", "its level; empty: all"),
    "site": ("categorical", "site; empty: all sites together"),
    "time": ("continuous", "in the duration's unit"),
    "survival": ("continuous", "share without the event at that time, by Kaplan and Meier"),
    "low": ("continuous", "lower end of its 95% interval; of all sites together"),
    "high": ("continuous", "upper end of the same"),
    "at_risk": ("continuous", "rows of a copy that are followed until then or longer"),
}


def _tabulate(report: Json) -> list[Sheet]:
    """What stands below the curves, in one file: a row for each time, of all sites, then of
    each."""
    rows = [row for curve in report["survival"] for row in _list_times(curve)]
    what = "a row for each of five times of each survival curve, with the number at risk"
    return [Sheet("survival.csv", what, COLUMNS, rows)] if rows else []


def _list_times(curve: Json) -> Iterator[tuple[str | int | float | None, ...]]:
    times = [0.0, *(curve["times"][place] for place in _SHOWN)]
    counted: list[Json] = [{"numbers": None, "sites": []}] * len(curve["groups"])
    if curve["at_risk"] is not None:
        counted = curve["at_risk"]["groups"]
    for group, counts in zip(curve["groups"], counted, strict=True):
        curves = {site["site"]: site for site in group["sites"]}
        numbers = {site["site"]: site["numbers"] for site in counts["sites"]}
        told = [(None, group, counts["numbers"])]
        told += [(s, curves.get(s, {}), numbers.get(s)) for s in {**curves, **numbers}]
        for site, shares, at_risk in told:
            for place, time in enumerate(times):
                found = [_read_at(shares.get(name), place) for name in ("survival", "low", "high")]
                number = None if at_risk is None else at_risk[place]
                yield (curve["outcome"], curve["by"], group["level"], site, time, *found, number)


def _read_at(shares: Sequence[float | None] | None, place: int) -> float | None:
    """At 0, which curves do not have, and at the times that are shown."""
    return None if shares is None or place == 0 else shares[_SHOWN[place - 1]]


SECTION = Section("survival", _write, _present, absent={"survival": []}, tabulate=_tabulate)

"""Mean changes since the first time point: all sites together with intervals, and each site."""

from __future__ import annotations

from functools import partial

from markupsafe import Markup

from penstock.base.documents import Json
from penstock.telling import phrases
from penstock.telling.draw import to_file
from penstock_server.analysis.changes import (
    Asked,
    PooledChange,
    SiteChanges,
    list_changes,
    pool_changes,
)
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Picture, Section
from penstock_server.report.tracks import Step, Track, lay_out_track, track_svg


def _write(inputs: ReportInputs, report: Json) -> Json:
    found = {s.name: c for s in inputs.measured if (c := s.summary(SiteChanges)) is not None}
    asked = list_changes(inputs.study.estimands) if found else ()
    return {"changes": [_change(one, inputs, found) for one in asked]}


def _change(asked: Asked, inputs: ReportInputs, sites: dict[str, SiteChanges]) -> Json:
    schema, first = inputs.study.schema, next(iter(sites.values()))
    column, clock, times = schema[asked[0]], schema[first.time], first.times
    steps = pool_changes(asked, sites)
    levels = clock.levels if clock.kind == "ordered" else ()
    unit, of = (f" ({each.unit})" if each.unit else "" for each in (column, clock))
    return {
        "outcome": asked[0],
        "title": f"{phrases.column_name(column)}{unit}",
        "time": f"{phrases.column_name(clock)}{of}",
        "where": asked[1],
        "begin": _tell(times[0], levels),
        "steps": [
            {"time": at, "label": _tell(at, levels), **_pooled(step)}
            for at, step in zip(times[1:], steps, strict=True)
        ],
        "sites": [
            {"site": name, "estimates": [step.sites.get(name) for step in steps]} for name in sites
        ],
    }


def _tell(time: float, levels: tuple[str, ...]) -> str:
    return levels[int(time)] if levels else f"{time:.6g}"


def _pooled(step: PooledChange) -> Json:
    p = step.pooled
    if p is None:
        return {"sites": 0, "estimate": None, "low": None, "high": None}
    return {"sites": p.k, "estimate": p.estimate, "low": p.ci_low, "high": p.ci_high}


# -- the page ------------------------------------------------------------------------------------


def title_of(part: Json) -> str:
    """What a picture shows: "Change of pressure (mmHg) since 0"."""
    where = f", where {part['where']}" if part["where"] else ""
    return f"Change of {part['title']} since {part['begin']}{where}"


def plot_of(part: Json) -> Track:
    """One of the report's courses, to be drawn."""
    steps = tuple(
        Step(s["time"], s["label"], s["estimate"], s["low"], s["high"])
        for s in part["steps"]
        if s["estimate"] is not None
    )
    known = [i for i, s in enumerate(part["steps"]) if s["estimate"] is not None]
    sites = {s["site"]: tuple(s["estimates"][i] for i in known) for s in part["sites"]}
    return Track(title_of(part), part["time"], part["begin"], steps, sites)


def _present(report: Json) -> Json:
    found = []
    for position, part in enumerate(report["changes"]):
        plot, uid = plot_of(part), f"changes-{position}"
        if not plot.steps:
            continue
        # track_svg escapes every label.
        wide = track_svg(plot, uid=f"{uid}-wide")
        compact = track_svg(plot, uid=f"{uid}-compact", compact=True)
        found.append(
            {
                "title": title_of(part),
                "time": part["time"],
                "wide": Markup(wide),
                "compact": Markup(compact),
                "rows": [
                    {"label": s.label, "text": plot.scale.text(s.estimate),
                     "interval": plot.scale.interval_text(s.low, s.high)}
                    for s in plot.steps
                ],
            }
        )  # fmt: skip
    return {"changes": found}


def _draw(report: Json) -> list[Picture]:
    plots = [plot for part in report["changes"] if (plot := plot_of(part)).steps]
    return [
        Picture(
            "changes.png" if i == 0 else f"changes-{i + 1}.png",
            plot.title,
            partial(to_file, lay_out_track(plot), title=report["study"]["title"]),
        )
        for i, plot in enumerate(plots)
    ]


SECTION = Section("changes", _write, _present, {"changes": []}, _draw)

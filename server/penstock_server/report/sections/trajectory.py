"""A trajectory study's part of the report: its pictures' numbers, and what they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from penstock.base.documents import Json
from penstock.mechanisms import Trajectory
from penstock.mechanisms.trajectory.time_points import Times, times_of
from penstock.schema import LEVEL_KINDS, Column
from penstock.study.study import Study
from penstock.telling import phrases
from penstock.telling.draw import to_file
from penstock_server.mechanisms.trajectory import marginals
from penstock_server.mechanisms.trajectory.marginals import Marginals
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.panels import Band, Levels, Marginal, layout, marginals_svg
from penstock_server.report.section import Picture, Section

MOST_SITES = 12
"""Sites with a picture of their own."""
MOST_LEVELS = 5
_MARGIN = 0.4
"""Of the pooled range, added to either end of an axis."""


def _write(inputs: ReportInputs, report: Json) -> Json:
    return {"trajectory": collect_figures(inputs)}


def collect_figures(inputs: ReportInputs) -> Json | None:
    """What the page shows of a trajectory study; None of another, or without a delivery."""
    mechanism, schema = inputs.study.mechanism, inputs.study.schema
    sites = {s.name: found for s in inputs.measured if (found := s.summary(Marginals)) is not None}
    if not isinstance(mechanism, Trajectory) or not sites:
        return None
    times, every = times_of(mechanism, schema), list(sites.values())
    columns = marginals.drawn(mechanism, schema)
    kept = {c.name: _levels(c, every) for c in columns if c.kind in LEVEL_KINDS}
    shown = [("", every)]
    if len(sites) > 1:
        shown += [(name, [found]) for name, found in list(sites.items())[:MOST_SITES]]
    time = schema[mechanism.time]
    return {
        "time": _titled(time),
        "points": _labels(times),
        "positions": [float(x) for x in times.positions],
        "seen": [float(i / (mechanism.path_times - 1)) for i in marginals.seen(mechanism)],
        "particles": mechanism.particles,
        "paths": mechanism.paths,
        "path_times": mechanism.path_times,
        "columns": [_column(c, every, kept.get(c.name)) for c in columns],
        "figures": [
            {
                "site": name or None,
                "columns": [_numbers(c, found, kept.get(c.name)) for c in columns],
            }
            for name, found in shown
        ],
        "sites_not_drawn": max(0, len(sites) - MOST_SITES),
        "columns_not_drawn": len(schema.columns) - 1 - len(columns),
        "explained": explain_paths(inputs.study, mechanism),
    }


def panels(part: Json, figure: Json) -> tuple[Marginal, ...]:
    """A figure of :func:`collect_figures`, to be drawn."""
    found = []
    for column, numbers in zip(part["columns"], figure["columns"], strict=True):
        if column["levels"] is not None:
            content: Band | Levels = Levels(
                tuple(column["levels"]),
                tuple(map(tuple, numbers["shares"])),
                tuple(map(tuple, numbers["path_shares"])),
            )
        else:
            content = Band(
                tuple(None if q is None else tuple(q) for q in numbers["quantiles"]),
                tuple(tuple(math.nan if v is None else v for v in p) for p in numbers["paths"]),
                column["low"],
                column["high"],
            )
        axes = tuple(part["positions"]), tuple(part["points"]), tuple(part["seen"])
        found.append(Marginal(column["title"], part["time"], *axes, content))
    return tuple(found)


def _titled(column: Column) -> str:
    unit = f" ({column.unit})" if column.unit else ""
    return f"{phrases.column_name(column)}{unit}"


def _labels(times: Times) -> list[str]:
    values = times.at(times.positions)
    if times.column.kind == "ordered":
        return [times.column.levels[int(v)] for v in values]
    return [f"{v:.6g}" for v in values]


def _levels(column: Column, every: Sequence[Marginals]) -> list[int]:
    """Which levels are drawn: of two, the second; of many, those that most particles are on."""
    count = len(column.levels)
    if count == 2:
        return [1]
    mean = marginals.shares(every, column.name, count).mean(axis=0)
    return sorted(np.argsort(-mean, kind="stable")[:MOST_LEVELS].tolist())


def _column(column: Column, every: Sequence[Marginals], levels: list[int] | None) -> Json:
    title = _titled(column)
    if levels is not None:
        names = [column.levels[i] for i in levels]
        return {"title": f"{title}: share", "levels": names, "low": 0.0, "high": 1.0}
    known = [q for q in marginals.quantiles(every, column.name) if q is not None]
    low, high = column.bounds
    if known:
        ends = min(q[0] for q in known), max(q[-1] for q in known)
        margin = _MARGIN * (ends[1] - ends[0]) or 0.05 * (high - low)
        low, high = max(low, ends[0] - margin), min(high, ends[1] + margin)
    return {"title": title, "levels": None, "low": low, "high": high}


def _numbers(column: Column, sites: Sequence[Marginals], levels: list[int] | None) -> Json:
    """What is drawn of a column: a band and paths, or shares of levels."""
    if levels is None:
        paths = marginals.some_paths(sites, column.name)
        return {
            "quantiles": marginals.quantiles(sites, column.name),
            "paths": [[None if math.isnan(v) else float(v) for v in path] for path in paths],
            "shares": None,
            "path_shares": None,
        }
    count = len(column.levels)
    return {
        "quantiles": None,
        "paths": None,
        "shares": _some(marginals.shares(sites, column.name, count), levels),
        "path_shares": _some(marginals.path_shares(sites, column.name), levels),
    }


def _some(shares: NDArray[np.float64], levels: list[int]) -> list[list[float]]:
    """(level) → shares."""
    found: list[list[float]] = shares[:, levels].T.tolist()
    return found


def explain_paths(study: Study, used: Trajectory) -> list[str]:
    """What the picture, and the table of paths, show."""
    count, time = used.time_points(study.schema), phrases.column_name(study.schema[used.time])
    return [
        f"The bands hold the middle 50% and 90% of the {used.particles} particles at each of "
        f"{count} time points of {time}, the thick line their median; thin lines are some of the "
        "paths. Of columns with levels, marks are shares of particles, and lines shares of paths.",
        "The files paths.parquet and paths.csv hold one row for each time of each path: _site and "
        "_path say which path, _time exactly when, and then come the study's columns. Each of a "
        f"site's {used.paths:,} paths has {used.path_times} rows, evenly spaced in time, in order"
        + ("." if used.end is None else f"; after its own {used.end} it has none."),
        *_explain_source(used.measures(study.schema), time),
    ]


def _explain_source(measured: bool, time: str) -> list[str]:
    """What lies between time points, and between rows of a table."""
    if measured:
        return [
            "Who became what was measured: a path is one imagined person, whose values at "
            "different times go together as those of the same person did. Between two time points "
            "it is the line from one to the other.",
            f"Estimates are made of tables of visits, each at one value of {time}; those of an "
            "imagined person stand one after the other, which is how persons are told apart. Rows "
            "are counts of visits, not of persons.",
        ]
    return [
        "Who became what is inferred, by least motion. Between two time points a path is a random "
        "walk with fixed ends: how rough it looks is the study's setting (temperature), not "
        "something that was seen in persons.",
        f"The tables of snapshots are what estimates are made of. Each row is at one value of "
        f"{time}; rows of a table do not belong together, and no path is among them.",
    ]


# -- the page ------------------------------------------------------------------------------------


def _marginals(part: Json | None) -> list[Json]:
    """The figures of a trajectory: all sites first."""
    if part is None:
        return []
    found = []
    for position, figure in enumerate(part["figures"]):
        drawn = panels(part, figure)
        title = f"Marginals with paths: {figure['site'] or 'all sites'}"
        uid = f"marginals-{position}"
        # marginals_svg escapes every label.
        wide = marginals_svg(drawn, title=title, uid=f"{uid}-wide")
        compact = marginals_svg(drawn, title=title, uid=f"{uid}-compact", compact=True)
        found.append({"site": figure["site"], "wide": Markup(wide), "compact": Markup(compact)})
    return found


def _present(report: Json) -> Json:
    return {"marginals": _marginals(report["trajectory"])}


def _draw(report: Json) -> list[Picture]:
    part = report["trajectory"]
    if part is None:
        return []
    drawing = layout(panels(part, part["figures"][0]))
    save = partial(to_file, drawing, title=report["study"]["title"])
    return [Picture("paths.png", "particles and paths in time, all sites", save)]


SECTION = Section("trajectory", _write, _present, {"trajectory": None}, _draw)

"""Tables of transitions between levels: all sites together, each cell with its interval."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from markupsafe import Markup

from penstock.base.documents import Json
from penstock.inference.pooling import Pooled
from penstock.questions.estimands import Estimand
from penstock.questions.occasions import tell_time
from penstock.telling import phrases
from penstock.telling.draw import to_file
from penstock.telling.scales import share
from penstock_server.analysis.transitions import (
    SiteTransitions,
    list_tables,
    pool_transitions,
)
from penstock_server.report.heat import HeatCell, HeatMap, heat_svg, lay_out_heat
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Picture, Section, Sheet


def _write(inputs: ReportInputs, report: Json) -> Json:
    found = {s.name: t for s in inputs.measured if (t := s.summary(SiteTransitions)) is not None}
    asked = list_tables(inputs.study.schema, inputs.study.estimands) if found else ()
    return {"transitions": [_table(one, inputs, found) for one in asked]}


def _table(asked: Estimand, inputs: ReportInputs, sites: dict[str, SiteTransitions]) -> Json:
    schema = inputs.study.schema
    column = schema[asked.outcome]
    pooled = pool_transitions(schema, asked, sites)
    places = range(len(column.levels))
    at, until = (tell_time(time) for time in asked.times)
    return {
        "outcome": asked.outcome,
        "title": phrases.column_name(column),
        "at": at,
        "until": until,
        "where": asked.where,
        "levels": list(column.levels),
        "rows": [
            {
                "level": column.levels[i],
                "persons": pooled.persons[i],
                "cells": [_cell(pooled.cells[i, j]) for j in places],
            }
            for i in places
        ],
        "sites": [
            {"site": name, "rows": [[_alone(own.get((i, j))) for j in places] for i in places]}
            for name, own in pooled.sites.items()
        ],
    }


def _alone(logit: float | None) -> float | None:
    return None if logit is None else share(logit)


def _cell(pooled: Pooled | None) -> Json | None:
    if pooled is None:
        return None
    return {
        "sites": pooled.k,
        "estimate": share(pooled.estimate),
        "low": share(pooled.ci_low),
        "high": share(pooled.ci_high),
    }


# -- the page ------------------------------------------------------------------------------------


def title_of(table: Json) -> str:
    """What a table shows: "Transitions of stage, from 0 to 2"."""
    where = f", where {table['where']}" if table["where"] else ""
    return f"Transitions of {table['title']}, from {table['at']} to {table['until']}{where}"


def plot_of(table: Json) -> HeatMap:
    """One of the report's tables, to be drawn."""
    rows = tuple(
        tuple(
            None if c is None else HeatCell(c["estimate"], c["low"], c["high"])
            for c in row["cells"]
        )
        for row in table["rows"]
    )
    before, after = f"at {table['at']}", f"at {table['until']}"
    return HeatMap(title_of(table), before, after, tuple(table["levels"]), rows)


def _present(report: Json) -> Json:
    found = []
    for position, table in enumerate(report["transitions"]):
        plot, uid = plot_of(table), f"transitions-{position}"
        # heat_svg escapes every label.
        wide = heat_svg(plot, uid=f"{uid}-wide")
        compact = heat_svg(plot, uid=f"{uid}-compact", compact=True)
        rows = [
            {
                "level": row["level"],
                "persons": row["persons"],
                "cells": [None if c is None else f"{c.text} ({c.interval})" for c in cells],
            }
            for row, cells in zip(table["rows"], plot.rows, strict=True)
        ]
        found.append(
            {
                "title": title_of(table),
                "levels": table["levels"],
                "at": table["at"],
                "wide": Markup(wide),
                "compact": Markup(compact),
                "rows": rows,
            }
        )
    return {"transitions": found}


def _draw(report: Json) -> list[Picture]:
    return [
        Picture(
            "transitions.png" if i == 0 else f"transitions-{i + 1}.png",
            title_of(table),
            partial(to_file, lay_out_heat(plot_of(table)), title=report["study"]["title"]),
        )
        for i, table in enumerate(report["transitions"])
    ]


COLUMNS = {
    "outcome": ("categorical", "column of the study whose levels are compared"),
    "where": ("categorical", "subgroup of persons; empty: all"),
    "at": ("categorical", "time before"),
    "until": ("categorical", "time after"),
    "site": ("categorical", "site; empty: all sites together"),
    "from_level": ("categorical", "level before"),
    "to_level": ("categorical", "level after"),
    "share": ("continuous", "of those at the level before, who are at the level after"),
    "low": ("continuous", "lower end of the 95% interval; of all sites together"),
    "high": ("continuous", "upper end of the same"),
    "sites": ("integer", "how many sites it is of"),
    "persons": ("integer", "at the level before, in a copy of each site; of all sites together"),
}


def _tabulate(report: Json) -> list[Sheet]:
    """Every table of transitions in one file: a row for each cell of all sites, then of each."""
    rows = [row for table in report["transitions"] for row in _list_cells(table)]
    what = "a row for each pair of levels of each table of transitions in the report"
    return [Sheet("transitions.csv", what, COLUMNS, rows)] if rows else []


def _list_cells(table: Json) -> Iterator[tuple[str | int | float | None, ...]]:
    head = (table["outcome"], table["where"] or None, table["at"], table["until"])
    for row in table["rows"]:
        for after, cell in zip(table["levels"], row["cells"], strict=True):
            of_all = cell or {"estimate": None, "low": None, "high": None, "sites": 0}
            numbers = (of_all[name] for name in ("estimate", "low", "high", "sites"))
            yield (*head, None, row["level"], after, *numbers, row["persons"])
    for site in table["sites"]:
        for before, shares in zip(table["levels"], site["rows"], strict=True):
            for after, alone in zip(table["levels"], shares, strict=True):
                known = 0 if alone is None else 1
                yield (*head, site["site"], before, after, alone, None, None, known, None)


SECTION = Section("transitions", _write, _present, {"transitions": []}, _draw, _tabulate)

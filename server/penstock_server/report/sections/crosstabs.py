"""Contingency tables: all sites together, each cell with its count and its share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from markupsafe import Markup

from penstock.base.documents import Json
from penstock.inference.combine import SiteEstimate
from penstock.inference.pooling import Pooled
from penstock.mechanisms.registry import MECHANISMS
from penstock.questions.contingency import list_cells
from penstock.questions.estimands import Estimand
from penstock.telling import phrases
from penstock.telling.axis import RATIO_DECIMALS, Scale, decimals_for, number_text
from penstock.telling.draw import to_file
from penstock.telling.scales import COUNT, LOG, LOGIT, PLAIN, Link
from penstock_server.analysis.crosstabs import (
    PooledCell,
    SiteCrosstabs,
    list_crossed,
    list_crosstabs,
    list_named,
    pool_crosstabs,
    pool_odds,
)
from penstock_server.report.heat import HeatCell, HeatMap, heat_svg, lay_out_heat
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Picture, Section, Sheet


def _write(inputs: ReportInputs, report: Json) -> Json:
    found = {s.name: t for s in inputs.measured if (t := s.summary(SiteCrosstabs)) is not None}
    asked = list_crosstabs(inputs.study.estimands) if found else ()
    answered = {one["name"]: one["random"] for one in report["estimands"]}
    return {"crosstabs": [_table(one, inputs, found, answered) for one in asked]}


def _table(
    asked: Estimand,
    inputs: ReportInputs,
    sites: Mapping[str, SiteCrosstabs],
    answered: Mapping[str, Json | None],
) -> Json:
    schema = inputs.study.schema
    columns = list_crossed(schema, asked)
    pooled = pool_crosstabs(schema, asked, sites)
    # One release of all sites is of as many, and has no table of each.
    joint = inputs.joint
    behind = None if joint is None else len(joint.plan.consortium.sites)
    shares = {cell: _tell(pooled[cell].share, LOGIT, behind) for cell in list_cells(columns)}
    # What is asked for has one number: other questions' refits say something of its noise, too.
    for cell, one in list_named(schema, asked, inputs.study.estimands).items():
        share, answer = shares[cell], answered[one.name]
        if share is not None and answer is not None:
            shares[cell] = share | answer["value"]
    return {
        "columns": [
            {"column": c.name, "title": phrases.column_name(c), "levels": list(c.levels)}
            for c in columns
        ],
        "where": asked.where,
        "cells": [
            {
                "levels": [c.levels[at] for c, at in zip(columns, cell, strict=True)],
                "count": _tell(pooled[cell].count, COUNT, behind),
                "share": shares[cell],
                "sites": list(_list_alone(pooled[cell])) if joint is None else [],
            }
            for cell in list_cells(columns)
        ],
        **_tell_odds(asked, inputs, sites),
    }


def _tell_odds(asked: Estimand, inputs: ReportInputs, sites: Mapping[str, SiteCrosstabs]) -> Json:
    """Of tables of which there is one, the odds ratio; of others nothing."""
    if inputs.joint is not None or not MECHANISMS.of(inputs.study.mechanism).answers:
        return {}
    found = pool_odds(inputs.study.schema, asked, sites)
    if found is None:
        return {}
    return {
        "odds_ratio": {
            "sites": found.k,
            "estimate": LOG.show(found.estimate),
            "low": LOG.show(found.ci_low),
            "high": LOG.show(found.ci_high),
            "se": found.se,
            "se_noise": found.se_noise,
            "p": found.p_value,
            "q": found.q,
            "df": found.q_df,
            "q_p": found.q_p,
        }
    }


def _tell(pooled: Pooled | None, link: Link, behind: int | None = None) -> Json | None:
    """An interval, and of how many sites it is: so many as were pooled, or as are behind it."""
    if pooled is None:
        return None
    return {
        "sites": pooled.k if behind is None else behind,
        "estimate": link.show(pooled.estimate),
        "low": link.show(pooled.ci_low),
        "high": link.show(pooled.ci_high),
    }


def _list_alone(cell: PooledCell) -> Iterator[Json]:
    def show(one: SiteEstimate, link: Link) -> float | None:
        return link.show(one.estimate) if one.problem is None else None

    for site, (count, share) in cell.sites.items():
        yield {"site": site, "count": show(count, COUNT), "share": show(share, LOGIT)}


# -- the page ------------------------------------------------------------------------------------


def title_of(table: Json) -> str:
    """What a table shows: "Rows by stage and ward"."""
    *first, last = (column["title"] for column in table["columns"])
    where = f", where {table['where']}" if table["where"] else ""
    return f"Rows by {', '.join(first)} and {last}{where}"


def plots_of(table: Json) -> list[HeatMap]:
    """One of the report's tables, to be drawn: of a third column one for each of its levels."""
    rows, across, *more = table["columns"]
    shares = {tuple(c["levels"]): c["share"] for c in table["cells"]}
    most = max((s["estimate"] for s in shares.values() if s is not None), default=1.0)
    plots = []
    for level in more[0]["levels"] if more else [None]:
        behind = () if level is None else (level,)
        drawn = tuple(
            tuple(
                None
                if (s := shares[r, c, *behind]) is None
                else HeatCell(s["estimate"], s["low"], s["high"])
                for c in across["levels"]
            )
            for r in rows["levels"]
        )
        title = f"{more[0]['title']}: {level}" if more else title_of(table)
        plots.append(
            HeatMap(
                title,
                rows["title"],
                across["title"],
                tuple(rows["levels"]),
                drawn,
                tuple(across["levels"]),
                max(most, 1e-9),
                "",
            )
        )
    return plots


def _present(report: Json) -> Json:
    found = []
    for position, table in enumerate(report["crosstabs"]):
        figures = []
        for i, plot in enumerate(plots_of(table)):
            uid = f"crosstab-{position}-{i}"
            # heat_svg escapes every label.
            figures.append(
                {
                    "title": plot.title,
                    "wide": Markup(heat_svg(plot, uid=f"{uid}-wide")),
                    "compact": Markup(heat_svg(plot, uid=f"{uid}-compact", compact=True)),
                }
            )
        found.append(
            {
                "title": title_of(table),
                "columns": [column["title"] for column in table["columns"]],
                "figures": figures,
                "rows": [
                    {
                        "levels": cell["levels"],
                        "count": _text(cell["count"], 1.0, ""),
                        "share": _text(cell["share"], 100.0, "%"),
                    }
                    for cell in table["cells"]
                ],
                "odds": _say_odds(table),
            }
        )
    return {"crosstabs": found}


def _say_odds(table: Json) -> Json | None:
    """The odds ratio in words and numbers; None where there is none."""
    told = table.get("odds_ratio")
    if told is None:
        return None
    outcome, term = table["columns"]
    half = (told["high"] - told["low"]) / 2
    scale = Scale(0.0, 1.0, PLAIN, decimals_for(half, least=RATIO_DECIMALS), ratio=True)
    return {
        "outcome": f"{outcome['title']}: {outcome['levels'][1]}",
        "term": f"{term['title']}: {term['levels'][1]}",
        "against": term["levels"][0],
        "estimate": scale.text(told["estimate"]),
        "interval": scale.interval_text(told["low"], told["high"]),
        "sites": told["sites"],
        "q": number_text(told["q"], 1),
        "df": told["df"],
        "p": number_text(told["q_p"], 2),
    }


def _text(told: Json | None, times: float, unit: str) -> str | None:
    """ "412 (380–444)", "12% (10–14)"."""
    if told is None:
        return None
    estimate, low, high = (times * told[name] for name in ("estimate", "low", "high"))
    scale = Scale(0.0, 1.0, PLAIN, decimals_for((high - low) / 2, least=0))
    return f"{scale.text(estimate)}{unit} ({scale.interval_text(low, high)})"


def _draw(report: Json) -> list[Picture]:
    plots = [plot for table in report["crosstabs"] for plot in plots_of(table)]
    return [
        Picture(
            "crosstabs.png" if i == 0 else f"crosstabs-{i + 1}.png",
            plot.title,
            partial(to_file, lay_out_heat(plot), title=report["study"]["title"]),
        )
        for i, plot in enumerate(plots)
    ]


_PLACES = (1, 2, 3)
COLUMNS = {
    **{
        name: ("categorical", said)
        for at in _PLACES
        for name, said in (
            (f"column_{at}", f"column {at} of the table{'; empty: there are two' * (at == 3)}"),
            (f"level_{at}", "its level in the cell"),
        )
    },
    "where": ("categorical", "subgroup of rows; empty: all"),
    "site": ("categorical", "site; empty: all sites together"),
    "count": ("continuous", "rows in the cell; of all sites their total"),
    "count_low": ("continuous", "lower end of the 95% interval of the number in the sites' rows"),
    "count_high": ("continuous", "upper end of the same"),
    "share": ("continuous", "of all rows with known levels; of all sites pooled"),
    "low": ("continuous", "lower end of the share's 95% interval"),
    "high": ("continuous", "upper end of the same"),
    "sites": ("integer", "how many sites the count is of"),
}


def _tabulate(report: Json) -> list[Sheet]:
    """Every table in one file: a row for each cell of all sites, then of each."""
    rows = [row for table in report["crosstabs"] for row in _list_rows(table)]
    what = "a row for each cell of each contingency table in the report"
    sheets = [Sheet("crosstabs.csv", what, COLUMNS, rows)] if rows else []
    odds = [_list_odds(table) for table in report["crosstabs"] if "odds_ratio" in table]
    if odds:
        what = "a row for each contingency table of two by two levels, stratified by site"
        sheets.append(Sheet("odds_ratios.csv", what, ODDS, odds))
    return sheets


ODDS = {
    "outcome": ("categorical", "column whose odds are compared"),
    "outcome_level": ("categorical", "the level that they are of"),
    "term": ("categorical", "column by which they are compared"),
    "level": ("categorical", "its level, against the other one"),
    "where": ("categorical", "subgroup of rows; empty: all"),
    "odds_ratio": ("continuous", "of Mantel and Haenszel, over sites"),
    "low": ("continuous", "lower end of its 95% interval, of sampling and noise"),
    "high": ("continuous", "upper end of the same"),
    "se": ("continuous", "standard error of its logarithm"),
    "se_noise": ("continuous", "the mechanism's part of it"),
    "p": ("continuous", "two-sided, against an odds ratio of 1"),
    "q": ("continuous", "how far the sites' own odds ratios are from it"),
    "df": ("integer", "degrees of freedom of that"),
    "q_p": ("continuous", "its p value, against χ²"),
    "sites": ("integer", "how many sites it is of"),
}


def _list_odds(table: Json) -> tuple[str | int | float | None, ...]:
    told, (outcome, term) = table["odds_ratio"], table["columns"]
    names = ("estimate", "low", "high", "se", "se_noise", "p", "q", "df", "q_p", "sites")
    columns = (outcome["column"], outcome["levels"][1], term["column"], term["levels"][1])
    return (*columns, table["where"] or None, *(told[name] for name in names))


def _list_rows(table: Json) -> Iterator[tuple[str | int | float | None, ...]]:
    names = [column["column"] for column in table["columns"]]
    nothing = {"estimate": None, "low": None, "high": None, "sites": 0}
    for cell in table["cells"]:
        pairs = [*zip(names, cell["levels"], strict=True), (None, None)][: len(_PLACES)]
        head = (*(part for pair in pairs for part in pair), table["where"] or None)
        count, share = cell["count"] or nothing, cell["share"] or nothing
        told = [of[name] for of in (count, share) for name in ("estimate", "low", "high")]
        yield (*head, None, *told, count["sites"])
        for site in cell["sites"]:
            known = 0 if site["count"] is None else 1
            alone = (site["count"], None, None, site["share"], None, None)
            yield (*head, site["site"], *alone, known)


SECTION = Section("crosstabs", _write, _present, {"crosstabs": []}, _draw, _tabulate)

"""Who is in the released tables: each column at each site, as a paper's first table has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock.base.documents import Json
from penstock.mechanisms.joint.consortium import SITE
from penstock.schema import Column
from penstock.telling import phrases
from penstock.telling.axis import decimals_for, number_text
from penstock_server.analysis.baseline_figures import (
    Baseline,
    Described,
    Figures,
    list_described,
    pool_described,
)
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Section, Sheet

MOST_SITES = 3
"""That have a column of the page each: of more, it says from which to which value they reach."""


def _write(inputs: ReportInputs, report: Json) -> Json:
    found = {s.name: b for s in inputs.measured if (b := s.summary(Baseline)) is not None}
    if not found:
        return {"baseline": None}
    releases = list(found.values())
    sites = {name: one.whole for name, one in found.items()}
    if inputs.joint is not None:  # one release, which may say of which site a row is
        sites = dict(releases[0].groups)
    schema = inputs.study.schema
    columns = list_described(schema, None if inputs.joint is None else SITE)
    whole = pool_described([one.whole for one in releases])
    return {
        "baseline": {
            "once": all(one.once for one in releases),
            "columns": [
                {
                    "column": c.name,
                    "title": phrases.column_name(c),
                    "kind": c.kind,
                    "unit": c.unit or None,
                    "levels": list(c.levels),
                    "event": None if c.event is None else phrases.column_name(schema[c.event]),
                }
                for c in columns
            ],
            "groups": [
                _tell_group(site, described, columns)
                for site, described in ((None, whole), *sites.items())
            ],
        }
    }


def _tell_group(site: str | None, described: Described, columns: tuple[Column, ...]) -> Json:
    return {
        "site": site,
        "rows": described.rows,
        "figures": [_tell(described.columns[column.name]) for column in columns],
    }


def _tell(figures: Figures) -> Json:
    return {
        "known": figures.known,
        "missing": figures.missing,
        "mean": figures.mean,
        "sd": figures.sd,
        "quartiles": None if figures.quartiles is None else list(figures.quartiles),
        "shares": None if figures.shares is None else list(figures.shares),
        "events": figures.events,
        "followed": figures.followed,
    }


# -- the page ------------------------------------------------------------------------------------


def _present(report: Json) -> Json:
    told = report["baseline"]
    if told is None:
        return {"heads": [], "rows": [], "many": 0}
    heads = ["All sites", *(group["site"] for group in told["groups"][1:])]
    many = len(heads) - 1 if len(heads) - 1 > MOST_SITES else 0
    rows = [
        {"label": row.label, "cells": row.span() if many else row.cells()}
        for row in _list_rows(told, fewer=report["study"]["mechanism"].get("most_rows"))
    ]
    return {
        "heads": ["All sites", "Lowest to highest site"] if many else heads,
        "many": many,
        "rows": rows,
    }


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the page.

    Attributes:
        label: what it is of; of: figures, or groups, of all sites first.
        find: the number of one of them, if it has one; short: that number written.
        full: the whole cell, if that is more than the number.
    """

    label: str
    of: Sequence[Json]
    find: Callable[[Json], float | None]
    short: Callable[[float], str]
    full: Callable[[Json], str] | None = None

    def cells(self) -> list[str]:
        """Of all sites, and of each."""
        return [self._tell(one) for one in self.of]

    def span(self) -> list[str]:
        """Of all sites, and from which to which number sites reach."""
        known = sorted(value for one in self.of[1:] if (value := self.find(one)) is not None)
        reach = f"{self.short(known[0])} to {self.short(known[-1])}" if known else "–"
        return [self._tell(self.of[0]), reach]

    def _tell(self, one: Json) -> str:
        value = self.find(one)
        if value is None:
            return "–"
        return self.short(value) if self.full is None else self.full(one)


def _list_rows(told: Json, fewer: int | None = None) -> Iterator[_Row]:
    """
    Args:
        fewer: rows of a copy at most, where large sites' have a share of as many as there are.
    """
    groups, what = told["groups"], "Persons" if told["once"] else "Rows"
    whose = f"{what} that a copy stands for" if fewer else f"{what} of a copy"
    yield _Row(whose, groups, lambda one: one["rows"], lambda v: number_text(v, 0))
    for place, column in enumerate(told["columns"]):
        of = [group["figures"][place] for group in groups]
        title = column["title"]
        for at, level in enumerate(column["levels"]):
            yield _Row(f"{title}: {level}", of, _share_of(at), _percent)
        if not column["levels"]:
            yield from _list_numbers(column, of)
        if any(one["missing"] for one in of):
            yield _Row(f"{title}, missing", of, lambda one: one["missing"], _percent)


def _list_numbers(column: Json, of: Sequence[Json]) -> Iterator[_Row]:
    """The rows of a number or a duration."""
    name = f"{column['title']} ({column['unit']})" if column["unit"] else column["title"]
    number = _number_of(of[0])
    quartiles = _quartiles_of(number)
    if column["event"] is None:
        yield _Row(f"{name}, mean (SD)", of, lambda one: one["mean"], number, _mean_of(number))
        yield _Row(f"{name}, median [quartiles]", of, _median, number, quartiles)
    else:
        yield _Row(f"{name}, median follow-up [quartiles]", of, _median, number, quartiles)
        # Of all sites together it is not read, and reports of before had none.
        if any(one.get("followed") is not None for one in of):
            label = f"{name}, median follow-up without events"
            yield _Row(label, of, lambda one: one.get("followed"), number)
        label = f"{column['event']}, events (share)"
        yield _Row(label, of, _event_share, _percent, _tell_events)


def _share_of(place: int) -> Callable[[Json], float | None]:
    return lambda one: None if one["shares"] is None else float(one["shares"][place])


def _median(one: Json) -> float | None:
    return None if one["quartiles"] is None else float(one["quartiles"][1])


def _event_share(one: Json) -> float | None:
    return None if one["events"] is None else float(one["events"] / one["known"])


def _percent(value: float) -> str:
    return f"{number_text(100 * value, 1)}%"


def _tell_events(one: Json) -> str:
    return f"{number_text(one['events'], 0)} ({_percent(one['events'] / one['known'])})"


def _number_of(one: Json) -> Callable[[float], str]:
    """How a column's numbers are written: with two significant digits of a quarter of their
    spread."""
    spread = one["sd"]
    if spread is None and one["quartiles"] is not None:
        spread = one["quartiles"][2] - one["quartiles"][0]
    decimals = decimals_for((spread or 0.0) / 4, least=0, most=4)
    return lambda value: number_text(value, decimals)


def _mean_of(number: Callable[[float], str]) -> Callable[[Json], str]:
    return lambda one: (
        number(one["mean"]) if one["sd"] is None else f"{number(one['mean'])} ({number(one['sd'])})"
    )


def _quartiles_of(number: Callable[[float], str]) -> Callable[[Json], str]:
    def tell(one: Json) -> str:
        low, middle, high = map(number, one["quartiles"])
        return f"{middle} [{low},\N{NO-BREAK SPACE}{high}]"

    return tell


# -- as a file -----------------------------------------------------------------------------------

COLUMNS = {
    "site": ("categorical", "site; empty: all sites together"),
    "column": ("categorical", "column of the study"),
    "level": ("categorical", "its level; empty: of numbers and durations"),
    "rows": ("continuous", "rows of a copy, the mean over copies; persons, if each counts once"),
    "known": ("continuous", "of these, with a known value"),
    "missing": ("continuous", "share of rows without one"),
    "mean": ("continuous", "of a number"),
    "sd": ("continuous", "its standard deviation"),
    "lower_quartile": ("continuous", "of a number or a duration"),
    "median": ("continuous", "of the same"),
    "upper_quartile": ("continuous", "of the same"),
    "share": ("continuous", "of known rows: at the level; of a duration, with its event"),
    "events": ("continuous", "of a duration: rows with its event"),
    "followed": (
        "continuous",
        "of a duration at one site: median follow-up if nobody had the event, by Kaplan and "
        "Meier's curve of ends without one (Schemper & Smith 1996)",
    ),
}


def _tabulate(report: Json) -> list[Sheet]:
    """A row for each number, level and duration: of all sites, then of each."""
    told = report["baseline"]
    if told is None:
        return []
    what = "a row for each column of the released tables, and each level: synthetic, no intervals"
    rows = [row for group in told["groups"] for row in _list_lines(told["columns"], group)]
    return [Sheet("baseline.csv", what, COLUMNS, rows)]


def _list_lines(columns: list[Json], group: Json) -> Iterator[tuple[str | int | float | None, ...]]:
    for column, one in zip(columns, group["figures"], strict=True):
        head = (group["site"], column["column"])
        size = (group["rows"], one["known"], one["missing"])
        numbers = (one["mean"], one["sd"], *(one["quartiles"] or (None,) * 3))
        if not column["levels"]:
            ends = _event_share(one), one["events"], one.get("followed")
            yield (*head, None, *size, *numbers, *ends)
        for place, level in enumerate(column["levels"]):
            yield (*head, level, *size, *numbers, _share_of(place)(one), None, None)


SECTION = Section("baseline", _write, _present, {"baseline": None}, tabulate=_tabulate)

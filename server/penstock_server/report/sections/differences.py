"""How far sites' tables are from each other, and how far privacy moves them."""

from __future__ import annotations

import math

from penstock.base.documents import Json
from penstock.schema import Schema
from penstock.telling import phrases
from penstock.telling.axis import number_text
from penstock_server.analysis.table_distances import Apart, Comparison, Moved
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Section

MOST_COLUMNS = 3
"""In which a site differs most."""


def _write(inputs: ReportInputs, report: Json) -> Json:
    sites = {s.name: found for s in inputs.measured if (found := s.summary(Moved)) is not None}
    schema = inputs.study.schema
    beside = Comparison(schema, sites).compare_all()
    return {"differences": [_site(schema, name, own, beside[name]) for name, own in sites.items()]}


def _site(schema: Schema, name: str, own: Moved, apart: Apart | None) -> Json:
    columns = [] if apart is None else list(apart.columns.items())[:MOST_COLUMNS]
    return {
        "site": name,
        "copies": own.copies,
        "refits": own.refits,
        "others": None if apart is None else apart.distance,
        "columns": [
            {"column": column, "label": phrases.column_name(schema[column]), "distance": distance}
            for column, distance in columns
        ],
        "exact": _exact(own, apart),
    }


def _exact(own: Moved, apart: Apart | None) -> Json | None:
    found = own.exact
    if found is None:
        return None
    return {
        "rows": found.rows,
        "halves": found.halves,
        "largest": found.largest,
        "copies": found.copies,
        "refits": found.refits,
        "others": None if apart is None else apart.exact,
    }


def _present(report: Json) -> Json:
    return {
        "rows": [
            {
                "site": site["site"],
                **{
                    name: "–" if site[name] is None else number_text(site[name], 2)
                    for name in ("copies", "refits", "others")
                },
                "columns": ", ".join(
                    f"{c['label']} {number_text(c['distance'], 2)}" for c in site["columns"]
                ),
            }
            for site in report["differences"]
        ],
        "exact": [
            {
                "site": site["site"],
                "rows": site["exact"]["rows"],
                "halves": "{} ({})".format(
                    *(number_text(site["exact"][name], 2) for name in ("halves", "largest"))
                ),
                **{name: _beyond(site["exact"], name) for name in ("copies", "refits", "others")},
            }
            for site in report["differences"]
            if site["exact"] is not None
        ],
    }


def _beyond(exact: Json, name: str) -> str:
    """A distance, and what of it is beyond chance: how long a shift would do the same."""
    if exact[name] is None:
        return "–"
    distance, halves = exact[name], exact["halves"]
    found = number_text(distance, 2)
    if distance <= exact["largest"]:
        return f"{found} (chance)"
    shift = math.sqrt(distance**2 - halves**2)
    return f"{found} (shift {number_text(shift, 2)})"


SECTION = Section("differences", _write, _present, absent={"differences": []})

"""How far sites' tables are from each other, and how far privacy moves them."""

from __future__ import annotations

from penstock.base.documents import Json
from penstock_server.analysis.sliced_distance import Moved, compare_site
from penstock_server.report import phrases
from penstock_server.report.axis import number_text
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Section

MOST_COLUMNS = 3
"""In which a site differs most."""


def _write(inputs: ReportInputs, report: Json) -> Json:
    sites = {s.name: found for s in inputs.delivered if (found := s.summary(Moved)) is not None}
    return {"differences": [_site(name, inputs, sites) for name in sites]}


def _site(name: str, inputs: ReportInputs, sites: dict[str, Moved]) -> Json:
    schema, own = inputs.study.schema, sites[name]
    apart = compare_site(schema, name, sites)
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
        ]
    }


SECTION = Section("differences", _write, _present, absent={"differences": []})

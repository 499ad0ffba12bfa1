"""From sites' estimates to the report: one JSON-able dict, described by report.schema.json.

Each section writes its part (:mod:`penstock_server.report.contents`).
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

from penstock.base.documents import Json
from penstock.questions.models import EVERY
from penstock_server.report.contents import SECTIONS
from penstock_server.report.inputs import ReportInputs, SiteInput, SiteRelease

__all__ = ["ReportInputs", "SiteInput", "SiteRelease", "build_report", "report_schema"]

FORMAT = "penstock.report"
FORMAT_VERSION = "1.13"


def build_report(inputs: ReportInputs) -> Json:
    """The report of a study: everything that the page shows, with all digits.

    Sites without an estimate keep a ``problem``. NaN never occurs; null stands where there is no
    number.
    """
    found: Json = {"format": FORMAT, "format_version": FORMAT_VERSION}
    for section in SECTIONS:
        found |= section.write(inputs, found)
    return _ordered(found)


def complete_report(report: Json) -> Json:
    """A kept report of an older format, with what later ones added to it; another one as it is."""
    if report["format_version"] == FORMAT_VERSION:
        return report
    absent: Json = {}
    for section in SECTIONS:
        absent |= section.absent
    known = {**absent, **report}
    changed = {
        "format_version": FORMAT_VERSION,
        "estimands": [_complete_estimand(e) for e in known["estimands"]],
        "effects": [_complete_held(effect) for effect in known["effects"]],
        "differences": [{"exact": None, **site} for site in known["differences"]],
        "survival": [{**curve, "at_risk": curve.get("at_risk")} for curve in known["survival"]],
        "sites": [{"persons": None, **site} for site in known["sites"]],
    }
    return _ordered(known | changed)


def _complete_estimand(estimand: Json) -> Json:
    model = EVERY.of(estimand["model"])
    absent = {"fitted": model.title, "held": None, "robust": None, "scale": model.scale}
    found = {**absent, **estimand}
    if found["held"] is not None:
        found["held"] = _complete_held(found["held"])
    return found


def _complete_held(held: Json) -> Json:
    sites = [{"doubt": None, **site} for site in held["sites"]]
    return {"doubt": None, **held, "sites": sites}


def _ordered(part: Json) -> Json:
    """The keys as the schema has them: the page's order is another."""
    places = {key: place for place, key in enumerate(report_schema()["properties"])}
    return {key: part[key] for key in sorted(part, key=places.__getitem__)}


@cache
def report_schema() -> Json:
    """The published JSON Schema of the report (draft 2020-12)."""
    text = resources.files(__package__).joinpath("report.schema.json").read_text(encoding="utf-8")
    schema: Json = json.loads(text)
    return schema

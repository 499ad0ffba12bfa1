"""What the tables hold beside what was asked: effects tried on request, and the model's classes."""

from __future__ import annotations

from dataclasses import asdict

from penstock.base.documents import Json
from penstock.inference.slopes import Held
from penstock.telling.marks import name_mark, tell_held, tell_sites, tell_slope
from penstock_server.mechanisms.registry import kind_of
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Section


def _write(inputs: ReportInputs, report: Json) -> Json:
    seen = {site.name: site.summary(Held) for site in inputs.measured}
    slopes = {site: found.requested for site, found in seen.items() if found is not None}
    # What a site tells of an effect goes about as its number of rows.
    rows = {s.name: float(s.release.rows) for s in inputs.measured if s.release is not None}
    effects = dict.fromkeys(name for found in slopes.values() for name in found)
    return {
        "effects": [
            {
                "effect": effect,
                **(tell_held({site: f[effect] for site, f in slopes.items()}, rows) or {}),
            }
            for effect in effects
        ],
        "holds": [asdict(one) for one in kind_of(inputs.study).list_classes()],
    }


def _present(report: Json) -> Json:
    return {
        "effects": [
            {
                "data": e,
                "mark": name_mark(e["mark"]),
                "slope": tell_slope(e),
                "sites": tell_sites(e),
            }
            for e in report["effects"]
        ]
    }


SECTION = Section("holds", _write, _present, absent={"effects": [], "holds": []})

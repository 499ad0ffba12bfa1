"""Invited sites without a release, and why."""

from __future__ import annotations

from penstock.base.documents import Json
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Section


def _write(inputs: ReportInputs, report: Json) -> Json:
    return {
        "missing": [
            {"site": s.name, "state": s.state, "code": s.code, "remedy": s.remedy}
            for s in inputs.sites
            if s.release is None
        ]
    }


SECTION = Section("missing", _write)

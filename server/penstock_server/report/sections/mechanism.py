"""How the sites made their releases, in plain words."""

from __future__ import annotations

from penstock.base.documents import Json
from penstock_server.mechanisms.registry import kind_of
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Section


def _write(inputs: ReportInputs, report: Json) -> Json:
    return {"mechanism": kind_of(inputs.study).explain()}


SECTION = Section("mechanism", _write, absent={"mechanism": []})

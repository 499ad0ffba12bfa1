"""What the numbers do and do not include."""

from __future__ import annotations

import math

from penstock.base.documents import Json
from penstock.study.study import Study
from penstock_server.mechanisms.registry import kind_of
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Section


def _write(inputs: ReportInputs, report: Json) -> Json:
    known = any(math.isfinite(s.df) for site in inputs.delivered for s in site.estimates.values())
    return {"limits": list_limits(inputs.study, mechanism_variance=known)}


def list_limits(study: Study, *, mechanism_variance: bool) -> list[str]:
    """What the numbers do and do not include, one statement each."""
    persons = study.max_sites_per_person
    first, last = kind_of(study).list_limits(mechanism_variance=mechanism_variance)
    return [
        *first,
        "The fixed-effect line assumes one true effect in all sites, and that all noise is known. "
        "Its interval is too narrow where that fails. It is shown for comparison.",
        "The prediction interval says where the effect in a new, similar site would lie.",
        "Privacy is counted per person. Two data sets are neighbours if one person's data is "
        "replaced by a null record; the number n of persons in the declared frame is public "
        "(zero-out). Replace-one values stand beside it because papers quote them: compare like "
        "with like only.",
        "Each person is assumed to be in one site only."
        if persons == 1
        else f"Each person is assumed to be in at most {persons} sites.",
        *last,
    ]


SECTION = Section("limits", _write)

"""Of a study of both: each site's own releases, pooled, beside the one release of all sites."""

from __future__ import annotations

from penstock.base.documents import Json
from penstock_server.report.inputs import ReportInputs
from penstock_server.report.section import Section
from penstock_server.report.sections.answers import scale_of


def _write(inputs: ReportInputs, report: Json) -> Json:
    """Nothing yet: the other half may end later, and is looked up whenever this one is pulled."""
    return {"beside": None}


def tell_beside(scope: str, whole: float, own: Json, other: Json | None, named: Json) -> Json:
    """What a report of one half says of the other.

    Args:
        scope: of this half, "site" or "global"; whole: ε of the whole study.
        own, other: the reports of both halves; None where there is none (yet).
        named: of the other half ``study`` (its id), ``state``, and the ``epsilon`` of either.
    """
    found = {} if other is None else {e["name"]: e for e in other["estimands"]}
    rows = []
    for estimand in own["estimands"]:
        pair = [estimand, found.get(estimand["name"])]
        each, joint = pair if scope == "site" else pair[::-1]
        rows.append(
            {
                "estimand": estimand["name"],
                "site": _take(each),
                "global": _take(joint),
                "heterogeneity": None if each is None else each["heterogeneity"],
            }
        )
    return {"scope": scope, "whole": whole, **named, "answers": rows}


def _take(estimand: Json | None) -> Json | None:
    """An estimate with its interval, on the scale of the answer, and of how many releases it is."""
    if estimand is None or estimand["random"] is None:
        return None
    value: Json = {**estimand["random"]["value"], "k": estimand["random"]["k"]}
    return value


def _show(report: Json) -> Json:
    told = report["beside"]
    if told is None:
        return {"beside": None}
    known = {e["name"]: e for e in report["estimands"]}
    rows = [
        {"told": row, "estimand": known[row["estimand"]], "scale": scale_of(known[row["estimand"]])}
        for row in told["answers"]
    ]
    return {"beside": {**told, "rows": rows}}


SECTION = Section("beside", _write, show=_show, absent={"beside": None})

"""The report as one self-contained HTML file: no script, nothing fetched from anywhere."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from penstock.mechanisms import Gibbs
from penstock.questions.models import MODELS
from penstock.wire.messages import CODES
from penstock_server.report import draw
from penstock_server.report.axis import (
    RATIO_DECIMALS,
    Scale,
    decimals_for,
    number_text,
    power_text,
)
from penstock_server.report.forest import ForestPlot, ForestRow, ForestSummary, forest_svg
from penstock_server.report.marginals import marginals_svg
from penstock_server.report.trajectory import panels

Json = dict[str, Any]


def render(report: Json) -> str:
    """The page of a report made by :func:`penstock_server.report.build.build_report`.

    Names, titles, codes and remedies are hostile text: everything is escaped, and the page forbids
    scripts and requests by its own content security policy.
    """
    estimands = [
        {
            "data": e,
            "model": MODELS.of(e["model"]),
            "figure": _figure(e, position),
            "scale": _scale(e),
        }
        for position, e in enumerate(report["estimands"])
    ]
    return _template().render(
        report=report,
        study=report["study"],
        estimands=estimands,
        marginals=_marginals(report["trajectory"]),
        answered=report["study"]["mechanism"]["name"] == Gibbs.name,
        relations=sorted({site["relation"] for site in report["sites"]}),
        style=Markup(_text("report.css")),
        figure_style=Markup(draw.css()),
    )


def plot_of(estimand: Json) -> ForestPlot:
    """The forest plot of one of the report's estimands."""
    rows = []
    for site in estimand["sites"]:
        if site["problem"] is not None:
            nan = math.nan
            rows.append(ForestRow(site["site"], nan, nan, nan, problem=site["problem"]))
            continue
        c = site["coefficient"]
        rows.append(
            ForestRow(
                site["site"],
                c["estimate"],
                c["low"],
                c["high"],
                weight=site["weight"],
                note=_size(site),
                flagged=bool(site["influence"] and site["influence"]["flagged"]),
            )
        )
    summaries = []
    prediction = None
    head = estimand["random"]
    if head is not None and head["k"] > 1:
        summaries = [
            _summary("Random effects", head, "random"),
            _summary("Fixed effect", estimand["fixed"], "fixed"),
        ]
        if head["prediction"] is not None:
            interval = head["prediction"]["coefficient"]
            prediction = (interval["low"], interval["high"])
    truth = estimand["truth"]
    return ForestPlot(
        title=f"Forest plot: {estimand['axis_label']}",
        axis_label=estimand["axis_label"],
        short=estimand["short"],
        log=estimand["log"],
        rows=tuple(rows),
        summaries=tuple(summaries),
        prediction=prediction,
        truth=None if truth is None else truth["coefficient"],
        sides=tuple(estimand["sides"]) or None,
        level=estimand["level"],
        note=_size_heading(estimand["sites"]),
    )


def _size(site: Json) -> str:
    """Rows and events behind a site's estimate, of its synthetic copies."""
    size = "–" if site["n"] is None else f"{site['n']:,}"
    return size if site["events"] is None else f"{size} / {site['events']:,}"


def _size_heading(sites: Sequence[Json]) -> str:
    """What :func:`_size` gives: none of it counts patients."""
    if all(site["n"] is None for site in sites):
        return "n"
    events = any(site["events"] is not None for site in sites)
    return "Synthetic n / events" if events else "Synthetic n"


def _summary(label: str, pooled: Json, kind: Any) -> ForestSummary:
    c = pooled["coefficient"]
    return ForestSummary(label, c["estimate"], c["low"], c["high"], kind)


def _figure(estimand: Json, position: int) -> dict[str, Markup] | None:
    if not estimand["sites"]:
        return None
    plot = plot_of(estimand)
    # forest_svg escapes every label.
    return {
        "wide": Markup(forest_svg(plot, uid=f"forest-{position}-wide")),
        "compact": Markup(forest_svg(plot, uid=f"forest-{position}-compact", compact=True)),
    }


def _marginals(part: Json | None) -> list[Json]:
    """The figures of a trajectory: all sites first."""
    if part is None:
        return []
    found = []
    for position, figure in enumerate(part["figures"]):
        drawn = panels(part, figure)
        title = f"Marginals with paths: {figure['site'] or 'all sites'}"
        uid = f"marginals-{position}"
        # marginals_svg escapes every label.
        wide = marginals_svg(drawn, title=title, uid=f"{uid}-wide")
        compact = marginals_svg(drawn, title=title, uid=f"{uid}-compact", compact=True)
        found.append({"site": figure["site"], "wide": Markup(wide), "compact": Markup(compact)})
    return found


def _scale(estimand: Json) -> Scale:
    """Number format for values that are on the reader's scale already."""
    least, head = (RATIO_DECIMALS if estimand["log"] else 0), estimand["random"]
    half = 0.0 if head is None else (head["value"]["high"] - head["value"]["low"]) / 2
    return Scale(0.0, 1.0, False, decimals_for(half, least=least), estimand["log"])


def _interval(value: Json, scale: Scale) -> str:
    return scale.interval_text(value["low"], value["high"])


def _epsilon(value: float | str | None) -> str:
    if value is None:
        return "not stated"
    if isinstance(value, str):
        return "∞"
    if 0 < value < 0.00005:
        return "<0.0001"
    return number_text(value, 2 if value >= 0.1 else 4)


def _moment(text: str) -> str:
    """RFC 3339 in UTC, to the minute: nobody reads seconds of a study that takes days."""
    found = re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)\S*Z$", text)
    return f"{found[1]} {found[2]} UTC" if found else text


def _meaning(code: str) -> str:
    """What a site's code means; nothing of one that is not known here."""
    return CODES.get(code, ("", ""))[0]


def _significant(value: float, digits: int = 2) -> str:
    """``digits`` significant digits, in powers of ten where plain digits would be long."""
    if value == 0 or not math.isfinite(value):
        return number_text(value, 0)
    exponent = math.floor(math.log10(abs(value)))
    if -4 < exponent < 6:
        return number_text(value, max(0, digits - 1 - exponent))
    return power_text(value, digits)


def _p_value(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _percent(value: float) -> str:
    return f"{100 * value:.0f}%"


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "interval": _interval,
        "epsilon": _epsilon,
        "significant": _significant,
        "p_value": _p_value,
        "percent": _percent,
        "moment": _moment,
        "meaning": _meaning,
    }
    return environment.from_string(_text("report.html.j2"))


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")

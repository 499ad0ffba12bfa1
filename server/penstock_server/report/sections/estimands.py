"""The estimands one by one: a forest plot, facts about pooling, and numbers by site."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from markupsafe import Markup

from penstock.base.documents import Json
from penstock.base.text import count_text
from penstock.mechanisms.joint.consortium import ALL_SITES
from penstock.questions.models import EVERY
from penstock.telling.forest import (
    ForestPlot,
    forest_png,
    forest_svg,
    read_plot,
    read_row,
    read_summary,
)
from penstock.telling.marks import tell_sites
from penstock_server.report.sandwich import tell_ratios
from penstock_server.report.section import Picture, Section
from penstock_server.report.sections.answers import is_answered, scale_of


def plot_of(estimand: Json) -> ForestPlot:
    """The forest plot of one of the report's estimands."""
    rows = [
        read_row(
            site,
            note=_size(site),
            flagged=bool((site.get("influence") or {}).get("flagged")),
        )
        for site in estimand["sites"]
    ]
    summaries = []
    prediction = None
    head = estimand["random"]
    joint = [site["site"] for site in estimand["sites"]] == [ALL_SITES]
    if head is None or joint:  # of one release its row is the answer
        pass
    elif head["method"] == "total":
        summaries = [read_summary(count_text(head["k"], "site"), head, "total")]
    elif head["k"] > 1:
        summaries = [
            read_summary("Random effects", head, "random", answered=is_answered(estimand)),
            read_summary("Fixed effect", estimand["fixed"], "fixed"),
        ]
        if head["prediction"] is not None:
            interval = head["prediction"]["coefficient"]
            prediction = (interval["low"], interval["high"])
    truth = estimand["truth"]
    return read_plot(
        estimand,
        rows,
        summaries,
        note=_size_heading(estimand["sites"]),
        prediction=prediction,
        truth=None if truth is None else truth["coefficient"],
        weighed=not joint,
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


def _figure(estimand: Json, position: int) -> dict[str, Markup] | None:
    if not estimand["sites"]:
        return None
    plot = plot_of(estimand)
    # forest_svg escapes every label.
    return {
        "wide": Markup(forest_svg(plot, uid=f"forest-{position}-wide")),
        "compact": Markup(forest_svg(plot, uid=f"forest-{position}-compact", compact=True)),
    }


def _present(report: Json) -> Json:
    return {
        "estimands": [
            {
                "data": e,
                "model": EVERY.of(e["model"]),
                "figure": _figure(e, position),
                "answered": is_answered(e),
                "scale": scale_of(e),
                "told_apart": [one["estimand"] for one in report["between_sites"]],
                "held": {} if e["held"] is None else tell_sites(e["held"]),
                "robust": {} if e["robust"] is None else tell_ratios(e["robust"]),
            }
            for position, e in enumerate(report["estimands"])
        ]
    }


def _draw(report: Json) -> list[Picture]:
    return [
        Picture("forest.png", "forest plot", partial(forest_png, plot=plot_of(e)))
        for e in report["estimands"][:1]
    ]


SECTION = Section("estimands", show=_present, draw=_draw)

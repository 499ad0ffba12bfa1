"""A picture of the trade-off of w: utility against membership, an attack per panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.audit.tradeoff import (
    ATTACKS,
    CORRELATIONS,
    DIRECT,
    LATENT,
    MEANS,
    MOST_AUC,
    Point,
    Tradeoff,
)
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem
from penstock.base.pictures import check_picture

Array = NDArray[np.float64]

_BLUE, _ORANGE, _GREY = "#0072b2", "#d55e00", "#595959"
"""Okabe and Ito's: told apart with any colour vision, and by their marks without colour."""


def plot_tradeoff(
    table: Tradeoff,
    path: Path,
    *,
    title: str,
    utility: str | None = None,
    label: str | None = None,
    chosen: float | None = None,
    asked: float | None = None,
    auc: float = MOST_AUC,
) -> None:
    """Error against AUC, a panel per attack, points labelled by w; .png, .pdf or .svg.

    Args:
        utility: which of the errors; by default correlations, or means in tables of one column.
        label: of the errors' axis.
        chosen: a w to ring, as of :func:`~penstock.audit.tradeoff.choose_w`; asked: a w
            to box, as of a request.
        auc: where the line is drawn.

    Raises:
        InvalidInput: nothing was attacked, or there are no such errors; or as
            :func:`penstock.base.pictures.check_picture`. PenstockError: nothing here can draw.
    """
    check_picture(path)
    latent = table.by(LATENT)
    attacks = [a for a in ATTACKS if latent and all(a in p.reports for p in table.points)]
    if utility is None:
        utility = CORRELATIONS if latent and CORRELATIONS in latent[0].errors else MEANS
    if not attacks or not all(utility in p.errors for p in table.points):
        raise InvalidInput("trade-off", [Problem("picture", "nothing to draw", value=utility)])
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(4.8 * len(attacks) + 0.6, 5.0), layout="constrained", facecolor="white"
    )
    panels = figure.subplots(1, len(attacks), sharex=True, sharey=True, squeeze=False)[0]
    for axes, attack in zip(panels, attacks, strict=True):
        _curves(axes, table, attack, utility)
        _marks(axes, latent, attack, utility, auc, {"chosen": chosen, "asked": asked})
        _frame(axes, attack, auc)
    panels[0].set_ylabel(label or f"error of {utility} (logarithmic)")
    handles, labels = panels[0].get_legend_handles_labels()
    columns = 3 if len(attacks) > 1 else 2
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", parse_math=False)
    figure.draw_without_rendering()  # where labels would meet is known from here
    for axes, attack in zip(panels, attacks, strict=True):
        _labels(axes, latent, attack, utility, chosen, asked)
    figure.savefig(path, dpi=200)


def _curves(axes: Any, table: Tradeoff, attack: str, utility: str) -> None:
    styles = ((LATENT, _BLUE, "o-"), (DIRECT, _ORANGE, "s--"))
    for way, colour, style in styles:
        points = table.by(way)
        if not points:
            continue
        x = [p.reports[attack].auc.value for p in points]
        y = [p.errors[utility] for p in points]
        axes.plot(x, y, style, color=colour, linewidth=1.4, markersize=4.5, label=f"{way}, by w")
        low = [p.reports[attack].auc.low for p in points]
        high = [p.reports[attack].auc.high for p in points]
        axes.hlines(y, low, high, color=colour, alpha=0.3, linewidth=1)


def _marks(
    axes: Any,
    latent: Sequence[Point],
    attack: str,
    utility: str,
    auc: float,
    marked: Mapping[str, float | None],
) -> None:
    ring: Json = {"fillstyle": "none", "linestyle": "none", "markeredgewidth": 1.6}
    for point in latent:
        at = point.reports[attack].auc.value, point.errors[utility]
        if point.w == 0:
            axes.plot(*at, "D", color="black", ms=7, zorder=4, label="w = 0: flow sampling")
        if point.w == marked["chosen"]:
            label = f"largest w with AUC ≤ {auc:g}"
            axes.plot(*at, "o", ms=13, color="black", zorder=5, label=label, **ring)
        if point.w == marked["asked"]:
            axes.plot(*at, "s", ms=12, color=_GREY, zorder=5, label="w as asked", **ring)


def _frame(axes: Any, attack: str, auc: float) -> None:
    axes.axvline(auc, color=_GREY, linewidth=1, linestyle=":", zorder=1)
    axes.text(auc + 0.005, 0.99, f"{auc:g}", transform=axes.get_xaxis_transform(), va="top")
    axes.set_title(f"attack by {attack}", fontsize=10, loc="left")
    axes.set_xlabel("membership AUC, with 95 % interval; 0.5 is chance")
    axes.set_xlim(min(0.48, axes.get_xlim()[0]), 1.01)
    axes.set_yscale("log")
    axes.grid(True, which="major", color="#e5e5e5", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _labels(
    axes: Any,
    latent: Sequence[Point],
    attack: str,
    utility: str,
    chosen: float | None,
    asked: float | None,
) -> None:
    """Each w beside its point, the marked ones first, where there is room."""
    points = axes.figure.dpi / 72
    taken: list[Array] = []
    for point in sorted(latent, key=lambda p: (p.w not in (chosen, asked), -p.w)):
        at = (point.reports[attack].auc.value, point.errors[utility])
        # The w that was asked goes to the other side: it is often next to the chosen one.
        aside = point.w == asked != chosen
        far = 9 if point.w in (chosen, 0.0) else 5
        offset, ends = ((-9, -12), "right") if aside else ((far, 4), "left")
        place = axes.transData.transform(at) + points * np.array([-35 if aside else far, offset[1]])
        if all((np.abs(place - other) > points * np.array([26, 11])).any() for other in taken):
            taken.append(place)
            axes.annotate(
                f"{point.w:g}", at, offset, textcoords="offset points", ha=ends, fontsize=9
            )

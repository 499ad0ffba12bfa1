"""A picture of claims beside what attacks show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.audit.worlds import Finding
from penstock.base.documents import Json
from penstock.base.errors import InvalidInput, Problem
from penstock.base.pictures import check_picture

_CLAIM: Json = {"marker": "s", "markersize": 10, "fillstyle": "none", "zorder": 4}
_PLD: Json = {"marker": "D", "markersize": 9, "fillstyle": "none", "zorder": 4}

_NOTHING = 0.05
"""Bounds below this are drawn at it, at the left edge of a logarithmic axis."""

_BLUE, _ORANGE, _GREY = "#0072b2", "#d55e00", "#595959"
"""Okabe and Ito's: told apart with any colour vision, and by their marks without colour."""


def draw(findings: Sequence[Finding], path: Path) -> None:
    """Claimed ε (autodp, PLD) and lower bounds, a row per attack; format by the path's suffix.

    Raises:
        InvalidInput: nothing to draw; or as :func:`penstock.base.pictures.check_picture`.
    """
    if not findings:
        raise InvalidInput("plot", [Problem("findings", "there are none")])
    check_picture(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = 1.6 + 0.34 * len(findings)
    figure = Figure(figsize=(9.0, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for row, found in enumerate(findings):
        _row(axes, row, found)
    _frame(axes, findings)
    figure.savefig(path, dpi=150)


def _row(axes: Any, y: int, found: Finding) -> None:
    shown, gate = (max(b.epsilon, _NOTHING) for b in (found.shown, found.gate))
    colour = _BLUE if found.holds else _ORANGE
    axes.plot([_NOTHING, shown], [y, y], color=colour, linewidth=0.8, alpha=0.35, zorder=1)
    axes.plot([gate, shown], [y, y], color=colour, linewidth=3.5, alpha=0.6, zorder=2)
    axes.plot(gate, y, marker="|", markersize=11, markeredgewidth=2, color=colour, zorder=3)
    # Hollow claims, so that a bound that comes close is seen inside them.
    if math.isfinite(found.claim):
        axes.plot(found.claim, y, color="black", **_CLAIM)
    if math.isfinite(found.pld):
        axes.plot(found.pld, y, color=_GREY, **_PLD)
    axes.plot(shown, y, marker="o", markersize=5, color=colour, zorder=5)


def _frame(axes: Any, findings: Sequence[Finding]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    confidence = f"{100 * findings[0].shown.confidence:g} %"
    values = [v for f in findings for v in (f.claim, f.pld, f.shown.epsilon) if math.isfinite(v)]
    axes.set_xscale("log")
    axes.set_xlim(0.8 * _NOTHING, 1.6 * max(values))
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: f"≤{x:g}" if x <= _NOTHING else f"{x:g}")
    )
    axes.set_ylim(len(findings) - 0.4, -0.6)
    axes.set_yticks(range(len(findings)))
    axes.set_yticklabels(
        [f"{f.name}  ({f.method.replace('two-world', '2 worlds')})" for f in findings]
    )
    axes.set_xlabel("ε at each mechanism's own δ, logarithmic; a bound of 0 is at the left edge")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    none: Json = {"linestyle": "none"}
    marks = [
        Line2D([], [], color="black", label="claimed, autodp", **_CLAIM, **none),
        Line2D([], [], color=_GREY, label="claimed, PLD", **_PLD, **none),
        Line2D([], [], marker="o", color=_BLUE, label=f"shown, {confidence}", **none),
        Line2D([], [], marker="|", mew=2, ms=11, color=_BLUE, label="shown, 1 - 1e-7", **none),
    ]
    if not all(f.holds for f in findings):
        marks.append(Line2D([], [], marker="o", color=_ORANGE, label="claim broken", **none))
    axes.figure.legend(handles=marks, loc="outside upper center", ncols=len(marks), frameon=False)

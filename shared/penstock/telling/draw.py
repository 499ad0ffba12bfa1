"""A drawing as a list of marks, written as SVG or by matplotlib: one layout, two renderings."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.base.printable import make_printable

Anchor = Literal["start", "middle", "end"]

COLOURS: dict[str, tuple[str, str]] = {
    # name: light, dark. Blue, vermillion, green and purple after Okabe & Ito: told apart by
    # people with any colour-vision deficiency; meaning never rests on colour alone.
    "ink": ("#17212b", "#e6edf3"),
    "muted": ("#56626e", "#9da9b5"),
    "rule": ("#d4dae0", "#343c45"),
    "site": ("#0b66a3", "#63b6ee"),
    "random": ("#c04a00", "#ff9b57"),
    "prediction": ("#eeb58c", "#8a4d1f"),
    "truth": ("#00745a", "#39cfa4"),
    "flag": ("#9c2a78", "#f08fce"),
    "outer": ("#dbe9f4", "#1b3245"),
    "inner": ("#a9cde8", "#2c5878"),
    "paper": ("#ffffff", "#12171d"),
    "heat-0": ("#eef4f9", "#17222c"),
    "heat-1": ("#cfe1f0", "#1c303f"),
    "heat-2": ("#a3c8e3", "#22445f"),
    "heat-3": ("#74b0d9", "#285a82"),
    "heat-4": ("#4a97ca", "#2c6fa5"),
}

HEATS = 5
"""Steps of a heat map; on each of them, text is read as on paper."""

LEVEL_COLOURS = ("site", "random", "truth", "flag", "muted")
"""Of lines that are told apart by their labels, too."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a mark looks: names out of :data:`COLOURS`, lengths in drawing units.

    A halo of paper keeps text readable where a line runs behind it; on a coloured cell is none.
    """

    fill: str | None = None
    stroke: str | None = None
    width: float = 1.0
    dash: tuple[float, float] | None = None
    size: float = 13.0
    bold: bool = False
    halo: bool = True


STYLES: dict[str, Style] = {
    "text": Style(fill="ink"),
    "strong": Style(fill="ink", bold=True),
    "muted": Style(fill="muted"),
    "small": Style(fill="muted", size=11.5),
    "tick": Style(fill="muted", size=11.5),
    "flagged": Style(fill="flag", bold=True),
    "truth-text": Style(fill="truth", size=11.5, bold=True),
    "random-text": Style(fill="random", bold=True),
    "rule": Style(stroke="rule"),
    "blank": Style(fill="paper"),
    "axis": Style(stroke="muted"),
    "null": Style(stroke="muted", width=1.2),
    "pooled-line": Style(stroke="random", width=1.0, dash=(1.5, 3.5)),
    "truth": Style(stroke="truth", width=1.8, dash=(6.0, 4.0)),
    "whisker": Style(stroke="site", width=1.8),
    "square": Style(fill="site"),
    "flag-whisker": Style(stroke="flag", width=1.8),
    "flag-square": Style(fill="flag"),
    "random": Style(fill="random"),
    "fixed": Style(fill="paper", stroke="muted", width=1.6),
    "prediction": Style(fill="prediction"),
    "prediction-cap": Style(stroke="random", width=1.6),
    "outer": Style(fill="outer"),
    "inner": Style(fill="inner"),
    "median": Style(stroke="site", width=2.0),
    "path": Style(stroke="random", width=0.7),
    "grid": Style(stroke="rule", width=0.8),
    **{f"level-{i}": Style(stroke=name, width=1.8) for i, name in enumerate(LEVEL_COLOURS)},
    **{f"site-{i}": Style(stroke=name, width=0.6) for i, name in enumerate(LEVEL_COLOURS)},
    **{
        f"limit-{i}": Style(stroke=name, width=1.0, dash=(4.0, 3.0))
        for i, name in enumerate(LEVEL_COLOURS)
    },
    **{f"heat-{i}": Style(fill=f"heat-{i}") for i in range(HEATS)},
    "heat-text": Style(fill="ink", bold=True, halo=False),
    "heat-small": Style(fill="ink", size=11.5, halo=False),
    **{f"level-dot-{i}": Style(fill=name) for i, name in enumerate(LEVEL_COLOURS)},
    **{
        f"level-text-{i}": Style(fill=name, size=11.5, bold=True)
        for i, name in enumerate(LEVEL_COLOURS)
    },
}


@dataclass(frozen=True, slots=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    style: str


@dataclass(frozen=True, slots=True)
class Polygon:
    points: tuple[tuple[float, float], ...]
    style: str


@dataclass(frozen=True, slots=True)
class Polyline:
    """An open line; a point that is not finite breaks it."""

    points: tuple[tuple[float, float], ...]
    style: str

    def pieces(self) -> list[list[tuple[float, float]]]:
        """The runs of two or more finite points."""
        found: list[list[tuple[float, float]]] = [[]]
        for x, y in self.points:
            if math.isfinite(x) and math.isfinite(y):
                found[-1].append((x, y))
            elif found[-1]:
                found.append([])
        return [piece for piece in found if len(piece) > 1]


@dataclass(frozen=True, slots=True)
class Label:
    """Text whose baseline is at y; ``full`` is what a pointer shows where text was cut."""

    x: float
    y: float
    text: str
    style: str = "text"
    anchor: Anchor = "start"
    full: str | None = None


Mark = Line | Polygon | Polyline | Label


@dataclass(frozen=True, slots=True)
class Drawing:
    width: float
    height: float
    marks: tuple[Mark, ...]


def css() -> str:
    """The style sheet of all drawings: light, dark, and always light on paper."""
    light = "".join(f"--fp-{name}:{pair[0]};" for name, pair in COLOURS.items())
    dark = "".join(f"--fp-{name}:{pair[1]};" for name, pair in COLOURS.items())
    rules = [
        f":root{{{light}}}",
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}",
        ".fp text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,"
        "sans-serif;font-variant-numeric:tabular-nums;"
        "paint-order:stroke;stroke:var(--fp-paper);stroke-width:4px;stroke-linejoin:round}",
    ]
    for name, style in STYLES.items():
        fill = f"var(--fp-{style.fill})" if style.fill else "none"
        rule = f"fill:{fill};font-size:{style.size:g}px;"
        if style.bold:
            rule += "font-weight:600;"
        if style.stroke:
            rule += f"stroke:var(--fp-{style.stroke});stroke-width:{style.width:g};"
        if style.dash:
            rule += f"stroke-dasharray:{style.dash[0]:g} {style.dash[1]:g};"
        if not style.halo:
            rule += "stroke:none;"
        rules.append(f".fp .fp-{name}{{{rule}}}")
    return "\n".join(rules)


def to_svg(
    drawing: Drawing, *, title: str, description: str, uid: str, standalone: bool = False
) -> str:
    """The drawing as an ``<svg>`` element with text as text.

    Args:
        title, description: for screen readers; any text, it is escaped.
        uid: prefix of the element ids, unique within the page; letters, digits, hyphens.
        standalone: put the style sheet and the XML namespace in, for a file of its own.
    """
    namespace = ' xmlns="http://www.w3.org/2000/svg"' if standalone else ""
    style = f"<style>{css()}</style>" if standalone else ""
    body = "".join(_mark_svg(mark) for mark in drawing.marks)
    return (
        f'<svg class="fp"{namespace} role="img" aria-labelledby="{uid}-t {uid}-d" '
        f'viewBox="0 0 {drawing.width:g} {drawing.height:g}">'
        f'<title id="{uid}-t">{_escape(title)}</title>'
        f'<desc id="{uid}-d">{_escape(description)}</desc>{style}{body}</svg>'
    )


def to_file(drawing: Drawing, path: Path, *, title: str, dpi: int = 200) -> None:
    """Draw with matplotlib; the suffix says what: .png, .pdf or .svg. Light, on white paper."""
    # Slow to import, and only needed for files.
    from matplotlib.figure import Figure
    from matplotlib.patheffects import withStroke

    # One drawing unit is one point, so that font sizes are the same numbers in both renderings.
    margin = 14.0
    size = ((drawing.width + 2 * margin) / 72, (drawing.height + 2 * margin) / 72)
    figure = Figure(figsize=size, facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(-margin, drawing.width + margin)
    axes.set_ylim(drawing.height + margin, -margin)
    axes.axis("off")
    for order, mark in enumerate(drawing.marks):
        style = STYLES[mark.style]
        fill = COLOURS[style.fill][0] if style.fill else "none"
        stroke = COLOURS[style.stroke][0] if style.stroke else "none"
        if isinstance(mark, Label):
            align = {"start": "left", "middle": "center", "end": "right"}[mark.anchor]
            weight = "bold" if style.bold else "normal"
            halo = [withStroke(linewidth=3, foreground="white")] if style.halo else []
            # parse_math off: a dollar sign in a hostile name must not start a formula.
            axes.text(
                mark.x, mark.y, _show(mark.text), color=fill, fontsize=style.size * 0.9,
                ha=align, va="baseline", fontweight=weight, parse_math=False, zorder=order,
                path_effects=halo,
            )  # fmt: skip
        elif isinstance(mark, Line):
            axes.plot(
                [mark.x1, mark.x2], [mark.y1, mark.y2], color=stroke, linewidth=style.width,
                linestyle=(0, style.dash) if style.dash else "-", solid_capstyle="butt",
                scalex=False, scaley=False, zorder=order,
            )  # fmt: skip
        elif isinstance(mark, Polyline):
            for piece in mark.pieces():
                axes.plot(
                    [x for x, _ in piece], [y for _, y in piece], color=stroke,
                    linewidth=style.width, linestyle=(0, style.dash) if style.dash else "-",
                    scalex=False, scaley=False, zorder=order,
                )  # fmt: skip
        else:
            axes.fill(
                [x for x, _ in mark.points], [y for _, y in mark.points], facecolor=fill,
                edgecolor=stroke, linewidth=style.width if style.stroke else 0.0, zorder=order,
            )  # fmt: skip
    figure.savefig(path, dpi=dpi, facecolor="white", metadata={"Title": title})


def _mark_svg(mark: Mark) -> str:
    name = f'class="fp-{mark.style}"'
    if isinstance(mark, Line):
        ends = f'x1="{mark.x1:.1f}" y1="{mark.y1:.1f}" x2="{mark.x2:.1f}" y2="{mark.y2:.1f}"'
        return f"<line {name} {ends}/>"
    if isinstance(mark, Polygon):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in mark.points)
        return f'<polygon {name} points="{points}"/>'
    if isinstance(mark, Polyline):
        lines = [" ".join(f"{x:.1f},{y:.1f}" for x, y in piece) for piece in mark.pieces()]
        return "".join(f'<polyline {name} points="{points}"/>' for points in lines)
    hint = f"<title>{_escape(mark.full)}</title>" if mark.full else ""
    anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
    return (
        f'<text {name} x="{mark.x:.1f}" y="{mark.y:.1f}"{anchor}>{hint}{_escape(mark.text)}</text>'
    )


def _escape(text: str) -> str:
    return html.escape(_show(text))


def _show(text: str) -> str:
    """Without control characters: XML cannot hold them, and fonts have no glyph for them."""
    return make_printable(text, " ")

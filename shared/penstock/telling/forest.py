"""Forest plots: one layout for wide pages, one for phones, as SVG or as an image file."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.base.documents import Json
from penstock.telling.axis import DIGIT, TITLE_LINE, Scale, decimals_for, scale_for, wrap_title
from penstock.telling.draw import Drawing, Label, Line, Mark, Polygon, to_file, to_svg
from penstock.telling.scales import LINKS, LOG, Link

SMALL = 6.2
"""About the width of a small letter, in drawing units."""
WIDE = 7.4
"""About the width of a letter of the rows, in drawing units."""
REASON_LINE = 15.0
"""Between the lines of a reason, in drawing units."""

Summed = Literal["random", "fixed", "total", "unanswered"]


@dataclass(frozen=True, slots=True)
class ForestRow:
    """One site. Coefficient scale; ``estimate`` is NaN where there is a ``problem``."""

    label: str
    estimate: float
    low: float
    high: float
    weight: float = 0.0
    note: str = ""
    flagged: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ForestSummary:
    """A pooled estimate, drawn as a diamond: filled for random effects, hollow for the fixed, and
    for what is no answer. A total lies far from its parts: it is written, and not drawn."""

    label: str
    estimate: float
    low: float
    high: float
    kind: Summed

    @property
    def drawn(self) -> bool:
        return self.kind != "total"

    @property
    def leads(self) -> bool:
        """Whether it is the answer."""
        return self.kind in ("random", "total")


@dataclass(frozen=True, slots=True)
class ForestPlot:
    """What a forest plot shows; all values on the coefficient scale.

    Attributes:
        title: for screen readers and file metadata.
        axis_label: below the axis, for example "Hazard ratio per 10 mmHg".
        short: heads the numbers, for example "HR".
        link: how coefficients are shown, such as exp(coefficient) with the null at 1.
        rows: the sites, in the order in which they are drawn.
        summaries: pooled estimates, the headline first.
        prediction: the prediction interval, or None.
        truth: a known truth, or None.
        sides: what lies left and right of the null value, which is 0; None where there is no such
            value.
        level: coverage of the intervals.
        note: heads the rows' notes.
        weighed: whether rows are sites, each with a weight in what is pooled; else there is one row
            of one release, and nothing is.
    """

    title: str
    axis_label: str
    short: str
    link: Link
    rows: tuple[ForestRow, ...]
    summaries: tuple[ForestSummary, ...] = ()
    prediction: tuple[float, float] | None = None
    truth: float | None = None
    sides: tuple[str, str] | None = ("lower", "higher")
    level: float = 0.95
    note: str = "n"
    weighed: bool = True

    @property
    def percent(self) -> str:
        return f"{100 * self.level:g}%"

    def scale(self) -> Scale:
        """Limits and number format. The null value is held if it is within reach."""
        drawn = [r for r in self.rows if math.isfinite(r.estimate)]
        anchors = [x for s in self.summaries if s.drawn for x in (s.low, s.estimate, s.high)]
        if not self.weighed:  # nothing else says how far the axis goes
            anchors += [x for r in drawn for x in (r.low, r.high)]
        if self.truth is not None:
            anchors.append(self.truth)
        near = [x for r in drawn for x in (r.low, r.high)] + anchors
        if near and self.sides is not None:
            reach = 0.6 * (max(near) - min(near))
            if min(near) - reach <= 0 <= max(near) + reach:
                anchors.append(0.0)
        head: ForestSummary | ForestRow | None = self.summaries[0] if self.summaries else None
        if head is None or not self.weighed:  # of one site nothing is pooled
            head = next(iter(drawn), None)
        half = 0.0
        if head is not None:
            half = (self.link.show(head.high) - self.link.show(head.low)) / 2
        return scale_for(
            link=self.link,
            estimates=[r.estimate for r in drawn],
            whiskers=[(r.low, r.high) for r in drawn],
            prediction=self.prediction,
            anchors=anchors,
            decimals=decimals_for(half, least=2 if self.link is LOG else 0),
        )


def read_row(site: Json, *, note: str = "", flagged: bool = False) -> ForestRow:
    """A site as reports and answers tell it: by ``site``, ``problem``, ``coefficient`` and
    ``weight``; of one with a problem nothing else is read."""
    if site["problem"] is not None:
        nan = math.nan
        return ForestRow(site["site"], nan, nan, nan, problem=site["problem"])
    c, weight = site["coefficient"], site["weight"]
    return ForestRow(
        site["site"],
        c["estimate"],
        c["low"],
        c["high"],
        weight=0.0 if weight is None else weight,
        note=note,
        flagged=flagged,
    )


def read_summary(label: str, pooled: Json, kind: Summed, *, answered: bool = True) -> ForestSummary:
    """What sites are pooled to, as reports and answers tell it: by ``coefficient``.

    Args:
        answered: whether it is an answer; else what is pooled is shown as none.
    """
    c = pooled["coefficient"]
    if not answered:
        label, kind = f"{label}: no answer", "unanswered"
    return ForestSummary(label, c["estimate"], c["low"], c["high"], kind)


def read_plot(
    told: Json,
    rows: Sequence[ForestRow],
    summaries: Sequence[ForestSummary],
    *,
    title: str = "Forest plot",
    note: str = "n",
    prediction: tuple[float, float] | None = None,
    truth: float | None = None,
    weighed: bool = True,
) -> ForestPlot:
    """The plot of an estimand as reports and answers tell it: by ``axis_label``, ``short``,
    ``scale``, ``sides`` and ``level``."""
    return ForestPlot(
        title=f"{title}: {told['axis_label']}",
        axis_label=told["axis_label"],
        short=told["short"],
        link=LINKS[told["scale"]],
        rows=tuple(rows),
        summaries=tuple(summaries),
        prediction=prediction,
        truth=truth,
        sides=tuple(told["sides"]) or None,
        level=told["level"],
        note=note,
        weighed=weighed,
    )


def forest_svg(
    plot: ForestPlot, *, uid: str = "forest", compact: bool = False, standalone: bool = False
) -> str:
    """The plot as an ``<svg>`` element, text as text, described for screen readers.

    Args:
        plot: what to show; labels may be any text.
        uid: prefix of ids, unique within the page.
        compact: the layout for phones (380 units wide) instead of the wide one (880).
        standalone: for a file of its own: style sheet and XML namespace included.
    """
    return to_svg(
        _layout(plot, _COMPACT if compact else _WIDE),
        title=plot.title,
        description=describe(plot),
        uid=uid,
        standalone=standalone,
    )


def forest_png(path: Path, plot: ForestPlot, *, dpi: int = 200) -> None:
    """The wide plot as a file by matplotlib: .png, or vector as .pdf or .svg, by the suffix."""
    to_file(_layout(plot, _WIDE), path, title=plot.title, dpi=dpi)


def describe(plot: ForestPlot) -> str:
    """The plot in words, for screen readers."""
    scale = plot.scale()
    parts = [f"{plot.axis_label}, estimates with {plot.percent} intervals."]
    for row in plot.rows:
        if row.problem is not None:
            parts.append(f"{row.label}: no estimate: {row.problem}.")
        else:
            interval = scale.interval_text(row.low, row.high)
            flag = ", flagged" if row.flagged else ""
            size = f", {plot.note} {row.note}" if row.note else ""
            parts.append(f"{row.label}: {scale.text(row.estimate)} ({interval}){size}{flag}.")
    for summary in plot.summaries:
        interval = scale.interval_text(summary.low, summary.high)
        parts.append(f"{summary.label}: {scale.text(summary.estimate)} ({interval}).")
    if plot.prediction is not None:
        parts.append(f"Prediction interval {scale.interval_text(*plot.prediction)}.")
    if plot.truth is not None:
        parts.append(f"Known truth {scale.text(plot.truth)}.")
    return " ".join(parts)


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Where things go; in a compact row the text stands above the mark, and the note below."""

    width: float
    left: float
    right: float
    note_x: float | None
    number_x: float
    weight_x: float | None
    head: float
    row: float
    text_dy: float
    note_dy: float
    mark_dy: float
    site: float
    label_chars: int
    problem_x: float
    problem_chars: int

    @property
    def middle(self) -> float:
        """Of the axis."""
        return (self.left + self.right) / 2

    @property
    def title_width(self) -> float:
        """Room for a title in the middle below it."""
        return 2 * min(self.middle, self.width - self.middle)


_WIDE = _Geometry(
    width=880, left=330, right=620, note_x=312, number_x=800, weight_x=880, head=30, row=30,
    text_dy=19.5, note_dy=19.5, mark_dy=15, site=30, label_chars=26, problem_x=330,
    problem_chars=84,
)  # fmt: skip
_COMPACT = _Geometry(
    width=380, left=8, right=372, note_x=None, number_x=380, weight_x=None, head=22, row=50,
    text_dy=18, note_dy=34, mark_dy=50, site=66, label_chars=20, problem_x=0,
    problem_chars=58,
)  # fmt: skip


def _layout(plot: ForestPlot, g: _Geometry) -> Drawing:
    scale = plot.scale()
    lines = len(plot.summaries) + (plot.prediction is not None)
    bottom = g.head + sum(_height(row, g) for row in plot.rows) + lines * g.row
    marks: list[Mark] = [*_heading(plot, scale, g), *_guides(plot, scale, g, bottom)]
    y = g.head
    heaviest = max((r.weight for r in plot.rows), default=0.0)
    for row in plot.rows:
        marks += _site(row, plot, scale, g, y, heaviest)
        y += _height(row, g)
    marks.append(Line(0, y, g.width, y, "rule"))
    for position, summary in enumerate(plot.summaries):
        marks += _summary(summary, scale, g, y)
        y += g.row
        if position == 0 and plot.prediction is not None:
            marks += _prediction(plot.prediction, plot.percent, scale, g, y)
            y += g.row
    marks += _axis(plot, scale, g, y)
    more = len(wrap_title(plot.axis_label, g.title_width)[0]) - 1
    return Drawing(g.width, y + 62 + TITLE_LINE * more, tuple(marks))


def _reason(row: ForestRow, g: _Geometry) -> list[str]:
    """Why there is no estimate, whole, in lines: a phone shows no more by hovering."""
    return textwrap.wrap(row.problem or "", g.problem_chars, break_long_words=True)


def _height(row: ForestRow, g: _Geometry) -> float:
    if row.problem is None:
        return g.site
    return g.note_dy + REASON_LINE * max(0, len(_reason(row, g)) - 1) + 10.5


def _x(coefficient: float, scale: Scale, g: _Geometry) -> float:
    return g.left + scale.share(coefficient) * (g.right - g.left)


def _heading(plot: ForestPlot, scale: Scale, g: _Geometry) -> Iterator[Mark]:
    baseline = g.head - 11
    if g.note_x is not None and g.weight_x is not None:
        if plot.weighed:
            yield Label(0, baseline, "Site", "small")
        yield Label(g.note_x, baseline, plot.note, "small", "end")
        yield Label(g.number_x, baseline, f"{plot.short} ({plot.percent} interval)", "small", "end")
        if plot.weighed:
            yield Label(g.weight_x, baseline, "Weight", "small", "end")
    if plot.truth is not None and scale.low <= plot.truth <= scale.high:
        x = min(g.right - 36, max(g.left + 36, _x(plot.truth, scale, g)))
        yield Label(x, baseline, f"truth {scale.text(plot.truth)}", "truth-text", "middle")
    yield Line(0, g.head, g.width, g.head, "rule")


def _guides(plot: ForestPlot, scale: Scale, g: _Geometry, bottom: float) -> Iterator[Mark]:
    """The vertical lines behind all rows: null value, pooled estimate, truth."""
    lines = [(0.0, "null")] if plot.sides is not None else []
    lines += [(s.estimate, "pooled-line") for s in plot.summaries[:1] if s.drawn and s.leads]
    if plot.truth is not None:
        lines.append((plot.truth, "truth"))
    for value, style in lines:
        if scale.low <= value <= scale.high:
            x = _x(value, scale, g)
            yield Line(x, g.head, x, bottom, style)


def _site(
    row: ForestRow, plot: ForestPlot, scale: Scale, g: _Geometry, y: float, heaviest: float
) -> Iterator[Mark]:
    text_y, mark_y = y + g.text_dy, y + g.mark_dy
    # Colour and weight alone would not tell a flagged site from the others.
    suffix = " (flagged)" if row.flagged else ""
    label = _cut(row.label, g.label_chars - len(suffix)) + suffix
    numbers = ""
    if row.problem is None:
        numbers = f"{scale.text(row.estimate)} ({scale.interval_text(row.low, row.high)})"
    yield from _clear(text_y, label, numbers, g)
    yield Label(
        0,
        text_y,
        label,
        "flagged" if row.flagged else "text",
        full=_full(row.label + suffix, label),
    )
    if row.problem is not None:
        lines = _reason(row, g)
        yield _blank(g.problem_x, y + g.note_dy, lines)
        for i, line in enumerate(lines):
            yield Label(g.problem_x, y + g.note_dy + i * REASON_LINE, line, "small")
        return
    if g.note_x is None and row.note:
        text = f"{plot.note}: {row.note}"
        yield _blank(0, y + g.note_dy, [text])
        yield Label(0, y + g.note_dy, text, "small")
    if g.note_x is not None and g.weight_x is not None:
        yield Label(g.note_x, text_y, row.note, "muted", "end")
        if plot.weighed:
            yield Label(g.weight_x, text_y, f"{100 * row.weight:.1f}%", "muted", "end")
    yield Label(g.number_x, text_y, numbers, "flagged" if row.flagged else "text", "end")
    prefix = "flag-" if row.flagged else ""
    x1, x2 = _x(row.low, scale, g), _x(row.high, scale, g)
    yield Line(x1, mark_y, x2, mark_y, prefix + "whisker")
    if row.low < scale.low:
        yield _arrow(g.left, mark_y, -1, prefix + "square")
    if row.high > scale.high:
        yield _arrow(g.right, mark_y, 1, prefix + "square")
    if scale.low <= row.estimate <= scale.high:
        # Area, not side, in proportion to the weight.
        half = max(2.2, 7.5 * math.sqrt(row.weight / heaviest)) if heaviest > 0 else 4.0
        yield _box(_x(row.estimate, scale, g), mark_y, half, half, prefix + "square")


def _summary(s: ForestSummary, scale: Scale, g: _Geometry, y: float) -> Iterator[Mark]:
    text_y, mark_y = y + g.text_dy, y + g.mark_dy - (g.site - g.row)
    style = "random" if s.leads else "fixed"
    numbers = f"{scale.text(s.estimate)} ({scale.interval_text(s.low, s.high)})"
    yield from _clear(text_y, s.label, numbers, g)
    yield Label(0, text_y, s.label, "strong" if s.leads else "muted")
    yield Label(g.number_x, text_y, numbers, "random-text" if s.leads else "muted", "end")
    if not s.drawn:
        return
    half = 8.5 if s.leads else 6.0
    x, x1, x2 = (_x(v, scale, g) for v in (s.estimate, s.low, s.high))
    yield Polygon(((x1, mark_y), (x, mark_y - half), (x2, mark_y), (x, mark_y + half)), style)
    if s.low < scale.low:
        yield _arrow(g.left, mark_y, -1, style)
    if s.high > scale.high:
        yield _arrow(g.right, mark_y, 1, style)


def _prediction(
    interval: tuple[float, float], percent: str, scale: Scale, g: _Geometry, y: float
) -> Iterator[Mark]:
    low, high = interval
    text_y, mark_y = y + g.text_dy, y + g.mark_dy - (g.site - g.row)
    label, numbers = f"{percent} prediction interval", f"({scale.interval_text(low, high)})"
    yield from _clear(text_y, label, numbers, g)
    yield Label(0, text_y, label, "muted")
    yield Label(g.number_x, text_y, numbers, "muted", "end")
    x1, x2 = _x(low, scale, g), _x(high, scale, g)
    yield _box((x1 + x2) / 2, mark_y, (x2 - x1) / 2, 3.5, "prediction")
    for value, x, way in ((low, x1, -1), (high, x2, 1)):
        if scale.low <= value <= scale.high:
            yield Line(x, mark_y - 6, x, mark_y + 6, "prediction-cap")
        else:
            yield _arrow(x, mark_y, way, "random")


def _axis(plot: ForestPlot, scale: Scale, g: _Geometry, y: float) -> Iterator[Mark]:
    yield Line(g.left, y, g.right, y, "axis")
    for value, text in scale.ticks_within(g.right - g.left):
        x = _x(value, scale, g)
        yield Line(x, y, x, y + 5, "axis")
        half = DIGIT * len(text) / 2
        yield Label(max(half, min(g.width - half, x)), y + 18, text, "tick", "middle")
    lines, full = wrap_title(plot.axis_label, g.title_width)
    for i, line in enumerate(lines):
        yield Label(g.middle, y + 38 + TITLE_LINE * i, line, "strong", "middle", full)
    if plot.sides is not None and scale.low <= 0 <= scale.high:
        below = y + 56 + TITLE_LINE * (len(lines) - 1)
        yield Label(g.left, below, f"← {plot.sides[0]}", "small")
        yield Label(g.right, below, f"{plot.sides[1]} →", "small", "end")


def _clear(baseline: float, label: str, numbers: str, g: _Geometry) -> Iterator[Polygon]:
    """Paper behind what stands over the axis, as on phones a row's label and numbers do."""
    if g.note_x is None:
        yield _blank(0, baseline, [label], WIDE)
        yield _blank(g.number_x - WIDE * len(numbers), baseline, [numbers], WIDE)


def _blank(x: float, baseline: float, lines: Sequence[str], letter: float = SMALL) -> Polygon:
    """Paper behind text, small unless said otherwise, so that no vertical line goes through it."""
    width, height = letter * max(map(len, lines), default=0), REASON_LINE * len(lines)
    top = baseline - 0.75 * REASON_LINE
    return _box(x + width / 2, top + height / 2, width / 2, height / 2, "blank")


def _arrow(x: float, y: float, way: int, style: str) -> Polygon:
    tip = x + way * 6
    return Polygon(((tip, y), (x - way * 3, y - 5), (x - way * 3, y + 5)), style)


def _box(x: float, y: float, half_width: float, half_height: float, style: str) -> Polygon:
    x1, x2, y1, y2 = x - half_width, x + half_width, y - half_height, y + half_height
    return Polygon(((x1, y1), (x2, y1), (x2, y2), (x1, y2)), style)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _full(text: str, shown: str) -> str | None:
    return text if text != shown else None

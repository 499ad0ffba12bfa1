"""Marginals with paths: what particles say at each time point, and some paths through them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.telling.axis import Scale, decimals_for
from penstock.telling.draw import (
    LEVEL_COLOURS,
    Drawing,
    Label,
    Line,
    Mark,
    Polygon,
    Polyline,
    to_svg,
)
from penstock.telling.scales import PLAIN

Points = tuple[tuple[float, float], ...]
MOST_LABELS = 7
"""Of time points below an axis."""
LABEL_SPACE = 13.0
"""Between the base lines of two levels' labels."""


@dataclass(frozen=True, slots=True)
class Band:
    """A column of numbers.

    Attributes:
        quantiles: at each time point the 5, 25, 50, 75 and 95 % quantiles; None without values.
        paths: values at each of :attr:`Marginal.seen`; NaN where missing.
        low, high: what the axis holds; lines beyond are cut off.
    """

    quantiles: tuple[tuple[float, ...] | None, ...]
    paths: tuple[tuple[float, ...], ...]
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Levels:
    """A column with levels: shares in [0, 1] of some of them.

    Attributes:
        names: of the levels that are shown.
        shares: (level) → at each time point, of particles.
        paths: (level) → at each of :attr:`Marginal.seen`, of paths.
    """

    names: tuple[str, ...]
    shares: tuple[tuple[float, ...], ...]
    paths: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Marginal:
    """One panel.

    Attributes:
        title: the column and its unit.
        time: below the axis.
        positions: of the time points, in [0, 1]; labels: what they are called.
        seen: of the paths' times, in [0, 1].
        content: what is drawn.
    """

    title: str
    time: str
    positions: tuple[float, ...]
    labels: tuple[str, ...]
    seen: tuple[float, ...]
    content: Band | Levels


@dataclass(frozen=True, slots=True)
class _Geometry:
    width: float
    columns: int
    left: float = 46.0
    right: float = 12.0
    head: float = 26.0
    plot: float = 150.0
    foot: float = 50.0
    gap: float = 20.0

    @property
    def panel(self) -> float:
        """Width of one panel."""
        return (self.width - (self.columns - 1) * self.gap) / self.columns

    @property
    def height(self) -> float:
        return self.head + self.plot + self.foot


_WIDE, _COMPACT = _Geometry(880, 2), _Geometry(380, 1)


def marginals_svg(
    panels: tuple[Marginal, ...], *, title: str, uid: str, compact: bool = False
) -> str:
    """The panels as an ``<svg>`` element, described for screen readers.

    Args:
        panels: at least one; labels may be any text.
        title: for screen readers; any text.
        uid: prefix of ids, unique within the page.
        compact: one panel in a row, for phones.
    """
    description = " ".join(describe(panel) for panel in panels)
    return to_svg(layout(panels, compact=compact), title=title, description=description, uid=uid)


def describe(panel: Marginal) -> str:
    """A panel in words: its first and its last time point."""
    ends = ((panel.labels[0], 0), (panel.labels[-1], -1))
    content, said = panel.content, []
    for label, place in ends:
        if isinstance(content, Levels):
            shares = (f"{n} {100 * s[place]:.0f}%" for n, s in zip(content.names, content.shares,
                                                                   strict=True))  # fmt: skip
            said.append(f"at {label} {', '.join(shares)}")
        elif (five := content.quantiles[place]) is not None:
            scale = _scale(content)
            interval = scale.interval_text(five[0], five[-1])
            said.append(f"at {label} median {scale.text(five[2])}, 90% in {interval}")
    return f"{panel.title}: {'; '.join(said) or 'no values'}."


def layout(panels: tuple[Marginal, ...], *, compact: bool = False) -> Drawing:
    """Panels in rows."""
    g = _COMPACT if compact else _WIDE
    marks: list[Mark] = []
    for i, panel in enumerate(panels):
        row, column = divmod(i, g.columns)
        x, y = column * (g.panel + g.gap), row * g.height
        marks += _panel(panel, g, x, y)
    rows = math.ceil(len(panels) / g.columns)
    return Drawing(g.width, rows * g.height, tuple(marks))


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where a panel's data go."""

    x1: float
    x2: float
    top: float
    bottom: float
    scale: Scale

    def x(self, position: float) -> float:
        return self.x1 + position * (self.x2 - self.x1)

    def y(self, value: float) -> float:
        """NaN stays NaN; what lies beyond the axis is on its end."""
        if math.isnan(value):
            return math.nan
        return self.bottom - self.scale.share(value) * (self.bottom - self.top)

    def points(self, positions: tuple[float, ...], values: tuple[float, ...]) -> Points:
        return tuple((self.x(p), self.y(v)) for p, v in zip(positions, values, strict=True))


def _scale(content: Band | Levels) -> Scale:
    if isinstance(content, Levels):
        return Scale(0.0, 1.0, PLAIN, 2)
    return Scale(
        content.low, content.high, PLAIN, decimals_for((content.high - content.low) / 8, least=0)
    )


def _panel(panel: Marginal, g: _Geometry, x: float, y: float) -> Iterator[Mark]:
    scale = _scale(panel.content)
    right = g.right + (70 if isinstance(panel.content, Levels) else 0)
    top = y + g.head
    frame = _Frame(x + g.left, x + g.panel - right, top, top + g.plot, scale)
    most = 52 if g.columns > 1 else 44
    title = _cut(panel.title, most)
    yield Label(x, y + 14, title, "strong", full=panel.title if title != panel.title else None)
    for value, text in scale.ticks(4):
        yield Line(frame.x1, frame.y(value), frame.x2, frame.y(value), "grid")
        yield Label(frame.x1 - 6, frame.y(value) + 4, text, "tick", "end")
    if isinstance(panel.content, Levels):
        yield from _levels(panel, panel.content, frame)
    else:
        yield from _band(panel, panel.content, frame)
    yield from _axis(panel, frame)


def _band(panel: Marginal, content: Band, frame: _Frame) -> Iterator[Mark]:
    known = [(p, q) for p, q in zip(panel.positions, content.quantiles, strict=True) if q]
    for low, high, style in ((0, -1, "outer"), (1, -2, "inner")):
        upper = [(frame.x(p), frame.y(q[high])) for p, q in known]
        lower = [(frame.x(p), frame.y(q[low])) for p, q in reversed(known)]
        if known:
            yield Polygon((*upper, *lower), style)
    for path in content.paths:
        yield Polyline(frame.points(panel.seen, path), "path")
    yield Polyline(tuple((frame.x(p), frame.y(q[2])) for p, q in known), "median")


def _levels(panel: Marginal, content: Levels, frame: _Frame) -> Iterator[Mark]:
    ends = []
    for i, (name, dots, line) in enumerate(
        zip(content.names, content.shares, content.paths, strict=True)
    ):
        style = i % len(LEVEL_COLOURS)
        yield Polyline(frame.points(panel.seen, line), f"level-{style}")
        for x, y in frame.points(panel.positions, dots):
            yield Polygon(((x - 3, y), (x, y - 3), (x + 3, y), (x, y + 3)), f"level-dot-{style}")
        ends.append((frame.y(line[-1]), name, style))
    last = -math.inf
    bottom = frame.bottom + 4
    # From the top down, none on another; and none pushed below the frame.
    for i, (y, name, style) in enumerate(sorted(ends)):
        left = len(ends) - 1 - i
        last = min(max(y + 4, last + LABEL_SPACE), bottom - left * LABEL_SPACE)
        text = _cut(name, 10)
        full = name if text != name else None
        yield Label(frame.x2 + 6, last, text, f"level-text-{style}", full=full)


def _axis(panel: Marginal, frame: _Frame) -> Iterator[Mark]:
    yield Line(frame.x1, frame.bottom, frame.x2, frame.bottom, "axis")
    count = len(panel.positions)
    every = math.ceil(count / MOST_LABELS)
    for i, (position, label) in enumerate(zip(panel.positions, panel.labels, strict=True)):
        x = frame.x(position)
        yield Line(x, frame.bottom, x, frame.bottom + 4, "axis")
        if i % every == 0:
            text = _cut(label, max(3, 56 // min(count, MOST_LABELS)))
            full = label if text != label else None
            yield Label(x, frame.bottom + 17, text, "tick", "middle", full)
    middle = (frame.x1 + frame.x2) / 2
    yield Label(middle, frame.bottom + 34, _cut(panel.time, 44), "small", "middle")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"

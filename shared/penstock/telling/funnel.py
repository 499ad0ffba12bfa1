"""Funnel plots: each site's estimate over its standard error, and where 95 of 100 sites of one
effect would lie. One layout for wide pages, one for phones, as SVG or as an image file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.telling.axis import (
    TITLE_LINE,
    Scale,
    decimals_for,
    number_text,
    scale_for,
    wrap_title,
)
from penstock.telling.draw import (
    Anchor,
    Drawing,
    Label,
    Line,
    Mark,
    Polygon,
    Polyline,
    to_file,
    to_svg,
)
from penstock.telling.scales import LOG, Link

Placed = Callable[[float], float]

NORMAL = 1.959963984540054
"""Standard errors on either side that 95 % lie within."""
STEPS = 5
"""Of the axis of standard errors, about."""
REACH = 4.0
"""The funnel's foot is held as far as it is so many times as wide as sites are spread."""


@dataclass(frozen=True, slots=True)
class FunnelPlot:
    """What a funnel plot shows; all values on the coefficient scale.

    Attributes:
        title: for screen readers; axis_label: below the axis.
        link: how coefficients are shown.
        centre: the pooled estimate.
        sites: of each its name, estimate and standard error, > 0, and whether it is flagged.
        added: estimates and standard errors that trim-and-fill adds.
    """

    title: str
    axis_label: str
    link: Link
    centre: float
    sites: tuple[tuple[str, float, float, bool], ...]
    added: tuple[tuple[float, float], ...] = ()

    @property
    def deepest(self) -> float:
        """The largest standard error of the axis."""
        errors = [s for _, _, s, _ in self.sites] + [s for _, s in self.added]
        return 1.08 * max(errors)

    def scale(self) -> Scale:
        """Limits that hold the funnel's foot, as far as sites stay readable: what a precise site's
        interval is, at least, also where all sites have found the same."""
        half = NORMAL * self.deepest
        spread = max(abs(y - self.centre) for _, y, _, _ in self.sites)
        held = min(half, REACH * max(spread, NORMAL * min(s for _, _, s, _ in self.sites)))
        return scale_for(
            link=self.link,
            estimates=[y for _, y, _, _ in self.sites],
            whiskers=[(self.centre - held, self.centre + held)],
            prediction=None,
            anchors=[self.centre, *(y for y, _ in self.added)],
            decimals=decimals_for(half, least=2 if self.link is LOG else 0),
        )


def funnel_svg(plot: FunnelPlot, *, uid: str, compact: bool = False) -> str:
    """The plot as an ``<svg>`` element; any text in it is escaped."""
    errors = [s for _, _, s, _ in plot.sites]
    decimals = decimals_for(max(errors), least=0)
    ends = (number_text(error, decimals) for error in (min(errors), max(errors)))
    said = f"{len(errors)} sites by estimate and standard error, from {' to '.join(ends)}"
    return to_svg(
        lay_out_funnel(plot, compact=compact),
        title=plot.title,
        description=said,
        uid=uid,
    )


def funnel_png(path: Path, *, plot: FunnelPlot) -> None:
    """The plot as an image file."""
    to_file(lay_out_funnel(plot), path, title=plot.title)


def lay_out_funnel(plot: FunnelPlot, *, compact: bool = False) -> Drawing:
    """Marks of the plot, standard errors downwards."""
    width, bottom = (380.0, 242.0) if compact else (880.0, 302.0)
    left, right, top = 62.0, width - 16.0, 14.0
    height = bottom + 42.0 + TITLE_LINE * len(wrap_title(plot.axis_label, right - left)[0])
    scale = plot.scale()

    def x(coefficient: float) -> float:
        return left + scale.share(coefficient) * (right - left)

    def y(error: float) -> float:
        return top + error / plot.deepest * (bottom - top)

    return Drawing(width, height, tuple(_marks(plot, scale, x, y, (left, right, top, bottom))))


def _marks(
    plot: FunnelPlot,
    scale: Scale,
    x: Placed,
    y: Placed,
    frame: tuple[float, float, float, float],
) -> Iterator[Mark]:
    left, right, top, bottom = frame
    # A side that leaves the frame ends where it does so.
    sides = []
    for sign, edge in ((-1, scale.low), (1, scale.high)):
        reach = min(plot.deepest, abs(edge - plot.centre) / NORMAL)
        sides.append((x(plot.centre + sign * NORMAL * reach), y(reach), reach))
    corners = [(x(plot.centre), y(0.0))]
    for (at, deep, reach), edge in zip(sides, (left, right), strict=True):
        foot = [(at, deep)] + ([(edge, bottom)] if reach < plot.deepest else [])
        corners = [*reversed(foot), *corners] if edge == left else [*corners, *foot]
    yield Polygon(tuple(corners), "outer")
    step, errors = _ticks(plot.deepest)
    decimals = decimals_for(10 * step, least=0)
    for error in errors:
        yield Line(left, y(error), right, y(error), "grid")
        yield Label(left - 8, y(error) + 4, number_text(error, decimals), "tick", "end")
    yield Line(x(plot.centre), top, x(plot.centre), bottom, "pooled-line")
    for at, deep, _ in sides:
        yield Polyline(((x(plot.centre), y(0.0)), (at, deep)), "limit-0")
    for estimate, error in plot.added:
        yield _diamond(x(estimate), y(error), "fixed")
    for name, estimate, error, flagged in plot.sites:
        yield _diamond(x(estimate), y(error), "flag-square" if flagged else "square")
        if flagged:
            inwards = x(estimate) > (left + right) / 2
            anchor: Anchor = "end" if inwards else "start"
            away = -9.0 if inwards else 9.0
            text = name if len(name) <= 20 else name[:19] + "…"
            full = name if text != name else None
            yield Label(x(estimate) + away, y(error) + 4, text, "flagged", anchor, full)
    yield Line(left, bottom, right, bottom, "axis")
    for value, text in scale.ticks_within(right - left):
        yield Line(x(value), bottom, x(value), bottom + 5, "axis")
        yield Label(x(value), bottom + 18, text, "tick", "middle")
    yield Label(0, top + 2, "SE", "small")
    lines, full = wrap_title(plot.axis_label, right - left)
    for i, title in enumerate(lines):
        down = bottom + 40 + TITLE_LINE * i
        yield Label((left + right) / 2, down, title, "strong", "middle", full)


def _ticks(deepest: float) -> tuple[float, list[float]]:
    power = 10.0 ** math.floor(math.log10(deepest / STEPS))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= deepest / STEPS)
    return step, [i * step for i in range(math.floor(deepest / step) + 1)]


def _diamond(x: float, y: float, style: str) -> Polygon:
    half = 5.0
    return Polygon(((x - half, y), (x, y - half), (x + half, y), (x, y + half)), style)

"""Survival curves: each group's with its interval, and the sites' behind it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.telling.axis import Scale, decimals_for
from penstock.telling.draw import Drawing, Label, Line, Mark, Polyline, to_svg
from penstock.telling.scales import PLAIN

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """A group's shares at each time; NaN where there is none.

    Attributes:
        name: of the group; empty where it is of all rows.
        low, high: the interval's ends; sites: of each site alone.
    """

    name: str
    survival: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    sites: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class SurvivalPlot:
    """What is drawn: groups at ``times``, which begin after 0 and end with the axis."""

    title: str
    time: str
    times: tuple[float, ...]
    groups: tuple[Steps, ...]


@dataclass(frozen=True, slots=True)
class _Geometry:
    width: float
    height: float
    left: float = 50.0
    right: float = 120.0
    head: float = 12.0
    foot: float = 46.0


_WIDE, _COMPACT = _Geometry(880, 360), _Geometry(380, 300, right=84.0)
_SPACE = 15.0
"""Between the base lines of two labels."""


def survival_svg(plot: SurvivalPlot, *, uid: str, compact: bool = False) -> str:
    """The curves as an ``<svg>`` element, described for screen readers; labels may be any text."""
    return to_svg(
        lay_out(plot, compact=compact), title=plot.title, description=describe(plot), uid=uid
    )


def describe(plot: SurvivalPlot) -> str:
    """Each group where its curve ends."""
    said = []
    for group in plot.groups:
        known = [i for i, s in enumerate(group.survival) if not math.isnan(s)]
        name = f"{group.name}: " if group.name else ""
        if not known:
            said.append(f"{name}no curve.")
            continue
        at = known[-1]
        low, share, high = (100 * x[at] for x in (group.low, group.survival, group.high))
        said.append(
            f"{name}at {plot.times[at]:.6g} {share:.0f}% (95% interval {low:.0f}% to {high:.0f}%)."
        )
    return " ".join(said)


def lay_out(plot: SurvivalPlot, *, compact: bool = False) -> Drawing:
    """Axes from 0 to the last time, and from the lowest share that is drawn up to 1."""
    g = _COMPACT if compact else _WIDE
    return Drawing(g.width, g.height, tuple(_draw(plot, g)))


def _draw(plot: SurvivalPlot, g: _Geometry) -> Iterator[Mark]:
    left, right, top, bottom = g.left, g.width - g.right, g.head, g.height - g.foot
    lowest = min([1.0, *(v for v in _values(plot) if not math.isnan(v))])
    shares = Scale(max(0.0, min(0.9, lowest - 0.05)), 1.0, PLAIN, 2)
    times = Scale(0.0, plot.times[-1], PLAIN, decimals_for(plot.times[-1] / 8, least=0))

    def line(values: Sequence[float], style: str) -> Polyline:
        # Nobody has an event before the first of them.
        first = next((i for i, v in enumerate(values) if not math.isnan(v)), len(values))
        begun = ((0.0, 1.0),) if first < len(values) else ()
        points = (*begun, *zip(plot.times[first:], values[first:], strict=True))
        return Polyline(tuple((x(t), y(v)) for t, v in points), style)

    def x(time: float) -> float:
        return left + times.share(time) * (right - left)

    def y(share: float) -> float:
        return math.nan if math.isnan(share) else bottom - shares.share(share) * (bottom - top)

    for value, text in shares.ticks(5):
        yield Line(left, y(value), right, y(value), "grid")
        yield Label(left - 6, y(value) + 4, text, "tick", "end")
    ends = []
    for place, group in enumerate(plot.groups):
        for one in group.sites if len(group.sites) > 1 else ():
            yield line(one, f"site-{place}")
        yield line(group.low, f"limit-{place}")
        yield line(group.high, f"limit-{place}")
        yield line(group.survival, f"level-{place}")
        known = [v for v in group.survival if not math.isnan(v)]
        if known:
            ends.append((y(known[-1]), group.name, place))
    last = -math.inf
    for at, name, place in sorted(ends):
        last = max(at + 4, last + _SPACE)
        text = name if len(name) <= 16 else name[:15].rstrip() + "…"
        yield Label(
            right + 8, last, text, f"level-text-{place}", full=name if text != name else None
        )
    yield Line(left, bottom, right, bottom, "axis")
    for value, text in times.ticks(6):
        yield Line(x(value), bottom, x(value), bottom + 4, "axis")
        yield Label(x(value), bottom + 17, text, "tick", "middle")
    yield Label((left + right) / 2, bottom + 36, plot.time, "small", "middle")


def _values(plot: SurvivalPlot) -> Iterator[float]:
    for group in plot.groups:
        yield from group.survival
        yield from group.low
        for one in group.sites:
            yield from one

"""A change in time: all sites together with intervals, and a thin line for each site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.telling.axis import Scale, decimals_for
from penstock.telling.draw import Drawing, Label, Line, Mark, Polygon, Polyline, to_svg
from penstock.telling.scales import PLAIN


@dataclass(frozen=True, slots=True)
class Step:
    """A time, what it is called, and the change until then with its interval."""

    time: float
    label: str
    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Track:
    """What is drawn: at least one step; of each site its own, None where there is none."""

    title: str
    time: str
    begin: str
    steps: tuple[Step, ...]
    sites: Mapping[str, tuple[float | None, ...]]

    @property
    def scale(self) -> Scale:
        """Holds intervals, sites and no change."""
        alone = [v for values in self.sites.values() for v in values if v is not None]
        ends = [0.0, *alone, *(v for s in self.steps for v in (s.low, s.high))]
        low, high = min(ends), max(ends)
        room = 0.06 * (high - low) or 1.0
        low, high = low - room, high + room
        return Scale(low, high, PLAIN, decimals_for((high - low) / 16, least=0))


@dataclass(frozen=True, slots=True)
class _Geometry:
    width: float
    height: float
    left: float = 56.0
    right: float = 24.0
    head: float = 12.0
    foot: float = 46.0
    labels: int = 12


_WIDE, _COMPACT = _Geometry(880, 320), _Geometry(380, 260, labels=6)


def track_svg(plot: Track, *, uid: str, compact: bool = False) -> str:
    """The plot as an ``<svg>`` element, described for screen readers; labels may be any text."""
    drawing = lay_out_track(plot, compact=compact)
    return to_svg(drawing, title=plot.title, description=describe_track(plot), uid=uid)


def describe_track(plot: Track) -> str:
    """Every time in words."""
    scale = plot.scale
    said = (
        f"at {s.label} {scale.text(s.estimate)} ({scale.interval_text(s.low, s.high)})"
        for s in plot.steps
    )
    return f"{plot.title}: {'; '.join(said)}."


def lay_out_track(plot: Track, *, compact: bool = False) -> Drawing:
    """Times across, change up."""
    g = _COMPACT if compact else _WIDE
    return Drawing(g.width, g.height, tuple(_draw(plot, g)))


def _draw(plot: Track, g: _Geometry) -> Iterator[Mark]:
    left, right, top, bottom = g.left, g.width - g.right, g.head, g.height - g.foot
    scale, last = plot.scale, len(plot.steps)

    def x(place: int) -> float:  # evenly, from the time since which it is counted
        return left + 14 + place / last * (right - left - 28)

    def y(value: float) -> float:
        return bottom - scale.share(value) * (bottom - top)

    for value, text in scale.ticks(5):
        yield Line(left, y(value), right, y(value), "grid")
        yield Label(left - 6, y(value) + 4, text, "tick", "end")
    yield Polyline(((left, y(0.0)), (right, y(0.0))), "limit-4")
    for values in plot.sites.values():
        known = [(x(i + 1), y(v)) for i, v in enumerate(values) if v is not None]
        yield Polyline(((x(0), y(0.0)), *known), "site-0")
    middle = ((x(0), y(0.0)), *((x(i + 1), y(s.estimate)) for i, s in enumerate(plot.steps)))
    yield Polyline(middle, "level-1")
    for i, s in enumerate(plot.steps, start=1):
        at, centre = x(i), y(s.estimate)
        yield Polyline(((at, y(s.low)), (at, y(s.high))), "level-1")
        corners = ((at - 5, centre), (at, centre - 5), (at + 5, centre), (at, centre + 5))
        yield Polygon(corners, "level-dot-1")
    yield Line(left, bottom, right, bottom, "axis")
    every = -(-(last + 1) // g.labels)
    for i, text in enumerate([plot.begin, *(s.label for s in plot.steps)]):
        yield Line(x(i), bottom, x(i), bottom + 4, "axis")
        if i % every == 0:
            short = text if len(text) <= 9 else text[:8].rstrip() + "…"
            full = text if short != text else None
            yield Label(x(i), bottom + 17, short, "tick", "middle", full)
    yield Label((left + right) / 2, bottom + 36, plot.time, "small", "middle")

"""A table of shares as a heat map: the darker a cell, the larger its share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.telling.axis import number_text
from penstock.telling.draw import HEATS, Drawing, Label, Mark, Polygon, to_svg


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A share with its interval."""

    share: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """In whole percent, as the interval is."""
        return f"{_percent(self.share)}%"

    @property
    def interval(self) -> str:
        return f"{_percent(self.low)}–{_percent(self.high)}"


@dataclass(frozen=True, slots=True)
class HeatMap:
    """What is drawn: rows are levels before, columns levels after; None where nothing is known.

    Attributes:
        across: the columns' levels, where they are not those of the rows.
        most: the share of which a cell is darkest.
        lead: what stands before a row's level in words.
    """

    title: str
    before: str
    after: str
    levels: tuple[str, ...]
    rows: tuple[tuple[HeatCell | None, ...], ...]
    across: tuple[str, ...] = ()
    most: float = 1.0
    lead: str = "From "

    @property
    def columns(self) -> tuple[str, ...]:
        return self.across or self.levels


@dataclass(frozen=True, slots=True)
class _Geometry:
    width: float
    left: float
    head: float = 58.0
    row: float = 46.0
    chars: int = 18


_WIDE, _COMPACT = _Geometry(880, 190), _Geometry(380, 84, chars=9)
_WIDEST = 130.0
"""Of a cell, in drawing units."""
_SMALLEST = 54.0
"""Of a cell, for its interval to be written into it."""


def heat_svg(plot: HeatMap, *, uid: str, compact: bool = False) -> str:
    """The table as an ``<svg>`` element, described for screen readers; labels may be any text."""
    return to_svg(
        lay_out_heat(plot, compact=compact),
        title=plot.title,
        description=describe_heat(plot),
        uid=uid,
    )


def describe_heat(plot: HeatMap) -> str:
    """Each row in a sentence."""
    said = []
    for level, row in zip(plot.levels, plot.rows, strict=True):
        cells = [
            f"{after} {cell.text} ({cell.interval})"
            for after, cell in zip(plot.columns, row, strict=True)
            if cell is not None
        ]
        said.append(f"{plot.lead}{level}: {', '.join(cells) or 'not known'}.")
    return " ".join(said)


def lay_out_heat(plot: HeatMap, *, compact: bool = False) -> Drawing:
    """Rows below each other, columns side by side."""
    g = _COMPACT if compact else _WIDE
    return Drawing(g.width, g.head + g.row * len(plot.levels) + 8, tuple(_draw(plot, g)))


def _draw(plot: HeatMap, g: _Geometry) -> Iterator[Mark]:
    wide = min(_WIDEST, (g.width - g.left) / len(plot.columns))
    middle = g.left + wide * len(plot.columns) / 2
    yield Label(0, g.head - 12, plot.before, "small")
    yield Label(middle, 16, plot.after, "small", "middle")
    letters = max(2, int(wide / 7.5))
    for i, level in enumerate(plot.columns):
        short = _cut(level, letters)
        full = level if short != level else None
        yield Label(g.left + wide * (i + 0.5), g.head - 12, short, "small", "middle", full)
    for i, level in enumerate(plot.levels):
        y, name = g.head + g.row * i, _cut(level, g.chars)
        full = level if name != level else None
        yield Label(g.left - 10, y + g.row / 2 + 4, name, "text", "end", full)
        for j, cell in enumerate(plot.rows[i]):
            yield from _cell(cell, g.left + wide * j, y, wide, g.row, plot.most)


def _cell(
    cell: HeatCell | None, x: float, y: float, wide: float, high: float, most: float
) -> Iterator[Mark]:
    corners = ((x, y), (x + wide - 2, y), (x + wide - 2, y + high - 2), (x, y + high - 2))
    middle = x + wide / 2 - 1
    if cell is None:
        yield Polygon(corners, "heat-0")
        yield Label(middle, y + high / 2 + 4, "–", "heat-text", "middle")
        return
    step = min(HEATS - 1, int(cell.share / most * HEATS))
    yield Polygon(corners, f"heat-{step}")
    small, base = wide < _SMALLEST, y + high / 2
    yield Label(middle, base + (4 if small else -3), cell.text, "heat-text", "middle")
    if not small:
        yield Label(middle, base + 14, cell.interval, "heat-small", "middle")


def _percent(share: float) -> str:
    return number_text(100 * share, 0)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"

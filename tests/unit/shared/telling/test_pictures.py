"""Pictures can be read: contrasts of colours, whole titles, and axes that hold what is drawn."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest

from penstock.telling import axis, draw, forest, funnel
from penstock.telling.scales import LOG, PLAIN

LONG = "Standard deviation of the change of systolic blood pressure (mmHg) from visit 0 to visit 12"


def luminance(colour: str) -> float:
    """Relative, as WCAG 2.1 defines it: of black and white it is all that is left."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str, scheme: int) -> float:
    low, high = sorted(luminance(draw.COLOURS[name][scheme]) for name in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_and_marks_stand_out(scheme: int) -> None:
    """4.5 to 1 for text, WCAG 1.4.3; 3 to 1 for what a picture is understood by, 1.4.11."""
    for name, style in draw.STYLES.items():
        if style.fill and (name.endswith("text") or name in ("text", "small", "tick", "muted")):
            grounds = ["paper"] if style.halo else [f"heat-{i}" for i in range(draw.HEATS)]
            for ground in grounds:
                assert contrast(style.fill, ground, scheme) >= 4.5, (name, ground)
    for name in draw.LEVEL_COLOURS:
        assert contrast(name, "paper", scheme) >= 3
    shades = [luminance(draw.COLOURS[f"heat-{i}"][scheme]) for i in range(draw.HEATS)]
    assert sorted(shades, reverse=scheme == 0) == shades


def seen(plot: funnel.FunnelPlot, compact: bool) -> draw.Drawing:
    drawing = funnel.lay_out_funnel(plot, compact=compact)
    for mark in drawing.marks:
        if isinstance(mark, draw.Label):
            assert 0 <= mark.y <= drawing.height
    return drawing


@pytest.mark.parametrize("compact", [False, True])
def test_a_long_title_was_cut_short(compact: bool) -> None:
    sites = (("a", 1.0, 0.2, False), ("b", 1.5, 0.4, False))
    drawing = seen(funnel.FunnelPlot("t", LONG, PLAIN, 1.2, sites), compact)
    titles = [m.text for m in drawing.marks if isinstance(m, draw.Label) and m.style == "strong"]
    assert " ".join(titles) == LONG
    assert len(titles) == (3 if compact else 1)
    rows = (forest.ForestRow("a", 0.1, 0.0, 0.2), forest.ForestRow("b", 0.2, 0.1, 0.3))
    plot = forest.ForestPlot("t", LONG, "SD", LOG, rows)
    svg = forest.forest_svg(plot, compact=compact)
    shown = re.findall(r'class="fp-strong"[^>]*>([^<]*)<', svg)
    assert " ".join(shown) == LONG


def test_a_title_of_many_lines_is_cut_and_kept() -> None:
    lines, full = axis.wrap_title(3 * f"{LONG} ", 45 * axis.BOLD)
    assert len(lines) == axis.TITLE_LINES
    assert lines[-1].endswith("…")
    assert full is not None
    assert axis.wrap_title("Hazard ratio", 300) == (["Hazard ratio"], None)


def test_a_funnel_of_sites_that_agree_was_flat() -> None:
    """Its axis was as wide as they differ: by nothing."""
    plot = funnel.FunnelPlot("t", "d", PLAIN, 135.0, (("a", 135.0, 1.2, False),) * 2)
    scale = plot.scale()
    assert scale.low < 135 - 1.96 * 1.2 < 135 + 1.96 * 1.2 < scale.high
    # A site that knows nothing does not push the others together.
    sites = (("a", 135.0, 1.0, False), ("b", 137.0, 1.0, False), ("c", 136.0, 500.0, False))
    wide = funnel.FunnelPlot("t", "d", PLAIN, 136.0, sites).scale()
    assert wide.high - wide.low < 100


def test_one_sites_interval_was_two_arrows() -> None:
    """Of one site the axis was a millionth wide, and its ticks had seven decimals."""
    row = forest.ForestRow("a", 0.52, 0.04, 0.998)
    scale = forest.ForestPlot("t", "Mean", "mean", PLAIN, (row,), sides=None).scale()
    assert scale.low < 0.04 < 0.998 < scale.high


def test_one_sites_share_was_told_as_0() -> None:
    """Where nothing is pooled the site's own interval says how many decimals matter."""
    row = forest.ForestRow("north", 0.424, 0.366, 0.482)
    scale = forest.ForestPlot("t", "Share", "Share", PLAIN, (row,), sides=None).scale()
    assert scale.text(row.estimate) == "0.424"
    assert scale.interval_text(row.low, row.high) == "0.366–0.482"


@pytest.mark.parametrize("width", [120.0, 290.0, 364.0])
@pytest.mark.parametrize("decades", range(-7, 8))
def test_ticks_stand_apart(decades: int, width: float) -> None:
    scale = axis.Scale(1 - 10.0**decades, 1 + 10.0**decades, PLAIN, 2)
    ticks = scale.ticks_within(width)
    places = [scale.share(value) * width for value, _ in ticks]
    gaps = [b - a for a, b in pairwise(places)]
    assert min(gaps, default=math.inf) > axis.DIGIT * max(len(text) for _, text in ticks)

"""The picture of `make bench NAME=particles`: milliseconds as a problem grows.

Four panels: particles, directions and dimension of a flow step, time points of the Sinkhorns; what
is not varied stays at 10,000 particles, 70 directions, d = 8, 100 particles per time point. The
published step at 30,000 percentiles, and with fewer: as many as particles. Medians of 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator
from tests.benchmarks import flow
from tests.benchmarks import particle_works as works

REPEATS = 3
PARTICLES = (1000, 3000, 10_000, 30_000, 100_000)
DIRECTIONS = (8, 24, 72, 216)
DIMENSIONS = (2, 4, 8, 16, 32, 64)
POINTS = (3, 5, 10, 20, 50)
MOST_PUBLISHED = 30_000
"""More particles at once take the published step gigabytes and many seconds."""

LINES = {
    "published": ("#b5541c", "-", "s"),
    "published, fewer": ("#b5541c", ":", "P"),
    "loop of ot.sinkhorn": ("#b5541c", "--", "D"),
    "ours": ("#1f4e96", "-", "o"),
    "ours, cold": ("#1f4e96", "--", "^"),
    "ours, warm": ("#1f4e96", ":", "v"),
}

Found = dict[str, list[tuple[int, float]]]


def steps(n: int, d: int, directions: int) -> flow.Works:
    """One step of each contender."""
    x = works.setting(n, d, directions, torch.float32)
    particles = works.moving(x)
    found: dict[str, Callable[[], object]] = {"ours": lambda: works.ours(works.fresh(x), particles)}
    if n <= MOST_PUBLISHED:
        for name, count in (("published", works.PERCENTILES), ("published, fewer", n)):
            levels = torch.linspace(0, 1, count)
            found[name] = partial(_published, x, levels)
    return found


def _published(x: works.Drawn, percentiles: torch.Tensor) -> torch.Tensor:
    return works.published(works.fresh(x), percentiles)


def measured(sizes: Sequence[int], of: Callable[[int], flow.Works]) -> Found:
    """Milliseconds of each contender at each size."""
    found: Found = {}
    for size in sizes:
        for name, taken in flow.interleaved(of(size), REPEATS).items():
            found.setdefault(name, []).append((size, 1e3 * flow.median(taken)))
    return found


def panels() -> Iterator[tuple[str, Found]]:
    n, directions, d = works.PARTICLES, 70, works.D
    yield (
        f"particles (N = {directions}, d = {d})",
        measured(PARTICLES, lambda size: steps(size, d, directions)),
    )
    yield (
        f"directions N ({n:,} particles, d = {d})",
        measured(DIRECTIONS, lambda size: steps(n, d, size)),
    )
    yield (
        f"dimension d ({n:,} particles, N = {directions})",
        measured(DIMENSIONS, lambda size: steps(n, size, directions)),
    )
    m, reg = 100, 0.01
    yield (
        f"time points T (m = {m}, reg = {reg:g})",
        measured(POINTS, lambda size: works.transports(m, reg, size)[0]),
    )


def picture(path: Path) -> None:
    """Measure and draw."""
    draw(path, dict(panels()))


def draw(path: Path, found: Mapping[str, Found]) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(9.0, 7.2), layout="constrained")
    for axis, (what, lines) in zip(axes.flat, found.items(), strict=True):
        _panel(axis, what, lines)
    for axis in axes[:, 0]:
        axis.set_ylabel("a flow step (ms)")
    axes[1, 1].set_ylabel("T - 1 Sinkhorns (ms)")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _panel(axis: Axes, what: str, lines: Found) -> None:
    sizes = sorted({size for points in lines.values() for size, _ in points})
    for name, (colour, style, marker) in LINES.items():
        if name in lines:
            axis.plot(
                *zip(*lines[name], strict=True), linestyle=style, color=colour, marker=marker,
                markersize=4.5, label=name,
            )  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8)
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.minorticks_off()
    axis.set_xlabel(what)
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)

"""The picture of `make bench NAME=maf`: milliseconds per training step as a fit grows.

Four panels: rows in the step, columns, hidden units, threads; what is not varied stays at 2000 rows
in one full batch, 7 columns, 64 hidden units, one thread. Medians of 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from tests.benchmarks import flow, peers

REPEATS = 5
ROWS = (125, 250, 500, 1000, 2000, 4000, 8000, 16000)
COLUMNS = (2, 4, 8, 16, 32, 64)
UNITS = (16, 32, 64, 128, 256, 512)
MANY_ROWS = 8000
"""Rows of the threads' panel: enough for two threads to share."""

Step = Callable[[np.ndarray, int], float]
"""Rows (n, d) and hidden units to seconds per step."""

LINES = {
    "Opacus, DP-SGD": ("#b5541c", "--"),
    "zuko": ("#b5541c", "-"),
    "ours, torch": ("#8fadd3", "-"),
    "ours, DP-SGD": ("#1f4e96", "--"),
    "ours": ("#1f4e96", "-"),
}


def _ours(backend: str, private: bool) -> Step:
    def seconds(x: np.ndarray, hidden: int) -> float:
        few = 4 if backend == "torch" else 20
        training = flow.private(few) if private else flow.public(few)
        return flow.seconds(lambda: flow.ours(x, training, backend, hidden)) / few

    return seconds


def _zuko(x: np.ndarray, hidden: int) -> float:
    peer = peers.PEERS["zuko"]
    return flow.seconds(lambda: peers.fit(peer, x, len(x), 4, hidden)) / 4


def _opacus(x: np.ndarray, hidden: int) -> float:
    fit = peers.OpacusFit(x, "ghost", None, hidden)
    fit.steps(1)
    return flow.seconds(lambda: fit.steps(2)) / 2


STEPS: dict[str, Step] = {
    "Opacus, DP-SGD": _opacus,
    "zuko": _zuko,
    "ours, torch": _ours("torch", private=False),
    "ours, DP-SGD": _ours("kernel", private=True),
    "ours": _ours("kernel", private=False),
}


def _medians(sizes: Sequence[int], of: Callable[[Step, int], float]) -> dict[str, list[float]]:
    """Milliseconds per step of each line at each size."""
    found: dict[str, list[float]] = {name: [] for name in STEPS}
    for size in sizes:
        for name, step in STEPS.items():
            times = [of(step, size) for _ in range(REPEATS + 1)][1:]
            found[name].append(1e3 * float(np.median(times)))
    return found


def _threads(step: Step, count: int) -> float:
    flow.threads(count)
    try:
        return step(flow.data(MANY_ROWS), flow.HIDDEN)
    finally:
        flow.threads(1)


def _panel(axis: Axes, what: str, sizes: Sequence[int], found: dict[str, list[float]]) -> None:
    for name, times in found.items():
        colour, style = LINES[name]
        axis.plot(sizes, times, style, color=colour, marker="o", markersize=3, label=name)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8)
    axis.minorticks_off()
    axis.set_xlabel(what)
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def picture(path: Path) -> None:
    """Measure and draw."""
    x = flow.data()
    counts = [2**i for i in range(8) if 2**i <= flow.cores()]
    panels = {
        f"rows in a step, {flow.D} columns": (
            ROWS,
            lambda step, n: step(flow.data(n), flow.HIDDEN),
        ),
        f"columns, {flow.N:,} rows": (COLUMNS, lambda step, d: step(flow.data(d=d), flow.HIDDEN)),
        f"hidden units, {flow.N:,} rows": (UNITS, lambda step, hidden: step(x, hidden)),
        f"threads, {MANY_ROWS:,} rows": (counts, _threads),
    }
    drawn = {what: (sizes, _medians(sizes, of)) for what, (sizes, of) in panels.items()}
    draw(path, drawn)


def draw(path: Path, panels: Mapping[str, tuple[Sequence[int], dict[str, list[float]]]]) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(9.5, 7.5), sharey=True, layout="constrained")
    for axis, (what, (sizes, found)) in zip(axes.flat, panels.items(), strict=True):
        _panel(axis, what, sizes, found)
    for axis in axes[:, 0]:
        axis.set_ylabel("milliseconds per step")
    lines, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside upper center", ncols=len(names), frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)

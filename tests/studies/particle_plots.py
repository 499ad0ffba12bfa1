"""Pictures of released particles: flows, paths, convergence, what ε buys.

Each function takes public numbers and returns a matplotlib figure; :func:`save` writes it. Colours
are Okabe and Ito's, or a map of even lightness: told apart with any colour vision. Meaning never
rests on colour alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.base.errors import InvalidInput, Problem
from penstock.base.pictures import check_picture
from penstock.mechanisms.labelled import COPY, PATH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Density = Callable[[Array], Array]
"""Points (k, 2) to densities (k,), to a factor."""

INK, MUTED, RULE = "#17212b", "#56626e", "#d4dae0"
BLUE, VERMILLION = "#0072b2", "#d55e00"
LINES: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "linestyle": "-", "marker": "o"},
    {"color": VERMILLION, "linestyle": "--", "marker": "s"},
    {"color": "#009e73", "linestyle": "-.", "marker": "^"},
    {"color": "#b0578f", "linestyle": (0, (1, 1)), "marker": "D"},
    {"color": "#56b4e9", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "#595959", "linestyle": (0, (7, 2)), "marker": "P"},
)
HELD = (0.95, 0.75, 0.5, 0.25)
"""Shares of the target that the level sets hold, outermost first."""

_CELLS = 120
_BINS = 60
_SHOWN = 40
"""As many paths are drawn: more would be a blot."""


@dataclass(frozen=True, slots=True)
class Trajectories:
    """A trajectory release.

    Attributes:
        columns: names of the d columns, with units if there are any.
        times, paths: k times, and (p, k, d) paths seen at them.
        snapshots, particles: T times, and (T, m, d) particles there.
        clock: what the time is called, with its unit.
    """

    columns: tuple[str, ...]
    times: Array
    paths: Array
    snapshots: Array
    particles: Array
    clock: str = "time"

    @classmethod
    def from_table(
        cls,
        table: Mapping[str, ArrayLike],
        time: str,
        columns: Sequence[str],
        units: Mapping[str, str] | None = None,
    ) -> Trajectories:
        """Out of a released long table.

        Its rows with ``_copy`` 0 are the particles (``_path`` -1), in the order of time points,
        and the paths (``_path`` 1, 2, …), each in the order of time; others are passed over.

        Raises:
            InvalidInput: a column that is not there, no paths, or paths of unequal length.
        """
        wanted = (COPY, PATH, time, *columns)
        absent = [name for name in wanted if name not in table]
        if absent:
            raise InvalidInput("table", [Problem(name, "is not a column") for name in absent])
        held = {name: np.asarray(table[name], dtype=np.float64) for name in wanted}
        values = np.column_stack([held[name] for name in columns])
        drawn, path, when = held[COPY] == 0, held[PATH], held[time]
        dots, lines = drawn & (path == -1), drawn & (path >= 1)
        snapshots, count = np.unique(when[dots]), len(np.unique(path[lines]))
        for what, size, parts in (
            ("particles", int(dots.sum()), len(snapshots)),
            ("paths", int(lines.sum()), count),
        ):
            if not size or size % parts:
                raise InvalidInput("table", [Problem(what, "are missing, or of unequal length")])
        d = len(columns)
        paths = values[lines].reshape(count, -1, d)
        times = when[lines][: paths.shape[1]]
        if not (np.diff(times) > 0).all():
            # The column's grid is coarser than the times, which are evenly spaced.
            times = np.linspace(times[0], times[-1], len(times))
        particles = values[dots].reshape(len(snapshots), -1, d)
        labels = {name: f"{name} ({unit})" for name, unit in (units or {}).items()}
        named = tuple(labels.get(name, name) for name in columns)
        return cls(named, times, paths, snapshots, particles, labels.get(time, time))


def flow(
    snapshots: Mapping[str, Array],
    target: Density | Array,
    *,
    axes: tuple[str, str] = ("first coordinate", "second coordinate"),
    across: int = 5,
) -> Figure:
    """Particles on the target's level sets, a panel per moment.

    Args:
        snapshots: titles, such as "step 40", to particles (n, 2).
        target: its density, or points (k, 2) of it.
        axes: what the coordinates are.
        across: panels in a row.

    Raises:
        InvalidInput: nothing to draw, or points that are not in a plane.
    """
    clouds = {title: _plane(title, points) for title, points in snapshots.items()}
    if not clouds:
        raise InvalidInput("picture", [Problem("snapshots", "there are none")])
    if callable(target):
        x, y, density = _grid(target, [*clouds.values()])
    else:
        sample = _plane("target", target)
        x, y, density = _grid(_smooth(sample), [*clouds.values(), sample])
    levels = _levels(density)
    columns = min(across, len(clouds))
    rows = -(-len(clouds) // columns)
    figure = _figure((2.35 * columns + 0.5, 2.35 * rows + 0.7))
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for panel, (title, points) in zip(panels.flat, clouds.items(), strict=False):
        panel.contour(x, y, density, levels, colors=MUTED, linewidths=0.8)
        panel.plot(
            points[:, 0], points[:, 1], ".", color=BLUE, markersize=4, alpha=0.55,
            markeredgewidth=0, rasterized=True,
        )  # fmt: skip
        panel.set_title(title, fontsize=9.5, color=INK, parse_math=False)
        panel.set_aspect("equal")
        panel.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
        _frame(panel, grid=None)
    for panel in panels.flat[len(clouds) :]:
        panel.set_visible(False)
    held = ", ".join(f"{100 * share:g}" for share in HELD)
    figure.supxlabel(f"{axes[0]}; lines hold {held} % of the target", fontsize=9, color=INK)
    figure.supylabel(axes[1], fontsize=9, color=INK)
    return figure


def trajectories(
    release: Trajectories, *, plane: tuple[int, int] | None = None, shown: Sequence[int] = ()
) -> Figure:
    """Marginals with paths: a panel per column over time, and one in a plane if asked for.

    Shades are the paths' marginal at each time, thin lines the first paths, dots the particles at
    snapshots.

    Args:
        release: what was released.
        plane: two columns' numbers, for a panel in their plane, coloured by time.
        shown: columns' numbers; none for all.

    Raises:
        InvalidInput: a number that is no column's.
    """
    d = len(release.columns)
    shown = tuple(shown) or tuple(range(d))
    if not all(0 <= j < d for j in (*shown, *(plane or ()))):
        bound = f"0 to {d - 1}"
        raise InvalidInput("picture", [Problem("columns", "no such column", bound=bound)])
    across = min(3, len(shown))
    rows = -(-len(shown) // across)
    width = max(3.4 * across, 4.4)  # room for the legend
    figure = _figure((width + (4.0 if plane else 0.0), max(2.7 * rows, 3.2 if plane else 0) + 0.4))
    left: Any = figure
    if plane:
        parts: Any = figure.subfigures(1, 2, width_ratios=(width, 4.0))
        left = parts[0]
        _in_plane(parts[1], release, plane)
    panels = left.subplots(rows, across, squeeze=False)
    for place, (panel, j) in enumerate(zip(panels.flat, shown, strict=False)):
        _over_time(panel, release, j)
        if place + across < len(shown):
            panel.tick_params(labelbottom=False)
        else:
            panel.set_xlabel(release.clock, color=INK, parse_math=False)
    for panel in panels.flat[len(shown) :]:
        panel.set_visible(False)
    marks, names = panels[0, 0].get_legend_handles_labels()
    left.legend(
        marks, names, loc="outside upper center", ncols=len(marks), frameon=False, fontsize=8.5
    )
    return figure


def _over_time(panel: Any, release: Trajectories, j: int) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    values, dots = release.paths[:, :, j], release.particles[:, :, j]
    ends = min(values.min(), dots.min()), max(values.max(), dots.max())
    edges = np.linspace(ends[0] - 1e-9, ends[1] + 1e-9, _BINS + 1)
    counts = np.stack([np.histogram(seen, edges)[0] for seen in values.T], axis=1)
    # Each time by its own fullest bin: where paths are far apart they would else pale away.
    panel.pcolormesh(
        release.times, (edges[1:] + edges[:-1]) / 2, counts / counts.max(axis=0), shading="nearest",
        cmap=LinearSegmentedColormap.from_list("marginal", ["white", "#5ba3d0"]), rasterized=True,
    )  # fmt: skip
    lines = panel.plot(release.times, values[:_SHOWN].T, color=INK, linewidth=0.5, alpha=0.4)
    lines[0].set_label("a path")
    panel.plot(
        np.repeat(release.snapshots, dots.shape[1]), dots.ravel(), ".", markersize=4,
        color=VERMILLION, alpha=0.6, markeredgewidth=0, zorder=3, label="a particle",
    )  # fmt: skip
    panel.plot([], [], "s", color="#5ba3d0", markersize=8, label="more paths, darker")
    panel.set_ylabel(release.columns[j], color=INK, parse_math=False)
    _frame(panel, grid=None)


def _in_plane(part: Any, release: Trajectories, plane: tuple[int, int]) -> None:
    first, second = plane
    panel = part.subplots()
    for path in release.paths[:_SHOWN]:
        panel.plot(path[:, first], path[:, second], color=MUTED, linewidth=0.5, alpha=0.45)
    m = release.particles.shape[1]
    dots = panel.scatter(
        release.particles[:, :, first].ravel(), release.particles[:, :, second].ravel(),
        c=np.repeat(release.snapshots, m), cmap="viridis", s=9, linewidths=0, zorder=3,
    )  # fmt: skip
    panel.set_xlabel(release.columns[first], color=INK, parse_math=False)
    panel.set_ylabel(release.columns[second], color=INK, parse_math=False)
    _frame(panel)
    bar = part.colorbar(dots, ax=panel, shrink=0.85)
    bar.set_label(release.clock, color=INK, parse_math=False)
    bar.ax.tick_params(colors=MUTED, labelsize=8.5)
    bar.outline.set_visible(False)


def convergence(
    curves: Mapping[str, ArrayLike], *, objective: str, step: str = "step", log: bool = True
) -> Figure:
    """The objective over steps: one run's line, or several runs' median and quartiles.

    Args:
        curves: names to (steps,), or (runs, steps); step numbers count from 0.
        objective: what is drawn, with its unit; step: what is counted.
        log: logarithmic in the objective.

    Raises:
        InvalidInput: nothing to draw, or more curves than can be told apart.
    """
    figure = _figure((6.4, 3.6))
    panel = figure.subplots()
    for style, (name, values) in zip(_styles(curves), curves.items(), strict=False):
        runs = np.atleast_2d(np.asarray(values, dtype=np.float64))
        at = np.arange(runs.shape[1])
        low, middle, high = np.percentile(runs, [25, 50, 75], axis=0)
        if len(runs) > 1:
            panel.fill_between(at, low, high, color=style["color"], alpha=0.2, linewidth=0)
        panel.plot(
            at, middle, linewidth=1.7, markersize=4.5, label=name, **style,
            markevery=max(1, len(at) // 12),
        )  # fmt: skip
    if log:
        panel.set_yscale("log")
        _plain_log(panel.yaxis)
    panel.set_xlabel(step, color=INK)
    panel.set_ylabel(objective, color=INK)
    _frame(panel)
    _legend(figure, panel, list(curves))
    return figure


def epsilon_against_distance(
    curves: Mapping[str, Sequence[tuple[float, ArrayLike]]],
    *,
    distance: str,
    condition: str,
    floor: tuple[str, float] | None = None,
) -> Figure:
    """What ε buys: means over runs with two standard errors, both axes logarithmic.

    Args:
        curves: names to pairs of ε and the runs' distances.
        distance: what is drawn, such as "SW2 to fresh data".
        condition: at what δ, and for which relation.
        floor: what no ε can buy, such as true samples' own distance: a name and its height.

    Raises:
        InvalidInput: nothing to draw, or more curves than can be told apart.
    """
    figure = _figure((6.4, 3.8))
    panel = figure.subplots()
    seen = sorted({epsilon for points in curves.values() for epsilon, _ in points})
    for style, (name, points) in zip(_styles(curves), curves.items(), strict=False):
        runs = [np.atleast_1d(np.asarray(v, dtype=np.float64)) for _, v in _by_epsilon(points)]
        errors = [2 * r.std(ddof=1) / np.sqrt(len(r)) if len(r) > 1 else 0.0 for r in runs]
        panel.errorbar(
            [epsilon for epsilon, _ in _by_epsilon(points)], [r.mean() for r in runs], errors,
            linewidth=1.7, markersize=5.5, capsize=3, label=name, **style,
        )  # fmt: skip
    if floor is not None:
        name, height = floor
        panel.axhline(height, color=INK, linewidth=1, linestyle=(0, (2, 2)), label=name)
    panel.set_xscale("log")
    panel.set_yscale("log")
    _plain_log(panel.yaxis)
    panel.set_xticks(seen, [f"{epsilon:g}" for epsilon in seen])
    panel.minorticks_off()
    panel.set_xlabel(f"ε {condition}", color=INK)
    panel.set_ylabel(distance, color=INK)
    _frame(panel)
    _legend(figure, panel, [*curves, *([] if floor is None else floor[:1])])
    return figure


def save(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write it; the format by the path's suffix, without a date, so that equal is equal.

    Raises:
        InvalidInput: another suffix. PenstockError: matplotlib is not installed.
    """
    check_picture(path)
    suffix = path.suffix.lower()
    undated: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    figure.savefig(path, format=suffix[1:], dpi=dpi, metadata=undated.get(suffix))


def _figure(size: tuple[float, float]) -> Figure:
    # Slow to import, and absent where nobody draws.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _frame(panel: Any, grid: str | None = "both") -> None:
    if grid:
        panel.grid(axis=grid, color=RULE, linewidth=0.6)
        panel.set_axisbelow(True)
    panel.tick_params(colors=MUTED, labelsize=8.5)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        panel.spines[side].set_color(MUTED)


def _legend(figure: Figure, panel: Any, names: Sequence[str]) -> None:
    """In the order of ``names``, row by row."""
    marks, labels = panel.get_legend_handles_labels()
    found = dict(zip(labels, marks, strict=True))
    columns = min(4, len(names))
    order = [name for start in range(columns) for name in names[start::columns]]
    figure.legend(
        [found[name] for name in order], order, loc="outside upper center", ncols=columns,
        frameon=False, fontsize=8.5,
    )  # fmt: skip


def _plain_log(axis: Any) -> None:
    """Numbers as people write them at 1, 2 and 5 times the powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _styles(curves: Mapping[str, object]) -> tuple[dict[str, Any], ...]:
    if not 1 <= len(curves) <= len(LINES):
        problem = Problem(
            "curves", "too few or too many", None, str(len(curves)), f"1 to {len(LINES)}"
        )
        raise InvalidInput("picture", [problem])
    return LINES


def _by_epsilon(points: Sequence[tuple[float, ArrayLike]]) -> list[tuple[float, ArrayLike]]:
    return sorted(points, key=lambda point: point[0])


def _plane(what: str, points: object) -> Array:
    found = np.asarray(points, dtype=np.float64)
    if found.ndim != 2 or found.shape[1] != 2 or not len(found) or not np.isfinite(found).all():
        problem = Problem(what, "must be finite points in a plane", None, str(found.shape))
        raise InvalidInput("picture", [problem])
    return found


def _smooth(sample: Array) -> Density:
    from scipy.stats import gaussian_kde

    # Half the width that is best for one Gaussian, which would blur several into each other.
    estimate = gaussian_kde(sample.T, lambda kernel: 0.5 * kernel.scotts_factor())
    return lambda points: np.asarray(estimate(points.T))


def _grid(density: Density, clouds: Sequence[Array]) -> tuple[Array, ...]:
    """x (k), y (k) and the density (k, k) over a frame around all the clouds."""
    every = np.concatenate(clouds)
    # Stray particles may leave the frame: they must not shrink the picture of all others.
    low, high = np.percentile(every, [0.25, 99.75], axis=0)
    room = 0.1 * (high - low) + 1e-9
    x, y = (np.linspace(a, b, _CELLS) for a, b in zip(low - room, high + room, strict=True))
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    return x, y, np.asarray(density(points), dtype=np.float64).reshape(_CELLS, _CELLS)


def _levels(density: Array) -> list[float]:
    """Ascending heights above which the shares HELD of the mass lie."""
    heights = np.sort(density.ravel())[::-1]
    mass = np.cumsum(heights)
    found = [heights[min(np.searchsorted(mass, s * mass[-1]), mass.size - 1)] for s in HELD]
    return sorted({float(height) for height in found})

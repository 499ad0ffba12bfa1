"""A correlation from synthetic rows: Shen & Tian 2025, tables 1 and 2, figures 2 and 3.

100 simulations for each n: n rows of five equally correlated Gaussians (ρ = .9), a flow of five
blocks with one hidden layer of 50 (the paper's), and the mean sample correlation of synthetic rows
by three methods: flow sampling (50,000 rows), latent noise injection, direct noise injection.

Training, fixed beforehand on other seeds and the same for all n: outputs start at zero beside a
linear path, tanh, 600 Adam steps on a twentieth of the rows each (30 passes), rate .02 with cosine
decay, the last 30 % of iterates averaged; no early stopping. The paper: full batches, more than 100
steps, spectrally normalised weights. With the compiled kernel all runs take about a quarter of an
hour of one core; JOBS in the environment sets how many.

Tables. "Paper" is its figure and "peer" the same release through a Gaussian with the rows' own mean
and covariance, in the same runs: the least that any flow could reach here. The target is the
paper's figure, plus half a unit of its last digit, plus two standard errors of the difference (the
paper's runs are as many as ours, with the same spread): where the two are equal about one cell in
forty fails by chance. A bias holds if its size does.

Rates. α is the slope of -log MAD on log n over n = 2500, 5000, … 50,000, where every n has its own
runs. Observed rows give 1/2 and so do synthetic ones that lose no more than a factor; "peer" is
again the Gaussian's slope. Flow sampling is bound to be slower, whatever the flow: its 50,000 rows
add an error of their own that does not shrink with n, and the slope that this leaves is the target.
Theorem 1 itself is about the distance to the *observed* estimate as w tends to 1: with
1 - w = (1/4)(n/2500)^(-2/5), the rate it names for d = 5, that distance has to shrink faster than
n^(-1/2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.studies.lni import (
    GREY,
    RULE,
    GaussianMap,
    Map,
    direct,
    fit_flow,
    flow_sample,
    moved,
    over_runs,
)
from tests.support.results import RESULTS, Row, write

from penstock.mechanisms.flow.architecture import Architecture
from penstock.mechanisms.flow.training import Training

Array = NDArray[np.float64]

D, RHO = 5, 0.9
RUNS = 100
SIZES = tuple(2500 * k for k in range(1, 21))
SAMPLED = 50_000
"""Rows of flow sampling, whatever n is."""

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
ARCH = Architecture(D, flows=5, hidden=(50,))

PAPER_MAD = {
    10_000: (16, 18, 16, 15, 12, 10, 8996, 6755, 4502, 2251, 10),
    20_000: (18, 20, 16, 13, 11, 8, 9003, 6750, 4498, 2251, 8),
    30_000: (18, 18, 14, 12, 9, 6, 9003, 6753, 4505, 2252, 6),
    40_000: (17, 16, 13, 11, 8, 5, 9000, 6754, 4502, 2251, 5),
    50_000: (14, 15, 11, 9, 7, 5, 9000, 6752, 4501, 2250, 5),
}
PAPER_BIAS = {
    10_000: (-4, -7, -4, -2, -1, 0, -8996, -6755, -4502, -2251, 1),
    20_000: (-2, -5, -2, -1, 0, 0, -9003, -6750, -4498, -2251, 1),
    30_000: (-3, -4, -2, -1, -1, 0, -9003, -6753, -4505, -2252, 0),
    40_000: (-1, -3, 0, -2, 0, 0, -9000, -6754, -4502, -2251, 0),
    50_000: (-4, -6, -3, -2, -1, 0, -9000, -6752, -4501, -2250, 0),
}
"""In 1e-4: flow sampling, LNI and then direct noise at each of WEIGHTS."""

COLUMNS = (
    "flow sampling",
    *(f"LNI, w = {w:g}" for w in WEIGHTS),
    *(f"direct, w = {w:g}" for w in WEIGHTS),
)
FLOW, LNI, DIRECT, MOVING = 0, slice(1, 6), slice(6, 11), 11
"""Where a run keeps its estimates: COLUMNS, then LNI at the w of theorem 1."""


def moving_weight(n: int) -> float:
    """w of theorem 1: 1 - w falls like n^(-2/d), from 1/4 at the smallest n."""
    return 1 - 0.25 * math.pow(n / SIZES[0], -2 / D)


def training(n: int) -> Training:
    """600 steps of n/20 rows."""
    return Training(600, math.inf, None, learning_rate=0.02, average=0.3, batch=max(n // 20, 1))


def simulate(n: int, rng: np.random.Generator) -> Array:
    """(n, 5) standard Gaussians, any two of correlation ρ."""
    shared = rng.standard_normal((n, 1))
    own = rng.standard_normal((n, D))
    return math.sqrt(RHO) * shared + math.sqrt(1 - RHO) * own


def correlation(x: Array) -> float:
    """The mean of the sample correlations: the paper's estimator of ρ."""
    pairs = np.atleast_2d(np.corrcoef(x, rowvar=False))[np.triu_indices(x.shape[1], 1)]
    return float(pairs.mean())


@dataclass(frozen=True, slots=True)
class Task:
    """One simulation."""

    n: int
    run: int


def one(task: Task) -> tuple[Array, Array, float]:
    """Estimates (12,) by way of a flow, the same through the Gaussian, and the observed one."""
    x = simulate(task.n, np.random.default_rng([task.n, task.run, 1]))
    model = fit_flow(x, task.run, ARCH, training(task.n))
    rng = np.random.default_rng([task.n, task.run, 2])
    direct_noise = [correlation(direct(x, w, rng)) for w in WEIGHTS]
    # The same noise for both maps, so that they differ by what they are.
    state = int(rng.integers(2**63))

    def estimates(through: Map) -> Array:
        noise = np.random.default_rng(state)
        sampled = correlation(flow_sample(through, SAMPLED, noise))
        z = through.to_latent(x)
        weights = (*WEIGHTS, moving_weight(task.n))
        latent = [correlation(moved(through, z, w, noise)) for w in weights]
        return np.array([sampled, *latent[:-1], *direct_noise, latent[-1]])

    return estimates(model), estimates(GaussianMap.of(x)), correlation(x)


@dataclass(frozen=True, slots=True)
class Sweep:
    """All runs: estimates (sizes, runs, 12) of the flow and of the Gaussian; observed likewise."""

    sizes: tuple[int, ...]
    flow: Array
    gaussian: Array
    observed: Array


def sweep(sizes: tuple[int, ...] = SIZES, runs: int = RUNS) -> Sweep:
    """Simulate; sizes in turn, so that the time left is well guessed."""
    tasks = [Task(n, run) for run in range(runs) for n in sizes]
    found = over_runs(one, tasks, "lni-correlation", weight=lambda t: 10_000 + t.n)
    shape = (runs, len(sizes))
    flow, gaussian = (
        np.array([f[i] for f in found]).reshape(*shape, -1).swapaxes(0, 1) for i in (0, 1)
    )
    return Sweep(sizes, flow, gaussian, np.array([f[2] for f in found]).reshape(shape).T)


# -- rows ------------------------------------------------------------------------------------------


def cells(done: Sweep, n: int) -> list[Row]:
    """Tables 1 and 2 at one n."""
    at = done.sizes.index(n)
    runs = done.flow.shape[1]
    rows = []
    for name, table, size in (("MAD", PAPER_MAD, np.abs), ("bias", PAPER_BIAS, np.asarray)):
        for column, what in enumerate(COLUMNS):
            errors = size(done.flow[at, :, column] - RHO)
            peer = float(size(done.gaussian[at, :, column] - RHO).mean())
            ours, se = float(errors.mean()), float(errors.std(ddof=1)) / math.sqrt(runs)
            paper = table[n][column] / 1e4
            limit = abs(paper) + 0.5e-4 + 2 * math.sqrt(2) * se
            title = f"{name}, n = {n}, {what}"
            rows.append(Row(title, ours, se, runs, limit, peer, paper, abs(ours) <= limit))
    return rows


def slope(sizes: tuple[int, ...], errors: Array) -> tuple[float, float]:
    """α of mean |error| ∝ n^-α and its standard error; errors (sizes, runs)."""
    log_n = np.log(np.asarray(sizes, dtype=np.float64))
    lever = (log_n - log_n.mean()) / ((log_n - log_n.mean()) ** 2).sum()
    size = np.abs(errors)
    mean = size.mean(axis=1)
    relative = size.std(axis=1, ddof=1) / math.sqrt(errors.shape[1]) / mean
    return -float(lever @ np.log(mean)), float(np.sqrt(lever**2 @ relative**2))


def sampling_slope(sizes: tuple[int, ...]) -> float:
    """Flow sampling's slope if the flow lost nothing: its variance is 1/n + 1/50,000."""
    exact = np.array([[math.sqrt(1 / n + 1 / SAMPLED)] * 2 for n in sizes])
    return slope(sizes, exact)[0]


def rates(done: Sweep) -> list[Row]:
    """α of each method, with what theorem 1 says of it."""
    runs = done.flow.shape[1]
    targets = [sampling_slope(done.sizes), *[0.5] * len(WEIGHTS)]
    rows = []
    for column, target in enumerate(targets):
        ours, se = slope(done.sizes, done.flow[:, :, column] - RHO)
        peer, _ = slope(done.sizes, done.gaussian[:, :, column] - RHO)
        title = f"rate α, {COLUMNS[column]}"
        rows.append(Row(title, ours, se, runs, target, peer, None, ours >= target - 2 * se))
    for column in range(DIRECT.start, DIRECT.stop):
        ours, se = slope(done.sizes, done.flow[:, :, column] - RHO)
        rows.append(Row(f"rate α, {COLUMNS[column]}", ours, se, runs))
    gap, se = slope(done.sizes, done.flow[:, :, MOVING] - done.observed)
    peer, _ = slope(done.sizes, done.gaussian[:, :, MOVING] - done.observed)
    title = "rate α of the distance to the observed estimate, 1 - w ∝ n^(-2/5)"
    rows.append(Row(title, gap, se, runs, 0.5, peer, None, gap - 2 * se > 0.5))
    return rows


def table(done: Sweep) -> str:
    """Table 1 as the paper prints it, ours over the paper's, in 1e-4."""
    lines = [
        "Table 1 in 1e-4, as ours / the paper's:",
        "",
        f"| n | {' | '.join(COLUMNS[:6])} |",
        f"|---|{'---|' * 6}",
    ]
    for n in (n for n in done.sizes if n in PAPER_MAD):
        mad = 1e4 * np.abs(done.flow[done.sizes.index(n)] - RHO).mean(axis=0)
        shown = [f"{mad[c]:.1f} / {PAPER_MAD[n][c]}" for c in range(6)]
        lines.append(f"| {n} | {' | '.join(shown)} |")
    return "\n".join(lines)


# -- the picture -----------------------------------------------------------------------------------


def draw(done: Sweep, path: Path) -> None:
    """Figures 2 (above) and 3 (below): flow sampling, direct noise, latent noise."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    figure = Figure(figsize=(12.0, 7.2), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, 3, sharex=True)
    panels = (
        ("(a) flow sampling", range(FLOW, FLOW + 1), "lower left"),
        ("(b) direct noise injection", range(DIRECT.start, DIRECT.stop), "center right"),
        ("(c) latent noise injection", range(LNI.start, LNI.stop), "lower left"),
    )
    shades = colormaps["viridis"](np.linspace(0, 0.9, len(WEIGHTS)))  # w has an order
    for (title, columns, place), above, below in zip(panels, *grid, strict=True):
        above.set_title(title, loc="left", fontsize=11)
        for column, shade, w in zip(columns, shades, WEIGHTS, strict=False):
            label = "50,000 rows of the flow" if column == FLOW else f"w = {w:g}"
            _curve(above, below, done, column, shade, label)
        _frame(above, below, done, place)
    grid[0, 0].set_ylabel("mean |ρ̂ - ρ|")
    grid[1, 0].set_ylabel("bias, mean ρ̂ - ρ")
    for axes in (grid[0, 0], grid[0, 2]):
        axes.set_ylim(2.5e-4, 6e-3)
        axes.yaxis.set_major_locator(FixedLocator([5e-4, 1e-3, 2e-3, 4e-3]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.4f}"))
    for axes in (grid[1, 0], grid[1, 2]):
        axes.set_ylim(-2e-3, 2e-3)
    figure.suptitle(
        f"Correlation from synthetic rows, ρ = .9, {done.flow.shape[1]} simulations"
        " (hollow: the paper's tables; bands: two standard errors)",
        fontsize=12,
    )
    figure.savefig(path, dpi=150)


def _curve(above: Any, below: Any, done: Sweep, column: int, colour: Any, label: str) -> None:
    n = np.asarray(done.sizes)
    errors = done.flow[:, :, column] - RHO
    root = math.sqrt(errors.shape[1])
    tables = ((above, np.abs(errors), PAPER_MAD), (below, errors, PAPER_BIAS))
    for axes, values, paper in tables:
        mean, se = values.mean(axis=1), values.std(axis=1, ddof=1) / root
        axes.fill_between(n, mean - 2 * se, mean + 2 * se, color=colour, alpha=0.15, linewidth=0)
        axes.plot(n, mean, color=colour, marker="o", markersize=3, linewidth=1.4, label=label)
        known = [k for k in paper if k in done.sizes]
        printed = [paper[k][column] / 1e4 for k in known]
        axes.plot(known, printed, "s", color=colour, fillstyle="none", markersize=6)


def _frame(above: Any, below: Any, done: Sweep, place: str) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    n = np.asarray(done.sizes, dtype=np.float64)
    observed = float((np.abs(done.observed - RHO).mean(axis=1) * np.sqrt(n)).mean())
    above.plot(
        n, observed / np.sqrt(n), color="#c00000", linestyle="--", label="$n^{-1/2}$, observed rows"
    )
    above.set_xscale("log")
    above.set_yscale("log")
    below.axhline(0, color=GREY, linewidth=0.8)
    below.set_xlabel("n, observed rows")
    for axes in (above, below):
        axes.grid(color=RULE, linewidth=0.6)
        axes.xaxis.set_major_locator(FixedLocator([2500, 5000, 10_000, 20_000, 50_000]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    above.legend(frameon=False, fontsize=8.5, loc=place)


def run() -> Path:
    """Simulate, draw, and write."""
    done = sweep()
    draw(done, RESULTS / "lni-correlation.png")
    rows = rates(done) + [row for n in PAPER_MAD for row in cells(done, n)]
    misses = sum(row.holds is False for row in rows)
    checked = sum(row.holds is not None for row in rows)
    note = f"{(__doc__ or '').strip()}\n\n{checked - misses} of {checked} rows hold.\n"
    return write("lni-correlation", rows, f"{note}\n{table(done)}")
